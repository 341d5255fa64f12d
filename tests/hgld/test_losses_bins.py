"""SoftBinAP, FastAP, BlackboxAP and PNP against their slow references, value and gradient."""

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from hgld.errors import InputError
from hgld.losses.binned import FastAP, SoftBinAP, soft_bin_ap_loss
from hgld.losses.blackbox_ap import BlackboxAP, blackbox_ap_loss
from hgld.losses.pairs import Triplet
from hgld.losses.rank_loss import all_places
from hgld.losses.surrogate_losses import PNP, pnp_loss
from hgld.losses.wrappers import ClassWeighted
from tests import reference, reference_losses
from tests.hgld.loss_modules import check_rows, rankings

TIES = ["ignored", "relaxed", "integral"]
VARIANTS = ["O", "Iu", "Ib", "Ds", "Dq"]


def away_from_kinks(scores: torch.Tensor, bins: int, low: float = -1.0) -> bool:
    """Whether no score lies so near a bin's centre that its side, and with it the slope, is a matter of rounding."""
    place = (1 - scores) * (bins - 1) / (1 - low)
    return bool(((place - place.round()).abs() > 1e-3).all())


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("ties", TIES)
@given(case=rankings(spacing=1 / 61), low=st.sampled_from([-1.0, 0.0]))
@settings(max_examples=12)
def test_soft_bin_ap_equals_its_reference(ties, dtype, case, low):
    scores, grades = case
    scores = scores * 0.99 + 0.0017
    assume(away_from_kinks(scores, 8, low))
    if ties == "integral":  # its slope jumps where a bin holds exactly one positive
        scores = scores + torch.linspace(0, 1e-3, scores.shape[1], dtype=torch.float64)

    def slow(row, positive):
        return reference_losses.soft_bin_ap_loss(row, positive, 8, low, ties)

    check_rows(lambda s, g: soft_bin_ap_loss(s, g, bins=8, low=low, ties=ties), slow, (scores, grades), dtype)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@given(case=rankings(spacing=1 / 61))
@settings(max_examples=12)
def test_fast_ap_equals_its_reference(dtype, case):
    scores, grades = case
    scores = scores * 0.99 + 0.0017
    assume(away_from_kinks(scores, 11))
    loss = FastAP(bins=10)
    check_rows(
        lambda s, g: loss.query_losses(s, g, 1, None),
        lambda row, positive: reference_losses.fast_ap_loss(row, positive, 10),
        (scores, grades),
        dtype,
    )


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("variant", VARIANTS)
@given(case=rankings())
@settings(max_examples=12)
def test_pnp_equals_its_reference(variant, dtype, case):
    check_rows(
        lambda s, g: pnp_loss(s, g, variant, b=4, alpha=3, tau=0.01),
        lambda row, positive: reference_losses.pnp_loss(row, positive, variant, 4, 3, 0.01),
        case,
        dtype,
    )


@pytest.mark.parametrize("margin", [0.0, 1 / 32])
@given(case=rankings())
@settings(max_examples=25)
def test_blackbox_ap_equals_its_reference(margin, case):
    scores, grades = case
    scores.requires_grad_()
    values, valid = blackbox_ap_loss(scores, grades, lambda_=0.5, margin=margin)
    values.sum().backward()
    assert scores.grad is not None
    for row in range(len(scores)):
        positive = grades[row].tolist()
        assert bool(valid[row]) == any(positive)
        if any(positive):
            expected, slope = reference_losses.blackbox_ap_loss(scores[row].tolist(), positive, 0.5, margin)
            assert values[row].item() == pytest.approx(expected, abs=1e-12)
            np.testing.assert_allclose(scores.grad[row], slope, atol=1e-12)


@pytest.mark.parametrize("ties", ["ignored", "relaxed"])
def test_with_one_item_a_bin_soft_bin_ap_is_the_metric(ties):
    torch.manual_seed(1)
    scores = torch.stack([torch.randperm(65)[:30] for _ in range(5)]).double() / 32 - 1
    grades = torch.randint(0, 2, (5, 30))
    values, _ = soft_bin_ap_loss(scores, grades, bins=65, ties=ties)
    for row in range(5):
        exact = reference.average_precision(scores[row].tolist(), grades[row].tolist())
        assert values[row].item() == pytest.approx(1 - exact, abs=1e-12)


def test_left_out_items_do_not_count():
    torch.manual_seed(3)
    scores, grades = torch.rand(3, 8, dtype=torch.float64), torch.randint(0, 2, (3, 8))
    left_out = torch.tensor([0, 7, 3])
    kept = torch.tensor([[j for j in range(8) if j != gone] for gone in left_out.tolist()])
    fewer, fewer_grades = scores.gather(1, kept), grades.gather(1, kept)
    for fast in (soft_bin_ap_loss, blackbox_ap_loss, pnp_loss):
        found, valid = fast(scores, grades, left_out=left_out)
        expected, expected_valid = fast(fewer, fewer_grades)
        torch.testing.assert_close(found, expected)
        assert torch.equal(valid, expected_valid)


@pytest.mark.parametrize("method", ["pair", "eager"])
def test_pnp_by_the_paths_of_rank_metric(method):
    torch.manual_seed(4)
    scores, grades = torch.rand(6, 40, requires_grad=True), torch.randint(0, 4, (6, 40)) // 3
    found, right = pnp_loss(scores, grades, method=method)[0], pnp_loss(scores.double(), grades)[0]
    torch.testing.assert_close(found.double(), right, rtol=1e-5, atol=1e-5)
    slopes = [torch.autograd.grad(values.sum(), scores)[0] for values in (found, right)]
    torch.testing.assert_close(*slopes, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("options", [{}, {"lambda_": 0.5}])
def test_blackbox_ap_with_every_column_for_a_positive_as_on_a_gpu(monkeypatch, options):
    torch.manual_seed(5)
    scores, grades = torch.rand(5, 17, requires_grad=True), torch.randint(0, 2, (5, 17))
    grades[2] = 0
    values, _ = blackbox_ap_loss(scores, grades, **options)
    (gradient,) = torch.autograd.grad(values.sum(), scores)
    monkeypatch.setattr("hgld.losses.blackbox_ap.positive_places", all_places)
    again, _ = blackbox_ap_loss(scores, grades, **options)
    assert torch.equal(again, values)
    torch.testing.assert_close(torch.autograd.grad(again.sum(), scores)[0], gradient)


IN_BLOCKS = {
    **{f"SoftBinAP, {ties}": (lambda s, g, t=ties: soft_bin_ap_loss(s, g, ties=t)) for ties in TIES},  # type: ignore[misc]
    "BlackboxAP": lambda s, g: blackbox_ap_loss(s, g, lambda_=0.5),
    "Triplet": lambda s, g: Triplet().query_losses(s, g, 1, None),
}


@pytest.mark.parametrize("name", IN_BLOCKS)
def test_blocks_of_queries_give_what_all_at_once_give(monkeypatch, name):
    torch.manual_seed(6)
    scores, grades = torch.rand(9, 13, requires_grad=True), torch.randint(0, 2, (9, 13))
    values, _ = IN_BLOCKS[name](scores, grades)
    (gradient,) = torch.autograd.grad(values.square().sum(), scores)
    monkeypatch.setattr("hgld.losses.rank_loss._MOST_ITEMS", 30)
    parts, _ = IN_BLOCKS[name](scores, grades)
    torch.testing.assert_close(parts, values)
    torch.testing.assert_close(torch.autograd.grad(parts.square().sum(), scores)[0], gradient)


@pytest.mark.parametrize("loss", [SoftBinAP(), FastAP(), BlackboxAP(), PNP(), Triplet()])
def test_autograd_keeps_one_table_and_at_most_a_byte_a_pair_more(loss):
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


def test_a_factor_on_blackbox_ap_multiplies_lambda():
    scores = torch.randn(4, 40, generator=torch.Generator().manual_seed(0), requires_grad=True)
    grades = torch.arange(160).reshape(4, 40) % 5 == 0

    def gradient(factor, lambda_):
        values, _ = blackbox_ap_loss(scores, grades.long(), lambda_=lambda_)
        return torch.autograd.grad(factor * values.sum(), scores)[0] / factor

    torch.testing.assert_close(gradient(16.0, 0.25), gradient(1.0, 4.0))
    assert not torch.allclose(gradient(16.0, 0.25), gradient(1.0, 0.25), rtol=0.1)


def test_blackbox_ap_gives_no_gradient_to_a_loss_that_is_not_asked():
    scores = torch.rand(3, 8, requires_grad=True)
    values, _ = blackbox_ap_loss(scores, torch.tensor([[1, 0, 1, 0, 0, 1, 0, 0]] * 3))
    (gradient,) = torch.autograd.grad(values[1], scores)
    assert not gradient[[0, 2]].any()


def test_class_weights_count_queries_of_a_class():
    torch.manual_seed(5)
    embeddings, labels = torch.randn(7, 4), torch.tensor([0, 0, 0, 0, 1, 1, -1])
    each, valid = SoftBinAP(reduction="none")(embeddings, labels)
    assert valid.tolist() == [True] * 6 + [False]
    weights = torch.tensor([0.5, 2.0])
    expected = (0.5 * each[:4].sum() + 2.0 * each[4:6].sum()) / 6
    weighted = ClassWeighted(SoftBinAP(reduction="none"), weights)
    torch.testing.assert_close(weighted(embeddings, labels), expected)
    expected = (each[:4].mean() + each[4:6].mean()) / 2
    balanced = ClassWeighted(SoftBinAP(reduction="none"), "balanced")
    torch.testing.assert_close(balanced(embeddings, labels), expected)
    torch.testing.assert_close(balanced(embeddings, labels, embeddings, labels), expected)
    assert balanced(embeddings, torch.full((7,), -1)) == 0
    with pytest.raises(InputError, match="label 2 has no weight"):
        weighted(embeddings, labels + 1)
    assert torch.equal(weighted.state_dict()["weights"], weights)
