"""The levels of a build: the plan from the options, and the tree of the result."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hgld import Hierarchy
from hgld.errors import ConfigError
from hgld.pipelines.hierarchy.config import BuildConfig, ClusterConfig, LevelsConfig, NamesConfig
from hgld.pipelines.hierarchy.export import one_parent_each
from hgld.pipelines.hierarchy.groups.given import GivenGroup, GivenGroups
from hgld.pipelines.hierarchy.groups.levels import LANDMARK_LEVELS, plan_levels
from tests.rows import each_row


def plan(source="classes", groups=0, domain="auto", language="", given=None, **levels):
    config = BuildConfig(
        source, names=NamesConfig(domain, language), levels=LevelsConfig(**levels), cluster=ClusterConfig(groups=groups)
    )
    made = plan_levels(config, given)
    return made.names, made.numbers, made.top


MADE = ("natural", "human-made")
FLAT = GivenGroups((GivenGroup("a", ""), GivenGroup("b", "")))
UNDER = GivenGroups((GivenGroup("a", "", above=("x",)), GivenGroup("b", "")))
DEEP = GivenGroups((GivenGroup("a", "", above=("x", None)),))
TREE = GivenGroups((GivenGroup("a", "", above=("x", "y")),), (), ("genus", "family", "order"), {"1": 0})


@each_row(
    ("options", "expected"),
    [
        ({}, (("item", "group"), (), ())),
        ({"groups": 60, "coarser": (8,)}, (("item", "group", "top"), (8,), ())),
        ({"levels": ("i", "g", "x", "t"), "top": ("a", "b")}, (("i", "g", "x", "t"), (0,), ("a", "b"))),
        ({"domain": "landmarks"}, (("item", "group", "top"), (), MADE)),
        ({"source": "sample"}, (LANDMARK_LEVELS, (), MADE)),
        ({"source": "names", "coarser": (4,)}, (("landmark", "hierarchical_label", "top"), (4,), ())),
        ({"source": "names", "levels": ("a", "b", "c", "d"), "coarser": (4,)}, (("a", "b", "c", "d"), (4,), MADE)),
        ({"given": UNDER}, (("item", "group", "top"), (), ())),
        ({"given": DEEP, "levels": ("i", "g", "x", "t")}, (("i", "g", "x", "t"), (), ())),
        ({"given": TREE}, (("item", "genus", "family", "order"), (), ())),
    ],
)
def test_options_determine_the_levels(options, expected):
    assert plan(**options) == expected


@each_row(
    ("options", "said"),
    [
        ({"levels": ("item",)}, "expected at least two levels"),
        ({"levels": ("item", "item")}, "expected at least one level, no repeated level"),
        ({"levels": ("item", "name")}, "no level above the items can be called 'name'"),
        ({"levels": ("item", "group"), "coarser": (4,)}, "0 levels above 'group', but --groups ...,4 ask for 1"),
        ({"top": ("a",)}, "expected at least two different classes"),
        ({"source": "sample", "language": "de"}, "landmarks' names as English names"),
        ({"groups": 4, "coarser": (9,)}, "--groups 4,9: expected a number per level, finest first, none larger"),
        ({"given": FLAT, "groups": 4}, "--groups is the number of groups that hgld finds"),
        ({"given": UNDER, "top": ("a", "b")}, "defines the levels above the groups. Omit --top a,b"),
        ({"given": DEEP}, "2 levels above the groups (parents of groups)"),
        ({"given": UNDER, "levels": ("item", "group")}, "the groups have 1 levels of parents; expected 3 names"),
    ],
)
def test_contradictory_level_options_are_refused(options, said):
    with pytest.raises(ConfigError) as refused:
        plan(**options)
    assert said in str(refused.value)


LABELS = st.sampled_from([None, "a", "b", "a (x)"])


@given(st.lists(st.tuples(LABELS, st.sampled_from([None, "p", "q"]), st.sampled_from([None, "x", "y"])), min_size=1))
def test_levels_stay_a_tree_after_any_decisions(found):
    rows = [list(row) for row in found]
    one_parent_each(rows, [1 + i % 3 for i in range(len(rows))])
    tree = Hierarchy.from_columns({level: [row[i] for row in rows] for i, level in enumerate("abc")})
    for level, column in enumerate(zip(*rows, strict=True)):
        for row, label in zip(rows, column, strict=True):
            if label is not None and level < 2:
                above = tree.expand([tree.names[level].index(label)], "abc"[level])[0, 1]
                assert row[level + 1] == (None if above < 0 else tree.names[level + 1][above])
