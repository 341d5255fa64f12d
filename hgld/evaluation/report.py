"""Reports: results of evaluations, comparisons of reports, and their Markdown text."""

import html
import json
import math
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from hgld.errors import ConfigError, InputError, SchemaError, excerpt, quoted
from hgld.evaluation.protocols import is_per_cent
from hgld.evaluation.trained_on import trained_on_text
from hgld.files import read_json, write_atomic
from hgld.tables import read_parquet, write_table
from hgld.terminal import printable

# -- escaped text -----------------------------------------------------------------------------------------------------


def number(value: float, digits: int, undefined: str = "undefined") -> str:
    """Format a number with ``digits`` after the point; NaN becomes the text ``undefined``."""
    return undefined if math.isnan(value) else f"{value:.{digits}f}"


def markdown_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table; the first column is aligned left, all other columns right."""
    lines = [header, ["---", *["---:"] * (len(header) - 1)], *([markdown(cell) for cell in row] for row in rows)]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def markdown(text: str) -> str:
    """Escape text for one cell or line of Markdown, including HTML and control characters."""
    escaped = html.escape(printable(text), quote=False).replace("\\", "\\\\").replace("|", "\\|")
    return " ".join(escaped.splitlines())


# -- the report of an evaluation --------------------------------------------------------------------------------------

SCHEMA_VERSION = 1
_OF_SET = "of_set"  # key of the setting that lists the metrics without values per query
_PER_QUERY_SUFFIX = ".per_query.parquet"
_MOST_JSON_BYTES = 64 << 20
_TASK = ("dataset", "protocol", "split", "gallery_split", "queries", "gallery", "levels_without_labels")


@dataclass(frozen=True, eq=False)
class RetrievalReport:
    """Metrics of one evaluation.

    Attributes:
        values: mean of every metric over the queries for which it is defined; NaN if there are no such queries.
            Clustering metrics (NMI) have no values per query, so they are only here.
        per_query: one row per query, in order: ``query`` (the query's index) and one Float64 column per metric, NaN if
            undefined.
        undefined: per metric, the number of queries without a positive, which its mean excludes.
        settings: everything that the values depend on: protocol, levels, sizes, relevance, precision of the scores.
    """

    values: dict[str, float]
    per_query: pl.DataFrame = field(repr=False)
    undefined: dict[str, int]
    settings: dict[str, Any] = field(repr=False)

    @classmethod
    def from_columns(
        cls,
        columns: Mapping[str, np.ndarray],
        settings: Mapping[str, Any],
        *,
        first_query: int = 0,
        num_queries: int = 0,
        of_set: Mapping[str, float] | None = None,
    ) -> "RetrievalReport":
        """Make a report from values per query.

        Args:
            columns: (Q,) float64 values per metric, NaN if undefined.
            settings: everything that the values depend on.
            first_query: index of the first query.
            num_queries: number Q of queries, needed if there is no column.
            of_set: values of the clustering metrics, which have no column.
        """
        if "query" in columns:
            raise InputError("a metric cannot be named 'query', because this column holds the indices of the queries.")
        num_queries = len(next(iter(columns.values()))) if columns else num_queries
        defined = {name: ~np.isnan(column) for name, column in columns.items()}
        means = {n: float(column[defined[n]].mean()) if defined[n].any() else math.nan for n, column in columns.items()}
        whole = dict(of_set or {})
        return cls(
            values=means | whole,
            per_query=pl.DataFrame({"query": np.arange(num_queries, dtype=np.int64) + first_query, **columns}),
            undefined={n: int((~ok).sum()) for n, ok in defined.items()} | dict.fromkeys(whole, 0),
            settings={**settings, **({_OF_SET: list(whole)} if whole else {})},
        )

    @property
    def query_metrics(self) -> list[str]:
        """Return the names of the metrics with values per query: all but the clustering metrics."""
        return [name for name in self.values if name in self.per_query.columns]

    def to_frame(self) -> pl.DataFrame:
        """Return one row per metric: metric, value, queries (with a value) and undefined (queries without a value)."""
        num_queries, with_queries = len(self.per_query), self.query_metrics if len(self.per_query) else ()
        rows = [
            (name, value, num_queries - undefined if name in with_queries else None, undefined)
            for (name, value), undefined in zip(self.values.items(), self.undefined.values(), strict=True)
        ]
        schema = {"metric": pl.String, "value": pl.Float64, "queries": pl.Int64, "undefined": pl.Int64}
        return pl.DataFrame(rows, schema=schema, orient="row")

    def to_markdown(self) -> str:
        """Return a table of the values, and the settings below it."""
        settings = "".join(f"- {markdown(key)}: {markdown(_text(value))}\n" for key, value in self.settings.items())
        seen = f"{markdown(text)}\n\n" if (text := trained_on_text(self.settings)) else ""
        printed = "".join(f"{markdown_table(*table)}\n" for table in (*self._printed_tables(), self._value_table()))
        return seen + printed + settings

    def summary(self) -> str:
        """Return a table of the values with one column per level, and a line about the task; shorter than Markdown."""
        parts = list(dict.fromkeys(name.partition("/")[2] for name in self.values))
        values: dict[str, dict[str, float]] = {}
        for name, value in self.values.items():
            kind, _, part = name.partition("/")
            values.setdefault(kind, {})[part] = value
        header = ["metric", *(part or "all levels" for part in parts)]
        rows = [[kind, *(number(of[part], 4) if part in of else "" for part in parts)] for kind, of in values.items()]
        printed = "".join(f"{markdown_table(*table)}\n" for table in self._printed_tables())
        missing = {name: count for name, count in self.undefined.items() if count}
        facts = [f"{key}: {self.settings[key]}" for key in _TASK if self.settings.get(key) is not None]
        facts += [f"queries without a value: {', '.join(f'{n} {c}' for n, c in missing.items())}"] if missing else []
        return f"{printed}{markdown_table(header, rows)}\n{markdown('; '.join(facts))}\n"

    def _repr_html_(self) -> str:
        """Return HTML for notebooks: the values that published tables print, all values, and the settings."""
        from hgld.html_page import table

        settings = table(["setting", "value"], ([key, _text(value)] for key, value in self.settings.items()))
        tables = [table(*one) for one in (*self._printed_tables(), self._value_table())]
        return "".join(tables) + f"<details><summary>Settings ({len(self.settings)})</summary>{settings}</details>"

    def _value_table(self) -> tuple[list[str], list[list[str]]]:
        rows = [[name, number(value, 4), str(self.undefined[name])] for name, value in self.values.items()]
        return ["metric", "value", "undefined queries"], rows

    def _printed_tables(self) -> list[tuple[list[str], list[list[str]]]]:
        """Return the table of :meth:`as_printed` if the report's protocol has published tables, else no table."""
        return [self.as_printed()] if self._printed else []

    @property
    def _printed(self) -> list[str]:
        """Return the names of the values that the published tables print; none if the report has no protocol."""
        names = self.settings.get("printed")
        return [name for name in names if name in self.values] if isinstance(names, list) else []

    def as_printed(self) -> tuple[list[str], list[list[str]]]:
        """Return header and rows of the values in the format of the published tables: shares in per cent.

        If all values belong to levels or sets (such as easy, medium and hard), there is one row per level or set, else
        one row.
        """
        cells = {tuple(name.partition("/")[::2]): as_papers(name, self.values[name]) for name in self._printed}
        heads, parts = (list(dict.fromkeys(pair[side] for pair in cells)) for side in (0, 1))
        of = str(self.settings.get("dataset", ""))
        if len(cells) == len(heads) * len(parts) and len(parts) > 1:
            return [of, *heads], [[part, *(cells[head, part] for head in heads)] for part in parts]
        return ["", *self._printed], [[of, *cells.values()]]

    def defined_values(self) -> dict[str, float | None]:
        """Return the values for JSON: None if undefined."""
        return {name: None if math.isnan(value) else value for name, value in self.values.items()}

    def to_dict(self) -> dict[str, Any]:
        """Return values (None if undefined), undefined counts, settings and schema version as a dict for JSON."""
        return {
            "schema_version": SCHEMA_VERSION,
            "values": self.defined_values(),
            "undefined": self.undefined,
            "settings": self.settings,
        }

    def save_json(self, path: str | Path) -> None:
        """Write values, undefined counts and settings to ``path``, and the values per query to a second file.

        The second file is in the same folder and has the suffix ``.per_query.parquet``.
        """
        file = Path(path)
        text = json.dumps(self.to_dict(), ensure_ascii=False, indent=2, allow_nan=False) + "\n"
        write_table(self.per_query, file.with_suffix(_PER_QUERY_SUFFIX))
        write_atomic(file, text)

    @classmethod
    def load_json(cls, path: str | Path) -> "RetrievalReport":
        """Read a report that :meth:`save_json` wrote; if the parquet file is missing, ``per_query`` is empty.

        Raises:
            InputError: the file cannot be read, is not a report, or has another schema version.
        """
        file = Path(path)
        data = read_json(file, kind=dict, max_bytes=_MOST_JSON_BYTES)
        if (found := data.get("schema_version")) != SCHEMA_VERSION:
            raise SchemaError(
                f"{file}: report schema version is {quoted(found)}; this hgld reads version {SCHEMA_VERSION}."
            )
        try:
            values = {str(k): math.nan if v is None else float(v) for k, v in data["values"].items()}
            undefined = {str(k): int(v) for k, v in data["undefined"].items()}
            settings = {str(k): v for k, v in data["settings"].items()}
            columns = [name for name in values if name not in settings.get(_OF_SET, [])]
        except (KeyError, AttributeError, TypeError, ValueError, OverflowError) as error:
            raise SchemaError(
                f"{file}: values, undefined or settings are missing or malformed ({excerpt(error)})."
            ) from error
        if list(undefined) != list(values):
            raise SchemaError(f"{file}: values and undefined have different metrics.")
        return cls(values, _load_per_query(file.with_suffix(_PER_QUERY_SUFFIX), columns), undefined, settings)


def _load_per_query(file: Path, metrics: Sequence[str]) -> pl.DataFrame:
    schema = {"query": pl.Int64(), **{metric: pl.Float64() for metric in metrics}}
    if not file.exists():
        return pl.DataFrame(schema=schema)
    frame = read_parquet(file)
    if dict(frame.schema) != schema:
        raise SchemaError(f"{file}: its columns differ from the report's: expected query, {', '.join(metrics)}.")
    return frame


def as_papers(metric: str, value: float) -> str:
    """Format a share in per cent with one digit after the point, other values with two digits."""
    return number(100 * value, 1, "--") if is_per_cent(metric) else number(value, 2, "--")


def _text(value: object) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key} {_text(part)}" for key, part in value.items())
    if isinstance(value, float):
        return f"{value:.6g}"
    return ", ".join(map(_text, value)) if isinstance(value, list) else str(value)


# -- comparisons ------------------------------------------------------------------------------------------------------
#
# Confidence intervals of values, and significance tests of differences between reports.

_ALPHA = 0.05
_WEIGHTS_AT_ONCE = 4_000_000
_SAME = ("protocol", "levels", "queries", "gallery", "labels_sha256", "relevance", "alpha", "weights", "count_query")


def compare(
    reports: Mapping[str, RetrievalReport],
    *,
    metrics: Sequence[str] | None = None,
    samples: int = 2000,
    classes: np.ndarray | None = None,
) -> pl.DataFrame:
    """Compare the first report with other reports on the same queries.

    Confidence intervals are percentile bootstraps over queries (Efron 1979). Differences are tested with the paired
    randomisation test that Smucker, Allan and Carterette (CIKM 2007) recommend for retrieval. Its null hypothesis is
    that two systems do not differ, so that every query's difference could have either sign. Both methods treat queries
    as independent. If many queries share few classes, the intervals are too narrow. If ``classes`` is given, all
    queries of a class are resampled together and change their signs together.

    Args:
        reports: reports by name, each with its ``per_query`` table; the first is the baseline.
        metrics: names of metrics to compare; None: the metrics that all reports have.
        samples: number of resamples, with seed 0; the smallest p-value is 1 / (samples + 1).
        classes: (Q,) integer class of every query, below 0 for a query of an unknown class; None: queries are resampled
            one by one.

    Returns:
        one row per report and metric. ``low`` and ``high`` are the 95% confidence interval of ``value``. ``difference``
        is the difference to the baseline on the queries where both are defined, with its interval ``difference_low``
        and ``difference_high`` and its two-sided ``p_value``. These four columns are null for the baseline itself.

    Raises:
        ConfigError: there is no report, a metric is unknown, or the reports share no metric.
        InputError: the reports are of different tasks, or a report has no values per query.
    """
    if not reports:
        raise ConfigError("there are no reports to compare.")
    names, first = list(reports), next(iter(reports))
    every = [report.query_metrics for report in reports.values()]
    common = [metric for metric in every[0] if all(metric in others for others in every)]
    chosen = common if metrics is None else list(dict.fromkeys(metrics))
    if not chosen or not set(chosen) <= set(common):
        raise ConfigError(
            f"metrics are {', '.join(chosen) or '(none)'}; metrics that all reports have: "
            f"{', '.join(common) or '(none)'}."
        )
    check_same_task(reports, first)
    tables = {name: reports[name].per_query.select(chosen).to_numpy().astype(np.float64) for name in names}
    apart = {name: table - tables[first] for name, table in tables.items()}
    whole = np.concatenate([*tables.values(), *apart.values()], axis=1)
    unit = _units(classes, len(whole))
    # axis 1: the value, and its difference from the first report
    low, high = mean_intervals(whole, unit, samples).reshape(2, 2, len(names), len(chosen))
    p_values = _sign_flip(np.concatenate(list(apart.values()), axis=1), unit, samples)
    p_values = p_values.reshape(len(names), len(chosen))
    rows = []
    for n, name in enumerate(names):
        for m, metric in enumerate(chosen):
            row = {"report": name, "metric": metric, "value": reports[name].values[metric]}
            row |= {"low": low[0, n, m], "high": high[0, n, m]}
            if name != first:
                defined = apart[name][:, m][~np.isnan(apart[name][:, m])]
                row |= {"difference": defined.mean() if len(defined) else math.nan, "p_value": p_values[n, m]}
                row |= {"difference_low": low[1, n, m], "difference_high": high[1, n, m]}
            rows.append(row)
    numbers = ("value", "low", "high", "difference", "difference_low", "difference_high", "p_value")
    schema = {"report": pl.String(), "metric": pl.String(), **dict.fromkeys(numbers, pl.Float64())}
    return pl.DataFrame(rows, schema=schema)


def _units(classes: np.ndarray | None, num_queries: int) -> np.ndarray:
    """Return (Q,) resampling units of the queries, from 0: a query's class, or the query itself without a class."""
    if classes is None:
        return np.arange(num_queries)
    if classes.shape != (num_queries,):
        raise InputError(f"classes have shape {classes.shape} for {num_queries} queries; expected ({num_queries},).")
    alone = np.where(classes < 0, classes.max(initial=0) + 1 + np.arange(num_queries), classes)
    return np.unique(alone, return_inverse=True)[1]


def _unit_sums(table: np.ndarray, unit: np.ndarray) -> np.ndarray:
    """Return the (U, C) sums of a (Q, C) table over the queries of each unit."""
    sums = np.zeros((int(unit.max(initial=-1)) + 1, table.shape[1]))
    np.add.at(sums, unit, table)
    return sums


def check_same_task(reports: Mapping[str, RetrievalReport], first: str) -> None:
    """Raise an error if reports cannot be compared query by query.

    Args:
        reports: reports by name.
        first: name of the report that is compared with all other reports.

    Raises:
        InputError: a report has no values per query, or queries or tasks differ.
    """
    for name, report in reports.items():
        if report.per_query.is_empty():
            raise InputError(
                f"report {quoted(name)} has no values per query. Load it from the .json that save_json wrote, with the "
                ".per_query.parquet file in the same folder."
            )
        if not report.per_query["query"].equals(reports[first].per_query["query"]):
            raise InputError(
                f"reports {quoted(first)} and {quoted(name)} are of different queries; a comparison needs the same "
                "queries."
            )
        for key in _SAME:
            here, there = report.settings.get(key), reports[first].settings.get(key)
            if here != there:
                raise InputError(
                    f"reports {quoted(first)} and {quoted(name)} are of different tasks: {key} is "
                    f"{quoted(there)} and {quoted(here)}."
                )


def mean_intervals(table: np.ndarray, unit: np.ndarray, samples: int = 2000) -> np.ndarray:
    """Return the (2, C) ends of the 95% confidence intervals of a (Q, C) table's means, by resampling units of queries.

    Args:
        table: values, NaN if undefined.
        unit: (Q,) number of each query's unit, from 0; the queries of a unit are resampled together.
        samples: number of resamples, with seed 0.
    """
    means, is_defined = [], ~np.isnan(table)
    totals, sizes = (_unit_sums(part, unit) for part in (np.where(is_defined, table, 0.0), is_defined.astype(float)))
    num_units = len(totals)
    rng = np.random.default_rng(0)
    for size in _batches(samples, num_units):
        draws = rng.integers(0, num_units, size=(size, num_units))
        offsets = np.arange(size)[:, None] * num_units
        weights = np.bincount((draws + offsets).ravel(), minlength=size * num_units).reshape(size, num_units)
        sums, counts = weights @ totals, weights @ sizes
        means.append(np.divide(sums, counts, out=np.full_like(sums, np.nan), where=counts > 0))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # numpy warns if a metric has no defined value
        return np.nanquantile(np.concatenate(means), [_ALPHA / 2, 1 - _ALPHA / 2], axis=0)


def _sign_flip(differences: np.ndarray, unit: np.ndarray, samples: int) -> np.ndarray:
    """Return (C,) two-sided p-values of a (Q, C) table of differences; the queries of a unit change signs together."""
    sums = _unit_sums(np.nan_to_num(differences, nan=0.0), unit)
    observed, reached = np.abs(sums.sum(axis=0)), np.zeros(sums.shape[1])
    rng = np.random.default_rng(0)
    for size in _batches(samples, len(sums)):
        signs = rng.integers(0, 2, size=(size, len(sums))) * 2.0 - 1.0
        # 1e-12: sums in a different order differ by rounding, which must not count as a difference
        reached += (np.abs(signs @ sums) >= observed * (1 - 1e-12) - 1e-15).sum(axis=0)
    return np.where(np.isnan(differences).all(axis=0), np.nan, (reached + 1) / (samples + 1))


def _batches(samples: int, num_units: int) -> Iterator[int]:
    step = max(1, _WEIGHTS_AT_ONCE // num_units)
    for start in range(0, samples, step):
        yield min(step, samples - start)
