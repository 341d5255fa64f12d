"""Memory for batches of pixels that is used again once nobody holds the batch any more."""

import weakref
from collections import deque

import torch
from torch import Tensor


class BatchBuffers:
    """Hands out uint8 batches; fresh memory of that size would cost a quarter of the time to decode into it.

    A batch's memory comes back when the last tensor that shares it is gone, so that whoever keeps a batch keeps its
    pixels. Can be shared by threads.

    Args:
        pin_memory: page-locked memory, for copies to a GPU that need not be waited for. torch itself keeps that for
            the next batch, once the copies from it have ended.
    """

    def __init__(self, pin_memory: bool = False) -> None:
        self._pin_memory = pin_memory
        self._free: deque[Tensor] = deque()

    def take(self, count: int, side: int) -> Tensor:
        """Memory for ``count`` images of ``side`` x ``side`` pixels, with whatever was in it.

        Returns:
            (count, 3, side, side), channels last in memory.
        """
        shape = (count, side, side, 3)
        if self._pin_memory:
            return torch.empty(shape, dtype=torch.uint8, pin_memory=True).permute(0, 3, 1, 2)
        buffer = None
        while buffer is None or tuple(buffer.shape) != shape:  # of another shape: of a last, shorter batch
            try:
                buffer = self._free.popleft()
            except IndexError:
                buffer = torch.empty(shape, dtype=torch.uint8)
        lent = buffer.numpy()[:]  # the tensor below holds this array for as long as its memory is in use
        weakref.finalize(lent, self._free.append, buffer).atexit = False
        return torch.from_numpy(lent).permute(0, 3, 1, 2)
