"""Both backends of every metric against the slow reference implementation, on the same scores."""

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from hgld.metrics import GainFunction, ranking_metrics
from tests import reference
from tests.rows import each_row

CUT = ("mAP", "R", "TR", "P", "HD", "H-R", "H-P", "NDCG")
NAMES = ["AP", "mAP@R", "severity", "H-AP", "NDCG", "ASI", "wAP", *(f"{name}@{k}" for name in CUT for k in (1, 3, 50))]
BACKENDS = ["native", "torch"]


def levels_of(num_levels: int) -> list[str]:
    return [f"level{c}" for c in range(num_levels)]


def check(scores, grades, num_levels, names=None, **kind):
    """Compare the metrics of both backends with the reference implementation."""
    levels, names = levels_of(num_levels), names or NAMES
    native, by_torch = (
        ranking_metrics(scores, grades, names, levels=levels, gain=GainFunction(**kind), backend=backend)
        for backend in BACKENDS
    )
    for row in range(len(scores)):
        one, two = scores[row].tolist(), grades[row].tolist()
        for name, values in native.items():
            expected = reference.metric(name, one, two, levels, **kind)
            for backend, value in zip(BACKENDS, (values[row], by_torch[name][row]), strict=True):
                context = f"{backend}, {name}: {one} {two} {kind}"
                np.testing.assert_allclose(value, expected, rtol=1e-11, atol=1e-12, err_msg=context)


@st.composite
def rankings(draw, max_items=12):
    num_levels = draw(st.integers(1, 4))
    num_items = draw(st.integers(1, max_items))
    num_queries = draw(st.integers(1, 3))
    score = st.integers(-3, 3) | st.floats(-1, 1, width=32)
    most = draw(st.integers(0, num_levels))  # 0: no item is positive
    grade = st.integers(draw(st.sampled_from([0, most])), most)  # the second choice gives all items the same grade
    shape = (num_queries, num_items)
    scores, grades = (
        draw(hnp.arrays(dtype, shape, elements=cell)) for dtype, cell in ((np.float32, score), (int, grade))
    )
    return torch.from_numpy(scores), torch.from_numpy(grades), num_levels


@given(
    case=rankings(), kind=st.sampled_from(["population", "total", "exponential", "weighted_ap"]), count=st.booleans()
)
def test_metrics_equal_reference(case, kind, count):
    scores, grades, num_levels = case
    check(scores, grades, num_levels, kind=kind, count_query=count)


@given(case=rankings(max_items=8), alpha=st.sampled_from([0.0, 1e-9, 0.5, 2.0, 40.0, 1e4]))
@settings(max_examples=30)
def test_hierarchical_metrics_equal_reference_for_every_alpha(case, alpha):
    scores, grades, num_levels = case
    for kind in ("population", "total"):
        check(scores, grades, num_levels, ["H-AP", "H-R@2", "H-P@2"], kind=kind, alpha=alpha)


@given(case=rankings(max_items=8), data=st.data())
def test_weighted_metrics_equal_reference_for_every_weight(case, data):
    scores, grades, num_levels = case
    weights = data.draw(st.lists(st.sampled_from([0.0, 0.25, 1.0, 3.0]), min_size=num_levels, max_size=num_levels))
    if sum(weights) > 0:
        check(scores, grades, num_levels, ["H-AP", "wAP"], kind="weighted_ap", weights=tuple(weights))


@each_row(("share", "is_tied"), [(0.02, True), (0.2, False), (0.7, True)])
def test_metrics_of_500_tied_or_extreme_scores_equal_reference(share, is_tied):
    generator = torch.Generator().manual_seed(3)
    scores = torch.rand(1, 500, generator=generator) * 2 - 1
    if is_tied:
        scores = (scores * 20).round() / 16
    else:
        scores = scores.sign() * 10.0 ** (scores.abs() * 60 - 30)  # from 1e-30 to 1e30
        scores[0, :20] *= 0
    positive = torch.rand(1, 500, generator=generator) < share
    grades = torch.randint(1, 4, (1, 500), generator=generator) * positive
    names = ["AP/level0", "AP/level2", "mAP@R/level1", "mAP@100/level2", "H-AP", "NDCG", "NDCG@100", "ASI"]
    check(scores, grades, 3, names, kind="population")


@each_row("backend", BACKENDS)
@each_row("is_tied", [False, True])
def test_value_does_not_depend_on_the_other_requested_metrics(backend, is_tied):
    scores, draws, outs = torch.randn(3, 3, 3000, generator=torch.Generator().manual_seed(7))
    scores = (scores * 2).round() if is_tied else scores
    grades, left_out = (draws > 2).long() + (draws > 2.5), outs > 1.3
    names = ["R@1", "TR@10", "P@200", "mAP@10", "mAP@R", "NDCG@10", "H-R@10", "H-P@10", "ASI"]
    options = {"levels": levels_of(2), "left_out": left_out, "backend": backend}
    head = ranking_metrics(scores, grades, names, **options)
    whole = ranking_metrics(scores, grades, [*names, "AP"], **options)
    for name, values in head.items():
        np.testing.assert_allclose(values, whole[name], rtol=1e-12, err_msg=name)


@given(case=rankings(), data=st.data(), backend=st.sampled_from(BACKENDS))
def test_excluded_items_do_not_change_a_value(case, data, backend):
    scores, grades, num_levels = case
    num_items = scores.shape[1]
    out = torch.tensor(data.draw(st.lists(st.booleans(), min_size=num_items, max_size=num_items)))
    if out.all():
        return
    options = {"levels": levels_of(num_levels), "backend": backend}
    one = ranking_metrics(scores, grades, NAMES, left_out=out.expand(scores.shape), **options)
    two = ranking_metrics(scores[:, ~out], grades[:, ~out], NAMES, **options)
    for name, values in one.items():
        np.testing.assert_allclose(values, two[name], rtol=1e-12, err_msg=name)
