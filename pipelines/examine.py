"""Reading every image of a release once: is it sound, what are its bytes, its size, its orientation.

A unit is one tar, or some thousand loose files. It leaves a table of what it found and, where the bytes cannot be read
again at random or are not those of the source, a spool: the images' bytes, one after the other.
"""

import errno
import hashlib
import os
import re
import stat
from bisect import bisect_left
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO

import numpy as np
import polars as pl

from hgld.dataset_names import BOX
from hgld.errors import InputError
from hgld.tar_members import Member
from pipelines.image_facts import SUFFIXES, ImageFacts, UnusableImageError, check_decodes, image_facts
from pipelines.image_resize import Box, clip_box, resize, scale_box
from pipelines.source_tars import SourceTar
from pipelines.unit_records import UnitRecord, aside_of, put_in_place

VERSION = 1  # raise it when the same image gives another row
EXAMINED = pl.Schema(
    {
        "row": pl.Int64,  # of the work folder's catalog
        "offset": pl.Int64,  # in the tar or the spool; null: the whole file
        "size": pl.Int64,
        "sha256": pl.String,
        "suffix": pl.String,
        "width": pl.Int32,
        "height": pl.Int32,
        "orientation": pl.Int8,
        **dict.fromkeys(BOX, pl.Int32),
        "reason": pl.String,  # why the item cannot be used; null: it can
        "detail": pl.String,
    }
)
SPOOL = ".spool"
_MOST_DETAIL = 300
_OF_THE_FILE = {errno.EACCES, errno.EPERM, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG, errno.ENXIO}
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")  # of objects in memory, in messages of PIL: another one every time


@dataclass(frozen=True)
class ExamineOptions:
    """What an image must be, and what becomes of it; see :class:`pipelines.shard_config.ShardConfig`."""

    resize: int
    quality: int
    max_pixels: int
    max_bytes: int


@dataclass(frozen=True)
class ExamineUnit:
    """One tar, or some loose files.

    Attributes:
        name: for people, and of the record.
        key: of all that determines the result but the source's bytes.
        signature: changes when the source's files do.
        catalog: table of the wanted items, sorted by file: file and box.
        start: first row of the catalog that the unit may find.
        stop: behind the last one.
        source: the tar, or the folder of the loose files.
        is_tar: which of the two.
        md5: what the tar's checksum must be; None: it has none.
        spooled: whether the bytes are kept.
        options: checks and resizing.
        record: where the result goes; the spool stands beside it.
    """

    name: str
    key: str
    signature: str
    catalog: Path
    start: int
    stop: int
    source: Path
    is_tar: bool
    md5: str | None
    spooled: bool
    options: ExamineOptions
    record: Path


@dataclass(frozen=True)
class Examined:
    """What became of a unit: how many items were found sound, and why the whole tar was refused, if it was."""

    sound: int
    refused: str | None = None


def examine(unit: ExamineUnit) -> Examined:
    """Examine a unit's images and record what was found; a tar that is damaged or not the official one is refused.

    Raises:
        InputError: the disk or the network of the loose files fails.
    """
    rows = pl.scan_parquet(unit.catalog).slice(unit.start, unit.stop - unit.start).collect()
    spool = _Spool(unit.record.with_suffix(SPOOL)) if unit.spooled else None
    facts: dict[str, Any] = {"signature": unit.signature, "spooled": unit.spooled}
    try:
        if unit.is_tar:
            try:
                found, tar_facts = _examine_tar(unit, rows, spool)
            except InputError as error:
                return Examined(0, refused=str(error))
            facts |= tar_facts
        else:
            found = [_examine_file(unit, i, row, spool) for i, row in enumerate(rows.iter_rows(named=True))]
        if spool is not None:
            facts["spool_bytes"] = spool.keep()
    finally:
        if spool is not None:
            spool.close()
    table = pl.DataFrame(found, schema=EXAMINED, orient="row").sort("row")
    UnitRecord(unit.key, table, facts).write(unit.record)
    return Examined(table["reason"].null_count())


class _Spool:
    """Images' bytes kept one after the other, in a file that takes its place only when it is whole."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self.path, self.aside, self.offset = path, aside_of(path), 0
        self.file: BinaryIO = open(self.aside, "wb", buffering=1 << 20)  # noqa: SIM115  # closed by keep or close

    def add(self, data: bytes) -> int:
        """Where the bytes begin."""
        self.file.write(data)
        begin, self.offset = self.offset, self.offset + len(data)
        return begin

    def keep(self) -> int:
        """Put the file in place; its size."""
        self.file.close()
        put_in_place(self.aside, self.path)
        return self.offset

    def close(self) -> None:
        self.file.close()
        self.aside.unlink(missing_ok=True)


def _examine_tar(
    unit: ExamineUnit, rows: pl.DataFrame, spool: _Spool | None
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """The wanted items that are members of the tar, in its order; and the tar's size and checksum.

    Raises:
        InputError: the tar is damaged, or its checksum is wrong.
    """
    role = rows["file"][0].partition("/")[0] + "/" if len(rows) else ""
    stems = np.array([file.removeprefix(role).encode() for file in rows["file"].to_list()], dtype=np.bytes_)
    tar = SourceTar(unit.source, unit.options.max_bytes)
    found: dict[int, dict[str, Any]] = {}
    for member, data in tar.members():
        stem = PurePosixPath(member.name).stem.encode()
        place = bisect_left(stems, stem)
        if place == len(stems) or stems[place] != stem or member.kind == "directory" or place in found:
            continue
        box = _box_of(rows.row(place, named=True))
        found[place] = {"row": unit.start + place, **_member_row(unit, member, data, box, spool)}
    if unit.md5 is not None and tar.md5 != unit.md5:
        raise InputError(
            f"{unit.source}: its MD5 sum is {tar.md5}, the official one {unit.md5}: damaged, or not the official file. "
            "Fetch it again."
        )
    return list(found.values()), {"bytes": tar.bytes, "md5": tar.md5}


def _member_row(
    unit: ExamineUnit, member: Member, data: bytes, box: Box | None, spool: _Spool | None
) -> dict[str, Any]:
    if member.fault is not None:
        too_large = member.kind == "file" and member.size > unit.options.max_bytes
        return _rejected("too-large" if too_large else "unsafe-path", f"{member.name!r} {member.fault}")
    return _row(data, box, unit.options, spool, member.offset)


def _examine_file(unit: ExamineUnit, place: int, item: Mapping[str, Any], spool: _Spool | None) -> dict[str, Any]:
    row = {"row": unit.start + place}
    try:
        data = read_inside(unit.source, item["file"], unit.options.max_bytes)
    except UnusableImageError as error:
        return row | _rejected(error.reason, str(error))
    return row | _row(data, _box_of(item), unit.options, spool, None)


def read_inside(root: Path, file: str, most: int) -> bytes:
    """The bytes of a regular file of a folder.

    Args:
        root: the folder.
        file: POSIX path relative to it.
        most: bytes at most.

    Raises:
        UnusableImageError: ``missing``, ``unreadable``, ``too-large``, or ``unsafe-path``: it leads out of the folder,
            by ``..`` or by a link, or is no regular file.
        InputError: the disk or the network fails, which says nothing about the file.
    """
    home = os.path.realpath(root)
    try:
        real = os.path.realpath(os.path.join(root, file))  # noqa: PTH118  # millions of files: Path takes ten times as long
        if not real.startswith(home + os.sep):
            raise UnusableImageError("unsafe-path", "leads out of the source folder")
        descriptor = os.open(real, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW)
        try:
            return _read_regular(descriptor, most)
        finally:
            os.close(descriptor)
    except FileNotFoundError:
        raise UnusableImageError("missing", "no such file") from None
    except OSError as error:
        if error.errno in _OF_THE_FILE:
            raise UnusableImageError("unreadable", str(error.strerror)) from error
        raise InputError(f"{root}/{file}: cannot be read ({error.strerror}). Run the same command again.") from error


def _read_regular(descriptor: int, most: int) -> bytes:
    facts = os.fstat(descriptor)
    if not stat.S_ISREG(facts.st_mode):
        raise UnusableImageError("unsafe-path", "is no regular file")
    if facts.st_size > most:
        raise UnusableImageError("too-large", f"has {facts.st_size} bytes, more than the {most} allowed")
    parts = []
    while part := os.read(descriptor, facts.st_size + 1):
        parts.append(part)
    return b"".join(parts)


def _row(
    data: bytes, box: Box | None, options: ExamineOptions, spool: _Spool | None, offset: int | None
) -> dict[str, Any]:
    """One row of :data:`EXAMINED` but its ``row``."""
    try:
        kept, facts, box = _checked(data, box, options)
    except UnusableImageError as error:
        return _rejected(error.reason, str(error))
    return {
        "offset": offset if spool is None else spool.add(kept),
        "size": len(kept),
        "sha256": hashlib.sha256(kept).hexdigest(),
        "suffix": SUFFIXES[facts.format][0],
        "width": facts.width,
        "height": facts.height,
        "orientation": facts.orientation,
        **(dict(zip(BOX, box, strict=True)) if box else {}),
    }


def _checked(data: bytes, box: Box | None, options: ExamineOptions) -> tuple[bytes, ImageFacts, Box | None]:
    """The bytes to keep, resized if that is asked for; every pixel was decoded.

    Raises:
        UnusableImageError: with the reason.
    """
    facts = image_facts(data)
    if facts.width * facts.height > options.max_pixels:
        detail = f"{facts.width} x {facts.height} pixels, more than the {options.max_pixels} allowed"
        raise UnusableImageError("too-many-pixels", detail)
    clipped = clip_box(box, facts) if box else None
    if not options.resize:
        check_decodes(data, facts)
        return data, facts, clipped
    kept, new_facts = resize(data, facts, options.resize, options.quality)
    return kept, new_facts, scale_box(clipped, facts, new_facts) if clipped else None


def _rejected(reason: str, detail: str) -> dict[str, Any]:
    return {"reason": reason, "detail": _ADDRESS.sub("", detail)[:_MOST_DETAIL]}


def _box_of(item: Mapping[str, Any]) -> Box | None:
    sides = [item[side] for side in BOX if item.get(side) is not None]
    return (sides[0], sides[1], sides[2], sides[3]) if len(sides) == len(BOX) else None


def stat_files(root: Path, files: Iterable[str]) -> tuple[str, int]:
    """What changes when one of a folder's files does (by size or time of change), and their bytes together."""
    digest, total = hashlib.sha256(), 0
    for file in files:
        try:
            facts = os.stat(os.path.join(root, file))  # noqa: PTH116, PTH118  # as above
        except OSError:
            digest.update(b"-\n")
            continue
        digest.update(f"{facts.st_size} {facts.st_mtime_ns}\n".encode())
        total += facts.st_size
    return digest.hexdigest(), total
