"""What a finished unit of work leaves: a table beside which a key says what it was made from.

The file is written aside, synced and renamed, so that it is whole or absent: while it is there, the unit is done.
"""

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import polars as pl

from pipelines.stage import sync

_KEY, _FACTS = "hgld.key", "hgld.facts"


@dataclass(frozen=True)
class UnitRecord:
    """A finished unit.

    Attributes:
        key: of what determines its result (:func:`key_of`).
        table: its result.
        facts: further JSON-ready facts.
    """

    key: str
    table: pl.DataFrame
    facts: Mapping[str, Any] = field(default_factory=dict)

    def write(self, path: Path) -> None:
        """Put the record at ``path``."""
        path.parent.mkdir(parents=True, exist_ok=True)
        aside = aside_of(path)
        self.table.write_parquet(aside, metadata={_KEY: self.key, _FACTS: json.dumps(self.facts)})
        put_in_place(aside, path)


def read_facts(path: Path, key: str) -> dict[str, Any] | None:
    """The facts of the unit recorded at ``path``; None if there is none, or it was made from something else."""
    if not path.is_file():
        return None
    try:
        metadata = pl.read_parquet_metadata(path)
        facts = json.loads(metadata.get(_FACTS, "null"))
    except (pl.exceptions.PolarsError, ValueError):
        return None  # cut short by a power failure: the unit is simply done again
    return facts if metadata.get(_KEY) == key and isinstance(facts, dict) else None


def key_of(*parts: Any) -> str:
    """A hash of JSON-ready values."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True, ensure_ascii=False).encode()).hexdigest()


def aside_of(path: Path) -> Path:
    """Where a file is written before it takes its place; another one in every process."""
    return path.with_name(f".{path.name}.{os.getpid()}.part")


def put_in_place(aside: Path, path: Path) -> None:
    """Sync a file that was written aside and rename it to its place.

    The folder is not synced: a name that a power failure takes away only means that the work is done again.
    """
    sync(aside)
    aside.replace(path)
