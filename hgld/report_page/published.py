"""Published results to stand beside one's own: those that hgld ships, and those of a table of the user's."""

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl

from hgld.errors import TableError

SHIPPED = Path(__file__).with_name("published.csv")
_COLUMNS = ("dataset", "method", "metric", "value", "source")
_MOST_BYTES = 16 << 20
_MOST_NAMED = 5


@dataclass(frozen=True)
class PublishedRow:
    """A paper's results for one method on one dataset.

    Attributes:
        method: its name.
        source: the paper.
        values: metric to value in per cent; a binary metric without a level is of the finest.
    """

    method: str
    source: str
    values: dict[str, float]


class PublishedResults:
    """The published results that hgld ships, and those of the user's table behind them.

    Args:
        table: a CSV of further rows: dataset, method, metric, value (per cent), source.

    Raises:
        TableError: the table cannot be read, or lacks a column.
    """

    def __init__(self, table: str | Path | None = None) -> None:
        self._name = "" if table is None else Path(table).name
        shipped = _read(SHIPPED)
        self._own = shipped.clear() if table is None else _read(Path(table))
        self._all = pl.concat([shipped, self._own])

    def of(self, dataset: str) -> list[PublishedRow]:
        """Return the rows of a dataset, named as in ``dataset.json``, in the order of the tables; none for no name."""
        if not dataset:
            return []
        rows: dict[tuple[str, str], dict[str, float]] = {}
        for row in self._all.filter(pl.col("dataset") == dataset).iter_rows(named=True):
            rows.setdefault((row["method"], row["source"]), {})[row["metric"]] = row["value"]
        return [PublishedRow(method, source, values) for (method, source), values in rows.items()]

    def unused(self, dataset: str, shown: Collection[tuple[str, str]]) -> str:
        """Return the reason for which no row of the user's table is shown; empty where one is, or there is no table.

        Args:
            dataset: of the evaluation; empty where its report does not say it.
            shown: method and source of the rows on the page.
        """
        of_it = self._own.filter(pl.col("dataset") == dataset)
        if not self._name or any(row in shown for row in of_it.select("method", "source").iter_rows()):
            return ""
        none = f"No row of {self._name} is shown"
        if not dataset:
            return f"{none}: the report does not say its dataset. Name the dataset's directory by --data."
        if of_it.is_empty():
            found = _listed(self._own["dataset"]) or "none"
            return f"{none}: 0 of its {len(self._own)} rows are of dataset {dataset} (found: {found})."
        return (
            f"{none}: 0 of its {len(of_it)} rows of {dataset} are of a metric that was measured "
            f"(found: {_listed(of_it['metric'])})."
        )


def _listed(names: pl.Series) -> str:
    found = names.unique(maintain_order=True).to_list()
    return ", ".join(name or "(empty)" for name in found[:_MOST_NAMED]) + (", ..." if len(found) > _MOST_NAMED else "")


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
    return read.select(_COLUMNS).with_columns(pl.col("dataset", "method", "source", "metric").fill_null(""))
