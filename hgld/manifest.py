"""``dataset.json``: what a dataset directory holds, file by file, and where it came from."""

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, TypedDict

from hgld.dataset_names import (
    FILE_PATTERN,
    MANIFEST,
    SCHEMA_VERSION,
    check_levels,
    is_safe_name,
    is_safe_split,
    is_shard_name,
    json_object,
    short,
)
from hgld.errors import InputError, SchemaError

MAX_MANIFEST_BYTES = 1 << 28
_SHA256 = r"[0-9a-f]{64}"


class SplitFacts(TypedDict):
    """Counts of a split: items, shards, classes a level, and items without a finest label."""

    items: int
    shards: int
    classes: dict[str, int]
    unlabelled: int


class FileFacts(TypedDict):
    """Size and SHA-256 of a file."""

    bytes: int
    sha256: str


@dataclass(frozen=True)
class ShardFacts:
    """A shard: its file name, split, number of items, size in bytes and SHA-256."""

    name: str
    split: str
    items: int
    bytes: int
    sha256: str


@dataclass(frozen=True)
class Manifest:
    """The content of ``dataset.json``.

    Attributes:
        name: of the dataset.
        levels: finest first.
        group_size: least number of items of a class that stand together.
        splits: counts by split.
        shards: every tar, in order of the index.
        files: size and SHA-256 of every other file of the directory but the manifest.
        rejected: number of items kept aside, by reason.
        provenance: JSON-ready facts: tool version, config and its hash, seeds, sources with checksums, licence.
    """

    name: str
    levels: tuple[str, ...]
    group_size: int
    splits: Mapping[str, SplitFacts]
    shards: tuple[ShardFacts, ...]
    files: Mapping[str, FileFacts] = field(default_factory=dict)
    rejected: Mapping[str, int] = field(default_factory=dict)
    provenance: Mapping[str, Any] = field(default_factory=dict)

    def to_json(self) -> str:
        """The text of ``dataset.json``."""
        facts = {"schema_version": SCHEMA_VERSION, **asdict(self)}
        return json.dumps(facts, indent=2, ensure_ascii=False) + "\n"

    @classmethod
    def from_json(cls, text: str | bytes, where: str = MANIFEST) -> "Manifest":
        """Read what :meth:`to_json` wrote.

        Raises:
            SchemaError: of another schema version.
            InputError: not JSON of that form; names that could lead out of the directory.
        """
        if len(text) > MAX_MANIFEST_BYTES:
            raise InputError(f"{where}: more than {MAX_MANIFEST_BYTES} bytes; expected a manifest.")
        facts = json_object(text, where)
        version = facts.get("schema_version")
        if version != SCHEMA_VERSION:
            raise SchemaError(
                f"{where}: schema version is {version!r}; this hgld reads version {SCHEMA_VERSION}. "
                "Rebuild the dataset (hgld index), or install the hgld that wrote it."
            )
        return _ManifestReader(where).read(facts)


class _ManifestReader:
    """Checks a manifest's JSON part by part."""

    def __init__(self, where: str) -> None:
        self.where = where

    def read(self, facts: dict[str, Any]) -> Manifest:
        levels = self.part(facts, "levels", list)
        if not all(isinstance(level, str) for level in levels):
            raise InputError(f"{self.where}: 'levels' is {short(levels)}; expected a list of names.")
        names = check_levels(levels, self.where)
        splits = self.part(facts, "splits", dict)
        shards = tuple(self.shard(shard) for shard in self.part(facts, "shards", list))
        if len({shard.name for shard in shards}) != len(shards):
            raise InputError(f"{self.where}: a shard stands there twice; expected each once.")
        return Manifest(
            name=self.name(facts),
            levels=names,
            group_size=self.count(facts, "group_size"),
            splits={split: self.split(split, splits[split], names) for split in splits},
            shards=shards,
            files={name: self.file(name, found) for name, found in self.part(facts, "files", dict).items()},
            rejected=self.counts(self.part(facts, "rejected", dict)),
            provenance=self.part(facts, "provenance", dict),
        )

    def part(self, facts: Any, name: str, kind: type) -> Any:
        found = facts.get(name) if isinstance(facts, dict) else None
        if not isinstance(found, kind):
            raise InputError(f"{self.where}: {name!r} is {short(found)}; expected {kind.__name__}.")
        return found

    def name(self, facts: dict[str, Any]) -> str:
        found = self.part(facts, "name", str)
        if not is_safe_name(found):
            raise InputError(
                f"{self.where}: 'name' is {short(found)}; expected 1 to 200 printable letters without slashes."
            )
        return found

    def count(self, facts: Any, name: str) -> int:
        found = self.part(facts, name, int)
        if isinstance(found, bool) or found < 0:
            raise InputError(f"{self.where}: {name!r} is {found!r}; expected a number of at least 0.")
        return found

    def counts(self, facts: dict[str, Any]) -> dict[str, int]:
        return {name: self.count(facts, name) for name in facts}

    def sha256(self, facts: Any) -> str:
        found = self.part(facts, "sha256", str)
        if not re.fullmatch(_SHA256, found):
            raise InputError(f"{self.where}: 'sha256' is {short(found)}; expected 64 hex digits.")
        return found

    def split(self, name: str, facts: Any, levels: tuple[str, ...]) -> SplitFacts:
        classes = self.part(facts, "classes", dict)
        if not is_safe_split(name) or set(classes) != set(levels):
            raise InputError(f"{self.where}: split {short(name)} with counts of classes at {short(list(classes))}.")
        return SplitFacts(
            items=self.count(facts, "items"),
            shards=self.count(facts, "shards"),
            classes=self.counts(classes),
            unlabelled=self.count(facts, "unlabelled"),
        )

    def shard(self, facts: Any) -> ShardFacts:
        name, split = self.part(facts, "name", str), self.part(facts, "split", str)
        if not is_shard_name(name) or not is_safe_split(split):
            raise InputError(f"{self.where}: shard {short(name)} of split {short(split)}; expected a plain name.tar.")
        return ShardFacts(name, split, self.count(facts, "items"), self.count(facts, "bytes"), self.sha256(facts))

    def file(self, name: str, facts: Any) -> FileFacts:
        if not re.fullmatch(FILE_PATTERN, name):
            raise InputError(f"{self.where}: file {short(name)}; expected a plain file name.")
        return FileFacts(bytes=self.count(facts, "bytes"), sha256=self.sha256(facts))
