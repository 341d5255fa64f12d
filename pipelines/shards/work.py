"""The folder of a dataset while it is built, and the key by which a build recognises its own files.

A build begins only in an empty folder. The file ``.build/build.json`` in it then says that the folder belongs to a
build, and states the build's key. So files in the folder may be replaced when the options change before the build is
done. A finished dataset is changed only if it lost files. A build deletes only shards that have a plan or are in the
manifest, so other files of the user stay.
"""

import hashlib
import shutil
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import polars as pl

from hgld.data.format import MANIFEST, Manifest
from hgld.errors import ConfigError, InputError, StorageError, quoted, some
from hgld.files import PART, existing_parent, file_lock, read_json, sync, write_atomic
from hgld.settings import key_fields

from ..executor import run_units
from ..stage import Progress, json_text, key_of, plain
from .catalog import Catalog
from .config import ShardConfig, SourceConfig
from .reading import read_manifest

VERSION = 6  # increase it if a change builds a different dataset from the same images
SCHEMA_VERSION = 1  # schema version of build.json
_ROWS_AT_ONCE = 100_000
_STATE = "build.json"
_MARGIN = 64 << 20  # bytes that tables and other files may need in addition to the images


def stated_options(options: SourceConfig, config: ShardConfig) -> dict[str, Any]:
    """Return the options that can change the bytes of a dataset."""
    return {"source": plain(key_fields(options)), "shards": plain(key_fields(config))}


def build_key(catalog: Catalog, options: SourceConfig, config: ShardConfig) -> str:
    """Return a digest of everything that determines a dataset, except the images' bytes (units check them)."""
    tables = [_digest(table) for table in (catalog.items, catalog.lists, catalog.judgements, catalog.dropped)]
    stated = stated_options(options, config)
    return key_of(VERSION, catalog.name, catalog.levels, catalog.protocol, tables, stated)


def _digest(table: pl.DataFrame | None) -> str | None:
    """Return a digest of a table's columns and rows, in any order."""
    if table is None:
        return None
    columns = sorted(table.columns)
    digest = hashlib.sha256("\n".join(columns).encode())
    for part in table.select(columns).sort(columns).iter_slices(_ROWS_AT_ONCE):
        digest.update(part.write_csv().encode())
    return digest.hexdigest()


def run_counted(
    work: Callable[[Any], Any], units: Sequence[Any], progress: Progress, task: str, done: int = 0, **execution: Any
) -> dict[str, Any]:
    """Run all units with :func:`hgld.pipelines.executor.run_units`, and report each to ``progress``.

    Args:
        work: function that processes a unit.
        units: units of work; each has an attribute ``name``.
        progress: function called for every unit.
        task: name of the work for ``progress``.
        done: number of further units that were done before.
        execution: executor, workers and address.

    Returns:
        the result of every unit by its name.
    """
    results: dict[str, Any] = {}

    def finished(unit: Any, result: Any) -> None:
        results[unit.name] = result
        progress(task, done + len(results), done + len(units))

    progress(task, done, done + len(units))
    run_units(work, units, finished, **execution)
    return results


# -- the folder -------------------------------------------------------------------------------------------------------


class WorkFolder:
    """The folder of a dataset, and the folder in it for unfinished work.

    Attributes:
        out: folder of the dataset.
        path: folder of all unfinished work.
        examined: records and spools of examined units.
        plans: ``SHARD.parquet`` for each shard that was begun: its items in order.
        packed: records of packed shards.
    """

    def __init__(self, out: Path) -> None:
        self.out, self.path = out, out / ".build"
        self.examined, self.plans, self.packed = (self.path / name for name in ("examined", "plans", "packed"))

    def drop_shards(self, *, keep: Collection[str]) -> None:
        """Remove shards that earlier runs began, except the shards to keep; remove each plan after its shard."""
        for plan in sorted(self.plans.glob("*.parquet")):
            if plan.stem not in keep:
                (self.out / plan.stem).unlink(missing_ok=True)
                (self.packed / plan.name).unlink(missing_ok=True)
                plan.unlink()


def sizes_of(folder: Path) -> dict[str, int]:
    """Return the bytes of every entry of a folder by name (folders: 0); empty if the folder does not exist."""
    found = sorted(folder.iterdir()) if folder.is_dir() else []
    return {path.name: path.stat().st_size if path.is_file() else 0 for path in found}


def finished_dataset(out: Path, key: str) -> Manifest | None:
    """Return the manifest of the dataset in a folder if it is complete and was built with this key.

    Raises:
        ConfigError: the folder holds another dataset.
        InputError: the manifest of the dataset in the folder cannot be read.
    """
    if not (out / MANIFEST).is_file():
        return None
    manifest = read_manifest(out / MANIFEST)
    if manifest.provenance.get("build_key") != key:
        raise ConfigError(
            f"{out} holds the dataset {quoted(manifest.name)}, built from other lists or with other options. Choose "
            "another --out, or delete that dataset first."
        )
    expected = {shard.name: shard.bytes for shard in manifest.shards}
    expected |= {name: facts["bytes"] for name, facts in manifest.files.items()}
    return manifest if expected.items() <= sizes_of(out).items() else None


@contextmanager
def opened_work(out: Path, key: str) -> Iterator[WorkFolder]:
    """Open the work folder of a build and lock it for this process.

    Shards of another key are deleted; examined units are kept, and used if they are still valid. A dataset that lost
    files is not changed yet.

    Args:
        out: folder of the dataset.
        key: key of the build.

    Raises:
        ConfigError: the folder is not empty and does not belong to this build.
        StorageError: another process is working in the folder.
    """
    work, there = WorkFolder(out), sizes_of(out)
    state = _read_state(work.path / _STATE)
    foreign = [name for name in there if not name.startswith(".")]
    if foreign and not state and MANIFEST not in there:
        raise ConfigError(
            f"{out} is not empty ({some(foreign, 3)}); shards are built into an empty or new folder. Choose another "
            "--out."
        )
    work.path.mkdir(parents=True, exist_ok=True)
    with file_lock(work.path / "lock", f"another process is building {out} now; wait for it, or stop it."):
        if state != key:
            work.drop_shards(keep=())
            # write the key before anything else changes, so that a stopped build recognises the folder as its own
            write_atomic(work.path / _STATE, json_text({"schema_version": SCHEMA_VERSION, "key": key}))
            sync(work.path)
            sync(out)
        remove_parts(out)
        yield work


def remove_parts(out: Path) -> None:
    """Remove partial files that a killed build left in a dataset's folder or its work folder."""
    for part in [*out.glob(f".*{PART}"), *WorkFolder(out).path.rglob(f".*{PART}")]:
        part.unlink(missing_ok=True)


def begin_packing(work: WorkFolder, shards: Collection[str]) -> None:
    """Clear the folder for packing: remove its manifest, and shards of earlier runs that this run does not make.

    Shards of earlier runs have a plan or are in the manifest. If the build stops in between, a plan or the manifest
    still names every shard that must be removed.

    Args:
        work: work folder with the plans of the shards of this run and of earlier runs.
        shards: names of this run's shards.
    """
    manifest = work.out / MANIFEST
    if manifest.is_file():  # the dataset was finished, but lost files
        for name in {shard.name for shard in read_manifest(manifest).shards}.difference(shards):
            (work.out / name).unlink(missing_ok=True)
        manifest.unlink()  # a manifest says that the dataset is complete, so it is removed before the rebuild
        sync(work.out)
    work.drop_shards(keep=shards)


def _read_state(path: Path) -> str | None:
    """Return the key of the build that a work folder belongs to; None if it belongs to no build."""
    try:
        state = read_json(path, kind=dict)
    except InputError:
        return None
    return state.get("key") if state.get("schema_version") == SCHEMA_VERSION else None


# -- free space on the disk -------------------------------------------------------------------------------------------


def check_space(out: Path, needed: int) -> None:
    """Raise an error if the disk has too little free space for a dataset.

    Args:
        out: folder that the bytes will be written to; it need not exist yet.
        needed: number of bytes that the build needs.

    Raises:
        StorageError: the disk has too little space; the message says how much is free and how much is missing.
    """
    free, needed = shutil.disk_usage(existing_parent(out)).free, needed + _MARGIN
    if free < needed:
        raise StorageError(
            f"{out}: the disk has {amount(free)} of free space, but the build needs about {amount(needed)}. Free "
            f"{amount(needed - free)}, or choose a folder on another disk."
        )


def amount(count: int) -> str:
    """Format a number of bytes as readable text.

    >>> amount(999), amount(166_000_000_000)
    ('999 B', '166.0 GB')
    """
    value, unit = float(count), "B"
    for larger in ("kB", "MB", "GB", "TB"):
        if value < 1000:
            break
        value, unit = value / 1000, larger
    return f"{value:.0f} B" if unit == "B" else f"{value:.1f} {unit}"
