"""From a feature map to one vector an image."""

import torch
from torch import Tensor, nn

from hgld.errors import ConfigError

_LEAST = 1e-6  # features below it count as it, so that powers and their gradients stay finite


class AveragePool(nn.Module):
    """The mean over places: (B, F, H, W) -> (B, F)."""

    def forward(self, features: Tensor) -> Tensor:
        return features.mean(dim=(2, 3))


class MaxPool(nn.Module):
    """The maximum over places: (B, F, H, W) -> (B, F)."""

    def forward(self, features: Tensor) -> Tensor:
        return features.amax(dim=(2, 3))


class GeM(nn.Module):
    """Generalised mean over places, (mean x^p)^(1/p) (Radenovic, Tolias, Chum, TPAMI 2019, Eq. 3).

    p = 1 is the average, a growing p comes to the maximum. Powers are taken in fp32 whatever autocast says.

    Args:
        p: the exponent, above 0.
        learned: whether it is a parameter.

    Attributes:
        p: () the exponent.
    """

    p: Tensor

    def __init__(self, p: float = 3.0, *, learned: bool = True) -> None:
        super().__init__()
        if not p > 0:
            raise ConfigError(f"GeM's p is {p}; expected a number above 0.")
        if learned:
            self.p = nn.Parameter(torch.tensor(float(p)))
        else:
            self.register_buffer("p", torch.tensor(float(p)))

    def forward(self, features: Tensor) -> Tensor:
        with torch.autocast(features.device.type, enabled=False):
            positive = features.float().clamp(min=_LEAST)
            # Divided by the largest feature of each map first: its p-th power neither overflows nor vanishes.
            largest = positive.amax(dim=(2, 3), keepdim=True)
            mean = (positive / largest).pow(self.p).mean(dim=(2, 3))
            return largest[:, :, 0, 0] * mean.pow(1 / self.p)

    def extra_repr(self) -> str:
        return f"p={float(self.p.detach()):.3g}"
