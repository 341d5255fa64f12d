"""Hierarchy: construction, lookups, drawing, files, and the errors of invalid trees."""

import json

import networkx
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

import hgld
from hgld import Hierarchy
from hgld.errors import HierarchyError, InputError, SchemaError
from tests.hgld.small_trees import hierarchies
from tests.rows import refused

COLUMNS = {
    "landmark": ["Chartres", "Reims", "Como", "Garda", "Atlantis"],
    "group": ["church", "church", "lake", "lake", None],
    "top": ["human-made", "human-made", "natural", "natural", None],
}


@pytest.fixture
def tree():
    return Hierarchy.from_columns(COLUMNS)


def test_class_ids_do_not_depend_on_the_order_of_rows(tree):
    backwards = Hierarchy.from_columns({k: v[::-1] for k, v in COLUMNS.items()})
    assert backwards == tree
    assert tree.names[0] == ("Atlantis", "Chartres", "Como", "Garda", "Reims")


@pytest.mark.parametrize(
    "table",
    [
        pl.DataFrame(COLUMNS),
        pa.table(COLUMNS),
        pd.DataFrame(COLUMNS),
        pd.DataFrame(COLUMNS, dtype="string"),  # missing values are NA instead of None
        {**COLUMNS, "top": [*COLUMNS["top"][:4], float("nan")]},
    ],
)
def test_from_columns_accepts_tables_of_other_packages(tree, table):
    assert Hierarchy.from_columns(table) == tree


EDGES = [("Reims", "church"), ("Como", "lake"), ("church", "human-made"), ("lake", "natural")]


def test_from_edges_makes_levels_and_fills_short_branches():
    tree = Hierarchy.from_edges(EDGES, levels=("landmark", "group", "top"))
    assert tree == Hierarchy.from_columns({level: names[1:3] for level, names in COLUMNS.items()})
    uneven = Hierarchy.from_edges({**dict(EDGES), "cave": "natural", "moon": None})
    assert (uneven.levels, uneven.names[1]) == (("level0", "level1", "level2"), ("cave", "church", "lake", "moon"))
    under_one = [*EDGES, ("human-made", "thing"), ("natural", "thing")]
    assert Hierarchy.from_edges(under_one).names == tree.names


@given(hierarchies())
def test_networkx_graph_is_converted_back_to_the_same_tree(tree):
    assert Hierarchy.from_networkx(tree.to_networkx()) == tree


def test_networkx_edges_may_point_down_or_up():
    down = networkx.DiGraph([("animal", "dog"), ("animal", "cat"), ("plant", "oak")])
    tree = Hierarchy.from_networkx(down, levels=("kind", "top"))
    assert tree.names == (("cat", "dog", "oak"), ("animal", "plant"))
    assert Hierarchy.from_networkx(down.reverse(), levels=("kind", "top")) == tree


def test_lookups_find_classes_and_ancestors_or_raise_errors(tree):
    assert (tree.index("Como"), tree.index("lake", "group"), tree.index("lake", level=1)) == (2, 1, 1)
    assert tree.lca("Chartres", "Reims") == tree.lca(1, 4) == ("group", "church")
    assert tree.lca("church", "church", level="group") == ("group", "church")
    assert tree.lca("Chartres", "Como") is tree.lca("Atlantis", "Como") is None
    for call, words in (
        (lambda: tree.index("lake"), "'landmark' has no class 'lake'. It is a class of level group"),
        (lambda: tree.index("Rheims"), r"no class 'Rheims'. Did you mean 'Reims'\?"),
        (lambda: tree.lca(0, 9), r"has classes 0\.\.4"),
        (lambda: tree.index("Como", 3), "level 3 is unknown"),
        (lambda: tree.restrict(["top", "group"]), "fine to coarse"),
        (lambda: tree.restrict(["kind"]), "'kind' is unknown; the levels are landmark, group, top"),
        (lambda: tree.expand([5]), r"0\.\.4"),
        (lambda: tree.counts(np.array([[0, 9, 0]])), "label 9"),
        (lambda: tree.check_labels(np.array([[1, 0, 0], [2, 0, 0]])), "item 1: 'Como' belongs to 'lake', not 'church'"),
    ):
        with pytest.raises(HierarchyError, match=words):
            call()


def test_plot_has_one_row_per_level_with_bar_widths_equal_to_item_counts(tree):
    axes = Figure().subplots()
    assert tree.plot(axes, labels=np.array([1, 1, 1, 2])) is axes
    assert [bar.get_width() for bar in axes.patches if isinstance(bar, Rectangle)] == [3, 1] * 3
    assert {text.get_text() for text in axes.texts} >= {"Chartres", "Como", "church", "lake", "human-made", "natural"}
    assert [label.get_text() for label in axes.get_yticklabels()] == ["landmark\n5", "group\n2", "top\n2"]


def test_expand_returns_coarser_labels_and_counts_are_per_level(tree):
    assert tree.expand([1, 2, 0, -1]).tolist() == [[1, 0, 0], [2, 1, 1], [0, -1, -1], [-1, -1, -1]]
    assert tree.expand([1, -1], "group").tolist() == [[1, 1], [-1, -1]]
    counts = {level: found.tolist() for level, found in tree.counts().items()}
    assert counts == {"landmark": [1] * 5, "group": [2, 2], "top": [2, 2]}
    assert tree.counts(np.array([1, 1, 1, 2, -1]))["group"].tolist() == [3, 1]


@given(hierarchies())
def test_hierarchy_is_read_back_from_its_files(tmp_path_factory, tree):
    folder = tmp_path_factory.mktemp("tree")
    tree.to_parquet(folder / "hierarchy.parquet")
    assert Hierarchy.read(folder) == Hierarchy.read(folder / "hierarchy.parquet") == tree


@given(hierarchies(), st.data())
def test_restricted_tree_keeps_the_paths(tree, data):
    chosen = sorted(data.draw(st.sets(st.integers(0, len(tree.levels) - 1), min_size=1)))
    small = tree.restrict([tree.levels[c] for c in chosen])
    finest = np.arange(tree.num_classes[chosen[0]])
    expected = tree.expand(finest, tree.levels[chosen[0]])[:, [c - chosen[0] for c in chosen]]
    np.testing.assert_array_equal(small.expand(finest), expected)


test_invalid_trees_are_refused = refused(
    lambda make, arguments: make(*arguments),
    [
        (Hierarchy, ((), (), ()), "at least one level"),
        (Hierarchy, (("a", "a"), (["x"], ["y"]), ([0],)), "distinct names"),
        (Hierarchy, (("a",), (["x", "x"],), ()), "same name: 'x'"),
        (Hierarchy, (("a", "b"), (["x"], ["y"]), ([1],)), "'x' -> 1"),
        (Hierarchy, (("a", "b"), (["x"], ["y"]), ([0, 0],)), "integers, one per class"),
        (Hierarchy, (("a", "b"), (["x"], ["y"]), ()), "0 lists of parents"),
        (Hierarchy, (("a", "b"), (["x"], ["y"]), ([2**32],)), "do not exist"),
        (Hierarchy.from_columns, ({"a": ["x"], "b": ["y", "z"]},), "a: 1, b: 2"),
        (Hierarchy.from_columns, ({"a": ["x", "x"], "b": ["y", "z"]},), "'x' under 'y' and 'z'"),
        (Hierarchy.from_columns, ({"a": [1, 2]},), "level 'a' has the class 1; .*from_labels for integers"),
        (Hierarchy.from_labels, (np.array([[0.0]]), ["a"]), "float64"),
        (Hierarchy.from_labels, (np.array([[3]]), ["a"], [["x"]]), "label 3 but only 1"),
        (Hierarchy.from_edges, ([("a", "b"), ("a", "c")],), "several parents: 'a' under 'b' and 'c'"),
        (Hierarchy.from_edges, ([],), "edges has no classes"),
        (Hierarchy.from_edges, ([("a", "b"), ("c", "d")], ("x", "y", "z")), "3 level names, but the edges form 2"),
        (Hierarchy.from_networkx, (networkx.Graph([("a", "b")]),), "the graph is undirected; expected a DiGraph"),
    ],
    HierarchyError,
)


def test_other_schema_versions_are_refused(tmp_path):
    table = tmp_path / "hierarchy.parquet"
    for version in (None, "99"):
        metadata = {} if version is None else {"hgld.schema_version": version}
        pl.DataFrame({"level": ["a"]}).write_parquet(table, metadata=metadata)
        with pytest.raises(SchemaError, match=f"schema version is {version!r}; this hgld reads version 1"):
            Hierarchy.from_parquet(table)


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        (
            {"parent": pl.col("parent").cast(pl.String)},
            r"missing: 'parent' \(String\); expected level: String, label: Int32",
        ),
        ({"parent": pl.col("parent").cast(pl.Int64) + 2**32}, r"'parent' \(Int64\)"),
        ({"name": pl.lit(None, pl.String)}, "without a name"),
        ({"level": pl.lit("land")}, "rows have the level 'land'"),
        ({"label": pl.lit(None, pl.Int32)}, "not 0..4, each once"),
    ],
)
def test_damaged_tables_are_refused(tmp_path, tree, columns, said):
    path = tmp_path / "hierarchy.parquet"
    metadata = {"hgld.schema_version": "1", "hgld.levels": json.dumps(tree.levels)}
    tree.to_frame().with_columns(**columns).write_parquet(path, metadata=metadata)
    with pytest.raises(InputError, match=said) as caught:
        Hierarchy.from_parquet(path)
    assert str(path) in str(caught.value)


def test_package_all_lists_the_public_names():
    assert {name for name in hgld.__all__ if getattr(hgld, name) is not None} == set(hgld.__all__)
    with pytest.raises(AttributeError, match="no attribute 'Heirarchy'"):
        hgld.Heirarchy  # noqa: B018  # pyright: ignore[reportAttributeAccessIssue]
