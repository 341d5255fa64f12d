"""Buffers as they were before a step: statistics of batch norm, the cross-batch memory."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from hgld.losses import CrossBatchMemory


@dataclass(frozen=True)
class BufferSnapshot:
    """Copies of what a step's forward pass writes beside the parameters.

    Of a memory only the rows are copied that the batch will overwrite, because it may be as large as the training set.

    Attributes:
        buffers: buffers and their copies.
        rows: memories' tensors, the rows written, and their copies.
    """

    buffers: tuple[tuple[Tensor, Tensor], ...]
    rows: tuple[tuple[Tensor, Tensor, Tensor], ...]

    @classmethod
    def take(cls, model: nn.Module, criterion: nn.Module, batch_size: int) -> "BufferSnapshot":
        """The buffers before a batch.

        Args:
            model: whose buffers may be statistics of its batch norms.
            criterion: of whose buffers only those of a memory change.
            batch_size: B, items that enter a memory.
        """
        buffers, rows = list(model.buffers()), []
        for memory in criterion.modules():
            if isinstance(memory, CrossBatchMemory):
                size = len(memory.embeddings)
                offset = torch.arange(min(batch_size, size), device=memory.written.device)
                places = (memory.written + max(batch_size - size, 0) + offset) % size
                rows += [(tensor, places, tensor[places]) for tensor in (memory.embeddings, memory.labels)]
                buffers += [memory.written, memory.steps]
        return cls(tuple((buffer, buffer.clone()) for buffer in buffers), tuple(rows))

    @torch.no_grad()
    def put_back(self) -> None:
        """Make the buffers what they were."""
        for buffer, copy in self.buffers:
            buffer.copy_(copy)
        for tensor, places, copy in self.rows:
            tensor[places] = copy
