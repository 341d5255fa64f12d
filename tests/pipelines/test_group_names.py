"""Proposed group labels: their evidence and uniqueness."""

from hypothesis import given
from hypothesis import strategies as st

from hgld.pipelines.hierarchy.groups.group_names import Member, propose_labels
from hgld.pipelines.hierarchy.names.class_graph import ClassGraph
from hgld.pipelines.hierarchy.names.clean import NameRules

NO_GRAPH = ClassGraph({}, {})
RULES = NameRules.read()
PLACES = ClassGraph(
    {"Q1": "entity", "Q2": "sports venue", "Q3": "stadium", "Q4": "arena", "Q5": "bridge", "Q6": None},
    {"Q2": ["Q1"], "Q3": ["Q2"], "Q4": ["Q2"], "Q5": ["Q1"], "Q6": ["Q2"]},
)


def member(name, landmarks=1, classes=(), centrality=0.5):
    return Member(name, landmarks, tuple(classes), centrality)


def test_common_head_noun_becomes_the_label():
    group = [member("arch bridge", 3), member("road bridges", 4), member("viaduct", 5)]
    (found,) = propose_labels([group], NO_GRAPH, RULES)
    assert (found.label, found.method) == ("bridge", "head-noun")
    assert found.evidence == "head noun of 2 of 3 names, 7 of 12 items"


def test_common_class_becomes_the_label_if_head_nouns_differ():
    venues = [member("stadium", 2, ["Q3"]), member("arena", 2, ["Q4"]), member("velodrome", 1)]
    bridges = [member("bridge", 9, ["Q5"])]
    found = propose_labels([venues, bridges], PLACES, RULES)
    assert (found[0].label, found[0].method) == ("sports venue", "p279"), "the class entity is too general"
    assert "2 of 3 names, 4 of 5 items are sports venue (Q2) or below it; F1 0.89" in found[0].evidence


def test_class_label_is_cleaned_like_a_scraped_name():
    group = [member("a ring", 1, ["Q6"]), member("a track", 1, ["Q6"]), member("a piste", 1, ["Q6"])]
    raw = ClassGraph({"Q6": "sports\n venue\x1b[31m \x1b]0;x\x07 (1890-1900)"}, {})
    (found,) = propose_labels([group], raw, RULES)
    assert (found.label, found.method) == ("sports venue [31m ]0;x", "p279")
    assert found.evidence.isprintable()
    for text in ("x" * 1000, " \x00\u200b"):
        (found,) = propose_labels([group], ClassGraph({"Q6": text}, {}), RULES)
        assert found.method == "medoid"


def test_nearest_name_becomes_the_label_if_no_rule_applies():
    group = [member("quay", 1, centrality=0.7), member("well", 1, centrality=0.9), member("silo", 1, centrality=0.2)]
    (found,) = propose_labels([group], NO_GRAPH, RULES)
    assert (found.label, found.method) == ("well", "medoid")
    assert "cosine 0.90" in found.evidence


def test_larger_of_two_groups_gets_the_label_that_both_propose():
    small, large = [member("arch bridge", 2)], [member("road bridge", 5), member("toll bridge", 1)]
    found = propose_labels([small, large], NO_GRAPH, RULES)
    assert [(f.label, f.method) for f in found] == [("arch bridge", "medoid"), ("bridge", "head-noun")]


@given(
    st.lists(
        st.tuples(st.from_regex(r"[abB][abB (-]{0,5}", fullmatch=True), st.integers(0, 5), st.integers(1, 4)),
        min_size=1,
        max_size=14,
        unique_by=lambda row: row[0],
    )
)
def test_labels_are_unique_and_independent_of_member_order(rows):
    groups: dict[int, list[Member]] = {}
    for name, landmarks, group in rows:
        groups.setdefault(group, []).append(member(name, landmarks, centrality=landmarks / 10))
    members = list(groups.values())
    found = propose_labels(members, NO_GRAPH, RULES)
    assert len({f.label.casefold() for f in found}) == len(members)
    assert all(f.label and f.evidence for f in found)
    assert propose_labels([group[::-1] for group in members], NO_GRAPH, RULES) == found
