"""Published results to stand beside one's own: those that hgld ships, and those of a table of the user's."""

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl

from hgld.data.tables import POLARS_FAULTS
from hgld.errors import TableError, excerpt, quoted
from hgld.published.results import PAPERS, PublishedValue, values_of

_COLUMNS = ("dataset", "method", "metric", "value", "source")
_MOST_BYTES = 16 << 20
_MOST_NAMED = 5


@dataclass(frozen=True)
class PublishedRow:
    """A table's results for one method on one dataset.

    Attributes:
        method: its name.
        source: the table, and what tells the row from others of its method.
        values: metric to value in per cent; a binary metric without a level is of the finest.
        close: whether it stands with the runs: a row of a run's recipe, or of the user's own table.
        paper: the paper's authors, title and edition; empty for the user's own.
    """

    method: str
    source: str
    values: dict[str, float]
    close: bool = False
    paper: str = ""


class PublishedResults:
    """The published results that hgld ships, and those of the user's table behind them.

    Args:
        table: a CSV of further rows: dataset, method, metric, value (per cent), source.

    Raises:
        TableError: the table cannot be read, or lacks a column.
    """

    def __init__(self, table: str | Path | None = None) -> None:
        self._name = "" if table is None else Path(table).name
        self._own = pl.DataFrame(schema=dict.fromkeys(_COLUMNS, pl.String)) if table is None else _read(Path(table))

    def of(self, dataset: str, recipes: Collection[PublishedValue] = ()) -> list[PublishedRow]:
        """Return the rows of a dataset, those of the runs' recipes and the user's first; none for no name.

        Args:
            dataset: named as in ``dataset.json``.
            recipes: values of the runs' own recipes.
        """
        if not dataset:
            return []
        rows: dict[tuple[str, ...], dict[str, float]] = {}
        closes, papers = {value.key[:-2] for value in recipes}, {}
        for value in values_of(dataset):
            if value.number is None:
                continue
            where = ", ".join(filter(None, (value.backbone, value.dim and f"{value.dim} dimensions", value.setting)))
            source = f"{PAPERS[value.paper].name} {value.table}" + (f": {where}" if where else "")
            key = (value.method, source, "close" if value.key[:-2] in closes else "")
            rows.setdefault(key, {})[value.metric if value.finest else value.name] = _percent(value)
            papers[key] = f"{PAPERS[value.paper].name}: {PAPERS[value.paper].source}."
        for row in self._own.filter(pl.col("dataset") == dataset).iter_rows(named=True):
            rows.setdefault((row["method"], row["source"], "close"), {})[row["metric"]] = row["value"]
        made = [PublishedRow(key[0], key[1], found, bool(key[2]), papers.get(key, "")) for key, found in rows.items()]
        return sorted(made, key=lambda row: not row.close)

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


def _percent(value: PublishedValue) -> float:
    """Return a value as the page shows its metric: AP in per cent, also where the paper has shares."""
    number = value.number or 0.0
    return round(100 * number, 4) if value.unit == "1" and value.metric == "AP" else number


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
    except POLARS_FAULTS as error:
        raise TableError(f"{path}: not a readable CSV table ({excerpt(error)}).") from error
    if not set(_COLUMNS) <= set(table.columns):
        raise TableError(f"{path}: columns {excerpt(', '.join(table.columns))}; expected {', '.join(_COLUMNS)}.")
    read = table.with_columns(pl.col("value").cast(pl.Float64, strict=False))
    wrong = read.select((pl.col("value").is_null() | ~pl.col("value").is_between(0, 100)).arg_true()).to_series()
    if len(wrong):
        row = int(wrong[0])
        raise TableError(f"{path}: row {row + 2}: value {quoted(table['value'][row])}; expected per cent, 0 to 100.")
    return read.select(_COLUMNS).with_columns(pl.col("dataset", "method", "source", "metric").fill_null(""))
