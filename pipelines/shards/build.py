"""``hgld build-shards``: a release in, one directory of shards out (docs/shards.md); ``--dry-run`` only plans it.

The adapter reads the release's lists; every image is examined once; the sound ones are ordered into shards; every
shard is packed; the tables come last, and the manifest last of all. A stopped build resumes at any of these steps.
"""

import math
import shlex
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from hgld.data.format import BOX, Manifest, ShardFacts, SplitFacts
from hgld.errors import InputError, StorageError
from hgld.hierarchy import Hierarchy
from hgld.tables import POLARS_FAULTS

from ..executor import run_units
from ..stage import Progress, key_of, plain, read_facts, sha256_of
from . import build_labels, pack
from .cards import load_card, published_differences
from .catalog import Catalog
from .class_split import for_adapter, with_val_classes
from .config import MEGABYTE, ShardConfig, SourceConfig
from .examine_stage import Examination, ExaminePlan, plan_examination, run_examination
from .exclusions import without_excluded
from .finish import DatasetParts, PackedShard, finish, tables_about_items
from .order import PlanOptions, plan_shards, tar_size
from .output import ShardOutput, amount, check_space
from .sources import has_card, resolve, source_name
from .work import (
    WorkFolder,
    begin_packing,
    build_key,
    finished_dataset,
    opened_work,
    provenance,
    remove_work,
    work_path,
)

if TYPE_CHECKING:
    from .cards import DataCard


@dataclass(frozen=True)
class PlannedSplit:
    """Planned size of a split: its items, its classes by level, and about how many shards."""

    items: int
    classes: Mapping[str, int]
    shards: int


@dataclass(frozen=True)
class PlannedBuild:
    """A dry run: everything that a build would read and write.

    Attributes:
        out: folder or URL.
        done: True if that dataset is already complete at ``out``.
        splits: by name.
        units: number of units to examine.
        pending: number of units not examined yet.
        absent: missing tars.
        read_bytes: size of the sources still to be examined.
        write_bytes: approximate size of the shards.
        spool_bytes: approximate size of the images kept in the work folder until the build is done.
    """

    out: str
    done: bool
    splits: Mapping[str, PlannedSplit]
    units: int
    pending: int
    absent: tuple[Path, ...]
    read_bytes: int
    write_bytes: int
    spool_bytes: int


def plan_build(catalog: Catalog, out: str, options: SourceConfig, config: ShardConfig) -> PlannedBuild:
    """Plan what :func:`hgld.pipelines.shards.build.build_catalog` would do with the same arguments.

    Raises:
        ConfigError: options that contradict each other; another dataset lies at ``out``.
        InputError: a tar or its checksum file cannot be read.
    """
    output = ShardOutput(out)
    work = WorkFolder(work_path(output, config.work))
    done = finished_dataset(output, build_key(catalog, options, config)) is not None
    plan = plan_examination(catalog, work.examined, config)
    return PlannedBuild(
        out=out,
        done=done,
        splits=_splits(catalog, plan, config),
        units=len(plan.units) + len(plan.absent),
        pending=0 if done else len(plan.pending) + len(plan.absent),
        absent=tuple(tar.path for tar in plan.absent),
        read_bytes=0 if done else plan.read_bytes,
        write_bytes=0 if done else shard_bytes(plan),
        spool_bytes=0 if done else plan.spool_bytes,
    )


def shard_bytes(plan: ExaminePlan) -> int:
    """Estimate the bytes of all shards before any image is examined."""
    return tar_size(_sizes(plan, len(plan.items)), 1)


def _sizes(plan: ExaminePlan, items: int) -> np.ndarray:
    return np.full(items, plan.kept_bytes // max(1, len(plan.items)), dtype=np.int64)


def _splits(catalog: Catalog, plan: ExaminePlan, config: ShardConfig) -> dict[str, PlannedSplit]:
    splits = {}
    for (split,), part in plan.items.group_by("split", maintain_order=True):
        parts = tar_size(_sizes(plan, len(part)), 0) / (config.shard_mb * MEGABYTE)
        splits[str(split)] = PlannedSplit(
            items=len(part),
            classes={level: part[level].drop_nulls().n_unique() for level in catalog.levels},
            shards=math.ceil(max(parts, len(part) / config.shard_items)),
        )
    return dict(sorted(splits.items()))


# -- the build ------------------------------------------------------------------------------------------------------

_EXAMINED = ("key", "split", "file", "origin", "source_offset", "size", "suffix", "width", "height", "orientation")
_PLANNED = ("shard", "sha256", "duplicate_of", "class_run")


@dataclass(frozen=True)
class BuildResult:
    """A finished dataset.

    Attributes:
        out: folder or URL.
        manifest: ``dataset.json``.
        differences: from the published counts (:func:`hgld.pipelines.shards.cards.published_differences`); None
            without a card.
        notes: for people, one line each.
        was_run: False if it was built before.
    """

    out: str
    manifest: Manifest
    differences: pl.DataFrame | None
    notes: tuple[str, ...]
    was_run: bool


def read_release(name: str, source: Path, options: SourceConfig) -> Catalog:
    """Read the catalog of a release; with ``options.labels`` of a build, its levels above the finest.

    Items of ``options.exclude`` are left out, then ``options.val_classes`` of the training classes become ``val``.

    Raises:
        ConfigError: there is no such source, it does not take one of the options, or it has no classes for ``val``.
        InputError: a list is missing or cannot be read.
    """
    read, asked = resolve(name), options
    options = for_adapter(replace(options, exclude=None))  # adapters know nothing of either
    if options.labels is None or not build_labels.is_build(options.labels, source_name(name)):
        catalog = read(source, options)
    else:
        catalog = build_labels.with_levels_of(read(source, replace(options, labels=None)), options.labels)
    if asked.exclude is not None:
        catalog = without_excluded(catalog, asked.exclude)
    return with_val_classes(catalog, asked) if asked.val_classes else catalog


def card_of(name: str) -> "DataCard | None":
    """Return the data card of a source; None for the user's own data."""
    return load_card(name) if has_card(source_name(name)) else None


def build_shards(
    name: str, source: Path, out: str, options: SourceConfig, config: ShardConfig, progress: Progress
) -> BuildResult:
    """Build the dataset of a release.

    Args:
        name: of the source: ``sop``, ``manifest`` (:data:`hgld.pipelines.shards.sources.SOURCES`).
        source: the release's folder, or the table of the user's own data.
        out: an empty or new folder, or a URL that fsspec can write to.
        options: how the release is read.
        config: how the shards are written.
        progress: told of every unit.

    Raises:
        ConfigError: options that contradict each other; ``out`` holds something else.
        InputError: a list or tar of the release is missing or damaged.
        StorageError: the disk has too little space, or cannot be written to.
    """
    progress("reading the lists", 0, None)
    return build_catalog(read_release(name, source, options), card_of(name), out, options, config, progress)


def build_catalog(
    catalog: Catalog,
    card: "DataCard | None",
    out: str,
    options: SourceConfig,
    config: ShardConfig,
    progress: Progress,
) -> BuildResult:
    """Build the dataset of a catalog; the further arguments and errors are those of :func:`build_shards`."""
    output = ShardOutput(out)
    path = work_path(output, config.work)
    key = build_key(catalog, options, config)
    manifest = finished_dataset(output, key)
    was_run = manifest is None
    if manifest is None:
        with _storage_errors(out), opened_work(path, output, key) as work:
            manifest = _Build(catalog, card, output, work, options, config, progress).run()
    remove_work(path)
    differences = published_differences(card, manifest) if card else None
    return BuildResult(out, manifest, differences, tuple(manifest.provenance.get("notes", ())), was_run)


@contextmanager
def _storage_errors(out: str) -> Iterator[None]:
    """Turn an error of the disk into a :class:`StorageError`; files of the release have errors of their own."""
    try:
        yield
    except (OSError, *POLARS_FAULTS) as error:
        of_system = isinstance(error, OSError) or "(os error" in str(
            error
        )  # polars states the path only in its message
        if isinstance(error, StorageError) or not of_system:
            raise
        reason = getattr(error, "strerror", None) or str(error)
        place = getattr(error, "filename", None) or out
        raise StorageError(
            f"{out}: the build cannot write ({reason}: {place}). Free space, or choose another folder; then run the "
            "same command again: what was done is kept."
        ) from error


class _Build:
    def __init__(
        self,
        catalog: Catalog,
        card: "DataCard | None",
        output: ShardOutput,
        work: WorkFolder,
        options: SourceConfig,
        config: ShardConfig,
        progress: Progress,
    ) -> None:
        self.catalog, self.card, self.output, self.work = catalog, card, output, work
        self.options, self.config, self.progress = options, config, progress

    def run(self) -> Manifest:
        planned = plan_examination(self.catalog, self.work.examined, self.config)
        self._check_space_to_examine(planned)
        examination = run_examination(self.catalog, planned, self.config, self.progress)
        if examination.items.is_empty():
            raise InputError(
                f"none of the {len(examination.rejected)} images of {self.catalog.name!r} can be used; the first: "
                f"{examination.rejected.select('file', 'reason', 'detail').row(0)}. Is this the right folder?"
            )
        hierarchy, labelled = _label(examination.items, self.catalog.levels)
        items = self._plan(labelled)
        self._check_space_to_pack(items)
        shards = self._pack(items, hierarchy, examination)
        self.progress("writing tables", 0, None)
        facts = provenance(self.catalog, self.card, self.options, self.config, examination.tars)
        facts["notes"] += [*examination.notes, *self._notes(items)]
        parts = DatasetParts(
            catalog=self.catalog,
            card=self.card,
            hierarchy=hierarchy,
            shards=shards,
            rejected=examination.rejected,
            group_size=self.config.group_size,
            provenance=facts,
            notes=facts["notes"],
        )
        return finish(parts, self.work.tables, self.output)

    def _check_space_to_examine(self, planned: ExaminePlan) -> None:
        there = sum(size for name, size in self.output.sizes().items() if name.endswith(".tar"))
        needs = {self.work.path: planned.spool_bytes}
        if self.output.is_local:
            needs[self.output.folder] = max(0, shard_bytes(planned) - there)
        check_space(needs)

    def _check_space_to_pack(self, items: pl.DataFrame) -> None:
        if self.output.is_local:
            sizes = self.output.sizes()
            todo = items.filter(~pl.col("shard").is_in(list(sizes)))
            check_space({self.output.folder: tar_size(todo["size"].to_numpy(), todo["shard"].n_unique())})

    def _plan(self, items: pl.DataFrame) -> pl.DataFrame:
        options = PlanOptions(
            group_size=self.config.group_size,
            shard_bytes=self.config.shard_mb * MEGABYTE,
            shard_items=self.config.shard_items,
            seed=self.options.seed,
        )
        boxes = BOX if self.catalog.has_boxes else ()
        ordered = plan_shards(items, self.catalog.levels, options)
        return ordered.select(*_EXAMINED, *self.catalog.levels, *_PLANNED, *boxes)

    def _pack(self, items: pl.DataFrame, hierarchy: Hierarchy, examination: Examination) -> list[PackedShard]:
        units, splits = [], {}
        for (shard,), part in items.group_by("shard", maintain_order=True):
            unit = self._pack_unit(str(shard), part, hierarchy, examination)
            units.append(unit)
            splits[unit.name] = part["split"][0]
        begin_packing(self.work, self.output, splits)
        sizes = self.output.sizes()
        pending = [unit for unit in units if not _is_packed(unit, sizes)]
        finished = len(units) - len(pending)
        self.progress("packing", finished, len(units))

        def done(unit: pack.PackUnit, count: int) -> None:
            nonlocal finished
            finished += 1
            self.progress("packing", finished, len(units))

        config = self.config
        run_units(
            pack.pack, pending, done, executor=config.executor, workers=config.workers, ray_address=config.ray_address
        )
        self.output.remove_parts()  # of workers that were killed
        return [PackedShard(_shard_facts(unit, splits[unit.name]), unit.record) for unit in units]

    def _pack_unit(
        self, shard: str, part: pl.DataFrame, hierarchy: Hierarchy, examination: Examination
    ) -> pack.PackUnit:
        plan = self.work.plans / f"{shard}.parquet"
        plan.parent.mkdir(parents=True, exist_ok=True)
        part.with_columns(_names(part, hierarchy)).write_parquet(
            plan
        )  # written anew in every run, so it need not be synced
        return pack.PackUnit(
            name=shard,
            key=key_of(pack.VERSION, self.catalog.levels, sha256_of(plan)),
            levels=self.catalog.levels,
            plan=plan,
            root=self.catalog.root,
            origins=examination.origins,
            out=str(self.output.folder) if self.output.is_local else self.output.root,
            record=self.work.packed / f"{shard}.parquet",
        )

    def _notes(self, items: pl.DataFrame) -> list[str]:
        _, left_out = tables_about_items(self.catalog, items["key"])
        notes = [
            f"{count} rows about items that are not in the shards were left out of {name}."
            for name, count in left_out.items()
        ]
        duplicates = items["duplicate_of"].is_not_null().sum()
        if duplicates:
            notes.append(
                f"{duplicates} images are exact copies of others; the index names the originals in duplicate_of."
            )
        return notes


def _label(items: pl.DataFrame, levels: tuple[str, ...]) -> tuple[Hierarchy, pl.DataFrame]:
    """Return the tree of the items' classes, and the items with integer labels in place of names."""
    classes = items.select(levels).unique().sort(levels)
    hierarchy = Hierarchy.from_columns({level: classes[level].to_list() for level in levels})
    for level, names in zip(levels, hierarchy.names, strict=True):
        labels = pl.DataFrame({level: names, "label": range(len(names))}, schema={level: pl.String, "label": pl.Int32})
        items = items.join(labels, on=level, how="left", maintain_order="left")
        items = items.with_columns(pl.col("label").fill_null(-1).alias(level)).drop("label")
    return hierarchy, items


def _names(part: pl.DataFrame, hierarchy: Hierarchy) -> list[pl.Series]:
    """Return the names of the items' classes, one column ``name/LEVEL`` a level."""
    columns = []
    for level, names in zip(hierarchy.levels, hierarchy.names, strict=True):
        labels = part[level]
        known = pl.Series([*names, None], dtype=pl.String).gather(labels.replace(-1, len(names)))
        columns.append(known.alias(f"name/{level}"))
    return columns


def _is_packed(unit: pack.PackUnit, sizes: Mapping[str, int]) -> bool:
    facts = read_facts(unit.record, unit.key)
    return facts is not None and sizes.get(unit.name) == facts["bytes"]


def _shard_facts(unit: pack.PackUnit, split: str) -> ShardFacts:
    facts = read_facts(unit.record, unit.key)
    assert facts is not None, f"{unit.name} was packed without a record"
    return ShardFacts(unit.name, split, facts["items"], facts["bytes"], facts["sha256"])


# -- reports for people and machines --------------------------------------------------------------------------------

_MOST_SHOWN = 10


def result_summary(result: BuildResult) -> dict[str, Any]:
    """Summarize a finished dataset for machines."""
    manifest = result.manifest
    return {
        "out": result.out,
        "name": manifest.name,
        "ran": result.was_run,
        "levels": list(manifest.levels),
        "splits": plain(manifest.splits),
        "shards": len(manifest.shards),
        "bytes": sum(shard.bytes for shard in manifest.shards),
        "rejected": dict(manifest.rejected),
        "differences": None if result.differences is None else result.differences.to_dicts(),
        "notes": list(result.notes),
    }


def result_text(result: BuildResult) -> str:
    """Describe a finished dataset on one screen: counts, differences from the published ones, rejects, next command."""
    manifest = result.manifest
    size = amount(sum(shard.bytes for shard in manifest.shards))
    state = "" if result.was_run else " (built before, nothing to do)"
    lines = [f"{manifest.name}: {_count(len(manifest.shards), 'shard')}, {size}, in {result.out}{state}", ""]
    lines += [_split(name, facts) for name, facts in manifest.splits.items()]
    if manifest.rejected:
        lines += ["", "kept aside, see rejected.parquet:"]
        lines += _shown([f"  {count:>9,} {reason}" for reason, count in _by_size(manifest.rejected)])
    if result.differences is not None:
        lines += ["", *_differences(result)]
    if result.notes:
        lines += ["", *_shown([f"note: {note}" for note in result.notes])]
    lines += ["", f"next: hgld verify {shlex.quote(result.out)} --decode"]
    return "\n".join(lines)


def plan_summary(plan: PlannedBuild) -> dict[str, Any]:
    """Summarize a dry run for machines."""
    return plain(plan)


def plan_text(plan: PlannedBuild) -> str:
    """Describe a dry run for people."""
    if plan.done:
        return f"{plan.out} holds this dataset already: nothing to do."
    lines = []
    for name, split in plan.splits.items():
        classes = ", ".join(f"{count:,} of {level}" for level, count in split.classes.items())
        lines.append(
            f"{name}: {_count(split.items, 'item')} in about {_count(split.shards, 'shard')}; classes: {classes}"
        )
    lines.append(f"to read:  {amount(plan.read_bytes)} in {plan.pending:,} of {_count(plan.units, 'unit')} of work")
    if plan.absent:
        lines.append(f"missing:  {_count(len(plan.absent), 'tar')}, the first is {plan.absent[0]}")
    if plan.spool_bytes:
        lines.append(f"to keep:  about {amount(plan.spool_bytes)} in the work folder until the build is done")
    lines.append(f"to write: about {amount(plan.write_bytes)} to {plan.out}")
    return "\n".join(lines)


def _split(name: str, facts: SplitFacts) -> str:
    classes = ", ".join(f"{count:,} of {level}" for level, count in facts["classes"].items())
    unlabelled = f"; {facts['unlabelled']:,} without a finest label" if facts["unlabelled"] else ""
    counts = f"{_count(facts['items'], 'item')} in {_count(facts['shards'], 'shard')}"
    return f"{name}: {counts}; classes: {classes}{unlabelled}"


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}{'s' * (number != 1)}"


def _differences(result: BuildResult) -> list[str]:
    differences = result.differences
    if differences is None or differences.is_empty():
        return ["every published count is met."]
    rows = []
    for split, what, published, found in differences.iter_rows():
        rows.append(f"  {split}, {what}: {published} published, {'not built' if found is None else f'{found:,} here'}")
    return ["differences from the published counts:", *_shown(rows)]


def _by_size(counts: Mapping[str, int]) -> list[tuple[str, int]]:
    return sorted(counts.items(), key=lambda item: (-item[1], item[0]))


def _shown(lines: list[str]) -> list[str]:
    rest = len(lines) - _MOST_SHOWN
    return lines if rest <= 0 else [*lines[:_MOST_SHOWN], f"  and {rest:,} more"]
