"""The classes that a build has at the levels above its groups, of which a decision may set one."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import polars as pl

from hgld.errors import TableError, excerpt
from hgld.files import read_json
from hgld.tables import POLARS_FAULTS, read_parquet

from ...levels.levels import LANDMARKS
from .grouping import Classes

LEVELS = "levels.parquet"


def classes_above(details: Mapping[str, Any], labels: pl.DataFrame | None) -> Classes:
    """Return the classes of every level above the groups, finest level first.

    Args:
        details: the top-level stage's details: ``levels`` and ``tops``; those of landmarks where it has none.
        labels: its ``levels.parquet``: the classes of the levels that come of the data.
    """
    above = list(details.get("levels", LANDMARKS.names))[2:]
    found: dict[str, tuple[str, ...]] = dict.fromkeys(above, ())
    if labels is not None:
        rows = labels.select("level", "label").drop_nulls().unique().sort("level", "label").group_by("level")
        found |= {level[0]: tuple(part["label"].to_list()) for level, part in rows if level[0] in found}
    if above and (tops := tuple(details.get("tops", LANDMARKS.top))):
        found[above[-1]] = tops
    return found


def read_classes_above(stage: Path) -> Classes:
    """Read the same from the folder of the top-level stage.

    Raises:
        TableError: its files cannot be read as the build writes them.
    """
    try:
        details = read_json(stage / "done.json").get("details", {})
        table = read_parquet(stage / LEVELS) if (stage / LEVELS).is_file() else None
        return classes_above(details, table)
    except (OSError, ValueError, AttributeError, TypeError, RecursionError, *POLARS_FAULTS) as error:
        raise TableError(f"{stage}: cannot be read as the build writes it ({excerpt(error)}). Build again.") from error
