"""Predefined groups: their tables and taxonomies, and the assignment of names to them."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hgld.errors import HierarchyError, TableError
from hgld.pipelines.hierarchy.config import TreeConfig
from hgld.pipelines.hierarchy.groups.evidence import TEXT, Block, Evidence
from hgld.pipelines.hierarchy.groups.given import (
    Examples,
    GivenGroup,
    GivenGroups,
    embed_examples,
    place_names,
    read_groups,
    tree_groups,
)
from hgld.pipelines.hierarchy.groups.regression import group_shares
from hgld.pipelines.hierarchy.unit_rows import unit
from hgld.pipelines.stage import silent
from hgld.taxonomy.graph import TaxonomyBuilder
from tests.rows import each_row


def read(folder, text):
    (folder / "groups.csv").write_text(text)
    return read_groups(folder / "groups.csv")


def test_group_table_gives_descriptions_seeds_and_parents(tmp_path):
    found = read(
        tmp_path,
        "name,description,parent,Seed Names\n"
        'apple,"round, on trees",Fruit,gala|Granny Smith\n'
        "plant,,,\n"
        "fruit,what trees bear,plant,\n"
        "tool,,,hammer\n",
    )
    apple, tool = found.groups
    assert (apple.name, apple.description, apple.seeds) == ("apple", "round, on trees", ("gala", "Granny Smith"))
    assert apple.above == ("fruit", "plant")  # spelled as in the row of the parent
    assert (tool.above, tool.seeds, found.levels_above) == ((), ("hammer",), 2)
    assert apple.evidence == "given in line 2; 2 seeds: round, on trees"
    assert [group.name for group in read(tmp_path, "salt, sugar\nflour\n\n").groups] == ["salt, sugar", "flour"]


@each_row(
    ("text", "said"),
    [
        ("name\nfruit\nFruit\n", "is in line 2 and in line 3"),
        ("name,parent\na,b\nb,a\n", "is below itself"),
        ("name,parent\na,a\n", "is below itself"),
        ("name,parent\nx,a\na,b\nb,a\n", "is below itself"),
        ("name,parent\n,b\n", "line 2: no name"),
        ("fruit\nNone of these\n", "line 2: a group cannot be called 'none of these'"),
        ("name\n\n", "every group is the parent"),
        ("name,seeds\na," + "x" * 100_001, "seeds has 100,001 characters"),
    ],
)
def test_invalid_group_tables_are_refused(tmp_path, text, said):
    with pytest.raises(TableError, match=r"groups\.csv") as refused:
        read(tmp_path, text)
    assert said in str(refused.value)


def rows_of(*points):
    return unit(np.array(points, dtype=np.float32))


class Corners:
    """An encoder with one axis per letter a, b and c."""

    name = key = "corners"
    templates: tuple[str, ...] = ()
    dim = 3

    def encode(self, names, progress=silent):
        return rows_of(*[[name.count(letter) for letter in "abc"] for name in names])


def test_examples_are_the_texts_that_the_encoder_knows_and_the_rows_of_seeds_that_are_names():
    groups = [GivenGroup("a", "", "b", ("c", "A name", "x")), GivenGroup("x", "")]
    evidence = Evidence((Block.of(TEXT, rows_of([1, 1, 0], [0, 1, 1])),), (1.0,), np.eye(1))
    rows, examples = embed_examples(Corners(), groups, ["a name", "other"], evidence)
    assert examples.texts == ("a", "b", "c", "A name")
    assert examples.groups.tolist() == [0, 0, 0, 0]
    assert np.allclose(examples.rows, [[1, 0, 0], [0, 1, 0], [0, 0, 1], rows[0]], atol=1e-6)


def shown(points):
    return Examples(tuple(map(str, range(len(points)))), np.arange(len(points)), points)


def test_name_equal_to_a_group_or_its_seed_is_placed_in_this_group():
    groups = GivenGroups(
        (GivenGroup("lake", ""), GivenGroup("Salt Lake", ""), GivenGroup("hill", "", "", ("Ben Nevis",)))
    )
    names = ["LAKE", "ben nevis", "salt lake", "hillside"]
    placed, _ = place_names(rows_of(*[[0, 0, 1]] * 4), names, groups, shown(rows_of(*np.eye(3))), 0.0)
    assert placed.groups.tolist() == [0, 2, 1, 2]
    assert placed.confidence[:3].tolist() == [1, 1, 1]


def test_three_seeds_teach_a_group_what_its_name_does_not_say():
    groups = GivenGroups((GivenGroup("a", ""), GivenGroup("b", "", "", ("r", "s", "t"))))
    rows = rows_of([1, 0.1, -0.2], [1, 0.1, 1.0], [0.2, 1, 0])
    names = Examples(("a", "b"), np.array([0, 1]), rows_of([1, 0, 0], [0, 1, 0]))
    seeded = Examples(
        ("a", "b", *"rst"),
        np.repeat([0, 1], [1, 4]),
        rows_of([1, 0, 0], [0, 1, 0], [1, 0, 1], [0.8, 0, 1], [0.9, 0, 1]),
    )
    plain, taught = (place_names(rows, ["u", "v", "w"], groups, texts, 0.0)[0] for texts in (names, seeded))
    assert plain.groups.tolist() == [0, 0, 1]
    assert taught.groups.tolist() == [0, 1, 1]


def test_three_or_more_seeds_of_a_group_are_predicted_from_the_other_examples():
    seeds = [tuple(f"{group}{i}" for i in range(count)) for group, count in (("a", 4), ("b", 4), ("c", 2))]
    groups = GivenGroups(tuple(GivenGroup(g, "", "", of) for g, of in zip("abc", seeds, strict=True)))
    texts = ("a", *seeds[0], "b", *seeds[1], "c", *seeds[2])
    corners = np.eye(3)[[0] * 5 + [1] * 5 + [2] * 3]
    corners[8] = [1, 0, 0]  # the third seed of b looks like an a
    _, stated = place_names(
        rows_of([1, 0, 0]), ["x"], groups, Examples(texts, np.repeat([0, 1, 2], [5, 5, 3]), rows_of(*corners)), 0.0
    )
    assert stated.seeds.tolist() == [0] * 4 + [1] * 4
    assert stated.right.tolist() == [True] * 6 + [False, True]


@each_row("count", [2, 300])
def test_names_find_their_group_among_many(count):
    random = np.random.default_rng(0)
    centres = random.normal(size=(count, 200))
    texts, of = unit(np.repeat(centres, 3, axis=0) + random.normal(size=(3 * count, 200))), np.repeat(range(count), 3)
    rows, truth = unit(centres + random.normal(size=(count, 200))), np.arange(count)
    assert (group_shares(rows, texts, of, count).argmax(axis=1) == truth).all()


def test_word_of_an_example_places_a_name_that_the_encoder_does_not():
    groups, rows = GivenGroups((GivenGroup("a", ""), GivenGroup("b", ""))), rows_of([1, 1], [1, 1])
    texts = Examples(("old mill", "new church"), np.arange(2), rows)
    placed, _ = place_names(rows, ["red church", "red mill"], groups, texts, 0.0)
    assert placed.groups.tolist() == [1, 0]


@given(st.integers(1, 5), st.integers(1, 12), st.integers(0, 9), st.floats(-1, 1))
def test_every_name_gets_a_group_and_a_confidence_between_0_and_1(groups, names, seed, least):
    rng = np.random.default_rng(seed)
    rows, centres = rows_of(*rng.normal(size=(names, 3))), rows_of(*rng.normal(size=(groups, 3)))
    rows[rng.random(names) < 0.3] = 0
    stated = GivenGroups(tuple(GivenGroup(f"g{i}", "") for i in range(groups)))
    placed, _ = place_names(rows, [f"n{i}" for i in range(names)], stated, shown(centres), least)
    assert ((placed.groups >= 0) & (placed.groups <= groups)).all()
    assert ((placed.confidence >= 0) & (placed.confidence <= 1)).all()
    assert (placed.next_groups != placed.groups).all()
    best = np.where(rows.any(axis=1), (rows @ centres.T).max(axis=1), -1).round(6)
    assert np.array_equal(placed.groups == groups, (best <= least) | ~rows.any(axis=1))


# -- groups of a taxonomy --------------------------------------------------------------------------------------------


def ranked():
    made = TaxonomyBuilder("ranked.csv", "edge-list")
    for child, parent in (("a", "G"), ("G", "F"), ("b", "F"), ("c", "nowhere")):
        made.link(child, parent)
    for name, rank in {"a": "species", "b": "species", "c": "species", "G": "genus", "F": "family"}.items():
        made.describe(name, rank=rank)
    return made.finish()


def test_taxonomy_classes_above_the_names_become_groups():
    found = tree_groups(ranked(), TreeConfig(cut="ranks"), ["a", "b", "c"])
    assert found.level_names == ("genus", "family")
    # b has no genus, so it is a group itself
    assert [(group.name, group.above) for group in found.groups] == [("G", ("F",)), ("b", ("F",))]
    assert found.of_class == {"a": 0, "b": 1}, "c has no known parent"
    assert found.groups[0].evidence == "class G of ranked.csv, by ranks:genus,family"
    inner = tree_groups(ranked(), TreeConfig(cut="ranks:family"), ["G", "b"], ("item", "kind"))
    assert (inner.level_names, inner.of_class) == (("kind",), {"G": 0, "b": 0})


def test_taxonomies_without_suitable_levels_are_refused():
    with pytest.raises(HierarchyError, match=r"--cut ranks:.* gives no level above the names"):
        tree_groups(ranked(), TreeConfig(cut="ranks:species"), ["a"])
    builder = TaxonomyBuilder("two.csv", "edge-list")
    for child, parent in (("a", "G"), ("a", "F"), ("G", "root"), ("F", "root")):
        builder.link(child, parent)
    with pytest.raises(HierarchyError, match="'a' under 'G' and 'F'"):
        tree_groups(builder.finish(), TreeConfig(cut="root:1"), ["a"])
