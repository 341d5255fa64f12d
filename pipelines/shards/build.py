"""``hgld build-shards``: build a dataset directory from a release (docs/reference/dataset-files.md).

The adapter reads the release's lists. Every image is examined once, the usable images are ordered into shards, and
every shard is packed. The tables and then the manifest are written last. A stopped build resumes at any of these steps.
"""

import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import polars as pl

from hgld.data.format import BOX, CARD, CROISSANT, REJECTED, Manifest, ShardFacts
from hgld.data.index import TABLES
from hgld.errors import InputError
from hgld.hierarchy import Hierarchy
from hgld.tables import read_parquet
from hgld.version import __version__

from ..stage import Progress, fingerprint, key_of, plain, read_facts, sha256_of, storage_errors
from . import catalog_changes, pack
from .cards import DataCard, load_card, published_differences, write_dataset
from .catalog import ABOUT_ITEMS, Catalog
from .config import MEGABYTE, ShardConfig, SourceConfig
from .examine import Examination, examine_release
from .pack import plan_shards, tar_size
from .sources import OWN_DATA, has_card, read_source, source_name
from .work import (
    WorkFolder,
    amount,
    begin_packing,
    build_key,
    check_space,
    finished_dataset,
    opened_work,
    remove_parts,
    run_counted,
    sizes_of,
    stated_options,
)

_EXAMINED = ("key", "split", "file", "origin", "source_offset", "size", "suffix", "width", "height", "orientation")
_PLANNED = ("shard", "sha256", "duplicate_of", "class_run")
_CODECS = ("opencv-python-headless", "pillow", "simplejpeg")  # packages that determine the bytes of resized images
_MOST_SHOWN = 10


def read_release(name: str, source: Path, options: SourceConfig) -> Catalog:
    """Read the catalog of a release and apply :func:`with_options` to it.

    Raises:
        ConfigError: there is no such source, the source does not have one of the options, or it has no classes for
            ``val``.
        InputError: a list is missing or cannot be read.
    """
    name, labels = source_name(name), options.labels
    # val is drawn here and needs all splits, so the adapter must not leave any unread
    asked = replace(options, exclude=None, val_classes=None, splits=() if options.val_classes else options.splits)
    if labels is not None and catalog_changes.is_build(labels, name):
        asked = replace(asked, labels=None)
    return with_options(name, read_source(name, source, asked), options)


def with_options(name: str, catalog: Catalog, options: SourceConfig) -> Catalog:
    """Apply the options that every source takes to a catalog.

    First, the levels of a hierarchy build (``options.labels``) replace the levels above the finest. Then items of
    ``options.exclude`` are dropped, and the share ``options.val_classes`` of the training classes becomes ``val``.
    Last, training items that may show a class of a drawn split, and splits that ``options.splits`` does not name, are
    dropped.

    Raises:
        ConfigError: the release has no classes for ``val``, or lacks a split that the options name.
        InputError: a list cannot be read, or the labels do not belong to the classes.
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
        out: folder of the dataset, as the user gave it.
        manifest: content of ``dataset.json``.
        differences: differences from the published counts (:func:`hgld.pipelines.shards.cards.published_differences`);
            None if hgld has no card of the dataset.
        was_run: False if an earlier call had built the dataset.
    """

    out: str
    manifest: Manifest
    differences: pl.DataFrame | None
    was_run: bool

    @property
    def notes(self) -> tuple[str, ...]:
        """Notes for the user, one line each."""
        return tuple(self.manifest.provenance.get("notes", ()))


def build_shards(
    name: str, source: Path, out: Path | str, options: SourceConfig, config: ShardConfig, progress: Progress
) -> BuildResult:
    """Build the dataset of a release.

    Args:
        name: key of :data:`hgld.pipelines.shards.sources.SOURCES`, for example ``sop`` or ``manifest``.
        source: the release's folder, or the table of the user's own data.
        out: an empty or new folder.
        options: options for reading the release.
        config: options of writing the shards.
        progress: function called for every unit of work.

    Raises:
        ConfigError: options contradict each other, or ``out`` holds something else.
        InputError: a list or tar of the release is missing or damaged.
        StorageError: the disk has too little space, or cannot be written to.
    """
    progress("reading the lists", 0, None)
    card = load_card(name) if has_card(source_name(name)) else None
    return build_catalog(read_release(name, source, options), card, out, options, config, progress)


def build_catalog(
    catalog: Catalog,
    card: DataCard | None,
    out: Path | str,
    options: SourceConfig,
    config: ShardConfig,
    progress: Progress,
) -> BuildResult:
    """Build the dataset of a catalog; :func:`build_shards` describes the other arguments and the errors."""
    place = Path(out).absolute()  # workers on a cluster may run in another folder
    key = build_key(catalog, options, config)
    manifest = finished_dataset(place, key)
    was_run = manifest is None
    if manifest is None:
        with storage_errors("the build", place), opened_work(place, key) as work:
            manifest = _build(_Job(catalog, card, options, config, key, work, progress))
    shutil.rmtree(WorkFolder(place).path, ignore_errors=True)
    return BuildResult(str(out), manifest, published_differences(card, manifest) if card else None, was_run)


@dataclass(frozen=True)
class _Job:
    """Arguments of one build, and its key; ``card`` is None for the user's own data."""

    catalog: Catalog
    card: DataCard | None
    options: SourceConfig
    config: ShardConfig
    key: str
    work: WorkFolder
    progress: Progress


def _build(job: _Job) -> Manifest:
    catalog, config = job.catalog, job.config
    examination = examine_release(catalog, job.work.examined, config, job.progress)
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
        seed=job.options.seed,
    )
    items = items.select(*_EXAMINED, *catalog.levels, *_PLANNED, *(BOX if catalog.has_boxes else ()))
    todo = items.filter(~pl.col("shard").is_in(list(sizes_of(job.work.out))))
    check_space(job.work.out, tar_size(todo["size"].to_numpy(), todo["shard"].n_unique()))
    shards = _pack(job, items, hierarchy, examination.origins)
    job.progress("writing tables", 0, None)
    return finish(job, examination, hierarchy, shards)


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
    job: _Job, items: pl.DataFrame, hierarchy: Hierarchy, origins: tuple[Path, ...]
) -> list[tuple[ShardFacts, Path]]:
    """Write the missing shards; return the facts of all shards, each with the path of its part of the index."""
    work = job.work
    work.plans.mkdir(parents=True, exist_ok=True)
    units, splits = [], {}
    for (shard,), part in items.group_by("shard", maintain_order=True):
        plan = work.plans / f"{shard}.parquet"  # every run writes it again, so it need not be synced
        names_of = [
            pl.Series(f"name/{level}", [*names, None], dtype=pl.String).gather(part[level].replace(-1, len(names)))
            for level, names in zip(hierarchy.levels, hierarchy.names, strict=True)
        ]
        part.with_columns(names_of).write_parquet(plan)
        splits[str(shard)] = part["split"][0]
        units.append(
            pack.PackUnit(
                name=str(shard),
                key=key_of(pack.VERSION, job.catalog.levels, sha256_of(plan)),
                levels=job.catalog.levels,
                plan=plan,
                root=job.catalog.root,
                origins=origins,
                out=work.out,
                record=work.packed / plan.name,
            )
        )
    begin_packing(work, splits)
    sizes = sizes_of(work.out)
    packed = {unit.name: read_facts(unit.record, unit.key) for unit in units}
    pending = [u for u in units if (facts := packed[u.name]) is None or sizes.get(u.name) != facts["bytes"]]
    done = len(units) - len(pending)
    run_counted(pack.pack, pending, job.progress, "packing", done, **job.config.execution())
    remove_parts(work.out)  # killed workers leave partial files
    shards = []
    for unit in units:
        facts = read_facts(unit.record, unit.key)
        assert facts is not None, f"{unit.name} was packed without a record"
        shard = ShardFacts(unit.name, splits[unit.name], facts["items"], facts["bytes"], facts["sha256"])
        shards.append((shard, unit.record))
    return shards


def finish(
    job: _Job, examination: Examination, hierarchy: Hierarchy, shards: Sequence[tuple[ShardFacts, Path]]
) -> Manifest:
    """Write all files except the shards, the manifest last.

    Args:
        job: the build that is running.
        examination: result of the examination, with its rejected images, tars and notes.
        hierarchy: tree of the classes that are in the shards.
        shards: the shards in order, each with the path of its part of the index.
    """
    catalog, out = job.catalog, job.work.out
    index = pl.concat([read_parquet(record) for _, record in shards])
    notes = [*catalog.notes, *examination.notes]
    tables = {REJECTED: examination.rejected}
    for name in ABOUT_ITEMS:
        whole, kept = (catalog.about(name, keys) for keys in (catalog.items["key"], index["key"]))
        if whole is not None and kept is not None:
            tables[f"{name}.parquet"] = kept = kept.unique().sort(pl.all())
            if removed := whole.n_unique() - len(kept):
                notes.append(f"{removed} rows about items that are not in the shards were removed from {name}.parquet.")
    if duplicates := index["duplicate_of"].is_not_null().sum():
        notes.append(f"{duplicates} images are exact copies of others; the index names the originals in duplicate_of.")
    for stale in {*TABLES, CARD, CROISSANT}.difference(tables):  # a stopped run with other options may have written it
        (out / stale).unlink(missing_ok=True)
    manifest = Manifest(
        name=catalog.name,
        levels=catalog.levels,
        group_size=job.config.group_size,
        splits={},
        shards=tuple(shard for shard, _ in shards),
        rejected=dict(examination.rejected["reason"].value_counts().sort("reason").iter_rows()),
        provenance=_provenance(job, examination, notes),
        protocol=catalog.protocol,
    )
    return write_dataset(out, index, hierarchy, tables, manifest, job.card)


def _provenance(job: _Job, examination: Examination, notes: list[str]) -> dict[str, Any]:
    """Return the manifest's provenance; it depends on the input and options, not on the paths of the files."""
    catalog, options = job.catalog, job.options
    stated = stated_options(options, job.config)
    facts = {
        "hgld": __version__,
        "config": stated,
        "config_hash": key_of(stated),
        "build_key": job.key,
        "seeds": {"seed": options.seed},
        "sources": [
            {"file": path.name, **fingerprint(path)} for path in sorted(catalog.sources, key=lambda path: path.name)
        ],
        "licence": job.card.licence if job.card else options.license or "not stated",
        **({"description": options.description} if options.description else {}),
        "disjoint": catalog.disjoint,
        "notes": notes,
    }
    if examination.tars:
        facts["tars"] = sorted(examination.tars, key=lambda tar: (tar["role"], tar["file"]))
    if job.config.resize:
        facts["versions"] = {package: version(package) for package in _CODECS}
    return facts


# -- reports as text and as JSON --------------------------------------------------------------------------------------


def result_summary(result: BuildResult) -> dict[str, Any]:
    """Summarize a finished dataset as JSON-ready values."""
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


def result_text(result: BuildResult, told: Sequence[str] | None = None) -> str:
    """Describe a finished dataset as text: counts, rejected items, differences from the published counts, notes.

    Args:
        result: the dataset.
        told: notes that the user has already seen in a profile; a profile also states the splits. None: there was no
            profile.
    """
    manifest = result.manifest
    size = amount(sum(shard.bytes for shard in manifest.shards))
    state = "" if result.was_run else " (built before, nothing to do)"
    lines = [f"{manifest.name}: {len(manifest.shards):,} shards, {size}, in {result.out}{state}"]
    if told is not None:
        count = sum(manifest.rejected.values())
        lines += [f"{count:,} rejected, see rejected.parquet"] * bool(count)
        return "\n".join([*lines, *(f"note: {note}" for note in result.notes if note not in told)])
    for name, facts in manifest.splits.items():
        classes = ", ".join(f"{count:,} of {level}" for level, count in facts["classes"].items())
        unlabelled = f"; {facts['unlabelled']:,} without a finest label" if facts["unlabelled"] else ""
        lines.append(f"{name}: {facts['items']:,} items; classes: {classes}{unlabelled}")
    if manifest.rejected:
        lines.append("rejected, see rejected.parquet:")
        lines += _shown([f"  {count:,} {reason}" for reason, count in manifest.rejected.items()])
    if result.differences is not None:
        lines += differences_text(result.differences)
    return "\n".join([*lines, *_shown([f"note: {note}" for note in result.notes])])


def differences_text(differences: pl.DataFrame) -> list[str]:
    """Describe the differences from the published counts as text, one line each."""
    if differences.is_empty():
        return ["every published count is met."]
    rows = [
        f"  {split}, {what}: {published} published, {'not built' if found is None else f'{found:,} here'}"
        for split, what, published, found in differences.iter_rows()
    ]
    return ["differences from the published counts:", *_shown(rows)]


def _shown(lines: list[str]) -> list[str]:
    rest = len(lines) - _MOST_SHOWN
    return lines if rest <= 0 else [*lines[:_MOST_SHOWN], f"  and {rest:,} more"]
