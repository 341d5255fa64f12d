"""Groups that are given: what the file may say, which names they get, and when none fits."""

import numpy as np
import pytest
from hgld.pipelines.hierarchy.groups.given_groups import GivenGroup, GivenGroups
from hgld.pipelines.hierarchy.groups.into import GroupRows, embed_groups, place_names, unrelated_best, with_descriptions
from hypothesis import given
from hypothesis import strategies as st

from hgld.errors import TableError
from hgld.pipelines.hierarchy.names.languages import English
from hgld.pipelines.stage import silent


def read(folder, text):
    file = folder / "groups.csv"
    file.write_text(text)
    return GivenGroups.read(file)


def test_a_table_gives_descriptions_seeds_and_parents(tmp_path):
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
    assert apple.above == ("fruit", "plant")  # as the parent itself is spelt
    assert (tool.above, tool.seeds, found.levels_above) == ((), ("hammer",), 2)


def test_a_plain_list_is_a_list_of_groups(tmp_path):
    assert [group.name for group in read(tmp_path, "salt, sugar\nflour\n\n").groups] == ["salt, sugar", "flour"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("name\nfruit\nFruit\n", "stands in line 2 and in line 3"),
        ("name,parent\na,b\nb,a\n", "lies below itself"),
        ("name,parent\na,a\n", "lies below itself"),
        ("name,parent\n,b\n", "line 2: no name"),
        ("fruit\nNone of these\n", "line 2: a group cannot be called 'none of these'"),
        ("name\n\n", "no group that is not a parent"),
        ("name,seeds\na," + "x" * 100_001, "seeds has 100,001 characters"),
    ],
)
def test_groups_that_contradict_each_other_are_refused(tmp_path, text, said):
    with pytest.raises(TableError) as refused:
        read(tmp_path, text)
    assert said in str(refused.value)
    assert "groups.csv" in str(refused.value)


def rows_of(*points):
    rows = np.array(points, dtype=np.float32)
    return rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-9)


class Corners:
    """An encoder that knows one corner a letter."""

    name = key = "corners"
    templates: tuple[str, ...] = ()
    dim = 3

    def encode(self, names, progress=silent):
        return rows_of(*[[name.count(letter) for letter in "abc"] for name in names])


def test_a_groups_row_is_the_mean_of_its_texts():
    made = embed_groups(Corners(), [GivenGroup(1, "a", "b", ("c", "c c", "b")), GivenGroup(2, "x")])
    one = np.array([1, 0, 0]) + [0, 1, 0] + np.array([0, 1, 2]) / np.sqrt(5)
    assert np.allclose(made.means, [one / np.linalg.norm(one), [0, 0, 0]], atol=1e-6)
    assert made.group_of.tolist() == [0, 0, 0, 0, 0, 1]


def test_descriptions_of_names_count_as_much_as_the_names():
    rows = rows_of([1, 0, 0], [0, 1, 0], [0, 0, 1])
    joint = with_descriptions(rows, ["b b", None, "c"], Corners())
    assert np.allclose(joint, rows_of([1, 1, 0], [0, 1, 0], [0, 0, 1]), atol=1e-6)
    assert with_descriptions(rows, [None, "", None], Corners()) is rows


def test_names_that_name_a_group_go_there_whatever_the_encoder_says():
    groups = [GivenGroup(1, "lake"), GivenGroup(2, "Salt Lake"), GivenGroup(3, "hill", seeds=("Ben Nevis",))]
    names = ["LAKE", "great salt lake", "ben nevis", "Ben Lake", "lakeside", "salt lake road"]
    rows = rows_of(*[[0, 0, 1]] * len(names))
    embedded = GroupRows(
        rows_of([1, 0, 0], [0, 1, 0], [0, 0, 1]), rows_of([1, 0, 0], [0, 1, 0], [0, 0, 1]), np.arange(3)
    )
    placed = place_names(rows, names, groups, embedded, fitted=True)
    assert placed.groups.tolist() == [0, 1, 2, 0, 2, 2]
    assert placed.method == ("exact", "ending", "exact", "ending", "nearest", "nearest")
    assert placed.confidence[[0, 2]].tolist() == [1, 1]
    assert (placed.confidence[[1, 3]] >= 0.5).all()
    assert placed.next_groups.tolist() == [2, 2, 0, 2, 0, 0]


@pytest.mark.parametrize(("english", "found"), [(True, [0, 0, 1, 1]), (False, [-1, 0, -1, 1])])
def test_plurals_are_those_of_english_names(english, found):
    groups = [GivenGroup(1, "apple"), GivenGroup(2, "old maps")]
    names = ["red apples", "red apple", "very old map", "old maps"]
    rows = np.zeros((4, 2), dtype=np.float32)
    embedded = GroupRows(rows[:2], rows[:2], np.arange(2))
    placed = place_names(rows, names, groups, embedded, fitted=True, english=English({}, english))
    assert placed.groups.tolist() == [2 if place < 0 else place for place in found]


def test_names_far_from_all_groups_are_in_none():
    rng = np.random.default_rng(0)
    centres = rows_of(*np.eye(40)[:6] + np.eye(40)[38])  # groups of one kind of things share a direction
    noise = rng.normal(0, 0.05, (130, 40))
    points = np.concatenate([np.repeat(centres, 20, axis=0), np.repeat(np.eye(40)[39:], 10, axis=0)]) + noise
    rows = rows_of(*points)
    groups = [GivenGroup(i, f"g{i}") for i in range(6)]
    embedded = GroupRows(centres, centres, np.arange(6))
    placed = place_names(rows, [f"n{i}" for i in range(130)], groups, embedded, fitted=False)
    assert placed.groups[:120].tolist() == np.repeat(np.arange(6), 20).tolist()
    assert set(placed.groups[120:].tolist()) == {6}
    assert not placed.confidence[120:].any()
    everywhere = place_names(rows, [f"n{i}" for i in range(130)], groups, embedded, fitted=False, none_below=-1)
    assert everywhere.groups.max() < 6


@given(st.integers(1, 5), st.integers(1, 12), st.integers(0, 9), st.booleans())
def test_every_name_has_a_group_or_none_and_an_honest_confidence(groups, names, seed, fitted):
    rng = np.random.default_rng(seed)
    rows = rows_of(*rng.normal(size=(names, 3)))
    rows[rng.random(names) < 0.3] = 0
    centres = rows_of(*rng.normal(size=(groups, 3)))
    embedded = GroupRows(centres, centres, np.arange(groups))
    given_groups = [GivenGroup(i, f"g{i}") for i in range(groups)]
    placed = place_names(rows, [f"n{i}" for i in range(names)], given_groups, embedded, fitted=fitted)
    assert ((placed.groups >= 0) & (placed.groups <= groups)).all()
    assert ((placed.confidence >= 0) & (placed.confidence <= 1)).all()
    assert (placed.next_groups != placed.groups).all()
    assert (placed.groups[~rows.any(axis=1)] == groups).all()


def test_the_best_of_more_unrelated_groups_may_be_nearer():
    scores = np.random.default_rng(0).normal(0.2, 0.1, (4000, 40))
    for groups in (2, 10, 40):
        bound = unrelated_best(scores[:, :groups])
        below = (scores[:, :groups].max(axis=1) < bound).mean()
        assert below == pytest.approx(0.05, abs=0.02)
