"""Top-level classes: chosen with the class graph, chosen with texts, and undecided groups."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hgld.pipelines.hierarchy.encoders.lexical import LexicalEncoder
from hgld.pipelines.hierarchy.groups import toplevel
from hgld.pipelines.hierarchy.groups.toplevel import class_shares, decide_by_graph, named_tops
from hgld.pipelines.hierarchy.names.class_graph import ClassGraph
from hgld.pipelines.hierarchy.unit_rows import unit
from tests.rows import each_row

ANCHORS = {"Q10": "natural", "Q20": "human-made", "Q30": "open"}
GRAPH = ClassGraph(
    {"Q10": "landform", "Q20": "structure", "Q30": "protected area", "Q1": "lake", "Q2": "bridge", "Q3": "pond"},
    {"Q1": ["Q10"], "Q2": ["Q20"], "Q3": ["Q1", "Q20"], "Q4": ["Q10", "Q20"], "Q5": ["Q30"], "Q30": ["Q20"]},
)
KINDS = ClassGraph(
    {"a": "Animal", "b": "dog_breed", "c": "beagle", "p": "plant", "m": "moss animal"},
    {"b": ["a"], "c": ["b"], "m": ["a", "p"], "p": ["root"], "a": ["root"]},
)


def by_graph(*members, graph=GRAPH, anchors=ANCHORS):
    names, landmarks, classes = zip(*members, strict=True)
    return decide_by_graph(names, landmarks, classes, graph, anchors)


def test_decision_by_the_class_graph_records_its_path():
    found = by_graph(("lake", 7, ["Q1"]), ("tarn", 1, []))
    assert (found.top, found.method) == ("natural", "p279")
    assert found.evidence == "P279: 7 natural of 8; lake: lake (Q1) → landform (Q10)"
    assert found.margin == pytest.approx(7 / 8)


@each_row(
    ("class_id", "top"),
    [("Q3", "human-made"), ("Q4", "human-made"), ("Q10", "natural"), ("Q5", None), ("Q99", None)],
)
def test_nearest_anchor_class_decides_and_human_made_wins_ties(class_id, top):
    assert by_graph(("name", 9, [class_id])).top == top


@each_row(
    ("natural", "made", "unknown", "top"),
    [(2, 1, 0, "natural"), (3, 2, 0, None), (1, 2, 0, "human-made"), (1, 0, 3, None), (0, 0, 1, None), (1, 1, 0, None)],
)
def test_class_with_a_lead_of_a_third_of_all_landmarks_is_chosen(natural, made, unknown, top):
    members = [("lake", natural, ["Q1"])] * bool(natural) + [("bridge", made, ["Q2"])] * bool(made)
    assert by_graph(*members, *[("thing", unknown, ["Q99"])] * bool(unknown)).top == top


def of_kinds(*members):
    return by_graph(*members, graph=KINDS, anchors=named_tops(KINDS, ("animal", "plant")))


def test_predefined_classes_match_graph_classes_by_name():
    assert named_tops(KINDS, ("animal", "plant")) == {"a": "animal", "p": "plant"}
    found = of_kinds(("beagle", 5, ["c"]), ("fern", 1, ["p"]), ("ghost", 3, []))
    assert (found.top, found.margin) == ("animal", pytest.approx(4 / 9))
    assert found.evidence == "P279: 5 animal, 1 plant of 9; beagle: beagle (c) → dog_breed (b) → Animal (a)"
    assert of_kinds(("moss animal", 1, ["m"])).top is None, "both anchors are equally near"
    outside = of_kinds(("beagle", 1, ["c"]), ("thing", 3, ["root"]), ("ghost", 1, []))
    assert (outside.top, outside.is_outside) == (None, True)
    assert not of_kinds(("beagle", 1, ["c"]), ("thing", 1, ["root"]), ("ghost", 3, [])).is_outside


@given(st.lists(st.sampled_from(["a", "b", "c", "p", "m", "root", "none"]), min_size=1, max_size=6), st.randoms())
def test_top_class_does_not_depend_on_the_order_of_names(classes, random):
    rows = [(f"name {i}", i + 1, [class_id]) for i, class_id in enumerate(classes)]
    told = of_kinds(*rows)
    random.shuffle(rows)
    assert of_kinds(*rows) == told


def test_texts_decide_the_top_class_above_the_margin_unless_the_graph_contradicts():
    names = ["salt lake", "glacial lake", "road bridge", "toll bridge", "henge"]
    encoder = LexicalEncoder(names)
    rows = encoder.encode(names)

    def decided(members, margin=0.0, counts=None, classes=None, tops=("lake", "bridge")):
        graph = ClassGraph({"L": "lake", "B": "bridge"}, {})
        made = toplevel.Tops(graph, tops, lambda: (encoder, rows), rows, margin)
        chosen = [names[i] for i in members]
        return made.decide(chosen, counts or [1] * len(members), classes or [()] * len(members), members)

    lakes, other = decided([0, 1]), decided([4])
    assert (lakes.top, lakes.method, decided([2, 3]).top) == ("lake", "encoder", "bridge")
    assert (other.top, other.method) == (None, None)
    assert decided([0, 1], margin=1.0).top is None
    assert decided([0, 2], counts=[1, 100]).top == "bridge", "groups are weighted by their landmarks"
    against = decided([0, 1, 2, 3], counts=[2, 30, 1, 1], classes=[(), (), ["B"], ()])
    assert (against.top, against.evidence.endswith("they contradict each other")) == (None, True)
    assert decided([0, 1], tops=("natural", "human-made")).top == "natural"


# -- classes given by texts --------------------------------------------------------------------------------------------


def clouds(spread, seed=0):
    random = np.random.default_rng(seed)
    centres = unit(random.normal(size=(3, 16)))
    labels = np.repeat([0, 1, 2], [60, 20, 10])
    rows = unit(centres[labels] + spread * random.normal(size=(90, 16)) / 4).astype(np.float32)
    return rows, labels, [unit(c[None] + 0.8 * random.normal(size=(2, 16)) / 4).astype(np.float32) for c in centres]


def test_neighbours_of_a_name_improve_its_class_shares():
    rows, labels, texts = clouds(1.0)
    nearest = np.stack([(rows @ text.T).max(axis=1) for text in texts], axis=1).argmax(axis=1)
    found = class_shares(rows, texts, rows).argmax(axis=1)
    assert (found == labels).mean() > max(0.9, (nearest == labels).mean())


@settings(max_examples=10)
@given(st.integers(2, 15), st.integers(2, 5), st.integers(0, 2**32 - 1))
def test_class_shares_sum_to_one_and_are_equal_without_evidence(count, classes, seed):
    random = np.random.default_rng(seed)
    rows = unit(random.normal(size=(count, 6))).astype(np.float32)
    texts = [unit(random.normal(size=(2, 6))).astype(np.float32) for _ in range(classes)]
    shares = class_shares(rows, texts, rows)
    assert shares.min() >= 0
    np.testing.assert_allclose(shares.sum(axis=1), 1)
    order = random.permutation(count)
    np.testing.assert_allclose(class_shares(rows[order], texts, rows[order]), shares[order], atol=1e-6)
    corners = np.eye(6, dtype=np.float32)
    np.testing.assert_allclose(class_shares(corners, [corners[[0]], corners[[1]]], corners)[2:], 0.5)
