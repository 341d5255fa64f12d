"""Readers of tables and JSON do not expand glob characters in paths, and refuse large files before decoding."""

import gzip
import io
import re
from contextlib import contextmanager, suppress
from functools import partial

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from polars.testing import assert_frame_equal
from polars.testing.parametric import dataframes

from hgld.errors import InputError, TableError
from hgld.files import parse_json, read_json
from hgld.tables import (
    CsvText,
    as_plain_text,
    parquet_metadata,
    parquet_schema,
    read_csv,
    read_parquet,
    write_table,
)
from tests.rows import each_row

WRITTEN = io.BytesIO()
TABLE = pl.DataFrame({"key": ["a", "b"], "label": [1, 2], "vector": [[0.5, 1.0], [1.0, 2.0]]})
TABLE.write_parquet(WRITTEN)


@each_row("name", ["a[1].parquet", "*.parquet", "l?.parquet", "split=x/t.parquet"])
def test_tables_are_read_from_paths_with_glob_characters(tmp_path, name):
    file = tmp_path / name
    file.parent.mkdir(exist_ok=True)
    TABLE.head(1).write_parquet(tmp_path / "a1.parquet")  # these files match the names as glob patterns
    TABLE.head(1).write_parquet(tmp_path / "l1.parquet")
    write_table(TABLE, file, {"version": "2"})
    assert_frame_equal(read_parquet(file), TABLE)
    assert_frame_equal(read_parquet(file.read_bytes(), ["label"]), TABLE.select("label"))
    assert_frame_equal(read_parquet(file, rows=(1, 1)), TABLE[1:])
    assert (parquet_schema(file), parquet_metadata(file)["version"]) == (TABLE.schema, "2")
    TABLE.drop("vector").write_csv(file.with_suffix(".csv"))
    assert read_csv(file.with_suffix(".csv")).rows() == [("a", "1"), ("b", "2")]


@given(
    table=dataframes(max_cols=4, max_size=20, excluded_dtypes=[pl.Object, pl.Categorical, pl.Enum, pl.Decimal]),
    group=st.integers(1, 30),
    compression=st.sampled_from(["zstd", "uncompressed", "snappy", "gzip"]),
)
@settings(max_examples=10)
def test_tables_are_read_back_or_refused_beyond_the_memory_limit(tmp_path_factory, table, group, compression):
    file = tmp_path_factory.mktemp("any") / "t.parquet"
    table.write_parquet(file, row_group_size=group, compression=compression)
    assert_frame_equal(read_parquet(file), table, check_row_order=True)
    if table.width and table.height:
        values = sum(table[c].estimated_size() for c in table.columns if not table[c].dtype.is_nested())
        if values > 0:
            with _budget(values // 2), pytest.raises(TableError, match="in memory"):
                read_parquet(file)


@contextmanager
def _budget(most):
    """Limit the memory of a table to this number of bytes."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("hgld.tables.memory_limit", lambda: most)
        patch.setattr("hgld.tables._MOST_GROWTH", 0)
        yield


BOMBS = {
    "rows": pl.repeat(0, 1_000_000, dtype=pl.Int64),
    "list": pl.repeat(0, 8_000_000, dtype=pl.Int8).implode(),
    "text": pl.lit("x" * 6_000_000),
}


@each_row("kind", BOMBS)
def test_small_file_with_a_huge_column_is_refused_if_that_column_is_requested(tmp_path, kind):
    file = tmp_path / "bomb.parquet"
    table = pl.select(a=BOMBS[kind]).with_columns(b=pl.lit(1, pl.Int8))
    table.write_parquet(file, row_group_size=1 << 30, statistics=False)
    assert file.stat().st_size < 1 << 20
    refusal = pytest.raises(TableError, match=r"MiB or more in memory, in a file of .* expected at most 4 MiB. Make it")
    with _budget(4 << 20), refusal:
        read_parquet(file, fix="Make it anew.")
    with _budget((64 if kind == "rows" else 4) << 20):
        assert len(read_parquet(file, ["b"])) == len(table)


REFUSED = {  # (content of a file, its reader, words of the error)
    "no parquet": (b"junk", read_parquet, "not a readable parquet file (no parquet signature at its end)"),
    "footer beyond the file": (b"PAR1\xff\xff\xff\x7fPAR1", read_parquet, "no parquet signature at its end"),
    "footer of nothing": (b"PAR1\x00\x00\x00\x00\x00PAR1", read_parquet, "not a readable parquet file"),
    "gzip": (gzip.compress(b"a,b\n1,2\n"), read_csv, "compressed; expected plain CSV"),
    "latin-1": ("é,b\n1,2\n".encode("latin-1"), read_csv, "line 1: not UTF-8 (byte 0xe9)"),
    "ragged": (b"a\n1,2,3\n", read_csv, "not a readable CSV table"),
    "blank lines below a wide header": (b"a" + b"," * 5_000 + b"\n" * 500_000, read_csv, "5,001 columns; too many"),
    "long cell": (b"a" * 200_000 + b"\n", read_csv, "field larger than field limit"),
    "empty text": (b" \n", CsvText.read, "is empty"),
    "brackets": (b"[" * 10_000_000, read_json, "JSON of 10,000,000 values and brackets; expected at most 4,194,304"),
    "kind": (b"[1]", partial(read_json, kind=dict), "holds list; expected a JSON object"),
    "depth": (b"[" * 100_000, read_json, "not valid JSON"),
    "digits": (b"1" * 5_000, read_json, "not valid JSON"),
}


@each_row("case", REFUSED)
def test_table_errors_contain_the_file_and_the_value_found(tmp_path, case):
    content, read, words = REFUSED[case]
    file = tmp_path / "given"
    file.write_bytes(content)
    with pytest.raises(InputError, match=f"{re.escape(str(file))}.*{re.escape(words)}"):
        read(file)


@each_row("read", [read_parquet, parquet_schema, parquet_metadata, read_csv, read_json])
def test_missing_file_and_folder_are_refused(tmp_path, read):
    for path in (tmp_path / "none", tmp_path):
        with pytest.raises(InputError, match=r"cannot be read \(.+\)"):
            read(path)


@each_row("call", [{"columns": ["x"]}, {"schema": {"label": pl.String}}, {"schema": {"x": pl.Int8}}])
def test_columns_are_checked_before_decoding(tmp_path, call):
    file = tmp_path / "t.parquet"
    TABLE.write_parquet(file)
    with _budget(0), pytest.raises(TableError, match="column"):
        read_parquet(file, **call)


@given(at=st.integers(0, 10_000), byte=st.integers(0, 255))
def test_a_changed_byte_gives_a_table_or_a_table_error(at, byte):
    data = bytearray(WRITTEN.getvalue())
    data[at % len(data)] = byte
    with suppress(TableError):  # only a TableError is allowed
        read_parquet(bytes(data))


def test_json_beyond_the_size_limits_is_refused():
    assert parse_json('{"a": [1, 2]}', "x") == {"a": [1, 2]}
    with pytest.raises(InputError, match="x: more than 3 bytes"):
        parse_json(b"[1, 2]", "x", max_bytes=3)
    with pytest.raises(InputError, match="x: JSON of 4 values"):
        parse_json(b"[1,2,3,4]", "x", max_values=3)


def test_spreadsheets_show_formulas_as_text():
    table = pl.DataFrame({"name": ["=1+1", "+1", "-1", "@x", "\tx", "a=b", "", None], "n": [-1] * 8})
    plain = as_plain_text(table)
    assert plain["name"].to_list() == ["'=1+1", "'+1", "'-1", "'@x", "'\tx", "a=b", "", None]
    assert plain["n"].equals(table["n"])
