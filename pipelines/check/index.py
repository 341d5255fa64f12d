"""``hgld index``: rebuild the index, hierarchy and manifest of a dataset directory from its tars alone.

Items that contradict each other about a class or the levels are refused by name; a member or item that cannot be used
is a row of ``rejected.parquet``. New files are written aside; the manifest is set aside first and the new one comes
last, so that while one is there, the files belong together, and a run that was stopped loses nothing of the earlier
one.
"""

import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import polars as pl

from hgld.data import format as files
from hgld.data import index as index_file
from hgld.data.format import BOX, REJECTED, check_levels, short
from hgld.data.index import TABLES, index_schema, with_runs
from hgld.errors import ConfigError, HgldError, InputError, StorageError, quoted
from hgld.files import put_in_place, sync
from hgld.hierarchy import Hierarchy
from hgld.tables import POLARS_FAULTS
from hgld.version import __version__

from ..shards.card_files import dataset_lock
from ..shards.croissant import croissant, facts_of_known
from ..stage import Progress, sha256_of, write_json
from .scan import WRONG_SUFFIX, ScanOptions, ShardScan, opened_regular, scan_shards
from .verify import short_runs

MOST_LEVELS = 64  # more than any taxonomy has ranks
_CLASSES, _CLASSES_AN_ITEM = 1 << 20, 100  # limits that allow a single tar of a set of a million classes


class ItemConsensus:
    """The sound items of scanned shards as one table, agreed on levels, class names and parents.

    Items that repeat a key or belong to another split than their shard are set aside.

    Attributes:
        levels: names of the levels, finest first.
        items: the items that are left, in order of the shards.
    """

    def __init__(self, scans: Sequence[ShardScan], root: Path, levels: Sequence[str] | None) -> None:
        """Gather the sound items and compare their levels, names and parents.

        Args:
            scans: in the order that the index is to have.
            root: for messages.
            levels: names for items that do not state them; else ``level_0``, ``level_1``, ...

        Raises:
            ConfigError: ``levels`` contradict the items.
            InputError: no sound item; two items that contradict each other; too many levels, or labels so far beyond
                the number of items that the tables of their classes' names would fill the memory.
        """
        self._rejected = [_faults(scan) for scan in scans]
        rows = [scan.items.with_columns(pl.lit(scan.name).alias("shard")) for scan in scans]
        self.items = pl.concat(rows).filter("sound")
        if not len(self.items):
            raise InputError(
                f"{root}: no usable item in its tars; expected KEY.jpg beside KEY.json with labels, names and split. "
                + "; ".join(self.rejected()["detail"].head(3))
            )
        self._set_aside(~pl.col("key").is_first_distinct(), "duplicate-key", "stands in an earlier shard")
        self.levels = self._settle_levels(root, levels)
        split = pl.col("split").first().over("shard")
        self._set_aside(pl.col("split") != split, "other-split", "in a shard of split", split)
        self._refuse_sparse(root)
        for c, level in enumerate(self.levels):
            known = self.items.filter(_label(c) >= 0)
            self._agree(root, known, _label(c), _name(c), f"the name of class {{}} of {quoted(level)}")
            if c + 1 < len(self.levels):
                above = f"the class of {quoted(self.levels[c + 1])} above class {{}} of {quoted(level)}"
                self._agree(root, known.filter(_label(c + 1) >= 0), _label(c), _label(c + 1), above)

    def rejected(self) -> pl.DataFrame:
        """Return members and items set aside, with the columns of ``rejected.parquet``."""
        return pl.concat(self._rejected)

    def hierarchy(self) -> Hierarchy:
        """Return the tree of the items' classes; a class that no item names is named by its number.

        Raises:
            HierarchyError: two classes of a level have the same name.
        """
        depth = range(len(self.levels))
        labels = self.items.select(_label(c).alias(str(c)) for c in depth).to_numpy()
        return Hierarchy.from_labels(labels, self.levels, [self._class_names(c) for c in depth])

    def index(self) -> pl.DataFrame:
        """Return the rows of ``index.parquet``."""
        boxed = bool(self.items["boxed"].any())
        table = self.items.select(
            *("key", "shard", "offset", "size", "split", "suffix", "width", "height", "orientation", "sha256"),
            *(_label(c).alias(level) for c, level in enumerate(self.levels)),
            *(pl.col("box").list.get(i).alias(side) for i, side in enumerate(BOX if boxed else ())),
        )
        return with_runs(table, self.levels[0]).select(index_schema(self.levels, boxes=boxed).names())

    def _settle_levels(self, root: Path, given: Sequence[str] | None) -> tuple[str, ...]:
        everywhere, stated = pl.lit(0), self.items.filter(pl.col("levels").list.len() > 0)
        self._agree(root, self.items, everywhere, pl.col("labels").list.len(), "the number of labels")
        self._agree(root, stated, everywhere, pl.col("levels").list.join(", "), "the list of levels")
        depth = len(self.items["labels"][0])
        if depth > MOST_LEVELS:
            raise InputError(
                f"{root}: the items have {depth} labels; expected one a level, and at most {MOST_LEVELS} levels. "
                "Write the tars with fewer."
            )
        if not len(stated):
            names = check_levels(given or [f"level_{c}" for c in range(depth)], "--levels")
            if len(names) != depth:
                raise ConfigError(f"--levels: {len(names)} names; the items of {root} have {depth} labels.")
            return names
        names = check_levels(stated["levels"][0].to_list(), str(root))
        if given is not None and tuple(given) != names:
            raise ConfigError(f"--levels {','.join(given)}: the tars say {','.join(names)}. Leave --levels out.")
        return names

    def _agree(self, root: Path, items: pl.DataFrame, of: pl.Expr, value: pl.Expr, what: str) -> None:
        """Refuse two items that have the same ``of`` and different values."""
        answers = items.select("shard", "key", of.alias("of"), value.alias("value"))
        answers = answers.unique(("of", "value"), keep="first", maintain_order=True)
        twice = answers.filter(pl.col("of").is_duplicated())
        if len(twice):
            first, second = twice.filter(of=twice["of"][0]).head(2).rows(named=True)
            raise InputError(
                f"{root}: {what.format(first['of'])} is {short(first['value'])} in item {quoted(first['key'])} of "
                f"{first['shard']} and {short(second['value'])} in item {quoted(second['key'])} of {second['shard']}; "
                "expected one answer. Correct the JSON of the wrong one, or leave that item out."
            )

    def _refuse_sparse(self, root: Path) -> None:
        """Refuse labels far beyond the number of items: the tables of names and parents have a row for every number."""
        most = _CLASSES + _CLASSES_AN_ITEM * len(self.items)
        labels = [self.items.select(_label(c).alias("label"))["label"] for c in range(len(self.levels))]
        largest = [max(-1, int(column.to_numpy().max())) for column in labels]
        if sum(largest) + len(largest) <= most:
            return
        c = int(np.argmax(largest))
        shard, key = self.items.select("shard", "key").row(labels[c].arg_max() or 0)
        raise InputError(
            f"{root}: {shard} has {quoted(key)} with label {largest[c]} at {quoted(self.levels[c])}; for "
            f"{len(self.items)} items, all levels together may have {most} classes. Write the tars with the classes of "
            "a level numbered from 0 without gaps, as hgld build-shards manifest does."
        )

    def _set_aside(self, wrong: pl.Expr, reason: str, detail: str, *more: pl.Expr) -> None:
        marked = self.items.with_columns(wrong.fill_null(value=False).alias("wrong"))
        out = marked.filter("wrong").select(
            "key",
            "split",
            file=pl.concat_str("shard", pl.lit("/"), "key", pl.lit("."), "suffix"),
            reason=pl.lit(reason),
            detail=pl.concat_str(pl.lit(detail), *more, separator=" "),
        )
        self._rejected.append(out)
        self.items = marked.filter(~pl.col("wrong")).drop("wrong")

    def _class_names(self, c: int) -> list[str]:
        known = self.items.filter(_label(c) >= 0).select(_label(c), _name(c)).unique("labels")
        names = [str(label) for label in range(int(np.max(known["labels"].to_numpy(), initial=-1)) + 1)]
        for label, name in known.iter_rows():
            names[label] = name or names[label]
        return names


def _label(c: int) -> pl.Expr:
    return pl.col("labels").list.get(c)


def _name(c: int) -> pl.Expr:
    return pl.col("names").list.get(c)


def _faults(scan: ShardScan) -> pl.DataFrame:
    """Return a shard's faults as rows of ``rejected.parquet``; a wrong suffix leaves an image usable: no fault."""
    splits = scan.items.select("key", "split")
    table = (
        scan.faults.filter(pl.col("reason") != WRONG_SUFFIX)
        .join(splits, on="key", how="left", maintain_order="left")
        .select(
            "key",
            "split",
            file=pl.concat_str(pl.lit(f"{scan.name}/"), "member"),
            reason="reason",
            detail=pl.concat_str("detail", pl.lit(" at offset "), "offset"),
        )
    )
    return table.cast(TABLES[REJECTED])


# -- the rebuild ------------------------------------------------------------------------------------------------------

_ASIDE = ".index.part"
_EARLIER = ".dataset.json.earlier"  # the manifest, while files are put in place
_OTHERS = (files.LISTS, files.JUDGEMENTS, files.CARD)  # files that are kept unchanged


@dataclass(frozen=True)
class RebuildResult:
    """Outcome of :func:`rebuild_index`.

    Attributes:
        manifest: the new ``dataset.json``.
        rejected: members and items that this run set aside, with the columns of ``rejected.parquet``.
        notes: for people, one line each.
    """

    manifest: files.Manifest
    rejected: pl.DataFrame
    notes: tuple[str, ...]


def rebuild_index(
    root: Path, *, levels: Sequence[str] | None = None, force: bool = False, workers: int = 1, progress: Progress
) -> RebuildResult:
    """Rebuild ``index.parquet``, ``hierarchy.parquet`` and ``dataset.json`` from the tars in ``root``.

    The order of the index is that of the tars' names. An earlier manifest only gives the dataset's name, its protocol,
    the group size and the provenance; rejected items, lists, judgements and the card stay as they are. Stopped anywhere
    and run again, it gives the same bytes.

    Args:
        root: folder with the tars.
        levels: names of the levels, finest first, for tars that do not state them; else ``level_0``, ``level_1``, ...
        force: replace a readable index that has a manifest.
        workers: shards read at a time; 0: one a core.
        progress: told of every shard.

    Raises:
        ConfigError: a readable index is there already, ``levels`` contradict the tars, or the folder's name cannot be a
            dataset's.
        InputError: no tars, no usable item in them, or items that contradict each other; nothing is changed then.
        HierarchyError: two classes of a level have the same name; nothing is changed then.
        StorageError: the disk is full or not writable, or another process is changing the dataset.
    """
    shards, name = _shards(root), _dataset_name(root)
    with dataset_lock(root):
        return _rebuild(root, name, shards, levels, force, workers, progress)


def _rebuild(
    root: Path,
    name: str,
    shards: Sequence[Path],
    levels: Sequence[str] | None,
    force: bool,
    workers: int,
    progress: Progress,
) -> RebuildResult:
    if not force:
        _refuse_readable(root)
    scans = scan_shards(shards, ScanOptions(), workers=workers, progress=progress, task="reading shards")
    consensus = ItemConsensus(scans, root, levels)
    consensus.hierarchy()  # refuses before anything is written
    try:
        manifest = _write(root, name, consensus, scans)
    except (OSError, *POLARS_FAULTS) as error:
        why = getattr(error, "strerror", None) or error
        raise StorageError(f"{root}: cannot be written ({why}). Free space there, then run again.") from error
    finally:
        shutil.rmtree(root / _ASIDE, ignore_errors=True)
    rejected = consensus.rejected()
    return RebuildResult(manifest, rejected, _notes(scans, rejected))


def _shards(root: Path) -> list[Path]:
    if not root.is_dir():
        raise InputError(f"{root}: there is no such folder. Name the folder that holds the tars.")
    found = sorted(p for p in root.iterdir() if files.is_shard_name(p.name) and p.is_file() and not p.is_symlink())
    if not found:
        raise InputError(f"{root}: no tar in it (links are not followed). Name the folder that holds the tars.")
    return found


def _dataset_name(root: Path) -> str:
    """Return the dataset's name from its manifest, or else from its folder."""
    earlier = _earlier_manifest(root)
    name = earlier.name if earlier else root.resolve().name
    if not files.is_safe_name(name):
        raise ConfigError(
            f"the folder is called {quoted(name)}, which would be the dataset's name; expected 1 to 200 printable "
            "letters. Rename the folder."
        )
    return name


def _refuse_readable(root: Path) -> None:
    if not (root / files.MANIFEST).exists():
        return  # without a manifest, the index is that of a run that was stopped
    try:
        index_file.read_index(root / files.INDEX)
    except InputError:
        return
    (root / _EARLIER).unlink(missing_ok=True)  # a run that was stopped at its very end leaves these
    shutil.rmtree(root / _ASIDE, ignore_errors=True)
    raise ConfigError(f"{root / files.INDEX}: a readable index is there already. Give --force to make it anew.")


def _write(root: Path, name: str, consensus: ItemConsensus, scans: Sequence[ShardScan]) -> files.Manifest:
    aside = root / _ASIDE
    shutil.rmtree(aside, ignore_errors=True)
    aside.mkdir()
    index, earlier = consensus.index(), _earlier_manifest(root)
    index_file.write_index(index, aside / files.INDEX, consensus.levels)
    consensus.hierarchy().to_parquet(aside / files.HIERARCHY)
    rejected = _all_rejected(root, consensus.rejected())
    rejected.write_parquet(aside / files.REJECTED)
    manifest = files.Manifest(
        name=name,
        levels=consensus.levels,
        group_size=_group_size(index, consensus.levels[0], earlier),
        splits=index_file.split_facts(index, consensus.levels),
        shards=_shard_facts(index, scans),
        files=_fingerprints([*sorted(aside.iterdir()), *(root / name for name in _OTHERS)]),
        rejected=dict(rejected["reason"].value_counts().sort("reason").iter_rows()),
        provenance={**(earlier.provenance if earlier else {}), "rebuilt": {"from": "tars", "hgld": __version__}},
        protocol=earlier.protocol if earlier else "",
    )
    write_json(
        aside / files.CROISSANT, croissant(manifest, facts_of_known(manifest), boxes=files.BOX[0] in index.columns)
    )
    manifest = replace(manifest, files={**manifest.files, **_fingerprints([aside / files.CROISSANT])})
    (aside / files.MANIFEST).write_text(manifest.to_json(), encoding="utf-8")
    _put_in_place(aside, root)
    return manifest


def _put_in_place(aside: Path, root: Path) -> None:
    """Move all files, the manifest last; each step is synced to the disk before the next."""
    if _read_manifest(root / files.MANIFEST) is not None:
        (root / files.MANIFEST).replace(root / _EARLIER)
    else:
        (root / files.MANIFEST).unlink(missing_ok=True)
    sync(root)
    for file in sorted(path for path in aside.iterdir() if path.name != files.MANIFEST):
        put_in_place(file, root / file.name)
    sync(root)
    put_in_place(aside / files.MANIFEST, root / files.MANIFEST)
    sync(root)
    (root / _EARLIER).unlink(missing_ok=True)


def _shard_facts(index: pl.DataFrame, scans: Sequence[ShardScan]) -> tuple[files.ShardFacts, ...]:
    """Return the facts of every shard; a shard without a usable item belongs to no split and is left out."""
    held = {
        shard: (split, count)
        for shard, split, count in index.group_by("shard").agg(pl.col("split").first(), pl.len()).iter_rows()
    }
    return tuple(
        files.ShardFacts(scan.name, held[scan.name][0], held[scan.name][1], scan.bytes, scan.sha256)
        for scan in scans
        if scan.name in held
    )


def _group_size(index: pl.DataFrame, finest: str, earlier: files.Manifest | None) -> int:
    """Return the earlier manifest's k if the order still supports it, else the largest k that it supports.

    The largest k is the shortest run of the classes that lie in several runs; where no class does, the longest run.
    """
    if earlier is not None and not len(short_runs(index, finest, earlier.group_size)):
        return earlier.group_size
    runs = index.filter(pl.col(finest) >= 0).group_by("split", finest, "shard", "class_run").len()
    cut = runs.filter(pl.len().over("split", finest) > 1)
    size = cut["len"].min() if len(cut) else runs["len"].max()
    return size if isinstance(size, int) else 1


def _earlier_manifest(root: Path) -> files.Manifest | None:
    """Return the present manifest, or the one that a stopped run set aside, if it can be read."""
    return _read_manifest(root / files.MANIFEST) or _read_manifest(root / _EARLIER)


def _read_manifest(path: Path) -> files.Manifest | None:
    try:
        with opened_regular(path) as file:
            return files.Manifest.from_json(file.read(files.MAX_MANIFEST_BYTES + 1))
    except HgldError:
        return None


def _all_rejected(root: Path, rejected: pl.DataFrame) -> pl.DataFrame:
    """Return the rejects of the dataset's build together with those of this run."""
    path = root / files.REJECTED
    try:
        earlier = index_file.read_table(files.REJECTED, path) if path.is_file() else rejected.clear()
    except InputError as error:
        raise InputError(
            f"{error} Move it out of the folder, then run again: it names what the build left out."
        ) from error
    return pl.concat([earlier, rejected]).unique().sort(pl.all())


def _fingerprints(paths: Sequence[Path]) -> dict[str, files.FileFacts]:
    plain = [path for path in paths if path.is_file() and not path.is_symlink()]
    return {path.name: files.FileFacts(bytes=path.stat().st_size, sha256=sha256_of(path)) for path in sorted(plain)}


def _notes(scans: Sequence[ShardScan], rejected: pl.DataFrame) -> tuple[str, ...]:
    ignored = sum(scan.ignored for scan in scans)
    misnamed = sum(scan.faults.filter(reason=WRONG_SUFFIX).height for scan in scans)
    notes = [f"{ignored} members that are neither image nor JSON were left alone."] if ignored else []
    if misnamed:
        notes.append(f"{misnamed} images are of another format than their suffix says; hgld verify names them.")
    if len(rejected):
        notes.append(f"{len(rejected)} members or items are kept aside; {files.REJECTED} names them.")
    return tuple(notes)
