"""Files that say which group each landmark belongs to: GLDv2's hierarchical CSVs, and tables like them."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import polars as pl

from hgld.errors import TableError
from pipelines.csv_rows import CsvText

ID, SPLIT, NAME, TOP = "landmark_id", "split", "supercategory", "natural_or_human_made"
LABELS = ("hierarchical_label", "label")  # the first of them that a file has
UNLABELLED = "unclassified"
_VALUES = ["split", "landmark_id", "name", "label", "top"]


@dataclass(frozen=True)
class LabelFile:
    """Landmarks with their groups.

    Attributes:
        path: the file.
        landmarks: one row a landmark: row (line in a CSV, row in a parquet file, from 1), split, landmark_id, name,
            label, top. ``name`` is folded for comparison (composed, single spaces, no case). Null: the file has no such
            column, or an empty cell, or for label and top ``unclassified``.
        repeats: rows that repeat an earlier one exactly and were left out.
        columns: which of split, name and top the file has.
    """

    path: Path
    landmarks: pl.DataFrame
    repeats: int
    columns: frozenset[str]

    @classmethod
    def read(cls, path: Path) -> "LabelFile":
        """Read a CSV, or a parquet file by its suffix ``.parquet``.

        Columns: landmark_id, and hierarchical_label or label; where there are any, also split, supercategory and
        natural_or_human_made. Others are ignored.

        Raises:
            TableError: the file cannot be read, lacks a column, has no rows or an id that is no whole number, or says
                two different things of one landmark.
        """
        raw, columns = _parquet(path) if path.suffix == ".parquet" else _csv(path)
        if raw.is_empty():
            raise TableError(f"{path}: no rows below the header; expected one landmark a row.")
        table = _typed(path, raw)
        landmarks = table.unique(_VALUES, keep="first", maintain_order=True)
        _refuse_contradictions(path, landmarks)
        present = frozenset(value for value in ("split", "name", "top") if columns[value] is not None)
        return cls(path, landmarks, len(table) - len(landmarks), present)


Columns = dict[str, str | None]


def _columns(path: Path, found: Sequence[str]) -> Columns:
    """The file's column for each value, None where it has none."""
    label = next((name for name in LABELS if name in found), None)
    if ID not in found or label is None:
        shown = ", ".join(repr(name[:60]) for name in found[:20])
        raise TableError(
            f"{path} lacks the column {ID if ID not in found else ' or '.join(LABELS)}; found {shown}. "
            f"Rename the columns: {ID} and {LABELS[0]}, optionally {SPLIT}, {NAME}, {TOP}."
        )
    optional = {"split": SPLIT, "name": NAME, "top": TOP}
    chosen = {value: column if column in found else None for value, column in optional.items()}
    return {"landmark_id": ID, "label": label} | chosen


def _csv(path: Path) -> tuple[pl.DataFrame, Columns]:
    file = CsvText.read(path)
    columns = _columns(path, file.columns)
    there = {value: column for value, column in columns.items() if column is not None}
    rows = [(line, *cells) for line, cells in file.select(list(there.values()))]
    return pl.DataFrame(
        rows, schema=["row", *there], schema_overrides=dict.fromkeys(there, pl.String), orient="row"
    ), columns


def _parquet(path: Path) -> tuple[pl.DataFrame, Columns]:
    try:
        table = pl.read_parquet(path)
        columns = _columns(path, table.columns)
        texts = [pl.col(column).cast(pl.String).alias(value) for value, column in columns.items() if column is not None]
        return table.select(texts).with_row_index("row", offset=1), columns
    except (OSError, pl.exceptions.PolarsError) as error:
        raise TableError(f"{path} cannot be read as a parquet table of numbers and text ({error}).") from error


def _typed(path: Path, raw: pl.DataFrame) -> pl.DataFrame:
    """The values of each landmark, null where there is none."""
    cells = raw.with_columns(
        pl.lit(None, dtype=pl.String).alias(value) for value in _VALUES if value not in raw.columns
    )
    cells = cells.with_columns(pl.col(value).str.strip_chars().replace("", None) for value in _VALUES)
    whole = pl.col("landmark_id").str.contains(r"^[0-9]{1,18}$").fill_null(value=False)
    if not (odd := cells.filter(~whole)).is_empty():
        row, found = odd["row"][0], odd["landmark_id"][0] or ""
        raise TableError(f"{path}, line {row}: {ID} is {found[:80]!r}; expected a whole number. Correct the row.")
    unlabelled = pl.col("label", "top").str.to_lowercase().is_in([UNLABELLED])
    return cells.with_columns(
        pl.when(~unlabelled).then(pl.col("label", "top")),
        name=pl.col("name").str.normalize("NFC").str.replace_all(r"\s+", " ").str.to_lowercase(),
    ).select(
        pl.col("row").cast(pl.Int64),
        "split",
        pl.col("landmark_id").cast(pl.Int64),
        "name",
        "label",
        pl.col("top").str.to_lowercase(),
    )


def _refuse_contradictions(path: Path, landmarks: pl.DataFrame) -> None:
    twice = landmarks.filter(pl.struct("split", "landmark_id").is_duplicated()).sort("split", "landmark_id", "row")
    if twice.is_empty():
        return
    first, second = twice.head(2).rows(named=True)
    differs = next(value for value in ("label", "top", "name") if first[value] != second[value])
    raise TableError(
        f"{path}: landmark {first['landmark_id']} has the {differs} {first[differs]!r} in line {first['row']} and "
        f"{second[differs]!r} in line {second['row']}; expected one row a landmark. Delete the wrong row, or tell the "
        f"lists of different splits apart by a column {SPLIT!r}."
    )
