"""Batches of decoded images: their memory, their errors, and their normalisation for a model."""

import weakref
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from hgld.errors import ConfigError


class BatchBuffers:
    """A pool of memory for uint8 batches. Allocating new memory would take a quarter of the decoding time.

    A batch's memory returns to the pool when the last tensor that shares it is deleted, so a batch keeps its pixels for
    as long as it is used. Threads can share the pool.

    Args:
        pin_memory: whether to use page-locked memory, for asynchronous copies to a GPU. torch itself reuses such memory
            for the next batch once its copies have ended.
    """

    def __init__(self, pin_memory: bool = False) -> None:
        self._pin_memory = pin_memory
        self._free: deque[Tensor] = deque()

    def __reduce__(self) -> tuple[type["BatchBuffers"], tuple[bool]]:
        return BatchBuffers, (self._pin_memory,)  # the pickled copy has no memory: another process allocates its own

    def take(self, count: int, shape: tuple[int, int]) -> Tensor:
        """Return uninitialised memory for ``count`` images of ``shape`` (height H and width W).

        Returns:
            (count, 3, H, W), channels last in memory.
        """
        wanted = (count, *shape, 3)
        if self._pin_memory:
            return torch.empty(wanted, dtype=torch.uint8, pin_memory=True).permute(0, 3, 1, 2)
        buffer = None
        # skip buffers of other shapes, which a shorter last batch leaves behind
        while buffer is None or tuple(buffer.shape) != wanted:
            try:
                buffer = self._free.popleft()
            except IndexError:
                buffer = torch.empty(wanted, dtype=torch.uint8)
        lent = buffer.numpy()[:]  # the returned tensor holds this array as long as its memory is in use
        weakref.finalize(lent, self._free.append, buffer).atexit = False
        return torch.from_numpy(lent).permute(0, 3, 1, 2)


@dataclass(frozen=True, slots=True)
class Fault:
    """An item that could not be read or decoded.

    Attributes:
        index: position of the item in the dataset; -1 if unknown, in a stream without an index.
        where: shard and key of the item.
        reason: description of the error.
        replacement: index of the item that replaces it; -1: there is no such item, or it is unknown.
    """

    index: int
    where: str
    reason: str
    replacement: int = -1


@dataclass(frozen=True, slots=True)
class Batch:
    """A batch of images, their labels and their positions in the dataset.

    Attributes:
        images: (B, 3, H, W) uint8 RGB, channels last in memory; H = W except for views of whole images.
        labels: (B, L) int64, finest level first; -1 is unknown.
        indices: (B,) int64 positions in the dataset.
        faults: the damaged items, and the items that replaced them.
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
    """Convert uint8 images to normalised floats for a backbone, on its device.

    Args:
        images: (B, 3, H, W) uint8. Pinned images are copied asynchronously.
        mean: three means, one per channel, in [0, 1].
        std: three standard deviations, one per channel.
        device: device of the result; None: the images' device.
        dtype: type of the result; the arithmetic is in float32.

    Returns:
        (B, 3, H, W), in the memory format of ``images``.
    """
    moved = images.to(device or images.device, non_blocking=True)
    # Mean and standard deviation are created on the device, because a copy from the CPU would make it wait.
    numbers = [torch.full((1,), value, device=moved.device) for value in (*mean, *std)]
    shift, scale = torch.cat(numbers).mul_(255).view(2, 1, 3, 1, 1)
    return moved.to(torch.float32).sub_(shift).div_(scale).to(dtype)


def collate(items: Sequence[Mapping[str, Any]]) -> Batch:
    """Join items of a dataset into a batch: the ``collate_fn`` of torch's ``DataLoader``.

    Args:
        items: B items of a :class:`hgld.data.ShardDataset` whose ``transform`` gives (C, H, W) tensors of one shape.

    Raises:
        ConfigError: the images are not tensors, or have different shapes.
    """
    images = [item["image"] for item in items]
    shapes = {tuple(image.shape) if isinstance(image, Tensor) else type(image).__name__ for image in images}
    if len(shapes) != 1 or not isinstance(images[0], Tensor):
        raise ConfigError(
            f"the images are {', '.join(map(str, sorted(shapes, key=str)))}; expected tensors of one shape. Give "
            "`hgld.open_dataset` a transform that crops to one size and returns a tensor, or use `hgld.data.Loader`."
        )
    indices = torch.tensor([item["index"] for item in items], dtype=torch.int64)
    return Batch(torch.stack(images), torch.stack([item["labels"] for item in items]), indices)
