"""A memory of embeddings of earlier batches, which serves any loss as a larger gallery."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from hgld.distributed import current_processes
from hgld.errors import ConfigError, InputError, at_least
from hgld.losses.compositions import Composition
from hgld.losses.rank_loss import (
    KnownArguments,
    TermSum,
    check_gives_one_number,
    label_columns,
    on_device,
    query_sums,
    reads_labels,
    sums_over_queries,
)

_COUNTS = ("written", "steps")
_PLACE, _ALONE = "process", (0, 1)


class CrossBatchMemory(KnownArguments, nn.Module):
    """A loss of the batch plus the same loss against a memory (Wang et al., "Cross-Batch Memory", CVPR 2020).

    The memory is a ring buffer of the newest ``size`` items of the training batches, without their gradients. A batch
    is written before the loss is computed, so every query is in the memory too (the loss's ``exclude_self`` excludes
    it). An item takes 4 (D + 2 L) bytes: a training set of 60,000 items at D = 512 takes 124 MB. In ``eval`` mode
    nothing is written.

    In :class:`hgld.distributed.DistributedLoss` the memories of all processes are equal: one state dict holds them.
    Without it every process has its own memory. So give DistributedDataParallel ``broadcast_buffers=False``; otherwise
    it overwrites every memory with that of the first process. A state dict is then of one process, and no other process
    loads it.

    The memory grows from step to step, so torch.compile of this module has a graph break. Compile the inner loss
    instead: ``CrossBatchMemory(torch.compile(loss, dynamic=True), ...)`` has no graph break while the memory grows.

    Args:
        loss: loss that takes ``(embeddings, labels, ref_embeddings, ref_labels, self_index)`` and returns a scalar.
        size: number of items that the memory holds.
        dim: D, dimension of the embeddings.
        num_levels: L, columns of the labels.
        warmup: number of training steps before the memory is first used, because early embeddings drift too fast
            (HAPPIER's configurations wait for 5 epochs).
        weight: weight of the memory's term; the batch's term has weight 1.

    Attributes:
        loss: the wrapped loss.
        written: number of items written since the start; the state dict holds ``written`` and ``steps``.
        steps: number of training steps taken.
        is_whole: whether the memory gets the items of all processes.

    Raises:
        ConfigError: a size is below 1, the warm-up or weight is negative, or the loss does not return a scalar.
    """

    embeddings: Tensor
    labels: Tensor

    keeps_classes = True
    other_names: ClassVar[Mapping[str, str]] = {"embedding_size": "dim", "memory_size": "size"}

    def __init__(
        self, loss: nn.Module, size: int, dim: int, *, num_levels: int = 1, warmup: int = 0, weight: float = 1.0
    ) -> None:
        super().__init__()
        at_least(1, size=size, dim=dim, num_levels=num_levels)
        at_least(0, warmup=warmup)
        if not 0 <= weight < float("inf"):
            raise ConfigError(f"weight is {weight}; expected a finite number of at least 0.")
        check_gives_one_number(
            loss, "CrossBatchMemory adds the loss of the batch and the loss of the memory, so each must be one number"
        )
        self.loss = loss
        self.warmup = warmup
        self.weight = weight
        self.size = size
        self.register_buffer("embeddings", torch.zeros(size, dim))
        self.register_buffer("labels", torch.full((size, num_levels), -1))
        self.written = 0
        self.steps = 0
        self.is_whole = False

    def __len__(self) -> int:
        """Return the number of items in the memory."""
        return min(self.written, self.size)

    @reads_labels
    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        """Return the loss of a batch; after the warm-up it includes the memory's term.

        Args:
            embeddings: (B, D) floating-point embeddings.
            labels: (B, L) or (B,) integers.

        Returns:
            a scalar.

        Raises:
            InputError: the memory or the loss expects other shapes.
        """
        return self.combine(self.terms(embeddings, labels))

    def terms(self, embeddings: Tensor, labels: Tensor) -> dict[str, Tensor]:
        """Return the unweighted terms of the batch and of the memory, and write a training batch.

        Args:
            embeddings: (B, D) floating-point embeddings.
            labels: (B, L) or (B,) integers.

        Returns:
            ``batch`` and ``memory``. For a :class:`Composition`, each of its terms on the batch as ``{name}``, and
            against the memory as ``memory_{name}``. The memory's terms are 0 until the warm-up is over.

        Raises:
            InputError: the memory or the loss expects other shapes.
        """
        value = self._terms(embeddings, labels)
        gallery = self._remember(embeddings, labels)
        if gallery is None:
            against = {name: embeddings.new_zeros(()) for name in value}
        else:
            against = self._terms(embeddings, label_columns(labels), *gallery)
        if isinstance(self.loss, Composition):
            return value | {f"memory_{name}": term for name, term in against.items()}
        return {"batch": value["loss"], "memory": against["loss"]}

    def combine(self, terms: Mapping[str, Tensor]) -> Tensor:
        """Combine the :meth:`terms` into the loss: a scalar."""
        if not isinstance(self.loss, Composition):
            return terms["batch"] + self.weight * terms["memory"]
        of_memory = {name.removeprefix("memory_"): term for name, term in terms.items() if name.startswith("memory_")}
        return self.loss.combine(terms) + self.weight * self.loss.combine(of_memory)

    def _terms(self, *args: Tensor) -> dict[str, Tensor]:
        return self.loss.terms(*args) if isinstance(self.loss, Composition) else {"loss": self.loss(*args)}

    def _remember(self, embeddings: Tensor, labels: Tensor) -> tuple[Tensor, Tensor, Tensor] | None:
        """Write a training batch after the warm-up; return the memory's items and the indices of the batch in it.

        Returns:
            embeddings (M, D), labels (M, L), and (B,) the index of each batch item in the memory, -1 if the memory
            lacks the item; or None during the warm-up or if the memory is empty.
        """
        warm = self.steps >= self.warmup
        self_index = torch.full((len(labels),), -1, device=self.embeddings.device)
        if self.training:
            self.steps += 1
            if warm:
                self_index = self.enqueue(embeddings, labels)
        held = len(self)
        if not warm or held == 0:
            return None
        # Copies: the next batch overwrites the buffers in place, perhaps before this one's backward pass.
        return self.embeddings[:held].clone(), self.labels[:held].clone(), self_index

    # The counts change at every step, so torch.compile must not trace this method. torch.compiler.disable sets the same
    # attribute, but takes a second to import.
    setattr(_remember, "_torchdynamo_disable", True)  # noqa: B010  # type checkers know no such attribute of a function

    @torch.no_grad()
    def enqueue(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        """Write items into the memory, in place of the oldest items.

        Args:
            embeddings: (N, D) embeddings; only the last ``size`` rows are kept.
            labels: (N, L) or (N,).

        Returns:
            (N,) int64 index of each item in the memory, -1 for items that were not kept.

        Raises:
            InputError: the memory expects other shapes.
        """
        size, dim = self.size, self.embeddings.shape[1]
        columns = label_columns(labels)
        if embeddings.shape != (len(columns), dim) or columns.shape[1:] != self.labels.shape[1:]:
            raise InputError(
                f"embeddings have shape {tuple(embeddings.shape)} and labels {tuple(labels.shape)}; the memory expects "
                f"(N, {dim}) and (N, {self.labels.shape[1]})."
            )
        kept = min(len(embeddings), size)
        start = (self.written + len(embeddings) - kept) % size
        before_end = min(kept, size - start)  # the remaining rows go to the beginning of the ring
        for ring, rows in (
            (self.embeddings, embeddings[-kept:].detach()),
            (self.labels, on_device(columns[-kept:], self.labels.device)),
        ):
            ring[start : start + before_end] = rows[:before_end]
            ring[: kept - before_end] = rows[before_end:]
        offset = torch.arange(len(embeddings), device=self.embeddings.device)
        places = (self.written % size + offset) % size
        self.written += len(embeddings)
        return torch.where(offset >= len(embeddings) - kept, places, -1)

    @property
    def sums_over_queries(self) -> bool:
        """True if the loss is a mean over queries."""
        return sums_over_queries(self.loss)

    def query_sums(
        self, embeddings: Tensor, labels: Tensor, everyone: Tensor, known: Tensor, self_index: Tensor
    ) -> dict[str, TermSum]:
        """Return the sums over this process's queries by term, and write the items of all processes into the memory.

        The terms have the names that :meth:`terms` returns.

        Args:
            embeddings: (b, D) embeddings of the queries.
            labels: (b, L) or (b,).
            everyone: (B, D) embeddings of all processes' items.
            known: (B, L) or (B,) labels of all processes' items.
            self_index: (b,) index of each query among the items of all processes.
        """
        batch = query_sums(self.loss, embeddings, labels, everyone, known, self_index)
        found = self._remember(everyone, known)
        if found is None:
            nothing = embeddings.sum() * 0.0
            against = {name: TermSum(term.weight, nothing, nothing.detach()) for name, term in batch.items()}
        else:
            places = found[2][self_index]
            against = query_sums(self.loss, embeddings, label_columns(labels), *found[:2], places)
        names = {"loss": "memory"} if "loss" in batch else {name: f"memory_{name}" for name in batch}
        sums = {"batch" if name == "loss" else name: term for name, term in batch.items()}
        return sums | {names[name]: replace(term, weight=term.weight * self.weight) for name, term in against.items()}

    def joined_terms(self, values: Mapping[str, Tensor], sums: Mapping[str, TermSum]) -> dict[str, Tensor]:
        """Return the values of :meth:`query_sums` under the names of :meth:`terms`, adding up the values of all levels.

        Args:
            values: unweighted values under the names of the sums.
            sums: sums that :meth:`query_sums` returned.
        """
        if isinstance(self.loss, Composition) or "batch" in values:
            return dict(values)
        own = [name for name in values if not name.startswith("memory_")]
        prefixes = {"batch": "", "memory": "memory_"}
        return {
            term: torch.stack([sums[name].weight * values[prefix + name] for name in own]).sum()
            for term, prefix in prefixes.items()
        }

    # ``written`` and ``steps`` are Python numbers, so that no step waits for a GPU; a state dict holds them as tensors.

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        for name in _COUNTS:
            destination[prefix + name] = torch.tensor(getattr(self, name))
        if (place := self._place()) != _ALONE:
            destination[prefix + _PLACE] = torch.tensor(place)

    def _place(self) -> tuple[int, int]:
        """Return the index of the process whose items the memory holds, and the number of processes."""
        processes = current_processes()
        return _ALONE if self.is_whole else (processes.index, processes.count)

    def _load_from_state_dict(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, state_dict: Mapping[str, Any], prefix: str, *others: Any
    ) -> None:
        *_, missing_keys, _, error_msgs = others
        rest = dict(state_dict)
        of, own = tuple(rest.pop(prefix + _PLACE, torch.tensor(_ALONE)).tolist()), self._place()
        if of not in (own, _ALONE):
            error_msgs.append(
                f"{prefix or 'the '}memory: the state holds the items of process {of[0]} of {of[1]}, but this is "
                f"process {own[0]} of {own[1]}. Save and load the state of every process, or compute the loss with "
                "hgld.distributed.DistributedLoss, whose memories are equal on all processes."
            )
        for name in _COUNTS:
            count = rest.pop(prefix + name, None)
            if count is None:
                missing_keys.append(prefix + name)
            elif count.numel() != 1 or count.is_floating_point():
                error_msgs.append(f"{prefix}{name} has shape {tuple(count.shape)}; expected one whole number.")
            else:
                setattr(self, name, int(count))
        super()._load_from_state_dict(rest, prefix, *others)

    def extra_repr(self) -> str:
        return f"size={self.size}, warmup={self.warmup}, weight={self.weight}"
