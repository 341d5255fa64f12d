"""Examine a whole release: cut it into units, run those that are not done, gather the results."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl

from hgld.data.format import BOX, REJECTED
from hgld.data.index import TABLES
from hgld.data.tar import walk_members
from hgld.errors import ConfigError, InputError, some
from hgld.files import write_atomic
from hgld.tables import read_parquet

from ..executor import run_units
from ..stage import Progress, key_of, read_facts
from .catalog import Catalog, Container
from .config import MEGABYTE, ShardConfig
from .examine import (
    EXAMINED,
    SPOOL,
    VERSION,
    ExamineOptions,
    ExamineUnit,
    UnitResult,
    compression_of,
    examine,
    expected_md5,
    stat_files,
)
from .output import amount
from .pack import LOOSE

FILES_PER_UNIT = 2_000
_SAMPLED_MEMBERS = 200
_JPEG_BYTES_PER_PIXEL = 0.4  # rough value for natural images at quality 90
_SHOWN = 5


@dataclass(frozen=True)
class ExaminePlan:
    """The units of a release, before any of them is run.

    Attributes:
        items: the catalog's, sorted by file; units refer to its rows.
        units: those whose source exists, or was examined into a spool before.
        pending: the units that are not done.
        absent: tars that are missing and not in a spool either.
        read_bytes: size of the pending units' sources.
        kept_bytes: approximate size of all images that the shards will hold.
        spool_bytes: approximate size of the images that the pending units will keep in the work folder.
    """

    items: pl.DataFrame
    units: tuple[ExamineUnit, ...]
    pending: tuple[ExamineUnit, ...]
    absent: tuple[Container, ...]
    read_bytes: int
    kept_bytes: int
    spool_bytes: int


@dataclass(frozen=True)
class Examination:
    """Results of all units.

    Attributes:
        items: the sound ones: the catalog's columns and the facts of their bytes, which lie at ``origin`` and
            ``source_offset``.
        rejected: the others and those that the adapter left out, with the columns of ``rejected.parquet``.
        origins: tars and spools; ``origin`` is a position in this list.
        tars: file, role, bytes and md5 of every tar.
        notes: for people, one line each.
    """

    items: pl.DataFrame
    rejected: pl.DataFrame
    origins: tuple[Path, ...]
    tars: tuple[dict[str, str | int], ...]
    notes: tuple[str, ...]


def plan_examination(catalog: Catalog, folder: Path, config: ShardConfig) -> ExaminePlan:
    """Cut a catalog into units and find those that are done.

    Args:
        catalog: of the release.
        folder: of the units' records and spools.
        config: options of the build.

    Raises:
        ConfigError: ``--spool never`` where the tars are compressed.
        InputError: a tar or its checksum file cannot be read.
    """
    items = catalog.items.sort("file", "key")
    planner = _Planner(catalog, items, folder, config)
    if catalog.containers:
        planner.add_tars()
    else:
        planner.add_files()
    return planner.plan()


class _Planner:
    def __init__(self, catalog: Catalog, items: pl.DataFrame, folder: Path, config: ShardConfig) -> None:
        self.catalog, self.items, self.folder, self.config = catalog, items, folder, config
        self.options = ExamineOptions(
            resize=config.resize,
            quality=config.quality,
            max_pixels=config.max_pixels,
            max_bytes=config.max_file_mb * MEGABYTE,
        )
        self.units: list[ExamineUnit] = []
        self.pending: list[ExamineUnit] = []
        self.absent: list[Container] = []
        self.read_bytes = self.kept_bytes = self.spool_bytes = 0

    def plan(self) -> ExaminePlan:
        return ExaminePlan(
            items=self.items,
            units=tuple(self.units),
            pending=tuple(self.pending),
            absent=tuple(self.absent),
            read_bytes=self.read_bytes,
            kept_bytes=self.kept_bytes,
            spool_bytes=self.spool_bytes,
        )

    def add_files(self) -> None:
        """Add units of loose files."""
        for number, start in enumerate(range(0, len(self.items), FILES_PER_UNIT)):
            part = self.items.slice(start, FILES_PER_UNIT)
            signature, size = stat_files(self.catalog.root, part["file"])
            kept = self._kept_bytes(len(part), size)
            unit = ExamineUnit(
                name=f"files {start + 1} to {start + len(part)}",
                key=key_of(VERSION, vars(self.options), start, _digest(part)),
                signature=signature,
                catalog=self.catalog_table,
                start=start,
                stop=start + len(part),
                source=self.catalog.root,
                is_tar=False,
                md5=None,
                spooled=self.config.spool == "always" or bool(self.config.resize),
                options=self.options,
                record=self.folder / f"files-{number:06d}.parquet",
            )
            self._add(unit, size, kept)
            self.kept_bytes += kept

    def add_tars(self) -> None:
        """Add units of tars, role by role."""
        roles = self.items["file"].str.split("/").list.first()
        for role in sorted({container.role for container in self.catalog.containers}):
            rows = (roles == role).arg_true()
            if not len(rows):
                continue
            start, stop = int(rows[0]), int(rows[-1]) + 1
            digest = _digest(self.items[start:stop])
            tars = [container for container in self.catalog.containers if container.role == role]
            there = [tar.path for tar in tars if tar.path.is_file()]
            stored = sum(path.stat().st_size for path in there)
            kept = self._kept_bytes(stop - start, min(stored, round((stop - start) * _mean_member(there))))
            self.kept_bytes += kept
            for number, tar in enumerate(tars):
                self._add_tar(tar, number, start, stop, digest, kept // max(1, len(there)))

    def _add_tar(self, tar: Container, number: int, start: int, stop: int, digest: str, kept: int) -> None:
        there = tar.path.is_file()
        compression = compression_of(tar.path) if there else None
        if compression and self.config.spool == "never":
            raise ConfigError(
                f"{tar.path} is compressed by {compression}: its images cannot be read again at random, so they must "
                "be kept once they are examined. Leave out --spool never, or decompress the tars."
            )
        signature, size = stat_files(tar.path.parent, [tar.path.name])
        unit = ExamineUnit(
            name=str(tar.path),
            key=key_of(VERSION, vars(self.options), start, digest, tar.role, tar.path.name),
            signature=signature if there else "",
            catalog=self.catalog_table,
            start=start,
            stop=stop,
            source=tar.path,
            is_tar=True,
            md5=expected_md5(tar),
            spooled=self.config.spool == "always" or bool(self.config.resize) or compression is not None,
            options=self.options,
            record=self.folder / f"{tar.role}-{number:06d}.parquet",
        )
        if there or _is_done(unit):
            self._add(unit, size, kept)
        else:
            self.absent.append(tar)

    @property
    def catalog_table(self) -> Path:
        return self.folder / "catalog.parquet"

    def _add(self, unit: ExamineUnit, size: int, kept: int) -> None:
        self.units.append(unit)
        if not _is_done(unit):
            self.pending.append(unit)
            self.read_bytes += size
            self.spool_bytes += kept if unit.spooled else 0

    def _kept_bytes(self, items: int, stored: int) -> int:
        """Estimate the bytes of images as the shards will hold them; images are taken to be 4:3 on average."""
        side = self.config.resize
        return min(stored, round(items * side * side * 4 / 3 * _JPEG_BYTES_PER_PIXEL)) if side else stored


def _digest(items: pl.DataFrame) -> str:
    """Return a digest of the files and boxes of a unit's items."""
    columns = [column for column in ("file", *BOX) if column in items.columns]
    return hashlib.sha256(items.select(columns).write_csv().encode()).hexdigest()


def _mean_member(tars: Sequence[Path]) -> float:
    """Return the mean bytes of the files at the beginning of a tar; infinite for a compressed tar."""
    plain = next((path for path in tars if compression_of(path) is None), None)
    if plain is None:
        return float(1 << 40)
    sizes = []
    with open(plain, "rb") as file:
        try:
            for member in walk_members(file, where=str(plain)):
                if member.kind == "file":
                    sizes.append(member.size)
                if len(sizes) == _SAMPLED_MEMBERS:
                    break
        except InputError:
            pass  # an estimate only: the tar is refused, with its name, when it is examined
    return float(np.mean(sizes)) if sizes else 0.0


def _is_done(unit: ExamineUnit) -> bool:
    """Tell whether a unit has a valid record; for a tar that was deleted, it is valid if the tar was spooled."""
    facts = read_facts(unit.record, unit.key)
    if facts is None:
        return False
    spool = unit.record.with_suffix(SPOOL)
    spooled = bool(facts["spooled"]) and spool.is_file() and spool.stat().st_size == facts["spool_bytes"]
    if unit.is_tar and unit.signature == "":
        return spooled
    return facts["signature"] == unit.signature and (spooled or not (facts["spooled"] or unit.spooled))


def run_examination(catalog: Catalog, plan: ExaminePlan, config: ShardConfig, progress: Progress) -> Examination:
    """Examine the pending units and gather the results of all.

    Raises:
        InputError: tars are missing or refused, and the build is not to be partial.
    """
    refused: dict[str, str] = {}
    total, finished = len(plan.units), len(plan.units) - len(plan.pending)
    progress("examining", finished, total)
    if plan.pending:
        columns = [column for column in ("file", *BOX) if column in plan.items.columns]
        path = plan.pending[0].catalog
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(path, plan.items.select(columns).write_parquet)

    def done(unit: ExamineUnit, result: UnitResult) -> None:
        nonlocal finished
        finished += 1
        progress("examining", finished, total)
        if result.refused is not None:
            refused[unit.name] = result.refused

    run_units(
        examine,
        plan.pending,
        done,
        executor=config.executor,
        workers=config.workers,
        ray_address=config.ray_address,
    )
    if (refused or plan.absent) and not config.partial:
        raise InputError(_incomplete(plan, refused))
    return _gather(catalog, plan, refused)


def _incomplete(plan: ExaminePlan, refused: dict[str, str]) -> str:
    lines = []
    if plan.absent:
        listed = some((str(tar.path) for tar in plan.absent), _SHOWN)
        lines.append(f"{len(plan.absent)} tars are missing: {listed}.")
    lines += [refused[name] for name in sorted(refused)[:_SHOWN]]
    if len(refused) > _SHOWN:
        lines.append(f"{len(refused) - _SHOWN} further tars are refused.")
    kept = [unit for unit in plan.units if unit.is_tar and unit.spooled and unit.name not in refused]
    if kept:
        size = sum(unit.record.with_suffix(SPOOL).stat().st_size for unit in kept)
        lines.append(f"The images of {len(kept)} tars are kept in {kept[0].record.parent} ({amount(size)}): these tars")
        lines[-1] += " may be deleted."
    lines.append("Run the same command again when they are there (what was examined is not read again), or build")
    lines[-1] += " without them: --partial."
    return " ".join(lines)


def _gather(catalog: Catalog, plan: ExaminePlan, refused: dict[str, str]) -> Examination:
    tables, origins, tars = [pl.DataFrame(schema={**EXAMINED, "origin": pl.Int32})], [], []
    for unit in plan.units:
        facts = read_facts(unit.record, unit.key)
        if facts is None:
            continue  # refused
        number = LOOSE
        if facts["spooled"] or unit.is_tar:
            number = len(origins)
            origins.append(unit.record.with_suffix(SPOOL) if facts["spooled"] else unit.source)
        tables.append(read_parquet(unit.record).with_columns(origin=pl.lit(number, pl.Int32)))
        if unit.is_tar:
            role = plan.items["file"][unit.start].partition("/")[0]
            tars.append({"file": unit.source.name, "role": role, "bytes": facts["bytes"], "md5": facts["md5"]})
    found = pl.concat(tables).sort("row", pl.col("reason").is_not_null(), "origin")
    joined = (
        plan.items.drop(BOX, strict=False)
        .with_row_index("row")
        .with_columns(pl.col("row").cast(pl.Int64))
        .join(found.unique("row", keep="first", maintain_order=True), on="row", how="left", maintain_order="left")
        .rename({"offset": "source_offset"})
    )
    missing = pl.lit("in none of the tars" if catalog.containers else "not examined")
    joined = joined.with_columns(
        pl.when(pl.col("origin").is_null()).then(pl.lit("missing")).otherwise("reason").alias("reason"),
        pl.when(pl.col("origin").is_null()).then(missing).otherwise("detail").alias("detail"),
    )
    sound = joined.filter(pl.col("reason").is_null()).drop("row", "reason", "detail")
    left_out = [(tar.path.name, "missing") for tar in plan.absent] + [(Path(name).name, "refused") for name in refused]
    notes = [f"built without the {state} tar {name}." for name, state in sorted(left_out)]
    return Examination(
        items=sound if catalog.has_boxes else sound.drop(BOX),
        rejected=_rejected(joined.filter(pl.col("reason").is_not_null()), catalog.dropped),
        origins=tuple(origins),
        tars=tuple(tars),
        notes=tuple(notes),
    )


def _rejected(items: pl.DataFrame, dropped: pl.DataFrame | None) -> pl.DataFrame:
    schema = TABLES[REJECTED]
    parts = [items.select(schema.names())]
    if dropped is not None:
        parts.append(dropped.with_columns(key=pl.lit(None, pl.String)).select(schema.names()))
    return pl.concat(parts).sort("split", "file", "key", "reason", "detail")
