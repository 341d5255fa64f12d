"""Examine every image of a release once: read it, check it, record its size, orientation and checksum.

A unit is one tar, or some thousand loose files. Its examination writes a table with facts about every image. If images
are resized, come from parquet files or are kept (``--keep-examined``), the examination also writes a spool: the images'
bytes, one after the other.
"""

import hashlib
import os
import re
import warnings
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO

import numpy as np
import polars as pl

from hgld.data.format import BOX, IMAGE_FORMATS, MAX_IMAGE_BYTES, REJECTED
from hgld.data.index import TABLES
from hgld.data.tar import stream_members
from hgld.errors import ImageError, InputError, quoted, some
from hgld.files import write_atomic
from hgld.tables import read_parquet

from ..stage import Progress, UnitRecord, key_of, read_facts
from .catalog import Catalog, Container
from .config import ShardConfig
from .reading import HashedReader, checked_image, read_inside
from .sources.own_tables import images_of
from .work import amount, run_counted

VERSION = 4  # increase it if a change gives the same image a different row
FILES_PER_UNIT = 2_000
LOOSE = -1  # value of the column origin for a loose file
EXAMINED = pl.Schema(
    {
        "row": pl.Int64,  # number of the row in the work folder's catalog
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
        name: readable name of the unit, which is also the name of its record.
        key: digest of everything that determines the result except the source's bytes.
        signature: digest that changes when the source's files change; empty: the tar is missing.
        catalog: table of the wanted items, sorted by file: file and box.
        start: first row of the catalog table for this unit.
        stop: end of these rows, exclusive.
        source: the tar, or the folder of the loose files.
        container: the tar's role and checksum; None: loose files.
        spooled: whether the images' bytes are kept in a spool.
        config: options for the checks and for resizing.
        record: path of the result; the spool is in the same folder.
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
        return self.record.with_suffix(".spool")

    def is_done(self) -> bool:
        """Tell whether there is a valid record; if the tar was deleted, the record is valid only with a spool."""
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
        the reason why the tar cannot be used: it is damaged, or is not the official tar; None: it can be used.

    Raises:
        InputError: the disk or the network of the loose files fails.
    """
    rows = read_parquet(unit.catalog, rows=(unit.start, unit.stop - unit.start))
    facts: dict[str, Any] = {"signature": unit.signature, "spooled": unit.spooled}
    found: list[dict[str, Any]] = []

    def fill(aside: Path | None = None) -> None:
        with (
            nullcontext() if aside is None else open(aside, "wb", buffering=1 << 20) as spool,
            warnings.catch_warnings(action="ignore"),  # Pillow warns about odd metadata
        ):
            if unit.container:
                facts.update(_examine_tar(unit, unit.container, rows, spool, found))
            else:
                images = read_images(unit.source, rows["file"], unit.image_column)
                for number, (row, image) in enumerate(zip(rows.iter_rows(named=True), images, strict=True)):
                    found.append({"row": unit.start + number, **_facts(image, row, unit.config, spool)})
            if spool is not None:
                facts["spool_bytes"] = spool.tell()

    try:
        if unit.spooled:
            write_atomic(unit.spool, fill, racing=True)
        else:
            fill()
    except InputError as error:
        if unit.container:
            return str(error)
        raise
    UnitRecord(unit.key, pl.DataFrame(found, schema=EXAMINED, orient="row").sort("row"), facts).write(unit.record)
    return None


def _examine_tar(
    unit: ExamineUnit, container: Container, rows: pl.DataFrame, spool: BinaryIO | None, found: list[dict[str, Any]]
) -> dict[str, Any]:
    """Add the wanted items in the tar to the rows found, in the tar's order; return the tar's size and checksum."""
    files = rows["file"].str.strip_prefix(f"{container.role}/").to_list()
    stems = np.array([file.encode() for file in files], dtype=np.bytes_)
    seen = set()
    try:
        with open(unit.source, "rb", buffering=1 << 20) as file:
            hashed = HashedReader(file, "md5")
            for member, data in stream_members(hashed, where=str(unit.source), max_member_bytes=MAX_IMAGE_BYTES):
                stem = PurePosixPath(member.name).stem.encode()
                at = bisect_left(stems, stem)
                if at == len(stems) or stems[at] != stem or member.kind == "directory" or at in seen:
                    continue
                image: bytes | ImageError = data
                if member.fault is not None:
                    is_large = member.kind == "file" and member.size > MAX_IMAGE_BYTES
                    fault = f"{quoted(member.name)} {member.fault}"
                    image = ImageError("too-large" if is_large else "unsafe-path", fault)
                row = _facts(image, rows.row(at, named=True), unit.config, spool, member.offset)
                found.append({"row": unit.start + at, **row})
                seen.add(at)
            md5 = hashed.finish()
    except OSError as error:
        raise InputError(f"{unit.source}: cannot be read ({error.strerror or error}).") from error
    if container.md5 is not None and md5 != container.md5:
        raise InputError(
            f"{unit.source}: its MD5 sum is {md5}, but the official MD5 is {container.md5}: the file is damaged, or "
            "is not the official file. Fetch it again."
        )
    return {"bytes": hashed.bytes, "md5": md5}


def read_images(source: Path, files: Iterable[str], image_column: str) -> Iterator[bytes | ImageError]:
    """Yield the bytes of every image, or why it is rejected.

    Args:
        source: folder that contains the images.
        files: paths in the folder; with ``image_column``, TABLE/ROW/NAME in the order of the tables' rows.
        image_column: column of parquet files that holds the images; empty: the images are files.
    """
    if not image_column:
        for file in files:
            try:
                yield read_inside(source, file, MAX_IMAGE_BYTES)
            except ImageError as error:
                yield error
        return
    cells = (file.split("/", 2)[:2] for file in files)
    for table, part in groupby(cells, lambda cell: cell[0]):
        for _, data, _ in images_of(source / table, image_column, [int(row) - 1 for _, row in part]):
            yield ImageError("missing", "the cell is empty") if data is None else data


def _facts(
    image: bytes | ImageError,
    item: Mapping[str, Any],
    config: ShardConfig,
    spool: BinaryIO | None,
    offset: int | None = None,
) -> dict[str, Any]:
    """Return one row of :data:`EXAMINED`, without the column ``row``; write the bytes to the spool if there is one."""
    sides = [item[side] for side in BOX if item.get(side) is not None]
    box = (sides[0], sides[1], sides[2], sides[3]) if len(sides) == len(BOX) else None
    try:
        if isinstance(image, ImageError):
            raise image
        kept, header, box = checked_image(image, box, resize=config.resize, quality=config.quality)
    except ImageError as error:
        return {"reason": error.reason, "detail": _ADDRESS.sub("", str(error))[:_MOST_DETAIL]}
    if spool is not None:
        offset = spool.tell()
        spool.write(kept)
    return {
        "offset": offset,
        "size": len(kept),
        "sha256": hashlib.sha256(kept).hexdigest(),
        "suffix": IMAGE_FORMATS[header.format][0],
        "width": header.width,
        "height": header.height,
        "orientation": header.orientation,
        **(dict(zip(BOX, box, strict=True)) if box else {}),
    }


# -- a whole release: its units, and their results together -----------------------------------------------------------


@dataclass(frozen=True)
class Examination:
    """Results of all units.

    Attributes:
        items: the usable items, with the catalog's columns and facts about their bytes; ``origin`` and
            ``source_offset`` locate the bytes.
        rejected: all other items, and the files that the adapter excluded, with the columns of ``rejected.parquet``.
        origins: tars and spools; ``origin`` is a position in this list.
        tars: file, role, bytes and md5 of every tar.
        notes: notes for the user, one line each.
    """

    items: pl.DataFrame
    rejected: pl.DataFrame
    origins: tuple[Path, ...]
    tars: tuple[dict[str, str | int], ...]
    notes: tuple[str, ...]


def units_of(catalog: Catalog, items: pl.DataFrame, folder: Path, config: ShardConfig) -> list[ExamineUnit]:
    """Divide the items of a catalog, sorted by file, into units; the unit of a missing tar has an empty signature."""
    first = (
        items["file"].str.split("/").list.first()
    )  # first part of each path: the tars' set (train, index), or the parquet file
    parts: list[tuple[int, int, list[Container | None], str]] = []  # rows, their tars, and the record of the first tar
    for role in sorted({tar.role for tar in catalog.containers}):
        rows = (first == role).arg_true()
        if len(rows):
            tars = [tar for tar in catalog.containers if tar.role == role]
            parts.append((int(rows[0]), int(rows[-1]) + 1, [*tars], role))
    if not catalog.containers:
        parts = [
            (n, min(n + FILES_PER_UNIT, len(items)), [None], "files") for n in range(0, len(items), FILES_PER_UNIT)
        ]
    units: list[ExamineUnit] = []
    for start, stop, tars, kind in parts:
        wanted = hashlib.sha256(_wanted(items[start:stop]).write_csv().encode()).hexdigest()
        for number, tar in enumerate(tars):
            if tar is not None:
                root, files, of = tar.path.parent, [tar.path.name], [tar.role, tar.path.name]
            elif catalog.image_column:
                root, files, of = catalog.root, sorted(set(first[start:stop])), [catalog.image_column]
            else:
                root, files, of = catalog.root, items["file"][start:stop], []
            is_there = tar is None or tar.path.is_file()
            units.append(
                ExamineUnit(
                    name=f"files {start + 1} to {stop}" if tar is None else str(tar.path),
                    key=key_of(VERSION, config.resize, config.quality, start, wanted, of),
                    signature=signature_of(root, files) if is_there else "",
                    catalog=folder / "catalog.parquet",
                    start=start,
                    stop=stop,
                    source=catalog.root if tar is None else tar.path,
                    container=tar,
                    spooled=config.keep_examined or bool(config.resize or catalog.image_column),
                    config=config,
                    record=folder / f"{kind}-{len(units) if tar is None else number:06d}.parquet",
                    image_column=catalog.image_column,
                )
            )
    return units


def _wanted(items: pl.DataFrame) -> pl.DataFrame:
    """Return the columns that the examination of items reads: file and box."""
    return items.select(column for column in ("file", *BOX) if column in items.columns)


def signature_of(root: Path, files: Iterable[str]) -> str:
    """Return a digest that changes if the size or modification time of one of the files changes."""
    digest = hashlib.sha256()
    for file in files:
        try:
            # os.stat, because Path takes ten times as long
            facts = os.stat(os.path.join(root, file))  # noqa: PTH116, PTH118
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
        progress: function called for every unit.

    Raises:
        InputError: a tar cannot be read; or tars are missing or unusable, and the build must not be partial.
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
    """Join the items with the facts found; return the usable items, and the content of ``rejected.parquet``."""
    found = found.sort("row", pl.col("reason").is_not_null(), "origin").unique("row", keep="first")
    numbered = items.drop(BOX, strict=False).with_row_index("row").with_columns(pl.col("row").cast(pl.Int64))
    joined = numbered.join(found, on="row", how="left", maintain_order="left").rename({"offset": "source_offset"})
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
    rows = pl.concat(rejected).sort("split", "file", "key", "reason", "detail")
    return (sound if catalog.has_boxes else sound.drop(BOX)), rows


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
        "Run the same command again when they are there (examined tars are not read again), or build without them: "
        "--partial."
    )
    return " ".join(lines)
