"""Examine every image of a release once: read it, check it, record its size, orientation and checksum.

A unit is one tar, or some thousand loose files. It leaves a table of what it found and, where the bytes cannot be
read again at random or are not those of the source, a spool: the images' bytes, one after the other.
"""

import bz2
import errno
import gzip
import hashlib
import io
import lzma
import os
import re
import stat
import warnings
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO, cast

import cv2
import numpy as np
import polars as pl
import simplejpeg

from hgld.data.format import BOX, IMAGE_FORMATS
from hgld.data.images import ImageHeader, open_image, read_header, rgb_pixels, turn_of, turned
from hgld.data.tar import ByteStream, Member, stream_members
from hgld.errors import ImageError, InputError, quoted
from hgld.files import aside_of, put_in_place
from hgld.tables import read_parquet

from ..stage import UnitRecord
from .catalog import Container
from .image_facts import check_decodes

_MAGIC = {b"\x1f\x8b": "gzip", b"BZh": "bzip2", b"\xfd7zXZ\x00": "xz", b"\x28\xb5\x2f\xfd": "zstd"}
_CHUNK = 1 << 20
_MOST_CHECKSUM_BYTES = 1 << 16


# -- source tars: read once from front to back, compressed or not, their checksum taken on the way --------------------


def compression_of(path: Path) -> str | None:
    """Return the compression of a tar; None if it has none.

    Raises:
        InputError: it cannot be read, or is compressed in a way that is not supported.
    """
    try:
        with open(path, "rb") as file:
            begin = file.read(max(map(len, _MAGIC)))
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror}).") from error
    found = next((name for magic, name in _MAGIC.items() if begin.startswith(magic)), None)
    if found == "zstd":
        raise InputError(f"{path}: compressed by zstd, which hgld does not read; expected tar, gzip, bzip2 or xz.")
    return found


def expected_md5(container: Container) -> str | None:
    """Return the official MD5 sum of a tar, in lower-case hexadecimal; None if none is published.

    Raises:
        InputError: the file that should hold it does not.
    """
    if container.md5 is None or isinstance(container.md5, str):
        return container.md5.lower() if container.md5 else None
    try:
        with open(container.md5, encoding="ascii", errors="replace") as file:
            text = file.read(_MOST_CHECKSUM_BYTES)
    except OSError as error:
        raise InputError(f"{container.md5}: cannot be read ({error.strerror}).") from error
    found = re.search(r"\b[0-9a-fA-F]{32}\b", text)
    if found is None:
        raise InputError(f"{container.md5}: no MD5 sum in it; expected 32 hex digits. Fetch the file again.")
    return found[0].lower()


class SourceTar:
    """A tar that is read once.

    Attributes:
        bytes: size of the file on disk, known once all members were read.
        md5: of the same bytes, in hexadecimal.
    """

    def __init__(self, path: Path, max_member_bytes: int) -> None:
        self.path, self.max_member_bytes = path, max_member_bytes
        self.bytes, self.md5 = 0, ""

    def members(self) -> Iterator[tuple[Member, bytes]]:
        """Yield members with their bytes; at the end the whole file has been read.

        Raises:
            InputError: the tar is damaged, cut off, or cannot be read.
        """
        compression = compression_of(self.path)
        try:
            with open(self.path, "rb", buffering=0) as file:
                hashed = _Hashed(file)
                stored = cast(BinaryIO, io.BufferedReader(hashed, _CHUNK))
                tar = _decompressed(stored, compression)
                yield from stream_members(tar, where=str(self.path), max_member_bytes=self.max_member_bytes)
                while stored.read(_CHUNK):  # bytes behind the end mark belong to the checksum
                    pass
                self.bytes, self.md5 = hashed.count, hashed.digest.hexdigest()
        except OSError as error:
            raise InputError(f"{self.path}: cannot be read ({error.strerror or error}).") from error


class _Hashed(io.RawIOBase):
    """A file that counts and hashes the bytes that are read."""

    def __init__(self, file: io.FileIO) -> None:
        self.file = file
        self.count, self.digest = 0, hashlib.md5(usedforsecurity=False)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any, /) -> int:
        count = self.file.readinto(buffer)
        self.count += count
        self.digest.update(memoryview(buffer)[:count])
        return count


def _decompressed(file: BinaryIO, compression: str | None) -> ByteStream:
    if compression == "gzip":
        return gzip.GzipFile(fileobj=file)
    if compression == "bzip2":
        return bz2.BZ2File(file)
    return lzma.LZMAFile(file) if compression == "xz" else file


# -- resizing: upright, the shorter side of a given length, as JPEG ---------------------------------------------------

Box = tuple[int, int, int, int]

_LONGEST_SIDE = 65_500  # libjpeg's limit for a JPEG


def clip_box(box: Box, header: ImageHeader) -> Box:
    """Return the part of a box that lies in the upright image.

    Raises:
        ImageError: ``empty-box``.
    """
    width, height = header.upright
    left, top, right, bottom = max(box[0], 0), max(box[1], 0), min(box[2], width), min(box[3], height)
    if left >= right or top >= bottom:
        raise ImageError("empty-box", f"box {box} leaves nothing of an image of {width} x {height} pixels")
    return left, top, right, bottom


def scale_box(box: Box, before: ImageHeader, after: ImageHeader) -> Box:
    """Convert a box of an upright image to the pixels of a smaller copy, rounded outwards."""
    (width, height), (new_width, new_height) = before.upright, after.upright
    left, top, right, bottom = box
    return (
        left * new_width // width,
        top * new_height // height,
        -(-right * new_width // width),
        -(-bottom * new_height // height),
    )


def resize(data: bytes, header: ImageHeader, side: int, quality: int) -> tuple[bytes, ImageHeader]:
    """Return an image with its shorter side at ``side`` pixels, upright, as JPEG; it is never enlarged.

    An image that is already upright and small enough keeps its bytes.

    Args:
        data: the image file.
        header: of the image.
        side: pixels.
        quality: of the JPEG, 1 to 100.

    Raises:
        ImageError: it cannot be decoded, or not be written as JPEG.
    """
    shorter = min(header.width, header.height)
    if shorter <= side and header.orientation == 1:
        check_decodes(data, header)
        return data, header
    scale = min(1.0, side / shorter)
    width, height = (max(1, round(n * scale)) for n in (header.width, header.height))
    if max(width, height) > _LONGEST_SIDE:
        detail = f"{width} x {height} pixels after resizing; a JPEG has at most {_LONGEST_SIDE} a side"
        raise ImageError("too-many-pixels", detail)
    pixels = _decoded(data, header, width, height)
    if pixels.shape[:2] != (height, width):
        pixels = cv2.resize(pixels, (width, height), interpolation=cv2.INTER_AREA)
    pixels = np.ascontiguousarray(turned(np.asarray(pixels, dtype=np.uint8), turn_of(header.orientation)))
    encoded = simplejpeg.encode_jpeg(pixels, quality=quality, colorspace="RGB", colorsubsampling="420")
    return encoded, ImageHeader("JPEG", pixels.shape[1], pixels.shape[0], 1)


def _decoded(data: bytes, header: ImageHeader, width: int, height: int) -> np.ndarray:
    """Decode to (H, W, 3) uint8 RGB as stored, of at least that size: JPEGs at a half, quarter or eighth."""
    if header.format == "JPEG":
        try:
            return simplejpeg.decode_jpeg(data, colorspace="RGB", min_height=height, min_width=width)
        except ValueError:
            pass  # CMYK, or damage: PIL decides
    check_decodes(data, header)
    with open_image(data) as picture:
        return rgb_pixels(picture)


# -- units ------------------------------------------------------------------------------------------------------------

VERSION = 3  # raise it when the same image gives another row
EXAMINED = pl.Schema(
    {
        "row": pl.Int64,  # of the work folder's catalog
        "offset": pl.Int64,  # offset in the tar or the spool; null: the whole file
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
_FILE_ERRORS = {errno.EACCES, errno.EPERM, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG, errno.ENXIO}
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")  # memory addresses in messages of PIL differ in every run


@dataclass(frozen=True)
class ExamineOptions:
    """Limits that an image must meet, and its resizing; see :class:`hgld.pipelines.shards.config.ShardConfig`."""

    resize: int
    quality: int
    max_pixels: int
    max_bytes: int


@dataclass(frozen=True)
class ExamineUnit:
    """One tar, or some loose files.

    Attributes:
        name: for people, and name of the record.
        key: digest of everything that determines the result except the source's bytes.
        signature: changes when the source's files do.
        catalog: table of the wanted items, sorted by file: file and box.
        start: first row of the catalog that the unit may find.
        stop: behind the last one.
        source: the tar, or the folder of the loose files.
        is_tar: True if the source is a tar.
        md5: the tar's official checksum; None: none is published.
        spooled: True if the bytes are kept.
        options: checks and resizing.
        record: path of the result; the spool lies beside it.
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
class UnitResult:
    """Outcome of a unit: the number of sound items, and the reason if the whole tar was refused."""

    sound: int
    refused: str | None = None


def examine(unit: ExamineUnit) -> UnitResult:
    """Examine a unit's images and record the results; a tar that is damaged or not the official one is refused.

    Raises:
        InputError: the disk or the network of the loose files fails.
    """
    rows = read_parquet(unit.catalog, rows=(unit.start, unit.stop - unit.start))
    spool = _Spool(unit.record.with_suffix(SPOOL)) if unit.spooled else None
    facts: dict[str, Any] = {"signature": unit.signature, "spooled": unit.spooled}
    try:
        with warnings.catch_warnings(action="ignore"):  # Pillow warns about odd metadata and large images
            if unit.is_tar:
                found, tar_facts = _examine_tar(unit, rows, spool)
                facts |= tar_facts
            else:
                found = [_examine_file(unit, i, row, spool) for i, row in enumerate(rows.iter_rows(named=True))]
        if spool is not None:
            facts["spool_bytes"] = spool.keep()
    except InputError as error:
        if not unit.is_tar:
            raise
        return UnitResult(0, refused=str(error))
    finally:
        if spool is not None:
            spool.close()
    table = pl.DataFrame(found, schema=EXAMINED, orient="row").sort("row")
    UnitRecord(unit.key, table, facts).write(unit.record)
    return UnitResult(table["reason"].null_count())


class _Spool:
    """Images' bytes, one after the other, in a file that is put in place only when it is complete."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self.path, self.aside, self.offset = path, aside_of(path, racing=True), 0
        self.file: BinaryIO = open(self.aside, "wb", buffering=1 << 20)  # noqa: SIM115  # closed by keep or close

    def add(self, data: bytes) -> int:
        """Append the bytes; return their offset."""
        self.file.write(data)
        begin, self.offset = self.offset, self.offset + len(data)
        return begin

    def keep(self) -> int:
        """Put the file in place; return its size."""
        self.file.close()
        put_in_place(self.aside, self.path)
        return self.offset

    def close(self) -> None:
        self.file.close()
        self.aside.unlink(missing_ok=True)


def _examine_tar(
    unit: ExamineUnit, rows: pl.DataFrame, spool: _Spool | None
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Return rows of the wanted items in the tar, in its order, and the tar's size and checksum.

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
        return _rejected("too-large" if too_large else "unsafe-path", f"{quoted(member.name)} {member.fault}")
    return _row(data, box, unit.options, spool, member.offset)


def _examine_file(unit: ExamineUnit, place: int, item: Mapping[str, Any], spool: _Spool | None) -> dict[str, Any]:
    row = {"row": unit.start + place}
    try:
        data = read_inside(unit.source, item["file"], unit.options.max_bytes)
    except ImageError as error:
        return row | _rejected(error.reason, str(error))
    return row | _row(data, _box_of(item), unit.options, spool, None)


def read_inside(root: Path, file: str, most: int) -> bytes:
    """Return the bytes of a regular file of a folder.

    Args:
        root: the folder.
        file: POSIX path relative to it.
        most: bytes at most.

    Raises:
        ImageError: ``missing``, ``unreadable``, ``too-large``, or ``unsafe-path``: it leads out of the folder,
            by ``..`` or by a link, or is no regular file.
        InputError: the disk or the network fails, which says nothing about the file.
    """
    home = os.path.realpath(root)
    try:
        real = os.path.realpath(os.path.join(root, file))  # noqa: PTH118  # millions of files: Path takes ten times as long
        if not real.startswith(home + os.sep):
            raise ImageError("unsafe-path", "leads out of the source folder")
        descriptor = os.open(real, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW)
        try:
            return _read_regular(descriptor, most)
        finally:
            os.close(descriptor)
    except FileNotFoundError:
        raise ImageError("missing", "no such file") from None
    except OSError as error:
        if error.errno in _FILE_ERRORS:
            raise ImageError("unreadable", str(error.strerror)) from error
        raise InputError(f"{root}/{file}: cannot be read ({error.strerror}). Run the same command again.") from error


def _read_regular(descriptor: int, most: int) -> bytes:
    facts = os.fstat(descriptor)
    if not stat.S_ISREG(facts.st_mode):
        raise ImageError("unsafe-path", "is no regular file")
    if facts.st_size > most:
        raise ImageError("too-large", f"has {facts.st_size} bytes, more than the {most} allowed")
    parts = []
    while part := os.read(descriptor, facts.st_size + 1):
        parts.append(part)
    return b"".join(parts)


def _row(
    data: bytes, box: Box | None, options: ExamineOptions, spool: _Spool | None, offset: int | None
) -> dict[str, Any]:
    """Return one row of :data:`EXAMINED` without its ``row``."""
    try:
        kept, header, box = _checked(data, box, options)
    except ImageError as error:
        return _rejected(error.reason, str(error))
    return {
        "offset": offset if spool is None else spool.add(kept),
        "size": len(kept),
        "sha256": hashlib.sha256(kept).hexdigest(),
        "suffix": IMAGE_FORMATS[header.format][0],
        "width": header.width,
        "height": header.height,
        "orientation": header.orientation,
        **(dict(zip(BOX, box, strict=True)) if box else {}),
    }


def _checked(data: bytes, box: Box | None, options: ExamineOptions) -> tuple[bytes, ImageHeader, Box | None]:
    """Check an image by reading all of its data; return the bytes to keep, resized if asked for.

    Raises:
        ImageError: with the reason.
    """
    header = read_header(data)
    if header.width * header.height > options.max_pixels:
        detail = f"{header.width} x {header.height} pixels, more than the {options.max_pixels} allowed"
        raise ImageError("too-many-pixels", detail)
    clipped = clip_box(box, header) if box else None
    if not options.resize:
        check_decodes(data, header)
        return data, header, clipped
    kept, new_header = resize(data, header, options.resize, options.quality)
    return kept, new_header, scale_box(clipped, header, new_header) if clipped else None


def _rejected(reason: str, detail: str) -> dict[str, Any]:
    return {"reason": reason, "detail": _ADDRESS.sub("", detail)[:_MOST_DETAIL]}


def _box_of(item: Mapping[str, Any]) -> Box | None:
    sides = [item[side] for side in BOX if item.get(side) is not None]
    return (sides[0], sides[1], sides[2], sides[3]) if len(sides) == len(BOX) else None


def stat_files(root: Path, files: Iterable[str]) -> tuple[str, int]:
    """Return a signature that changes when one of a folder's files does (its size or time), and their total bytes."""
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
