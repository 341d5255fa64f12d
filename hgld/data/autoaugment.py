"""AutoAugment's policies for ImageNet, as torchvision has them, with random numbers by position.

Source: Cubuk, Zoph, Mané, Vasudevan and Le, "AutoAugment: learning augmentation strategies from data", CVPR 2019;
Berman et al., "MultiGrain", 2019, takes them in place of colour jitter and lighting.
"""

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor
from torchvision.transforms import AutoAugment


class _DrawnPolicy(AutoAugment):
    """A policy whose draws are given, because torch's one generator is shared by all threads that decode."""

    def __init__(self, numbers: NDArray[np.float64]) -> None:
        super().__init__()
        self._numbers = torch.from_numpy(numbers)

    def get_params(self, transform_num: int) -> tuple[int, Tensor, Tensor]:  # pyright: ignore[reportIncompatibleMethodOverride]  # static there
        """Return the policy, and for each of its two steps a number that decides whether it is taken, and its sign."""
        return int(self._numbers[0] * transform_num), self._numbers[1:3], (self._numbers[3:5] < 0.5).long()


def apply_policy(pixels: NDArray[np.uint8], numbers: NDArray[np.float64]) -> NDArray[np.uint8]:
    """Change a picture by one of the 25 policies.

    Args:
        pixels: (H, W, 3) RGB.
        numbers: (5,) uniform in (0, 1): which policy, whether each of its steps is taken, and the steps' signs.

    Returns:
        (H, W, 3), new memory.
    """
    return np.array(_DrawnPolicy(numbers)(Image.fromarray(np.ascontiguousarray(pixels))))
