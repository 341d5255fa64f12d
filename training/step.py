"""Gradients of a training step, from the whole batch at once or in micro-batches.

Micro-batches work by multi-stage back-propagation, also called gradient cache (Revaud et al., "Learning with Average
Precision: Training Image Retrieval with a Listwise Loss", ICCV 2019, section 3.3). First the embeddings of all
micro-batches are computed without a graph. Then the loss gives its gradient with respect to the embeddings. Last, every
micro-batch passes through the model again, with a graph, to propagate its part of that gradient to the parameters. A
batch of any size needs the memory of one micro-batch, at the cost of one more forward pass. Since the loss is computed
once, the gradients equal the gradients of the whole batch.
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
    gather_with_gradients,
    without_gradient_exchange,
)
from hgld.losses.rank_loss import on_device, query_sums, sums_over_queries


@dataclass(frozen=True)
class StepInput:
    """This process's part of the batch of a step.

    Attributes:
        images: (b, ...) as read, for instance uint8.
        labels: (b, L) integers on the CPU.
        instances: (b,) integers on the CPU, equal for views of the same image.
        seed: seed of the step, the same on every process. The model's random numbers depend on it and on the process's
            rank. The criterion's random numbers depend only on the seed, because every process must compute the same
            loss.
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
    """Computes a step's gradients; holds everything that does not change between steps.

    Attributes:
        model: model from images to embeddings, wrapped for the processes.
        criterion: ``(embeddings, labels, instances) -> (loss, parts)`` of the whole batch.
        processes: processes of the run.
        prepare: function that turns a micro-batch of images as read into the model's input (on the device, normalised).
        micro_batch_size: number of images that pass through the model at once; 0: all images.
        autocast: function that returns the context for the model's precision.
        scale: function that multiplies the loss before its backward pass (fp16's loss scale).
    """

    model: nn.Module
    criterion: nn.Module
    processes: Processes
    prepare: Callable[[Tensor], Tensor]
    micro_batch_size: int = 0
    autocast: Callable[[], AbstractContextManager[object]] = nullcontext
    scale: Callable[[Tensor], Tensor] = lambda loss: loss

    def __call__(self, batch: StepInput) -> StepValues:
        """Add the batch's gradients to ``.grad`` of the model's and the criterion's parameters, on every process.

        Args:
            batch: this process's part of the batch; all parts have the same size.
        """
        labels, instances = (gather(rows, self.processes) for rows in (batch.labels, batch.instances))
        labels, instances = (on_device(rows, self.processes.device) for rows in (labels, instances))
        stream = 1 + self.processes.index
        in_parts = 0 < self.micro_batch_size < len(batch.images)
        parts = batch.images.split(self.micro_batch_size) if in_parts else ()
        if in_parts:
            embedded = []
            with torch.no_grad():
                for number, part in enumerate(parts):
                    _seed(batch.seed, stream, number)
                    embedded.append(self._embed(part))
            own = torch.cat(embedded).requires_grad_()
        else:
            _seed(batch.seed, stream)
            own = self._embed(batch.images)
        _seed(batch.seed, 0)
        loss, terms = self._loss(own, labels, instances)
        self.scale(loss).backward()
        if in_parts:
            assert own.grad is not None  # a loss of zero also has a gradient
            grads = own.grad.split(self.micro_batch_size)
            for number, (part, grad) in enumerate(zip(parts, grads, strict=True)):
                _seed(batch.seed, stream, number)  # dropout must draw the same numbers as in the first pass
                last = number == len(parts) - 1
                with nullcontext() if last else without_gradient_exchange(self.model):
                    self._embed(part).backward(grad)
        for module in (self.model, self.criterion):
            average_gradients(module, self.processes)
        return StepValues(loss.detach(), {name: value.detach() for name, value in terms.items()})

    def _embed(self, images: Tensor) -> Tensor:
        with self.autocast():
            embeddings = self.model(self.prepare(images))
        return embeddings.to(torch.promote_types(embeddings.dtype, torch.float32))

    def _loss(self, own: Tensor, labels: Tensor, instances: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """Compute the loss of all processes' items; if it is a mean over queries, each process sums over its own."""
        if self.processes.count > 1 and sums_over_queries(self.criterion):
            everyone = gather_with_gradients(own, self.processes, adding=True)
            part = slice(self.processes.index * len(own), (self.processes.index + 1) * len(own))
            index = torch.arange(part.start, part.stop, device=own.device)
            sums = query_sums(self.criterion, everyone[part], labels[part], everyone, labels, index)
            loss, parts = add_up_terms(sums, self.processes)
            join = getattr(self.criterion, "joined_terms", None)
            return loss, parts if join is None else join(parts, sums)
        return self.criterion(gather_with_gradients(own, self.processes), labels, instances)


def _seed(*numbers: int) -> None:
    torch.manual_seed(int(np.random.SeedSequence(numbers).generate_state(1, np.uint64)[0]))
