"""Gradients of a step, of a batch at once or in chunks, and what undoes steps that are not finite.

In chunks (multi-stage back-propagation; Revaud et al., "Learning with Average Precision: Training Image Retrieval with
a Listwise Loss", ICCV 2019, section 3.3; a gradient cache): the embeddings of all chunks are computed without a graph,
the loss gives its gradient with respect to them, and every chunk passes the model again, with a graph, to carry its
part of that gradient to the parameters. A batch of any size takes the memory of one chunk, for one forward pass more.
Since the loss is computed once, the gradients are those of the whole batch, not of a sum over chunks.

A step does not wait for a GPU: labels are gathered and checked on the CPU, whether loss and gradient are finite is
decided on the device, and :class:`Safeguard` asks for it every few steps.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from hgld.distributed import (
    Processes,
    add_up_terms,
    average_gradients,
    gather,
    gather_adding_gradients,
    gather_with_gradients,
    without_gradient_exchange,
)
from hgld.losses import CrossBatchMemory
from hgld.losses.rank_loss import on_device, query_sums, sums_over_queries

from .optimizers import LossScale

# -- Steps that are not finite --


@dataclass(frozen=True)
class _MemoryRows:
    """The rows of a memory that a step overwrites, and its counts before the step."""

    memory: CrossBatchMemory
    places: Tensor
    embeddings: Tensor
    labels: Tensor
    written: int
    steps: int

    @classmethod
    def take(cls, memory: CrossBatchMemory, batch_size: int) -> "_MemoryRows":
        return cls(memory, *memory.next_rows(batch_size), memory.written, memory.steps)

    def put_back(self) -> None:
        self.memory.put_back(self.places, self.embeddings, self.labels)
        self.memory.written, self.memory.steps = self.written, self.steps


@dataclass(frozen=True)
class _TakenStep:
    """A step that the device has not been asked about yet."""

    step: int
    indices: Tensor
    values: "StepValues"
    norm: Tensor
    broken: Tensor
    memories: tuple[_MemoryRows, ...]


@dataclass(frozen=True)
class BrokenStep:
    """The first step whose loss or gradient is not finite.

    Attributes:
        step: its number, from 0.
        indices: (b,) of this process's images in the dataset.
        values: its loss and parts.
        norm: () of its gradient.
    """

    step: int
    indices: Tensor
    values: "StepValues"
    norm: Tensor


class Safeguard:
    """Safeguard of weights and buffers against steps that are not finite, which asks the device only now and then.

    From the first such step on, no optimizer moves anything (:meth:`after`), the buffers of before are kept, on the
    device, and :meth:`read` restores them. Buffers are those of modules in training mode: statistics of batch norm;
    frozen ones do not change. Of a cross-batch memory those rows are kept that steps overwrite, because it may be as
    large as the training set.

    Args:
        model: its buffers may be statistics of batch norms.
        criterion: of its buffers only those of a memory change.
        batch_size: B, items that enter a memory.
        device: of both.
        every: steps between two reads; 1 on a CPU, which nothing waits for.
    """

    def __init__(
        self, model: nn.Module, criterion: nn.Module, batch_size: int, device: torch.device, every: int
    ) -> None:
        self._model, self._batch_size = model, batch_size
        self._memories = [module for module in criterion.modules() if isinstance(module, CrossBatchMemory)]
        self._every = 1 if device.type == "cpu" else every
        self._broken = torch.zeros((), dtype=torch.bool, device=device)
        self._buffers: list[list[Tensor]] = []
        self._kept: list[Tensor] = []
        self._rows: tuple[_MemoryRows, ...] = ()
        self._taken: list[_TakenStep] = []

    @property
    def due(self) -> bool:
        """True if the device is to be asked after this step."""
        return len(self._taken) >= self._every

    @torch.no_grad()
    def before(self) -> None:
        """Keep what a step's forward pass will overwrite."""
        modules = [module for module in self._model.modules() if module.training]
        live = [buffer for module in modules for buffer in module.buffers(recurse=False)]
        kinds = dict.fromkeys(buffer.dtype for buffer in live)
        buffers = [[buffer for buffer in live if buffer.dtype == kind] for kind in kinds]
        now = [torch.cat([buffer.flatten() for buffer in some]) for some in buffers]  # one kernel, not one a buffer
        if self._taken and len(now) == len(self._kept):
            now = [torch.where(self._broken, kept, new) for kept, new in zip(self._kept, now, strict=True)]
        self._buffers, self._kept = buffers, now
        self._rows = tuple(_MemoryRows.take(memory, self._batch_size) for memory in self._memories)

    @torch.no_grad()
    def after(self, step: int, indices: Tensor, values: "StepValues", norm: Tensor, scale: LossScale) -> Tensor:
        """Decide whether the optimizers may move the weights.

        A gradient that overflows under fp16 only skips its step and lowers the scale of the loss.

        Returns:
            () float32 on the device, 1 where they may not, as torch's fused optimizers take it.
        """
        finite = values.loss.isfinite() & (norm.isfinite() | scale.may_fall)
        self._broken = self._broken | ~finite
        self._taken.append(_TakenStep(step, indices, values, norm, self._broken, self._rows))
        skipped = self._broken | ~norm.isfinite()
        scale.update(skipped, frozen=self._broken)
        return skipped.to(torch.float32)

    @torch.no_grad()
    def read(self) -> BrokenStep | None:
        """Ask the device about the steps since the last call; if one is not finite, restore the state before it.

        The weights are those of before, since nothing has moved them.

        Returns:
            the first that is not finite; None where all are.
        """
        taken, self._taken = self._taken, []
        broken = torch.stack([one.broken for one in taken]).tolist() if taken else []
        if True not in broken:
            return None
        first = broken.index(True)
        for some, kept in zip(self._buffers, self._kept, strict=True):
            for buffer, values in zip(some, kept.split([buffer.numel() for buffer in some]), strict=True):
                buffer.copy_(values.view_as(buffer))
        for one in reversed(taken[first:]):
            for rows in one.memories:
                rows.put_back()
        one = taken[first]
        return BrokenStep(one.step, one.indices, one.values, one.norm)


# -- Gradients --

Prepare = Callable[[Tensor], Tensor]
Autocast = Callable[[], AbstractContextManager[object]]


@dataclass(frozen=True)
class StepInput:
    """This process's part of the batch of a step.

    Attributes:
        images: (b, ...) as read, for instance uint8.
        labels: (b, L) integers on the CPU.
        instances: (b,) integers on the CPU, equal for views of one image.
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
        labels, instances = (gather(rows, self.processes) for rows in (batch.labels, batch.instances))
        if not getattr(self.criterion, "reads_labels_on_cpu", False):
            labels = on_device(labels, self.processes.device)
        instances = on_device(instances, self.processes.device)
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
        own = self._embed(batch.images)
        _seed(batch.seed, 0)
        loss, parts = self._loss(own, labels, instances)
        self.scale(loss).backward()
        return StepValues(loss.detach(), _detached(parts))

    def _loss(self, own: Tensor, labels: Tensor, instances: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """Compute the loss of all processes' items; where it is a mean over queries, of this process's queries alone.

        The shares of the gradient are those of the whole loss, and so they need it.
        """
        if self.processes.count > 1 and not self.shares and sums_over_queries(self.criterion):
            everyone = gather_adding_gradients(own, self.processes)
            part = slice(self.processes.index * len(own), (self.processes.index + 1) * len(own))
            index = torch.arange(part.start, part.stop, device=own.device)
            sums = query_sums(self.criterion, everyone[part], labels[part], everyone, labels, index)
            loss, parts = add_up_terms(sums, self.processes)
            join = getattr(self.criterion, "joined_terms", None)
            return loss, parts if join is None else join(parts, sums)
        everyone = gather_with_gradients(own, self.processes)
        loss, parts = self.criterion(everyone, labels, instances)
        return loss, parts | (gradient_shares(loss, parts, everyone) if self.shares else {})

    def _in_chunks(self, batch: StepInput, labels: Tensor, instances: Tensor) -> StepValues:
        chunks = batch.images.split(self.chunk)
        states, embedded = [], []
        with torch.no_grad():
            for chunk in chunks:
                states.append(_random_state(self.processes.device))
                embedded.append(self._embed(chunk))
        own = torch.cat(embedded).requires_grad_()
        _seed(batch.seed, 0)
        loss, parts = self._loss(own, labels, instances)
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
