"""Faults of tables from outside: the errors of polars at damaged files, and columns that are not the expected ones."""

import tokenize

import polars as pl

from hgld.errors import quoted

POLARS_FAULTS = (pl.exceptions.PolarsError, pl.exceptions.PanicException)  # it panics at some damaged parquet files
NUMPY_FAULTS = (  # of numpy at headers of npy files made to break it: Python literals, nested as deep as one likes
    *(ValueError, TypeError, KeyError, SyntaxError, EOFError, OverflowError, RecursionError, MemoryError),
    tokenize.TokenError,
)


def wrong_columns(frame: pl.DataFrame, schema: pl.Schema) -> str:
    """Describe for an error the columns that a table lacks or has with another type; empty where all are right."""
    wrong = [
        f"{quoted(n)} ({frame.schema.get(n, 'missing')})" for n, dtype in schema.items() if frame.schema.get(n) != dtype
    ]
    if not wrong:
        return ""
    expected = ", ".join(f"{name}: {dtype}" for name, dtype in schema.items())
    return f"wrong or missing columns {', '.join(wrong)}; expected {expected}."
