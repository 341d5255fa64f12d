"""Tables as files: written whole, and the faults of those from outside, by polars' errors and by their columns."""

import tokenize
from pathlib import Path

import polars as pl

from hgld.errors import StorageError, quoted
from hgld.files import write_atomic

POLARS_FAULTS = (pl.exceptions.PolarsError, pl.exceptions.PanicException)  # it panics at some damaged parquet files
NUMPY_FAULTS = (  # of numpy at headers of npy files made to break it: Python literals, nested as deep as one likes
    *(ValueError, TypeError, KeyError, SyntaxError, EOFError, OverflowError, RecursionError, MemoryError),
    tokenize.TokenError,
)


def write_table(table: pl.DataFrame, path: Path) -> None:
    """Write a table as parquet, whole or not at all.

    Raises:
        StorageError: the disk is full or not writable.
    """
    try:
        write_atomic(path, table.write_parquet)
    except POLARS_FAULTS as error:  # it has errors of its own for a disk that fills up
        raise StorageError(f"{path}: cannot be written ({error}). Free space, then run again.") from error


def wrong_columns(frame: pl.DataFrame, schema: pl.Schema) -> str:
    """Describe for an error the columns that a table lacks or has with another type; empty where all are right."""
    wrong = [
        f"{quoted(n)} ({frame.schema.get(n, 'missing')})" for n, dtype in schema.items() if frame.schema.get(n) != dtype
    ]
    if not wrong:
        return ""
    expected = ", ".join(f"{name}: {dtype}" for name, dtype in schema.items())
    return f"wrong or missing columns {', '.join(wrong)}; expected {expected}."
