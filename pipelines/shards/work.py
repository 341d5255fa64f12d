"""The work folder of a build of shards, the key by which a build recognises its own work, and the provenance.

A build begins only in an empty place. ``build.json`` in the work folder then says that the place is the build's, and
with which key; so files there may be replaced when the options change before the build is done. A finished dataset is
only touched again if files of it are lost. A build recognises its own files by its plans and tables, so a person's own
files stay.
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

from hgld.data.format import MANIFEST, MAX_MANIFEST_BYTES, Manifest
from hgld.errors import ConfigError, InputError, quoted, some
from hgld.files import file_lock, read_json, sync, write_atomic
from hgld.settings import key_fields
from hgld.version import __version__

from ..executor import run_units
from ..stage import Progress, json_text, key_of, plain, sha256_of
from .catalog import Catalog
from .config import ShardConfig, SourceConfig
from .output import ShardOutput

if TYPE_CHECKING:
    from .cards import DataCard

VERSION = 5  # raise it when the same images give another dataset
SCHEMA_VERSION = 1  # of build.json
_ROWS_AT_ONCE = 100_000
_CODECS = ("opencv-python-headless", "pillow", "simplejpeg")  # whose versions change the bytes of resized images
_STATE = "build.json"
_LOCK = "lock"


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
    stated = {"source": plain(key_fields(options)), "shards": plain(key_fields(config))}
    if not config.resize:
        del stated["shards"]["quality"]  # of no effect
    for name in ("test_classes", "val_classes", "merge_spellings"):
        if not stated["source"][name]:
            del stated["source"][name]  # of no effect
    return stated


def provenance(
    catalog: Catalog,
    card: "DataCard | None",
    options: SourceConfig,
    config: ShardConfig,
    tars: Sequence[dict[str, str | int]],
) -> dict[str, Any]:
    """Return the manifest's provenance; it depends on the input and options, not on the place of the files.

    Args:
        catalog: of the release.
        card: of the dataset; None for the user's own data.
        options: for reading the release.
        config: for writing the shards.
        tars: of the release: file, role, bytes, md5.
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
        work: what is done with a unit.
        units: with names.
        progress: told of every unit.
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


# -- the work folder --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class WorkFolder:
    """The folder in which a build keeps its unfinished work: records of units, plans of shards, tables."""

    path: Path

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


def work_path(output: ShardOutput, chosen: Path | None) -> Path:
    """Return the work folder of the build that writes to ``output``.

    Raises:
        ConfigError: the output is a URL and no folder was chosen.
    """
    if chosen is not None:
        return chosen.absolute() / f"shards-{hashlib.sha256(output.address.encode()).hexdigest()[:12]}"
    if not output.is_local:
        raise ConfigError(f"--out {output.root} is a URL: name a folder for the work in progress with --work DIR.")
    return output.folder / ".build"


def finished_dataset(output: ShardOutput, key: str) -> Manifest | None:
    """Return the manifest of the dataset at the output if it is complete and was built with this key.

    Raises:
        ConfigError: another dataset lies there.
        InputError: its manifest cannot be read.
    """
    manifest = _manifest_at(output)
    if manifest is None:
        return None
    if manifest.provenance.get("build_key") != key:
        raise ConfigError(
            f"{output.root} holds the dataset {quoted(manifest.name)}, built from other lists or with other "
            "options. Choose another --out, or delete that one first."
        )
    sizes = output.sizes()
    expected = {shard.name: shard.bytes for shard in manifest.shards}
    expected |= {name: facts["bytes"] for name, facts in manifest.files.items()}
    return manifest if all(sizes.get(name) == size for name, size in expected.items()) else None


def _manifest_at(output: ShardOutput) -> Manifest | None:
    data = output.read(MANIFEST, MAX_MANIFEST_BYTES)
    return None if data is None else Manifest.from_json(data, f"{output.root}/{MANIFEST}")


@contextmanager
def opened_work(path: Path, output: ShardOutput, key: str) -> Iterator[WorkFolder]:
    """Open the work folder of a build and lock it for this process.

    Shards of another key are deleted; examined units are kept, and used where they are still valid. A dataset that lost
    files is not changed yet.

    Args:
        path: of :func:`work_path`.
        output: where the dataset goes.
        key: of the build.

    Raises:
        ConfigError: the output is not empty and not this build's.
        StorageError: another process is at work there.
    """
    state = _read_state(path)
    sizes = output.sizes()
    foreign = [name for name in sizes if not name.startswith(".")]
    if foreign and not state and MANIFEST not in sizes:
        raise ConfigError(
            f"{output.root} is not empty ({some(foreign, 3)}); shards are built into an empty or new folder. Choose "
            "another --out."
        )
    path.mkdir(parents=True, exist_ok=True)
    with file_lock(path / _LOCK, f"another process is building {output.root} now; wait for it, or stop it."):
        work = WorkFolder(path)
        if state != key:
            _drop_shards(work, output, keep=())
            # before anything else changes there, so that the place is known as ours
            write_atomic(path / _STATE, json_text({"schema_version": SCHEMA_VERSION, "key": key}))
            sync(path)
            sync(path.parent)
        output.remove_parts()
        for part in path.rglob(".*.part"):
            part.unlink(missing_ok=True)
        yield work


def remove_work(path: Path) -> None:
    """Remove the work folder of a finished build, if it still exists."""
    if path.is_dir() and ((path / _STATE).is_file() or (path / _LOCK).is_file() or not any(path.iterdir())):
        for folder in (entry for entry in path.iterdir() if entry.is_dir()):
            shutil.rmtree(folder, ignore_errors=True)  # first: while build.json exists, the folder is known as ours
        shutil.rmtree(path, ignore_errors=True)


def begin_packing(work: WorkFolder, output: ShardOutput, shards: Collection[str]) -> None:
    """Clear the place for packing: remove its manifest, and shards of earlier runs that this run does not make.

    These are the shards that have a plan, and those of the manifest that have a build's names. Should the build stop in
    between, every removed shard is still named by one of the two.

    Args:
        work: with the plans of this run's shards, and of earlier runs'.
        output: where the dataset goes.
        shards: names of this run's shards.
    """
    manifest = _manifest_at(output)
    if manifest is not None:  # a dataset that lost files
        for shard in manifest.shards:
            if shard.name not in shards and re.fullmatch(rf"{shard.split}-\d{{6,}}\.tar", shard.name):
                output.remove(shard.name)
        output.remove(MANIFEST)  # while the manifest exists, the dataset is complete
        output.settle()
    _drop_shards(work, output, keep=shards)


def _drop_shards(work: WorkFolder, output: ShardOutput, *, keep: Collection[str]) -> None:
    """Remove shards that runs with this work folder began, except those to keep; each plan goes after its shard."""
    for plan in sorted(work.plans.glob("*.parquet")):
        if plan.stem not in keep:
            output.remove(plan.stem)
            (work.packed / plan.name).unlink(missing_ok=True)
            plan.unlink()


def _read_state(path: Path) -> str | None:
    """Return the key of the build that the work folder belongs to; None if there is none."""
    try:
        state = read_json(path / _STATE, kind=dict)
    except InputError:
        return None
    return state.get("key") if state.get("schema_version") == SCHEMA_VERSION else None
