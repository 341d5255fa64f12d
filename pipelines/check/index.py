"""``hgld index``: rebuild the index, hierarchy and manifest of a dataset directory from its tars only.

If two items contradict each other about a class or the levels, the command names both and stops. A member or item that
cannot be used becomes a row of ``rejected.parquet``. All new files are written under temporary names, so a full disk
leaves the dataset as it was. Then the earlier manifest is renamed, the new files replace the old files, and the new
manifest comes last: while a manifest exists, it fits the files next to it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl

from hgld.data import format as files
from hgld.data import index as index_file
from hgld.data.format import BOX, REJECTED, check_levels, short
from hgld.data.index import TABLES, index_schema, with_runs
from hgld.errors import ConfigError, HgldError, InputError, quoted, storage_errors
from hgld.hierarchy import Hierarchy
from hgld.tables import POLARS_FAULTS
from hgld.version import __version__

from ..shards.cards import EARLIER, dataset_lock, known_card, write_dataset
from ..shards.reading import read_manifest
from ..shards.work import remove_parts
from ..stage import Progress
from .scan import WRONG_SUFFIX, ShardScan, scan_shards
from .verify import short_runs

MOST_LEVELS = 64  # maximum number of levels; no taxonomy has as many ranks
_CLASSES, _CLASSES_AN_ITEM = 1 << 20, 100  # maximum number of classes: the first number, plus the second per item
_KEPT = (files.LISTS, files.JUDGEMENTS, files.CARD)  # files that a rebuild does not change


class ItemConsensus:
    """The usable items of scanned shards as one table, with agreed levels, class names and parents.

    Items that repeat a key, or belong to another split than their shard, are rejected.

    Attributes:
        levels: names of the levels, finest first.
        items: the items that are not rejected, in the order of the shards.
    """

    def __init__(self, scans: Sequence[ShardScan], root: Path, levels: Sequence[str] | None) -> None:
        """Collect the usable items and compare their levels, names and parents.

        Args:
            scans: scans in the order of the index.
            root: dataset directory, for messages.
            levels: names of the levels, for items that do not state their levels; else ``level0``, ``level1``, ...

        Raises:
            ConfigError: ``levels`` contradict the items.
            InputError: there is no usable item, two items contradict each other, there are too many levels, or labels
                exceed the number of items so far that the tables of class names would fill the memory.
        """
        self._root = root
        self._rejected = [_faults(scan) for scan in scans]
        self.items = pl.concat([scan.items.with_columns(shard=pl.lit(scan.name)) for scan in scans]).filter("sound")
        if not len(self.items):
            raise InputError(
                f"{root}: no usable item in its tars; expected KEY.jpg next to KEY.json with labels, names and split. "
                + "; ".join(self.rejected()["detail"].head(3))
            )
        self._set_aside(
            ~pl.col("key").is_first_distinct(), "duplicate-key", pl.lit("the key is already in an earlier shard")
        )
        self.levels = self._settle_levels(levels)
        split = pl.col("split").first().over("shard")
        self._set_aside(pl.col("split") != split, "other-split", pl.format("in a shard of split {}", split))
        self._refuse_sparse()
        for c, level in enumerate(self.levels):
            known = self.items.filter(_label(c) >= 0)
            self._agree(known, _label(c), _name(c), f"the name of class {{}} of {quoted(level)}")
            if c + 1 < len(self.levels):
                above = f"the class of {quoted(self.levels[c + 1])} above class {{}} of {quoted(level)}"
                self._agree(known.filter(_label(c + 1) >= 0), _label(c), _label(c + 1), above)

    def rejected(self) -> pl.DataFrame:
        """Return rejected members and items, with the columns of ``rejected.parquet``."""
        return pl.concat(self._rejected)

    def hierarchy(self) -> Hierarchy:
        """Return the tree of the items' classes; a class that no item names is named by its number.

        Raises:
            HierarchyError: two classes of a level have the same name.
        """
        labels, names = [], []
        for c in range(len(self.levels)):
            labels.append(self.items.select(_label(c).alias(str(c))))
            named = self.items.filter(_label(c) >= 0).select(_label(c), _name(c)).unique("labels")
            called = [str(label) for label in range(int(np.max(named["labels"].to_numpy(), initial=-1)) + 1)]
            for label, name in named.iter_rows():
                called[label] = name or called[label]
            names.append(called)
        return Hierarchy.from_labels(pl.concat(labels, how="horizontal").to_numpy(), self.levels, names)

    def index(self) -> pl.DataFrame:
        """Return the rows of ``index.parquet``."""
        boxed, has_sources = bool(self.items["boxed"].any()), bool((self.items["source"] != "").any())
        table = self.items.with_columns(
            *(_label(c).alias(level) for c, level in enumerate(self.levels)),
            *(pl.col("box").list.get(i).alias(side) for i, side in enumerate(BOX if boxed else ())),
        )
        return with_runs(table, self.levels[0]).select(
            index_schema(self.levels, boxes=boxed, sources=has_sources).names()
        )

    def _settle_levels(self, given: Sequence[str] | None) -> tuple[str, ...]:
        everywhere, stated = pl.lit(0), self.items.filter(pl.col("levels").list.len() > 0)
        self._agree(self.items, everywhere, pl.col("labels").list.len(), "the number of labels")
        self._agree(stated, everywhere, pl.col("levels").list.join(", "), "the list of levels")
        depth = len(self.items["labels"][0])
        if depth > MOST_LEVELS:
            raise InputError(
                f"{self._root}: the items have {depth} labels; expected at least 1 and at most {MOST_LEVELS} labels, "
                "one per level. Write the tars with such labels."
            )
        if not len(stated):
            names = check_levels(given or [f"level{c}" for c in range(depth)], "--levels")
            if len(names) != depth:
                raise ConfigError(
                    f"--levels has {len(names)} names, but the items of {self._root} have {depth} labels."
                )
            return names
        names = check_levels(stated["levels"][0].to_list(), str(self._root))
        if given is not None and tuple(given) != names:
            raise ConfigError(f"--levels {','.join(given)}: the tars name the levels {','.join(names)}. Omit --levels.")
        return names

    def _agree(self, items: pl.DataFrame, of: pl.Expr, value: pl.Expr, what: str) -> None:
        """Raise an error if items with the same value of ``of`` have different values of ``value``."""
        answers = items.select("shard", "key", of.alias("of"), value.alias("value"))
        answers = answers.unique(("of", "value"), keep="first", maintain_order=True)
        twice = answers.filter(pl.col("of").is_duplicated())
        if len(twice):
            both = twice.filter(of=twice["of"][0]).head(2).iter_rows(named=True)
            said = [f"{short(row['value'])} in item {quoted(row['key'])} of {row['shard']}" for row in both]
            about = what.replace("{}", str(twice["of"][0]))
            raise InputError(
                f"{self._root}: {about} is {' and '.join(said)}; expected the same in all items. Correct the JSON of "
                "the wrong item, or remove that item."
            )

    def _refuse_sparse(self) -> None:
        """Raise an error for labels far beyond the number of items: the tables of names have a row for every number."""
        most = _CLASSES + _CLASSES_AN_ITEM * len(self.items)
        largest = [max(-1, *self.items.select(_label(c).max()).row(0)) for c in range(len(self.levels))]
        if sum(largest) + len(largest) <= most:
            return
        c = int(np.argmax(largest))
        shard, key = self.items.filter(_label(c) == largest[c]).select("shard", "key").row(0)
        raise InputError(
            f"{self._root}: {shard} has {quoted(key)} with label {largest[c]} at {quoted(self.levels[c])}; for "
            f"{len(self.items)} items, all levels together may have {most} classes. Write the tars with the classes of "
            "a level numbered from 0 without gaps, as hgld build-shards manifest does."
        )

    def _set_aside(self, wrong: pl.Expr, reason: str, detail: pl.Expr) -> None:
        file = pl.format("{}/{}.{}", "shard", "key", "suffix")
        marked = self.items.with_columns(wrong=wrong.fill_null(value=False), file=file, detail=detail)
        out = marked.filter("wrong").select("key", "split", "file", pl.lit(reason).alias("reason"), "detail")
        self._rejected.append(out)
        self.items = marked.filter(~pl.col("wrong")).drop("wrong", "file", "detail")


def _label(c: int) -> pl.Expr:
    return pl.col("labels").list.get(c)


def _name(c: int) -> pl.Expr:
    return pl.col("names").list.get(c)


def _faults(scan: ShardScan) -> pl.DataFrame:
    """Return a shard's errors as rows of ``rejected.parquet``; images with a wrong suffix are not rejected."""
    splits = scan.items.select("key", "split")
    table = scan.faults.filter(pl.col("reason") != WRONG_SUFFIX).join(
        splits, on="key", how="left", maintain_order="left"
    )
    file, detail = pl.format("{}/{}", pl.lit(scan.name), "member"), pl.format("{} at offset {}", "detail", "offset")
    return table.select("key", "split", file.alias("file"), "reason", detail.alias("detail")).cast(TABLES[REJECTED])


# -- the rebuild ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class RebuildResult:
    """Outcome of :func:`rebuild_index`.

    Attributes:
        manifest: the new ``dataset.json``.
        rejected: members and items that this run rejected, with the columns of ``rejected.parquet``.
        notes: notes for the user, one line each.
    """

    manifest: files.Manifest
    rejected: pl.DataFrame
    notes: tuple[str, ...]


def rebuild_index(
    root: Path, *, levels: Sequence[str] | None = None, force: bool = False, workers: int = 1, progress: Progress
) -> RebuildResult:
    """Rebuild ``index.parquet``, ``hierarchy.parquet`` and ``dataset.json`` from the tars in ``root``.

    The index has the order of the tars' names. An earlier manifest only gives the dataset's name, its protocol, the
    group size and the provenance; rejected items, lists, judgements and the card stay as they are. If the function is
    stopped anywhere and called again, it writes the same bytes.

    Args:
        root: folder with the tars.
        levels: names of the levels, finest first, for tars that do not state their levels; else ``level0``, ``level1``,
            ...
        force: whether to replace a readable index that has a manifest.
        workers: number of shards read at a time; 0: one per core.
        progress: function called for every shard.

    Raises:
        ConfigError: a readable index exists already, ``levels`` contradict the tars, or the folder's name is not valid
            for a dataset.
        InputError: there are no tars, no usable items, or items that contradict each other; nothing is changed then.
        HierarchyError: two classes of a level have the same name; nothing is changed then.
        StorageError: the disk is full or not writable, or another process is changing the dataset.
    """
    entries = sorted(root.iterdir()) if root.is_dir() else []
    shards = [p for p in entries if files.is_shard_name(p.name) and p.is_file() and not p.is_symlink()]
    if not shards:
        raise InputError(f"{root}: no tar in it (links are not followed). Give the folder that holds the tars.")
    earlier = _earlier_manifest(root)
    name = earlier.name if earlier else root.resolve().name
    if not files.is_safe_name(name):
        raise ConfigError(
            f"the folder is called {quoted(name)}, which would be the dataset's name; expected 1 to 200 printable "
            "characters. Rename the folder."
        )
    with dataset_lock(root):
        if not force:
            _refuse_readable(root)
        scans = scan_shards(shards, workers=workers, progress=progress)
        consensus = ItemConsensus(scans, root, levels)
        consensus.hierarchy()  # if class names contradict each other, fail before anything is written
        remove_parts(root)
        with storage_errors(f"write to {root}", "Free space, then run the same command again.", *POLARS_FAULTS):
            manifest = _write(root, name, consensus, scans)
    rejected, notes = consensus.rejected(), []
    if ignored := sum(scan.ignored for scan in scans):
        notes.append(f"{ignored} members that are neither image nor JSON were ignored.")
    if misnamed := sum(scan.faults.filter(reason=WRONG_SUFFIX).height for scan in scans):
        notes.append(f"{misnamed} images are of another format than their suffix says; hgld verify names them.")
    if len(rejected):
        notes.append(f"{len(rejected)} members or items are rejected; {files.REJECTED} names them.")
    return RebuildResult(manifest, rejected, tuple(notes))


def _refuse_readable(root: Path) -> None:
    if not (root / files.MANIFEST).exists():
        return  # without a manifest, the index comes from an interrupted run and may be replaced
    try:
        index_file.read_index(root / files.INDEX)
    except InputError:
        return
    (root / EARLIER).unlink(missing_ok=True)  # a run that stopped after writing the new manifest left this file
    raise ConfigError(f"{root / files.INDEX}: there is already a readable index. Pass --force to replace it.")


def _write(root: Path, name: str, consensus: ItemConsensus, scans: Sequence[ShardScan]) -> files.Manifest:
    """Write the files of the dataset; while they are replaced, the earlier manifest has another name."""
    index, earlier = consensus.index(), _earlier_manifest(root)
    rejected = _all_rejected(root, consensus.rejected())
    # Match scans to shards by name: a shard without a usable item has a scan but is not in the index.
    scanned = {scan.name: scan for scan in scans}
    shards = [
        files.ShardFacts(shard, split, count, scanned[shard].bytes, scanned[shard].sha256)
        for shard, split, count in index.group_by("shard").agg(pl.first("split"), pl.len()).sort("shard").iter_rows()
    ]
    manifest = files.Manifest(
        name=name,
        levels=consensus.levels,
        group_size=_group_size(index, consensus.levels[0], earlier),
        splits={},
        shards=tuple(shards),
        rejected=dict(rejected["reason"].value_counts().sort("reason").iter_rows()),
        provenance={**(earlier.provenance if earlier else {}), "rebuilt": {"from": "tars", "hgld": __version__}},
        protocol=earlier.protocol if earlier else "",
    )
    return write_dataset(
        *(root, index, consensus.hierarchy(), {REJECTED: rejected}, manifest, known_card(manifest)),
        keep=_KEPT,
    )


def _group_size(index: pl.DataFrame, finest: str, earlier: files.Manifest | None) -> int:
    """Return k, the minimum number of items of a class that are adjacent.

    The result is the earlier manifest's k if the items are still in such an order. Otherwise it is the length of the
    shortest run of a class with several runs. If no class has several runs, it is the length of the longest run.
    """
    if earlier is not None and not len(short_runs(index, finest, earlier.group_size)):
        return earlier.group_size
    runs = index.filter(pl.col(finest) >= 0).group_by("split", finest, "shard", "class_run").len()
    cut = runs.filter(pl.len().over("split", finest) > 1)
    size = cut["len"].min() if len(cut) else runs["len"].max()
    return size if isinstance(size, int) else 1


def _earlier_manifest(root: Path) -> files.Manifest | None:
    """Return the present manifest, or the manifest that a stopped run renamed; None if it cannot be read."""
    return _manifest_at(root / files.MANIFEST) or _manifest_at(root / EARLIER)


def _manifest_at(path: Path) -> files.Manifest | None:
    try:
        return read_manifest(path)
    except HgldError:
        return None


def _all_rejected(root: Path, rejected: pl.DataFrame) -> pl.DataFrame:
    """Return the items that the dataset's build rejected, and the items that this run rejected."""
    path = root / files.REJECTED
    try:
        earlier = index_file.read_table(files.REJECTED, path) if path.is_file() else rejected.clear()
    except InputError as error:
        raise InputError(
            f"{error} The file lists the items that the build rejected. Move it out of the folder, then run again."
        ) from error
    return pl.concat([earlier, rejected]).unique().sort(pl.all())
