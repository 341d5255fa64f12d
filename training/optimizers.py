"""Optimizers: parameter groups, learning rates and state; and the moving average of the weights."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.swa_utils import AveragedModel

from hgld.distributed import ALONE, Processes, RowShare, exchange_rows, is_split, join_rows, row_shares, whole_shape
from hgld.errors import InputError

from .config import OptimizerConfig


def weight_average(model: nn.Module, decay: float) -> AveragedModel:
    """Make an exponential moving average of a model's weights; evaluations use it instead of the weights.

    After every step w <- d w + (1 - d) weights, with d = min(decay, (1 + t) / (10 + t)) at step t. The smaller decay at
    the start lets the average forget the initial weights quickly. Buffers (statistics of batch norm) are not averaged.

    Args:
        model: model whose parameters are averaged.
        decay: decay of the average, 0..1.
    """

    def average(averaged: Tensor, current: Tensor, updates: Tensor | int) -> Tensor:
        return torch.lerp(current, averaged, min(decay, (1 + int(updates)) / (10 + int(updates))))

    return AveragedModel(model, avg_fn=average)


PARTS = ("backbone", "head", "proxies")
Named = Sequence[tuple[str, nn.Parameter]]


def build_optimizers(
    config: OptimizerConfig, parameters: Mapping[str, Named], processes: Processes = ALONE
) -> list[Optimizer]:
    """Build the optimizers of a run: one for the model, and one for the loss's own parameters if it has any.

    Several processes split large tables of the loss by rows: each updates its share of the rows and keeps the
    optimizer's state of these rows only (:func:`step_optimizers`). Tables of which it holds only its rows stay.

    Args:
        config: types, rates and decay of the optimizers.
        parameters: named parameters of the ``backbone``, the ``head`` and the loss (``proxies``). A scalar among the
            proxies is a boundary (beta) with a separate rate. Scalars have no weight decay; vectors (biases, norms)
            have weight decay only with ``decay_all``.
        processes: processes of the run.
    """

    def own_rows(part: str, parameter: nn.Parameter) -> nn.Parameter:
        if part != "proxies" or not is_split(parameter, processes):
            return parameter
        return nn.Parameter(parameter.detach()[row_shares(len(parameter), processes)[processes.index]])

    rates = {"backbone": config.lr, "head": config.lr_head, "proxies": config.lr_proxies, "beta": config.lr_beta}
    groups: dict[bool, list[dict[str, Any]]] = {False: [], True: []}
    for part in PARTS:
        chosen: dict[tuple[str, float], list[tuple[str, nn.Parameter]]] = {}
        for name, parameter in parameters.get(part, ()):
            is_boundary = part == "proxies" and parameter.ndim == 0 and config.lr_beta >= 0
            has_decay = parameter.ndim > 1 or (parameter.ndim == 1 and config.decay_all)
            decay = config.weight_decay_proxies if part == "proxies" else config.weight_decay
            key = "beta" if is_boundary else part, decay if has_decay else 0.0
            chosen.setdefault(key, []).append((name, parameter))
        for (rate, decay), named in sorted(chosen.items(), key=lambda group: -group[0][1]):
            groups[part == "proxies"].append(
                {
                    "params": [p for _, p in named],
                    "own": [own_rows(part, p) for _, p in named],
                    "names": [f"{part}/{n}" for n, _ in named],
                    "part": part,
                    "rate": rate,
                    "base_lr": rates[rate],
                    "lr": rates[rate],
                    "weight_decay": decay,
                }
            )
    kinds: dict[str, Any] = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW, "sgd": torch.optim.SGD}
    options: dict[str, Any] = {"momentum": 0.9, "nesterov": config.nesterov} if config.optimizer == "sgd" else {}
    on_gpu = any(parameter.device.type != "cpu" for named in parameters.values() for _, parameter in named)
    return [kinds[config.optimizer](chosen, fused=on_gpu or None, **options) for chosen in groups.values() if chosen]


def groups_of(optimizers: Iterable[Optimizer]) -> list[dict[str, Any]]:
    """Return the groups of parameters of all optimizers."""
    return [group for optimizer in optimizers for group in optimizer.param_groups]


def learning_rate(
    config: OptimizerConfig, part: str, base: float, step: int, *, steps_per_epoch: int, epochs: int
) -> float:
    """Return the learning rate of a part of the parameters at a step, counted from 0 over the whole run.

    The rate rises linearly up to the last step of the warm-up. From the end of the warm-up to the end of the run, the
    schedules cosine and linear fall to the part's floor, or stay at the rate if it is below the floor.

    Args:
        config: the schedules and their floors.
        part: part of the model or loss: ``backbone``, ``head`` or ``proxies``.
        base: the part's full rate.
        step: step of the run, from 0.
        steps_per_epoch: number of steps per epoch of the run.
        epochs: number of epochs of the run.
    """
    if step < config.warmup_steps:
        return base * (step + 1) / config.warmup_steps
    floor = min(config.lr_floor_proxies if part == "proxies" else config.lr_floor, base)
    total = steps_per_epoch * epochs - config.warmup_steps
    done = min((step - config.warmup_steps) / max(total, 1), 1.0)
    match config.schedule:
        case "cosine":
            return floor + (base - floor) * (1 + math.cos(math.pi * done)) / 2
        case "linear":
            return floor + (base - floor) * (1 - done)
        case "step":
            return base * config.gamma ** sum(step >= milestone * steps_per_epoch for milestone in config.milestones)
    return base


def set_rates(
    optimizers: Iterable[Optimizer], config: OptimizerConfig, step: int, *, steps_per_epoch: int, epochs: int
) -> None:
    """Set the learning rate of every parameter group for a step."""
    for group in groups_of(optimizers):
        group["lr"] = learning_rate(
            config, group["part"], group["base_lr"], step, steps_per_epoch=steps_per_epoch, epochs=epochs
        )


def step_optimizers(optimizers: Iterable[Optimizer], processes: Processes = ALONE) -> None:
    """Do a step of every optimizer; the gradients and, after the step, the weights are equal on all processes.

    An optimizer changes each number by itself, so a split table gets the same bits as a whole table.
    """
    for optimizer in optimizers:
        whole = [group["params"] for group in optimizer.param_groups]
        split = [(parameter, own) for _, parameter, own, _ in _members([optimizer]) if own is not parameter]
        for parameter, own in split:
            rows = row_shares(len(parameter), processes)[processes.index]
            own.data, own.grad = parameter.detach()[rows], None if parameter.grad is None else parameter.grad[rows]
        for group in optimizer.param_groups:
            group["params"] = group["own"]
        optimizer.step()
        for group, parameters in zip(optimizer.param_groups, whole, strict=True):
            group["params"] = parameters
        for parameter, own in split:
            own.grad = None
            exchange_rows(parameter.detach(), processes)


def optimizer_state(optimizers: Iterable[Optimizer], processes: Processes = ALONE) -> dict[str, Tensor]:
    """Return the optimizers' state as tensors named ``{part}/{parameter}|{state}``.

    Every process must call this. Tensors of split tables are whole on the main process only.
    """
    state = {}
    for name, parameter, own, optimizer in _members(optimizers):
        for key, value in optimizer.state.get(own, {}).items():
            if value is not None:  # SGD's momentum is None before the first step
                tensor = torch.as_tensor(value)
                if tensor.ndim and (own is not parameter or isinstance(parameter, RowShare)):
                    tensor = join_rows(tensor, whole_shape(parameter)[0], processes)
                state[f"{name}|{key}"] = tensor
    return state


def restore_optimizers(
    optimizers: Sequence[Optimizer], state: Mapping[str, Tensor], processes: Processes = ALONE
) -> None:
    """Restore the state that :func:`optimizer_state` returned, on any number of processes.

    Raises:
        InputError: the state belongs to other parameters.
    """
    members = {name: (parameter, own, optimizer) for name, parameter, own, optimizer in _members(optimizers)}
    for optimizer in optimizers:
        optimizer.state.clear()
    for key, value in state.items():
        name, _, entry = key.rpartition("|")
        member = members.get(name)
        if member is None or (value.ndim and value.shape != whole_shape(member[0])):
            raise InputError(
                f"the optimizer's state {key!r} of shape {tuple(value.shape)} fits no parameter of this run, because "
                "it belongs to another model. Start a new run, with --init-from for the weights."
            )
        parameter, own, optimizer = member
        # Adam keeps its count of steps on the CPU unless it is fused; moments are on their parameter's device.
        on_cpu = entry == "step" and not optimizer.defaults.get("fused")
        if value.ndim and (own is not parameter or isinstance(parameter, RowShare)):
            value = value[row_shares(len(value), processes)[processes.index]]
        optimizer.state[own][entry] = value.to("cpu" if on_cpu else parameter.device, copy=True)


def _members(optimizers: Iterable[Optimizer]) -> Iterator[tuple[str, nn.Parameter, nn.Parameter, Optimizer]]:
    """Yield name, parameter, the own rows of the parameter (or the parameter itself) and optimizer."""
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            for name, parameter, own in zip(group["names"], group["params"], group["own"], strict=True):
                yield name, parameter, own, optimizer
