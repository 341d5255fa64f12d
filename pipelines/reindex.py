"""``hgld index``: the index, the hierarchy and the manifest of a dataset directory, made anew from its tars alone.

What the items say is taken by majority where they contradict each other; a member or item that cannot be used is a row
of ``rejected.parquet``. New files are written aside; the manifest is set aside first and the new one comes last, so
that while one is there, the files belong together, and a run that was stopped loses nothing of the earlier one.
"""

import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import polars as pl

import hgld
from hgld import dataset_files as files
from hgld.errors import ConfigError, HgldError, InputError, StorageError
from pipelines.croissant import croissant, facts_of_known
from pipelines.item_consensus import ItemConsensus
from pipelines.progress import Progress
from pipelines.shard_scan import WRONG_SUFFIX, ScanOptions, ShardScan, opened_regular, scan_shards
from pipelines.stage import sha256_of, sync, write_json
from pipelines.verify_index import short_runs

_ASIDE = ".index.part"
_EARLIER = ".dataset.json.earlier"  # the manifest, while files are put in place
_OTHERS = (files.LISTS, files.JUDGEMENTS, files.CARD)  # what is kept as it is


@dataclass(frozen=True)
class Rebuilt:
    """What was made.

    Attributes:
        manifest: the new ``dataset.json``.
        rejected: members and items that this run set aside, with the columns of ``rejected.parquet``.
        notes: what a person should know, one line each.
    """

    manifest: files.Manifest
    rejected: pl.DataFrame
    notes: tuple[str, ...]


def rebuild_index(
    root: Path, *, levels: Sequence[str] | None = None, force: bool = False, workers: int = 1, progress: Progress
) -> Rebuilt:
    """Make ``index.parquet``, ``hierarchy.parquet`` and ``dataset.json`` from the tars in ``root``.

    The order of the index is that of the tars' names. An earlier manifest only gives the dataset's name, the group
    size and the provenance; rejected items, lists, judgements and the card stay as they are. Stopped anywhere and run
    again, it gives the same bytes.

    Args:
        root: folder with the tars.
        levels: names of the levels, finest first, for tars that do not state them; else ``level_0``, ``level_1``, ...
        force: replace an index that can be read and that a manifest speaks of.
        workers: shards read at a time; 0: one a core.
        progress: told of every shard.

    Raises:
        ConfigError: a readable index is there already, ``levels`` contradict the tars, or the folder's name cannot be a
            dataset's.
        InputError: no tars, or no usable item in them; nothing is changed then.
        HierarchyError: two classes of a level have the same name; nothing is changed then.
        StorageError: the disk is full or not writable.
    """
    shards, name = _shards(root), _name(root)
    if not force:
        _refuse_readable(root)
    scans = scan_shards(shards, ScanOptions(), workers=workers, progress=progress, task="reading shards")
    consensus = ItemConsensus(scans, root, levels)
    consensus.hierarchy()  # refuses before anything is written
    try:
        manifest = _write(root, name, consensus, scans)
    except (OSError, pl.exceptions.PolarsError) as error:
        why = getattr(error, "strerror", None) or error
        raise StorageError(f"{root}: cannot be written ({why}). Free space there, then run again.") from error
    finally:
        shutil.rmtree(root / _ASIDE, ignore_errors=True)
    rejected = consensus.rejected()
    return Rebuilt(manifest, rejected, _notes(scans, rejected))


def _shards(root: Path) -> list[Path]:
    if not root.is_dir():
        raise InputError(f"{root}: there is no such folder. Name the folder that holds the tars.")
    found = sorted(p for p in root.iterdir() if files.is_shard_name(p.name) and p.is_file() and not p.is_symlink())
    if not found:
        raise InputError(f"{root}: no tar in it (links are not followed). Name the folder that holds the tars.")
    return found


def _name(root: Path) -> str:
    """What the dataset is called: as its manifest says, else as its folder."""
    earlier = _earlier_manifest(root)
    name = earlier.name if earlier else root.resolve().name
    if not files.is_safe_name(name):
        raise ConfigError(
            f"the folder is called {name!r}, and the dataset would be called as it; expected 1 to 200 printable "
            "letters. Rename the folder."
        )
    return name


def _refuse_readable(root: Path) -> None:
    if not (root / files.MANIFEST).exists():
        return  # a run that was stopped leaves an index of its own
    try:
        files.read_index(root / files.INDEX)
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
    files.write_index(index, aside / files.INDEX, consensus.levels)
    consensus.hierarchy().to_parquet(aside / files.HIERARCHY)
    rejected = _all_rejected(root, consensus.rejected())
    rejected.write_parquet(aside / files.REJECTED)
    manifest = files.Manifest(
        name=name,
        levels=consensus.levels,
        group_size=_group_size(index, consensus.levels[0], earlier),
        splits=files.split_facts(index, consensus.levels),
        shards=_shard_facts(index, scans),
        files=_fingerprints([*sorted(aside.iterdir()), *(root / name for name in _OTHERS)]),
        rejected=dict(rejected["reason"].value_counts().sort("reason").iter_rows()),
        provenance={**(earlier.provenance if earlier else {}), "rebuilt": {"from": "tars", "hgld": hgld.__version__}},
    )
    write_json(
        aside / files.CROISSANT, croissant(manifest, facts_of_known(manifest.name), boxes=files.BOX[0] in index.columns)
    )
    manifest = replace(manifest, files={**manifest.files, **_fingerprints([aside / files.CROISSANT])})
    (aside / files.MANIFEST).write_text(manifest.to_json(), encoding="utf-8")
    _put_in_place(aside, root)
    return manifest


def _put_in_place(aside: Path, root: Path) -> None:
    """Move all files, the manifest last; the system writes each step to the disk before the next."""
    for file in aside.iterdir():
        sync(file)
    if _read_manifest(root / files.MANIFEST) is not None:
        (root / files.MANIFEST).replace(root / _EARLIER)
    else:
        (root / files.MANIFEST).unlink(missing_ok=True)
    sync(root)
    for file in sorted(path for path in aside.iterdir() if path.name != files.MANIFEST):
        file.replace(root / file.name)
    sync(root)
    (aside / files.MANIFEST).replace(root / files.MANIFEST)
    sync(root)
    (root / _EARLIER).unlink(missing_ok=True)


def _shard_facts(index: pl.DataFrame, scans: Sequence[ShardScan]) -> tuple[files.ShardFacts, ...]:
    """Facts of every shard; one without a usable item belongs to no split and is left out."""
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
    """The earlier manifest's k if the order still serves it, else the largest k that it serves.

    That is the shortest run of the classes that lie in several runs; where no class does, the longest run.
    """
    if earlier is not None and not len(short_runs(index, finest, earlier.group_size)):
        return earlier.group_size
    runs = index.filter(pl.col(finest) >= 0).group_by("split", finest, "shard", "group").len()
    cut = runs.filter(pl.len().over("split", finest) > 1)
    size = cut["len"].min() if len(cut) else runs["len"].max()
    return size if isinstance(size, int) else 1


def _earlier_manifest(root: Path) -> files.Manifest | None:
    """The manifest that is there, or that a run which was stopped has set aside, if it can be read."""
    return _read_manifest(root / files.MANIFEST) or _read_manifest(root / _EARLIER)


def _read_manifest(path: Path) -> files.Manifest | None:
    try:
        with opened_regular(path) as file:
            return files.Manifest.from_json(file.read(files.MAX_MANIFEST_BYTES + 1))
    except HgldError:
        return None


def _all_rejected(root: Path, rejected: pl.DataFrame) -> pl.DataFrame:
    """What the dataset's build and this run set aside."""
    path = root / files.REJECTED
    try:
        earlier = files.read_table(files.REJECTED, path) if path.is_file() else rejected.clear()
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
