"""A rank loss over all levels with weights that training finds, against sums over the levels one by one."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hgld import shared_levels
from hgld.errors import ConfigError, InputError
from hgld.losses.level_weights import LevelWeighted
from hgld.losses.pnp import PNP
from hgld.losses.surrogate_losses import SmoothAP, SupAP, SupHAP
from hgld.metrics import ranking_metrics


def labels_of(fine: list[int]) -> torch.Tensor:
    return torch.tensor([[f, f // 2 if f >= 0 else -1, f // 4 if f >= 0 else -1] for f in fine])


def twin(values: list[float], gamma: float) -> float:
    """A query's value, of the levels at which it has positives."""
    weights = [value**gamma for value in values]
    return sum(w * v for w, v in zip(weights, values, strict=True)) / sum(weights) if sum(weights) else 0.0


batches = st.lists(st.integers(-1, 7), min_size=1, max_size=8)


@given(fine=batches, seed=st.integers(0, 2**16), gamma=st.sampled_from([0.0, 1.0, 2.5]))
@settings(max_examples=15)
def test_hard_levels_weigh_by_what_they_lose(fine, seed, gamma):
    torch.manual_seed(seed)
    embeddings, labels = torch.randn(len(fine), 4, dtype=torch.float64), labels_of(fine)
    found = LevelWeighted(SupAP(reduction="none", exclude_self=True), 3, "hard", gamma)(embeddings, labels)
    of_levels = [SupAP(reduction="none", exclude_self=True)(embeddings, labels[:, c]) for c in range(3)]
    queries = [[float(v[q]) for v, valid in of_levels if valid[q]] for q in range(len(fine))]
    expected = [twin(values, gamma) for values in queries if values]
    assert float(found) == pytest.approx(sum(expected) / max(1, len(expected)), rel=1e-6, abs=1e-9)


@given(fine=batches, seed=st.integers(0, 2**16))
@settings(max_examples=10)
def test_without_a_preference_it_bounds_h_ap(fine, seed):
    torch.manual_seed(seed)
    embeddings, labels = torch.nn.functional.normalize(torch.randn(len(fine), 4, dtype=torch.float64)), labels_of(fine)
    found = LevelWeighted(SupAP(reduction="none"), 3, "hard", gamma=0.0)(embeddings, labels)
    scores, names = embeddings @ embeddings.T, ["AP/a", "AP/b", "AP/c"]
    of_levels = ranking_metrics(scores, shared_levels(labels, labels), names, levels=["a", "b", "c"])
    means = torch.stack([torch.as_tensor(of_levels[name]) for name in names]).nanmean(0)
    if (known := ~means.isnan()).any():
        assert float((1 - means[known]).mean()) <= float(found) + 1e-6


def test_learned_weights_settle_at_the_inverse_of_the_losses():
    """The gradient of exp(-s) l + s / 2 is 0 at s = log 2 l."""
    torch.manual_seed(0)
    embeddings, labels = torch.randn(8, 4, requires_grad=True), labels_of([0, 0, 1, 1, 2, 3, 4, 4])
    loss = LevelWeighted(SmoothAP(reduction="none"), 3)
    assert loss.log_variances is not None
    each = torch.stack([SmoothAP()(embeddings, labels[:, c]) for c in range(3)])
    torch.testing.assert_close(loss(embeddings, labels), each.sum())
    loss.log_variances.data = (2 * each.detach()).log()
    value = loss(embeddings, labels)
    torch.testing.assert_close(value, 1.5 + loss.log_variances.sum() / 2)
    value.backward()
    assert loss.log_variances.grad is not None
    assert loss.log_variances.grad.abs().max() < 1e-6
    (expected,) = torch.autograd.grad((each / (2 * each.detach())).sum(), embeddings)
    torch.testing.assert_close(embeddings.grad, expected)


def test_a_level_without_positives_says_nothing_of_its_weight():
    loss = LevelWeighted(PNP(reduction="none"), 2)
    assert loss.log_variances is not None
    loss(torch.randn(4, 3), torch.tensor([[0, -1], [0, -1], [1, -1], [1, -1]])).backward()
    assert loss.log_variances.grad is not None
    assert loss.log_variances.grad[1] == 0


def test_gradcheck_with_a_gallery():
    torch.manual_seed(0)
    loss = LevelWeighted(SmoothAP(0.2, reduction="none"), 3, "learned").double()
    assert loss.log_variances is not None
    queries, gallery = torch.randn(3, 4, dtype=torch.float64), torch.randn(5, 4, dtype=torch.float64)
    labels, others = labels_of([0, 1, 5]), labels_of([0, 1, 2, 5, 7])

    def value(q, g, s):
        return torch.func.functional_call(loss, {"log_variances": s}, (q, labels, g, others))

    leaves = (queries.requires_grad_(), gallery.requires_grad_(), loss.log_variances.detach().clone().requires_grad_())
    assert torch.autograd.gradcheck(value, leaves)


@pytest.mark.parametrize(
    ("loss", "options"),
    [
        (SupHAP(reduction="none"), {}),
        (SupAP(), {}),
        (SupAP(level=1, reduction="none"), {}),
        (SupAP(reduction="none"), {"weights": "equal"}),
        (SupAP(reduction="none"), {"num_levels": 0}),
        (SupAP(reduction="none"), {"gamma": math.inf}),
    ],
)
def test_wrong_options_are_refused(loss, options):
    with pytest.raises(ConfigError):
        LevelWeighted(loss, **{"num_levels": 3, **options})


def test_another_number_of_levels_is_refused():
    with pytest.raises(InputError, match="labels have 2 levels; the loss has weights of 3"):
        LevelWeighted(SupAP(reduction="none"), 3)(torch.randn(2, 3), torch.tensor([[0, 0], [0, 0]]))
