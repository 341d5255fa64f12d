"""``hgld build-shards``: a release in, one directory of shards out (docs/reference/dataset-files.md).

The adapter reads the release's lists; every image is examined once; the sound ones are ordered into shards; every
shard is packed; the tables come last, and the manifest last of all. A stopped build resumes at any of these steps.
"""

import shlex
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import polars as pl

from hgld.data.format import BOX, Manifest, ShardFacts, SplitFacts
from hgld.errors import InputError, StorageError
from hgld.hierarchy import Hierarchy
from hgld.tables import POLARS_FAULTS

from ..stage import Progress, key_of, plain, read_facts, sha256_of
from . import catalog_changes, pack
from .cards import DataCard, load_card, published_differences
from .catalog import Catalog
from .config import MEGABYTE, ShardConfig, SourceConfig
from .examine import plan_examination, run_examination
from .finish import PackedShard, finish, tables_about_items
from .order import plan_shards, tar_size
from .output import ShardOutput, amount, check_space
from .sources import OWN_DATA, has_card, read_source, source_name
from .work import (
    WorkFolder,
    begin_packing,
    build_key,
    finished_dataset,
    opened_work,
    provenance,
    remove_work,
    run_counted,
    work_path,
)

_EXAMINED = ("key", "split", "file", "origin", "source_offset", "size", "suffix", "width", "height", "orientation")
_PLANNED = ("shard", "sha256", "duplicate_of", "class_run")
_MOST_SHOWN = 10


def read_release(name: str, source: Path, options: SourceConfig) -> Catalog:
    """Read the catalog of a release, changed as :func:`with_options` says.

    Raises:
        ConfigError: there is no such source, it does not take one of the options, or it has no classes for ``val``.
        InputError: a list is missing or cannot be read.
    """
    name, labels = source_name(name), options.labels
    # val is drawn from what all splits have; an adapter knows nothing of it
    asked = replace(options, exclude=None, val_classes=None, splits=() if options.val_classes else options.splits)
    if labels is not None and catalog_changes.is_build(labels, name):
        asked = replace(asked, labels=None)
    return with_options(name, read_source(name, source, asked), options)


def with_options(name: str, catalog: Catalog, options: SourceConfig) -> Catalog:
    """Change the catalog of a source as the options say that any source takes.

    With ``options.labels`` of a build, its levels stand above the finest. Items of ``options.exclude`` are left out,
    then ``options.val_classes`` of the training classes become ``val``, then training items that may show a class of a
    drawn split are left out, then the splits that are not in ``options.splits``.

    Raises:
        ConfigError: the release has no classes for ``val``, or not such a split.
        InputError: a list cannot be read, or the labels are not those of the classes.
    """
    labels = options.labels
    if labels is not None and catalog_changes.is_build(labels, name):
        catalog = catalog_changes.with_levels_of(catalog, labels)
    if options.exclude is not None:
        catalog = catalog_changes.without_excluded(catalog, options.exclude)
    if options.val_classes:
        catalog = catalog_changes.with_val_classes(catalog, options.val_classes, options.seed)
    drawn = {"test": options.test_classes, catalog_changes.VAL: options.val_classes}
    if splits := [split for split, part in drawn.items() if part]:
        catalog = catalog_changes.without_leaks(catalog, splits)
    catalog = catalog_changes.keep_splits(catalog, options.splits)
    if name in OWN_DATA:
        from .sources.own_images import check_own_protocol

        check_own_protocol(catalog)
    return catalog


# -- the build ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class BuildResult:
    """A finished dataset.

    Attributes:
        out: folder or URL.
        manifest: ``dataset.json``.
        differences: from the published counts (:func:`hgld.pipelines.shards.cards.published_differences`); None
            without a card.
        was_run: False if it was built before.
    """

    out: str
    manifest: Manifest
    differences: pl.DataFrame | None
    was_run: bool

    @property
    def notes(self) -> tuple[str, ...]:
        """Notes for people, one line each."""
        return tuple(self.manifest.provenance.get("notes", ()))


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
    card = load_card(name) if has_card(source_name(name)) else None
    return build_catalog(read_release(name, source, options), card, out, options, config, progress)


def build_catalog(
    catalog: Catalog, card: DataCard | None, out: str, options: SourceConfig, config: ShardConfig, progress: Progress
) -> BuildResult:
    """Build the dataset of a catalog; the further arguments and errors are those of :func:`build_shards`."""
    output = ShardOutput(out)
    path = work_path(output, config.work)
    key = build_key(catalog, options, config)
    manifest = finished_dataset(output, key)
    was_run = manifest is None
    if manifest is None:
        with _storage_errors(out), opened_work(path, output, key) as work:
            manifest = _build(catalog, card, output, work, options, config, progress)
    remove_work(path)
    return BuildResult(out, manifest, published_differences(card, manifest) if card else None, was_run)


@contextmanager
def _storage_errors(out: str) -> Iterator[None]:
    """Turn an error of the disk into a :class:`StorageError`; files of the release have errors of their own."""
    try:
        yield
    except (OSError, *POLARS_FAULTS) as error:
        of_system = isinstance(error, OSError) or "(os error" in str(error)  # polars states it only in its message
        if isinstance(error, StorageError) or not of_system:
            raise
        reason = getattr(error, "strerror", None) or str(error)
        place = getattr(error, "filename", None) or out
        raise StorageError(
            f"{out}: the build cannot write ({reason}: {place}). Free space, or choose another folder; then run the "
            "same command again: what was done is kept."
        ) from error


def _build(
    catalog: Catalog,
    card: DataCard | None,
    output: ShardOutput,
    work: WorkFolder,
    options: SourceConfig,
    config: ShardConfig,
    progress: Progress,
) -> Manifest:
    planned = plan_examination(catalog, work.examined, config)
    examination = run_examination(catalog, planned, config, progress)
    if examination.items.is_empty():
        raise InputError(
            f"none of the {len(examination.rejected)} images of {catalog.name!r} can be used; the first: "
            f"{examination.rejected.select('file', 'reason', 'detail').row(0)}. Is this the right folder?"
        )
    hierarchy, labelled = _label(examination.items, catalog.levels)
    items = plan_shards(
        labelled,
        catalog.levels[0],
        group_size=config.group_size,
        shard_bytes=config.shard_mb * MEGABYTE,
        shard_items=config.shard_items,
        seed=options.seed,
    )
    items = items.select(*_EXAMINED, *catalog.levels, *_PLANNED, *(BOX if catalog.has_boxes else ()))
    if output.is_local:
        todo = items.filter(~pl.col("shard").is_in(list(output.sizes())))
        check_space(output.folder, tar_size(todo["size"].to_numpy(), todo["shard"].n_unique()))
    shards = _pack(items, catalog, hierarchy, examination.origins, output, work, config, progress)
    progress("writing tables", 0, None)
    facts = provenance(catalog, card, options, config, examination.tars)
    _, left_out = tables_about_items(catalog, items["key"])
    facts["notes"] += examination.notes
    facts["notes"] += [
        f"{count} rows about items that are not in the shards were left out of {name}."
        for name, count in left_out.items()
    ]
    if duplicates := items["duplicate_of"].is_not_null().sum():
        facts["notes"].append(
            f"{duplicates} images are exact copies of others; the index names the originals in duplicate_of."
        )
    group_size, rejected = config.group_size, examination.rejected
    return finish(catalog, card, hierarchy, shards, rejected, group_size, facts, work.tables, output)


def _label(items: pl.DataFrame, levels: tuple[str, ...]) -> tuple[Hierarchy, pl.DataFrame]:
    """Return the tree of the items' classes, and the items with integer labels in place of names."""
    classes = items.select(levels).unique().sort(levels)
    hierarchy = Hierarchy.from_columns({level: classes[level].to_list() for level in levels})
    for level, names in zip(levels, hierarchy.names, strict=True):
        numbers = pl.Series(range(len(names)), dtype=pl.Int32)
        items = items.with_columns(
            pl.col(level).replace_strict(pl.Series(names), numbers, default=-1, return_dtype=pl.Int32)
        )
    return hierarchy, items


def _pack(
    items: pl.DataFrame,
    catalog: Catalog,
    hierarchy: Hierarchy,
    origins: tuple[Path, ...],
    output: ShardOutput,
    work: WorkFolder,
    config: ShardConfig,
    progress: Progress,
) -> list[PackedShard]:
    """Write the shards that are not there yet."""
    work.plans.mkdir(parents=True, exist_ok=True)
    units, splits = [], {}
    for (shard,), part in items.group_by("shard", maintain_order=True):
        plan = work.plans / f"{shard}.parquet"  # written anew in every run, so it need not be synced
        named = []
        for level, names in zip(hierarchy.levels, hierarchy.names, strict=True):
            name_of = pl.Series(f"name/{level}", [*names, None], dtype=pl.String)
            named.append(name_of.gather(part[level].replace(-1, len(names))))
        part.with_columns(named).write_parquet(plan)
        splits[str(shard)] = part["split"][0]
        units.append(
            pack.PackUnit(
                name=str(shard),
                key=key_of(pack.VERSION, catalog.levels, sha256_of(plan)),
                levels=catalog.levels,
                plan=plan,
                root=catalog.root,
                origins=origins,
                out=output.address,
                record=work.packed / plan.name,
            )
        )
    begin_packing(work, output, splits)
    sizes, pending = output.sizes(), []
    for unit in units:
        facts = read_facts(unit.record, unit.key)
        if facts is None or sizes.get(unit.name) != facts["bytes"]:
            pending.append(unit)
    run_counted(pack.pack, pending, progress, "packing", len(units) - len(pending), **config.execution())
    output.remove_parts()  # of workers that were killed
    shards = []
    for unit in units:
        facts = read_facts(unit.record, unit.key)
        assert facts is not None, f"{unit.name} was packed without a record"
        shard = ShardFacts(unit.name, splits[unit.name], facts["items"], facts["bytes"], facts["sha256"])
        shards.append(PackedShard(shard, unit.record))
    return shards


# -- reports for people and machines --------------------------------------------------------------------------------


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


def result_text(result: BuildResult, told: Catalog | None = None) -> str:
    """Describe a finished dataset on one screen: counts, differences from the published ones, rejects, next command.

    Args:
        result: the dataset.
        told: catalog whose splits and notes people have read already.
    """
    manifest = result.manifest
    size = amount(sum(shard.bytes for shard in manifest.shards))
    state = "" if result.was_run else " (built before, nothing to do)"
    lines = [f"{manifest.name}: {_count(len(manifest.shards), 'shard')}, {size}, in {result.out}{state}"]
    if told is not None:
        out = sum(manifest.rejected.values())
        lines += [f"{_count(out, 'file')} kept aside: rejected.parquet"] * bool(out)
        lines += [f"note: {note}" for note in result.notes if note not in told.notes]
        return "\n".join([*lines, f"next: hgld train --data {shlex.quote(result.out)} --out RUN"])
    lines.append("")
    lines += [_split_text(name, facts) for name, facts in manifest.splits.items()]
    if manifest.rejected:
        by_size = sorted(manifest.rejected.items(), key=lambda item: (-item[1], item[0]))
        lines += ["", "kept aside, see rejected.parquet:"]
        lines += _shown([f"  {count:>9,} {reason}" for reason, count in by_size])
    if result.differences is not None:
        lines += ["", *differences_text(result.differences)]
    if result.notes:
        lines += ["", *_shown([f"note: {note}" for note in result.notes])]
    return "\n".join([*lines, "", f"next: hgld verify {shlex.quote(result.out)} --decode"])


def differences_text(differences: pl.DataFrame) -> list[str]:
    """Describe the differences from the published counts for people, one line each."""
    if differences.is_empty():
        return ["every published count is met."]
    rows = [
        f"  {split}, {what}: {published} published, {'not built' if found is None else f'{found:,} here'}"
        for split, what, published, found in differences.iter_rows()
    ]
    return ["differences from the published counts:", *_shown(rows)]


def _split_text(name: str, facts: SplitFacts) -> str:
    unlabelled = f"; {facts['unlabelled']:,} without a finest label" if facts["unlabelled"] else ""
    counts = f"{_count(facts['items'], 'item')} in {_count(facts['shards'], 'shard')}"
    return f"{name}: {counts}; classes: {_classes_text(facts['classes'])}{unlabelled}"


def _classes_text(classes: Mapping[str, int]) -> str:
    return ", ".join(f"{count:,} of {level}" for level, count in classes.items())


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}{'s' * (number != 1)}"


def _shown(lines: list[str]) -> list[str]:
    rest = len(lines) - _MOST_SHOWN
    return lines if rest <= 0 else [*lines[:_MOST_SHOWN], f"  and {rest:,} more"]
