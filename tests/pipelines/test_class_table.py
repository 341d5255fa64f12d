"""Rows of the user's own: both layouts, keys that come again, and files that are none."""

import numpy as np
import polars as pl
import pytest
from hgld.pipelines.hierarchy.evidence.class_table import read_class_table

from hgld.errors import TableError

KEYS = ["oak", "lake", "oak"]
ROWS = np.array([[2, 0, 0], [0, 3, 0], [0, 0, 9]], dtype=np.float32)
MEANS = np.array([[0.5**0.5, 0, 0.5**0.5], [0, 1, 0]])


def array(folder, rows=ROWS, keys=KEYS):
    np.save(folder / "t.npy", rows)
    (folder / "t.txt").write_text("\n".join(keys))
    return folder / "t.npy"


def test_an_array_with_keys_beside_it_and_a_table_say_the_same(tmp_path):
    file = array(tmp_path)
    keys, rows = read_class_table(file)
    assert keys == ["oak", "lake"]
    assert rows.dtype == np.float32
    np.testing.assert_allclose(rows, MEANS, atol=1e-6, err_msg="means of directions, not of lengths")
    (tmp_path / "t.txt").unlink()
    pl.DataFrame({"key": KEYS}).write_csv(tmp_path / "t.csv")
    np.testing.assert_array_equal(read_class_table(file)[1], rows)
    for kind in (pl.List(pl.Float32), pl.Array(pl.Float64, 3), pl.List(pl.Int64)):
        column = pl.Series("embedding", ROWS.astype(int).tolist()).cast(kind)
        pl.DataFrame([pl.Series("name", KEYS), column]).write_parquet(tmp_path / "f.parquet")
        assert read_class_table(tmp_path / "f.parquet")[0] == ["oak", "lake"]
        np.testing.assert_allclose(read_class_table(tmp_path / "f.parquet")[1], rows, atol=1e-6)


def test_numbers_of_any_size_keep_their_direction(tmp_path):
    _, rows = read_class_table(array(tmp_path, np.array([[1e300, 1e300], [1e-300, 0], [0, 0]]), ["a", "b", "c"]))
    np.testing.assert_allclose(rows, [[0.5**0.5, 0.5**0.5], [1, 0], [0, 0]], atol=1e-6)


def parquet(folder, **columns):
    pl.DataFrame(columns).write_parquet(folder / "t.parquet")
    return folder / "t.parquet"


def bytes_in(folder, name, data):
    (folder / name).write_bytes(data)
    return folder / name


def pickled(folder):
    (folder / "t.txt").write_text("a")
    np.save(folder / "t.npy", np.array([{}]), allow_pickle=True)
    return folder / "t.npy"


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda f: array(f, ROWS[:2]), r"3 keys, and numbers of shape \(2, 3\)"),
        (lambda f: array(f, ROWS[0], KEYS), r"shape \(3,\)"),
        (lambda f: array(f, np.array([["x"]] * 3)), "type <U1"),
        (lambda f: array(f, np.array([[1, 2], [np.nan, 1], [1, 1]])), r"row 2 \('lake'\): holds numbers"),
        (lambda f: f / "none.npy", "no such file"),
        (lambda f: bytes_in(f, "t.npy", b""), "no keys lie beside it"),
        (lambda f: bytes_in(f, "t.pkl", b""), "kind '.pkl'"),
        (pickled, "not an array of numbers"),
        (lambda f: parquet(f, x=[1]), "none of the columns"),
        (lambda f: parquet(f, name=["a"]), "lacks the column 'embedding'"),
        (lambda f: parquet(f, name=["a"], embedding=["b"]), "expected lists of numbers"),
        (lambda f: parquet(f, name=["a", "b"], embedding=[[1.0], [1.0, 2.0]]), "different lengths"),
        (lambda f: bytes_in(f, "t.parquet", b"PAR1 not"), "not a readable parquet file"),
    ],
)
def test_files_that_are_none(tmp_path, make, told):
    with pytest.raises(TableError, match=told):
        read_class_table(make(tmp_path))
