"""The loss of a run, built from its options; classes are renumbered so that only classes in training have a number."""

import inspect
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from hgld import losses
from hgld.distributed import ALONE, Processes, is_split
from hgld.errors import ConfigError
from hgld.hierarchy import Hierarchy
from hgld.losses.proxies import ClassSoftmax
from hgld.losses.rank_loss import query_sums, sums_over_queries
from hgld.losses.registry import SECOND_TERMS, entry_of, loss_class

from .config import LossConfig


class Criterion(nn.Module):
    """The loss of a run: ``(embeddings, labels, instances) -> (scalar, its parts)``.

    Only classes that occur in training have proxies, so labels are renumbered first. The loss uses torch's global
    random generator.

    Args:
        loss: module that computes the loss.
        renumbered: (C,) int64 new number of each class id per level, -1 for classes not in training.

    Attributes:
        loss: the loss.
    """

    def __init__(self, loss: nn.Module, renumbered: tuple[Tensor, ...]) -> None:
        super().__init__()
        self.loss = loss
        for level, numbers in enumerate(renumbered):
            # Not stored, because the dataset determines the numbers.
            self.register_buffer(f"numbers_{level}", numbers, persistent=False)

    def forward(self, embeddings: Tensor, labels: Tensor, instances: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """Compute the loss of a whole batch.

        Args:
            embeddings: (B, D) floating-point embeddings.
            labels: (B, L) class ids of the dataset's hierarchy, -1 if unknown.
            instances: (B,) integers, equal for views of one image.

        Returns:
            the scalar, and its unweighted terms by name (no terms if the loss has only one).
        """
        known, loss = self._renumbered(labels), self.loss
        if isinstance(loss, losses.MultiGrain):
            terms = loss.terms(embeddings, known, instances=instances)
            return loss.lambda_ * terms["classification"] + (1 - loss.lambda_) * terms["retrieval"], terms
        if isinstance(loss, losses.Composition | losses.CrossBatchMemory):
            terms = loss.terms(embeddings, known)
            return loss.combine(terms), terms
        return loss(embeddings, known), {}

    @property
    def sums_over_queries(self) -> bool:
        """True if processes can share the queries, because the loss can be computed from their :meth:`query_sums`."""
        return sums_over_queries(self.loss)

    def query_sums(
        self, embeddings: Tensor, labels: Tensor, everyone: Tensor, known: Tensor, self_index: Tensor
    ) -> dict[str, losses.TermSum]:
        """Return the sums over a process's queries; the loss is computed from the sums of all processes.

        Args:
            embeddings: (b, D) embeddings of the queries.
            labels: (b, L) labels of the queries.
            everyone: (B, D) embeddings of all processes' items.
            known: (B, L) labels of all processes' items.
            self_index: (b,) indices of the queries among all items.
        """
        own, gallery = self._renumbered(labels), self._renumbered(known)
        return query_sums(self.loss, embeddings, own, everyone, gallery, self_index)

    def joined_terms(self, values: dict[str, Tensor], sums: dict[str, losses.TermSum]) -> dict[str, Tensor]:
        """Return the loss's terms by name, made from :meth:`query_sums`; empty if the loss has only one term."""
        if isinstance(self.loss, losses.CrossBatchMemory):
            return self.loss.joined_terms(values, sums)
        return values if isinstance(self.loss, losses.Composition) else {}

    def _renumbered(self, labels: Tensor) -> Tensor:
        columns = []
        for level in range(labels.shape[1]):
            column, numbers = labels[:, level], self.get_buffer(f"numbers_{level}")
            columns.append(torch.where(column >= 0, numbers[column.clamp(min=0)], -1))
        return torch.stack(columns, dim=1)


def build_criterion(
    config: LossConfig,
    *,
    hierarchy: Hierarchy,
    train_labels: Tensor,
    dim: int,
    steps_per_epoch: int,
    processes: Processes = ALONE,
) -> Criterion:
    """Build the criterion of a run.

    Args:
        config: the loss and its options.
        hierarchy: hierarchy of the dataset.
        train_labels: (N, L) class ids of the training split.
        dim: D, dimension of the embeddings.
        steps_per_epoch: number of steps per epoch, which converts the warm-up of the cross-batch memory from epochs to
            steps.
        processes: processes of the run; they split large tables of proxies.

    Raises:
        ConfigError: the dataset does not have a level, or the loss does not accept an option.
    """
    level = level_number(hierarchy, config.level)
    present = [column[column >= 0].unique().long() for column in train_labels.T]
    numbers = []
    for ids, names in zip(present, hierarchy.names, strict=True):
        numbers.append(torch.full((len(names),), -1, dtype=torch.int64))
        numbers[-1][ids] = torch.arange(len(ids))
    sizes = [len(ids) for ids in present]
    parts = _Parts(config, hierarchy, train_labels, sizes, dim)
    if dims := config.matryoshka:
        if dims[-1] != dim:
            raise ConfigError(
                f"matryoshka is {dims}, but embeddings have {dim} dimensions; the last value must be {dim}."
            )
        prefixes = [replace(parts, dim=prefix).build(config.loss, level, level) for prefix in dims]
        loss: nn.Module = losses.MatryoshkaLoss(prefixes, dims)
    elif config.sum_levels:
        loss = losses.SumOverLevels(*(parts.build(config.loss, 0, c) for c in range(len(sizes))))
    else:
        loss = parts.build(config.loss, level, level)
    if config.memory:
        items = len(train_labels) if config.memory < 0 else config.memory
        loss = losses.CrossBatchMemory(
            loss,
            items,
            dim,
            num_levels=len(sizes),
            warmup=config.memory_from_epoch * steps_per_epoch,
        )
        loss.is_whole = True  # every process passes the items of all processes
    for part in loss.modules():
        own = type(part) in (losses.NormSoftmax, losses.ProxyNCApp, losses.CSL)  # a subclass may need all proxies
        if own and isinstance(part, ClassSoftmax) and is_split(part.proxies, processes):
            part.share(processes)
    return Criterion(loss, tuple(numbers))


@dataclass(frozen=True, eq=False)
class _Parts:
    """Builder of the modules of a loss."""

    config: LossConfig
    hierarchy: Hierarchy
    train_labels: Tensor
    sizes: Sequence[int]
    dim: int

    def build(self, name: str, level: int, classes_of: int) -> Any:
        """Return the module of a loss.

        Args:
            name: name of the loss.
            level: column of the labels that the module reads.
            classes_of: index of the level whose classes set ``num_classes`` and the class weights.
        """
        entry, config = entry_of(name), self.config
        if entry.kind == "terms":
            second = SECOND_TERMS[config.decomposability or entry.second]
            rank = self.build(entry.rank, level, classes_of)
            return losses.Composition(rank, self.build(second, level, classes_of), config.lambda_)
        make = loss_class(name)
        needed = inspect.signature(make).parameters

        def is_given(parameter: str, option: str) -> bool:
            default = getattr(LossConfig, option)
            if getattr(config, option) != default:
                return True
            is_plugin = not entry.module and needed[parameter].default is not inspect.Parameter.empty
            return default != () and not is_plugin  # otherwise the loss keeps its own default

        options = {name: getattr(config, option) for name, option in entry.options.items() if is_given(name, option)}
        if "level" in entry.options:
            options["level"] = level
        sizes = {"dim": self.dim, "num_classes": self.sizes[classes_of], "hierarchy": self.tree}
        options |= {size: value() if callable(value) else value for size, value in sizes.items() if size in needed}
        if entry.kind != "rank":
            return make(**options)
        if config.class_weights:  # inverse class sizes, scaled so that the mean over the items is 1
            column = self.train_labels[:, classes_of]
            counts = column[column >= 0].unique(return_counts=True)[1]
            weights = counts.sum() / (len(counts) * counts.double())
            return losses.ClassWeighted(make(**options, reduction="none"), weights)
        return losses.SiMix(make(**options, normalize=False)) if config.simix else make(**options)

    def tree(self) -> Hierarchy:
        """Return the tree of the classes in training, renumbered."""
        present = [np.unique(column[column >= 0]) for column in self.train_labels.numpy().T]
        names = tuple(tuple(level[i] for i in ids) for level, ids in zip(self.hierarchy.names, present, strict=True))
        parents = []
        for of_class, ids, above in zip(self.hierarchy.parents, present, present[1:], strict=False):
            numbers = {old: new for new, old in enumerate(above.tolist())}
            parents.append(np.array([numbers.get(parent, -1) for parent in of_class[ids].tolist()], np.int32))
        return replace(self.hierarchy, names=names, parents=tuple(parents))


def level_number(hierarchy: Hierarchy, name: str) -> int:
    """Return the index of the level of ``--level``; 0, the finest level, if the option is empty.

    Raises:
        ConfigError: there is no such level.
    """
    if not name:
        return 0
    if name not in hierarchy.levels:
        raise ConfigError(f"--level {name!r} is unknown; the dataset's levels are {', '.join(hierarchy.levels)}.")
    return hierarchy.levels.index(name)
