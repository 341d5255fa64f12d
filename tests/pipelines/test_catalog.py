"""Catalogs: their checks, class-disjoint splits drawn with a seed, and excluded items."""

from dataclasses import replace
from pathlib import Path

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hgld.data.format import BOX, is_safe_key
from hgld.errors import ConfigError, HierarchyError, InputError, TableError
from hgld.pipelines.shards.build import read_release
from hgld.pipelines.shards.catalog import Catalog, Container, safe_key
from hgld.pipelines.shards.catalog_changes import draw_classes, with_val_classes, without_excluded
from hgld.pipelines.shards.config import SourceConfig
from tests.fake_releases.__main__ import maker
from tests.pipelines.toy_release import LEVELS, ToyRelease
from tests.rows import refused


@pytest.fixture(scope="module")
def catalog():
    return ToyRelease.make().catalog(Path("release"))


def changed(catalog, **columns):
    return replace(catalog, items=catalog.items.with_columns(**columns))


def first(value, column):
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


test_invalid_items_are_refused = refused(
    lambda columns, *, catalog: changed(catalog, **columns),
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
    TableError,
)


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


# -- class-disjoint splits, for any source ----------------------------------------------------------------------------


@given(st.lists(st.text(max_size=4), min_size=2, unique=True, max_size=40), st.floats(0.01, 0.99), st.integers(0, 99))
def test_random_class_split_depends_only_on_class_names_and_seed(classes, fraction, seed):
    drawn = draw_classes(classes, fraction, seed)
    assert drawn < set(classes)
    assert len(drawn) == min(max(round(fraction * len(classes)), 1), len(classes) - 1)
    assert drawn == draw_classes([*reversed(classes), *classes], fraction, seed)


def test_invalid_fractions_of_classes_are_refused():
    for fraction in (0, 1, float("nan")):
        with pytest.raises(ConfigError, match=r"--test-classes is .*between 0 and 1"):
            draw_classes("ab", fraction, 0)
    with pytest.raises(ConfigError, match="there are 1 finest classes"):
        draw_classes("a", 0.5, 0)


def of_rows(rows):
    """Return a catalog with one level from (split, class) pairs; the splits may share classes."""
    items = [(str(i), split, f"{i}.jpg", name) for i, (split, name) in enumerate(rows)]
    table = pl.DataFrame(items, schema=["key", "split", "file", "fine"], orient="row")
    return Catalog("toy", ("fine",), table, Path(), disjoint=False)


ROWS = st.lists(
    st.tuples(st.sampled_from(["train", "test", "gallery"]), st.sampled_from([None, *"abcdefgh"])), max_size=40
)


@settings(max_examples=12)
@given(ROWS, st.floats(0.1, 0.9), st.integers(0, 9))
def test_val_shares_no_class_with_any_other_split(rows, fraction, seed):
    made = of_rows([("train", "x"), ("train", "y"), *rows])
    divided = with_val_classes(made, fraction, seed)
    classes = {split: set(part["fine"]) for (split,), part in divided.items.group_by("split")}
    assert classes["val"]
    assert None not in classes["val"]
    assert all(classes["val"].isdisjoint(found) for split, found in classes.items() if split != "val")
    assert classes["train"] - {None}
    rejoined = divided.items.with_columns(pl.col("split").replace("val", "train"))
    assert rejoined.equals(made.items)
    assert with_val_classes(made, fraction, seed).items.equals(divided.items)


def test_val_classes_are_chosen_from_the_train_split_of_a_release(tmp_path):
    maker("sop")(tmp_path, 0)
    whole = read_release("sop", tmp_path, SourceConfig())
    found = read_release("sop", tmp_path, SourceConfig(val_classes=0.5))
    classes = {split: set(part["product"]) for (split,), part in found.items.group_by("split")}
    assert set(classes) == {"train", "val", "test"}
    assert classes["train"] | classes["val"] == set(whole.items.filter(split="train")["product"])
    only = read_release("sop", tmp_path, SourceConfig(val_classes=0.5, splits=("val", "test")))
    assert only.items.equals(found.items.filter(pl.col("split") != "train"))


def test_val_classes_are_refused_if_train_has_none_or_val_exists():
    both = [("train", "a"), ("train", "b")]
    for rows, fraction, said in (
        ([*both, ("val", "c")], 0.5, "already has a split val"),
        ([("test", "a"), ("test", "b")], 0.5, "takes classes of the split train, but the splits are test"),
        ([*both, ("test", "a"), ("test", "b")], 0.5, "there are 0 finest classes"),
        (both, 1.0, "--val-classes is 1; expected"),
    ):
        with pytest.raises(ConfigError, match=said):
            with_val_classes(of_rows(rows), fraction, 0)


# -- excluded items ---------------------------------------------------------------------------------------------------


def listed(tmp_path, text):
    path = tmp_path / "exclude.csv"
    path.write_text(text)
    return path


def test_excluded_items_are_dropped_with_their_reason_and_counted(catalog, tmp_path):
    file = listed(tmp_path, 'probability,key,reason\n0.9,2/1,"wrong-label, perhaps"\n.8,0/0,\n.7,9/9,x\n.6,2/1,again\n')
    judged = pl.DataFrame({"query": ["2/1", "1/0"], "item": ["1/1", "1/2"], "verdict": ["good", "good"]})
    lists = pl.DataFrame({"list": ["a", "a"], "key": ["0/0", "1/0"]})
    made = without_excluded(replace(catalog, judgements=judged, lists=lists), file)
    assert set(catalog.items["key"]) - set(made.items["key"]) == {"2/1", "0/0"}
    assert file in made.sources
    left = [getattr(made, table).rows() for table in ("lists", "judgements")]
    assert left == [[("a", "1/0")], [("1/0", "1/2", "good")]]
    assert made.dropped is not None
    assert set(made.dropped.select("reason", "detail").rows()) == {
        ("excluded", "2/1: wrong-label, perhaps"),
        ("excluded", "0/0"),
    }
    assert made.notes == (
        "2 items are excluded because exclude.csv lists them.",
        "1 keys of exclude.csv are not items of this build: '9/9'.",
    )


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("item\n2/1\n", "lacks the column 'key'"),
        ("key,reason\n2/1,x\n ,y\n", "line 3: an empty key"),
        ("key\nmine/1\n", "none of its 1 keys is an item of 'toy'; expected keys such as '0/0'"),
        ("key\n" + "\n".join(ToyRelease.make().items()["key"]), "excludes all"),
    ],
)
def test_invalid_exclusion_list_is_refused(catalog, tmp_path, text, said):
    with pytest.raises(TableError) as refused:
        without_excluded(catalog, listed(tmp_path, text))
    assert said in str(refused.value)
    assert "exclude.csv" in str(refused.value)
