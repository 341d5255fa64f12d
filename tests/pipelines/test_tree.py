"""Names in a taxonomy: which class each means, and what the class graph gets."""

import polars as pl

from hgld.pipelines.hierarchy.config import TreeConfig
from hgld.pipelines.hierarchy.names.class_graph import MATCH_COLUMNS, ClassGraph, classes_in_tree, tree_files
from hgld.pipelines.hierarchy.names.classes import Item
from hgld.taxonomy.graph import TaxonomyBuilder

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
    made.call("bird", "n2")  # a further name, which is also the name of another class
    made.call("Crane", "n3")
    made.call("crane", "n2")
    return made.finish(by_usage=by_usage)


def items(*names, ids=()):
    given = [*ids, *names[len(ids) :]]
    return [Item(line, id_, name) for line, (id_, name) in enumerate(zip(given, names, strict=True), 1)]


def found(names, taxonomy=None):
    return classes_in_tree(taxonomy or tree(), names)


def test_names_mean_classes_by_id_name_or_further_name_and_never_by_chance():
    listed = items("Crane", "Container_Ship", "box  boat", "BIRD", "crane", "zebra", ids=["n3"])
    known = found(listed)
    assert known.of == {"Container_Ship": "n1", "box  boat": "n1", "BIRD": "bird", "n3": "n3"}
    assert list(known.how.values()) == [
        *("by id", "by name", "by a further name", "by name"),
        *("several-meanings", "not-in-tree"),
    ]
    assert known.statuses == {}
    assert known.notes[0].endswith("has classes for 4 of 6 names.")
    assert known.notes[1:] == ("not in the tree: zebra.", "of several classes in the tree: crane.")
    table = known.matches(listed)
    assert table.schema == MATCH_COLUMNS
    assert table.filter(pl.col("class_id").is_null())["name"].to_list() == ["crane", "zebra"]


def test_a_name_whose_items_have_different_classes_has_none():
    known = found(items("crane", "crane", "ship", ids=["n2", "n3"]))
    assert known.of == {"ship": "ship"}
    assert known.how == {"n2": "several-meanings", "n3": "several-meanings", "ship": "by name"}


def test_the_graph_has_the_classes_found_and_all_above_them(tmp_path):
    known = found(items("container ship"))
    known.graph.write_parquet(tmp_path / "classes.parquet")
    graph = ClassGraph.read(tmp_path / "classes.parquet")
    assert graph.ancestors("n1") == {"ship": 1, "vehicle": 2, "cargo": 3, "machine": 3, "thing": 4}
    assert graph.label("n1") == "container ship"
    assert "animal" not in graph


def test_items_without_a_group_have_a_status_where_the_tree_is_the_levels():
    listed = items("container ship", "ship", "bird", "zebra")
    known = classes_in_tree(tree(), listed, group_of={"n1", "ship"}, rules={"cut": "root:1"})
    assert known.statuses == {"zebra": "not-in-tree", "bird": "no-class-above"}
    assert known.key["cut"] == "root:1"


def test_files_of_a_tree_are_those_whose_contents_count(tmp_path):
    (tmp_path / "data.noun").touch()
    (tmp_path / "index.noun").touch()
    (tmp_path / "other").touch()
    assert [file.name for file in tree_files(TreeConfig(tmp_path))] == ["data.noun", "index.noun"]
    assert tree_files(TreeConfig(tmp_path / "other")) == [tmp_path / "other"]
    assert tree_files(TreeConfig(tmp_path / "none")) == tree_files(TreeConfig()) == []
