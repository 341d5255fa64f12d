"""Stages: units of work that run once, write all of their files or none, and record their inputs.

A stage reports its progress to a function that may display it.
"""

import errno
import hashlib
import json
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, is_dataclass
from io import FileIO
from pathlib import Path
from typing import Any

import polars as pl

from hgld.data.format import FileFacts
from hgld.errors import ConfigError, InputError, SchemaError, StorageError, quoted, some
from hgld.files import file_lock, read_json, sync, write_atomic, write_folder
from hgld.tables import POLARS_FAULTS, parquet_metadata
from hgld.terminal import Progress as Progress
from hgld.terminal import silent as silent

# -- records of finished units -------------------------------------------------------------------------------------
#
# A finished unit of work leaves a table with the key of its inputs. The file is written aside, synced and renamed, so
# that it is whole or absent: while it exists, the unit is done.

_KEY, _FACTS = "hgld.key", "hgld.facts"


@dataclass(frozen=True)
class UnitRecord:
    """The record of a finished unit of work.

    Attributes:
        key: hash of everything that determines the result (:func:`key_of`).
        table: the result of the unit; it becomes the content of the parquet file.
        facts: further JSON-ready facts.
    """

    key: str
    table: pl.DataFrame
    facts: Mapping[str, Any] = field(default_factory=dict)

    def write(self, path: Path) -> None:
        """Write the record to ``path``, completely or not at all."""
        path.parent.mkdir(parents=True, exist_ok=True)
        metadata = {_KEY: self.key, _FACTS: json.dumps(self.facts)}
        write_atomic(path, lambda aside: self.table.write_parquet(aside, metadata=metadata), racing=True)


def read_facts(path: Path, key: str) -> dict[str, Any] | None:
    """Return the facts of the unit recorded at ``path``; None if there is no record or its key differs."""
    if not path.is_file():
        return None
    try:
        metadata = parquet_metadata(path)
        facts = json.loads(metadata.get(_FACTS, "null"))
    except (*POLARS_FAULTS, ValueError):
        return None  # a power failure may truncate the file; then the unit is done again
    return facts if metadata.get(_KEY) == key and isinstance(facts, dict) else None


def key_of(*parts: Any) -> str:
    """Return a hash of JSON-ready values."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True, ensure_ascii=False).encode()).hexdigest()


# -- stages --------------------------------------------------------------------------------------------------------
# A stage writes into a temporary folder, which is then synced, renamed and marked done with a key. The key
# is a hash of the stage's name, its code's version, its config and the contents of its inputs. So a stopped stage
# leaves all of its output or nothing, and a stage with the same key does not run again.

SCHEMA_VERSION = 1
DONE = "done.json"
_DISK_FAULTS = {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EFBIG, errno.EIO}


@dataclass(frozen=True)
class StageResult:
    """The report of a stage's work: counts, drops, notes and details.

    Attributes:
        counts: counts to display, in their order.
        dropped: number of excluded members per reason; ``dropped.parquet`` lists the members.
        notes: warnings for the user, one line each.
        details: further JSON-ready facts for the provenance (an encoder, a chosen k).
    """

    counts: Mapping[str, int | float] = field(default_factory=dict)
    dropped: Mapping[str, int] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    details: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class StageRun:
    """A finished stage.

    Attributes:
        name: the stage's name.
        directory: the folder of its files.
        was_run: whether the stage ran in this call; False if an earlier run had the same key.
        record: the content of its ``done.json``.
    """

    name: str
    directory: Path
    was_run: bool
    record: Mapping[str, Any]

    @property
    def result(self) -> StageResult:
        """The report of the stage's work, from the record."""
        record = self.record
        return StageResult(record["counts"], record["dropped"], tuple(record["notes"]), record["details"])

    def path(self, file: str) -> Path:
        """Return the path of one of the stage's files."""
        return self.directory / file


Work = Callable[[Path], StageResult]


def files_of(stages: Mapping[str, StageRun], *files: str) -> dict[str, Path]:
    """Return the paths of files of finished stages, each named ``stage/file``."""
    return {file: stages[stage].path(name) for file in files for stage, _, name in [file.partition("/")]}


def sha256_of(path: Path) -> str:
    """Return the SHA-256 of a file's bytes, in hexadecimal."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def fingerprint(path: Path) -> FileFacts:
    """Return size and SHA-256 of a file, as records state them."""
    return FileFacts(bytes=path.stat().st_size, sha256=sha256_of(path))


def plain(value: Any) -> Any:
    """Return a JSON-ready copy of a config: dataclasses become objects, paths become text, tuples become lists."""
    if is_dataclass(value) and not isinstance(value, type):
        return plain(asdict(value))
    if isinstance(value, Mapping):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        items = sorted(value) if isinstance(value, set | frozenset) else value
        return [plain(v) for v in items]
    return str(value) if isinstance(value, Path) else value


def run_stage(
    name: str,
    root: Path,
    *,
    version: int,
    config: Any,
    inputs: Mapping[str, Path],
    work: Work,
    began: float | None = None,
) -> StageRun:
    """Run ``work`` for the stage ``name`` under ``root``, unless it was done already with the same key.

    Args:
        name: name of the stage, and of its directory ``root/name``.
        root: the build's directory of stages.
        version: number that has to be raised when the stage's code makes other files from the same inputs.
        config: a frozen dataclass or JSON-ready mapping of what changes the output (no paths, no worker counts).
        inputs: files that the stage reads, by role; the key depends on their contents, not on their paths.
        work: function that writes the files into the given folder and returns a :class:`StageResult`.
        began: start of the stage's preparation (``time.time()``), from which the stage's seconds are counted.

    Raises:
        InputError: an input cannot be read.
        SchemaError: another version of hgld wrote the stage's record.
        StorageError: the disk is full or not writable; no incomplete file stays.
        HgldError: ``work`` raises an error about its inputs.
    """
    directory = root / name
    key, stated = _key(name, version, config, inputs)
    if (done := _read_done(directory, key)) is not None:
        return StageRun(name, directory, was_run=False, record=done)
    started = time.time() if began is None else began

    def fill(aside: Path) -> dict[str, Any]:
        result = work(aside)
        files = sorted(path for path in aside.rglob("*") if path.is_file())
        return {
            "schema_version": SCHEMA_VERSION,
            "stage": name,
            "key": key,
            **stated,
            "counts": plain(result.counts),
            "dropped": plain(result.dropped),
            "notes": list(result.notes),
            "details": plain(result.details),
            "outputs": {path.relative_to(aside).as_posix(): fingerprint(path) for path in files},
            "times": {"started": round(started, 3), "seconds": round(time.time() - started, 3)},
        }

    with storage_errors(f"stage {quoted(name)}", root):
        record = write_folder(directory, fill)
        write_atomic(directory / DONE, json_text(record))
        sync(directory)
    return StageRun(name, directory, was_run=True, record=record)


@contextmanager
def storage_errors(who: str, root: Path) -> Iterator[None]:
    """Turn an error of the disk below ``root`` into a :class:`StorageError`; errors of other files pass unchanged.

    Args:
        who: subject of the message.
        root: folder that is written to.
    """
    try:
        yield
    except (OSError, *POLARS_FAULTS) as error:
        if isinstance(error, StorageError) or not _is_of_storage(error, root):
            raise
        raise StorageError(
            f"{who} could not write to {root}: {getattr(error, 'strerror', None) or error} "
            f"({getattr(error, 'filename', None) or root}). Free space or choose another --out, then run the same "
            "command again: finished work is kept."
        ) from error


def _is_of_storage(error: BaseException, root: Path) -> bool:
    """Tell whether an error comes from the folder that is written to, rather than from a file that the work reads."""
    number = getattr(error, "errno", None)
    if number is None:  # polars states the system's error only in its text
        stated = re.search(r"\(os error (\d+)\)", str(error))
        number = int(stated[1]) if stated else None
    if number in _DISK_FAULTS:
        return True
    name = getattr(error, "filename", None)
    place = Path(os.fsdecode(name)) if isinstance(name, str | bytes) else None
    return place is not None and (place in (root, *root.parents) or root in place.parents)


@contextmanager
def own_folder(out: Path, marker: str, what: str) -> Iterator[FileIO]:
    """Make a folder with a marker, and lock it against other processes until this context or process ends.

    Raises:
        ConfigError: ``out`` is a file, or a folder with files but without the marker.
        StorageError: the folder cannot be written, or another process holds it.
    """
    if out.exists() and not out.is_dir():
        raise ConfigError(f"--out {out} is a file; expected a folder, which is created if it is missing.")
    if out.is_dir() and not (out / marker).is_file() and (found := sorted(path.name for path in out.iterdir())):
        raise ConfigError(
            f"--out {out} holds files that are not a {what}'s ({some(found, 3)}). Choose a new or empty folder, or "
            f"the folder of an earlier {what}."
        )
    try:
        out.mkdir(parents=True, exist_ok=True)
        if not (out / marker).exists():
            (out / marker).touch()
    except OSError as error:
        raise StorageError(
            f"cannot write to --out {out}: {error.strerror}. Choose a folder that you may write to."
        ) from error
    with file_lock(
        out / marker, f"another {what} is running in {out}. Wait for it, or choose another --out."
    ) as opened:
        yield opened


def write_dropped(directory: Path, rows: pl.DataFrame) -> dict[str, int]:
    """Write the excluded rows of a stage, with their ``reason``, to ``dropped.parquet``; return counts by reason."""
    rows.write_parquet(directory / "dropped.parquet")
    tally = rows.group_by("reason").len().sort("reason")
    return dict(zip(tally["reason"].to_list(), tally["len"].to_list(), strict=True))


def json_text(data: Any) -> str:
    """Return indented JSON, with keys in the order given."""
    return json.dumps(data, indent=2, ensure_ascii=False, sort_keys=False) + "\n"


def write_json(path: Path, data: Any) -> None:
    """Write :func:`json_text` as UTF-8."""
    path.write_text(json_text(data), encoding="utf-8")


def _key(name: str, version: int, config: Any, inputs: Mapping[str, Path]) -> tuple[str, dict[str, Any]]:
    hashes = {}
    for role, path in sorted(inputs.items()):
        try:
            hashes[role] = sha256_of(path)
        except OSError as error:
            raise InputError(
                f"stage {quoted(name)} cannot read its input {quoted(role)} ({path}): {error.strerror}. "
                "Restore it, or run the same command again to make the files of earlier stages."
            ) from error
    stated = {"version": version, "config": plain(config), "inputs": hashes}
    text = json.dumps({"stage": name, **stated}, sort_keys=True, ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest(), stated


def _read_done(directory: Path, key: str) -> dict[str, Any] | None:
    """Return the record of a finished stage with this key and unchanged files, else None."""
    marker = directory / DONE
    if not marker.is_file():
        return None
    try:
        record = read_json(marker, kind=dict)
    except ValueError:
        return None  # a power failure may truncate the record; then the stage runs again
    if record.get("schema_version") != SCHEMA_VERSION:
        raise SchemaError(
            f"{marker}: schema version is {quoted(record.get('schema_version'))}; this hgld reads version "
            f"{SCHEMA_VERSION}. Build into a new folder."
        )
    return record if record.get("key") == key and is_intact(directory, record["outputs"]) else None


def is_intact(directory: Path, outputs: Mapping[str, Mapping[str, Any]]) -> bool:
    """Tell whether a folder holds the files of a record unchanged."""
    for name, facts in outputs.items():
        file = directory / name
        if not file.is_file() or file.stat().st_size != facts["bytes"] or sha256_of(file) != facts["sha256"]:
            return False
    return True
