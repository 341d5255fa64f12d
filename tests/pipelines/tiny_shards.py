"""A dataset directory of a few tiny images, written without the builder, and ways to damage it."""

import hashlib
import tarfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl

from hgld import Hierarchy
from hgld.data import format as files
from hgld.data import index as index_file
from hgld.data.tar import END_OF_ARCHIVE, member_header, padding
from hgld.pipelines.check.verify import verify
from hgld.pipelines.shards.cards import croissant
from hgld.pipelines.stage import silent, write_json
from tests.fake_releases.pictures import jpeg, png

LEVELS = ("species", "family")
TRAIN = "train-000000.tar"
FAMILIES = ("cat", "dog")


def picture(seed: int, *, form: str = "JPEG", orientation: int | None = None) -> bytes:
    """Return an image of 48 x 40 stored pixels that depends on the seed."""
    rng = np.random.default_rng(seed)
    return png(rng, 48, 40) if form == "PNG" else jpeg(rng, 48, 40, orientation)


class TinyShards:
    """Items of a dataset; by default train and test have different species."""

    def __init__(self, *, boxes: bool = False, with_png: bool = True):
        self.items: list[dict] = []
        for number in range(16):
            split, shard, species = "train", number // 6, number // 2 % 3  # species in runs of two: 0 0 1 1 2 2 0 0 ...
            if number >= 12:
                split, shard, species = "test", 0, 3 + number // 14
            suffix, orientation = "png" if with_png and number == 13 else "jpg", 6 if number == 3 else 1
            item = {
                "key": f"s{species}/img_{number:03d}",
                "shard": files.shard_name(split, shard),
                "split": split,
                "suffix": suffix,
                "data": picture(number, form="PNG" if suffix == "png" else "JPEG", orientation=orientation),
                "orientation": orientation,
                "labels": [species, species % 2],
                "names": [f"species {species}", FAMILIES[species % 2]],
                "source": f"release/{number}.jpg",
                "box": ((1, 2, 30, 20) if number % 2 else ()) if boxes else None,
            }
            self.items.append(item)
        self.items[-1] |= {"labels": [-1, 1], "names": ["", FAMILIES[1]]}

    def write_tars(self, root: Path) -> pl.DataFrame:
        """Write the tars; return the index."""
        rows = []
        for shard in sorted({item["shard"] for item in self.items}):
            items, members = [item for item in self.items if item["shard"] == shard], []
            for item in items:
                facts = files.item_json(
                    item["labels"], item["names"], item["split"], item["source"], LEVELS, item["box"]
                )
                members += [(f"{item['key']}.{item['suffix']}", item["data"]), (f"{item['key']}.json", facts)]
            with tarfile.open(write_tar(root / shard, members)) as tar:
                rows += map(_row, items, [member.offset_data for member in tar][::2])
        return index_file.with_runs(pl.DataFrame(rows, infer_schema_length=None), LEVELS[0])

    def write(self, root: Path) -> Path:
        """Write the whole dataset directory."""
        root.mkdir(parents=True, exist_ok=True)
        index = self.write_tars(root)
        labels = index.select(LEVELS).to_numpy()
        species = [f"species {i}" for i in range(labels[:, 0].max() + 1)]
        Hierarchy.from_labels(labels, LEVELS, [species, FAMILIES]).to_parquet(root / files.HIERARCHY)
        pl.DataFrame(schema=index_file.TABLES[files.REJECTED]).write_parquet(root / files.REJECTED)
        (root / files.CARD).write_text("# Tiny\n")
        rewrite_index(root, index)
        return root


def _row(item: dict, offset: int) -> dict:
    """Return an item's row of the index."""
    return {
        **{name: item[name] for name in ("key", "shard", "split", "suffix", "source", "orientation")},
        **dict(zip(LEVELS, item["labels"], strict=True)),
        "offset": offset,
        "size": len(item["data"]),
        "width": 48,
        "height": 40,
        "sha256": hashlib.sha256(item["data"]).hexdigest(),
        **({} if item["box"] is None else dict(zip(files.BOX, item["box"] or (None,) * 4, strict=True))),
    }


def write_manifest(root: Path, index: pl.DataFrame, *, disjoint: bool = True) -> None:
    """Write ``croissant.json`` and ``dataset.json`` for the shards in the directory."""
    shards = []
    for (shard, split), part in index.group_by("shard", "split", maintain_order=True):
        shards.append(files.ShardFacts(str(shard), str(split), len(part), **_fingerprint(root / str(shard))))
    names = (files.INDEX, files.HIERARCHY, files.REJECTED, files.LISTS, files.JUDGEMENTS, files.CARD)
    facts = {name: _fingerprint(root / name) for name in names if (root / name).exists()}
    splits, provenance = index_file.split_facts(index, LEVELS), {"disjoint": disjoint}
    manifest = files.Manifest("tiny", LEVELS, 2, splits, tuple(shards), facts, {}, provenance)
    write_json(root / files.CROISSANT, croissant(manifest, None, boxes=files.BOX[0] in index.columns))
    manifest = replace(manifest, files={**facts, files.CROISSANT: _fingerprint(root / files.CROISSANT)})
    (root / files.MANIFEST).write_text(manifest.to_json())


def _fingerprint(path: Path):
    data = path.read_bytes()
    return files.FileFacts(bytes=len(data), sha256=hashlib.sha256(data).hexdigest())


def index_of(root):
    return index_file.read_index(root / files.INDEX)[0]


def rewrite_index(root, frame):
    """Replace the index and its facts in the manifest."""
    index_file.write_index(frame, root / files.INDEX, LEVELS)
    write_manifest(root, frame)


def flip(path, place):
    """Change one byte of a file."""
    data = bytearray(path.read_bytes())
    data[place] ^= 0xFF
    path.write_bytes(data)


def write_tar(path, members):
    """Write a tar of (name, bytes) pairs; return its path."""
    with open(path, "wb") as file:
        file.writelines(member_header(n, len(d)) + d + padding(len(d)) for n, d in members)
        file.write(END_OF_ARCHIVE)
    return path


def rewrite_tar(path, change):
    """Rewrite a tar after changing its (name, bytes) pairs."""
    with tarfile.open(path) as tar:
        members = [(info.name, stored.read()) for info in tar if (stored := tar.extractfile(info))]
    write_tar(path, change(members))


def findings(root, **options):
    return verify(root, progress=silent, **options).findings
