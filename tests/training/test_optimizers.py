"""Parameter groups, learning rates and state of optimizers; the average of the weights."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from hgld.errors import InputError
from hgld.training.config import OptimizerConfig
from hgld.training.optimizers import (
    build_optimizers,
    groups_of,
    learning_rate,
    optimizer_state,
    restore_optimizers,
    set_rates,
    weight_average,
)
from tests.rows import each_row


def parameters():
    torch.manual_seed(0)
    backbone, head, proxies = nn.Sequential(nn.Linear(4, 3), nn.LayerNorm(3)), nn.Linear(3, 2), nn.Linear(2, 5)
    named = {"backbone": backbone, "head": head, "proxies": proxies}
    return nn.ModuleDict(named), {part: list(module.named_parameters()) for part, module in named.items()}


def test_every_parameter_is_in_one_group_with_its_rate_and_decay():
    modules, named = parameters()
    config = OptimizerConfig(optimizer="adamw", lr=1.0, lr_head=2.0, lr_proxies=3.0, weight_decay=0.1)
    optimizers = build_optimizers(config, named)
    groups = groups_of(optimizers)
    found = {name: (g["lr"], g["weight_decay"]) for g in groups for name in g["names"]}
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
    grouped = [p for g in groups for p in g["params"]]
    assert {id(p) for p in grouped} == {id(p) for p in modules.parameters()}
    set_rates(optimizers, config, 50, steps_per_epoch=10, epochs=10)
    assert {g["part"]: round(g["lr"], 9) for g in groups} == {"backbone": 0.5, "head": 1.0, "proxies": 1.5}
    assert [type(optimizer) for optimizer in optimizers] == [torch.optim.AdamW] * 2


@each_row("kind", ["adam", "sgd"])
def test_restored_optimizer_state_is_on_the_device_of_its_parameter(kind):
    """Scalar parameters, such as GeM's exponent, are included."""
    exponent, matrix = nn.Parameter(torch.tensor(3.0)), nn.Parameter(torch.ones(2, 2))
    config = OptimizerConfig(optimizer=kind)
    optimizers = build_optimizers(config, {"head": [("p", exponent), ("weight", matrix)]})
    exponent.grad, matrix.grad = torch.tensor(0.1), torch.ones(2, 2)
    optimizers[0].step()
    named = [("p", nn.Parameter(exponent.to("meta"))), ("weight", nn.Parameter(matrix.to("meta")))]
    elsewhere = build_optimizers(config, {"head": named})
    restore_optimizers(elsewhere, optimizer_state(optimizers))
    moments = {"adam": ("exp_avg", "exp_avg_sq"), "sgd": ("momentum_buffer",)}[kind]
    for _, parameter in named:
        state = elsewhere[0].state[parameter]
        assert {state[moment].device.type for moment in moments} == {"meta"}
        assert kind == "sgd" or state["step"].device.type == "meta"


def test_optimizer_state_of_another_model_is_refused():
    _, named = parameters()
    optimizers = build_optimizers(OptimizerConfig(), named)
    with pytest.raises(InputError, match=r"'head/weight\|exp_avg'.*another model"):
        restore_optimizers(optimizers, {"head/weight|exp_avg": torch.zeros(7, 7)})
    with pytest.raises(InputError, match="fits no parameter"):
        restore_optimizers(optimizers, {"neck/weight|exp_avg": torch.zeros(2)})


def rate(config, step, part="backbone", base=1.0):
    return learning_rate(config, part, base, step, steps_per_epoch=10, epochs=10)


@given(st.integers(0, 99), st.sampled_from(["cosine", "linear", "constant"]), st.integers(0, 20), st.floats(0.0, 2.0))
def test_learning_rate_rises_only_during_warmup(step, schedule, warmup, floor):
    config = OptimizerConfig(schedule=schedule, warmup_steps=warmup, lr_floor=floor)
    here, later = (rate(config, s) for s in (step, step + 1))
    assert 0 <= here <= 1 + 1e-12
    assert here <= later + 1e-12 if step + 1 < warmup else here >= later - 1e-12
    if step + 1 == warmup:
        assert here == 1
    if step >= warmup:
        assert here >= min(floor, 1) - 1e-12


def test_learning_rate_schedules_have_values_computed_by_hand():
    cosine, linear = OptimizerConfig(schedule="cosine"), OptimizerConfig(schedule="linear")
    assert rate(cosine, 0) == rate(linear, 0) == 1
    assert math.isclose(rate(cosine, 50), 0.5)
    assert math.isclose(rate(cosine, 25), (1 + math.cos(math.pi / 4)) / 2)
    assert math.isclose(rate(linear, 75), 0.25)
    steps = OptimizerConfig(schedule="step", milestones=(3, 6), gamma=0.1)
    assert [round(rate(steps, s), 6) for s in (29, 30, 59, 60)] == [1, 0.1, 0.1, 0.01]


def test_backbone_and_proxies_have_separate_learning_rate_floors():
    config = OptimizerConfig(lr_floor=0.2, lr_floor_proxies=4.0, warmup_steps=2)
    assert [rate(config, step, "head", 3.0) for step in (0, 1, 2)] == [1.5, 3.0, 3.0]
    assert rate(config, 0, "proxies", 10.0) == 5.0
    assert math.isclose(rate(config, 51, "proxies", 10.0), 7.0)
    assert (rate(config, 100, "proxies", 10.0), rate(config, 100)) == (4.0, 0.2)
    assert math.isclose(rate(config, 51), 0.6)
    assert rate(config, 100, "backbone", 0.1) == 0.1  # a floor above the rate does not raise it


def test_weight_average_follows_its_recurrence_formula():
    net = nn.Linear(1, 1, bias=False)
    net.weight.data.fill_(1.0)
    average = weight_average(net, decay=0.5)
    expected = 1.0
    for t, value in enumerate([3.0, -2.0, 5.0, 0.5, 8.0, 8.0, 1.0]):
        net.weight.data.fill_(value)
        average.update_parameters(net)
        decay = min(0.5, (1 + t) / (10 + t)) if t else 0.0  # the first update copies the weights
        expected = decay * expected + (1 - decay) * value
    assert math.isclose(float(average.module.get_parameter("weight").detach()), expected, rel_tol=1e-6)
    assert net.weight.item() == 1.0
