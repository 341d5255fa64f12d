"""Names in a taxonomy: which class each means, what the class graph gets, and the levels that it can be."""

import polars as pl
import pytest
from hgld.pipelines.hierarchy.levels.named_tops import TopByClasses, decide_by_classes, named_tops
from hgld.pipelines.hierarchy.names.tree import classes_in_tree, group_labels, tree_files, tree_levels
from hypothesis import given
from hypothesis import strategies as st

from hgld.errors import HierarchyError
from hgld.pipelines.hierarchy.config import TreeConfig
from hgld.pipelines.hierarchy.names.class_graph import ClassGraph
from hgld.pipelines.hierarchy.names.classes import Item
from hgld.pipelines.hierarchy.names.name_classes import MATCH_COLUMNS
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


def found(names, taxonomy=None, **options):
    return classes_in_tree(taxonomy or tree(), TreeConfig(**options), names)


def test_names_mean_classes_by_id_name_or_further_name_and_never_by_chance():
    listed = items("Crane", "Container_Ship", "box  boat", "BIRD", "crane", "zebra", ids=["n3"])
    known = found(listed)
    assert known.of == {"Container_Ship": "n1", "box  boat": "n1", "BIRD": "bird", "n3": "n3"}
    assert list(known.how.values()) == [
        *("by id", "by name", "by a further name", "by name"),
        *("several-meanings", "not-in-tree"),
    ]
    assert known.statuses == {}
    assert known.notes[0].endswith(
        "classes for 4 of 6 items: 2 by name, 1 by a further name, 1 by id, 1 not-in-tree, 1 several-meanings."
    )
    assert known.notes[1:] == ("not in the tree: zebra.", "of several classes in the tree: crane.")
    table = known.matches(listed)
    assert table.schema == MATCH_COLUMNS
    assert table.filter(pl.col("class_id").is_null())["name"].to_list() == ["crane", "zebra"]


def test_the_most_usual_meaning_is_taken_where_the_format_knows_it():
    known = found(items("crane", "bird"), tree(by_usage=True))
    assert known.of == {"crane": "n3", "bird": "n2"}  # as their order says
    assert known.how == {"crane": "by its most usual meaning", "bird": "by name"}


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


def test_a_tree_that_has_none_of_the_names_is_refused():
    with pytest.raises(HierarchyError, match=r"tree.csv: none of the 2 names is a class of it, for instance 'x', 'y'"):
        found(items("x", "y"))


def test_levels_put_every_name_of_the_tree_somewhere_and_say_who_is_left_out():
    names = items("container ship", "ship", "bird", "zebra")
    with pytest.raises(HierarchyError, match="'vehicle' under 'machine' and 'cargo'"):
        found(names, tree_use="levels")
    known = found(names, tree_use="levels", parents="first", cut="root:1")
    assert known.statuses == {"zebra": "not-in-tree"}
    levels = tree_levels(tree(), TreeConfig(parents="first", cut="root:1"), known.of.values())
    assert group_labels(levels) == {"n1": ["machine"], "ship": ["machine"], "bird": ["bird"]}
    named = tree_levels(tree(), TreeConfig(parents="first"), known.of.values(), ("item", "kind", "realm"))
    assert group_labels(named)["n1"] == ["machine", "thing"]
    with pytest.raises(HierarchyError, match=r"has no level above the names by ranks:"):
        tree_levels(ranked(), TreeConfig(cut="ranks:species"), ["a"])


def ranked():
    made = TaxonomyBuilder("ranked.csv", "edge-list")
    for child, parent in (("a", "G"), ("G", "F"), ("b", "F"), ("c", "nowhere")):
        made.link(child, parent)
    for name, rank in {"a": "species", "b": "species", "c": "species", "G": "genus", "F": "family"}.items():
        made.describe(name, rank=rank)
    return made.finish()


def test_levels_by_rank_begin_above_the_names_and_drop_those_without_any():
    known = found(items("a", "b", "c"), ranked(), tree_use="levels", cut="ranks")
    assert known.statuses == {"c": "no-class-above"}
    levels = tree_levels(ranked(), TreeConfig(cut="ranks"), ["a", "b"])
    assert levels.cut == "ranks:genus,family"
    assert group_labels(levels) == {"a": ["G", "F"], "b": ["b", "F"]}  # no genus is known of b: it stands for itself
    inner = tree_levels(ranked(), TreeConfig(cut="ranks:family"), ["G", "b"])
    assert group_labels(inner) == {"G": ["F"], "b": ["F"]}


def test_files_of_a_tree_are_those_whose_contents_count(tmp_path):
    (tmp_path / "data.noun").touch()
    (tmp_path / "index.noun").touch()
    (tmp_path / "other").touch()
    assert [file.name for file in tree_files(TreeConfig(tmp_path))] == ["data.noun", "index.noun"]
    assert tree_files(TreeConfig(tmp_path / "other")) == [tmp_path / "other"]
    assert tree_files(TreeConfig(tmp_path / "none")) == tree_files(TreeConfig()) == []


# -- given classes of the top level, by the graph ----------------------------------------------------------------------

KINDS = ClassGraph(
    {"a": "Animal", "b": "dog_breed", "c": "beagle", "p": "plant", "m": "moss animal"},
    {"b": ["a"], "c": ["b"], "m": ["a", "p"], "p": ["root"], "a": ["root"]},
)


def test_a_group_has_the_class_that_leads_by_a_third_of_what_its_names_stand_for():
    anchors = named_tops(KINDS, ("animal", "plant"))
    assert anchors == {"a": "animal", "p": "plant"}
    names, classes = ["beagle", "fern", "ghost"], [["c"], ["p"], []]
    found = decide_by_classes(names, [5, 1, 3], classes, KINDS, anchors)
    assert (found.top, found.lead) == ("animal", pytest.approx(4 / 9))
    assert found.evidence == "class graph: animal 5, plant 1 of 9; beagle: beagle → dog_breed → Animal"
    found = decide_by_classes(names, [3, 1, 6], classes, KINDS, anchors)
    assert (found.top, found.lead) == (None, pytest.approx(0.2))
    assert found.evidence == "class graph: animal 3, plant 1 of 10"
    assert decide_by_classes(["moss animal"], [1], [["m"]], KINDS, anchors) == TopByClasses(None, 0.0, "")  # both
    assert named_tops(KINDS, ("x", "y")) == {}


def test_a_group_of_which_most_lies_below_no_given_class_has_none():
    anchors = named_tops(KINDS, ("animal", "plant"))
    names, classes = ["beagle", "thing", "ghost"], [["c"], ["root"], []]
    found = decide_by_classes(names, [1, 3, 1], classes, KINDS, anchors)
    assert found == TopByClasses(None, 0.0, "class graph: 3 of 5 lie below none of them", is_outside=True)
    assert not decide_by_classes(names, [3, 3, 0], classes, KINDS, anchors).is_outside
    assert not decide_by_classes(names, [0, 1, 3], classes, KINDS, anchors).is_outside  # of the ghost nothing is known


def decided(rows):
    names, counts, classes = zip(*rows, strict=True)
    return decide_by_classes(names, counts, classes, KINDS, named_tops(KINDS, ("animal", "plant")))


@given(st.lists(st.sampled_from(["a", "b", "c", "p", "m", "root", "none"]), min_size=1, max_size=6), st.randoms())
def test_the_order_of_names_does_not_decide(classes, random):
    rows = [(f"name {i}", i + 1, [class_id]) for i, class_id in enumerate(classes)]
    told = decided(rows)
    random.shuffle(rows)
    assert decided(rows) == told
