"""``hgld build-shards``: a dataset's release in, one directory of shards out (docs/shards.md).

The adapter reads the release's lists; every image is examined once; the sound ones are ordered into shards; every shard
is packed; the tables come last, and the manifest last of all. All of it goes on where it was stopped.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import polars as pl

from hgld.dataset_files import Manifest, ShardFacts
from hgld.dataset_names import BOX
from hgld.errors import InputError, StorageError
from hgld.hierarchy import Hierarchy
from pipelines import pack
from pipelines.catalog import Catalog
from pipelines.data_card import load_card, published_differences
from pipelines.disk_space import check_space
from pipelines.examine_stage import Examination, ExaminePlan, plan_examination, run_examination
from pipelines.executor import run_units
from pipelines.progress import Progress
from pipelines.shard_config import MEGABYTE, ShardConfig, SourceConfig
from pipelines.shard_dry_run import shard_bytes
from pipelines.shard_finish import DatasetParts, PackedShard, finish, tables_about_items
from pipelines.shard_output import ShardOutput
from pipelines.shard_plan import PlanOptions, plan_shards, tar_size
from pipelines.shard_provenance import build_key, provenance
from pipelines.shard_work import WorkFolder, begin_packing, finished_dataset, opened_work, remove_work, work_path
from pipelines.sources import OWN_DATA, resolve, source_name
from pipelines.stage import sha256_of
from pipelines.unit_records import key_of, read_facts

if TYPE_CHECKING:
    from pipelines.data_card import DataCard

_EXAMINED = ("key", "split", "file", "origin", "source_offset", "size", "suffix", "width", "height", "orientation")
_PLANNED = ("shard", "sha256", "duplicate_of", "group")


@dataclass(frozen=True)
class BuildResult:
    """A finished dataset.

    Attributes:
        out: folder or URL.
        manifest: ``dataset.json``.
        differences: from the published counts (:func:`pipelines.data_card.published_differences`); None without card.
        notes: for people, one line each.
        ran: False if it was built before.
    """

    out: str
    manifest: Manifest
    differences: pl.DataFrame | None
    notes: tuple[str, ...]
    ran: bool


def read_release(name: str, source: Path, options: SourceConfig) -> Catalog:
    """The catalog of a release.

    Raises:
        ConfigError: there is no such source, or it does not take one of the options.
        InputError: a list is missing or cannot be read.
    """
    return resolve(name)(source, options)


def card_of(name: str) -> "DataCard | None":
    """The data card of a source; None for data of one's own."""
    return None if source_name(name) in OWN_DATA else load_card(name)


def build_shards(
    name: str, source: Path, out: str, options: SourceConfig, config: ShardConfig, progress: Progress
) -> BuildResult:
    """Build the dataset of a release.

    Args:
        name: of the source: ``sop``, ``manifest`` (:data:`pipelines.sources.SOURCES`).
        source: the release's folder, or the table of one's own data.
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
    ran = manifest is None
    if manifest is None:
        with _storage_errors(out), opened_work(path, output, key) as work:
            manifest = _Build(catalog, card, output, work, options, config, progress).run()
    remove_work(path)
    differences = published_differences(card, manifest) if card else None
    return BuildResult(out, manifest, differences, tuple(manifest.provenance.get("notes", ())), ran)


@contextmanager
def _storage_errors(out: str) -> Iterator[None]:
    """What the system says of a disk, for people; files of the release have errors of their own."""
    try:
        yield
    except (OSError, pl.exceptions.PolarsError) as error:
        of_system = isinstance(error, OSError) or "(os error" in str(error)  # polars names it in its text alone
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
        return [PackedShard(_shard_facts(unit, splits[unit.name]), unit.record) for unit in units]

    def _pack_unit(
        self, shard: str, part: pl.DataFrame, hierarchy: Hierarchy, examination: Examination
    ) -> pack.PackUnit:
        plan = self.work.plans / f"{shard}.parquet"
        plan.parent.mkdir(parents=True, exist_ok=True)
        part.with_columns(_names(part, hierarchy)).write_parquet(plan)  # anew in every run, so it need not be synced
        return pack.PackUnit(
            name=shard,
            key=key_of(pack.VERSION, self.catalog.levels, sha256_of(plan)),
            levels=self.catalog.levels,
            plan=plan,
            root=self.catalog.root,
            origins=examination.origins,
            out=self.output.root,
            record=self.work.packed / f"{shard}.parquet",
        )

    def _notes(self, items: pl.DataFrame) -> list[str]:
        _, left_out = tables_about_items(self.catalog, items["key"])
        notes = [
            f"{count} rows about items that are not here were left out of {name}." for name, count in left_out.items()
        ]
        duplicates = items["duplicate_of"].is_not_null().sum()
        if duplicates:
            notes.append(f"{duplicates} images are exact copies of others; duplicate_of in the index says of which.")
        return notes


def _label(items: pl.DataFrame, levels: tuple[str, ...]) -> tuple[Hierarchy, pl.DataFrame]:
    """The tree of the items' classes; the items with integer labels in place of names."""
    classes = items.select(levels).unique().sort(levels)
    hierarchy = Hierarchy.from_columns({level: classes[level].to_list() for level in levels})
    for level, names in zip(levels, hierarchy.names, strict=True):
        labels = pl.DataFrame({level: names, "label": range(len(names))}, schema={level: pl.String, "label": pl.Int32})
        items = items.join(labels, on=level, how="left", maintain_order="left")
        items = items.with_columns(pl.col("label").fill_null(-1).alias(level)).drop("label")
    return hierarchy, items


def _names(part: pl.DataFrame, hierarchy: Hierarchy) -> list[pl.Series]:
    """The names of the items' classes, one column ``name/LEVEL`` a level."""
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
