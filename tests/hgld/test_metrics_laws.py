"""Properties of the metrics, worked examples from papers, and equality with scikit-learn where it has the metric."""

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from sklearn.metrics import average_precision_score, ndcg_score

from hgld.errors import ConfigError, InputError
from hgld.metrics import GainFunction, Metric, ranking_metrics
from tests import reference
from tests.rows import each_row, refused

LEVELS = ["fine", "middle", "coarse"]


@st.composite
def queries(draw, ties=True):
    size, most = draw(st.integers(1, 15)), 4 if ties else 1000
    scores = draw(st.lists(st.integers(-most, most), min_size=size, max_size=size, unique=not ties))
    grades = draw(st.lists(st.integers(0, 3), min_size=size, max_size=size))
    return torch.tensor([scores], dtype=torch.float32), torch.tensor([grades])


def values_of(names, scores: torch.Tensor, grades: torch.Tensor, levels=LEVELS, **relevance) -> list[float]:
    found = ranking_metrics(scores, grades, names, levels=levels, gain=GainFunction(**relevance))
    return [float(found[name][0]) for name in names]


def value(name, *tables, **options):
    return values_of([name], *tables, **options)[0]


@given(
    queries(), st.sampled_from(["population", "total", "weighted_ap", "exponential"]), st.sampled_from([0.0, 1.0, 3.0])
)
def test_h_ap_equals_ap_with_one_level(query, kind, alpha):
    scores, grades = query
    positive = (grades > 0).long()
    one, two = values_of(["H-AP", "AP/only"], scores, positive, ["only"], kind=kind, alpha=alpha)
    np.testing.assert_allclose(one, two, rtol=1e-12)


@given(queries(), st.lists(st.integers(1, 5), min_size=3, max_size=3))
def test_h_ap_with_weighted_ap_relevance_equals_weighted_sum_of_aps(query, weights):
    scores, grades = query
    one, two = values_of(["H-AP", "wAP"], scores, grades, kind="weighted_ap", weights=tuple(map(float, weights)))
    np.testing.assert_allclose(one, two, rtol=1e-12)


@given(queries(ties=False), st.sampled_from(["population", "total"]))
def test_h_ap_without_ties_equals_area_under_hierarchical_precision_recall_curve(query, kind):
    scores, grades = query
    assume(bool((grades > 0).any()))
    names = [f"{metric}@{k}" for metric in ("H-R", "H-P") for k in range(1, scores.shape[1] + 1)]
    *curve, found = values_of([*names, "H-AP"], scores, grades, kind=kind)
    recall, precision = np.reshape(curve, (2, -1))
    np.testing.assert_allclose(np.dot(np.diff(recall, prepend=0), precision), found, rtol=1e-11)


@given(queries())
def test_ap_equals_scikit_learn_without_ties_and_is_lower_with_ties(query):
    scores, grades = query
    positive = grades[0] >= 3
    assume(bool(positive.any()))
    expected = average_precision_score(positive.numpy(), scores[0].numpy())
    found = value("AP/fine", scores, grades)
    if len(set(scores[0].tolist())) == scores.shape[1]:
        np.testing.assert_allclose(found, expected, rtol=1e-12)
    assert found <= expected + 1e-12  # hgld counts ties against the query, so its value is lower


@given(queries(ties=False), st.none() | st.integers(1, 20))
def test_ndcg_without_ties_equals_scikit_learn(query, k):
    scores, grades = query
    assume(scores.shape[1] > 1 and bool((grades > 0).any()))
    gains = 2.0 ** grades.numpy() - 1
    name = "NDCG" if k is None else f"NDCG@{k}"
    np.testing.assert_allclose(value(name, scores, grades), ndcg_score(gains, scores.numpy(), k=k), rtol=1e-11)


@each_row(("grades", "hierarchical_rank", "h_ap"), [([2, 3, 0, 1, 3], 5 / 3, 0.78), ([1, 3, 0, 2, 3], 4 / 3, 0.67)])
def test_h_ap_equals_worked_examples_of_happier_paper(grades, hierarchical_rank, h_ap):
    """HAPPIER, ECCV 2022: both lists have equal AP; the list with the less severe first mistake has a higher H-AP."""
    scores, worth = [0.9, 0.8, 0.7, 0.6, 0.5], [grade / 3 for grade in grades]
    assert reference.hierarchical_rank_plus(scores, grades, worth, 1) == pytest.approx(hierarchical_rank)
    tables = torch.tensor([scores]), torch.tensor([grades])
    assert round(value("H-AP", *tables, kind="total"), 2) == h_ap
    assert value("AP/fine", *tables) == pytest.approx(0.45)


@given(queries())
def test_values_are_between_0_and_1_and_perfect_ranking_gives_1(query):
    scores, grades = query
    assume(bool((grades > 0).any()))
    perfect = grades.float()
    names = ["AP/fine", "AP/coarse", "mAP@R/coarse", "R@1/coarse", "TR@3/coarse", "NDCG", "NDCG@4", "ASI", "H-AP"]
    strict = perfect - torch.arange(len(grades[0])) * 1e-3
    for found in values_of(names, scores, grades, kind="total"):
        assert np.isnan(found) or -1e-12 <= found <= 1 + 1e-12
    for best in values_of(names, strict, grades, kind="total"):
        assert np.isnan(best) or best == pytest.approx(1.0)


def metrics_of_changed_arguments(change):
    arguments = {"scores": torch.zeros(1, 2), "grades": torch.zeros(1, 2).long(), "metrics": ["AP"], "levels": LEVELS}
    ranking_metrics(**{**arguments, **change})


test_ranking_metrics_refuse_invalid_arguments = refused(
    metrics_of_changed_arguments,
    [
        ({"scores": torch.full((1, 2), torch.nan)}, InputError, "NaN, Inf"),
        ({"scores": torch.full((1, 2), 1e38)}, InputError, "beyond"),
        ({"scores": torch.zeros(1, 2).long()}, InputError, "floating"),
        ({"scores": torch.zeros(2, 2)}, InputError, r"\(2, 2\)"),
        ({"grades": torch.full((1, 2), 4)}, InputError, "from 0 to 3"),
        ({"grades": torch.zeros(1, 2)}, InputError, "integers"),
        ({"left_out": torch.ones(2).bool()}, InputError, "bool"),
        ({"levels": []}, ConfigError, "0 levels"),
        ({"backend": "fpga"}, ConfigError, "fpga"),
        ({"metrics": [Metric("AP", None, "nowhere")]}, ConfigError, "nowhere"),
    ],
)
