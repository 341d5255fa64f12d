"""The rules that make a scraped name canonical or irrelevant, kept as data in ``name_rules.yaml``."""

import re
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from hgld.errors import InputError, SchemaError

RULES = Path(__file__).with_name("name_rules.yaml")
SCHEMA_VERSION = 1


def name_key(name: str) -> str:
    """What two spellings of one name share: letters without their case."""
    return unicodedata.normalize("NFC", name.casefold())


@dataclass(frozen=True)
class Rewrite:
    """Replaces what matches the pattern."""

    pattern: re.Pattern[str]
    replacement: str
    reason: str


@dataclass(frozen=True)
class Irrelevance:
    """Leaves out the names that fully match the pattern, and the classes of these ids."""

    pattern: re.Pattern[str]
    class_ids: frozenset[str]
    reason: str


@dataclass(frozen=True)
class NameRules:
    """All rules of one file.

    >>> rules = NameRules.read()
    >>> rules.canonical("Church  building (1172-1954)")
    'Church building'
    >>> rules.canonical("county hall (")
    'county hall'
    >>> rules.irrelevance("Wikimedia category")
    'a page of the wiki, not a thing in the world'
    """

    max_length: int
    rewrites: tuple[Rewrite, ...]
    irrelevances: tuple[Irrelevance, ...]

    @classmethod
    def read(cls, path: Path = RULES) -> "NameRules":
        """Read a file of rules.

        Raises:
            SchemaError: the file is of another schema version.
            InputError: it is not YAML, or a rule lacks a field or has a pattern that is no regular expression.
        """
        try:
            data = yaml.safe_load(path.read_text(encoding="utf-8"))
        except (yaml.YAMLError, UnicodeDecodeError) as error:
            raise InputError(f"{path}: not valid YAML ({error}).") from error
        version = data.get("schema_version") if isinstance(data, dict) else None
        if version != SCHEMA_VERSION:
            raise SchemaError(
                f"{path}: schema version is {version!r}; this hgld reads rules of version {SCHEMA_VERSION}."
            )
        try:
            rewrites = tuple(
                Rewrite(_pattern(path, rule), str(rule["replacement"]), str(rule["reason"])) for rule in data["rewrite"]
            )
            irrelevances = tuple(
                Irrelevance(_pattern(path, rule), frozenset(rule.get("class_ids", ())), str(rule["reason"]))
                for rule in data["irrelevant"]
            )
            return cls(int(data["max_length"]), rewrites, irrelevances)
        except (KeyError, TypeError, AttributeError) as error:
            raise InputError(
                f"{path}: a rule is not complete ({error!r}); expected max_length, "
                "rewrite (pattern, replacement, reason) and irrelevant (pattern, reason, optional class_ids)."
            ) from error

    def canonical(self, raw: str) -> str:
        """The canonical spelling of a scraped name: NFC, every rewrite applied until nothing changes, case kept.

        Returns:
            The spelling; ``""`` if nothing is left of it. A name of more than ``max_length`` characters is no label
            and gives ``""`` as well.

        Raises:
            InputError: the rewrites undo one another and never settle.
        """
        if len(raw) > self.max_length:
            return ""
        name = raw
        for _ in range(2 * self.max_length):  # "(((" loses one parenthesis at a time
            before, name = name, unicodedata.normalize("NFC", name)
            for rule in self.rewrites:
                name = rule.pattern.sub(rule.replacement, name)
            if name == before:
                return name
        raise InputError(f"the rewrite rules never settle on {raw!r}: two of them undo each other. Change one.")

    def irrelevance(self, name: str, class_id: str | None = None) -> str | None:
        """Why a canonical name, or its class, does not say what a landmark is; None if it does."""
        key = name_key(name)
        for rule in self.irrelevances:
            if class_id in rule.class_ids or rule.pattern.fullmatch(key):
                return rule.reason
        return None


def _pattern(path: Path, rule: Mapping[str, Any]) -> re.Pattern[str]:
    try:
        return re.compile(rule["pattern"])
    except re.error as error:
        raise InputError(f"{path}: {rule['pattern']!r} is not a regular expression ({error}).") from error
