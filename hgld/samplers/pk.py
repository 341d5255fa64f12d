"""P x K batches for metric learning: P classes with K items each.

A sampler plans an epoch that covers every item, draws classes at random, or draws classes from a few super-classes.
"""

import itertools
import math
from typing import Literal, Unpack, get_args

import numpy as np

from hgld.errors import ConfigError, HierarchyError, at_least, check_choice
from hgld.samplers.batch_sampler import (
    BatchSampler,
    ClassItems,
    Labels,
    Place,
    Short,
    check_enough,
    choose,
    label_column,
    random_words,
    shuffled,
)

_WORD = 32  # number of bits for a chunk's number within its class; the bits above hold the class
_ITEMS, _CLASSES, _LAST, _TRADES, _COLUMNS, _ROWS = range(6)  # keys of the independent random streams of a plan


def plan_epoch(classes: ClassItems, p: int, k: int, batches: int, *key: int) -> tuple[np.ndarray, np.ndarray]:
    """Plan an epoch of P x K batches that cover all items.

    The items of every class are shuffled and cut into chunks of k; the last chunk of a class is filled with the class's
    first items. As few batches as possible get two chunks of one class. If no class has more chunks than there are
    batches, no batch gets two chunks of one class.

    Distributing the chunks class by class, one per batch in turn, reaches that minimum. Trades then make the plan
    random: two batches pool the chunks of classes that they do not share, and each takes a random half. Every round
    pairs the batches anew. A trade changes neither the batches' sizes nor the minimum. The method is global curveball:
    Carstens, Berger and Strona, "A unifying framework for fast randomization of ecological networks with fixed (node)
    degrees", MethodsX 5, 2018.

    Args:
        classes: the items, sorted by class.
        p: number of classes per batch.
        k: number of items per class.
        batches: number of batches; to fill them, random classes get one more chunk.
        key: key of the random stream.

    Returns:
        (M,) items in the order of :func:`shuffled_within`, and (batches, p) chunks: the upper 32 bits hold the class,
        the lower 32 bits the number of the chunk within the class.
    """
    chunks = _fill_batches(chunks_of(classes, k), p * batches, batches, *key)
    order = shuffled(len(chunks), *key, _CLASSES)
    dealt = np.repeat(order, chunks[order])
    number = np.arange(len(dealt)) - np.repeat(np.cumsum(chunks[order]) - chunks[order], chunks[order])
    table = ((dealt << _WORD) | number).reshape(p, batches).T
    return shuffled_within(classes, *key), _shuffle_rows(_trade_chunks(np.ascontiguousarray(table), *key), *key)


def chunks_of(classes: ClassItems, k: int) -> np.ndarray:
    """Return the number of chunks of k items that cover each class: (C,)."""
    return -(-classes.count // k)


def shuffled_within(classes: ClassItems, *key: int) -> np.ndarray:
    """Return the (M,) items, shuffled within every class."""
    places = np.repeat(np.arange(len(classes.count)), classes.count)
    words = random_words(len(places), *key, _ITEMS) >> np.uint64(_WORD)
    return classes.items[np.argsort((places << _WORD) | words.astype(np.int64), kind="stable")]


def chunk_items(classes: ClassItems, items: np.ndarray, place: np.ndarray, number: np.ndarray, k: int) -> np.ndarray:
    """Return the (n, k) items of chunks; a class's last chunk is filled with the class's first items.

    Args:
        classes: the items, sorted by class.
        items: items in the order of :func:`shuffled_within`.
        place: (n,) index of each chunk's class.
        number: (n,) number of each chunk within its class.
        k: number of items per chunk.
    """
    within = (number[:, None] * k + np.arange(k)) % classes.count[place][:, None]
    return items[classes.start[place][:, None] + within]


def _fill_batches(chunks: np.ndarray, places: int, batches: int, *key: int) -> np.ndarray:
    """Add chunks of random classes until all batches are full."""
    missing, chunks = places - int(chunks.sum()), chunks.copy()
    order = shuffled(len(chunks), *key, _LAST)
    while missing > 0:
        # Classes that can get one more chunk without occurring twice in a batch.
        roomy = order[chunks[order] < batches][:missing]
        chunks[roomy] += 1
        missing -= len(roomy)
    return chunks


def _trade_chunks(table: np.ndarray, *key: int) -> np.ndarray:
    """Trade chunks between rows (batches) until the batches no longer depend on the initial distribution."""
    batches, p = table.shape
    half = batches // 2
    for turn in range(batches.bit_length() + 2):
        partners = shuffled(batches, *key, _ROWS, turn)
        first, second = partners[:half], partners[half : 2 * half]
        heap = np.concatenate([table[first], table[second]], axis=1)
        heap.sort(axis=1)
        words = random_words(heap.size, *key, _TRADES, turn).reshape(heap.shape)
        # Split the pooled chunks into halves; the order within a half does not matter.
        halves = np.argpartition(_halving_keys(heap >> _WORD, words), p, axis=1)
        heap = np.take_along_axis(heap, halves, axis=1)
        table[first], table[second] = heap[:, :p], heap[:, p:]
    return table


def _halving_keys(classes: np.ndarray, words: np.ndarray) -> np.ndarray:
    """Return sort keys that halve a pool of chunks: the lower half goes to the first batch.

    Chunks of one class are paired, and the two chunks of a pair go to different batches; an unpaired chunk goes to
    either batch.

    Args:
        classes: (H, 2P) classes of the chunks, sorted.
        words: (H, 2P) uint64 random integers.
    """
    column = np.arange(classes.shape[1])
    same = np.zeros(classes.shape, dtype=bool)  # True if the previous chunk has the same class
    same[:, 1:] = classes[:, 1:] == classes[:, :-1]
    begin = np.maximum.accumulate(np.where(same, 0, column), axis=1)
    is_second = (column - begin) % 2 == 1
    is_first = np.zeros_like(is_second)
    is_first[:, :-1] = is_second[:, 1:]
    heads = (words & np.uint64(1)).astype(bool)
    after = np.zeros_like(heads)
    after[:, 1:] = ~heads[:, :-1]
    goes_first = np.where(is_second, after, heads)
    among_free = (words >> np.uint64(2)) + np.uint64(1)
    last = np.uint64(1 << 63)
    return np.where(is_first | is_second, np.where(goes_first, np.uint64(0), last), among_free)


def _shuffle_rows(table: np.ndarray, *key: int) -> np.ndarray:
    """Return the batches in random order, each with its classes in random order."""
    table = np.sort(table, axis=1)[shuffled(len(table), *key, _COLUMNS, 0)]
    words = random_words(table.size, *key, _COLUMNS, 1).reshape(table.shape)
    return np.take_along_axis(table, np.argsort(words, axis=1, kind="stable"), axis=1)


# -- the sampler ------------------------------------------------------------------------------------------------------

Coverage = Literal["exact", "classes"]
_DRAWN_CLASSES, _DRAWN_ORDER, _DRAWN_ITEMS = range(3)  # keys of the independent random streams of a batch


class PKSampler(BatchSampler):
    """Batches of p classes with k items each; the items of a class are next to each other.

    With ``coverage="exact"`` every labelled item is sampled at least once per epoch, and no class is twice in a batch
    unless this cannot be avoided (:func:`hgld.samplers.pk.plan_epoch`). With ``coverage="classes"`` every batch draws p
    classes and k items of each independently of other batches, as published metric learning code does. An epoch then
    covers a smaller share of a large class than of a small class.

    Args:
        labels: (N,) or (N, L) integers or names, or a dataset, in any form that :func:`hgld.labels.class_numbers`
            reads.
        p: number of classes per batch.
        k: number of items per class.
        level: level of the classes: its column; or, if the labels are a table or a dataset, its name.
        seed: seed of all random choices.
        coverage: "exact" (every item at least once per epoch) or "classes" (random classes).
        short: rule for classes with fewer than k items: "repeat" uses each item at least once and some items again,
            "drop" drops the class, "refuse" raises an error.
        batches_per_epoch: length of an epoch, only with ``coverage="classes"``; None: the number of items divided by
            the batch size.
        place: ``process_index`` (index of this process, from 0) and ``process_count`` (number of processes, which must
            divide p, so that classes stay whole); or ``sampler``, a DistributedSampler that knows both.

    Attributes:
        left_out: number of items without a label, which are in no batch.
        dropped: number of items in classes that ``short="drop"`` dropped.

    Raises:
        ConfigError: there are too few classes, options contradict each other, or process_count does not divide p.

    >>> labels = np.array([0, 0, 0, 1, 1, 2, 2, 2])
    >>> sampler = PKSampler(labels, p=2, k=2)
    >>> len(sampler)  # 2 + 1 + 2 chunks of 2 items, 2 chunks per batch
    3
    >>> labels[sampler.batch(epoch=0, step=1)].tolist()
    [0, 0, 2, 2]
    >>> sampler.left_out
    0
    """

    def __init__(
        self,
        labels: Labels,
        p: int,
        k: int,
        *,
        level: int | str = 0,
        seed: int = 0,
        coverage: Coverage = "exact",
        short: Short = "repeat",
        batches_per_epoch: int | None = None,
        **place: Unpack[Place],
    ) -> None:
        at_least(1, p=p, k=k)
        check_choice("coverage", coverage, get_args(Coverage))
        self.p, self.k, self.coverage = p, k, coverage
        self._classes = ClassItems.from_labels(label_column(labels, level), k=k, short=short)
        self.left_out, self.dropped = self._classes.left_out, self._classes.dropped
        check_enough(len(self._classes.count), p)
        if coverage == "exact":
            if batches_per_epoch is not None:
                raise ConfigError("coverage='exact' sets the length of an epoch; omit batches_per_epoch.")
            batches = -(-int(chunks_of(self._classes, k).sum()) // p)
        else:
            batches = max(1, len(self._classes.items) // (p * k))
        super().__init__(
            batch_size=p * k,
            batches=batches,
            parts=p,
            seed=seed,
            batches_per_epoch=batches_per_epoch,
            **place,
        )

    def _whole_batch(self, epoch: int, step: int) -> np.ndarray:
        if self.coverage == "exact":
            items, table = self._plan_of(epoch)
            place, number = table[step] >> _WORD, table[step] & ((1 << _WORD) - 1)
            return chunk_items(self._classes, items, place, number, self.k).reshape(-1)
        key = (self.seed, epoch, step)
        chosen = choose(random_words(self.p, *key, _DRAWN_CLASSES)[None], np.array([len(self._classes.count)]))[0]
        return self._classes.draw(chosen[shuffled(self.p, *key, _DRAWN_ORDER)], self.k, *key, _DRAWN_ITEMS).reshape(-1)

    def _plan(self, epoch: int) -> tuple[np.ndarray, np.ndarray]:
        return plan_epoch(self._classes, self.p, self.k, len(self), self.seed, epoch)


# -- batches from a few super-classes ----------------------------------------------------------------------------------

_MOST_COMBINATIONS = 1_000_000
_ORDER, _UNDER, _OF_CLASS = range(3)  # keys of the independent random streams of a batch


class HierarchicalPKSampler(BatchSampler):
    """Batches of p classes with k items each, with p / m classes from each of m super-classes.

    An epoch uses every combination of m super-classes ``batches_per_combination`` times, in random order. The classes
    of a super-class and the items of a class are drawn at random. If a super-class has fewer than p / m classes, the
    other super-classes of the batch provide more, so that every batch is complete. Combinations with fewer than p
    classes in total are skipped and counted.

    Args:
        labels: (N, L) integers or names, or a dataset, in any form that :func:`hgld.labels.class_numbers` reads.
        p: number of classes per batch.
        k: number of items per class.
        level: level of the classes: its column; or, if the labels are a table or a dataset, its name.
        super_level: level of the super-classes; the coarsest by default.
        super_classes: m, number of super-classes per batch.
        batches_per_combination: number of batches per epoch for each combination of super-classes.
        batches_per_epoch: maximum number of batches per epoch; None: an epoch ends after all combinations.
        seed: seed of all random choices.
        short: rule for classes with fewer than k items: "repeat" uses each item at least once and some items again,
            "drop" drops the class, "refuse" raises an error.
        place: ``process_index`` (index of this process, from 0) and ``process_count`` (number of processes, which must
            divide p); or ``sampler``, a DistributedSampler that knows both.

    Attributes:
        left_out: number of items without a label at one of the two levels, which are in no batch.
        dropped: number of items in classes that ``short="drop"`` dropped.
        left_out_combinations: number of combinations of super-classes with fewer than p classes.

    Raises:
        ConfigError: p is not a multiple of super_classes, process_count does not divide p, or there are too few
            classes.
        HierarchyError: a class is in two super-classes.

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
        **place: Unpack[Place],
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
        super().__init__(
            batch_size=p * k,
            batches=len(self._combinations) * batches_per_combination,
            parts=p,
            seed=seed,
            batches_per_epoch=batches_per_epoch,
            **place,
        )

    def _whole_batch(self, epoch: int, step: int) -> np.ndarray:
        key = (self.seed, epoch, step)
        supers = self._combinations[self._plan_of(epoch)[step % (len(self._combinations) * self._repeats)]]
        shuffles = [self._by_super[s][shuffled(len(self._by_super[s]), *key, _UNDER, int(s))] for s in supers]
        share = self.p // self.super_classes
        missing = self.p - sum(min(share, len(classes)) for classes in shuffles)
        chosen = []
        for classes in shuffles:
            more = min(missing, max(0, len(classes) - share))
            chosen.append(classes[: share + more])
            missing -= more
        return self._classes.draw(np.concatenate(chosen), self.k, *key, _OF_CLASS).reshape(-1)

    def _plan(self, epoch: int) -> np.ndarray:
        """Return the combination of every step of an epoch."""
        return shuffled(len(self._combinations) * self._repeats, self.seed, epoch, 0, _ORDER) // self._repeats


def _classes_by_super(classes: ClassItems, coarse: np.ndarray) -> list[np.ndarray]:
    """Return the indices of the classes in each super-class, in the order of the super-classes' labels."""
    above = coarse[classes.items]
    first = above[classes.start]
    torn = np.flatnonzero(above != np.repeat(first, classes.count))
    if torn.size:
        place = int(np.searchsorted(classes.start, torn[0], side="right") - 1)
        raise HierarchyError(
            f"class {classes.label[place]} is in the super-classes {first[place]} and {above[torn[0]]}; expected "
            "one. Check the labels with hgld verify."
        )
    return [np.flatnonzero(first == label) for label in np.unique(first)]


def _combinations(by_super: list[np.ndarray], p: int, size: int) -> tuple[np.ndarray, int]:
    """Return (C, size) combinations of super-classes with at least p classes together; count all other combinations."""
    count = math.comb(len(by_super), size)
    if not 0 < count <= _MOST_COMBINATIONS:
        raise ConfigError(
            f"{len(by_super)} super-classes have {count} combinations of {size}; expected 1 to {_MOST_COMBINATIONS}. "
            "Choose another super_level or number of super_classes."
        )
    found = np.array(list(itertools.combinations(range(len(by_super)), size)))
    enough = np.array([len(classes) for classes in by_super])[found].sum(axis=1) >= p
    if not enough.any():
        raise ConfigError(f"no {size} super-classes have {p} classes together; choose a smaller p.")
    return found[enough], int((~enough).sum())
