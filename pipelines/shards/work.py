"""The folder of a dataset while it is built, the key by which a build recognises its own work, and the provenance.

A build begins only in an empty folder. ``build.json`` in its subfolder ``.build`` then says that the folder is the
build's, and with which key; so files there may be replaced when the options change before the build is done. A finished
dataset is only touched again if files of it are lost. A build recognises its own files by its plans and tables, so a
person's own files stay.
"""

import hashlib
import re
import shutil
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import polars as pl

from hgld.data.format import MANIFEST, Manifest
from hgld.errors import ConfigError, InputError, StorageError, quoted, some
from hgld.files import PART, existing_parent, file_lock, read_json, sync, write_atomic
from hgld.settings import key_fields
from hgld.version import __version__

from ..executor import run_units
from ..stage import Progress, json_text, key_of, plain, sha256_of
from .catalog import Catalog
from .config import ShardConfig, SourceConfig
from .reading import read_manifest

if TYPE_CHECKING:
    from .cards import DataCard

VERSION = 6  # raise it when the same images give another dataset
SCHEMA_VERSION = 1  # of build.json
_ROWS_AT_ONCE = 100_000
_CODECS = ("opencv-python-headless", "pillow", "simplejpeg")  # whose versions change the bytes of resized images
_STATE = "build.json"
_LOCK = "lock"
_MARGIN = 64 << 20  # bytes of tables and other files beside the images


def build_key(catalog: Catalog, options: SourceConfig, config: ShardConfig) -> str:
    """Return a digest of everything that determines a dataset except the images' bytes, which each unit checks."""
    tables = [_digest(table) for table in (catalog.items, catalog.lists, catalog.judgements, catalog.dropped)]
    return key_of(VERSION, catalog.name, catalog.levels, catalog.protocol, tables, _config(options, config))


def _digest(table: pl.DataFrame | None) -> str | None:
    """Return a digest of a table's columns and rows, in any order."""
    if table is None:
        return None
    columns = sorted(table.columns)
    digest = hashlib.sha256("\n".join(columns).encode())
    for part in table.select(columns).sort(columns).iter_slices(_ROWS_AT_ONCE):
        digest.update(part.write_csv().encode())
    return digest.hexdigest()


def _config(options: SourceConfig, config: ShardConfig) -> dict[str, Any]:
    return {"source": plain(key_fields(options)), "shards": plain(key_fields(config))}


def provenance(
    catalog: Catalog,
    card: "DataCard | None",
    options: SourceConfig,
    config: ShardConfig,
    tars: Sequence[dict[str, str | int]],
) -> dict[str, Any]:
    """Return the manifest's provenance; it depends on the input and options, not on the place of the files.

    Args:
        catalog: catalog of the release.
        card: card of the dataset; None for the user's own data.
        options: options of reading the release.
        config: options of writing the shards.
        tars: facts of the release's tars: file, role, bytes, md5.
    """
    stated = _config(options, config)
    facts = {
        "hgld": __version__,
        "config": stated,
        "config_hash": key_of(stated),
        "build_key": build_key(catalog, options, config),
        "seeds": {"seed": options.seed},
        "sources": [
            {"file": path.name, "bytes": path.stat().st_size, "sha256": sha256_of(path)}
            for path in sorted(catalog.sources, key=lambda path: path.name)
        ],
        "licence": card.licence if card else options.license or "not stated",
        **({"description": options.description} if options.description else {}),
        "disjoint": catalog.disjoint,
        "notes": list(catalog.notes),
    }
    if tars:
        facts["tars"] = sorted(tars, key=lambda tar: (tar["role"], tar["file"]))
    if config.resize:
        facts["versions"] = {package: version(package) for package in _CODECS}
    return facts


def run_counted(
    work: Callable[[Any], Any], units: Sequence[Any], progress: Progress, task: str, done: int = 0, **execution: Any
) -> dict[str, Any]:
    """Do all units by :func:`hgld.pipelines.executor.run_units`, and tell ``progress`` of each.

    Args:
        work: function that processes a unit.
        units: units with names.
        progress: called for every unit.
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


@dataclass(frozen=True)
class WorkFolder:
    """The folder of a dataset, and the one in it for unfinished work."""

    out: Path

    @property
    def path(self) -> Path:
        """All unfinished work."""
        return self.out / ".build"

    @property
    def examined(self) -> Path:
        """Records and spools of examined units."""
        return self.path / "examined"

    @property
    def plans(self) -> Path:
        """Plans of shards, ``SHARD.parquet`` for each that was begun: its items in order."""
        return self.path / "plans"

    @property
    def packed(self) -> Path:
        """Records of packed shards."""
        return self.path / "packed"

    @property
    def tables(self) -> Path:
        """The dataset's other files, before they are put in place."""
        return self.path / "tables"

    def drop_shards(self, *, keep: Collection[str]) -> None:
        """Remove shards that earlier runs began, except those to keep; each plan goes after its shard."""
        for plan in sorted(self.plans.glob("*.parquet")):
            if plan.stem not in keep:
                (self.out / plan.stem).unlink(missing_ok=True)
                (self.packed / plan.name).unlink(missing_ok=True)
                plan.unlink()


def sizes_of(folder: Path) -> dict[str, int]:
    """Return the bytes of every entry of a folder by name (folders: 0); empty if it does not exist."""
    found = sorted(folder.iterdir()) if folder.is_dir() else []
    return {path.name: path.stat().st_size if path.is_file() else 0 for path in found}


def finished_dataset(out: Path, key: str) -> Manifest | None:
    """Return the manifest of the dataset in a folder if it is complete and was built with this key.

    Raises:
        ConfigError: another dataset lies there.
        InputError: its manifest cannot be read.
    """
    manifest = _manifest_in(out)
    if manifest is None:
        return None
    if manifest.provenance.get("build_key") != key:
        raise ConfigError(
            f"{out} holds the dataset {quoted(manifest.name)}, built from other lists or with other options. Choose "
            "another --out, or delete that one first."
        )
    expected = {shard.name: shard.bytes for shard in manifest.shards}
    expected |= {name: facts["bytes"] for name, facts in manifest.files.items()}
    return manifest if expected.items() <= sizes_of(out).items() else None


def _manifest_in(out: Path) -> Manifest | None:
    return read_manifest(out / MANIFEST) if (out / MANIFEST).is_file() else None


@contextmanager
def opened_work(out: Path, key: str) -> Iterator[WorkFolder]:
    """Open the work folder of a build and lock it for this process.

    Shards of another key are deleted; examined units are kept, and used where they are still valid. A dataset that lost
    files is not changed yet.

    Args:
        out: folder of the dataset.
        key: key of the build.

    Raises:
        ConfigError: the folder is not empty and not this build's.
        StorageError: another process is at work there.
    """
    work, there = WorkFolder(out), sizes_of(out)
    state = _read_state(work.path)
    foreign = [name for name in there if not name.startswith(".")]
    if foreign and not state and MANIFEST not in there:
        raise ConfigError(
            f"{out} is not empty ({some(foreign, 3)}); shards are built into an empty or new folder. Choose another "
            "--out."
        )
    work.path.mkdir(parents=True, exist_ok=True)
    with file_lock(work.path / _LOCK, f"another process is building {out} now; wait for it, or stop it."):
        if state != key:
            work.drop_shards(keep=())
            # before anything else changes there, so that the folder is known as ours
            write_atomic(work.path / _STATE, json_text({"schema_version": SCHEMA_VERSION, "key": key}))
            sync(work.path)
            sync(out)
        remove_parts(out)
        yield work


def remove_parts(out: Path) -> None:
    """Remove partial files that killed writers left in a dataset's folder or its work folder."""
    for part in [*out.glob(f".*{PART}"), *WorkFolder(out).path.rglob(f".*{PART}")]:
        part.unlink(missing_ok=True)


def remove_work(out: Path) -> None:
    """Remove the work folder of a finished build, if it still exists."""
    path = WorkFolder(out).path
    if path.is_dir() and ((path / _STATE).is_file() or (path / _LOCK).is_file() or not any(path.iterdir())):
        for folder in (entry for entry in path.iterdir() if entry.is_dir()):
            shutil.rmtree(folder, ignore_errors=True)  # first: while build.json exists, the folder is known as ours
        shutil.rmtree(path, ignore_errors=True)


def begin_packing(work: WorkFolder, shards: Collection[str]) -> None:
    """Clear the folder for packing: remove its manifest, and shards of earlier runs that this run does not make.

    These are the shards that have a plan, and those of the manifest that have a build's names. Should the build stop in
    between, every removed shard is still named by one of the two.

    Args:
        work: work folder with the plans of this run's shards and of earlier runs'.
        shards: names of this run's shards.
    """
    manifest = _manifest_in(work.out)
    if manifest is not None:  # a dataset that lost files
        for shard in manifest.shards:
            if shard.name not in shards and re.fullmatch(rf"{shard.split}-\d{{6,}}\.tar", shard.name):
                (work.out / shard.name).unlink(missing_ok=True)
        (work.out / MANIFEST).unlink()  # while the manifest exists, the dataset is complete
        sync(work.out)
    work.drop_shards(keep=shards)


def _read_state(path: Path) -> str | None:
    """Return the key of the build that the work folder belongs to; None if there is none."""
    try:
        state = read_json(path / _STATE, kind=dict)
    except InputError:
        return None
    return state.get("key") if state.get("schema_version") == SCHEMA_VERSION else None


# -- the disk ---------------------------------------------------------------------------------------------------------


def check_space(out: Path, needed: int) -> None:
    """Refuse a build for which the disk has too little free space.

    Args:
        out: folder that the bytes will be written to; it need not exist yet.
        needed: number of bytes.

    Raises:
        StorageError: the disk has too little; the message says how much is free and how much is missing.
    """
    free, needed = shutil.disk_usage(existing_parent(out)).free, needed + _MARGIN
    if free < needed:
        raise StorageError(
            f"{out}: {amount(free)} are free and about {amount(needed)} needed. Free {amount(needed - free)}, or "
            "choose a folder of another disk."
        )


def amount(count: int) -> str:
    """Format a number of bytes for people.

    >>> amount(999), amount(166_000_000_000)
    ('999 B', '166.0 GB')
    """
    value, unit = float(count), "B"
    for larger in ("kB", "MB", "GB", "TB"):
        if value < 1000:
            break
        value, unit = value / 1000, larger
    return f"{value:.0f} B" if unit == "B" else f"{value:.1f} {unit}"
