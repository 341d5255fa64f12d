"""Put items into the order of the shards, and write a shard with its part of the index."""

import hashlib
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import polars as pl

from hgld.data.format import BOX, item_json, shard_name
from hgld.data.index import SOURCE, index_schema, with_runs
from hgld.data.storage import advise
from hgld.data.tar import BLOCK, END_OF_ARCHIVE, member_header, padding
from hgld.errors import ImageError, InputError, quoted
from hgld.files import sync, write_atomic
from hgld.tables import read_parquet

from ..stage import UnitRecord
from .examine import LOOSE
from .reading import read_inside

VERSION = 2  # increase it if a change writes a different tar for the same plan
_AHEAD = 64  # number of images that the operating system is asked to prefetch at a time
_MOST_OPEN = 128
_AGAIN = "Restore the file that was examined, or run the same command again to examine the new one."


@dataclass(frozen=True)
class PackUnit:
    """One shard.

    Attributes:
        name: file name of the shard.
        key: digest of everything that determines the shard's bytes.
        levels: names of the levels, finest first.
        plan: table of the shard's items in order, with the columns of the index except the offset; file, origin and
            source_offset (the location of the bytes); and ``name/LEVEL`` (the names of the classes).
        root: folder of the loose files.
        origins: tars and spools; the plan's ``origin`` is a position in this list.
        out: folder of the dataset.
        record: path of the shard's part of the index.
    """

    name: str
    key: str
    levels: tuple[str, ...]
    plan: Path
    root: Path
    origins: tuple[Path, ...]
    out: Path
    record: Path


class TarWriter:
    """A tar of images with their JSON, written from front to back; its bytes depend only on the items.

    Attributes:
        bytes: number of bytes written so far.
    """

    def __init__(self, file: BinaryIO) -> None:
        self.file, self.bytes = file, 0
        self._digest = hashlib.sha256()

    def add(self, key: str, suffix: str, image: bytes, json: bytes) -> int:
        """Write an item; return the offset of its image's bytes."""
        header = member_header(f"{key}.{suffix}", len(image))
        offset = self.bytes + len(header)
        json_header = member_header(f"{key}.json", len(json))
        self._write(b"".join((header, image, padding(len(image)), json_header, json, padding(len(json)))))
        return offset

    def finish(self) -> str:
        """Write the end mark; return the SHA-256 of the tar."""
        self._write(END_OF_ARCHIVE)
        return self._digest.hexdigest()

    def _write(self, data: bytes) -> None:
        self.file.write(data)
        self._digest.update(data)
        self.bytes += len(data)


def pack(unit: PackUnit) -> int:
    """Write and publish a shard, then record it; return the number of its items.

    Raises:
        InputError: an image changed since it was examined.
        OSError: the shard cannot be written.
    """
    plan = read_parquet(unit.plan)
    rows = plan.rows(named=True)
    unit.record.unlink(missing_ok=True)  # a record of another plan must not describe the new shard
    unit.out.mkdir(parents=True, exist_ok=True)
    facts: dict[str, Any] = {"items": len(rows)}
    offsets: list[int] = []

    def fill(aside: Path) -> None:
        with open(aside, "wb", buffering=1 << 20) as file:
            tar = TarWriter(file)
            for row, image in zip(rows, _images(rows, unit), strict=True):
                offsets.append(tar.add(row["key"], row["suffix"], image, _json_of(row, unit.levels)))
            facts.update(sha256=tar.finish(), bytes=tar.bytes)

    write_atomic(unit.out / unit.name, fill, racing=True)
    sync(unit.out)  # otherwise a power failure could leave the new record with an older shard of that name
    schema = index_schema(unit.levels, boxes=BOX[0] in plan.columns, sources=True)
    index = plan.with_columns(pl.Series("offset", offsets, dtype=pl.Int64), pl.col("file").alias(SOURCE))
    UnitRecord(unit.key, index.select(schema.names()), facts).write(unit.record)
    return len(rows)


def _json_of(row: Mapping[str, Any], levels: Sequence[str]) -> bytes:
    box = None
    if BOX[0] in row:
        box = [] if row[BOX[0]] is None else [row[side] for side in BOX]
    labels, names = [row[level] for level in levels], [row[f"name/{level}"] for level in levels]
    return item_json(labels, names, row["split"], row["file"], levels, box)


def _images(rows: Sequence[Mapping[str, Any]], unit: PackUnit) -> Iterator[bytes]:
    """Yield the images' bytes of a plan's rows, while the system prefetches the next images from tars and spools.

    Raises:
        InputError: bytes changed since they were examined.
    """
    opened: dict[int, BinaryIO] = {}  # open files by the number of their origin

    def file_of(origin: int) -> BinaryIO:
        if origin not in opened:
            if len(opened) == _MOST_OPEN:
                opened.popitem()[1].close()
            # the finally clause closes it
            opened[origin] = open(unit.origins[origin], "rb", buffering=0)  # noqa: SIM115
        return opened[origin]

    try:
        for number, row in enumerate(rows):
            if number % _AHEAD == 0:
                for coming in rows[number : number + _AHEAD]:
                    if coming["origin"] != LOOSE:
                        advise(file_of(coming["origin"]).fileno(), coming["source_offset"], coming["size"])
            where = unit.root / row["file"] if row["origin"] == LOOSE else unit.origins[row["origin"]]
            try:
                if row["origin"] == LOOSE:
                    data = read_inside(unit.root, row["file"], row["size"])
                else:
                    data = os.pread(file_of(row["origin"]).fileno(), row["size"], row["source_offset"])
            except ImageError as error:
                raise InputError(f"{where}: {error}; it was readable when it was examined. {_AGAIN}") from error
            if hashlib.sha256(data).hexdigest() != row["sha256"]:
                raise InputError(
                    f"{where}: the bytes of {quoted(row['key'])} changed since they were examined. {_AGAIN}"
                )
            yield data
    except OSError as error:
        raise InputError(f"{error.filename or unit.name}: cannot be read ({error.strerror}). {_AGAIN}") from error
    finally:
        for file in opened.values():
            file.close()


# -- the order ---------------------------------------------------------------------------------------------------------
#
# The items of a group are adjacent, and the groups of a class are spread over the shards. Within a split, the items of
# a finest class are cut into groups of k items; the last group also gets the remaining items. The groups are shuffled
# by the seed, and the row of groups is cut into shards of about equal size. So a reader of one shard meets many
# classes, each with several items at once, and every part of the dataset is like the whole.

_JSON_BYTES = 2 * BLOCK  # rough size of an item's JSON with its header


def plan_shards(
    items: pl.DataFrame, finest: str, *, group_size: int, shard_bytes: int, shard_items: int, seed: int
) -> pl.DataFrame:
    """Assign items to shards, and order them within the shards.

    Args:
        items: table with at least key, split, size (bytes), sha256 and the finest level's labels (-1: unknown), in any
            order.
        finest: name of the finest level.
        group_size: k, the minimum number of items of a class that are adjacent.
        shard_bytes: approximate size of a shard.
        shard_items: approximate maximum number of items in a shard.
        seed: seed of the order.

    Returns:
        the rows in the order of the index, with three more columns. ``shard`` is the file name, ``class_run`` the run
        of items of one class within the shard, ``duplicate_of`` the key of the first item with the same bytes.
    """
    ordered = items.sort("split", "key")
    parts = []
    for (split,), part in ordered.group_by("split", maintain_order=True):
        random = _generator(seed, str(split))
        order, starts = _order(part[finest].to_numpy(), group_size, random)
        lengths = np.diff(starts, append=len(order))
        stored = _tar_bytes(part["size"].to_numpy()[order])
        weight = np.maximum(np.add.reduceat(stored, starts) / shard_bytes, lengths / shard_items)
        shard = np.repeat(_cut(weight), lengths)
        names = pl.Series([shard_name(str(split), number) for number in range(int(shard.max(initial=-1)) + 1)])
        parts.append(part[order].with_columns(names.gather(shard).alias("shard")))
    return with_runs(pl.concat(parts or [ordered.with_columns(shard=pl.lit("", pl.String))]), finest)


def _order(labels: np.ndarray, k: int, random: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Return the order of a split's items, and the positions at which groups begin."""
    by_class = np.lexsort((random.random(len(labels)), labels))  # items of a class are adjacent, in random order
    group = _groups(labels[by_class], k)
    number = int(group[-1]) + 1
    place = np.empty(number, np.int64)
    place[random.permutation(number)] = np.arange(number)
    in_order = np.argsort(place[group], kind="stable")
    return by_class[in_order], np.flatnonzero(np.diff(group[in_order], prepend=-1))


def _groups(labels: np.ndarray, k: int) -> np.ndarray:
    """Number the groups of items sorted by class; the last group of a class also gets the remaining items."""
    starts = np.flatnonzero(np.diff(labels, prepend=labels[0] - 1))
    counts = np.diff(starts, append=len(labels))
    groups = np.maximum(counts // k, 1)
    within = (np.arange(len(labels)) - np.repeat(starts, counts)) // k
    first = np.cumsum(groups) - groups
    return np.repeat(first, counts) + np.minimum(within, np.repeat(groups, counts) - 1)


def _cut(weight: np.ndarray) -> np.ndarray:
    """Assign groups to shards in order, so that all shards have about the same weight, at most about 1.

    Args:
        weight: (G,) share of a full shard that each group fills.
    """
    before = np.cumsum(weight) - weight
    total = float(before[-1] + weight[-1])
    shards = max(1, int(np.ceil(total - 1e-9)))
    number = np.minimum((before + weight / 2) * (shards / total), shards - 1).astype(np.int64)
    _, dense = np.unique(number, return_inverse=True)  # a group larger than a shard may leave numbers unused
    return dense.astype(np.int64)


def _tar_bytes(sizes: np.ndarray) -> np.ndarray:
    """Estimate each item's bytes in a tar, including header, padding and JSON."""
    return BLOCK + -(-sizes // BLOCK) * BLOCK + _JSON_BYTES


def tar_size(sizes: np.ndarray, shards: int) -> int:
    """Estimate the total bytes of ``shards`` tars with images of these sizes."""
    return int(_tar_bytes(np.asarray(sizes, dtype=np.int64)).sum()) + shards * len(END_OF_ARCHIVE)


def _generator(seed: int, split: str) -> np.random.Generator:
    """Return the random generator of a split; the numbers do not depend on other splits."""
    words = np.frombuffer(hashlib.sha256(split.encode()).digest(), dtype=np.uint32)
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence([seed, *words.tolist()])))
