"""The graph of classes, and the classes of names in a taxonomy."""

import itertools

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hgld.pipelines.hierarchy.names import class_graph
from hgld.pipelines.hierarchy.names.class_graph import MATCH_COLUMNS, ClassGraph, classes_in_tree
from hgld.pipelines.hierarchy.names.classes import Item
from hgld.taxonomy.graph import TaxonomyBuilder


def test_feature_vectors_with_more_classes_than_axes_keep_their_cosines(monkeypatch):
    graph = ClassGraph({}, {"Q1": ["Q2"], "Q2": ["Q3"], "Q4": ["Q3", "Q5"], "Q5": ["Q6"], "Q7": ["Q6"]})
    names = [["Q1"], ["Q2"], ["Q4"], ["Q7"], ["Q99"], []] * 2
    rows = graph.rows(names)
    monkeypatch.setattr(class_graph, "_AXES", 5)
    fewer = graph.rows(names)
    assert (rows.shape[1], fewer.shape[1]) == (7, 5)
    np.testing.assert_allclose(fewer @ fewer.T, rows @ rows.T, atol=1e-5)


ids = st.integers(0, 9).map(lambda n: f"Q{n}")


@given(
    parents=st.dictionaries(ids, st.lists(ids, max_size=3), min_size=1),
    members=st.lists(st.lists(ids, max_size=3), min_size=1, max_size=6),
)
def test_paths_and_feature_vectors_of_any_graph_match_their_definitions(parents, members):
    graph = ClassGraph({}, parents)
    for class_id in graph.ids:
        for ancestor, distance in graph.ancestors(class_id).items():
            way = graph.path(class_id, ancestor)
            assert len(way) == distance + 1
            assert all(up in parents[down] for down, up in itertools.pairwise(way))
    above = [
        {up for c in classes if c in graph for up in (c, *graph.ancestors(c)) if graph.information_content[up] > 0}
        for classes in members
    ]
    rows = graph.rows(members)
    for i, j in itertools.product(range(len(members)), repeat=2):
        content = [sum(graph.information_content[c] for c in of) for of in (above[i] & above[j], above[i], above[j])]
        expected = content[0] / (content[1] * content[2]) ** 0.5 if content[1] and content[2] else 0
        assert rows[i] @ rows[j] == pytest.approx(expected, abs=1e-5)


LINKS = [
    ("n1", "container ship", "ship"),
    ("n2", "crane", "bird"),
    ("n3", "crane", "machine"),
    ("ship", "ship", "vehicle"),
    ("bird", "bird", "animal"),
    ("machine", "machine", "thing"),
    ("vehicle", "vehicle", "machine"),
    ("vehicle", "vehicle", "cargo"),
]


def tree(*, by_usage=False):
    made = TaxonomyBuilder("tree.csv", "edge-list")
    for line, (child, name, parent) in enumerate(LINKS, 1):
        made.link(child, parent, line)
        made.describe(child, name)
    made.call("box boat", "n1")
    made.call("bird", "n2")  # this synonym is also the name of another class
    made.call("Crane", "n3")
    made.call("crane", "n2")
    return made.finish(by_usage=by_usage)


def items(*names, ids=()):
    given = [*ids, *names[len(ids) :]]
    return [Item(line, id_, name) for line, (id_, name) in enumerate(zip(given, names, strict=True), 1)]


def found(names, taxonomy=None):
    return classes_in_tree(taxonomy or tree(), names)


def test_names_match_classes_by_id_name_or_unique_synonym():
    listed = items("Crane", "Container_Ship", "box  boat", "BIRD", "crane", "zebra", ids=["n3"])
    known = found(listed)
    assert known.of == {"Container_Ship": "n1", "box  boat": "n1", "BIRD": "bird", "n3": "n3"}
    found_by = ["by id", "by name", "by a further name", "by name", "several-meanings", "not-in-tree"]
    assert list(known.how.values()) == found_by
    assert known.statuses == {}
    assert known.notes[0].endswith("has classes for 4 of 6 names.")
    assert known.notes[1:] == ("not in the tree: zebra.", "of several classes in the tree: crane.")
    table = known.matches(listed)
    assert table.schema == MATCH_COLUMNS
    assert table.filter(pl.col("class_id").is_null())["name"].to_list() == ["crane", "zebra"]
    known = found(items("crane", "crane", "ship", ids=["n2", "n3"]))
    assert known.of == {"ship": "ship"}, "the items of one name have different classes"
    assert known.how == {"n2": "several-meanings", "n3": "several-meanings", "ship": "by name"}


def test_class_graph_has_only_matched_classes_and_their_ancestors(tmp_path):
    known = found(items("container ship"))
    known.graph.write_parquet(tmp_path / "classes.parquet")
    graph = ClassGraph.read(tmp_path / "classes.parquet")
    assert graph.ancestors("n1") == {"ship": 1, "vehicle": 2, "cargo": 3, "machine": 3, "thing": 4}
    assert graph.label("n1") == "container ship"
    assert "animal" not in graph


def test_items_without_group_get_a_status_if_the_tree_gives_levels():
    listed = items("container ship", "ship", "bird", "zebra")
    known = classes_in_tree(tree(), listed, group_of={"n1", "ship"}, rules={"cut": "root:1"})
    assert known.statuses == {"zebra": "not-in-tree", "bird": "no-class-above"}
    assert known.key["cut"] == "root:1"
