"""What a loader hands out, and its way into a model."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Fault:
    """An item that could not be read or decoded.

    Attributes:
        index: of the item in the dataset; -1 where a stream without an index does not know it.
        where: shard and key.
        reason: what was found.
        replacement: index of the item that stands in its place; -1: none or unknown.
    """

    index: int
    where: str
    reason: str
    replacement: int = -1


@dataclass(frozen=True, slots=True)
class Batch:
    """Images, what they show, and which they are.

    Attributes:
        images: (B, 3, S, S) uint8 RGB, channels last in memory.
        labels: (B, L) int64, finest level first; -1 is unknown.
        indices: (B,) int64 positions in the dataset.
        faults: the items that others stand in for.
    """

    images: Tensor
    labels: Tensor
    indices: Tensor
    faults: tuple[Fault, ...] = ()


def normalize(
    images: Tensor,
    mean: Sequence[float],
    std: Sequence[float],
    device: torch.device | str | None = None,
    dtype: torch.dtype = torch.float32,
) -> Tensor:
    """Bytes to what a backbone takes, computed where the model is.

    Args:
        images: (B, 3, H, W) uint8. Copied without waiting where they are pinned.
        mean: of the three channels, in [0, 1].
        std: of the three channels.
        device: of the result; None: the images' own.
        dtype: of the result; the arithmetic is in float32.

    Returns:
        (B, 3, H, W), in the memory format of ``images``.
    """
    moved = images.to(device or images.device, non_blocking=True)
    shift, scale = torch.tensor([mean, std], dtype=torch.float32, device=moved.device).mul_(255)[:, None, :, None, None]
    return moved.to(torch.float32).sub_(shift).div_(scale).to(dtype)
