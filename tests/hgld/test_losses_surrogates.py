"""The Smooth and Sup losses against their float64 reference implementations, and their documented properties."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import hgld
import hgld.losses
from hgld.errors import InputError
from hgld.losses.kernels.objectives import RecallMean, Sigmoid, SupStep
from hgld.losses.surrogate_losses import graded_ap_loss, ndcg_loss, recall_loss
from hgld.relevance import GainFunction
from tests import reference, reference_losses
from tests.hgld.loss_modules import SURROGATE as LOSSES
from tests.rows import each_row

SUP = {"tau": 0.01, "rho": 100.0, "delta": 0.05}
SURROGATES = {
    "sup": (SupStep(), SUP),
    "published offset": (SupStep(offset=1.44), {**SUP, "offset": 1.44}),
    "wide": (SupStep(0.05, 3.0, 0.2), {"tau": 0.05, "rho": 3.0, "delta": 0.2}),
    "smooth": (Sigmoid(), {"tau": 0.01}),
}
KINDS = {"population": 1.0, "total": 5.0, "weighted_ap": 1.0, "exponential": 1.0}


@st.composite
def rankings(draw):
    """Draw scores on a grid of 1/64 (for ties), grades, number of levels, and the excluded item of each row."""
    num_queries, size, num_levels = draw(st.integers(1, 3)), draw(st.integers(1, 9)), draw(st.integers(1, 3))
    cell = st.integers(*draw(st.sampled_from([(-40, 64), (-3, 3)])))

    def table(elements, *shape):
        return torch.from_numpy(draw(hnp.arrays(np.int64, shape, elements=elements)))

    scores, grades = (table(elements, num_queries, size) for elements in (cell, st.integers(0, num_levels)))
    return scores.double() / 64, grades, num_levels, table(st.integers(-1, size - 1), num_queries)


def by_reference(scores, grades, left_out, loss):
    """Return values, validity and gradient of ``loss(scores, grades)`` per row, without the excluded item."""
    values, valid, gradients = [], [], []
    for row, row_grades, gone in zip(scores.double(), grades.tolist(), left_out.tolist(), strict=True):
        row = row.clone().requires_grad_()
        kept = [j for j in range(len(row_grades)) if j != gone]
        value = loss(row[kept], [row_grades[j] for j in kept]) if kept else None
        valid.append(value is not None)
        gradients.append(torch.zeros_like(row))
        if value is not None and value.requires_grad:
            value.backward()
            gradients[-1] = row.grad
        values.append(0.0 if value is None else value.item())
    return torch.tensor(values, dtype=torch.float64), torch.tensor(valid), torch.stack(gradients)


def assert_like_reference(loss, expected, scores, value_bound, gradient_bound):
    scores = scores.clone().requires_grad_()
    values, valid = loss(scores)
    values.sum().backward()
    assert values.dtype == scores.dtype
    assert valid.tolist() == expected[1].tolist()
    for found, right, bound in (
        (values.detach(), expected[0], value_bound),
        (scores.grad, expected[2], gradient_bound),
    ):
        error = (found.double() - right).abs() / right.abs().clamp(min=1)
        assert error.max() < bound, f"{error.max():.2e}"


def all_paths(loss, expected, scores):
    """Check ``loss(scores, method)`` with every CPU implementation, in both dtypes."""
    for method in ("eager", "auto"):
        assert_like_reference(lambda s, m=method: loss(s, m), expected, scores, 1e-9, 1e-9)
    for method in ("eager", "pair", "auto"):
        assert_like_reference(lambda s, m=method: loss(s, m), expected, scores.float(), 1e-5, 1e-4)


@pytest.mark.parametrize("name", SURROGATES)
@pytest.mark.parametrize("metric", ["hap", "recall", "ndcg"])
@given(
    ranking=rankings(),
    kind=st.sampled_from(sorted(KINDS)),
    temperatures=st.sampled_from([(0.2, 0.2, 0.2), (1.0, 2.0, 40.0), (16.0, 16.0, 16.0)]),
    clip=st.booleans(),
)
@settings(max_examples=10)
def test_losses_equal_their_references(name, metric, ranking, kind, temperatures, clip):
    scores, grades, num_levels, left_out = ranking
    surrogate, numbers = SURROGATES[name]
    grades, recall = grades.clamp(max=1) if metric == "recall" else grades, ((1, 2, 4), temperatures)

    def slow(row, row_grades):
        if metric == "recall":
            return reference_losses.surrogate_recall_loss(row, row_grades, *recall, numbers, clip)
        if metric == "ndcg":
            return reference_losses.surrogate_ndcg_loss(row, row_grades, numbers)
        relevance = reference.relevances(row_grades, num_levels, kind, KINDS[kind])
        return reference_losses.surrogate_hap_loss(row, row_grades, relevance, numbers)

    def fast(s, method):
        how = {"left_out": left_out, "method": method}
        if metric == "recall":
            return recall_loss(s, grades, surrogate, RecallMean(*recall, clip), **how)
        if metric == "ndcg":
            return ndcg_loss(s, grades, num_levels, surrogate, **how)
        return graded_ap_loss(s, grades, num_levels, surrogate, GainFunction(kind, KINDS[kind]), **how)

    all_paths(fast, by_reference(scores, grades, left_out, slow), scores)


@given(ranking=rankings(), name=st.sampled_from(["sup", "wide"]))
@settings(max_examples=30)
def test_sup_losses_are_upper_bounds_of_one_minus_the_metric(ranking, name):
    scores, grades, num_levels, left_out = ranking
    surrogate = SURROGATES[name][0]
    rows = list(zip(scores.tolist(), grades.tolist(), left_out.tolist(), strict=True))
    gain = GainFunction("population", 2.0)
    hap, valid = graded_ap_loss(scores, grades, num_levels, surrogate, gain, left_out=left_out)
    dcg, _ = ndcg_loss(scores, grades, num_levels, surrogate, left_out=left_out)
    ap, ap_valid = graded_ap_loss(scores, grades.clamp(max=1), 1, surrogate, left_out=left_out)
    for i, (row, row_grades, gone) in enumerate(rows):
        row = [s for j, s in enumerate(row) if j != gone]
        row_grades = [g for j, g in enumerate(row_grades) if j != gone]
        if not valid[i]:
            assert not ap_valid[i]
            continue
        relevance = reference.relevances(row_grades, num_levels, "population", 2.0)
        assert 1 - reference.hierarchical_ap(row, row_grades, relevance) <= hap[i] + 1e-12
        assert 1 - reference.ndcg(row, row_grades) <= dcg[i] + 1e-12
        assert 1 - reference.average_precision(row, [min(g, 1) for g in row_grades]) <= ap[i] + 1e-12


def batch(num_items=24, dim=8, dtype=torch.float64, seed=0):
    generator = torch.Generator().manual_seed(seed)
    embeddings = torch.randn(num_items, dim, generator=generator, dtype=torch.float64).to(dtype)
    fine = torch.arange(num_items) // 4
    labels = torch.stack([fine, fine // 2, fine // 4], dim=1)
    labels[5, 0] = -1
    labels[6] = -1
    return embeddings, labels


each_loss = pytest.mark.parametrize("name", LOSSES)


@each_loss
def test_an_excluded_query_equals_a_gallery_without_it(name):
    embeddings, labels = batch()
    memory, memory_labels = torch.cat([embeddings[:3] + 1, embeddings]), torch.cat([labels[:3], labels])
    places = torch.arange(len(labels)) + 3
    each, excluded = (LOSSES[name](exclude_self=is_excluded, reduction="none") for is_excluded in (False, True))
    for gallery, of, own, args in (
        (embeddings, labels, places - 3, ()),
        (memory, memory_labels, places, (memory, memory_labels, places)),
    ):
        values, valid = excluded(embeddings, labels, *args)
        for i, place in enumerate(own.tolist()):
            others = [j for j in range(len(gallery)) if j != place]
            value, is_valid = each(embeddings[i, None], labels[i, None], gallery[others], of[others])
            assert is_valid.item() == valid[i].item()
            assert values[i].item() == pytest.approx(value.item(), abs=1e-12)


@each_row("method", ["eager", "pair", "auto"])
@each_row("surrogate", [SupStep(), SupStep(1e-30, 1e30, 0.0), Sigmoid(), Sigmoid(1e-30)])
def test_losses_of_finite_scores_are_not_nan(method, surrogate):
    scores = torch.tensor([[3e38, -3e38, 0.0, 1e-45, -1e-45, 3e38]], requires_grad=True)
    for grades in ([[1, 0, 2, 0, 1, 0]], [[0, 2, 0, 1, 0, 0]]):
        values, _ = graded_ap_loss(scores, torch.tensor(grades), 2, surrogate, method=method)
        (gradient,) = torch.autograd.grad(values.sum(), scores)
        assert values.isfinite().all()
        assert not gradient.isnan().any()


@each_row("method", ["eager", "pair", "auto"])
def test_scores_that_are_not_finite_change_only_their_own_row(method):
    scores = torch.tensor([[0.1, torch.nan, 0.3], [0.3, 0.2, 0.1], [torch.inf, 0.2, 0.1]], requires_grad=True)
    values, valid = graded_ap_loss(scores, torch.tensor([[1, 1, 0]] * 3), 1, SupStep(), method=method)
    values[1].backward()
    assert values[1].isfinite()
    assert scores.grad[1].isfinite().all()
    assert values[0].isnan()
    assert valid.all()
    assert method == "eager" or values[2].isnan()


def test_second_derivatives_are_refused():
    scores = torch.tensor([[0.5, 0.4, 0.3]], dtype=torch.float64, requires_grad=True)
    values, _ = graded_ap_loss(scores, torch.tensor([[0, 1, 1]]), 1, SupStep())
    (gradient,) = torch.autograd.grad(values.sum(), scores, create_graph=True)
    with pytest.raises(InputError, match="no second derivatives"):
        gradient.sum().backward()


def test_default_surrogate_is_continuous_and_smooth_recall_is_clipped():
    assert SupStep().line_start == pytest.approx(1.4933, abs=1e-4)
    assert hgld.losses.SmoothRecall((1, 4), (1.0, 16.0)).recall == RecallMean((1, 4), (1.0, 16.0), clip=True)
