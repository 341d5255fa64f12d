"""Several reports side by side: confidence intervals, and whether a difference is more than chance."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import polars as pl

from hgld.errors import ConfigError, InputError
from hgld.report.retrieval import RetrievalReport
from hgld.report.tables import html_page, html_table, latex, markdown_table, number

_WEIGHTS_AT_ONCE = 4_000_000
_SAME = ("protocol", "levels", "queries", "gallery", "labels_sha256", "relevance", "alpha", "weights", "count_query")


@dataclass(frozen=True, eq=False)
class Comparison:
    """Reports on the same queries, compared with one of them.

    Attributes:
        frame: one row a report and metric: report, metric, value, low, high (confidence interval of the value),
            difference (to the baseline on the queries where both are defined), difference_low, difference_high,
            p_value (two-sided, of no difference); the last four are null for the baseline itself.
        baseline: the report that the others are compared with.
        confidence: of the intervals.
        samples: resamples behind every interval and p-value.
    """

    frame: pl.DataFrame = field(repr=False)
    baseline: str
    confidence: float
    samples: int

    def to_markdown(self, *, digits: int = 4) -> str:
        """One row a report and metric."""
        return markdown_table(self._header(), self._rows(digits)) + f"\n{self._note()}\n"

    def to_html(self, *, digits: int = 4, title: str = "Comparison of retrieval reports") -> str:
        """A page of its own, without scripts and without anything to load."""
        return html_page(title, html_table(self._header(), self._rows(digits)) + f"<p>{self._note()}</p>\n")

    def to_latex(self, metrics: Sequence[str] | None = None, *, scale: float = 100.0, digits: int = 1) -> str:
        """One LaTeX row a report; a dagger marks differences with p < 1 - confidence.

        Raises:
            InputError: a metric that was not compared.
        """
        known = self.frame["metric"].unique(maintain_order=True).to_list()
        chosen = known if metrics is None else list(metrics)
        if not set(chosen) <= set(known):
            raise InputError(f"metrics {', '.join(chosen)}: expected some of {', '.join(known)}.")
        lines = []
        for (name,), part in self.frame.group_by(["report"], maintain_order=True):
            rows = {row["metric"]: row for row in part.iter_rows(named=True)}
            cells = [self._latex_cell(rows[metric], scale, digits) for metric in chosen]
            lines.append(" & ".join([latex(str(name)), *cells]) + " \\\\\n")
        return "".join(lines)

    def to_dict(self) -> dict[str, Any]:
        """The rows of the frame (None for NaN) and how they came about, ready for JSON."""
        rows = self.frame.with_columns(pl.selectors.float().fill_nan(None)).to_dicts()
        return {"baseline": self.baseline, "confidence": self.confidence, "samples": self.samples, "rows": rows}

    def _latex_cell(self, row: Mapping[str, Any], scale: float, digits: int) -> str:
        marked = row["p_value"] is not None and row["p_value"] < 1 - self.confidence
        return number(row["value"] * scale, digits, "--") + (r"$^\dagger$" if marked else "")

    def _header(self) -> list[str]:
        return ["report", "metric", "value", f"{self.confidence:.0%} interval", "difference", "its interval", "p"]

    def _rows(self, digits: int) -> list[list[str]]:
        rows = []
        for row in self.frame.iter_rows(named=True):
            cells = [row["report"], row["metric"], number(row["value"], digits)]
            cells.append(_interval(row["low"], row["high"], digits))
            if row["p_value"] is None:
                cells += ["", "", ""]
            else:
                cells.append(f"{row['difference']:+.{digits}f}")
                cells.append(_interval(row["difference_low"], row["difference_high"], digits))
                cells.append(f"{row['p_value']:.4f}")
            rows.append(cells)
        return rows

    def _note(self) -> str:
        return (
            "Intervals: percentile bootstrap over queries; p: paired sign-flip permutation test of the mean "
            f"difference, two-sided, not corrected for several comparisons; {self.samples} resamples each."
        )


def compare(
    reports: Mapping[str, RetrievalReport],
    *,
    metrics: Sequence[str] | None = None,
    baseline: str | None = None,
    confidence: float = 0.95,
    samples: int = 2000,
    seed: int = 0,
) -> Comparison:
    """Compare reports on the same queries.

    Confidence intervals are those of the percentile bootstrap over queries (Efron 1979), differences are tested with
    the paired randomisation test that Smucker, Allan and Carterette (CIKM 2007) recommend for retrieval: under the
    hypothesis that two systems do not differ, every query's difference may as well have the other sign. Both take
    queries as independent; where many queries share few classes, intervals come out too narrow.

    Args:
        reports: by name, each with its ``per_query`` table.
        metrics: which to compare; None takes those that all reports have.
        baseline: name of the report that the others are compared with; the first if None.
        confidence: of the intervals, between 0 and 1.
        samples: resamples; the smallest p-value is 1 / (samples + 1).
        seed: of the resamples.

    Returns:
        the comparison.

    Raises:
        ConfigError: an unknown baseline or metric, no metric in common, or options out of range.
        InputError: reports of different tasks, or without values a query.
    """
    names = list(reports)
    first = baseline if baseline is not None else next(iter(names), "")
    if first not in reports:
        raise ConfigError(f"baseline {first!r} is not among the reports ({', '.join(names) or 'there are none'}).")
    if not 0 < confidence < 1 or samples < 1:
        raise ConfigError(f"confidence is {confidence}, samples {samples}; expected a share of 1 and at least 1.")
    chosen = _common_metrics(reports, metrics)
    _check_same_task(reports, first)
    tables = {name: reports[name].per_query.select(chosen).to_numpy().astype(np.float64) for name in names}
    bounds = [(1 - confidence) / 2, (1 + confidence) / 2]
    own = _bootstrap(tables, samples, seed)
    differences = {name: tables[name] - tables[first] for name in names if name != first}
    apart = _bootstrap(differences, samples, seed)
    p_values = _sign_flip(differences, samples, seed)
    rows = []
    for name in names:
        for column, metric in enumerate(chosen):
            low, high = _quantiles(own[name][:, column], bounds)
            row = {"report": name, "metric": metric, "value": reports[name].values[metric]}
            row |= {"low": low, "high": high}
            if name != first:
                interval = _quantiles(apart[name][:, column], bounds)
                row |= {"difference": _mean(differences[name][:, column]), "p_value": p_values[name][column]}
                row |= {"difference_low": interval[0], "difference_high": interval[1]}
            rows.append(row)
    numbers = ("value", "low", "high", "difference", "difference_low", "difference_high", "p_value")
    schema = {"report": pl.String(), "metric": pl.String(), **dict.fromkeys(numbers, pl.Float64())}
    return Comparison(pl.DataFrame(rows, schema=schema), first, confidence, samples)


def _common_metrics(reports: Mapping[str, RetrievalReport], metrics: Sequence[str] | None) -> list[str]:
    common = [m for m in next(iter(reports.values())).values if all(m in report.values for report in reports.values())]
    chosen = common if metrics is None else list(dict.fromkeys(metrics))
    if not chosen or not set(chosen) <= set(common):
        raise ConfigError(
            f"metrics {', '.join(chosen) or '(none)'}: the reports have in common {', '.join(common) or 'none'}."
        )
    return chosen


def _check_same_task(reports: Mapping[str, RetrievalReport], first: str) -> None:
    for name, report in reports.items():
        if report.per_query.is_empty():
            raise InputError(
                f"report {name!r} has no values a query. Load it from the .json that save_json wrote, with the "
                ".per_query.parquet beside it."
            )
        if not report.per_query["query"].equals(reports[first].per_query["query"]):
            raise InputError(
                f"reports {first!r} and {name!r} are of different queries; only the same ones can be paired."
            )
        for key in _SAME:
            here, there = report.settings.get(key), reports[first].settings.get(key)
            if here != there:
                raise InputError(
                    f"reports {first!r} and {name!r} are of different tasks: {key} is {there!r} and {here!r}."
                )


def _bootstrap(tables: Mapping[str, np.ndarray], samples: int, seed: int) -> dict[str, np.ndarray]:
    """(samples, M) means of every (Q, M) table over resampled queries, the same ones for all tables."""
    found: dict[str, list[np.ndarray]] = {name: [] for name in tables}
    num_queries = len(next(iter(tables.values()))) if tables else 1
    rng = np.random.default_rng(seed)
    for size in _batches(samples, num_queries):
        draws = rng.integers(0, num_queries, size=(size, num_queries))
        offsets = np.arange(size)[:, None] * num_queries
        weights = np.bincount((draws + offsets).ravel(), minlength=size * num_queries).reshape(size, num_queries)
        for name, table in tables.items():
            defined = ~np.isnan(table)
            sums, sizes = weights @ np.where(defined, table, 0.0), weights @ defined.astype(np.float64)
            found[name].append(np.divide(sums, sizes, out=np.full_like(sums, np.nan), where=sizes > 0))
    return {name: np.concatenate(parts) for name, parts in found.items()}


def _sign_flip(differences: Mapping[str, np.ndarray], samples: int, seed: int) -> dict[str, np.ndarray]:
    """(M,) two-sided p-values of every (Q, M) table of differences."""
    filled = {name: np.nan_to_num(table, nan=0.0) for name, table in differences.items()}
    observed = {name: np.abs(table.sum(axis=0)) for name, table in filled.items()}
    reached = {name: np.zeros(table.shape[1]) for name, table in filled.items()}
    num_queries = len(next(iter(filled.values()))) if filled else 1
    rng = np.random.default_rng(seed)
    for size in _batches(samples, num_queries):
        signs = rng.integers(0, 2, size=(size, num_queries)) * 2.0 - 1.0
        for name, table in filled.items():
            # 1e-12: sums of the same numbers in another order are the same difference
            reached[name] += (np.abs(signs @ table) >= observed[name] * (1 - 1e-12) - 1e-15).sum(axis=0)
    return {
        name: np.where(np.isnan(differences[name]).all(axis=0), np.nan, (count + 1) / (samples + 1))
        for name, count in reached.items()
    }


def _batches(samples: int, num_queries: int) -> Iterator[int]:
    step = max(1, _WEIGHTS_AT_ONCE // num_queries)
    for start in range(0, samples, step):
        yield min(step, samples - start)


def _quantiles(values: np.ndarray, bounds: Sequence[float]) -> list[float]:
    defined = values[~np.isnan(values)]
    return np.quantile(defined, bounds).tolist() if defined.size else [float("nan")] * len(bounds)


def _mean(values: np.ndarray) -> float:
    defined = values[~np.isnan(values)]
    return float(defined.mean()) if defined.size else float("nan")


def _interval(low: float, high: float, digits: int) -> str:
    return f"{number(low, digits)} .. {number(high, digits)}"
