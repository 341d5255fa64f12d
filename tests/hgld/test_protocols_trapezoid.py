"""Revisited Oxford and Paris, Holidays and Copydays against slow twins of their evaluation rules."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hgld.errors import ConfigError, InputError
from hgld.evaluation.judgements import ListRelevance
from hgld.evaluation.protocols import (
    RevisitedGroundTruth,
    evaluate_copydays,
    evaluate_holidays,
    evaluate_revisited,
    evaluate_ukbench,
)
from hgld.evaluation.protocols.landmarks import (
    evaluate_trapezoid,
    positive_positions,
    trapezoid_ap,
    truncated_precision,
)


def slow_positions(scores, relevant, left_out):
    """Places of the positives, from 0, in the list without what is left out, ties with the others before."""
    kept = [j for j in range(len(scores)) if j not in left_out]
    order = sorted(kept, key=lambda j: (-scores[j], j in relevant))
    return [place for place, j in enumerate(order) if j in relevant]


def fast_positions(scores, kind):
    return positive_positions(np.sort(scores), scores[kind == "positive"], scores[kind == "junk"])


def slow_area(positions, num_relevant):
    """The area under the line through the points (recall, precision) just before and after every positive."""
    area = 0.0
    for found, place in enumerate(positions):
        before = 1.0 if place == 0 else found / place
        after = (found + 1) / (place + 1)
        area += (before + after) / 2 * (1 / num_relevant)
    return area


def slow_precision(positions, k):
    depth = min(positions[-1] + 1, k)
    return sum(place + 1 <= depth for place in positions) / depth


def slow_scores(query, gallery):
    return [[math.fsum(float(a) * float(b) for a, b in zip(q, g, strict=True)) for g in gallery] for q in query]


@st.composite
def judged_rankings(draw):
    num_items = draw(st.integers(1, 12))
    scores = draw(st.lists(st.integers(-3, 3), min_size=num_items, max_size=num_items))
    kind = draw(st.lists(st.sampled_from(["positive", "negative", "junk"]), min_size=num_items, max_size=num_items))
    return np.array(scores, np.float32), np.array(kind)


@given(judged_rankings())
def test_positions_and_values_equal_their_twins(case):
    scores, kind = case
    relevant, junk = set(np.flatnonzero(kind == "positive")), set(np.flatnonzero(kind == "junk"))
    found = fast_positions(scores, kind)
    expected = slow_positions(scores.tolist(), relevant, junk)
    assert found.tolist() == expected
    if not relevant:
        assert math.isnan(trapezoid_ap(found))
        assert math.isnan(truncated_precision(found, 5))
        return
    assert trapezoid_ap(found) == pytest.approx(slow_area(expected, len(relevant)), rel=1e-12)
    for k in (1, 3, 50):
        assert truncated_precision(found, k) == pytest.approx(slow_precision(expected, k), rel=1e-12)


@given(judged_rankings(), st.randoms(use_true_random=False))
def test_the_order_of_the_gallery_changes_nothing(case, random):
    scores, kind = case
    order = list(range(len(scores)))
    random.shuffle(order)
    found = fast_positions(scores, kind)
    moved = fast_positions(scores[order], kind[order])
    assert found.tolist() == moved.tolist()


@given(judged_rankings())
def test_trapezoids_are_at_most_the_average_precision(case):
    scores, kind = case
    positions = fast_positions(scores, kind)
    if len(positions):
        precision = np.mean((np.arange(len(positions)) + 1) / (positions + 1))
        assert trapezoid_ap(positions) <= precision + 1e-12


def test_the_published_example():
    # ranks 0, 1, 4 of three positives, as worked out in a well-known explanation of the revisited metric
    assert trapezoid_ap(np.array([0, 1, 4])) == pytest.approx(0.85)
    assert trapezoid_ap(np.array([1])) == pytest.approx(0.25)  # not AP's 0.5


def random_unit(generator, *shape):
    table = generator.normal(size=shape).astype(np.float32)
    return table / np.linalg.norm(table, axis=1, keepdims=True)


@pytest.fixture
def oxford():
    """Five queries, forty images; one query without hard images, one without easy ones, one with junk alone."""
    generator = np.random.default_rng(7)
    parts = {"easy": [], "hard": [], "junk": []}
    for query in range(5):
        drawn = generator.permutation(40)
        easy, hard, junk = drawn[:4], drawn[4:9], drawn[9:15]
        empty = drawn[:0]
        parts["easy"].append(empty if query in (1, 2) else easy)
        parts["hard"].append(empty if query in (0, 2) else hard)
        parts["junk"].append(junk)
    truth = RevisitedGroundTruth(
        images=tuple(f"image_{n}" for n in range(40)),
        queries=tuple(f"query_{n}" for n in range(5)),
        boxes=np.zeros((5, 4)),
        **{name: tuple(lists) for name, lists in parts.items()},
    )
    return random_unit(generator, 5, 16), random_unit(generator, 40, 16), truth


RULES = {"easy": ("easy", "junk hard"), "medium": ("easy hard", "junk"), "hard": ("hard", "junk easy")}


@pytest.mark.parametrize("difficulty", RULES)
def test_revisited_equals_its_twin(oxford, difficulty):
    query, gallery, truth = oxford
    report = evaluate_revisited(query, gallery, truth, chunk_size=2)
    table = slow_scores(query, gallery)
    areas, precisions = [], []
    for number, scores in enumerate(table):
        relevant, left_out = (
            {int(i) for part in names.split() for i in getattr(truth, part)[number]} for names in RULES[difficulty]
        )
        if relevant:
            positions = slow_positions(scores, relevant, left_out)
            areas.append(slow_area(positions, len(relevant)))
            precisions.append(slow_precision(positions, 5))
    assert report.values[f"mAP/{difficulty}"] == pytest.approx(np.mean(areas), rel=1e-9)
    assert report.values[f"mP@5/{difficulty}"] == pytest.approx(np.mean(precisions), rel=1e-9)
    assert report.undefined[f"mAP/{difficulty}"] == 5 - len(areas)
    assert report.settings["protocol"] == "revisited Oxford and Paris"
    assert report.settings["distractors"] == 0


def test_revisited_reports_three_difficulties_and_three_depths(oxford):
    query, gallery, truth = oxford
    names = [f"{m}/{d}" for d in ("easy", "medium", "hard") for m in ("mAP", "mP@1", "mP@5", "mP@10")]
    assert list(evaluate_revisited(query, gallery, truth).values) == names


def test_distractors_only_push_positives_down(oxford):
    query, gallery, truth = oxford
    far = -query[:1].repeat(3, axis=0)
    copies = query.copy()
    plain = evaluate_revisited(query, gallery, truth)
    hard = evaluate_revisited(query, gallery, truth, distractors=copies)
    assert evaluate_revisited(query[:1], gallery, one_query(truth), distractors=far).values == pytest.approx(
        evaluate_revisited(query[:1], gallery, one_query(truth)).values, nan_ok=True
    )
    assert hard.values["mAP/medium"] < plain.values["mAP/medium"]
    assert hard.settings["distractors"] == 5
    assert hard.settings["gallery"] == 45


def one_query(truth):
    first = {name: getattr(truth, name)[:1] for name in ("queries", "boxes", "easy", "hard", "junk")}
    return RevisitedGroundTruth(images=truth.images, **first)


def test_revisited_names_what_does_not_fit(oxford):
    query, gallery, truth = oxford
    with pytest.raises(InputError, match="5 queries and 40 images"):
        evaluate_revisited(query, gallery[:39], truth)
    with pytest.raises(InputError, match="as many dimensions"):
        evaluate_revisited(query, gallery, truth, distractors=np.ones((2, 3), np.float32))
    with pytest.raises(ConfigError, match="numbers from 1"):
        evaluate_revisited(query, gallery, truth, precision_at=(0,))


def test_judgements_have_to_be_those_of_the_embeddings():
    query, gallery = np.eye(2, dtype=np.float32), np.eye(3, 2, dtype=np.float32) + 0.1
    with pytest.raises(InputError, match="judgements 'easy' are of 1 queries"):
        evaluate_trapezoid(query, gallery, {"easy": ListRelevance(3, [[np.array([1])]])})
    with pytest.raises(InputError, match="dimensions"):
        evaluate_trapezoid(query, np.eye(3, dtype=np.float32), {"": ListRelevance(3, [[np.array([1])]] * 2)})


def test_bfloat16_tensors_are_ranked_too(oxford):
    query, gallery, truth = oxford
    low = evaluate_revisited(torch.from_numpy(query).bfloat16(), torch.from_numpy(gallery).bfloat16(), truth)
    same = evaluate_revisited(
        torch.from_numpy(query).bfloat16().float(), torch.from_numpy(gallery).bfloat16().float(), truth
    )
    assert low.values == pytest.approx(same.values, nan_ok=True)


HOLIDAYS = ["100000.jpg", "100001.jpg", "100002.jpg", "100100.jpg", "100101.jpg", "100200.jpg"]


def test_holidays_equals_its_twin():
    embeddings = random_unit(np.random.default_rng(3), len(HOLIDAYS), 8)
    table = slow_scores(embeddings, embeddings)
    expected = []
    for query, relevant in ((0, {1, 2}), (3, {4})):  # 100200 has a group of its own: undefined
        expected.append(slow_area(slow_positions(table[query], relevant, {query}), len(relevant)))
    report = evaluate_holidays(embeddings, HOLIDAYS)
    assert report.values == pytest.approx({"mAP": np.mean(expected)})
    assert report.undefined == {"mAP": 1}
    assert report.settings["protocol"] == "Holidays"


def test_the_order_of_holidays_images_is_free():
    generator = np.random.default_rng(4)
    embeddings, order = random_unit(generator, len(HOLIDAYS), 8), generator.permutation(len(HOLIDAYS))
    moved = evaluate_holidays(embeddings[order], [f"jpg/{HOLIDAYS[i]}" for i in order])
    assert moved.values == pytest.approx(evaluate_holidays(embeddings, HOLIDAYS).values)


def test_holidays_worked_example():
    # query 0 finds a stranger first, then its one relative: (0/1 + 1/2) / 2
    names = ["100000.jpg", "100001.jpg", "100100.jpg", "100101.jpg"]
    embeddings = np.array([[1, 0], [0.6, 0.8], [0.8, 0.6], [0.8, 0.6]], np.float32)
    report = evaluate_holidays(embeddings, names)
    assert report.per_query["mAP"].to_list() == pytest.approx([1 / 4 * (0 + 1 / 3 * 2), 1.0])


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (HOLIDAYS[:5], "5 names"),
        ([*HOLIDAYS[:5], "100101.jpg"], "5 of them distinct"),
        ([*HOLIDAYS[:5], "street.jpg"], "'street.jpg' has no number"),
        ([f"10000{n}.jpg" for n in range(1, 7)], "no image is a query"),
    ],
)
def test_holidays_names_what_does_not_fit(names, said):
    with pytest.raises(InputError, match=said):
        evaluate_holidays(np.ones((6, 2), np.float32), names)


def test_copydays_with_distractors_equals_its_twin():
    generator = np.random.default_rng(5)
    originals, queries, others = (random_unit(generator, n, 8) for n in (4, 6, 20))
    names = [f"{200000 + 100 * n}.jpg" for n in range(4)]
    copies = [f"{200000 + 100 * n}.jpg" for n in (0, 1, 2, 3)] + ["strong/200001.jpg", "strong/200302.jpg"]
    truth = [0, 1, 2, 3, 0, 3]
    table = slow_scores(queries, np.concatenate([originals, others]))
    expected = [slow_area(slow_positions(row, {t}, set()), 1) for row, t in zip(table, truth, strict=True)]
    report = evaluate_copydays(queries, copies, originals, names, distractors=others)
    assert report.per_query["mAP"].to_list() == pytest.approx(expected)
    assert report.settings["distractors"] == 20


def test_copydays_refuses_a_copy_of_nothing():
    table = np.ones((1, 2), np.float32)
    with pytest.raises(InputError, match=r"'200101.jpg' has no original.*200100.jpg"):
        evaluate_copydays(table, ["200101.jpg"], table, ["200000.jpg"])
    with pytest.raises(InputError, match="2 query names for 1"):
        evaluate_copydays(table, ["200001.jpg"] * 2, table, ["200000.jpg"])


def test_ukbench_equals_its_twin():
    embeddings = random_unit(np.random.default_rng(6), 12, 6)
    names = [f"full/ukbench{n:05d}.jpg" for n in range(12)]
    table = slow_scores(embeddings, embeddings)
    expected = []
    for query, scores in enumerate(table):
        first = sorted(range(12), key=lambda j: -scores[j])[:4]
        expected.append(sum(j // 4 == query // 4 for j in first))
    report = evaluate_ukbench(embeddings, names)
    assert report.per_query["N-S"].to_list() == pytest.approx(expected)
    assert report.values["N-S"] == pytest.approx(np.mean(expected))


def test_ukbench_runs_to_four():
    embeddings = np.repeat(np.eye(3, dtype=np.float32), 4, axis=0)
    assert evaluate_ukbench(embeddings, [f"{n}.jpg" for n in range(12)]).values == {"N-S": 4.0}


def test_ukbench_wants_groups_of_four():
    embeddings = np.ones((8, 2), np.float32)
    with pytest.raises(InputError, match="group 1 has 3 images"):
        evaluate_ukbench(embeddings, [f"{n}.jpg" for n in [0, 1, 2, 3, 4, 5, 6, 8]])
    with pytest.raises(InputError, match="7 names"):
        evaluate_ukbench(embeddings, [f"{n}.jpg" for n in range(7)])
