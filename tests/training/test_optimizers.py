"""Groups, rates and state of the optimizer; the average of the weights."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from hgld.errors import InputError
from training.config import OptimizerConfig
from training.ema import WeightAverage
from training.optimizers import build_optimizer, optimizer_state, rate_factor, restore_optimizer, set_rates


def parameters():
    torch.manual_seed(0)
    backbone, head, proxies = nn.Sequential(nn.Linear(4, 3), nn.LayerNorm(3)), nn.Linear(3, 2), nn.Linear(2, 5)
    named = {"backbone": backbone, "head": head, "proxies": proxies}
    return nn.ModuleDict(named), {part: list(module.named_parameters()) for part, module in named.items()}


def test_every_parameter_is_in_one_group_with_its_rate_and_decay():
    modules, named = parameters()
    config = OptimizerConfig(optimizer="adamw", lr=1.0, lr_head=2.0, lr_proxies=3.0, weight_decay=0.1)
    optimizer = build_optimizer(config, named)
    found = {name: (g["lr"], g["weight_decay"]) for g in optimizer.param_groups for name in g["names"]}
    assert found == {
        "backbone/0.weight": (1.0, 0.1),
        "backbone/0.bias": (1.0, 0.0),
        "backbone/1.weight": (1.0, 0.0),
        "backbone/1.bias": (1.0, 0.0),
        "head/weight": (2.0, 0.1),
        "head/bias": (2.0, 0.0),
        "proxies/weight": (3.0, 0.0),
        "proxies/bias": (3.0, 0.0),
    }
    grouped = [p for g in optimizer.param_groups for p in g["params"]]
    assert {id(p) for p in grouped} == {id(p) for p in modules.parameters()}
    set_rates(optimizer, 0.5)
    assert {g["part"]: g["lr"] for g in optimizer.param_groups} == {"backbone": 0.5, "head": 1.0, "proxies": 1.5}


@pytest.mark.parametrize("kind", ["adam", "adamw", "sgd"])
def test_a_restored_optimizer_goes_on_as_if_nothing_had_been(kind):
    def step(modules, optimizer, seed):
        generator = torch.Generator().manual_seed(seed)
        for p in modules.parameters():
            p.grad = torch.randn(p.shape, generator=generator)
        optimizer.step()

    config = OptimizerConfig(optimizer=kind, lr=0.1)
    modules, named = parameters()
    optimizer = build_optimizer(config, named)
    for seed in range(3):
        step(modules, optimizer, seed)
    others, other_named = parameters()
    others.load_state_dict(modules.state_dict())
    other = build_optimizer(config, other_named)
    restore_optimizer(other, optimizer_state(optimizer))
    for seed in range(3, 6):
        step(modules, optimizer, seed)
        step(others, other, seed)
    for p, q in zip(modules.parameters(), others.parameters(), strict=True):
        assert torch.equal(p, q)


def test_the_state_of_another_model_is_refused():
    _, named = parameters()
    optimizer = build_optimizer(OptimizerConfig(), named)
    with pytest.raises(InputError, match=r"'head/weight\|exp_avg'.*another model"):
        restore_optimizer(optimizer, {"head/weight|exp_avg": torch.zeros(7, 7)})
    with pytest.raises(InputError, match="fits no parameter"):
        restore_optimizer(optimizer, {"neck/weight|exp_avg": torch.zeros(2)})


@given(st.integers(0, 99), st.sampled_from(["cosine", "linear", "constant"]), st.integers(0, 20))
def test_rates_rise_once_and_never_again(step, schedule, warmup):
    config = OptimizerConfig(schedule=schedule, warmup_steps=warmup)
    here, later = (rate_factor(config, s, 10, 10) for s in (step, step + 1))
    assert 0 <= here <= 1
    assert here <= later + 1e-12 if step + 1 < warmup else here >= later - 1e-12
    if step + 1 == warmup:
        assert here == 1


def test_the_schedules_are_those_that_their_names_say():
    cosine, linear = OptimizerConfig(schedule="cosine"), OptimizerConfig(schedule="linear")
    assert rate_factor(cosine, 0, 10, 10) == rate_factor(linear, 0, 10, 10) == 1
    assert math.isclose(rate_factor(cosine, 50, 10, 10), 0.5)
    assert math.isclose(rate_factor(cosine, 25, 10, 10), (1 + math.cos(math.pi / 4)) / 2)
    assert math.isclose(rate_factor(linear, 75, 10, 10), 0.25)
    steps = OptimizerConfig(schedule="step", milestones=(3, 6), gamma=0.1)
    assert [round(rate_factor(steps, s, 10, 10), 6) for s in (29, 30, 59, 60)] == [1, 0.1, 0.1, 0.01]


def test_the_average_of_the_weights_against_its_recurrence():
    net = nn.Linear(1, 1, bias=False)
    net.weight.data.fill_(1.0)
    average = WeightAverage(net, decay=0.5)
    expected = 1.0
    for t, value in enumerate([3.0, -2.0, 5.0, 0.5, 8.0, 8.0, 1.0]):
        net.weight.data.fill_(value)
        average.update(net)
        decay = min(0.5, (1 + t) / (10 + t))
        expected = decay * expected + (1 - decay) * value
    assert math.isclose(float(average.weights["weight"]), expected, rel_tol=1e-6)
    with average.in_place_of(net):
        assert math.isclose(net.weight.item(), expected, rel_tol=1e-6)
    assert net.weight.item() == 1.0
