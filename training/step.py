"""Gradients of a step, of a batch at once or in chunks, and the buffers to restore if the step is refused.

In chunks (multi-stage back-propagation; Revaud et al., "Learning with Average Precision: Training Image Retrieval with
a Listwise Loss", ICCV 2019, section 3.3; a gradient cache): the embeddings of all chunks are computed without a graph,
the loss gives its gradient with respect to them, and every chunk passes the model again, with a graph, to carry its
part of that gradient to the parameters. A batch of any size takes the memory of one chunk, for one forward pass more.
Since the loss is computed once, the gradients are those of the whole batch, not of a sum over chunks.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from hgld.distributed import Processes, average_gradients, gather, gather_with_gradients, without_gradient_exchange
from hgld.losses import CrossBatchMemory


@dataclass(frozen=True)
class BufferSnapshot:
    """Copies of the buffers that a step's forward pass writes: statistics of batch norm, the cross-batch memory.

    Of a memory only those rows are copied that the batch will overwrite, because it may be as large as the training
    set.

    Attributes:
        buffers: buffers and their copies.
        rows: memories' tensors, the rows written, and their copies.
    """

    buffers: tuple[tuple[Tensor, Tensor], ...]
    rows: tuple[tuple[Tensor, Tensor, Tensor], ...]

    @classmethod
    def take(cls, model: nn.Module, criterion: nn.Module, batch_size: int) -> "BufferSnapshot":
        """Copy the buffers before a batch.

        Args:
            model: its buffers may be statistics of batch norms.
            criterion: of its buffers only those of a memory change.
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
        """Restore the buffers."""
        for buffer, copy in self.buffers:
            buffer.copy_(copy)
        for tensor, places, copy in self.rows:
            tensor[places] = copy


Prepare = Callable[[Tensor], Tensor]
Autocast = Callable[[], AbstractContextManager[object]]


@dataclass(frozen=True)
class StepInput:
    """This process's part of the batch of a step.

    Attributes:
        images: (b, ...) as read, for instance uint8.
        labels: (b, L) integers.
        instances: (b,) integers, equal for views of one image.
        seed: of the step's randomness, the same on every process: dropout draws from it and the process's index, the
            criterion from it alone, because every process must compute the same loss.
    """

    images: Tensor
    labels: Tensor
    instances: Tensor
    seed: int


@dataclass(frozen=True)
class StepValues:
    """The loss of a step: a scalar without a graph and its parts, the same on every process."""

    loss: Tensor
    parts: dict[str, Tensor]


@dataclass(frozen=True)
class Backward:
    """Computation of a step's gradients: everything that does not change from step to step.

    Attributes:
        model: from images to embeddings, wrapped for the processes.
        criterion: ``(embeddings, labels, instances) -> (loss, parts)`` of the whole batch.
        processes: of the run.
        prepare: turns images as read into the model's input, a chunk at a time (on the device, normalised).
        chunk: images that pass the model at once; 0: all of them.
        autocast: makes the context of the model's arithmetic.
        scale: multiplies the loss before its backward pass (fp16's loss scale).
        shares: whether the parts tell the :func:`gradient_shares` too.
    """

    model: nn.Module
    criterion: nn.Module
    processes: Processes
    prepare: Prepare
    chunk: int = 0
    autocast: Autocast = nullcontext
    scale: Callable[[Tensor], Tensor] = lambda loss: loss
    shares: bool = False

    def __call__(self, batch: StepInput) -> StepValues:
        """Add the batch's gradients to ``.grad`` of the model's and the criterion's parameters, on every process.

        Args:
            batch: this process's part, of the same size on every process.
        """
        labels = gather(batch.labels.to(self.processes.device), self.processes)
        instances = gather(batch.instances.to(self.processes.device), self.processes)
        _seed(batch.seed, 1 + self.processes.index)
        take = self._in_chunks if 0 < self.chunk < len(batch.images) else self._at_once
        values = take(batch, labels, instances)
        for module in (self.model, self.criterion):
            average_gradients(module, self.processes)
        return values

    def _embed(self, images: Tensor) -> Tensor:
        with self.autocast():
            embeddings = self.model(self.prepare(images))
        return embeddings.to(torch.promote_types(embeddings.dtype, torch.float32))

    def _at_once(self, batch: StepInput, labels: Tensor, instances: Tensor) -> StepValues:
        embeddings = gather_with_gradients(self._embed(batch.images), self.processes)
        _seed(batch.seed, 0)
        loss, parts = self.criterion(embeddings, labels, instances)
        parts |= gradient_shares(loss, parts, embeddings) if self.shares else {}
        self.scale(loss).backward()
        return StepValues(loss.detach(), _detached(parts))

    def _in_chunks(self, batch: StepInput, labels: Tensor, instances: Tensor) -> StepValues:
        chunks = batch.images.split(self.chunk)
        states, embedded = [], []
        with torch.no_grad():
            for chunk in chunks:
                states.append(_random_state(self.processes.device))
                embedded.append(self._embed(chunk))
        own = torch.cat(embedded).requires_grad_()
        _seed(batch.seed, 0)
        everyone = gather_with_gradients(own, self.processes)
        loss, parts = self.criterion(everyone, labels, instances)
        parts |= gradient_shares(loss, parts, everyone) if self.shares else {}
        self.scale(loss).backward()
        assert own.grad is not None  # even a zero loss has a gradient path
        for number, (chunk, state, grad) in enumerate(zip(chunks, states, own.grad.split(self.chunk), strict=True)):
            _set_random_state(state, self.processes.device)  # the same dropout as in the pass that the loss has seen
            last = number == len(chunks) - 1
            with nullcontext() if last else without_gradient_exchange(self.model):
                self._embed(chunk).backward(grad)
        return StepValues(loss.detach(), _detached(parts))


SHARE = "gradient_share_"


def gradient_shares(loss: Tensor, terms: dict[str, Tensor], embeddings: Tensor) -> dict[str, Tensor]:
    """Compute the share of each term of a loss in the gradient of the embeddings, by the norms of their parts of it.

    Args:
        loss: a scalar, made of the terms.
        terms: scalars by their names, unweighted.
        embeddings: (B, D) that they were computed from.

    Returns:
        for every term a scalar in 0..1, called ``gradient_share_`` and its name; 0 where no term has a gradient.
    """
    names = [name for name, term in terms.items() if term.requires_grad]
    if not names:
        return {}
    given = [terms[name] for name in names]
    weights = torch.autograd.grad(loss, given, retain_graph=True, allow_unused=True)
    norms = []
    for term, weight in zip(given, weights, strict=True):
        (part,) = torch.autograd.grad(term, embeddings, retain_graph=True, allow_unused=True)
        norms.append(loss.new_zeros(()) if part is None or weight is None else (weight * part).norm())
    total = torch.stack(norms).sum().clamp(min=torch.finfo(norms[0].dtype).tiny)
    return {SHARE + name: norm / total for name, norm in zip(names, norms, strict=True)}


def _detached(parts: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: value.detach() for name, value in parts.items()}


def _seed(seed: int, stream: int) -> None:
    torch.manual_seed(int(np.random.SeedSequence((seed, stream)).generate_state(1, np.uint64)[0]))


def _random_state(device: torch.device) -> tuple[Tensor, Tensor | None]:
    return torch.get_rng_state(), torch.cuda.get_rng_state(device) if device.type == "cuda" else None


def _set_random_state(state: tuple[Tensor, Tensor | None], device: torch.device) -> None:
    torch.set_rng_state(state[0])
    if state[1] is not None:
        torch.cuda.set_rng_state(state[1], device)
