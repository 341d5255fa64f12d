"""Average, maximum and generalised mean over places."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hgld.errors import ConfigError
from hgld.training.models.embedding_model import AveragePool, GeM, MaxPool, build_pooling


def maps(seed: int = 0) -> torch.Tensor:
    return torch.rand(2, 5, 3, 4, generator=torch.Generator().manual_seed(seed)).double() + 0.01


def test_average_and_max_pooling_reduce_over_positions():
    values = maps()
    torch.testing.assert_close(AveragePool()(values), values.flatten(2).mean(2))
    torch.testing.assert_close(MaxPool()(values), values.flatten(2).max(2).values)


@given(p=st.floats(0.2, 30), seed=st.integers(0, 50))
def test_gem_equals_generalized_mean_reference(p, seed):
    values = maps(seed)
    slow = torch.tensor(
        [[(sum(v**p for v in m.flatten().tolist()) / 12) ** (1 / p) for m in image] for image in values]
    )
    torch.testing.assert_close(GeM(p)(values).detach(), slow.float(), rtol=1e-4, atol=1e-6)


def test_gem_increases_with_p_from_average_to_maximum():
    values = maps().float()
    torch.testing.assert_close(GeM(1.0)(values), AveragePool()(values))
    torch.testing.assert_close(GeM(500.0)(values), MaxPool()(values), rtol=1e-2, atol=0)
    assert (GeM(2.0)(values) < GeM(3.0)(values)).all()


def test_gem_is_finite_for_extreme_features():
    extreme = torch.tensor([1e-20, 1e20]).view(1, 2, 1, 1).expand(1, 2, 2, 2).clone().requires_grad_()
    pool = GeM(10.0)
    pooled = pool(extreme)
    pooled.sum().backward()
    assert pooled.isfinite().all()
    assert extreme.grad is not None
    assert extreme.grad.isfinite().all()
    assert pool.p.grad is not None
    assert pool.p.grad.isfinite()


def test_gem_exponent_is_parameter_or_fixed():
    assert [name for name, _ in GeM(2.0).named_parameters()] == ["p"]
    fixed = GeM(2.0, learned=False)
    assert not list(fixed.parameters())
    assert fixed.state_dict()["p"] == 2.0
    assert "p=2" in repr(fixed)


def test_impossible_pooling_is_rejected():
    with pytest.raises(ConfigError, match="above 0"):
        GeM(0.0)
    with pytest.raises(ConfigError, match="avg, gem, max or token"):
        build_pooling("mean", 3.0, True)
    assert build_pooling("token", 3.0, True) is None
