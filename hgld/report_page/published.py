"""Published results to stand beside one's own: those that hgld ships, and those of a table of the user's."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl

from hgld.errors import TableError

SHIPPED = Path(__file__).with_name("published.csv")
_COLUMNS = ("dataset", "method", "metric", "value", "source")
_MOST_BYTES = 16 << 20


@dataclass(frozen=True)
class PublishedRow:
    """What a paper reports for one method on one dataset.

    Attributes:
        method: its name.
        source: the paper.
        values: metric to value in per cent; a binary metric without a level is of the finest.
    """

    method: str
    source: str
    values: dict[str, float]


def published_rows(dataset: str, table: str | Path | None = None) -> list[PublishedRow]:
    """The published rows of a dataset, in the order of their tables.

    Args:
        dataset: its name, as ``dataset.json`` has it.
        table: a CSV of further rows: dataset, method, metric, value (per cent), source.

    Raises:
        TableError: the table cannot be read, or lacks a column.
    """
    rows: dict[tuple[str, str], dict[str, float]] = {}
    for path in [SHIPPED, *([] if table is None else [Path(table)])]:
        for row in _read(path).filter(pl.col("dataset") == dataset).iter_rows(named=True):
            rows.setdefault((row["method"], row["source"]), {})[row["metric"]] = row["value"]
    return [PublishedRow(method, source, values) for (method, source), values in rows.items()]


def _read(path: Path) -> pl.DataFrame:
    texts: dict[str, Any] = dict.fromkeys(_COLUMNS, pl.String)
    try:
        if path.stat().st_size > _MOST_BYTES:
            raise TableError(f"{path}: {path.stat().st_size} bytes; expected a table of at most {_MOST_BYTES}.")
        table = pl.read_csv(path, schema_overrides=texts)
    except OSError as error:
        raise TableError(f"{path}: cannot be read ({error.strerror or error}).") from error
    except pl.exceptions.PolarsError as error:
        raise TableError(f"{path}: not a readable CSV table ({error}).") from error
    if not set(_COLUMNS) <= set(table.columns):
        raise TableError(f"{path}: columns {', '.join(table.columns)}; expected {', '.join(_COLUMNS)}.")
    read = table.with_columns(pl.col("value").cast(pl.Float64, strict=False))
    wrong = read.select((pl.col("value").is_null() | ~pl.col("value").is_between(0, 100)).arg_true()).to_series()
    if len(wrong):
        row = int(wrong[0])
        raise TableError(f"{path}: row {row + 2}: value {table['value'][row]!r}; expected per cent, 0 to 100.")
    return read.with_columns(pl.col("method", "source", "metric").fill_null(""))
