"""Examine every image of a release once: read it, check it, record its size, orientation and checksum.

A unit is one tar, or some thousand loose files. It leaves a table of what it found and, where the bytes cannot be
read again at random or are not those of the source, a spool: the images' bytes, one after the other.
"""

import hashlib
import os
import re
import warnings
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO

import numpy as np
import polars as pl

from hgld.data.format import BOX, IMAGE_FORMATS, REJECTED
from hgld.data.index import TABLES
from hgld.data.tar import stream_members
from hgld.errors import ImageError, InputError, quoted, some
from hgld.files import aside_of, put_in_place, write_atomic
from hgld.tables import read_parquet

from ..stage import Progress, UnitRecord, key_of, read_facts
from .catalog import Catalog, Container
from .config import MEGABYTE, ShardConfig
from .reading import checked_image, opened_hashed, read_inside
from .sources.own_tables import images_of
from .work import amount, run_counted

VERSION = 3  # increase it if a change gives the same image another row
FILES_PER_UNIT = 2_000
LOOSE = -1  # origin of a loose file
SPOOL = ".spool"
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
_MOST_DETAIL = 300
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")  # memory addresses in messages of PIL differ in every run


@dataclass(frozen=True)
class ExamineUnit:
    """One tar, or some loose files.

    Attributes:
        name: name of the unit, for people and for its record.
        key: digest of everything that determines the result except the source's bytes.
        signature: changes when the source's files do; empty: the tar is missing.
        catalog: table of the wanted items, sorted by file: file and box.
        start: first row of the catalog that the unit may find.
        stop: after the last one.
        source: the tar, or the folder of the loose files.
        container: the tar's role and checksum; None: loose files.
        spooled: whether the bytes are kept.
        config: checks and resizing.
        record: path of the result; the spool is beside it.
        image_column: column of parquet files that holds the images; empty: the images are files.
    """

    name: str
    key: str
    signature: str
    catalog: Path
    start: int
    stop: int
    source: Path
    container: Container | None
    spooled: bool
    config: ShardConfig
    record: Path
    image_column: str = ""

    @property
    def spool(self) -> Path:
        """Path of the images' bytes."""
        return self.record.with_suffix(SPOOL)

    def is_done(self) -> bool:
        """Tell whether there is a valid record; for a tar that was deleted, it is valid if the tar was spooled."""
        facts = read_facts(self.record, self.key)
        if facts is None:
            return False
        kept = facts["spooled"] and self.spool.is_file() and self.spool.stat().st_size == facts["spool_bytes"]
        if self.container and not self.signature:
            return kept
        return facts["signature"] == self.signature and (kept or not (facts["spooled"] or self.spooled))


def examine(unit: ExamineUnit) -> str | None:
    """Examine a unit's images and record the results.

    Returns:
        why the tar is refused: it is damaged, or not the official one; None: it is not.

    Raises:
        InputError: the disk or the network of the loose files fails.
    """
    rows = read_parquet(unit.catalog, rows=(unit.start, unit.stop - unit.start))
    spool = _Spool(unit.spool) if unit.spooled else None
    facts: dict[str, Any] = {"signature": unit.signature, "spooled": unit.spooled}
    try:
        with warnings.catch_warnings(action="ignore"):  # Pillow warns about odd metadata and large images
            if unit.container:
                found, tar_facts = _examine_tar(unit, unit.container, rows, spool)
                facts |= tar_facts
            else:
                most = unit.config.max_file_mb * MEGABYTE
                images = read_images(unit.source, rows["file"], unit.image_column, most)
                found = []
                for number, (row, image) in enumerate(zip(rows.iter_rows(named=True), images, strict=True)):
                    own = image if isinstance(image, dict) else _facts(image, row, unit.config, spool)
                    found.append({"row": unit.start + number, **own})
        if spool is not None:
            facts["spool_bytes"] = spool.keep()
    except InputError as error:
        if unit.container:
            return str(error)
        raise
    finally:
        if spool is not None:
            spool.close()
    UnitRecord(unit.key, pl.DataFrame(found, schema=EXAMINED, orient="row").sort("row"), facts).write(unit.record)
    return None


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
    unit: ExamineUnit, container: Container, rows: pl.DataFrame, spool: _Spool | None
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Return rows of the wanted items in the tar, in its order, and the tar's size and checksum."""
    files = rows["file"].str.strip_prefix(f"{container.role}/").to_list()
    stems = np.array([file.encode() for file in files], dtype=np.bytes_)
    most = unit.config.max_file_mb * MEGABYTE
    found: dict[int, dict[str, Any]] = {}
    try:
        with open(unit.source, "rb", buffering=0) as file, opened_hashed(file, "md5") as (stored, hashed):
            for member, data in stream_members(stored, where=str(unit.source), max_member_bytes=most):
                stem = PurePosixPath(member.name).stem.encode()
                at = bisect_left(stems, stem)
                if at == len(stems) or stems[at] != stem or member.kind == "directory" or at in found:
                    continue
                if member.fault is not None:
                    too_large = member.kind == "file" and member.size > most
                    reason = "too-large" if too_large else "unsafe-path"
                    found[at] = _rejected(reason, f"{quoted(member.name)} {member.fault}")
                else:
                    found[at] = _facts(data, rows.row(at, named=True), unit.config, spool, member.offset)
    except OSError as error:
        raise InputError(f"{unit.source}: cannot be read ({error.strerror or error}).") from error
    md5 = hashed.digest.hexdigest()
    if container.md5 is not None and md5 != container.md5:
        raise InputError(
            f"{unit.source}: its MD5 sum is {md5}, the official one {container.md5}: damaged, or not the official "
            "file. Fetch it again."
        )
    return [{"row": unit.start + at, **row} for at, row in found.items()], {"bytes": hashed.bytes, "md5": md5}


def read_images(source: Path, files: Iterable[str], image_column: str, most: int) -> Iterator[bytes | dict[str, Any]]:
    """Yield the bytes of every image, or why it is rejected.

    Args:
        source: the folder.
        files: paths in it; with ``image_column`` TABLE/ROW/NAME, in the order of the tables' rows.
        image_column: column of parquet files that holds the images; empty: the images are files.
        most: bytes of an image.
    """
    if image_column:
        yield from _images_in_tables(source, files, image_column, most)
        return
    for file in files:
        try:
            yield read_inside(source, file, most)
        except ImageError as error:
            yield _rejected(error.reason, str(error))


def _images_in_tables(
    source: Path, files: Iterable[str], image_column: str, most: int
) -> Iterator[bytes | dict[str, Any]]:
    places = (file.split("/", 2)[:2] for file in files)
    for table, part in groupby(places, lambda place: place[0]):
        wanted = [int(number) - 1 for _, number in part]
        found = iter(wanted)
        row = next(found)
        for start, cells in images_of(source / table, image_column, wanted):
            while row is not None and row < start + len(cells):
                data, _ = cells[row - start]
                if data is None:
                    yield _rejected("missing", "the cell is empty")
                elif len(data) > most:
                    yield _rejected("too-large", f"has {len(data)} bytes, more than the {most} allowed")
                else:
                    yield data
                row = next(found, None)


def _facts(
    data: bytes, item: Mapping[str, Any], config: ShardConfig, spool: _Spool | None, offset: int | None = None
) -> dict[str, Any]:
    """Return one row of :data:`EXAMINED` without its ``row``."""
    sides = [item[side] for side in BOX if item.get(side) is not None]
    box = (sides[0], sides[1], sides[2], sides[3]) if len(sides) == len(BOX) else None
    limits = {"max_pixels": config.max_pixels, "resize": config.resize, "quality": config.quality}
    try:
        kept, header, box = checked_image(data, box, **limits)
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


def _rejected(reason: str, detail: str) -> dict[str, Any]:
    return {"reason": reason, "detail": _ADDRESS.sub("", detail)[:_MOST_DETAIL]}


# -- a whole release: its units, and their results together -----------------------------------------------------------


@dataclass(frozen=True)
class Examination:
    """Results of all units.

    Attributes:
        items: the sound ones: the catalog's columns and the facts of their bytes, which lie at ``origin`` and
            ``source_offset``.
        rejected: the others and those that the adapter left out, with the columns of ``rejected.parquet``.
        origins: tars and spools; ``origin`` is a position in this list.
        tars: file, role, bytes and md5 of every tar.
        notes: notes for people, one line each.
    """

    items: pl.DataFrame
    rejected: pl.DataFrame
    origins: tuple[Path, ...]
    tars: tuple[dict[str, str | int], ...]
    notes: tuple[str, ...]


def units_of(catalog: Catalog, items: pl.DataFrame, folder: Path, config: ShardConfig) -> list[ExamineUnit]:
    """Cut the items of a catalog, sorted by file, into units; the signature of a missing tar's unit is empty."""
    limits = [config.resize, config.quality, config.max_pixels, config.max_file_mb]
    tables = items["file"].str.split("/").list.first()  # of tars: their roles

    def unit_of(start: int, stop: int, container: Container | None, name: str, record: str) -> ExamineUnit:
        digest = hashlib.sha256(_wanted(items[start:stop]).write_csv().encode()).hexdigest()
        tar = container.path if container else None
        is_there = tar is None or tar.is_file()
        files = items["file"][start:stop] if tar is None else [tar.name]
        if catalog.image_column:
            files = sorted(set(tables[start:stop]))
        of = [container.role, container.path.name] if container else [catalog.image_column] * bool(catalog.image_column)
        return ExamineUnit(
            name=name,
            key=key_of(VERSION, limits, start, digest, of),
            signature=signature_of(tar.parent if tar else catalog.root, files) if is_there else "",
            catalog=folder / "catalog.parquet",
            start=start,
            stop=stop,
            source=tar or catalog.root,
            container=container,
            image_column=catalog.image_column,
            spooled=config.keep_examined or bool(config.resize or catalog.image_column),
            config=config,
            record=folder / f"{record}.parquet",
        )

    units = []
    if not catalog.containers:
        for number, start in enumerate(range(0, len(items), FILES_PER_UNIT)):
            stop = min(start + FILES_PER_UNIT, len(items))
            units.append(unit_of(start, stop, None, f"files {start + 1} to {stop}", f"files-{number:06d}"))
    for role in sorted({container.role for container in catalog.containers}):
        rows = (tables == role).arg_true()
        if len(rows):
            start, stop = int(rows[0]), int(rows[-1]) + 1
            tars = [container for container in catalog.containers if container.role == role]
            units += [unit_of(start, stop, tar, str(tar.path), f"{role}-{n:06d}") for n, tar in enumerate(tars)]
    return units


def _wanted(items: pl.DataFrame) -> pl.DataFrame:
    """Return what the examination of items reads: their files and boxes."""
    return items.select(column for column in ("file", *BOX) if column in items.columns)


def signature_of(root: Path, files: Iterable[str]) -> str:
    """Return a digest that changes when one of a folder's files does (its size or time)."""
    digest = hashlib.sha256()
    for file in files:
        try:
            facts = os.stat(os.path.join(root, file))  # noqa: PTH116, PTH118  # Path takes ten times as long
        except OSError:
            digest.update(b"-\n")
            continue
        digest.update(f"{facts.st_size} {facts.st_mtime_ns}\n".encode())
    return digest.hexdigest()


def examine_release(catalog: Catalog, folder: Path, config: ShardConfig, progress: Progress) -> Examination:
    """Examine the images of a release that were not examined before, and gather all results.

    Args:
        catalog: catalog of the release.
        folder: folder of the units' records and spools.
        config: options of the build.
        progress: called for every unit.

    Raises:
        InputError: a tar cannot be read, or tars are missing or refused and the build is not to be partial.
    """
    items = catalog.items.sort("file", "key")
    units = units_of(catalog, items, folder, config)
    pending = [unit for unit in units if not unit.is_done()]
    absent, there = ([unit for unit in pending if bool(unit.signature) == is_there] for is_there in (False, True))
    if there:
        folder.mkdir(parents=True, exist_ok=True)
        write_atomic(there[0].catalog, _wanted(items).write_parquet)
    results = run_counted(examine, there, progress, "examining", len(units) - len(pending), **config.execution())
    refused = {name: text for name, text in results.items() if text is not None}
    if (refused or absent) and not config.partial:
        raise InputError(_incomplete(units, absent, refused))
    left_out = {unit.name: "missing" for unit in absent} | dict.fromkeys(refused, "refused")
    origins, tars, tables = [], [], [pl.DataFrame(schema={**EXAMINED, "origin": pl.Int32})]
    for unit in units:
        facts = None if unit.name in left_out else read_facts(unit.record, unit.key)
        if facts is None:
            continue
        number = LOOSE
        if facts["spooled"] or unit.container:
            number = len(origins)
            origins.append(unit.spool if facts["spooled"] else unit.source)
        tables.append(read_parquet(unit.record).with_columns(origin=pl.lit(number, pl.Int32)))
        if unit.container:
            tar = {"file": unit.source.name, "role": unit.container.role}
            tars.append({**tar, "bytes": facts["bytes"], "md5": facts["md5"]})
    sound, rejected = _joined(catalog, items, pl.concat(tables))
    return Examination(
        items=sound,
        rejected=rejected,
        origins=tuple(origins),
        tars=tuple(tars),
        notes=tuple(f"built without the {state} tar {Path(name).name}." for name, state in sorted(left_out.items())),
    )


def _joined(catalog: Catalog, items: pl.DataFrame, found: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Join the items with what was found of them: the sound ones, and the content of ``rejected.parquet``."""
    found = found.sort("row", pl.col("reason").is_not_null(), "origin").unique("row", keep="first")
    joined = (
        items.drop(BOX, strict=False)
        .with_row_index("row")
        .with_columns(pl.col("row").cast(pl.Int64))
        .join(found, on="row", how="left", maintain_order="left")
        .rename({"offset": "source_offset"})
    )
    is_lost = pl.col("origin").is_null()
    joined = joined.with_columns(
        reason=pl.when(is_lost).then(pl.lit("missing")).otherwise("reason"),
        detail=pl.when(is_lost).then(pl.lit("in none of the tars")).otherwise("detail"),
    )
    columns = TABLES[REJECTED].names()
    rejected = [joined.filter(pl.col("reason").is_not_null()).select(columns)]
    if catalog.dropped is not None:
        rejected.append(catalog.dropped.with_columns(key=pl.lit(None, pl.String)).select(columns))
    sound = joined.filter(pl.col("reason").is_null()).drop("row", "reason", "detail")
    return (
        sound if catalog.has_boxes else sound.drop(BOX),
        pl.concat(rejected).sort("split", "file", "key", "reason", "detail"),
    )


def _incomplete(units: list[ExamineUnit], absent: list[ExamineUnit], refused: dict[str, str]) -> str:
    lines = [f"{len(absent)} tars are missing: {some(str(unit.source) for unit in absent)}."] if absent else []
    if refused:
        lines.append(some((refused[name] for name in sorted(refused)), separator=" "))
    kept = [unit.spool for unit in units if unit.container and unit.spooled and unit.is_done()]
    if kept:
        size = amount(sum(spool.stat().st_size for spool in kept))
        lines.append(
            f"The images of {len(kept)} tars are kept in {kept[0].parent} ({size}): these tars may be deleted."
        )
    lines.append(
        "Run the same command again when they are there (what was examined is not read again), or build without them: "
        "--partial."
    )
    return " ".join(lines)
