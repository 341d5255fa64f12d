"""Steps that are not finite, seen some steps later: nothing has moved since, and the state is that before the first."""

from contextlib import nullcontext
from typing import Any

import pytest
import torch

from hgld.data.batch import Batch
from hgld.training import loop
from hgld.training.config import TrainConfig, with_fields
from hgld.training.optimizers import LossScale, optimizer_state
from hgld.training.state import set_frozen
from hgld.training.step import Safeguard, StepValues
from tests.training.tiny_steps import LABELS, modules_of, state_of

CPU = torch.device("cpu")
MEMORY = {"memory": 40, "memory_from_epoch": 0, "ema": 0.9}


def begun(**fields: Any) -> tuple[Any, Safeguard]:
    """A run whose device is asked after 8 steps, with fused optimizers, as on a GPU."""
    torch.manual_seed(0)
    config = with_fields(
        TrainConfig(), {"batch_size": 16, "images_per_class": 4, "lr": 0.01, "lr_head": 0.01, **fields}
    )
    state = state_of(config, *modules_of(config), CPU)
    for optimizer in state.optimizers:
        for group in (optimizer.defaults, *optimizer.param_groups):
            group["fused"] = True
    safeguard = Safeguard(state.model, state.criterion, 16, CPU, every=8)
    safeguard._every = 8
    return state, safeguard


def do_steps(state: Any, safeguard: Safeguard, steps: range, broken: tuple[int, ...] = ()) -> None:
    backward = loop._backward(state, lambda _: nullcontext())
    criterion = backward.criterion

    def spoiled(*args: Any) -> Any:
        loss, parts = criterion(*args)
        return loss * torch.nan, parts

    for state.step in steps:
        images = torch.randint(
            255, (16, 3, 8, 8), dtype=torch.uint8, generator=torch.Generator().manual_seed(state.step)
        )
        object.__setattr__(backward, "criterion", spoiled if state.step in broken else criterion)
        loop._step(state, safeguard, backward, Batch(images, LABELS, torch.arange(16)), lambda _: nullcontext())


def everything(state: Any) -> dict[str, torch.Tensor]:
    found = {**state.model.state_dict(), **state.criterion.state_dict(), **optimizer_state(state.optimizers)}
    found |= {f"average/{name}": weight for name, weight in (state.average.weights if state.average else {}).items()}
    found |= {f"scale/{name}": torch.tensor(value) for name, value in state.scale.state_dict().items()}
    return {name: tensor.clone() for name, tensor in found.items()}


@pytest.mark.parametrize("fields", [MEMORY, {"optimizer": "sgd", "momentum": 0.9, "amp": "fp16"}], ids=["adam", "sgd"])
def test_the_state_before_the_first_broken_step_comes_back(fields):
    state, safeguard = begun(**fields)
    do_steps(state, safeguard, range(2))
    assert safeguard.read() is None
    do_steps(state, safeguard, range(2, 4))
    before = everything(state)
    do_steps(state, safeguard, range(4, 8), broken=(4, 6))
    found = safeguard.read()
    assert found is not None
    assert found.step == 4
    assert found.values.loss.isnan()
    assert before.keys() == everything(state).keys()
    for name, tensor in everything(state).items():
        assert torch.equal(tensor, before[name]), name


def test_steps_that_are_asked_about_late_are_those_that_are_asked_about_at_once():
    late, at_once = begun(**MEMORY), begun(**MEMORY)
    do_steps(*late, range(5))
    for step in range(5):
        do_steps(*at_once, range(step, step + 1))
        assert at_once[1].read() is None
    assert late[1].read() is None
    found = everything(at_once[0])
    assert all(torch.equal(tensor, found[name]) for name, tensor in everything(late[0]).items())


def test_the_scale_of_the_loss_follows_torchs_scaler():
    ours, theirs = LossScale(CPU, enabled=True), torch.amp.GradScaler("cpu")
    parameter = torch.nn.Parameter(torch.ones(3))
    optimizer = torch.optim.SGD([parameter], lr=0.0)
    for grow in ours, theirs:
        grow._INTERVAL = grow._growth_interval = 3  # type: ignore[union-attr]
    for overflows in (True, False, False, False, False, True, False):
        parameter.grad = torch.full((3,), torch.inf if overflows else 1.0)
        theirs.scale(torch.ones(()))
        theirs.step(optimizer)
        theirs.update()
        ours.update(torch.tensor(overflows), frozen=torch.tensor(False))
        assert ours.state_dict()["scale"] == theirs.get_scale()
    assert ours.state_dict().keys() == theirs.state_dict().keys()


def test_an_overflow_under_fp16_skips_a_step_and_one_at_the_lowest_scale_ends_the_run():
    safeguard = Safeguard(torch.nn.Linear(2, 2), torch.nn.Identity(), 2, CPU, every=1)
    values, overflow = StepValues(torch.ones(()), {}), torch.tensor(torch.inf)
    scale = LossScale(CPU, enabled=True)
    safeguard.before()
    assert safeguard.after(0, torch.arange(2), values, overflow, scale) == 1
    assert safeguard.read() is None
    scale.load_state_dict(scale.state_dict() | {"scale": 2.0**-14})
    safeguard.before()
    assert safeguard.after(1, torch.arange(2), values, overflow, scale) == 1
    assert safeguard.read() is not None


def test_the_model_is_wrapped_anew_only_where_the_backbone_is_frozen_or_released(monkeypatch):
    state, _ = begun(frozen_epochs=2)
    wrapped: list[bool] = []
    monkeypatch.setattr("hgld.training.state.wrap_by_config", lambda model, *_: wrapped.append(model.backbone_frozen))
    for state.frozen in (True, True, False, False, False):
        set_frozen(state)
    assert wrapped == [True, False]
