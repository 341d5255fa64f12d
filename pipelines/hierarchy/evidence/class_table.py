"""Rows of the user's own for classes: an array with its keys, or a table.

Two layouts are read:

- ``FILE.npy``, (R, D) numbers, with ``FILE.txt`` beside it, one key a line, or ``FILE.parquet`` or ``FILE.csv`` with a
  column ``name``, ``id`` or ``key``;
- ``FILE.parquet`` with such a column and ``embedding``, a list of D numbers a row.

A key may come more than once, for instance once an image: its row is the mean of the unit rows.
"""

from pathlib import Path

import numpy as np
import polars as pl

from hgld.errors import TableError, excerpt, quoted
from hgld.tables import NUMPY_FAULTS, read_csv, read_parquet

from ..groups.kmeans import unit

KEYS = ("name", "id", "key")
ROWS = "embedding"
LARGEST = 8 * 2**30
WIDEST = 65_536
_WAY_OUT = (
    "Expected FILE.npy with FILE.txt, FILE.parquet or FILE.csv of keys beside it, or FILE.parquet with name and "
    "embedding."
)


def table_files(file: Path) -> list[Path]:
    """Return the files that a table consists of: itself, and that of its keys.

    Raises:
        TableError: one of them is missing, or the file is of another kind.
    """
    if not file.is_file():
        raise TableError(f"--class-embeddings {file}: there is no such file. {_WAY_OUT}")
    if file.suffix == ".parquet":
        return [file]
    if file.suffix != ".npy":
        raise TableError(f"--class-embeddings {file}: found a file of kind {quoted(file.suffix or 'none')}. {_WAY_OUT}")
    for suffix in (".txt", ".parquet", ".csv"):
        if file.with_suffix(suffix).is_file():
            return [file, file.with_suffix(suffix)]
    raise TableError(f"--class-embeddings {file}: no keys lie beside it. {_WAY_OUT}")


def read_class_table(file: Path) -> tuple[list[str], np.ndarray]:
    """Read the keys, each once, in the order of their first rows, and their (K, D) float32 unit rows.

    Raises:
        TableError: a file is missing, not readable, or its numbers and keys do not fit together.
    """
    files = table_files(file)
    if (size := max(each.stat().st_size for each in files)) > LARGEST:
        raise TableError(f"{file}: {size:,} bytes; at most {LARGEST:,} are read. Give means of the classes.")
    keys, rows = _array(*files) if len(files) == 2 else _frame(file)
    if rows.ndim != 2 or rows.dtype.kind not in "fiu" or not 0 < rows.shape[1] <= WIDEST or len(rows) != len(keys):
        raise TableError(
            f"{file}: {len(keys)} keys, and numbers of shape {rows.shape} and type {rows.dtype}; expected a row of 1 "
            f"to {WIDEST:,} numbers a key."
        )
    wrong = np.flatnonzero(~np.isfinite(rows).all(axis=1))
    if wrong.size:
        where = f"{file}, row {wrong[0] + 1} ({quoted(keys[wrong[0]][:80])})"
        raise TableError(f"{where}: holds numbers that are not finite. Leave it out.")
    places: dict[str, int] = {}
    of_row = np.array([places.setdefault(key, len(places)) for key in keys], dtype=np.int64)
    means = np.zeros((len(places), rows.shape[1]), dtype=np.float64)
    largest = np.abs(rows).max(axis=1, keepdims=True).astype(np.float64)
    scaled = np.divide(rows, largest, out=np.zeros(rows.shape, dtype=np.float64), where=largest > 0)
    np.add.at(means, of_row, unit(scaled))
    return list(places), unit(means).astype(np.float32)


def _array(file: Path, beside: Path) -> tuple[list[str], np.ndarray]:
    try:
        rows = np.load(file, allow_pickle=False)
    except (OSError, *NUMPY_FAULTS) as error:
        raise TableError(f"{file}: not an array of numbers ({excerpt(error)}). {_WAY_OUT}") from error
    if not isinstance(rows, np.ndarray):
        raise TableError(f"{file}: several arrays; expected one. {_WAY_OUT}")
    if beside.suffix != ".txt":
        return _keys(beside, _read(beside)), rows
    try:
        return beside.read_text(encoding="utf-8-sig").splitlines(), rows
    except (OSError, UnicodeDecodeError) as error:
        raise TableError(f"{beside}: not a text of keys in UTF-8 ({excerpt(error)}).") from error


def _frame(file: Path) -> tuple[list[str], np.ndarray]:
    table = _read(file)
    keys = _keys(file, table)
    if ROWS not in table.columns:
        raise TableError(f"{file}: lacks the column {ROWS!r}; found {quoted(table.columns[:20])}. {_WAY_OUT}")
    column = table[ROWS]
    if not isinstance(column.dtype, pl.List | pl.Array) or not column.dtype.inner.is_numeric():
        raise TableError(f"{file}: {ROWS!r} is of type {column.dtype}; expected lists of numbers.")
    widths = column.arr.len() if isinstance(column.dtype, pl.Array) else column.list.len()
    if column.null_count() or widths.n_unique() != 1:
        raise TableError(f"{file}: rows of {ROWS!r} have different lengths or are empty; expected one length.")
    return keys, np.stack(column.to_list()).astype(np.float64)


def _read(file: Path) -> pl.DataFrame:
    return read_parquet(file, fix=_WAY_OUT) if file.suffix == ".parquet" else read_csv(file, fix=_WAY_OUT)


def _keys(file: Path, table: pl.DataFrame) -> list[str]:
    column = next((name for name in KEYS if name in table.columns), None)
    if column is None:
        raise TableError(
            f"{file}: none of the columns {', '.join(KEYS)} is there; found {quoted(table.columns[:20])}. {_WAY_OUT}"
        )
    keys = table[column].cast(pl.String, strict=False)
    if keys.null_count():
        raise TableError(f"{file}: row {keys.is_null().arg_true()[0] + 1} has no {column}; expected one a row.")
    return keys.to_list()
