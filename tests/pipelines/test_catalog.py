from dataclasses import replace
from pathlib import Path

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hgld.data.format import BOX, is_safe_key
from hgld.errors import HierarchyError, InputError, TableError
from hgld.pipelines.shards.catalog import Catalog, Container, safe_key
from tests.pipelines.toy_release import LEVELS, ToyRelease


@pytest.fixture(scope="module")
def catalog():
    return ToyRelease.make().catalog(Path("release"))


def changed(catalog: Catalog, **columns: pl.Expr) -> Catalog:
    return replace(catalog, items=catalog.items.with_columns(**columns))


def first(value: str | None, column: str) -> pl.Expr:
    """Return an expression that replaces the first value of a column."""
    return pl.when(pl.int_range(pl.len()) == 0).then(pl.lit(value)).otherwise(pl.col(column))


@given(st.text())
def test_safe_key_of_any_text_is_safe(text):
    key = safe_key(text)
    assert is_safe_key(key)
    assert safe_key(key) == key


def test_empty_class_names_are_unknown(catalog):
    emptied = changed(catalog, species=pl.col("species").fill_null(""))
    assert emptied.items.equals(catalog.items)


def test_boxes_need_all_four_columns(catalog):
    boxed = replace(catalog, items=catalog.items.with_columns(pl.lit(None, pl.Int32).alias(side) for side in BOX))
    assert boxed.has_boxes
    with pytest.raises(TableError, match=r"expected key: String.*box_bottom: Int32"):
        replace(boxed, items=boxed.items.drop("box_bottom"))


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"key": first("../evil", "key")}, "unsafe keys: '../evil'"),
        ({"key": first("0/1", "key")}, "keys belong to several items, the first '0/1' of '0/0.jpg', '0/1.jpg'"),
        ({"key": first(None, "key")}, "1 items have no key"),
        ({"file": first(None, "file")}, "1 items have no file"),
        ({"file": first("a\0b.jpg", "file")}, "control characters in their names"),
        ({"file": first("x" * 4_097, "file")}, "longer than 4096 bytes"),
        ({"species": first("x" * 1_001, "species")}, "longer than 1000 bytes"),
        ({"split": first("tr/ain", "split")}, "unsafe names of splits: 'tr/ain'"),
        ({"species": pl.lit(3)}, "species: Int32"),
    ],
)
def test_invalid_items_are_refused(catalog, columns, message):
    with pytest.raises(TableError, match=message):
        changed(catalog, **columns)


def test_class_with_two_parents_is_refused(catalog):
    with pytest.raises(HierarchyError, match=r"'toy'.*'species 0' under 'elsewhere' and 'family 0'"):
        changed(catalog, family=first("elsewhere", "family"))


def test_classes_shared_by_disjoint_splits_are_refused(catalog):
    torn = {"split": first("test", "split")}
    with pytest.raises(HierarchyError, match="1 classes of level 'species' are in train and in test: 'species 0'"):
        changed(catalog, **torn)
    assert len(changed(replace(catalog, disjoint=False), **torn).items) == len(catalog.items)


def test_lists_and_judgements_with_unknown_items_are_refused(catalog):
    lists = pl.DataFrame({"list": ["small"], "key": ["nobody"]})
    with pytest.raises(TableError, match="lists name keys that are not items: 'nobody'"):
        replace(catalog, lists=lists)
    judged = pl.DataFrame({"query": ["0/0"], "item": ["nobody"], "verdict": ["easy"]})
    with pytest.raises(TableError, match="judgements name items that are not items"):
        replace(catalog, judgements=judged)
    with pytest.raises(TableError, match="expected list: String, key: String"):
        replace(catalog, lists=lists.rename({"list": "name"}))


def test_items_without_a_tar_and_duplicate_tar_members_are_refused(catalog):
    containers = (Container(Path("a.tar"), None, "set"),)
    with pytest.raises(InputError, match=r"items that are in no tar: '0/0\.jpg'"):
        replace(catalog, containers=containers)
    same = catalog.items.with_columns(file=pl.lit("set/a"))
    with pytest.raises(TableError, match="members of tars that belong to several items: 'set/a'"):
        replace(catalog, items=same, containers=containers)


def test_levels_named_like_index_columns_are_refused(catalog):
    with pytest.raises(InputError, match="levels"):
        replace(catalog, levels=("key", *LEVELS[1:]))
