"""Read shards whole, front to back: the facts of every item, and every fault. Nothing is extracted or followed.

``hgld index`` makes the index from a scan, ``hgld verify`` compares the index with it. One shard is one unit of work.
"""

import hashlib
import os
import stat
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path
from typing import Any, BinaryIO

import polars as pl

from hgld.data.format import (
    IMAGE_FORMATS,
    IMAGE_SUFFIXES,
    MAX_IMAGE_BYTES,
    MAX_ITEM_JSON_BYTES,
    is_safe_key,
    key_and_suffix,
    parse_item_json,
)
from hgld.data.images import read_header
from hgld.data.tar import Member, stream_members
from hgld.errors import ImageError, InputError

from ..executor import run_units
from ..shards.image_facts import check_decodes
from ..stage import Progress

SCHEMA = pl.Schema(dict.fromkeys(("kind", "split", "shard", "member", "found", "expected"), pl.String))


class Findings:
    """The faults of a dataset, one row a finding, in the order in which they are found."""

    def __init__(self) -> None:
        self._parts: list[pl.DataFrame] = []

    def add(
        self,
        kind: str,
        found: object,
        expected: object,
        *,
        split: str | None = None,
        shard: str | None = None,
        member: str | None = None,
    ) -> None:
        """Add one finding.

        Args:
            kind: of the finding; findings are counted by it.
            found: the state found.
            expected: the state expected.
            split: of the item or shard, where there is one.
            shard: a file of the dataset directory.
            member: key of an item, name of a tar's member, or subject of a table's row.
        """
        row = (kind, split, shard, member, str(found), str(expected))
        self._parts.append(pl.DataFrame([row], schema=SCHEMA, orient="row"))

    def add_rows(
        self, rows: pl.DataFrame, kind: str | pl.Expr, found: pl.Expr, expected: pl.Expr | str, member: str = "key"
    ) -> None:
        """Add one finding a row of a table that has the columns split, shard (each if it applies) and ``member``."""
        if not len(rows):
            return
        place = {name: pl.col(name) if name in rows.columns else pl.lit(None) for name in ("split", "shard")}
        self._parts.append(
            rows.select(
                kind=pl.lit(kind) if isinstance(kind, str) else kind,
                **place,
                member=pl.col(member),
                found=found.cast(pl.String),
                expected=pl.lit(expected) if isinstance(expected, str) else expected.cast(pl.String),
            ).cast(SCHEMA)
        )

    def table(self) -> pl.DataFrame:
        """Return all findings so far (:data:`SCHEMA`)."""
        return pl.concat([pl.DataFrame(schema=SCHEMA), *self._parts])


# -- scanning ---------------------------------------------------------------------------------------------------------

WRONG_SUFFIX = "wrong-suffix"  # the one fault that leaves an item sound

ITEMS = pl.Schema(
    {
        "key": pl.String,
        "sound": pl.Boolean,
        "suffix": pl.String,
        "offset": pl.Int64,
        "size": pl.Int64,
        "sha256": pl.String,
        "width": pl.Int32,
        "height": pl.Int32,
        "orientation": pl.Int8,
        "hash": pl.UInt64,
        "labels": pl.List(pl.Int32),
        "names": pl.List(pl.String),
        "split": pl.String,
        "levels": pl.List(pl.String),
        "box": pl.List(pl.Int32),
        "boxed": pl.Boolean,
    }
)
FAULTS = pl.Schema(
    {"member": pl.String, "key": pl.String, "offset": pl.Int64, "reason": pl.String, "detail": pl.String}
)


@dataclass(frozen=True)
class ScanOptions:
    """Checks beyond headers, checksums and JSON."""

    decode: bool = False
    hashes: bool = False


@dataclass(frozen=True)
class ShardScan:
    """Content of one shard.

    Attributes:
        name: the shard's file name.
        bytes: its size.
        sha256: of the whole file.
        items: one row a key in order of the tar (:data:`ITEMS`). Facts that could not be read are null; ``sound`` is
            true if image and JSON are both present and without fault.
        faults: one row a fault (:data:`FAULTS`).
        ignored: number of members that are neither image nor JSON.
    """

    name: str
    bytes: int
    sha256: str
    items: pl.DataFrame
    faults: pl.DataFrame
    ignored: int


@dataclass(frozen=True)
class _Unit:
    """One shard to scan."""

    path: Path
    options: ScanOptions

    @property
    def name(self) -> str:
        return self.path.name


def scan_shards(
    paths: Sequence[Path], options: ScanOptions, *, workers: int, progress: Progress, task: str
) -> list[ShardScan]:
    """Scan shards, several at a time if there are workers.

    Args:
        paths: the shards.
        options: further checks.
        workers: processes; 0: one a core.
        progress: told of every shard.
        task: name of the work for ``progress``.

    Returns:
        the scans, in the order of the paths.

    Raises:
        InputError: a shard is a link or cannot be read.
        HgldError: a unit's worker died several times.
    """
    scans: dict[str, ShardScan] = {}

    def done(unit: _Unit, scan: ShardScan) -> None:
        scans[unit.name] = scan
        progress(task, len(scans), len(paths))

    progress(task, 0, len(paths))
    run_units(_scan_unit, [_Unit(path, options) for path in paths], done, workers=workers)
    return [scans[path.name] for path in paths]


def _scan_unit(unit: _Unit) -> ShardScan:
    return scan_shard(unit.path, unit.options)


@contextmanager
def opened_regular(path: Path) -> Iterator[BufferedReader]:
    """Open a file of a dataset directory for reading; never through a link, never a device or pipe.

    Raises:
        InputError: it is no regular file, or cannot be read.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError as error:
        what = "a symbolic link, which is not followed" if path.is_symlink() else error.strerror
        raise InputError(f"{path}: cannot be read ({what}). Put the file itself there.") from error
    with open(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise InputError(f"{path}: not a regular file. Put the file itself there.")
        yield file


def scan_shard(path: Path, options: ScanOptions) -> ShardScan:
    """Read one shard whole.

    Raises:
        InputError: it is a link or cannot be read.
    """
    with opened_regular(path) as file, warnings.catch_warnings(action="ignore"):  # Pillow warns about odd metadata
        hashed = _Hashed(file)
        samples = _Samples(path.name, options)
        for member, data in stream_members(hashed, where=path.name, max_member_bytes=MAX_IMAGE_BYTES, recover=True):
            samples.add(member, data)
        while hashed.read(1 << 20):  # read what follows the end mark
            pass
        return ShardScan(
            name=path.name,
            bytes=hashed.bytes,
            sha256=hashed.digest.hexdigest(),
            items=pl.DataFrame(samples.finished(), schema=ITEMS, orient="row"),
            faults=pl.DataFrame(samples.faults, schema=FAULTS, orient="row"),
            ignored=samples.ignored,
        )


class _Hashed:
    """A file that is read once, from front to back, and hashed meanwhile."""

    def __init__(self, file: BinaryIO) -> None:
        self.file, self.digest, self.bytes = file, hashlib.sha256(), 0

    def read(self, size: int, /) -> bytes:
        data = self.file.read(size)
        self.digest.update(data)
        self.bytes += len(data)
        return data


class _Samples:
    """Builder of a row of :data:`ITEMS` from the members of one key."""

    def __init__(self, shard: str, options: ScanOptions) -> None:
        self.shard, self.options = shard, options
        self.rows: list[dict[str, Any]] = []
        self.faults: list[dict[str, Any]] = []
        self.ignored = 0
        self.seen: set[str] = set()
        self.current: dict[str, Any] = {}

    def add(self, member: Member, data: bytes) -> None:
        if member.kind == "directory" and member.fault is None:
            return
        key, suffix = key_and_suffix(member.name)
        if member.fault is not None:
            self._fault(member, key if is_safe_key(key) else None, _reason(member), member.fault)
        elif suffix != "json" and suffix not in IMAGE_SUFFIXES:
            self.ignored += 1
        elif not is_safe_key(key):
            expected = "its name to be letters, digits and _ - = between single /, at most 200 of them"
            self._fault(member, None, "unsafe-path", f"expected {expected}")
        else:
            self._take(member, data, key, suffix)

    def _take(self, member: Member, data: bytes, key: str, suffix: str) -> None:
        if key != self.current.get("key"):
            self._finish()
            if key in self.seen:
                self._fault(member, key, "duplicate-key", "the key stands in the shard already")
                return
            self.seen.add(key)
            self.current = {"key": key, "sound": True}
        kind = "labels" if suffix == "json" else "size"
        if kind in self.current:
            self._spoil(member, "duplicate-member", f"a second {'JSON' if suffix == 'json' else 'image'} of the key")
        elif suffix == "json":
            self._take_json(member, data)
        else:
            self._take_image(member, data, suffix)

    def _take_json(self, member: Member, data: bytes) -> None:
        self.current["labels"] = None
        try:
            facts = parse_item_json(data[: MAX_ITEM_JSON_BYTES + 1], member.name)
        except InputError as error:
            self._spoil(member, "bad-json", str(error))
            return
        for name in ("labels", "names", "split", "levels", "box", "boxed"):
            self.current[name] = getattr(facts, name)

    def _take_image(self, member: Member, data: bytes, suffix: str) -> None:
        place = {"suffix": suffix, "offset": member.offset, "size": member.size}
        self.current |= place | {"sha256": hashlib.sha256(data).hexdigest()}
        try:
            header = read_header(data)
            self.current |= {"width": header.width, "height": header.height, "orientation": header.orientation}
            if suffix not in IMAGE_FORMATS[header.format]:
                detail = f"the bytes are {header.format}, the suffix is {suffix}"
                self._fault(member, self.current["key"], WRONG_SUFFIX, detail)
            if self.options.decode:
                check_decodes(data, header)
            if self.options.hashes:
                from .near_duplicates import perceptual_hash

                self.current["hash"] = perceptual_hash(data, header)
        except ImageError as error:
            self._spoil(member, error.reason, str(error))

    def finished(self) -> list[dict[str, Any]]:
        self._finish()
        return [{name: row.get(name) for name in ITEMS} for row in self.rows]

    def _finish(self) -> None:
        if not self.current:
            return
        whole = Member(self.current["key"], self.current.get("offset", 0), 0, "file", None)
        if "size" not in self.current:
            self._spoil(whole, "no-image", f"no member with one of the suffixes {', '.join(IMAGE_SUFFIXES)}")
        if "labels" not in self.current:
            self._spoil(whole, "no-json", "no member with the suffix json beside the image")
        self.rows.append(self.current)
        self.current = {}

    def _spoil(self, member: Member, reason: str, detail: str) -> None:
        self.current["sound"] = False
        self._fault(member, self.current["key"], reason, detail)

    def _fault(self, member: Member, key: str | None, reason: str, detail: str) -> None:
        self.faults.append(
            {"member": member.name, "key": key, "offset": member.offset, "reason": reason, "detail": detail}
        )


def _reason(member: Member) -> str:
    if member.kind == "damage":
        return "damaged-tar"
    return "too-large" if member.kind == "file" and member.size > MAX_IMAGE_BYTES else "unsafe-path"
