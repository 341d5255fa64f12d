"""The hyperbolic loss against its slow twin, and what its distances are."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hgld.errors import ConfigError
from hgld.losses.hyperbolic import HyperbolicPairs
from tests import reference_losses

DIM = 4
labels_of = st.lists(st.integers(-1, 3), min_size=1, max_size=7)


@given(labels=labels_of, seed=st.integers(0, 2**16), curvature=st.sampled_from([0.01, 0.1, 1.0]))
@settings(max_examples=15)
def test_values_and_gradients_equal_their_twins(labels, seed, curvature):
    torch.manual_seed(seed)
    embeddings = torch.randn(len(labels), DIM, dtype=torch.float64, requires_grad=True)
    values, valid = HyperbolicPairs(0.5, curvature, 1.5, reduction="none")(embeddings, torch.tensor(labels))
    slow, total = embeddings.detach().clone().requires_grad_(), torch.zeros((), dtype=torch.float64)
    for query, label in enumerate(labels):
        positive = [int(label >= 0 and other == label) for other in labels]
        found = reference_losses.hyperbolic_losses(slow, query, positive, 0.5, curvature, 1.5)
        expected = sum(found, torch.zeros((), dtype=torch.float64)) / max(1, len(found))
        assert bool(valid[query]) == (len(found) > 0 and 0 in positive)
        assert float(values[query].detach()) == pytest.approx(float(expected.detach()) * bool(valid[query]), rel=1e-9)
        total = total + expected * valid[query]
    values.sum().backward()
    if total.requires_grad:
        total.backward()
        torch.testing.assert_close(embeddings.grad, slow.grad, rtol=1e-7, atol=1e-9)


def test_gradcheck():
    torch.manual_seed(0)
    embeddings = torch.randn(6, DIM, dtype=torch.float64, requires_grad=True)
    labels = torch.tensor([0, 0, 0, 1, 1, -1])
    assert torch.autograd.gradcheck(lambda e: HyperbolicPairs()(e, labels), (embeddings,))


@given(cosines=st.lists(st.floats(-1, 1), min_size=2, max_size=5))
@settings(max_examples=20)
def test_the_order_by_distance_is_that_by_cosine(cosines):
    scores = torch.tensor([sorted(cosines)], dtype=torch.float64)
    distances = HyperbolicPairs().distances(scores)
    assert (distances.diff() <= 0).all()
    assert (distances <= 2 * 2 * 2.3 + 1e-9).all()  # opposite points are joined through the centre


def test_a_small_ball_is_flat():
    """With a small curvature the distance is twice the Euclidean one, as the metric at the centre has it."""
    scores = torch.tensor([[-1.0, 0.0, 0.5]], dtype=torch.float64)
    found = HyperbolicPairs(curvature=1e-8, radius=1.0).distances(scores)
    torch.testing.assert_close(found, 2 * (2 - 2 * scores).sqrt(), rtol=1e-6, atol=0)


def test_equal_embeddings_give_finite_gradients():
    embeddings = torch.ones(4, DIM, requires_grad=True)
    value = HyperbolicPairs()(embeddings, torch.tensor([0, 0, 1, 1]))
    value.backward()
    assert float(value.detach()) == pytest.approx(math.log(3))  # one positive among three that are equally near
    assert embeddings.grad is not None
    assert embeddings.grad.isfinite().all()


@pytest.mark.parametrize("wrong", [{"temperature": 0.0}, {"curvature": -1.0}, {"radius": math.inf}, {"level": -1}])
def test_wrong_options_are_refused(wrong):
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        HyperbolicPairs(**wrong)
