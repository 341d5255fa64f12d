"""The base class of all samplers, and samplers of single items.

A batch is a function of (seed, epoch, step), and processes take equal parts of it.
"""

import functools
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypedDict, Unpack, get_args

import numpy as np
import torch.utils.data

from hgld.errors import ConfigError, InputError, check_choice
from hgld.labels import Labels, class_numbers

# -- random numbers ---------------------------------------------------------------------------------------------------
#
# Random numbers depend only on their key, on every platform and under every version of numpy. numpy keeps the raw words
# of a bit generator stable, but not its distributions and shuffles (NEP 19), so this module uses only the words.

_HALF = np.uint64(32)
_FRACTION_BITS = 53


def word_source(*key: int) -> np.random.Philox:
    """Return a source of uint64 words for a key of integers, all below 2**32 except the first."""
    return np.random.Philox(np.random.SeedSequence(key[0], spawn_key=key[1:]))


def random_words(count: int, *key: int) -> np.ndarray:
    """Return (count,) uint64 words of Philox, keyed as in :func:`word_source`."""
    return word_source(*key).random_raw(count)


def shuffled(count: int, *key: int) -> np.ndarray:
    """Return a random order of ``range(count)``: (count,) int64."""
    return np.argsort(random_words(count, *key), kind="stable")


def below(words: np.ndarray, limits: np.ndarray | int) -> np.ndarray:
    """Turn words into int64 numbers in [0, limit), uniform to within 2**-32; limits are below 2**32."""
    return (((words >> _HALF) * np.asarray(limits, dtype=np.uint64)) >> _HALF).astype(np.int64)


def choose(words: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """Draw distinct numbers of a range for each row; all sets of numbers are equally likely.

    Args:
        words: (R, k) random words.
        sizes: (R,) sizes of the ranges, at least k.

    Returns:
        (R, k) int64 in [0, size).

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
        level: column, or, with a table or a dataset, name.

    Returns:
        (N,) int64, -1 if unknown.

    Raises:
        InputError: the labels are no such table.
        ConfigError: there is no such level.
    """
    (array,), levels = class_numbers(labels)
    if array.ndim not in (1, 2) or not np.issubdtype(array.dtype, np.integer):
        raise InputError(f"labels of shape {array.shape} and type {array.dtype}; expected integers (N,) or (N, L).")
    array = array.reshape(len(array), -1)
    if isinstance(level, str):
        if levels is None:
            raise ConfigError(
                f"level {level!r} of labels without names; give its number, or a table or dataset as labels."
            )
        if level not in levels:
            raise ConfigError(f"level {level!r} is unknown; the levels are {', '.join(levels)}.")
        level = levels.index(level)
    if not -array.shape[1] <= level < array.shape[1]:
        raise ConfigError(f"level {level} of labels with {array.shape[1]} columns.")
    return array[:, level].astype(np.int64)


@dataclass(frozen=True, eq=False)
class ClassItems:
    """Items sorted by class.

    Attributes:
        items: (M,) item numbers; those of class c are ``items[start[c] : start[c] + count[c]]``.
        start: (C,) first place of each class.
        count: (C,) number of items of each class.
        label: (C,) label of each class.
        left_out: number of items without a label.
        dropped: number of items of classes that are too small.
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
            k: number of items that a class needs.
            short: rule for smaller classes: keep them, drop and count them, or raise an error.
            what: name of the classes in messages.

        Raises:
            ConfigError: a class is too small and ``short`` is "refuse", or ``short`` is none of the three.
        """
        check_choice("short", short, get_args(Short))
        known = np.flatnonzero(labels >= 0)
        items = known[np.argsort(labels[known], kind="stable")]
        label, count = np.unique(labels[items], return_counts=True)
        small = count < k
        if short == "refuse" and small.any():
            raise ConfigError(
                f"{small.sum()} of {len(count)} {what} have fewer than {k} items (label {label[small][0]} has "
                f"{count[small][0]}); take short='repeat' or 'drop', or a smaller k."
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
            k: items per class.
            key: key of the random numbers.

        Returns:
            (P, k) item numbers.
        """
        words = random_words(len(classes) * k, *key).reshape(len(classes), k)
        count = self.count[classes]
        chosen = choose(words, np.maximum(count, k))
        cycled = (below(words[:, 0], count)[:, None] + np.arange(k)) % count[:, None]
        return self.items[self.start[classes][:, None] + np.where(count[:, None] < k, cycled, chosen)]


def check_enough(classes: int, p: int) -> None:
    """Raise an error for batches of more classes than there are.

    Raises:
        ConfigError: fewer than ``p`` classes.
    """
    if classes < p:
        raise ConfigError(f"{classes} classes can be sampled; batches of {p} need as many. Take a smaller p.")


# -- the sampler ------------------------------------------------------------------------------------------------------

_MOST = 1 << 32


class Place(TypedDict, total=False):
    """Place among processes: number of this process and count of all, or a DistributedSampler that knows both."""

    process_index: int
    process_count: int
    sampler: torch.utils.data.Sampler[Any] | None


def _kept_arguments(init: Callable[..., None]) -> Callable[..., None]:
    """Wrap a constructor so that it keeps its arguments, from which a trainer makes the sampler for another process."""

    @functools.wraps(init)
    def keep(self: "BatchSampler", *args: Any, **kwargs: Any) -> None:
        if not hasattr(self, "_arguments"):
            self._arguments = args, kwargs
        init(self, *args, **kwargs)

    return keep


def _place(process_index: int = 0, process_count: int = 1, sampler: object = None) -> tuple[int, int]:
    """Return the process's number and the count of processes, from a distributed sampler if one is given.

    Raises:
        ConfigError: other numbers are given too, or the sampler knows none.
    """
    if sampler is None:
        return process_index, process_count
    index, count = getattr(sampler, "rank", None), getattr(sampler, "num_replicas", None)
    if not isinstance(index, int) or not isinstance(count, int):
        raise ConfigError(
            f"sampler is a {type(sampler).__name__}; expected a DistributedSampler, which tells this process's place. "
            "The labels decide which items come."
        )
    if process_count > 1 and (process_index, process_count) != (index, count):
        raise ConfigError(
            f"process_index {process_index} of {process_count}, and a sampler of process {index} of {count}; give one."
        )
    return index, count


class BatchSampler(torch.utils.data.BatchSampler, ABC):
    """Batches of item numbers; a ``batch_sampler`` of torch's DataLoader.

    The batch of an epoch and step is always the same, because no random stream is advanced. So two integers are the
    whole state, and a run may resume with another number of processes. Process r of n gets the r-th part of every
    batch, and all parts in order are the batch of a single process.

    Iterating starts at the current position, ends with its epoch, and leaves the position at the next epoch. If a last
    batch has fewer items than there are processes, a process without items skips it.

    Lightning makes a batch sampler again for every process, with a DistributedSampler as ``sampler``. That sampler then
    replaces ``process_index`` and ``process_count``. accelerate deals out whole batches instead, or equal parts with
    ``split_batches``; with it, leave both arguments at their defaults.

    Args:
        batch_size: items of a batch, of all processes together.
        batches: batches that the data makes for an epoch.
        parts: pieces of a batch that stay together (classes, say); process_count must divide their number.
        seed: seed of all random choices.
        drop_last: whether to leave out incomplete batches.
        batches_per_epoch: length of an epoch; None: ``batches``.
        place: ``process_index`` and ``process_count`` (number of this process, from 0, and of all), or a
            DistributedSampler as ``sampler``, which tells the two.

    Raises:
        ConfigError: the parts cannot be dealt out to the processes, or a number is out of its range.
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
                f"{process_count} processes cannot share batches of {batch_size} items in {parts} parts that stay "
                f"together; run {fitting} processes, or change the batch."
            )
        self.batch_size, self.seed, self.drop_last = batch_size, seed, drop_last
        self.process_index, self.process_count = process_index, process_count
        self._batches, self._epoch, self._step = batches, 0, 0
        self._planned: tuple[int, Any] = (-1, None)

    @property
    def sampler(self) -> "BatchSampler":  # pyright: ignore[reportIncompatibleVariableOverride]
        """The sampler itself, because trainers call ``batch_sampler.sampler.set_epoch``."""
        return self

    @abstractmethod
    def _whole_batch(self, epoch: int, step: int) -> np.ndarray:
        """Return (B,) int64 item numbers of a batch, of all processes."""

    def _plan(self, epoch: int) -> Any:
        """Return the data that all batches of an epoch share; it is kept until another epoch is requested."""
        raise NotImplementedError

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
            (B / process_count,) int64 item numbers; a short last batch has fewer, maybe none.

        Raises:
            ConfigError: there is no such step.
        """
        return self.part(epoch, step)[1]

    def part(self, epoch: int, step: int) -> tuple[int, np.ndarray]:
        """Return the index in the whole batch at which this process's part begins, and the result of :meth:`batch`."""
        if not 0 <= step < self._batches or not 0 <= epoch < _MOST:
            raise ConfigError(f"step {step} of epoch {epoch}; an epoch has the steps 0..{self._batches - 1}.")
        whole = self._whole_batch(epoch, step)
        begin, end = (len(whole) * r // self.process_count for r in (self.process_index, self.process_index + 1))
        return begin, whole[begin:end].copy()  # a copy, so that callers cannot change the order of the epoch

    def __len__(self) -> int:
        """Batches of an epoch, the same on every process."""
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
        """Return the position: epoch, and step within it of the next batch."""
        return {"epoch": self._epoch, "step": self._step}

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        """Go to a position.

        Raises:
            ConfigError: there is no such step: the state comes from another configuration.
        """
        epoch, step = state["epoch"], state["step"]
        if not 0 <= step < self._batches or not 0 <= epoch < _MOST:
            raise ConfigError(
                f"state: step {step} of epoch {epoch}; an epoch has the steps 0..{self._batches - 1} here. The state "
                "comes from other data or another batch size."
            )
        self._epoch, self._step = epoch, step


class _Items(list[int]):
    """Item numbers of a batch; using a batch as the number of one item raises an error that names the fix."""

    def __index__(self) -> int:
        raise ConfigError(
            "the sampler gives batches of items: hand it to the loader as DataLoader(dataset, batch_sampler=sampler), "
            "not as sampler=."
        )


# Lightning reads these attributes to make a batch sampler again. It sets them only on samplers that are made in a
# train_dataloader hook; this loop gives them to all samplers.
for _name, _read in {
    "__pl_saved_args": lambda sampler: sampler._arguments[0],
    "__pl_saved_kwargs": lambda sampler: dict(sampler._arguments[1]),
    "__pl_saved_arg_names": lambda _: (),
    "__pl_saved_default_kwargs": lambda _: {"sampler": None},
}.items():
    setattr(BatchSampler, _name, property(_read))


def check_place(seed: int, process_index: int, process_count: int) -> None:
    """Raise an error for a seed out of range or a process index that does not exist.

    Raises:
        ConfigError: the message names the number.
    """
    if not 0 <= seed < 1 << 64:
        raise ConfigError(f"seed is {seed}; expected 0 to 2**64 - 1.")
    if not 0 <= process_index < process_count:
        raise ConfigError(
            f"process_index is {process_index} of process_count {process_count}; expected 0 to {process_count - 1}."
        )


def at_least(least: int, **numbers: int) -> None:
    """Raise an error for numbers below ``least``.

    Raises:
        ConfigError: the message names the first of them.
    """
    for name, number in numbers.items():
        if number < least:
            raise ConfigError(f"{name} is {number}; expected at least {least}.")


# -- samplers of single items ------------------------------------------------------------------------------------------


class EpochSampler(BatchSampler):
    """Every item once per epoch, in random order or in the dataset's order; for training a classifier, or embedding.

    Without ``drop_last`` the last batch may be short, and its parts may differ by one item between processes. If it has
    fewer items than there are processes, some processes get no item: iterating gives them one batch less, :meth:`batch`
    and :class:`hgld.data.loader.Loader` an empty one.

    Args:
        num_items: number of items.
        batch_size: items of a batch, of all processes together.
        shuffle: whether every epoch has a random order of its own.
        seed: seed of the orders.
        drop_last: whether to leave out the items that do not fill a last batch.
        place: ``process_index`` and ``process_count`` (number of this process, from 0, and of all), or a
            DistributedSampler as ``sampler``, which tells the two. Their number has to divide batch_size.

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
            raise ConfigError(f"{num_items} items make no batch of {batch_size}; take smaller batches.")
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
    """Batches of batch_size / repeats images, each image ``repeats`` times in a row.

    Every image comes in one batch per epoch. Its number is the instance id, by which a loss knows the views of one
    image. The last batch is filled with images from the epoch's beginning.

    Args:
        num_items: number of images.
        batch_size: entries of a batch, of all processes together.
        repeats: number of views of an image in its batch.
        seed: seed of all random choices.
        place: ``process_index`` and ``process_count`` (number of this process, from 0, and of all), or a
            DistributedSampler as ``sampler``, which tells the two. Their number has to divide batch_size / repeats:
            views of an image stay together.

    Raises:
        ConfigError: batch_size is not a multiple of repeats, or there are fewer images than a batch has.

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
            raise ConfigError(f"batch_size {batch_size} is not a multiple of {repeats} repeats; take {fitting}.")
        self.repeats, self.num_items = repeats, num_items
        self._images = batch_size // repeats
        if num_items < self._images:
            raise ConfigError(f"{num_items} images; a batch needs {self._images} different ones. Take smaller batches.")
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
    """Batches of independent draws: first a class, uniformly, then one of its items.

    Args:
        labels: (N,) or (N, L) integers or names, or a dataset: what :func:`hgld.labels.class_numbers` reads.
        batch_size: items of a batch, of all processes together.
        level: the level whose classes are balanced: column, or, with a table or a dataset, name.
        batches_per_epoch: length of an epoch; as many as fit the labelled items if None.
        seed: seed of all random choices.
        place: ``process_index`` and ``process_count`` (number of this process, from 0, and of all), or a
            DistributedSampler as ``sampler``, which tells the two. Their number has to divide batch_size.

    Attributes:
        left_out: items without a label, which are in no batch.

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
