"""A dataset directory of a few tiny images, written without the builder, and ways to damage it."""

import hashlib
import io
import tarfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
from PIL import Image

from hgld import Hierarchy
from hgld.data import format as files
from hgld.data import index as index_file
from hgld.data.tar import END_OF_ARCHIVE, member_header, padding
from hgld.pipelines.check.verify import verify
from hgld.pipelines.shards.cards import croissant
from hgld.pipelines.stage import silent, write_json

LEVELS = ("species", "family")
TRAIN = "train-000000.tar"
FAMILIES = ("cat", "dog")


def picture(
    seed: int, *, form: str = "JPEG", size: tuple[int, int] = (48, 40), orientation: int | None = None
) -> bytes:
    """Return a JPEG of a smooth image that depends on the seed."""
    rng = np.random.default_rng(seed)
    coarse = Image.fromarray(rng.integers(0, 255, (5, 5, 3), dtype=np.uint8))
    exif = Image.Exif()
    if orientation is not None:
        exif[0x0112] = orientation
    buffer = io.BytesIO()
    coarse.resize(size, Image.Resampling.BICUBIC).save(buffer, form, exif=exif)
    return buffer.getvalue()


class TinyShards:
    """Items of a dataset; by default train and test have different species."""

    def __init__(self, *, k: int = 2, boxes: bool = False, png: bool = True):
        self.k, self.boxes = k, boxes
        self.items: list[dict] = []
        for number in range(12):
            species = number // 2 % 3  # every species comes in runs of two items: 0 0 1 1 2 2 0 0 ...
            self.add("train", number // 6, species, picture(number, orientation=6 if number == 3 else None))
        for number in range(12, 16):
            self.add("test", 0, 3 + number // 14, picture(number, form="PNG" if png and number == 13 else "JPEG"))
        self.items[-1] |= {"labels": [-1, 1], "names": ["", FAMILIES[1]]}

    def add(self, split: str, shard: int, species: int, data: bytes, **changes) -> dict:
        family = species % 2
        item = {
            "key": f"s{species}/img_{len(self.items):03d}",
            "shard": files.shard_name(split, shard),
            "split": split,
            "suffix": "png" if data.startswith(b"\x89PNG") else "jpg",
            "data": data,
            "labels": [species, family],
            "names": [f"species {species}", FAMILIES[family]],
            "source": f"release/{len(self.items)}.jpg",
            "box": ((1, 2, 30, 20) if len(self.items) % 2 else ()) if self.boxes else None,
        } | changes
        self.items.append(item)
        return item

    def write_tars(self, root: Path) -> pl.DataFrame:
        """Write the tars; return the index."""
        rows = []
        for shard in sorted({item["shard"] for item in self.items}):
            with open(root / shard, "wb") as tar:
                for item in (item for item in self.items if item["shard"] == shard):
                    tar.write(member_header(f"{item['key']}.{item['suffix']}", len(item["data"])))
                    rows.append(self._row(item, tar.tell()))
                    tar.write(item["data"] + padding(len(item["data"])))
                    facts = files.item_json(
                        item["labels"], item["names"], item["split"], item["source"], LEVELS, item["box"]
                    )
                    tar.write(member_header(f"{item['key']}.json", len(facts)) + facts + padding(len(facts)))
                tar.write(END_OF_ARCHIVE)
        return index_file.with_runs(pl.DataFrame(rows, infer_schema_length=None), LEVELS[0])

    def _row(self, item: dict, offset: int) -> dict:
        with Image.open(io.BytesIO(item["data"])) as image:
            width, height = image.size
            orientation = image.getexif().get(0x0112, 1) if item["suffix"] == "jpg" else 1
        box = dict(zip(files.BOX, item["box"] or (None,) * 4, strict=True)) if self.boxes else {}
        return {
            **{name: item[name] for name in ("key", "shard", "split", "suffix", "source")},
            **dict(zip(LEVELS, item["labels"], strict=True)),
            "offset": offset,
            "size": len(item["data"]),
            "width": width,
            "height": height,
            "orientation": orientation,
            "sha256": hashlib.sha256(item["data"]).hexdigest(),
            **box,
        }

    def write(self, root: Path, **provenance) -> Path:
        """Write the whole dataset directory."""
        root.mkdir(parents=True, exist_ok=True)
        index = self.write_tars(root)
        names = [{}, {}]
        for item in self.items:
            for c, (label, name) in enumerate(zip(item["labels"], item["names"], strict=True)):
                names[c].setdefault(label, name)
        labels = index.select(LEVELS).to_numpy()
        tree = Hierarchy.from_labels(labels, LEVELS, [[n[i] for i in range(max(n) + 1)] for n in names])
        index_file.write_index(index, root / files.INDEX, LEVELS)
        tree.to_parquet(root / files.HIERARCHY)
        pl.DataFrame(schema=index_file.TABLES[files.REJECTED]).write_parquet(root / files.REJECTED)
        (root / files.CARD).write_text("# Tiny\n")
        write_manifest(root, index, self.k, {"disjoint": True, **provenance})
        return root


def write_manifest(root: Path, index: pl.DataFrame, k: int, provenance: dict) -> None:
    """Write ``croissant.json`` and ``dataset.json`` for the shards in the directory."""
    shards = []
    for (shard, split), part in index.group_by("shard", "split", maintain_order=True):
        shards.append(files.ShardFacts(str(shard), str(split), len(part), **_fingerprint(root / str(shard))))
    others = [root / name for name in (files.INDEX, files.HIERARCHY, files.REJECTED, files.LISTS, files.JUDGEMENTS)]
    facts = {path.name: _fingerprint(path) for path in [*others, root / files.CARD] if path.exists()}
    manifest = files.Manifest(
        "tiny", LEVELS, k, index_file.split_facts(index, LEVELS), tuple(shards), facts, {}, provenance
    )
    described = croissant(manifest, None, boxes=files.BOX[0] in index.columns)
    write_json(root / files.CROISSANT, described)
    manifest = replace(manifest, files={**facts, files.CROISSANT: _fingerprint(root / files.CROISSANT)})
    (root / files.MANIFEST).write_text(manifest.to_json())


def _fingerprint(path: Path):
    data = path.read_bytes()
    return files.FileFacts(bytes=len(data), sha256=hashlib.sha256(data).hexdigest())


def index_of(root):
    return index_file.read_index(root / files.INDEX)[0]


def rewrite_index(root, frame, *, seal=True):
    """Replace the index; ``seal`` also updates the manifest."""
    index_file.write_index(frame, root / files.INDEX, LEVELS)
    if seal:
        write_manifest(root, frame, 2, {"disjoint": True})


def flip(path, place):
    """Change one byte of a file."""
    data = bytearray(path.read_bytes())
    data[place] ^= 0xFF
    path.write_bytes(data)


def rewrite_tar(path, change):
    """Rewrite a tar after changing its (name, bytes) pairs."""
    with tarfile.open(path) as tar:
        members = [(info.name, stored.read()) for info in tar if (stored := tar.extractfile(info))]
    with open(path, "wb") as file:
        file.writelines(member_header(n, len(d)) + d + padding(len(d)) for n, d in change(members))
        file.write(END_OF_ARCHIVE)


def findings(root, **options):
    return verify(root, progress=silent, **options).findings
