"""Write one shard: the images' bytes, their JSON, and the shard's part of the index."""

import hashlib
import os
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import polars as pl

from hgld.data.format import BOX, item_json
from hgld.data.index import SOURCE, index_schema
from hgld.data.storage import advise
from hgld.data.tar import END_OF_ARCHIVE, member_header, padding
from hgld.errors import ImageError, InputError, quoted
from hgld.files import aside_of, put_in_place, sync
from hgld.tables import read_parquet

from ..stage import UnitRecord
from .examine import LOOSE
from .reading import read_inside

VERSION = 2  # raise it when the same plan gives another tar
_AHEAD = 64  # images announced to the system before they are read
_MOST_OPEN = 128
_AGAIN = "Give back the file that was examined, or run the same command again to examine it anew."


@dataclass(frozen=True)
class PackUnit:
    """One shard.

    Attributes:
        name: of the shard.
        key: digest of everything that determines its bytes.
        levels: finest first.
        plan: table of its items in order: the columns of the index except the offset; file, origin and source_offset,
            the place of the bytes; ``name/LEVEL``, the names of the classes.
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
    """A tar of images with their JSON, written from front to back; its bytes depend on the items alone.

    Attributes:
        bytes: written so far.
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
    unit.record.unlink(missing_ok=True)  # a record of another plan must not describe the new shard
    unit.out.mkdir(parents=True, exist_ok=True)
    aside = aside_of(unit.out / unit.name, racing=True)
    try:
        with open(aside, "wb", buffering=1 << 20) as file, _Sources(unit.root, unit.origins) as sources:
            tar = TarWriter(file)
            offsets = [
                tar.add(row["key"], row["suffix"], image, _json_of(row, unit.levels))
                for row, image in sources.images(plan.iter_rows(named=True))
            ]
            sha256 = tar.finish()
        put_in_place(aside, unit.out / unit.name)
        sync(unit.out)  # else a power failure could leave an older shard of that name beside the new record
    finally:
        aside.unlink(missing_ok=True)
    schema = index_schema(unit.levels, boxes=BOX[0] in plan.columns, sources=True)
    index = plan.with_columns(pl.Series("offset", offsets, dtype=pl.Int64), pl.col("file").alias(SOURCE))
    index = index.select(schema.names())
    UnitRecord(unit.key, index, {"bytes": tar.bytes, "sha256": sha256, "items": len(plan)}).write(unit.record)
    return len(plan)


def _json_of(row: Mapping[str, Any], levels: Sequence[str]) -> bytes:
    box = None
    if BOX[0] in row:
        box = [] if row[BOX[0]] is None else [row[side] for side in BOX]
    labels, names = [row[level] for level in levels], [row[f"name/{level}"] for level in levels]
    return item_json(labels, names, row["split"], row["file"], levels, box)


class _Sources:
    """Reader of images from loose files, tars and spools that refuses bytes that changed since they were examined."""

    def __init__(self, root: Path, origins: Sequence[Path]) -> None:
        self.root, self.origins = root, origins
        self.opened: dict[int, int] = {}  # descriptors by origin

    def __enter__(self) -> "_Sources":
        return self

    def __exit__(self, *_: object) -> None:
        while self.opened:
            os.close(self.opened.popitem()[1])

    def images(self, rows: Iterator[dict[str, Any]]) -> Iterator[tuple[dict[str, Any], bytes]]:
        """Yield rows of a plan with their images' bytes, while the system prefetches the next ones.

        Raises:
            InputError: bytes that changed since they were examined.
        """
        window: deque[dict[str, Any]] = deque()
        for row in rows:
            window.append(row)
            if row["origin"] != LOOSE:
                advise(self._descriptor(row["origin"]), row["source_offset"], row["size"])
            if len(window) > _AHEAD:
                yield window[0], self._read(window.popleft())
        while window:
            yield window[0], self._read(window.popleft())

    def _read(self, row: Mapping[str, Any]) -> bytes:
        where = self.root / row["file"] if row["origin"] == LOOSE else self.origins[row["origin"]]
        try:
            data = self._bytes(row)
        except ImageError as error:
            raise InputError(f"{where}: {error}; it was readable when it was examined. {_AGAIN}") from error
        if hashlib.sha256(data).hexdigest() != row["sha256"]:
            raise InputError(f"{where}: the bytes of {quoted(row['key'])} changed since they were examined. {_AGAIN}")
        return data

    def _bytes(self, row: Mapping[str, Any]) -> bytes:
        if row["origin"] == LOOSE:
            return read_inside(self.root, row["file"], row["size"])
        return os.pread(self._descriptor(row["origin"]), row["size"], row["source_offset"])

    def _descriptor(self, origin: int) -> int:
        if origin not in self.opened:
            if len(self.opened) == _MOST_OPEN:
                self.__exit__()
            try:
                self.opened[origin] = os.open(self.origins[origin], os.O_RDONLY)
            except OSError as error:
                raise InputError(f"{self.origins[origin]}: cannot be read ({error.strerror}). {_AGAIN}") from error
        return self.opened[origin]
