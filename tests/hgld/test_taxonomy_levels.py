"""Levels of equal depth from taxonomies of any shape: rules against reference implementations, errors, counts."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hgld import Hierarchy
from hgld.errors import ConfigError, HierarchyError
from hgld.taxonomy.formats import taxonomy_of
from hgld.taxonomy.graph import Taxonomy, TaxonomyBuilder
from hgld.taxonomy.levels import MOST_LEVELS, even_levels
from tests.rows import refused


def taxonomy(links, ranks=None):
    made = TaxonomyBuilder("links", "edge-list")
    for line, (child, parent) in enumerate(links, 1):
        made.link(child, parent, line)
    for class_id, rank in (ranks or {}).items():
        made.describe(class_id, rank=rank)
    return made.finish()


@st.composite
def graphs(draw, several=True):
    """Draw a taxonomy of classes n0, n1, ...; the parents of a class are some of the classes before it."""
    size = draw(st.integers(1, 12))
    parents = [()]
    for place in range(1, size):
        most = min(3, place) if several else 1
        parents.append(tuple(draw(st.lists(st.integers(0, place - 1), max_size=most, unique=True))))
    ids = tuple(f"n{i}" for i in range(size))
    names = tuple(draw(st.sampled_from(["x", "y", *ids])) for _ in ids)
    return Taxonomy(ids, names, tuple(parents), (None,) * size)


def path_up(graph, place):
    way = [place]
    while graph.parents[way[-1]]:
        way.append(graph.parents[way[-1]][0])
    return way


def ancestors(graph, place):
    found = set()
    for parent in graph.parents[place]:
        found |= {parent} | ancestors(graph, parent)
    return found


def columns_of(found):
    """Return for each finest class the positions of its ancestors in the taxonomy, one per level."""
    labels = found.hierarchy.expand(np.arange(found.hierarchy.num_classes[0]))
    return {int(row[0]): row for row in np.stack([n[labels[:, c]] for c, n in enumerate(found.nodes)], axis=1)}


@given(graphs(several=False), st.lists(st.integers(1, 5), min_size=1, max_size=3, unique=True))
def test_cuts_take_the_ancestor_at_each_depth_or_at_each_height_without_a_single_top(graph, numbers):
    by_depth, by_height = (
        columns_of(even_levels(graph, cut=f"{cut}:{','.join(map(str, numbers))}")) for cut in ("root", "leaves")
    )
    assert set(by_depth) == set(by_height) == set(graph.leaves.tolist())
    has_one_top = sum(not parents for parents in graph.parents) == 1
    for leaf, row in by_depth.items():
        way = path_up(graph, leaf)
        assert row.tolist() == [leaf, *(way[max(len(way) - 1 - depth, 0)] for depth in sorted(numbers, reverse=True))]
        way = (way[:-1] if has_one_top else way) or way
        assert by_height[leaf].tolist() == [leaf, *(way[min(height, len(way) - 1)] for height in sorted(numbers))]


@given(graphs())
def test_most_specific_parent_has_the_longest_path_and_no_parent_below_it(graph):
    found = even_levels(graph, parents="most-specific", cut="leaves:1")
    tops = [p for p, parents in enumerate(graph.parents) if not parents]
    for leaf, (_, parent) in columns_of(found).items():
        candidates = [p for p in graph.parents[leaf] if len(tops) > 1 or p != tops[0]]
        if parent == leaf:
            assert not candidates
            continue
        assert parent in candidates
        assert not any(parent in ancestors(graph, other) for other in candidates)
        assert graph.steps_to_top[parent] == max(graph.steps_to_top[p] for p in candidates)
    torn = [p for p, parents in enumerate(graph.parents) if len(parents) > 1]
    assert found.counts.get("classes under several parents", 0) == len(torn)
    assert found.changes.filter(what="several parents")["id"].to_list() == sorted(graph.ids[p] for p in torn)


@given(graphs(), st.sampled_from(["root", "leaves:1,2", "root:1"]), st.sampled_from(["first", "most-specific"]))
def test_changes_by_rules_are_counted_and_listed(graph, cut, parents):
    found = even_levels(graph, parents=parents, cut=cut)
    kept = set(np.concatenate(found.nodes).tolist())
    assert found.counts.get("classes at no level", 0) == len(graph) - len(kept)
    rows = columns_of(found).values()
    for c, level in enumerate(found.hierarchy.levels[1:], 1):
        alone = {int(row[c]) for row in rows if row[c] == row[c - 1]}
        assert found.counts.get(f"stand for themselves at {level}", 0) == len(alone)
    shown = [name for level in found.hierarchy.names for name in level]
    plain = [graph.names[p] for nodes in found.nodes for p in nodes]
    renamed = sum(a != b for a, b in zip(shown, plain, strict=True))
    assert sum(n for what, n in found.counts.items() if what.startswith("names of several")) == renamed
    assert len(found.changes.filter(what="name of several classes")) == renamed


def test_missing_rank_is_filled_if_a_coarser_one_is_known():
    ranks = {"dog": "species", "Canis": "genus", "Canidae": "family", "sponge": "species", "moss": "species"}
    graph = taxonomy(
        [("dog", "Canis"), ("Canis", "Caninae"), ("Caninae", "Canidae"), ("sponge", "Canidae"), ("moss", "plants")],
        ranks,
    )
    found = even_levels(graph, cut="ranks:species,genus,family")
    assert found.hierarchy.names == (("dog", "moss", "sponge"), ("Canis", "sponge"), ("Canidae",))
    assert found.hierarchy.expand([0, 1, 2]).tolist() == [[0, 0, 0], [1, -1, -1], [2, 1, 0]]
    assert found.counts == {"stand for themselves at genus": 1, "classes at no level": 2}
    assert found.changes.filter(what="at no level")["name"].to_list() == ["Caninae", "plants"]


def test_several_parents_are_refused_or_the_first_is_taken():
    links = [("tiger", "animal"), ("tiger", "cat"), ("cat", "animal"), ("sun", "star"), ("dog", "animal")]
    with pytest.raises(HierarchyError, match=r"links: 1 classes have several parents: 'tiger' under 'animal' and"):
        even_levels(taxonomy(links))
    first = even_levels(taxonomy(links), parents="first", cut="leaves:1")
    assert dict(zip(first.hierarchy.names[0], first.hierarchy.parents[0].tolist(), strict=True))["tiger"] == 0


def test_level_names_set_the_number_of_levels():
    graph = taxonomy([("a", "b"), ("b", "c"), ("c", "d"), ("e", "f"), ("f", "d")])
    assert even_levels(graph).cut == "root:2,1"  # the single top class d is no level, because it contains everything
    assert even_levels(graph, levels=("fine", "top")).hierarchy.names == (("a", "e"), ("c", "f"))
    assert even_levels(graph, cut="root:0").hierarchy.names[1] == ("d",)


LINKS = [("a", "b"), ("b", "c")]
CHAIN = [(str(i), str(i + 1)) for i in range(MOST_LEVELS + 2)]


def evened_levels(graph, rules):
    ranks = {"a": "species", "c": "clade", "d": "order", "e": "clade"}
    known = {child for link in graph for child in link}
    even_levels(taxonomy(graph, {name: rank for name, rank in ranks.items() if name in known}), **rules)


test_unsuitable_rules_are_refused = refused(
    evened_levels,
    [
        *((LINKS, {"cut": cut}, ConfigError, "cut is") for cut in ("top", "root:1,1", "leaves:0")),
        (LINKS, {"parents": "any"}, ConfigError, "parents 'any' is unknown"),
        (LINKS, {"levels": tuple("abcd")}, ConfigError, r"4 level names \(a, b, c, d\) for 2 levels \(class, depth"),
        (LINKS, {"cut": "ranks:species,genus"}, HierarchyError, r"no class has the rank 'genus'; found 'clade', 'spec"),
        (CHAIN, {"cut": "ranks"}, HierarchyError, "no class has a rank"),
        ([*LINKS, ("c", "d"), ("d", "e")], {"cut": "ranks"}, HierarchyError, r"'clade', 'order' are above as well as"),
        (CHAIN, {}, HierarchyError, f"expected {MOST_LEVELS} at most"),
    ],
)


test_cycles_and_long_chains_are_refused = refused(
    taxonomy,
    [
        (
            [("x", "a"), ("a", "b"), ("b", "c"), ("c", "a"), ("c", "top")],
            "form a cycle: 'a' -> 'b' -> 'c' -> 'a' (each the child of the next)",
        ),
        ([(f"n{i}", f"n{(i + 1) % 50}") for i in range(50)], "-> 'n4' -> 45 more -> 'n0' ("),
        # far beyond the depth of Python's stack
        ([(f"n{i}", f"n{i + 1}") for i in range(20_000)], "'n0' is 20,000 steps below the top"),
    ],
    HierarchyError,
)


def test_repeated_names_get_different_ids():
    tree = Hierarchy(("x", "y"), (("a", "a [x]", "b"), ("a",)), (np.array([0, 0, -1]),))
    assert len(set(taxonomy_of(tree).ids)) == 4
    assert even_levels(taxonomy_of(tree)).hierarchy == tree
