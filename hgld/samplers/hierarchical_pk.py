"""P x K batches out of few super-classes, so that their classes are hard to tell apart."""

import itertools
import math

import numpy as np
from torch.utils.data import Sampler

from hgld.errors import ConfigError, HierarchyError
from hgld.samplers.batch_sampler import (
    BatchSampler,
    ClassItems,
    Labels,
    Short,
    at_least,
    check_enough,
    label_column,
    shuffled,
)

_MOST_COMBINATIONS = 1_000_000
_COMBINATIONS, _CLASSES, _ITEMS = range(3)  # uses of random numbers


class HierarchicalPKSampler(BatchSampler):
    """Batches of p classes with k items each, p / m classes out of each of m super-classes.

    An epoch takes every combination of m super-classes ``batches_per_combination`` times, in random order. The classes
    of a super-class and the items of a class are drawn at random. Where a super-class has fewer than p / m classes, the
    others of the batch give more, so that every batch is whole; combinations with fewer than p classes in all are left
    out and counted.

    Args:
        labels: (N, L) integers or names, or a dataset: what :func:`hgld.labels.class_numbers` reads.
        p: classes a batch.
        k: items a class.
        level: level of the classes: column, or, with a table or a dataset, name.
        super_level: level of the super-classes; the coarsest by default.
        super_classes: m, super-classes a batch.
        batches_per_combination: batches of each combination of super-classes in an epoch.
        batches_per_epoch: an epoch ends after so many batches; after all combinations if None.
        seed: of all random choices.
        short: what becomes of classes with fewer than k items, as for :class:`hgld.samplers.PKSampler`.
        process_index: which process this is.
        process_count: of how many; must divide p.
        sampler: a DistributedSampler, which tells the two (Lightning gives one).

    Attributes:
        left_out: items without a label at one of the two levels, which are in no batch.
        dropped: items of classes that ``short="drop"`` left out.
        left_out_combinations: combinations of super-classes with fewer than p classes.

    Raises:
        ConfigError: numbers that do not fit each other or the data.
        HierarchyError: a class lies under two super-classes.

    Source: pairs of categories as in Cakir et al., "Deep metric learning to rank" (FastAP), CVPR 2019, and as the
    H-AP and ROADMAP authors train on Stanford Online Products.
    """

    def __init__(
        self,
        labels: Labels,
        p: int,
        k: int,
        *,
        level: int | str = 0,
        super_level: int | str = -1,
        super_classes: int = 2,
        batches_per_combination: int = 4,
        batches_per_epoch: int | None = None,
        seed: int = 0,
        short: Short = "repeat",
        process_index: int = 0,
        process_count: int = 1,
        sampler: Sampler | None = None,
    ) -> None:
        at_least(1, p=p, k=k, super_classes=super_classes, batches_per_combination=batches_per_combination)
        if p % super_classes:
            raise ConfigError(f"p is {p}, not a multiple of the {super_classes} super-classes of a batch.")
        self.p, self.k, self.super_classes = p, k, super_classes
        fine, coarse = label_column(labels, level), label_column(labels, super_level)
        self._classes = ClassItems.from_labels(np.where(coarse >= 0, fine, -1), k=k, short=short)
        self.left_out, self.dropped = self._classes.left_out, self._classes.dropped
        check_enough(len(self._classes.count), p)
        self._by_super = _classes_by_super(self._classes, coarse)
        self._combinations, self.left_out_combinations = _combinations(self._by_super, p, super_classes)
        self._repeats = batches_per_combination
        everything = len(self._combinations) * batches_per_combination
        batches = everything if batches_per_epoch is None else batches_per_epoch
        at_least(1, batches_per_epoch=batches)
        super().__init__(
            batch_size=p * k,
            batches=batches,
            parts=p,
            seed=seed,
            process_index=process_index,
            process_count=process_count,
            sampler=sampler,
        )
        self._order: tuple[int, np.ndarray] | None = None

    def _whole_batch(self, epoch: int, step: int) -> np.ndarray:
        key = (self.seed, epoch, step)
        supers = self._combinations[self._order_of(epoch)[step % (len(self._combinations) * self._repeats)]]
        shuffles = [self._by_super[s][shuffled(len(self._by_super[s]), *key, _CLASSES, int(s))] for s in supers]
        share = self.p // self.super_classes
        missing = self.p - sum(min(share, len(classes)) for classes in shuffles)
        chosen = []
        for classes in shuffles:
            more = min(missing, max(0, len(classes) - share))
            chosen.append(classes[: share + more])
            missing -= more
        return self._classes.draw(np.concatenate(chosen), self.k, *key, _ITEMS).reshape(-1)

    def _order_of(self, epoch: int) -> np.ndarray:
        """Return the combination of every step of an epoch."""
        if self._order is None or self._order[0] != epoch:
            count = len(self._combinations) * self._repeats
            self._order = (epoch, shuffled(count, self.seed, epoch, 0, _COMBINATIONS) // self._repeats)
        return self._order[1]


def _classes_by_super(classes: ClassItems, coarse: np.ndarray) -> list[np.ndarray]:
    """Return the places of the classes under each super-class, in the order of the super-classes' labels."""
    above = coarse[classes.items]
    first = above[classes.start]
    torn = np.flatnonzero(above != np.repeat(first, classes.count))
    if torn.size:
        place = int(np.searchsorted(classes.start, torn[0], side="right") - 1)
        raise HierarchyError(
            f"class {classes.label[place]} lies under the super-classes {first[place]} and {above[torn[0]]}; expected "
            "one. Check the labels with hgld verify."
        )
    return [np.flatnonzero(first == label) for label in np.unique(first)]


def _combinations(by_super: list[np.ndarray], p: int, size: int) -> tuple[np.ndarray, int]:
    """Return (C, size) combinations of super-classes with at least p classes in all, and the number of the others."""
    count = math.comb(len(by_super), size)
    if not 0 < count <= _MOST_COMBINATIONS:
        raise ConfigError(
            f"{len(by_super)} super-classes have {count} combinations of {size}; expected 1 to {_MOST_COMBINATIONS}. "
            "Take another super_level or number of super_classes."
        )
    found = np.array(list(itertools.combinations(range(len(by_super)), size)))
    enough = np.array([len(classes) for classes in by_super])[found].sum(axis=1) >= p
    if not enough.any():
        raise ConfigError(f"no {size} super-classes have {p} classes together; take a smaller p.")
    return found[enough], int((~enough).sum())
