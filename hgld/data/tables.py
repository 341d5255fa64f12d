"""What readers of tables go by: what polars raises at damaged files, and columns that are not the expected ones."""

import polars as pl

POLARS_FAULTS = (pl.exceptions.PolarsError, pl.exceptions.PanicException)  # it panics at some damaged parquet files


def wrong_columns(frame: pl.DataFrame, schema: pl.Schema) -> str:
    """What is wrong with the columns of a table, in words for an error; empty where all are there with their types."""
    wrong = [f"{n!r} ({frame.schema.get(n, 'missing')})" for n, dtype in schema.items() if frame.schema.get(n) != dtype]
    if not wrong:
        return ""
    expected = ", ".join(f"{name}: {dtype}" for name, dtype in schema.items())
    return f"wrong or missing columns {', '.join(wrong)}; expected {expected}."
