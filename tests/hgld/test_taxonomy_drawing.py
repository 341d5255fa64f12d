"""Drawings of hierarchies: their content, size limits and escaping, and the subcommand that prints them."""

import html
import re
import unicodedata

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hgld import Hierarchy
from hgld.tree_drawing import tree_data, tree_text
from tests.hgld.small_dataset import items_of_classes, write_dataset
from tests.hgld.small_trees import hierarchies


@pytest.fixture
def animals():
    return Hierarchy(
        ("name", "kind", "top"),
        (("dog", "cat", "oak", "stone"), ("animal", "oak", "thing"), ("living",)),
        (np.array([0, 0, 1, 2]), np.array([0, 0, -1])),
    )


def test_text_tree_has_the_largest_classes_first_without_repeated_names(animals):
    assert animals.to_tree_text() == (
        "top 1 > kind 3 > name 4\n"
        "├─ living  3\n"
        "│  ├─ animal  2\n"
        "│  │  ├─ cat\n"
        "│  │  └─ dog\n"
        "│  └─ oak  1\n"  # the only child of "oak" has the same name and is not repeated
        "└─ (top unknown)  1\n"
        "   └─ thing  1\n"
        "      └─ stone"
    )
    assert str(animals) == animals.to_tree_text()
    assert repr(animals) == "Hierarchy(name: 4, kind: 3, top: 1)"


def test_limits_on_depth_children_and_lines_shorten_the_drawing_with_a_note(animals):
    assert animals.to_tree_text(depth=1) == "top 1 > kind 3 > name 4\n├─ living  3\n└─ (top unknown)  1"
    wide = Hierarchy(("n", "k"), (tuple("abcde"), ("x", "y", "z")), (np.array([0, 0, 0, 1, 2]),))
    assert wide.to_tree_text(most=1).splitlines()[1:] == [
        "├─ x  3",
        "│  ├─ a",
        "│  └─ … 2 more",
        "└─ … 2 more, 2 below",
    ]
    assert wide.to_tree_text(lines=4).splitlines()[1:] == ["├─ x  3", "├─ y  1", "└─ z  1", "(1 finer level not drawn)"]
    assert wide.to_tree_text(lines=8).count("drawn") == 0
    assert wide.to_tree_text(lines=2, depth=2).splitlines()[1:] == ["├─ x  3", "│  ├─ a", "…"]


def cells(text):
    return sum(2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text)


@given(hierarchies(), st.integers(40, 100), st.integers(1, 4), st.integers(1, 6))
def test_drawing_stays_within_its_width_and_number_of_lines(tree, width, most, lines):
    drawn = tree_text(tree, width=width, most=most, lines=lines).splitlines()
    assert len(drawn) <= lines + 3
    assert all(cells(line) <= width for line in drawn[1:])


@given(hierarchies())
def test_full_tree_counts_every_finest_class_once(tree):
    data = tree_data(tree)
    assert sum(branch["items"] for branch in data) == tree.num_classes[0]
    for branch in data:
        below = branch.get("below", [])
        assert not below or sum(b["items"] for b in below) == branch["items"]


def test_tags_and_control_characters_of_names_are_escaped():
    tree = Hierarchy(("n<script>",), (("\x1b[2J\n<script>\u202e",),), ())
    assert tree.to_tree_text().splitlines()[1] == "└─ \\x1b[2J <script>\\u202e"
    shown = tree._repr_html_()
    assert html.unescape(shown.removeprefix("<pre>").removesuffix("</pre>")) == str(tree)
    assert re.findall("<[^>]*>", shown) == ["<pre>", "</pre>"]


# -- hgld show ---------------------------------------------------------------------------------------------------------


def test_show_counts_the_images_of_a_dataset(output, json_of, tmp_path):
    write_dataset(tmp_path / "data", items_of_classes([5, 3, 1], ["test"]))
    told = json_of("show", tmp_path / "data")
    assert (told["counted"], told["format"]) == ("images", "hgld")
    assert sum(branch["items"] for branch in told["tree"]) == 9
    assert "numbers count images" in output("show", tmp_path / "data", "--depth", "1", "--most", "1")


def test_show_reports_and_lists_the_changes_by_rules(output, json_of, refusal, tmp_path):
    file = tmp_path / "edges.csv"
    file.write_text("child,parent\ncat,animal\n=dog,pet\n=dog,animal\npet,animal\noak,plant\n")
    said = refusal("show", file)
    assert re.search("'=dog' under 'pet' and 'animal'.*choose --parents first or most-specific", said, re.DOTALL)
    words = ("show", file, "--parents", "most-specific", "--cut", "leaves:1", "--changes", tmp_path / "changes.csv")
    out = output(*words, said="")
    lines = out.splitlines()
    assert (lines[0], max(map(len, lines)) <= 80) == ("height 1 3 > class 3", True)
    assert "classes under several parents: 1; parents left out: 1." in " ".join(lines)
    changes = (tmp_path / "changes.csv").read_text().splitlines()
    assert changes == ["id,name,what,detail", "'=dog,'=dog,several parents,\"kept pet, left out animal\""]
    named = json_of(*words, "--levels", "name,kind")
    assert named["levels"] == {"name": 3, "kind": 3}
    assert "Give as many names" in refusal("show", file, "--parents", "first", "--levels", "a,b,c,d,e")


def test_show_refuses_unfinished_folders(refusal, tmp_path):
    for mark in (".hgld-build", "dataset.json"):
        (tmp_path / mark / "stages").mkdir(parents=True)
        (tmp_path / mark / mark).touch()
        assert "has no hierarchy.parquet yet" in refusal("show", tmp_path / mark)
