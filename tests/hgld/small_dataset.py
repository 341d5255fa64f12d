"""Small dataset directories, written with the same functions as real shards."""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl

from hgld import Hierarchy
from hgld.data.format import (
    BOX,
    HIERARCHY,
    INDEX,
    JUDGEMENTS,
    LISTS,
    MANIFEST,
    FileFacts,
    Manifest,
    ShardFacts,
    item_json,
    shard_name,
)
from hgld.data.index import split_facts, write_index
from hgld.data.tar import END_OF_ARCHIVE, member_header, padding
from tests.fake_releases.pictures import jpeg

LEVELS = ("fine", "coarse")


@dataclass(frozen=True)
class Item:
    """An item to write: labels (finest first), image bytes, and further values for the index."""

    labels: tuple[int, ...]
    split: str
    data: bytes
    width: int = 40
    height: int = 32
    orientation: int = 1
    box: tuple[int, int, int, int] | None = None
    suffix: str = "jpg"


def items_of_classes(sizes: Sequence[int], splits: Sequence[str] = ("train",), per_coarse: int = 2) -> list[Item]:
    """Return ``sizes[c]`` items of every fine class c; successive classes go to successive splits."""
    rng = np.random.default_rng(0)
    return [
        Item((c, c // per_coarse), splits[c % len(splits)], jpeg(rng))
        for c, size in enumerate(sizes)
        for _ in range(size)
    ]


def write_dataset(
    folder: Path,
    items: Sequence[Item],
    *,
    per_shard: int = 5,
    lists: pl.DataFrame | None = None,
    judgements: pl.DataFrame | None = None,
    levels: Sequence[str] = LEVELS,
    edit: Callable[[pl.DataFrame], pl.DataFrame] = lambda frame: frame,
    protocol: str = "",
) -> pl.DataFrame:
    """Write the directory and return its index; the function ``edit`` may change the index before it is written."""
    folder.mkdir(parents=True, exist_ok=True)
    rows, shards = [], []
    for split in sorted({item.split for item in items}):
        members = [(i, item) for i, item in enumerate(items) if item.split == split]
        for number in range(0, len(members), per_shard):
            name = shard_name(split, number // per_shard)
            added, tar = _shard(name, members[number : number + per_shard], levels)
            (folder / name).write_bytes(tar)
            rows += added
            shards.append(ShardFacts(name, split, len(added), len(tar), hashlib.sha256(tar).hexdigest()))
    boxes = any(item.box for item in items)
    box_columns = dict.fromkeys(BOX if boxes else (), pl.Int32)
    index = pl.DataFrame(rows, schema_overrides={"duplicate_of": pl.String, **box_columns})
    index = edit(index if boxes else index.drop(BOX))
    write_index(index, folder / INDEX, levels)
    Hierarchy.from_labels(np.array([item.labels for item in items]), levels).to_parquet(folder / HIERARCHY)
    for name, table in ((LISTS, lists), (JUDGEMENTS, judgements)):
        if table is not None:
            table.write_parquet(folder / name)
    files = {
        name: FileFacts(bytes=len(data), sha256=hashlib.sha256(data).hexdigest())
        for name in (INDEX, HIERARCHY, LISTS, JUDGEMENTS)
        if (folder / name).exists()
        for data in [(folder / name).read_bytes()]
    }
    manifest = Manifest("small", tuple(levels), 2, split_facts(index, levels), tuple(shards), files, protocol=protocol)
    (folder / MANIFEST).write_text(manifest.to_json())
    return index


def _shard(name: str, members: Sequence[tuple[int, Item]], levels: Sequence[str]) -> tuple[list[dict], bytes]:
    tar, rows, run, before = bytearray(), [], -1, None
    for i, item in members:
        key = f"{item.split}/{i:04d}"
        tar += member_header(f"{key}.{item.suffix}", len(item.data))
        offset = len(tar)
        tar += item.data + padding(len(item.data))
        facts = item_json(item.labels, [str(label) for label in item.labels], item.split, "made", levels)
        tar += member_header(f"{key}.json", len(facts)) + facts + padding(len(facts))
        run, before = run + (item.labels[0] != before), item.labels[0]
        rows.append(
            {"key": key, "shard": name, "offset": offset, "size": len(item.data)}
            | dict(zip(levels, item.labels, strict=True))
            | {"split": item.split, "suffix": item.suffix, "width": item.width, "height": item.height}
            | {"orientation": item.orientation, "sha256": hashlib.sha256(item.data).hexdigest(), "duplicate_of": None}
            | {"class_run": run}
            | dict(zip(BOX, item.box or [None] * 4, strict=True))
        )
    return rows, bytes(tar + END_OF_ARCHIVE)
