"""Labels in every supported format give equal class numbers; invalid labels are refused."""

from types import SimpleNamespace

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import torch

from hgld import evaluate
from hgld.errors import InputError, TableError
from hgld.labels import class_numbers, distinct
from tests.rows import each_row, refused

TABLE = {"animal": ["cat", "dog", None, "cat"], "kind": ["pet", "pet", "pet", "pet"]}
CELLS = [3, 1, None, 3]
DATASET = SimpleNamespace(levels=("animal", "kind"), labels=torch.tensor([[0, 0], [1, 0], [-1, 0], [0, 0]]))


@each_row("given", [[], [5], [7, -1, 7, 0], [10**12, 3, 3], [-(2**63), 2**63 - 1], np.array([-128, 100] * 60, np.int8)])
def test_distinct_labels_equal_numpy_unique(given):
    given = np.asarray(given, None if len(given) else np.int64)
    for mine, other in zip(distinct(given), np.unique(given, return_inverse=True), strict=True):
        np.testing.assert_array_equal(mine, other)


@each_row(
    "table",
    [DATASET, TABLE, pd.DataFrame(TABLE), pd.DataFrame(TABLE).astype("category"), pl.DataFrame(TABLE), pa.table(TABLE)],
)
def test_datasets_and_tables_of_every_library_give_equal_numbers_and_levels(table):
    (numbers,), levels = class_numbers(table)
    assert numbers.tolist() == DATASET.labels.tolist()
    assert levels == DATASET.levels
    assert class_numbers(table, levels=["kind"])[1] == ("kind",)
    with pytest.raises(InputError, match="no column 'top'; their columns are animal, kind"):
        class_numbers(table, levels=["top"])


@each_row(
    "column",
    [CELLS, pd.Series(CELLS), pd.Series(CELLS, dtype="Int64"), pl.Series(CELLS), pa.array(CELLS)],
)
def test_columns_of_every_library_give_equal_numbers(column):
    assert class_numbers(column)[0][0].tolist() == [[3], [1], [-1], [3]]


def test_class_name_has_the_same_number_in_queries_and_gallery():
    numbers, levels = class_numbers(["b", "a"], np.array(["c", "b"]))
    assert [side.tolist() for side in numbers] == [[[1], [0]], [[2], [1]]]
    assert levels is None
    assert class_numbers([("a", "x"), ("b", "x")])[0][0].tolist() == [[0, 0], [1, 0]]


test_invalid_labels_are_refused = refused(
    lambda sides: class_numbers(*sides),
    [
        (["abc"], "labels are str; expected integers or class names"),
        ([3], "labels are int"),
        ([[1.5, 2]], "found float and int"),
        ([["a", 1]], "found int and str"),
        ([[[1], [1, 2]]], "the same number in every row"),
        ([{"a": [1], "b": [1, 2]}], "columns of equal length"),
        ([[2**70]], "beyond 64 bits"),
        ([["a"], [1]], "integer ids in one table and names in the other"),
        ([{"a": [1]}, {"b": [1]}], "have the columns a and b"),
        ([[[1, 2]], [1]], "both sides need the same levels"),
        ([{"a": [1.5]}], "column 'a' of labels: found float"),
        ([pl.Series([True])], "holds Boolean"),
    ],
    (InputError, TableError),
)


def test_evaluate_accepts_names_and_tables():
    embeddings = np.eye(4, dtype=np.float32) + np.array([[0], [0], [0], [0.1]], np.float32)
    by_number = evaluate(embeddings, DATASET.labels, levels=DATASET.levels)
    by_name = evaluate(embeddings, {"key": ["a", "b", "c", "d"], **TABLE}, levels=DATASET.levels)
    assert by_name.settings["labels_sha256"] == by_number.settings["labels_sha256"]
    sides = evaluate(embeddings[:2], ["cat", "dog"], embeddings[2:], ["dog", "cat"])
    assert sides.undefined["R@1/level0"] == 0
