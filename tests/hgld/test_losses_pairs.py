"""Losses of pairs and triplets against their references; weighted draws against the density that they follow."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hgld.losses.pairs import CalibrationLoss, Contrastive, Margin, Triplet, draw_negatives
from tests import reference_losses
from tests.hgld.loss_modules import check_rows, rankings

RANKINGS = rankings(most=62 / 64, shift=1 / 512)  # off the thresholds where slopes jump
PAIR_LOSSES = {
    "CalibrationLoss": (CalibrationLoss(), lambda s, p: reference_losses.calibration_loss(s, p, 0.9, 0.6)),
    "Contrastive": (Contrastive(1.1), lambda s, p: reference_losses.contrastive_loss(s, p, 1.1)),
    "Contrastive, cosine": (
        Contrastive(0.5, variant="cosine"),
        lambda s, p: reference_losses.cosine_contrastive_loss(s, p, 0.5),
    ),
}


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("name", PAIR_LOSSES)
@given(case=RANKINGS)
@settings(max_examples=25)
def test_losses_of_pairs_equal_their_references(name, dtype, case):
    loss, slow = PAIR_LOSSES[name]
    check_rows(lambda s, g: loss.query_losses(s, g, 1, None), slow, case, dtype)


def test_contrastive_by_cosines_pushes_the_negatives_of_a_memory_as_hard_as_it_pulls():
    """A mean over 10,000 negatives, of which 20 are too near, would leave those a thousandth of the weight."""
    scores = torch.cat([torch.full((4,), 0.7), torch.full((20,), 0.6), torch.zeros(9976)])[None].requires_grad_()
    grades = (torch.arange(10_000) < 4).to(torch.uint8)[None]
    values, _ = Contrastive(0.5, variant="cosine").query_losses(scores, grades, 1, None)
    (slopes,) = torch.autograd.grad(values.sum(), scores)
    assert values.item() == pytest.approx(4 * 0.3 + 20 * 0.6, rel=1e-5)
    assert slopes[0, :4].tolist() == [-1.0] * 4
    assert slopes[0, 4:24].tolist() == [1.0] * 20
    assert not slopes[0, 24:].any()


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@given(case=RANKINGS)
@settings(max_examples=25)
def test_triplet_equals_its_reference(dtype, case):
    def slow(scores, positive):
        return torch.stack(reference_losses.triplet_losses(scores, positive, 0.21)).mean()

    scores, grades = case
    scores = scores + torch.arange(scores.shape[1]) / 4096  # which of equal negatives is taken is arbitrary
    loss = Triplet(0.21, reduction="none")
    check_rows(lambda s, g: loss.query_losses(s, g, 1, None), slow, (scores, grades), dtype)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_a_negative_as_near_as_the_positive_is_not_semi_hard(dtype):
    """Semi-hard are those farther away than the positive; where none is, the farthest of all is taken."""
    scores = torch.tensor([[0.5, 0.5, 0.25, -0.5], [0.5, 0.5, 0.5, 0.75]], dtype=dtype, requires_grad=True)
    grades = torch.tensor([[1, 0, 0, 0], [1, 0, 0, 0]], dtype=torch.uint8)
    values, _ = Triplet(0.75, reduction="none").query_losses(scores, grades, 1, None)
    torch.testing.assert_close(values.tolist(), [2 * (0.25 - 0.5) + 0.75, 2 * (0.5 - 0.5) + 0.75])
    (slopes,) = torch.autograd.grad(values[0], scores)
    assert slopes[0].tolist() == [-2.0, 0.0, 2.0, 0.0]


@given(case=RANKINGS)
@settings(max_examples=25)
def test_triplet_mean_is_over_all_pairs(case):
    scores, grades = case
    values, valid = Triplet(0.21).query_losses(scores, grades, 1, None)
    rows = [(s, g.tolist()) for s, g in zip(scores, grades, strict=True) if 0 < g.sum() < len(g)]
    assert int(valid.sum()) == len(rows)
    if rows:
        every = torch.stack([v for s, g in rows for v in reference_losses.triplet_losses(s, g, 0.21)])
        torch.testing.assert_close(values[valid].mean(), every.mean())


@given(case=RANKINGS)
@settings(max_examples=25)
def test_nonzero_reduction_is_the_mean_over_violating_pairs(case):
    scores, grades = case
    values, valid = CalibrationLoss(reduction="nonzero").query_losses(scores, grades, 1, None)
    pulls = [0.9 - s for s in scores[grades > 0].tolist() if s < 0.9]
    pushes = [s - 0.6 for s in scores[grades == 0].tolist() if s > 0.6]
    expected = sum(pulls) / max(1, len(pulls)) + sum(pushes) / max(1, len(pushes))
    assert values[valid].mean().item() == pytest.approx(expected, abs=1e-12)


def margin_terms(loss: Margin, scores: torch.Tensor, grades: torch.Tensor, drawn: torch.Tensor) -> list[torch.Tensor]:
    """All sampled pairs' losses, from how often each negative was drawn (Q, G), row by row."""
    values = []
    for scored, grade, times in zip(scores, grades.tolist(), drawn.tolist(), strict=True):
        found = [s for s, g in zip(scored, grade, strict=True) if g]
        if len(found) in (0, len(grade)):
            continue
        values += [((2 - 2 * s).sqrt() - loss.beta + loss.margin).clamp(min=0) for s in found]
        for s, count in zip(scored, times, strict=True):
            values += [(loss.beta - (2 - 2 * s).sqrt() + loss.margin).clamp(min=0)] * count
    return values


@pytest.mark.parametrize("reduction", ["mean", "nonzero"])
@given(case=RANKINGS, seed=st.integers(0, 1000))
@settings(max_examples=20)
def test_margin_loss_of_the_drawn_pairs(reduction, case, seed):
    scores, grades = case
    loss = Margin(8, reduction=reduction).double()
    torch.manual_seed(seed)
    values, valid = loss.query_losses(scores, grades, 1, None)
    torch.manual_seed(seed)
    positives = torch.where((grades == 0).any(1), grades.sum(1), 0)
    distances = (2 - 2 * scores).sqrt()
    drawn = draw_negatives(distances, positives, grades == 0, torch.randint(1 << 62, ()), 8, loss.cutoff, loss.reach)
    assert drawn.sum(1).tolist() == positives.tolist()
    assert not drawn[grades > 0].any()
    terms = margin_terms(loss, scores, grades, drawn)
    count = sum(v.item() > 0 for v in terms) if reduction == "nonzero" else len(terms)
    expected = sum(v.item() for v in terms) / max(1, count)
    found = values[valid].mean().item() if valid.any() else 0.0
    assert found == pytest.approx(expected, abs=1e-9)


def test_negatives_are_drawn_in_inverse_proportion_to_the_density_of_distances():
    dim, distances = 16, torch.tensor([[0.1, 0.6, 0.9, 1.2, 1.35, 1.6, 0.7]], dtype=torch.float64)
    negative = torch.tensor([[True] * 6 + [False]])
    found = draw_negatives(distances, torch.tensor([200_000]), negative, torch.tensor(0), dim, 0.5, 1.4)[0] / 200_000
    density = [max(d, 0.5) ** (dim - 2) * (1 - max(d, 0.5) ** 2 / 4) ** ((dim - 3) / 2) for d in distances[0].tolist()]
    weights = [1 / q if d < 1.4 and n else 0.0 for q, d, n in zip(density, distances[0], negative[0], strict=True)]
    for share, weight in zip(found.tolist(), weights, strict=True):
        expected = weight / math.fsum(weights)
        assert share == pytest.approx(expected, abs=5 * math.sqrt(expected * (1 - expected) / 200_000))


def test_anchors_without_near_negatives_draw_from_all():
    distances = torch.tensor([[1.6, 1.7, 1.8, 0.2]])
    negative = torch.tensor([[True, True, True, False]])
    drawn = draw_negatives(distances, torch.tensor([3000]), negative, torch.tensor(0), 512, 0.5, 1.4)[0]
    assert drawn[3] == 0
    assert int(drawn[:3].min()) > 800


def test_margin_learns_its_boundary():
    torch.manual_seed(0)
    loss = Margin(4)
    embeddings = torch.randn(12, 4, requires_grad=True)
    loss(embeddings, torch.arange(12) // 3).backward()
    assert loss.beta.grad is not None
    assert loss.beta.grad != 0
