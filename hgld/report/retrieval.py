"""The result of an evaluation: means, values a query, and how they came about."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from hgld.errors import InputError, SchemaError
from hgld.report.tables import html_page, html_table, latex, markdown, markdown_table, number
from hgld.table_files import POLARS_FAULTS

SCHEMA_VERSION = 1
_PER_QUERY_SUFFIX = ".per_query.parquet"
_MOST_JSON_BYTES = 64 << 20
_HEADER = ["metric", "value", "undefined queries"]


@dataclass(frozen=True, eq=False)
class RetrievalReport:
    """Metrics of one evaluation.

    Attributes:
        values: mean of every metric over the queries for which it is defined; NaN if there are none.
        per_query: one row a query in their order: ``query`` (its index) and one Float64 column a metric, NaN where it
            is undefined.
        undefined: for every metric the number of queries left out of its mean, having no positive.
        settings: protocol, levels, sizes, relevance, precision of the scores: whatever the values depend on.
    """

    values: dict[str, float]
    per_query: pl.DataFrame = field(repr=False)
    undefined: dict[str, int]
    settings: dict[str, Any] = field(repr=False)

    @classmethod
    def from_columns(
        cls, columns: Mapping[str, np.ndarray], settings: Mapping[str, Any], *, first_query: int = 0
    ) -> "RetrievalReport":
        """Report of (Q,) float64 values a metric, NaN where undefined; ``first_query`` is the index of the first."""
        if "query" in columns:
            raise InputError("a metric cannot be named 'query': that is the column of the queries' indices.")
        num_queries = len(next(iter(columns.values()))) if columns else 0
        defined = {name: ~np.isnan(column) for name, column in columns.items()}
        return cls(
            values={
                n: float(column[defined[n]].mean()) if defined[n].any() else math.nan for n, column in columns.items()
            },
            per_query=pl.DataFrame({"query": np.arange(num_queries, dtype=np.int64) + first_query, **columns}),
            undefined={n: int((~ok).sum()) for n, ok in defined.items()},
            settings=dict(settings),
        )

    def to_frame(self) -> pl.DataFrame:
        """One row a metric: metric, value, queries (that it is defined for), undefined."""
        undefined = list(self.undefined.values())
        return pl.DataFrame(
            {
                "metric": list(self.values),
                "value": list(self.values.values()),
                "queries": [len(self.per_query) - n if len(self.per_query) else None for n in undefined],
                "undefined": undefined,
            },
            schema={"metric": pl.String, "value": pl.Float64, "queries": pl.Int64, "undefined": pl.Int64},
        )

    def to_markdown(self, *, digits: int = 4) -> str:
        """A table of the values, and the settings below it."""
        settings = "".join(f"- {markdown(key)}: {markdown(_text(value))}\n" for key, value in self.settings.items())
        return markdown_table(_HEADER, self._rows(digits)) + "\n" + settings

    def to_html(self, *, digits: int = 4, title: str = "Retrieval report") -> str:
        """A page of its own, without scripts and without anything to load."""
        settings = [[key, _text(value)] for key, value in self.settings.items()]
        return html_page(title, html_table(_HEADER, self._rows(digits)) + html_table(["setting", "value"], settings))

    def _rows(self, digits: int) -> list[list[str]]:
        return [[name, number(value, digits), str(self.undefined[name])] for name, value in self.values.items()]

    def to_latex_row(
        self, name: str, metrics: Sequence[str] | None = None, *, scale: float = 100.0, digits: int = 1
    ) -> str:
        """One row of a LaTeX table: ``name & 93.1 & 41.0 \\\\``.

        Args:
            name: first cell; escaped.
            metrics: which values, in this order; all if None.
            scale: values are multiplied by it (papers print per cent).
            digits: behind the point.

        Raises:
            InputError: a metric that the report does not have.
        """
        chosen = list(self.values) if metrics is None else list(metrics)
        missing = [metric for metric in chosen if metric not in self.values]
        if missing:
            raise InputError(f"the report has no {', '.join(missing)}; it has {', '.join(self.values)}.")
        cells = [latex(name), *(number(self.values[m] * scale, digits, "--") for m in chosen)]
        return " & ".join(cells) + r" \\"

    def to_dict(self) -> dict[str, Any]:
        """Values (None where undefined), undefined counts and settings, ready for JSON, with the schema version."""
        return {
            "schema_version": SCHEMA_VERSION,
            "values": {name: None if math.isnan(value) else value for name, value in self.values.items()},
            "undefined": self.undefined,
            "settings": self.settings,
        }

    def save_json(self, path: str | Path) -> None:
        """Write values, undefined counts and settings to ``path``, the values a query to a parquet file beside it.

        The second file has the name of the first with ``.per_query.parquet`` for its suffix.
        """
        file = Path(path)
        text = json.dumps(self.to_dict(), ensure_ascii=False, indent=2, allow_nan=False) + "\n"
        table = file.with_suffix(_PER_QUERY_SUFFIX)
        part = file.with_name(f".{file.name}.part")
        try:  # aside first: a full disk leaves an earlier report as it was
            self.per_query.write_parquet(part)
            part.replace(table)
            part.write_text(text, encoding="utf-8")
            part.replace(file)
        finally:
            part.unlink(missing_ok=True)

    @classmethod
    def load_json(cls, path: str | Path) -> "RetrievalReport":
        """Read what :meth:`save_json` wrote; without the file beside it, ``per_query`` is empty.

        Raises:
            SchemaError: the file cannot be read, is no report, or one of another schema version.
        """
        file = Path(path)
        try:
            if file.stat().st_size > _MOST_JSON_BYTES:
                raise SchemaError(f"{file}: {file.stat().st_size} bytes; a report has at most {_MOST_JSON_BYTES}.")
            data = json.loads(file.read_text(encoding="utf-8"))
        except OSError as error:
            raise SchemaError(f"{file}: cannot be read ({error.strerror or error}).") from error
        except (ValueError, RecursionError) as error:
            raise SchemaError(f"{file}: not valid JSON ({error}).") from error
        if not isinstance(data, dict) or data.get("schema_version") != SCHEMA_VERSION:
            found = data.get("schema_version") if isinstance(data, dict) else type(data).__name__
            raise SchemaError(f"{file}: report schema version is {found!r}; this hgld reads version {SCHEMA_VERSION}.")
        try:
            values = {str(k): math.nan if v is None else float(v) for k, v in data["values"].items()}
            undefined = {str(k): int(v) for k, v in data["undefined"].items()}
            settings = {str(k): v for k, v in data["settings"].items()}
        except (KeyError, AttributeError, TypeError, ValueError) as error:
            raise SchemaError(f"{file}: values, undefined or settings are missing or malformed ({error!r}).") from error
        if list(undefined) != list(values):
            raise SchemaError(f"{file}: values and undefined name different metrics.")
        return cls(values, _load_per_query(file.with_suffix(_PER_QUERY_SUFFIX), list(values)), undefined, settings)


def _load_per_query(file: Path, metrics: Sequence[str]) -> pl.DataFrame:
    schema = {"query": pl.Int64(), **{metric: pl.Float64() for metric in metrics}}
    if not file.exists():
        return pl.DataFrame(schema=schema)
    try:
        frame = pl.read_parquet(file)
    except OSError as error:
        raise SchemaError(f"{file}: cannot be read ({error.strerror or error}).") from error
    except POLARS_FAULTS as error:
        raise SchemaError(f"{file}: not a readable parquet file ({error}).") from error
    if dict(frame.schema) != schema:
        raise SchemaError(f"{file}: its columns are not those of the report beside it: query, {', '.join(metrics)}.")
    return frame


def _text(value: object) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)
