"""Items that a build leaves out because a list says so: ``hgld audit`` writes such lists, or people do."""

from dataclasses import replace
from pathlib import Path

import polars as pl

from hgld.data.format import short
from hgld.errors import TableError, some
from hgld.tables import CsvText

from .catalog import Catalog

KEY, REASON = "key", "reason"
EXCLUDED = "excluded"
_LONGEST_REASON = 500
_MOST_NAMED = 5


def without_excluded(catalog: Catalog, file: Path) -> Catalog:
    """Return a catalog without the items of a list; each is kept among the dropped ones with its reason.

    Args:
        catalog: of the release.
        file: CSV with a column ``key``, the items' keys as the dataset's index has them, and maybe one ``reason``.
            Other columns are ignored. Keys that are no items are named in a note.

    Raises:
        TableError: the list cannot be read, has an empty key, or names no item at all; or no item is left.
    """
    reasons = _read(file)
    items = catalog.items
    out = items.filter(pl.col("key").is_in(list(reasons)))
    unknown = sorted(set(reasons) - set(out["key"]))
    if out.is_empty():
        raise TableError(
            f"{file}: none of its {len(reasons):,} keys is an item of {catalog.name!r}, as {short(unknown[0])}; "
            f"expected keys such as {short(items['key'][0])}, those of the dataset's index.parquet. Is it the list of "
            "another dataset?"
        )
    if len(out) == len(items):
        raise TableError(f"{file}: excludes all {len(items):,} items of {catalog.name!r}. Leave some.")
    kept = items.filter(~pl.col("key").is_in(out["key"].implode()))
    dropped = out.select(
        "file",
        "split",
        reason=pl.lit(EXCLUDED),
        detail=pl.Series([f"{key}: {reasons[key]}" if reasons[key] else key for key in out["key"]], dtype=pl.String),
    )
    before = [] if catalog.dropped is None else [catalog.dropped.select(dropped.columns)]
    notes = [f"{len(out):,} items are left out because {file.name} excludes them."]
    if unknown:
        named = some(map(short, unknown), _MOST_NAMED)
        notes.append(f"{len(unknown):,} keys of {file.name} are no items of this build: {named}.")
    return replace(
        catalog.with_items(kept),
        dropped=pl.concat([*before, dropped]),
        notes=(*catalog.notes, *notes),
        sources=(*catalog.sources, file),
    )


def _read(file: Path) -> dict[str, str]:
    """Return the reason of every key; empty where none is given."""
    table = CsvText.read(file)
    columns = [KEY, REASON] if REASON in table.columns else [KEY]
    reasons: dict[str, str] = {}
    for line, (key, *reason) in table.select(columns):
        if not key.strip():
            raise TableError(f"{file}, line {line}: an empty key; expected the key of an item. Delete the line.")
        text = " ".join(" ".join(reason).split())
        reasons.setdefault(key.strip(), text if len(text) <= _LONGEST_REASON else f"{text[:_LONGEST_REASON]}...")
    if not reasons:
        raise TableError(f"{file}: no rows below the header; expected one key a row. Leave --exclude out.")
    return reasons
