"""A small release with loose files or tars, and its catalog."""

import hashlib
import io
import tarfile
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from hgld.pipelines.shards.build import BuildResult, build_catalog
from hgld.pipelines.shards.catalog import Catalog, Container
from hgld.pipelines.shards.config import ShardConfig, SourceConfig
from hgld.pipelines.stage import silent
from tests.fake_releases.pictures import jpeg, png

LEVELS = ("species", "family")
SMALL = ShardConfig(group_size=3, shard_items=8, workers=1)


@dataclass
class ToyRelease:
    """A release with classes of several sizes in two splits; some images are PNG, rotated or exact copies."""

    images: dict[str, bytes] = field(default_factory=dict)  # file: its bytes
    rows: list[tuple[str, str, str, str | None, str | None]] = field(default_factory=list)

    @classmethod
    def make(cls, counts: tuple[int, ...] = (2, 3, 7, 4, 5)) -> "ToyRelease":
        """Make one class per count; the last two classes form the test split, and the last item has no class."""
        rng, release = np.random.default_rng(0), cls()
        for label, count in enumerate(counts):
            split = "test" if label >= len(counts) - 2 else "train"
            for number in range(count):
                suffix = "png" if (label + number) % 5 == 4 else "jpg"
                data = png(rng) if suffix == "png" else jpeg(rng, orientation=6 if number == 1 else None)
                release.add(f"{label}/{number}.{suffix}", split, f"species {label}", f"family {label % 2}", data)
        release.add("copies/first.jpg", "train", "species 0", "family 0", release.images["1/0.jpg"])
        release.add("odd/unknown.jpg", "train", None, None, jpeg(rng))
        return release

    def add(self, file: str, split: str, species: str | None, family: str | None, data: bytes) -> None:
        self.images[file] = data
        self.rows.append((file.rpartition(".")[0], split, file, species, family))

    def write(self, root: Path) -> Path:
        """Write the images as loose files."""
        for file, data in self.images.items():
            (root / file).parent.mkdir(parents=True, exist_ok=True)
            (root / file).write_bytes(data)
        return root

    def items(self) -> pl.DataFrame:
        schema: dict[str, Any] = dict.fromkeys(["key", "split", "file", *LEVELS], pl.String)
        return pl.DataFrame(self.rows, schema=schema, orient="row")

    def catalog(self, root: Path, **given: Any) -> Catalog:
        """Return the catalog of the loose files."""
        return Catalog(name="toy", levels=LEVELS, items=self.items(), root=root, **given)

    def write_tars(self, root: Path, tars: int = 2) -> tuple[Container, ...]:
        """Write the images to tars ``set_0.tar``, ..., beside unlisted members."""
        root.mkdir(parents=True, exist_ok=True)
        containers = []
        for number in range(tars):
            path = root / f"set_{number}.tar"
            with tarfile.open(path, mode="w") as tar:
                for file, data in [*list(self.images.items())[number::tars], (f"stray/{number}.jpg", b"nobody's")]:
                    member = tarfile.TarInfo(f"deep/{stem_of(file)}.{file.rpartition('.')[2]}")
                    member.size = len(data)
                    tar.addfile(member, io.BytesIO(data))
            containers.append(Container(path, hashlib.md5(path.read_bytes()).hexdigest(), "set"))
        return tuple(containers)

    def tar_catalog(self, root: Path, containers: tuple[Container, ...]) -> Catalog:
        """Return the catalog of the tars' members."""
        stems = pl.Series([f"set/{stem_of(file)}" for file in self.items()["file"]])
        items = self.items().with_columns(file=stems)
        return Catalog(name="toy", levels=LEVELS, items=items, root=root, containers=containers)


def stem_of(file: str) -> str:
    """Return the stem of the tar member for a file."""
    return file.rpartition(".")[0].replace("/", "-")


def build(catalog: Catalog, out: Path | str, **changes: Any) -> BuildResult:
    """Build without a card; ``changes`` are fields of the config."""
    return build_catalog(catalog, None, str(out), SourceConfig(), replace(SMALL, **changes), silent)


def bytes_of(root: Path) -> dict[str, bytes]:
    """Return the bytes of every file in a folder by path."""
    return {str(path.relative_to(root)): path.read_bytes() for path in sorted(root.rglob("*")) if path.is_file()}
