"""An exponential moving average of the weights, which is what is evaluated."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn


class WeightAverage:
    """Averages w <- d w + (1 - d) weights after every step, with d = min(decay, (1 + t) / (10 + t)) at step t.

    The smaller decay at the start lets the average forget the initial weights soon. Buffers (statistics of batch norm)
    are taken as they are.

    Args:
        model: whose floating parameters are averaged.
        decay: of the average, 0..1.
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.decay = decay
        self.updates = 0
        self.weights = {name: p.detach().clone() for name, p in model.named_parameters()}

    @torch.no_grad()
    def update(self, model: nn.Module) -> None:
        """Take in the weights after a step."""
        decay = min(self.decay, (1 + self.updates) / (10 + self.updates))
        self.updates += 1
        for name, parameter in model.named_parameters():
            self.weights[name].lerp_(parameter.detach(), 1 - decay)

    @contextmanager
    def in_place_of(self, model: nn.Module) -> Iterator[None]:
        """The model with the averaged weights; its own come back at the end."""
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
