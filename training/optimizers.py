"""The optimizer: groups of parameters with their own rates, rates as functions of the step, state as named tensors."""

import math
from collections.abc import Iterable, Mapping

import torch
from torch import Tensor, nn

from hgld.errors import InputError
from training.config import OptimizerConfig
from training.distributed import placed_like

PARTS = ("backbone", "head", "proxies")
Named = Iterable[tuple[str, nn.Parameter]]


def build_optimizer(config: OptimizerConfig, parameters: Mapping[str, Named]) -> torch.optim.Optimizer:
    """The optimizer of a run.

    Args:
        config: its kind, rates and decay.
        parameters: named parameters of the ``backbone``, the ``head`` and the loss's own, the ``proxies``. Vectors and
            scalars (biases, norms, GeM's exponent) and all proxies have no weight decay.
    """
    rates = {"backbone": config.lr, "head": config.lr_head, "proxies": config.lr_proxies}
    groups = []
    for part in PARTS:
        named = list(parameters.get(part, ()))
        for decays in (True, False):
            chosen = [(n, p) for n, p in named if (p.ndim > 1 and part != "proxies") == decays]
            if chosen:
                groups.append(
                    {
                        "params": [p for _, p in chosen],
                        "names": [f"{part}/{n}" for n, _ in chosen],
                        "part": part,
                        "base_lr": rates[part],
                        "lr": rates[part],
                        "weight_decay": config.weight_decay if decays else 0.0,
                    }
                )
    match config.optimizer:
        case "adam":
            return torch.optim.Adam(groups)
        case "adamw":
            return torch.optim.AdamW(groups)
        case "sgd":
            return torch.optim.SGD(groups, momentum=config.momentum)


def rate_factor(config: OptimizerConfig, step: int, steps_per_epoch: int, epochs: int) -> float:
    """What all learning rates are multiplied by at a step, counted from 0 over the whole run.

    The warm-up rises in a straight line to its last step; cosine and linear fall to 0 at the end of the run, counted
    from the end of the warm-up.
    """
    if step < config.warmup_steps:
        return (step + 1) / config.warmup_steps
    total = steps_per_epoch * epochs - config.warmup_steps
    done = (step - config.warmup_steps) / max(total, 1)
    match config.schedule:
        case "cosine":
            return (1 + math.cos(math.pi * min(done, 1.0))) / 2
        case "linear":
            return max(1 - done, 0.0)
        case "step":
            return config.gamma ** sum(step >= milestone * steps_per_epoch for milestone in config.milestones)
        case "constant":
            return 1.0


def set_rates(optimizer: torch.optim.Optimizer, factor: float) -> None:
    """Give every group its own rate times the factor."""
    for group in optimizer.param_groups:
        group["lr"] = group["base_lr"] * factor


def optimizer_state(optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """The optimizer's state as tensors named ``{part}/{parameter}|{state}``."""
    state = {}
    for group in optimizer.param_groups:
        for name, parameter in zip(group["names"], group["params"], strict=True):
            for key, value in optimizer.state.get(parameter, {}).items():
                if value is not None:  # SGD's momentum before its first step
                    state[f"{name}|{key}"] = torch.as_tensor(value)
    return state


def restore_optimizer(optimizer: torch.optim.Optimizer, state: Mapping[str, Tensor]) -> None:
    """Put back what :func:`optimizer_state` took.

    Raises:
        InputError: the state is of other parameters.
    """
    parameters = {
        name: parameter
        for group in optimizer.param_groups
        for name, parameter in zip(group["names"], group["params"], strict=True)
    }
    optimizer.state.clear()
    for key, value in state.items():
        name, _, entry = key.rpartition("|")
        parameter = parameters.get(name)
        if parameter is None or (value.ndim and value.shape != parameter.shape):
            raise InputError(
                f"the optimizer's state {key!r} of shape {tuple(value.shape)} fits no parameter of this run; it is of "
                "another model. Start a new run, with --init-from for the weights."
            )
        # A step count stays where Adam wants it, on the CPU; moments lie with their parameter.
        optimizer.state[parameter][entry] = value.clone() if value.ndim == 0 else placed_like(value, parameter)
