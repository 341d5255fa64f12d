"""The loss of a run, made from its options, with classes renumbered to those that occur in training."""

import inspect
from collections.abc import Callable
from copy import copy
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from hgld import losses
from hgld.errors import ConfigError
from hgld.hierarchy import Hierarchy
from hgld.losses.rank_loss import query_sums, sums_over_queries
from hgld.losses.registry import SECOND_TERMS, entry_of, loss_class

from .config import LossConfig


class Criterion(nn.Module):
    """The loss of a run: ``(embeddings, labels, instances) -> (scalar, its parts)``.

    Proxies stand only for classes that occur in training, so labels are renumbered first. What is random in a loss
    draws from torch's global generator.

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
            self.register_buffer(f"numbers_{level}", numbers, persistent=False)  # a function of the dataset

    def forward(self, embeddings: Tensor, labels: Tensor, instances: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """Compute the loss of a whole batch.

        Args:
            embeddings: (B, D) floating-point embeddings.
            labels: (B, L) class ids of the dataset's hierarchy, -1 if unknown.
            instances: (B,) integers, equal for views of one image.

        Returns:
            the scalar, and its unweighted terms by name (none if the loss has only one).
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
        """True if several processes can share the queries, because the loss is made of all their :meth:`query_sums`."""
        return sums_over_queries(self.loss)

    @property
    def has_terms(self) -> bool:
        """True if a call returns the terms of the loss."""
        return isinstance(self.loss, losses.MultiGrain | losses.Composition | losses.CrossBatchMemory)

    def query_sums(
        self, embeddings: Tensor, labels: Tensor, everyone: Tensor, known: Tensor, self_index: Tensor
    ) -> dict[str, losses.TermSum]:
        """Return the sums that the loss of a process's queries is made of.

        Args:
            embeddings: (b, D) embeddings of the queries.
            labels: (b, L) labels of the queries.
            everyone: (B, D) embeddings of all processes' items.
            known: (B, L) their labels.
            self_index: (b,) places of the queries among all.
        """
        own, gallery = self._renumbered(labels), self._renumbered(known)
        return query_sums(self.loss, embeddings, own, everyone, gallery, self_index)

    def joined_terms(self, values: dict[str, Tensor], sums: dict[str, losses.TermSum]) -> dict[str, Tensor]:
        """Return the terms of a call from the values of :meth:`query_sums`: none if the loss has only one."""
        if isinstance(self.loss, losses.CrossBatchMemory):
            return self.loss.joined_terms(values, sums)
        return values if self.has_terms else {}

    def _renumbered(self, labels: Tensor) -> Tensor:
        columns = []
        for level in range(labels.shape[1]):
            column, numbers = labels[:, level], self.get_buffer(f"numbers_{level}")
            columns.append(torch.where(column >= 0, numbers[column.clamp(min=0)], -1))
        return torch.stack(columns, dim=1)


def build_criterion(
    config: LossConfig, *, hierarchy: Hierarchy, train_labels: Tensor, dim: int, steps_per_epoch: int
) -> Criterion:
    """Build the criterion of a run.

    Args:
        config: the loss and its options.
        hierarchy: hierarchy of the dataset.
        train_labels: (N, L) class ids of the training split.
        dim: D, dimension of the embeddings.
        steps_per_epoch: steps by which the memory's warm-up is converted from epochs.

    Raises:
        ConfigError: a level that the dataset does not have, or options that the loss refuses.
    """
    level = level_number(hierarchy, config.level)
    sizes, numbers = zip(*(_renumber(train_labels[:, c], len(n)) for c, n in enumerate(hierarchy.names)), strict=True)
    parts = _Parts(config, sizes, dim, _training_tree(hierarchy, train_labels), train_labels)
    if config.matryoshka:
        loss: nn.Module = parts.build_prefixes(config.matryoshka, level)
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
    return Criterion(loss, numbers)


class _Parts:
    """Builder of the modules of a loss; ``level`` is the column of labels that they read, ``classes_of`` its level."""

    def __init__(
        self, config: LossConfig, sizes: tuple[int, ...], dim: int, tree: Callable[[], Hierarchy], train_labels: Tensor
    ) -> None:
        self.config, self.sizes, self.dim, self.tree, self.train_labels = config, sizes, dim, tree, train_labels

    def build(self, name: str, level: int, classes_of: int) -> Any:
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
            return default != () and not is_plugin  # else the loss's own default holds

        options = {name: getattr(config, option) for name, option in entry.options.items() if is_given(name, option)}
        if "level" in entry.options:
            options["level"] = level
        sizes = {"dim": self.dim, "num_classes": self.sizes[classes_of], "hierarchy": self.tree}
        options |= {size: value() if callable(value) else value for size, value in sizes.items() if size in needed}
        if entry.kind != "rank":
            return make(**options)
        if config.class_weights:
            return losses.ClassWeighted(make(**options, reduction="none"), self._class_weights(classes_of))
        return losses.SiMix(make(**options, normalize=False)) if config.simix else make(**options)

    def build_prefixes(self, dims: tuple[int, ...], level: int) -> nn.Module:
        """Build a loss for each prefix of the embedding.

        Raises:
            ConfigError: the last prefix is not the embedding's dimension.
        """
        if dims[-1] != self.dim:
            raise ConfigError(
                f"matryoshka is {dims} and embeddings have {self.dim} dimensions; the last is to be that."
            )
        parts = [copy(self) for _ in dims]
        for part, dim in zip(parts, dims, strict=True):
            part.dim = dim
        return losses.MatryoshkaLoss([part.build(self.config.loss, level, level) for part in parts], dims)

    def _class_weights(self, level: int) -> Tensor:
        """Return one over the size of each class in training, scaled so that the mean over the items is 1."""
        column = self.train_labels[:, level]
        counts = column[column >= 0].unique(return_counts=True)[1]
        return counts.sum() / (len(counts) * counts.double())


def level_number(hierarchy: Hierarchy, name: str) -> int:
    """Return the number of the level that ``--level`` names; empty: the finest, 0.

    Raises:
        ConfigError: there is no such level.
    """
    if not name:
        return 0
    if name not in hierarchy.levels:
        raise ConfigError(f"--level {name!r}: the dataset's levels are {', '.join(hierarchy.levels)}.")
    return hierarchy.levels.index(name)


def _renumber(column: Tensor, classes: int) -> tuple[int, Tensor]:
    """Return the number of classes in a column, and the new number of every class id (-1: does not occur)."""
    present = column[column >= 0].unique()
    numbers = torch.full((classes,), -1, dtype=torch.int64)
    numbers[present.long()] = torch.arange(len(present))
    return len(present), numbers


def _training_tree(hierarchy: Hierarchy, train_labels: Tensor) -> Callable[[], Hierarchy]:
    """Return a function that makes the tree of the classes in training, renumbered, when a loss asks for it."""

    def tree() -> Hierarchy:
        present = [np.unique(column[column >= 0]) for column in train_labels.numpy().T]
        names = tuple(tuple(level[i] for i in ids) for level, ids in zip(hierarchy.names, present, strict=True))
        parents = []
        for c, ids in enumerate(present[:-1]):
            above = hierarchy.parents[c][ids]
            place = np.searchsorted(present[c + 1], above).clip(max=max(len(present[c + 1]) - 1, 0))
            parents.append(np.where((above >= 0) & (present[c + 1][place] == above), place, -1))
        return replace(hierarchy, names=names, parents=tuple(parents))

    return tree
