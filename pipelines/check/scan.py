"""Read whole shards from front to back, and collect the facts of every item and every error; extract nothing.

``hgld index`` makes the index from a scan, and ``hgld verify`` compares the index with the scan. One shard is one unit
of work.
"""

import hashlib
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

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

from ..shards.reading import HashedReader, check_decodes, opened_regular
from ..shards.work import run_counted
from ..stage import Progress

WRONG_SUFFIX = "wrong-suffix"  # an item with this error, and no other, stays usable
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
        "labels": pl.List(pl.Int32),
        "names": pl.List(pl.String),
        "split": pl.String,
        "levels": pl.List(pl.String),
        "box": pl.List(pl.Int32),
        "boxed": pl.Boolean,
        "source": pl.String,
    }
)
FAULTS = pl.Schema(
    {"member": pl.String, "key": pl.String, "offset": pl.Int64, "reason": pl.String, "detail": pl.String}
)


@dataclass(frozen=True)
class ShardScan:
    """Content of one shard.

    Attributes:
        name: the shard's file name.
        bytes: size of the shard in bytes.
        sha256: SHA-256 of the whole file.
        items: one row per key in order of the tar (:data:`ITEMS`). Facts that could not be read are null; ``sound`` is
            true if image and JSON are both present and without error.
        faults: one row per error (:data:`FAULTS`).
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
    """One shard to scan, and whether its images are decoded."""

    path: Path
    decode: bool

    @property
    def name(self) -> str:
        return self.path.name


def scan_shards(paths: Sequence[Path], *, decode: bool = False, workers: int, progress: Progress) -> list[ShardScan]:
    """Scan shards, several at a time if there are several workers.

    Args:
        paths: paths of the shards.
        decode: whether to decode every image.
        workers: number of processes; 0: one per core.
        progress: function called for every shard.

    Returns:
        the scans, in the order of the paths.

    Raises:
        InputError: a shard is a link or cannot be read.
        HgldError: the worker process of a shard died several times.
    """
    units = [_Unit(path, decode) for path in paths]
    scans = run_counted(_scan_shard, units, progress, "reading shards", workers=workers)
    return [scans[path.name] for path in paths]


def _scan_shard(unit: _Unit) -> ShardScan:
    samples = _Samples(unit)
    # hide Pillow's warnings about odd metadata
    with opened_regular(unit.path) as file, warnings.catch_warnings(action="ignore"):
        hashed = HashedReader(file, "sha256")
        for member, data in stream_members(hashed, where=unit.name, max_member_bytes=MAX_IMAGE_BYTES, recover=True):
            samples.add(member, data)
        sha256 = hashed.finish()
    samples.finish()
    return ShardScan(
        name=unit.name,
        bytes=hashed.bytes,
        sha256=sha256,
        items=pl.DataFrame([{name: row.get(name) for name in ITEMS} for row in samples.rows], schema=ITEMS),
        faults=pl.DataFrame(samples.faults, schema=FAULTS, orient="row"),
        ignored=samples.ignored,
    )


class _Samples:
    """Builder of rows of :data:`ITEMS`: one row per group of tar members with the same key."""

    def __init__(self, unit: _Unit) -> None:
        self.unit = unit
        self.rows: list[dict[str, Any]] = []
        self.faults: list[tuple[str, str | None, int, str, str]] = []
        self.ignored = 0
        self.seen: set[str] = set()
        self.current: dict[str, Any] = {}

    def add(self, member: Member, data: bytes) -> None:
        key, suffix = key_and_suffix(member.name)
        if member.fault is not None:
            too_large = member.kind == "file" and member.size > MAX_IMAGE_BYTES
            reason = "damaged-tar" if member.kind == "damage" else "too-large" if too_large else "unsafe-path"
            self._fault(member, key if is_safe_key(key) else None, reason, member.fault)
        elif member.kind == "directory":
            return
        elif suffix != "json" and suffix not in IMAGE_SUFFIXES:
            self.ignored += 1
        elif not is_safe_key(key):
            expected = "expected its name to be letters, digits and _ - = between single /, at most 200 of them"
            self._fault(member, None, "unsafe-path", expected)
        else:
            self._take(member, data, key, suffix)

    def _take(self, member: Member, data: bytes, key: str, suffix: str) -> None:
        if key != self.current.get("key"):
            self.finish()
            if key in self.seen:
                self._fault(member, key, "duplicate-key", "the key is already in the shard")
                return
            self.seen.add(key)
            self.current = {"key": key, "sound": True}
        is_json = suffix == "json"
        if ("labels" if is_json else "size") in self.current:
            self._spoil(member, "duplicate-member", f"a second {'JSON' if is_json else 'image'} of the key")
        elif is_json:
            self.current["labels"] = None
            try:
                facts = parse_item_json(data[: MAX_ITEM_JSON_BYTES + 1], member.name)
                self.current |= {
                    n: getattr(facts, n) for n in ("labels", "names", "split", "source", "levels", "box", "boxed")
                }
            except InputError as error:
                self._spoil(member, "bad-json", str(error))
        else:
            self._take_image(member, data, suffix)

    def _take_image(self, member: Member, data: bytes, suffix: str) -> None:
        place = {"suffix": suffix, "offset": member.offset, "size": member.size}
        self.current |= place | {"sha256": hashlib.sha256(data).hexdigest()}
        try:
            header = read_header(data)
            self.current |= {"width": header.width, "height": header.height, "orientation": header.orientation}
            if suffix not in IMAGE_FORMATS[header.format]:
                detail = f"the bytes are {header.format}, the suffix is {suffix}"
                self._fault(member, self.current["key"], WRONG_SUFFIX, detail)
            if self.unit.decode:
                check_decodes(data, header)
        except ImageError as error:
            self._spoil(member, error.reason, str(error))

    def finish(self) -> None:
        """End the row of the current key."""
        if not self.current:
            return
        whole = Member(self.current["key"], self.current.get("offset", 0), 0, "file", None)
        if "size" not in self.current:
            self._spoil(whole, "no-image", f"no member with one of the suffixes {', '.join(IMAGE_SUFFIXES)}")
        if "labels" not in self.current:
            self._spoil(whole, "no-json", "no member with the suffix json belongs to the image")
        self.rows.append(self.current)
        self.current = {}

    def _spoil(self, member: Member, reason: str, detail: str) -> None:
        self.current["sound"] = False
        self._fault(member, self.current["key"], reason, detail)

    def _fault(self, member: Member, key: str | None, reason: str, detail: str) -> None:
        self.faults.append((member.name, key, member.offset, reason, detail))
