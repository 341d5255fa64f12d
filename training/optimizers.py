"""Optimizers with their groups of parameters, learning rates and state; average of the weights; scale of the loss."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from hgld.distributed import local_part, placed_like
from hgld.errors import ConfigError, InputError

from .config import OptimizerConfig


class WeightAverage:
    """Exponential moving average of the weights, which evaluations use in their place.

    After every step w <- d w + (1 - d) weights, with d = min(decay, (1 + t) / (10 + t)) at step t. The smaller decay at
    the start lets the average forget the initial weights soon. Buffers (statistics of batch norm) are not averaged.

    Args:
        model: whose floating parameters are averaged.
        decay: of the average, 0..1.
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.decay = decay
        self.updates = 0
        self.weights = {name: p.detach().clone() for name, p in model.named_parameters()}

    @torch.no_grad()
    def update(self, model: nn.Module, skipped: Tensor) -> None:
        """Update the average with the weights after a step, unless ``skipped``, () on their device, is 1."""
        taken = 1 - skipped.double()
        updates = taken.new_full((), self._updates) if isinstance(self._updates, int) else self._updates
        share = (1 - ((1 + updates) / (10 + updates)).clamp(max=self.decay)) * taken
        self._updates = updates + taken
        now = [local_part(parameter.detach()) for parameter in model.parameters()]
        average = [local_part(self.weights[name]) for name, _ in model.named_parameters()]
        each: Any = torch  # of its names some are private: one kernel for all tensors of a list
        moves = each._foreach_sub(now, average)
        each._foreach_mul_(moves, share.to(moves[0].dtype))
        each._foreach_add_(average, moves)

    @property
    def updates(self) -> int:
        """Steps that the average has taken in."""
        return int(self._updates)

    @updates.setter
    def updates(self, count: int) -> None:
        self._updates: int | Tensor = count

    @contextmanager
    def in_place_of(self, model: nn.Module) -> Iterator[None]:
        """Give the model the averaged weights for the body; its own come back at the end."""
        own = {name: p.detach().clone() for name, p in model.named_parameters()}
        try:
            _copy(model, self.weights)
            yield
        finally:
            _copy(model, own)


@torch.no_grad()
def _copy(model: nn.Module, weights: dict[str, Tensor]) -> None:
    for name, parameter in model.named_parameters():
        parameter.copy_(weights[name])


class LossScale:
    """Factor on the loss under fp16, whose gradients vanish otherwise, decided on the device.

    It halves where a gradient overflows, and doubles after 2,000 steps in which none did, as torch's ``GradScaler`` and
    under the same names in checkpoints. That one waits for the device where an optimizer is not fused, and knows of
    overflows on its own process alone.

    Args:
        device: of the loss.
        enabled: whether there is one; else the factor is 1 and never changes.
    """

    _INTERVAL = 2000
    _LEAST = 2.0**-14  # below this even gradients that are infinite for fp16 would be representable

    def __init__(self, device: torch.device, *, enabled: bool) -> None:
        self.enabled = enabled
        self._scale = torch.full((), 2.0**16 if enabled else 1.0, device=device)
        self._grown = torch.zeros((), dtype=torch.int64, device=device)

    def scale(self, loss: Tensor) -> Tensor:
        """Multiply a loss by the factor."""
        return loss * self._scale if self.enabled else loss

    @torch.no_grad()
    def unscale(self, parameters: Sequence[nn.Parameter]) -> None:
        """Divide the gradients by the factor, a power of two, in place."""
        if self.enabled:
            inverse = 1 / self._scale
            for parameter in parameters:
                if parameter.grad is not None:
                    local_part(parameter.grad).mul_(inverse)

    @property
    def may_fall(self) -> Tensor:
        """() bool: the factor could still be lower, so that an overflow is no reason to give up."""
        return self._scale > self._LEAST if self.enabled else torch.zeros_like(self._scale, dtype=torch.bool)

    @torch.no_grad()
    def update(self, skipped: Tensor, *, frozen: Tensor) -> None:
        """Update the factor after a step that was ``skipped`` or not; where ``frozen`` it stays. Both () bool."""
        if not self.enabled:
            return
        grown = torch.where(skipped, 0, self._grown + 1)
        due = grown >= self._INTERVAL
        factor = torch.where(skipped, 0.5, torch.where(due, 2.0, 1.0))
        self._scale = torch.where(frozen, self._scale, self._scale * factor)
        self._grown = torch.where(frozen, self._grown, torch.where(due, 0, grown))

    def state_dict(self) -> dict[str, float]:
        """Return the state as numbers by name; empty where there is no scale."""
        if not self.enabled:
            return {}
        scale, grown = float(self._scale), int(self._grown)
        constant = {"growth_factor": 2.0, "backoff_factor": 0.5, "growth_interval": self._INTERVAL}
        return {"scale": scale, **constant, "_growth_tracker": grown}

    def load_state_dict(self, state: Mapping[str, float]) -> None:
        """Restore the state that :meth:`state_dict` returned."""
        if self.enabled:
            self._scale = torch.full_like(self._scale, state["scale"])
            self._grown = torch.full_like(self._grown, int(state["_growth_tracker"]))


# -- Groups of parameters with their own rates, rates as functions of the step, state as named tensors --

PARTS = ("backbone", "head", "proxies")
Named = Iterable[tuple[str, nn.Parameter]]


def build_optimizers(config: OptimizerConfig, parameters: Mapping[str, Named]) -> list[Optimizer]:
    """Build the optimizers of a run: of the model, and of the loss's own parameters if it has any.

    Args:
        config: their kinds, rates and decay.
        parameters: named parameters of the ``backbone``, the ``head`` and the loss's own, the ``proxies``, among which
            a scalar is a boundary (beta) with a rate of its own. Scalars have no weight decay, and vectors (biases,
            norms) have it only with ``decay_all``.
    """
    rates = {"backbone": config.lr, "head": config.lr_head, "proxies": config.lr_proxies, "beta": config.lr_beta}
    groups: dict[bool, list[dict[str, Any]]] = {False: [], True: []}
    for part in PARTS:
        chosen: dict[tuple[str, float], list[tuple[str, nn.Parameter]]] = {}
        for name, parameter in parameters.get(part, ()):
            chosen.setdefault(_rate_and_decay(config, part, parameter), []).append((name, parameter))
        for (rate, decay), named in sorted(chosen.items(), key=lambda group: -group[0][1]):
            groups[part == "proxies"].append(
                {
                    "params": [p for _, p in named],
                    "names": [f"{part}/{n}" for n, _ in named],
                    "part": part,
                    "rate": rate,
                    "base_lr": rates[rate],
                    "lr": rates[rate],
                    "weight_decay": decay,
                }
            )
    kinds = {False: config.optimizer, True: config.optimizer_proxies or config.optimizer}
    return [_build(kinds[own], config, chosen) for own, chosen in groups.items() if chosen]


def _rate_and_decay(config: OptimizerConfig, part: str, parameter: nn.Parameter) -> tuple[str, float]:
    """Return the name of a parameter's learning rate, and its weight decay."""
    rate = "beta" if part == "proxies" and parameter.ndim == 0 and config.lr_beta >= 0 else part
    if parameter.ndim == 0 or (parameter.ndim == 1 and not config.decay_all):
        return rate, 0.0
    return rate, config.weight_decay_proxies if part == "proxies" else config.weight_decay


def _build(kind: str, config: OptimizerConfig, groups: list[dict[str, Any]]) -> Optimizer:
    # Fused on a GPU: one kernel a group, which can skip its step without the host (``found_inf``). torch has no fused
    # SGD of parameters that are spread over processes.
    parameters = [parameter for group in groups for parameter in group["params"]]
    spread = any(local_part(parameter) is not parameter for parameter in parameters)
    fused = True if parameters[0].device.type != "cpu" and not (kind == "sgd" and spread) else None
    match kind:
        case "adam":
            return torch.optim.Adam(groups, fused=fused)
        case "adamw":
            return torch.optim.AdamW(groups, fused=fused)
        case "sgd":
            sgd = torch.optim.SGD(groups, momentum=config.momentum, nesterov=config.nesterov, fused=fused)
            if fused and config.momentum:
                # A first step that is skipped would leave the momentum that it makes without a value.
                for parameter in parameters:
                    sgd.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)
            return sgd
    raise ConfigError(f"optimizer is {kind!r}; expected adam, adamw or sgd.")


def step_optimizers(optimizers: Iterable[Optimizer], skipped: Tensor) -> None:
    """Let the optimizers do their step, unless ``skipped``, () float32 on the device, is 1; a GPU decides by itself."""
    for optimizer in optimizers:
        if optimizer.defaults.get("fused"):
            optimizer.found_inf, optimizer.grad_scale = skipped, None  # pyright: ignore[reportAttributeAccessIssue]
            optimizer.step()
        elif not skipped:
            optimizer.step()


def groups_of(optimizers: Iterable[Optimizer]) -> list[dict[str, Any]]:
    """Return the groups of parameters of all optimizers."""
    return [group for optimizer in optimizers for group in optimizer.param_groups]


def learning_rate(
    config: OptimizerConfig, part: str, base: float, step: int, *, steps_per_epoch: int, epochs: int
) -> float:
    """Return the learning rate of a part of the parameters at a step, counted from 0 over the whole run.

    The rate rises linearly up to the last step of the warm-up. Cosine and linear fall to the part's floor (to the rate
    itself where that is lower) at the end of the run, counted from the end of the warm-up.

    Args:
        config: the schedules and their floors.
        part: ``backbone``, ``head`` or ``proxies``.
        base: the part's full rate.
        step: of the run.
        steps_per_epoch: of the run.
        epochs: of the run.
    """
    if step < config.warmup_steps:
        return base * (step + 1) / config.warmup_steps
    course = {"head": config.schedule_head, "proxies": config.schedule_proxies}.get(part, "") or config.schedule
    floor = min(config.lr_floor_proxies if part == "proxies" else config.lr_floor, base)
    total = steps_per_epoch * epochs - config.warmup_steps
    done = min((step - config.warmup_steps) / max(total, 1), 1.0)
    match course:
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
    """Give every group its learning rate at a step."""
    for group in groups_of(optimizers):
        group["lr"] = learning_rate(
            config, group["part"], group["base_lr"], step, steps_per_epoch=steps_per_epoch, epochs=epochs
        )


def optimizer_state(optimizers: Iterable[Optimizer]) -> dict[str, Tensor]:
    """Return the optimizers' state as tensors named ``{part}/{parameter}|{state}``."""
    state = {}
    for name, parameter, optimizer in _members(optimizers):
        for key, value in optimizer.state.get(parameter, {}).items():
            if value is not None:  # SGD's momentum before its first step
                state[f"{name}|{key}"] = torch.as_tensor(value)
    return state


def restore_optimizers(optimizers: Sequence[Optimizer], state: Mapping[str, Tensor]) -> None:
    """Restore the state that :func:`optimizer_state` returned.

    Raises:
        InputError: the state is of other parameters.
    """
    members = {name: (parameter, optimizer) for name, parameter, optimizer in _members(optimizers)}
    for optimizer in optimizers:
        optimizer.state.clear()
    for key, value in state.items():
        name, _, entry = key.rpartition("|")
        parameter, optimizer = members.get(name, (None, None))
        if parameter is None or optimizer is None or (value.ndim and value.shape != parameter.shape):
            raise InputError(
                f"the optimizer's state {key!r} of shape {tuple(value.shape)} fits no parameter of this run; it is of "
                "another model. Start a new run, with --init-from for the weights."
            )
        # Adam keeps its count of steps on the CPU unless it is fused; moments lie with their parameter.
        if entry == "step":
            device = parameter.device if optimizer.defaults.get("fused") else "cpu"
            optimizer.state[parameter][entry] = value.to(device, copy=True)
        else:
            optimizer.state[parameter][entry] = placed_like(value, parameter)


def _members(optimizers: Iterable[Optimizer]) -> Iterator[tuple[str, nn.Parameter, Optimizer]]:
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            for name, parameter in zip(group["names"], group["params"], strict=True):
                yield name, parameter, optimizer
