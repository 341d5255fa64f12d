"""Losses over bins, ranks and pairs, against float64 reference implementations and their documented properties."""

import math
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from hgld.losses.binned import FastAP, SoftBinAP, soft_bin_ap_loss
from hgld.losses.blackbox_ap import BlackboxAP, all_places, blackbox_ap_loss
from hgld.losses.pairs import CalibrationLoss, Contrastive, Margin, Triplet, draw_negatives
from hgld.losses.surrogate_losses import PNP, pnp_loss
from hgld.losses.wrappers import ClassWeighted
from tests import reference, reference_losses
from tests.hgld.loss_modules import check_rows, rankings
from tests.rows import each_row

TIES: list[Any] = ["ignored", "relaxed", "integral"]
# No score is at the centre of one of 8 or 11 bins or at a threshold of a pair loss, because gradients jump there.
RANKINGS = rankings(spacing=1 / 61).map(lambda case: (case[0] * 0.99 + 0.0017, case[1]))


def by_rows(loss):
    return lambda scores, grades: loss.query_losses(scores, grades, 1, None)


def mean_triplet(scores, positive):
    return torch.stack(reference_losses.triplet_losses(scores, positive, 0.21)).mean()


def with_reference(loss, **options):
    """Return a loss and its reference implementation of the same name, both with these options."""
    return partial(loss, **options), partial(getattr(reference_losses, loss.__name__), **options)


REFERENCES: dict[str, tuple[Any, Any]] = {
    **{
        f"SoftBinAP, {ties}, {low}": with_reference(soft_bin_ap_loss, bins=8, low=low, ties=ties)
        for ties in TIES
        for low in (-1.0, 0.0)
    },
    "FastAP": (by_rows(FastAP(10)), partial(reference_losses.fast_ap_loss, bins=10)),
    **{
        f"PNP, {variant}": with_reference(pnp_loss, variant=variant, b=4, alpha=3, tau=0.01)
        for variant in ("O", "Iu", "Ib", "Ds", "Dq")
    },
    "CalibrationLoss": (by_rows(CalibrationLoss()), partial(reference_losses.calibration_loss, alpha=0.9, beta=0.6)),
    "Contrastive": (by_rows(Contrastive(1.1)), partial(reference_losses.contrastive_loss, margin=1.1)),
    "Contrastive, cosine": (
        by_rows(Contrastive(0.5, variant="cosine")),
        partial(reference_losses.cosine_contrastive_loss, margin=0.5),
    ),
    "Triplet": (by_rows(Triplet(0.21, reduction="none")), mean_triplet),
}


@pytest.mark.parametrize("name", REFERENCES)
@given(case=RANKINGS, dtype=st.sampled_from([torch.float64, torch.float32]))
@settings(max_examples=12)
def test_values_and_gradients_equal_the_reference(name, case, dtype):
    scores, grades = case
    if "integral" in name:  # the gradient jumps if a bin has exactly one positive
        scores = scores + torch.linspace(0, 1e-3, scores.shape[1], dtype=torch.float64)
    if name == "Triplet":  # the loss may choose any of several equal negatives, so make them differ
        scores = scores + torch.arange(scores.shape[1]) / 4096
    for bins, low in ((8, -1.0), (8, 0.0), (11, -1.0)):
        place = (1 - scores) * (bins - 1) / (1 - low)
        assume(((place - place.round()).abs() > 1e-3).all())
    check_rows(*REFERENCES[name], (scores, grades), dtype)


@given(case=rankings(), margin=st.sampled_from([0.0, 1 / 32]))
@settings(max_examples=20)
def test_blackbox_ap_equals_its_reference(case, margin):
    scores, grades = case
    scores.requires_grad_()
    values, valid = blackbox_ap_loss(scores, grades, lambda_=0.5, margin=margin)
    values.sum().backward()
    for row in range(len(scores)):
        positive = grades[row].tolist()
        assert bool(valid[row]) == any(positive)
        if any(positive):
            expected, slope = reference_losses.blackbox_ap_loss(scores[row].tolist(), positive, 0.5, margin)
            assert values[row].item() == pytest.approx(expected, abs=1e-12)
            np.testing.assert_allclose(scores.grad[row], slope, atol=1e-12)


# -- average precision -------------------------------------------------------------------------------------------------


@each_row("ties", ["ignored", "relaxed"])
def test_soft_bin_ap_loss_with_one_item_per_bin_is_one_minus_ap(ties):
    torch.manual_seed(1)
    scores = torch.stack([torch.randperm(65)[:30] for _ in range(5)]).double() / 32 - 1
    grades = torch.randint(0, 2, (5, 30))
    values, _ = soft_bin_ap_loss(scores, grades, bins=65, ties=ties)
    for row in range(5):
        exact = reference.average_precision(scores[row].tolist(), grades[row].tolist())
        assert values[row].item() == pytest.approx(1 - exact, abs=1e-12)


def test_excluded_items_do_not_change_the_loss():
    torch.manual_seed(3)
    scores, grades = torch.rand(3, 8, dtype=torch.float64), torch.randint(0, 2, (3, 8))
    left_out = torch.tensor([0, 7, 3])
    kept = torch.tensor([[j for j in range(8) if j != gone] for gone in left_out.tolist()])
    for loss in (soft_bin_ap_loss, blackbox_ap_loss, pnp_loss):
        found = loss(scores, grades, left_out=left_out)
        torch.testing.assert_close(found, loss(scores.gather(1, kept), grades.gather(1, kept)))


def value_and_gradient(loss, scores, grades):
    values, _ = loss(scores, grades)
    return values, torch.autograd.grad(values.square().sum(), scores)[0]


def test_blackbox_ap_gpu_code_equals_cpu_code(monkeypatch):
    torch.manual_seed(5)
    scores, grades = torch.rand(5, 17, requires_grad=True), torch.randint(0, 2, (5, 17))
    grades[2] = 0
    expected = value_and_gradient(blackbox_ap_loss, scores, grades)
    monkeypatch.setattr("hgld.losses.blackbox_ap.positive_places", all_places)
    torch.testing.assert_close(value_and_gradient(blackbox_ap_loss, scores, grades), expected)


IN_BLOCKS = {
    **{f"SoftBinAP, {ties}": partial(soft_bin_ap_loss, ties=ties) for ties in TIES},
    "BlackboxAP": partial(blackbox_ap_loss, lambda_=0.5),
    "Triplet": by_rows(Triplet()),
}


@each_row("name", IN_BLOCKS)
def test_queries_in_blocks_give_equal_losses_and_gradients(monkeypatch, name):
    torch.manual_seed(6)
    scores, grades = torch.rand(9, 13, requires_grad=True), torch.randint(0, 2, (9, 13))
    expected = value_and_gradient(IN_BLOCKS[name], scores, grades)
    monkeypatch.setattr("hgld.losses.rank_loss._MOST_ITEMS", 30)
    torch.testing.assert_close(value_and_gradient(IN_BLOCKS[name], scores, grades), expected)


@each_row("loss", [SoftBinAP(), FastAP(), BlackboxAP(), PNP(), Triplet()])
def test_autograd_keeps_one_table_of_scores_and_one_byte_per_pair(loss):
    torch.manual_seed(7)
    embeddings, labels = torch.randn(64, 4, requires_grad=True), torch.arange(64) // 4
    kept = {}

    def keep(tensor):
        if tensor.shape == (64, 64):
            kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        loss(embeddings, labels).backward()
    assert 0 < sum(kept.values()) <= 5 * 64 * 64


def test_scaling_the_blackbox_ap_loss_scales_its_lambda():
    scores = torch.randn(4, 40, generator=torch.Generator().manual_seed(0), requires_grad=True)
    grades = torch.arange(160).reshape(4, 40) % 5 == 0

    def gradient(factor, lambda_):
        values, _ = blackbox_ap_loss(scores, grades.long(), lambda_=lambda_)
        return torch.autograd.grad(factor * values.sum(), scores)[0] / factor

    torch.testing.assert_close(gradient(16.0, 0.25), gradient(1.0, 4.0))
    assert not torch.allclose(gradient(16.0, 0.25), gradient(1.0, 0.25), rtol=0.1)


def test_class_weights_multiply_the_queries_of_a_class():
    torch.manual_seed(5)
    embeddings, labels = torch.randn(7, 4), torch.tensor([0, 0, 0, 0, 1, 1, -1])
    each, valid = SoftBinAP(reduction="none")(embeddings, labels)
    assert valid.tolist() == [True] * 6 + [False]
    weights = torch.tensor([0.5, 2.0])
    weighted = ClassWeighted(SoftBinAP(reduction="none"), weights)
    torch.testing.assert_close(weighted(embeddings, labels), (0.5 * each[:4].sum() + 2.0 * each[4:6].sum()) / 6)
    balanced = ClassWeighted(SoftBinAP(reduction="none"), "balanced")
    expected = (each[:4].mean() + each[4:6].mean()) / 2
    torch.testing.assert_close(balanced(embeddings, labels), expected)
    torch.testing.assert_close(balanced(embeddings, labels, embeddings, labels), expected)
    assert balanced(embeddings, torch.full((7,), -1)) == 0
    assert torch.equal(weighted.state_dict()["weights"], weights)


# -- pairs and triplets ------------------------------------------------------------------------------------------------


def test_a_negative_as_near_as_the_positive_is_not_semi_hard():
    """Semi-hard negatives are farther away than the positive. Without one, the loss takes the farthest negative."""
    scores = torch.tensor([[0.5, 0.5, 0.25, -0.5], [0.5, 0.5, 0.5, 0.75]], requires_grad=True)
    grades = torch.tensor([[1, 0, 0, 0], [1, 0, 0, 0]], dtype=torch.uint8)
    values, _ = Triplet(0.75, reduction="none").query_losses(scores, grades, 1, None)
    torch.testing.assert_close(values.tolist(), [2 * (0.25 - 0.5) + 0.75, 2 * (0.5 - 0.5) + 0.75])
    (slopes,) = torch.autograd.grad(values[0], scores)
    assert slopes[0].tolist() == [-2.0, 0.0, 2.0, 0.0]


@given(case=RANKINGS)
@settings(max_examples=12)
def test_the_mean_of_triplet_losses_is_over_all_pairs(case):
    scores, grades = case
    values, valid = Triplet(0.21).query_losses(scores, grades, 1, None)
    rows = [(s, g.tolist()) for s, g in zip(scores, grades, strict=True) if 0 < g.sum() < len(g)]
    assert int(valid.sum()) == len(rows)
    if rows:
        every = torch.stack([v for s, g in rows for v in reference_losses.triplet_losses(s, g, 0.21)])
        torch.testing.assert_close(values[valid].mean(), every.mean())


@given(case=RANKINGS)
@settings(max_examples=12)
def test_the_nonzero_reduction_is_the_mean_over_violating_pairs(case):
    scores, grades = case
    values, valid = CalibrationLoss(reduction="nonzero").query_losses(scores, grades, 1, None)
    pulls = [0.9 - s for s in scores[grades > 0].tolist() if s < 0.9]
    pushes = [s - 0.6 for s in scores[grades == 0].tolist() if s > 0.6]
    expected = sum(pulls) / max(1, len(pulls)) + sum(pushes) / max(1, len(pushes))
    assert values[valid].mean().item() == pytest.approx(expected, abs=1e-12)


@given(case=RANKINGS, seed=st.integers(0, 1000), reduction=st.sampled_from(["mean", "nonzero"]))
@settings(max_examples=20)
def test_the_margin_loss_is_the_mean_over_the_sampled_pairs(case, seed, reduction):
    scores, grades = case
    loss = Margin(8, reduction=reduction).double()
    torch.manual_seed(seed)
    values, valid = loss.query_losses(scores, grades, 1, None)
    torch.manual_seed(seed)
    has_both = (grades == 0).any(1) & (grades > 0).any(1)
    num_positives = torch.where(has_both, grades.sum(1), 0)
    distances, seed_of_draws = (2 - 2 * scores).sqrt(), torch.randint(1 << 62, ())
    drawn = draw_negatives(distances, num_positives, grades == 0, seed_of_draws, 8, loss.cutoff, loss.reach)
    assert drawn.sum(1).tolist() == num_positives.tolist()
    assert not drawn[grades > 0].any()
    pulls = (distances - loss.beta + loss.margin).clamp(min=0)[(grades > 0) & has_both[:, None]]
    pushes = (loss.beta - distances + loss.margin).clamp(min=0).repeat_interleave(drawn.flatten())
    terms = torch.cat([pulls, pushes])
    count = (terms > 0).sum() if reduction == "nonzero" else torch.tensor(len(terms))
    found = values[valid].mean() if valid.any() else torch.zeros(())
    assert found.item() == pytest.approx((terms.sum() / count.clamp(min=1)).item(), abs=1e-9)


@each_row("reach", [1.4, 2.0])
def test_negatives_are_sampled_in_inverse_proportion_to_the_density_of_distances(reach):
    dim, distances = 16, torch.tensor([[0.1, 0.6, 0.9, 1.2, 1.35, 1.6, 0.7]], dtype=torch.float64)
    negative = torch.tensor([[True] * 6 + [False]])
    found = draw_negatives(distances, torch.tensor([200_000]), negative, torch.tensor(0), dim, 0.5, reach)[0] / 200_000
    density = [max(d, 0.5) ** (dim - 2) * (1 - max(d, 0.5) ** 2 / 4) ** ((dim - 3) / 2) for d in distances[0].tolist()]
    weights = [1 / q if d < reach and n else 0.0 for q, d, n in zip(density, distances[0], negative[0], strict=True)]
    for share, weight in zip(found.tolist(), weights, strict=True):
        expected = weight / math.fsum(weights)
        assert share == pytest.approx(expected, abs=5 * math.sqrt(expected * (1 - expected) / 200_000))


def test_an_anchor_without_near_negatives_samples_from_all_negatives():
    distances = torch.tensor([[1.6, 1.7, 1.8, 0.2]])
    negative = torch.tensor([[True, True, True, False]])
    drawn = draw_negatives(distances, torch.tensor([3000]), negative, torch.tensor(0), 512, 0.5, 1.4)[0]
    assert drawn[3] == 0
    assert int(drawn[:3].min()) > 800
