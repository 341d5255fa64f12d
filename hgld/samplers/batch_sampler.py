"""The base class of all samplers, and samplers of single items.

A batch depends only on (seed, epoch, step), and every process takes an equal part of it.
"""

import functools
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypedDict, Unpack, get_args

import numpy as np
import torch.utils.data

from hgld.errors import ConfigError, InputError, at_least, check_choice
from hgld.labels import Labels, class_numbers

# -- random numbers ---------------------------------------------------------------------------------------------------
#
# Random numbers depend only on their key, on every platform and with every version of numpy. numpy keeps the raw 64-bit
# words of a bit generator stable, but not its distributions and shuffles (NEP 19), so this module uses only the words.

_HALF = np.uint64(32)
_FRACTION_BITS = 53


def word_source(*key: int) -> np.random.Philox:
    """Return a random bit generator (Philox, uint64) seeded with integers; all but the first are below 2**32."""
    return np.random.Philox(np.random.SeedSequence(key[0], spawn_key=key[1:]))


def random_words(count: int, *key: int) -> np.ndarray:
    """Return (count,) uint64 words of Philox, with the key of :func:`word_source`."""
    return word_source(*key).random_raw(count)


def shuffled(count: int, *key: int) -> np.ndarray:
    """Return a random order of ``range(count)``: (count,) int64."""
    return np.argsort(random_words(count, *key), kind="stable")


def below(words: np.ndarray, limits: np.ndarray | int) -> np.ndarray:
    """Convert random words to int64 numbers in [0, limit), uniform to within 2**-32; limits are below 2**32."""
    return (((words >> _HALF) * np.asarray(limits, dtype=np.uint64)) >> _HALF).astype(np.int64)


def choose(words: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """Draw k distinct numbers below a limit for each row; all sets of numbers are equally likely.

    Args:
        words: (R, k) uint64 random integers (:func:`random_words`).
        sizes: (R,) limit of each row, at least k.

    Returns:
        (R, k) distinct int64 numbers in [0, size).

    Source: Floyd's algorithm; Bentley and Floyd, "A sample of brilliance", CACM 30 (1987).
    """
    rows, count = words.shape
    chosen = np.full((rows, count), -1, dtype=np.int64)
    for place in range(count):
        last = sizes - count + place
        drawn = below(words[:, place], last + 1)
        taken = (chosen[:, :place] == drawn[:, None]).any(axis=1)
        chosen[:, place] = np.where(taken, last, drawn)
    return chosen


# -- items by class ---------------------------------------------------------------------------------------------------

Short = Literal["repeat", "drop", "refuse"]


def label_column(labels: Labels, level: int | str) -> np.ndarray:
    """Return the labels of one level.

    Args:
        labels: (N,) or (N, L) labels, finest level first, of any kind that :func:`hgld.labels.class_numbers` reads.
        level: column; or, if the labels are a table or a dataset, the name of the level.

    Returns:
        (N,) int64, -1 if unknown.

    Raises:
        InputError: the labels are not a (N,) or (N, L) table of integers or names.
        ConfigError: the labels lack the level.
    """
    (array,), levels = class_numbers(labels)
    if array.ndim not in (1, 2) or not np.issubdtype(array.dtype, np.integer):
        raise InputError(f"labels have shape {array.shape} and type {array.dtype}; expected integers (N,) or (N, L).")
    array = array.reshape(len(array), -1)
    if isinstance(level, str):
        if levels is None:
            raise ConfigError(
                f"level is {level!r}, but the labels have no level names. Pass the level's number, or a table or "
                "dataset as labels."
            )
        if level not in levels:
            raise ConfigError(f"level {level!r} is unknown; the levels are {', '.join(levels)}.")
        level = levels.index(level)
    if not -array.shape[1] <= level < array.shape[1]:
        columns = array.shape[1]
        raise ConfigError(
            f"level is {level}; the labels have {columns} columns, so expected {-columns} to {columns - 1}."
        )
    return array[:, level].astype(np.int64)


@dataclass(frozen=True, eq=False)
class ClassItems:
    """Items sorted by class.

    Attributes:
        items: (M,) item indices; the items of class c are ``items[start[c] : start[c] + count[c]]``.
        start: (C,) position of each class's first item in ``items``.
        count: (C,) number of items of each class.
        label: (C,) label of each class.
        left_out: number of items without a label.
        dropped: number of items in classes that are too small.
    """

    items: np.ndarray
    start: np.ndarray
    count: np.ndarray
    label: np.ndarray
    left_out: int
    dropped: int = 0

    @classmethod
    def from_labels(
        cls, labels: np.ndarray, *, k: int = 1, short: Short = "repeat", what: str = "classes"
    ) -> "ClassItems":
        """Sort items by class.

        Args:
            labels: (N,) class of every item; negative is unknown.
            k: minimum number of items of a class.
            short: rule for smaller classes: ``repeat`` keeps them, ``drop`` drops and counts them, ``refuse`` raises an
                error.
            what: word for the classes in messages.

        Raises:
            ConfigError: a class is too small and ``short`` is "refuse", or ``short`` has an unknown value.
        """
        check_choice("short", short, get_args(Short))
        known = np.flatnonzero(labels >= 0)
        items = known[np.argsort(labels[known], kind="stable")]
        label, count = np.unique(labels[items], return_counts=True)
        small = count < k
        if short == "refuse" and small.any():
            raise ConfigError(
                f"{small.sum()} of {len(count)} {what} have fewer than {k} items (label {label[small][0]} has "
                f"{count[small][0]}); choose short='repeat' or 'drop', or a smaller k."
            )
        dropped = 0
        if short == "drop":
            items = items[np.repeat(~small, count)]
            dropped, label, count = int(count[small].sum()), label[~small], count[~small]
        return cls(items, np.cumsum(count) - count, count, label, len(labels) - len(known), dropped)

    def draw(self, classes: np.ndarray, k: int, *key: int) -> np.ndarray:
        """Draw k items of each class: distinct items if the class has k, else each item at least once.

        Args:
            classes: (P,) indices of the classes in :attr:`label`.
            k: number of items per class.
            key: key of the random numbers.

        Returns:
            (P, k) item indices.
        """
        words = random_words(len(classes) * k, *key).reshape(len(classes), k)
        count = self.count[classes]
        chosen = choose(words, np.maximum(count, k))
        cycled = (below(words[:, 0], count)[:, None] + np.arange(k)) % count[:, None]
        return self.items[self.start[classes][:, None] + np.where(count[:, None] < k, cycled, chosen)]


def check_enough(classes: int, p: int) -> None:
    """Raise an error if a batch needs more classes than there are.

    Raises:
        ConfigError: there are fewer than ``p`` classes.
    """
    if classes < p:
        raise ConfigError(
            f"only {classes} classes can be sampled, but a batch needs p = {p} classes. Choose a smaller p."
        )


# -- the sampler ------------------------------------------------------------------------------------------------------

_MOST = 1 << 32


class Place(TypedDict, total=False):
    """Process index and process count, or a DistributedSampler that knows both."""

    process_index: int
    process_count: int
    sampler: torch.utils.data.Sampler[Any] | None


def _kept_arguments(init: Callable[..., None]) -> Callable[..., None]:
    """Wrap a constructor so that it stores its arguments; a trainer uses them to rebuild the sampler per process."""

    @functools.wraps(init)
    def keep(self: "BatchSampler", *args: Any, **kwargs: Any) -> None:
        if not hasattr(self, "_arguments"):
            self._arguments = args, kwargs
        init(self, *args, **kwargs)

    return keep


def _place(process_index: int = 0, process_count: int = 1, sampler: object = None) -> tuple[int, int]:
    """Return the process index and the process count, from a distributed sampler if there is one.

    Raises:
        ConfigError: both a sampler and numbers are given, or the sampler is not a DistributedSampler.
    """
    if sampler is None:
        return process_index, process_count
    index, count = getattr(sampler, "rank", None), getattr(sampler, "num_replicas", None)
    if not isinstance(index, int) or not isinstance(count, int):
        raise ConfigError(
            f"sampler is a {type(sampler).__name__}; expected a DistributedSampler, which knows this process's index. "
            "hgld's sampler itself chooses the items, by their labels."
        )
    if process_count > 1 and (process_index, process_count) != (index, count):
        raise ConfigError(
            f"process_index {process_index} of {process_count} contradicts the sampler's process {index} of {count}; "
            "pass only one of them."
        )
    return index, count


class BatchSampler(torch.utils.data.BatchSampler, ABC):
    """Base class of samplers that yield batches of item indices, for ``DataLoader(batch_sampler=...)``.

    The batch of an epoch and step is always the same, because there is no random state that advances. So the state is
    two integers, and a run may resume with another number of processes. Process r of n gets the r-th part of every
    batch; the parts in order form the batch of a single process.

    Iterating starts at the current position, ends with its epoch, and leaves the position at the next epoch. If a last
    batch has fewer items than there are processes, a process without items skips it.

    Lightning rebuilds a batch sampler for every process, with a DistributedSampler as ``sampler``. That sampler then
    replaces ``process_index`` and ``process_count``. accelerate instead gives every process whole batches, or equal
    parts if ``split_batches`` is set; leave both arguments at their defaults there.

    Args:
        batch_size: number of items per batch, over all processes.
        batches: number of batches in an epoch of the data.
        parts: number of parts of a batch that stay together (for example classes); process_count must divide it.
        seed: seed of all random choices.
        drop_last: whether to drop an incomplete last batch.
        batches_per_epoch: length of an epoch; None: ``batches``.
        place: ``process_index`` (index of this process, from 0) and ``process_count`` (number of processes); or
            ``sampler``, a DistributedSampler that knows both.

    Raises:
        ConfigError: process_count does not divide ``parts``, or a number is out of range.
    """

    _arguments: tuple[tuple[Any, ...], dict[str, Any]]

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "__init__" in cls.__dict__:
            cls.__init__ = _kept_arguments(cls.__init__)

    def __init__(
        self,
        *,
        batch_size: int,
        batches: int,
        parts: int,
        seed: int,
        drop_last: bool = False,
        batches_per_epoch: int | None = None,
        **place: Unpack[Place],
    ) -> None:
        batches = batches if batches_per_epoch is None else batches_per_epoch
        at_least(1, batches_per_epoch=batches)
        process_index, process_count = _place(**place)
        check_place(seed, process_index, process_count)
        if parts % process_count:
            fitting = ", ".join(str(n) for n in range(1, parts + 1) if parts % n == 0)
            raise ConfigError(
                f"{process_count} processes cannot share batches of {batch_size} items, because their {parts} parts "
                f"(classes or images) stay whole; run {fitting} processes, or change the batch size."
            )
        self.batch_size, self.seed, self.drop_last = batch_size, seed, drop_last
        self.process_index, self.process_count = process_index, process_count
        self._batches, self._epoch, self._step = batches, 0, 0
        self._planned: tuple[int, Any] = (-1, None)

    @property
    def sampler(self) -> "BatchSampler":  # pyright: ignore[reportIncompatibleVariableOverride]
        """Return the sampler itself, because trainers call ``batch_sampler.sampler.set_epoch``."""
        return self

    @abstractmethod
    def _whole_batch(self, epoch: int, step: int) -> np.ndarray:
        """Return (B,) int64 item indices of a batch, over all processes."""

    def _plan(self, epoch: int) -> Any:
        """Return the data that all batches of an epoch share (None: nothing); cached until the epoch changes."""
        return None

    def _plan_of(self, epoch: int) -> Any:
        if self._planned[0] != epoch:
            self._planned = (epoch, self._plan(epoch))
        return self._planned[1]

    def batch(self, epoch: int, step: int) -> np.ndarray:
        """Return this process's part of a batch.

        Args:
            epoch: number of the epoch, from 0.
            step: number of the step, from 0, below ``len(self)``.

        Returns:
            (B / process_count,) int64 item indices; a short last batch has fewer, perhaps none.

        Raises:
            ConfigError: the epoch has no such step.
        """
        return self.part(epoch, step)[1]

    def part(self, epoch: int, step: int) -> tuple[int, np.ndarray]:
        """Return the index in the whole batch at which this process's part begins, and the result of :meth:`batch`."""
        if not 0 <= step < self._batches or not 0 <= epoch < _MOST:
            raise ConfigError(
                f"there is no step {step} of epoch {epoch}; an epoch has the steps 0..{self._batches - 1}."
            )
        whole = self._whole_batch(epoch, step)
        begin, end = (len(whole) * r // self.process_count for r in (self.process_index, self.process_index + 1))
        return begin, whole[begin:end].copy()  # a copy, so that callers cannot change the order of the epoch

    def __len__(self) -> int:
        """Return the number of batches per epoch, the same on every process."""
        return self._batches

    def __iter__(self) -> Iterator[list[int]]:
        while True:
            items = _Items(self.batch(self._epoch, self._step).tolist())
            self._step += 1
            ended = self._step == self._batches
            if ended:
                self._epoch, self._step = self._epoch + 1, 0
            if items:
                yield items
            if ended:
                return

    def set_epoch(self, epoch: int) -> None:
        """Go to the beginning of an epoch; the current epoch keeps its position, so that a resumed run continues."""
        if epoch != self._epoch:
            self.load_state_dict({"epoch": epoch, "step": 0})

    def state_dict(self) -> dict[str, int]:
        """Return the position: epoch and step of the next batch."""
        return {"epoch": self._epoch, "step": self._step}

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        """Go to a position.

        Raises:
            ConfigError: the epoch has no such step, because the state comes from another configuration.
        """
        epoch, step = state["epoch"], state["step"]
        if not 0 <= step < self._batches or not 0 <= epoch < _MOST:
            raise ConfigError(
                f"state: step {step} of epoch {epoch}; an epoch has the steps 0..{self._batches - 1} here. The state "
                "comes from different data or a different batch size."
            )
        self._epoch, self._step = epoch, step


class _Items(list[int]):
    """Item indices of a batch; using a batch as the index of one item raises an error with the fix."""

    def __index__(self) -> int:
        raise ConfigError(
            "the sampler yields batches of items: pass it to the loader as DataLoader(dataset, batch_sampler=sampler), "
            "not as sampler=."
        )


# Lightning reads these attributes to rebuild a batch sampler. It sets them only on samplers that are made in a
# train_dataloader hook; this loop defines them for all samplers.
for _name, _read in {
    "__pl_saved_args": lambda sampler: sampler._arguments[0],
    "__pl_saved_kwargs": lambda sampler: dict(sampler._arguments[1]),
    "__pl_saved_arg_names": lambda _: (),
    "__pl_saved_default_kwargs": lambda _: {"sampler": None},
}.items():
    setattr(BatchSampler, _name, property(_read))


def check_place(seed: int, process_index: int, process_count: int) -> None:
    """Raise an error if the seed is out of range or the process index does not exist.

    Raises:
        ConfigError: the seed or the process index is out of range.
    """
    if not 0 <= seed < 1 << 64:
        raise ConfigError(f"seed is {seed}; expected 0 to 2**64 - 1.")
    if not 0 <= process_index < process_count:
        raise ConfigError(
            f"process_index is {process_index} of process_count {process_count}; expected 0 to {process_count - 1}."
        )


# -- samplers of single items ------------------------------------------------------------------------------------------


class EpochSampler(BatchSampler):
    """Sampler of every item once per epoch, in random or dataset order, to train a classifier or to embed.

    Without ``drop_last`` the last batch may be short, and its parts may differ by one item between processes. If the
    last batch has fewer items than there are processes, some processes get no item. Iterating then yields one batch
    less on these processes; :meth:`batch` and :class:`hgld.data.loader.Loader` return an empty batch.

    Args:
        num_items: number of items.
        batch_size: number of items per batch, over all processes.
        shuffle: whether every epoch has its own random order.
        seed: seed of the orders.
        drop_last: whether to drop the items that do not fill a last batch.
        place: ``process_index`` (index of this process, from 0) and ``process_count`` (number of processes, which must
            divide batch_size); or ``sampler``, a DistributedSampler that knows both.

    Raises:
        ConfigError: no batch can be made, or process_count does not divide batch_size.
    """

    def __init__(
        self,
        num_items: int,
        batch_size: int,
        *,
        shuffle: bool = True,
        seed: int = 0,
        drop_last: bool = False,
        **place: Unpack[Place],
    ) -> None:
        at_least(1, batch_size=batch_size)
        self.num_items, self.shuffle = num_items, shuffle
        batches = num_items // batch_size if drop_last else -(-num_items // batch_size)
        if not batches:
            raise ConfigError(f"{num_items} items do not fill a batch of {batch_size}; choose a smaller batch size.")
        super().__init__(
            batch_size=batch_size,
            batches=batches,
            parts=batch_size,
            seed=seed,
            drop_last=drop_last,
            **place,
        )

    def _whole_batch(self, epoch: int, step: int) -> np.ndarray:
        begin, end = step * self.batch_size, min((step + 1) * self.batch_size, self.num_items)
        return self._plan_of(epoch)[begin:end] if self.shuffle else np.arange(begin, end)

    def _plan(self, epoch: int) -> np.ndarray:
        return shuffled(self.num_items, self.seed, epoch)


class RepeatedAugmentation(BatchSampler):
    """Sampler of batches of batch_size / repeats images, each image ``repeats`` times in a row.

    Every image is in one batch per epoch. Its index serves as the instance id, so that a loss recognises the views of
    one image. The last batch is filled with images from the epoch's beginning.

    Args:
        num_items: number of images.
        batch_size: number of views per batch, over all processes.
        repeats: number of views of an image in its batch.
        seed: seed of all random choices.
        place: ``process_index`` (index of this process, from 0) and ``process_count`` (number of processes, which must
            divide batch_size / repeats, because views of an image stay together); or ``sampler``, a DistributedSampler
            that knows both.

    Raises:
        ConfigError: batch_size is not a multiple of repeats, or there are fewer images than a batch needs.

    Source: Berman et al., "MultiGrain: a unified image embedding for classes and instances", 2019, section 4.1.
    """

    def __init__(
        self,
        num_items: int,
        batch_size: int,
        repeats: int = 3,
        *,
        seed: int = 0,
        **place: Unpack[Place],
    ) -> None:
        at_least(1, batch_size=batch_size, repeats=repeats)
        if batch_size % repeats:
            below, above = batch_size // repeats * repeats, -(-batch_size // repeats) * repeats
            fitting = f"{below} or {above}" if below else str(above)
            raise ConfigError(f"batch_size {batch_size} is not a multiple of {repeats} repeats; choose {fitting}.")
        self.repeats, self.num_items = repeats, num_items
        self._images = batch_size // repeats
        if num_items < self._images:
            raise ConfigError(
                f"there are {num_items} images, but a batch needs {self._images} images. Choose a smaller batch size."
            )
        super().__init__(
            batch_size=batch_size,
            batches=-(-num_items // self._images),
            parts=self._images,
            seed=seed,
            **place,
        )

    def _whole_batch(self, epoch: int, step: int) -> np.ndarray:
        places = np.arange(step * self._images, (step + 1) * self._images) % self.num_items
        return np.repeat(self._plan_of(epoch)[places], self.repeats)

    def _plan(self, epoch: int) -> np.ndarray:
        return shuffled(self.num_items, self.seed, epoch)


class ClassBalanced(BatchSampler):
    """Sampler that draws each item of a batch independently: first a class, uniformly, then one of its items.

    Args:
        labels: (N,) or (N, L) integers or names, or a dataset, in any form that :func:`hgld.labels.class_numbers`
            reads.
        batch_size: number of items per batch, over all processes.
        level: level whose classes are balanced: its column; or, if the labels are a table or a dataset, its name.
        batches_per_epoch: length of an epoch; None: the number of labelled items divided by batch_size.
        seed: seed of all random choices.
        place: ``process_index`` (index of this process, from 0) and ``process_count`` (number of processes, which must
            divide batch_size); or ``sampler``, a DistributedSampler that knows both.

    Attributes:
        left_out: number of items without a label, which are in no batch.

    Raises:
        ConfigError: there is no labelled item.

    Source: Kang et al., "Decoupling representation and classifier for long-tailed recognition", ICLR 2020, eq. 1.
    """

    def __init__(
        self,
        labels: Labels,
        batch_size: int,
        *,
        level: int | str = 0,
        batches_per_epoch: int | None = None,
        seed: int = 0,
        **place: Unpack[Place],
    ) -> None:
        at_least(1, batch_size=batch_size)
        self._classes = ClassItems.from_labels(label_column(labels, level))
        self.left_out = self._classes.left_out
        check_enough(len(self._classes.count), 1)
        self._until = np.arange(1, len(self._classes.count) + 1) / len(self._classes.count)
        super().__init__(
            batch_size=batch_size,
            batches=max(1, len(self._classes.items) // batch_size),
            parts=batch_size,
            seed=seed,
            batches_per_epoch=batches_per_epoch,
            **place,
        )

    def _whole_batch(self, epoch: int, step: int) -> np.ndarray:
        words = random_words(2 * self.batch_size, self.seed, epoch, step).reshape(2, -1)
        fraction = (words[0] >> np.uint64(64 - _FRACTION_BITS)).astype(np.float64) / (1 << _FRACTION_BITS)
        classes = np.searchsorted(self._until[:-1], fraction, side="right")
        return self._classes.items[self._classes.start[classes] + below(words[1], self._classes.count[classes])]
