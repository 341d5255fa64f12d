"""Class-disjoint test and validation splits, randomly chosen with a seed, for any source."""

from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hgld.errors import ConfigError
from hgld.pipelines.shards.build import read_release
from hgld.pipelines.shards.catalog import Catalog
from hgld.pipelines.shards.catalog_changes import draw_classes, with_val_classes
from hgld.pipelines.shards.config import SourceConfig
from tests.fake_releases.__main__ import maker


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


def catalog(rows: list[tuple[str, str | None]], **fields: Any) -> Catalog:
    """Return a catalog with one level from (split, class) pairs."""
    items = [(str(i), split, f"{i}.jpg", name) for i, (split, name) in enumerate(rows)]
    schema = ["key", "split", "file", "fine"]
    return Catalog("toy", ("fine",), pl.DataFrame(items, schema=schema, orient="row"), Path(), **fields)


ROWS = st.lists(
    st.tuples(st.sampled_from(["train", "test", "gallery"]), st.sampled_from([None, *"abcdefgh"])), max_size=40
)


@settings(max_examples=12)
@given(ROWS, st.floats(0.1, 0.9), st.integers(0, 9))
def test_val_shares_no_class_with_any_other_split(rows, fraction, seed):
    made = catalog([("train", "x"), ("train", "y"), *rows], disjoint=False)
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
    both: list[tuple[str, str | None]] = [("train", "a"), ("train", "b")]
    cases: list[tuple[list[tuple[str, str | None]], float, str]] = [
        ([*both, ("val", "c")], 0.5, "already has a split val"),
        ([("test", "a"), ("test", "b")], 0.5, "takes classes of the split train, but the splits are test"),
        ([*both, ("test", "a"), ("test", "b")], 0.5, "there are 0 finest classes"),
        (both, 1.0, "--val-classes is 1; expected"),
    ]
    for rows, fraction, said in cases:
        with pytest.raises(ConfigError, match=said):
            with_val_classes(catalog(rows, disjoint=False), fraction, 0)
