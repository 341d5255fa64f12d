"""The items of every class, side by side."""

from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np
from torch import Tensor

from hgld.errors import ConfigError, InputError
from hgld.samplers.randomness import below, choose, random_words

Short = Literal["repeat", "drop", "refuse"]
_SHORT = ("repeat", "drop", "refuse")


class Labelled(Protocol):
    """A dataset: labels (N, L) and the names of their levels."""

    @property
    def labels(self) -> Tensor: ...

    @property
    def levels(self) -> tuple[str, ...]: ...


Labels = Tensor | np.ndarray | Labelled


def label_column(labels: Labels, level: int | str) -> np.ndarray:
    """Labels of one level.

    Args:
        labels: (N,) or (N, L) integers, finest level first, or a dataset.
        level: column, or, with a dataset, name.

    Returns:
        (N,) int64, -1 where unknown.

    Raises:
        InputError: the labels are no such table.
        ConfigError: there is no such level.
    """
    levels = None if isinstance(labels, Tensor | np.ndarray) else labels.levels
    table = labels if isinstance(labels, Tensor | np.ndarray) else labels.labels
    array = table.cpu().numpy() if isinstance(table, Tensor) else table
    if array.ndim not in (1, 2) or not np.issubdtype(array.dtype, np.integer):
        raise InputError(f"labels of shape {array.shape} and type {array.dtype}; expected integers (N,) or (N, L).")
    array = array.reshape(len(array), -1)
    if isinstance(level, str):
        if levels is None:
            raise ConfigError(f"level {level!r} of a table without names; give the column, or the dataset as labels.")
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
        count: (C,) number of its items.
        label: (C,) its label.
        left_out: items without a label.
        dropped: items of classes that are too small.
    """

    items: np.ndarray
    start: np.ndarray
    count: np.ndarray
    label: np.ndarray
    left_out: int
    dropped: int = 0

    @classmethod
    def from_labels(cls, labels: np.ndarray, *, k: int = 1, short: Short = "repeat") -> "ClassItems":
        """Sort items by class.

        Args:
            labels: (N,) class of every item; negative is unknown.
            k: items that a class shall have.
            short: what becomes of classes with fewer: they stay, are dropped and counted, or are refused.

        Raises:
            ConfigError: a class is too small and ``short`` is "refuse", or ``short`` is none of the three.
        """
        if short not in _SHORT:
            raise ConfigError(f"short is {short!r}; expected {', '.join(_SHORT)}.")
        known = np.flatnonzero(labels >= 0)
        items = known[np.argsort(labels[known], kind="stable")]
        label, count = np.unique(labels[items], return_counts=True)
        small = count < k
        if short == "refuse" and small.any():
            raise ConfigError(
                f"{small.sum()} of {len(count)} classes have fewer than {k} items (label {label[small][0]} has "
                f"{count[small][0]}); take short='repeat' or 'drop', or a smaller k."
            )
        dropped = 0
        if short == "drop":
            items = items[np.repeat(~small, count)]
            dropped, label, count = int(count[small].sum()), label[~small], count[~small]
        return cls(items, np.cumsum(count) - count, count, label, len(labels) - len(known), dropped)

    def draw(self, classes: np.ndarray, k: int, *key: int) -> np.ndarray:
        """Random items of each class, k of them: distinct where it has as many, else each of them at least once.

        Args:
            classes: (P,) places of the classes in :attr:`label`.
            k: items a class.
            key: of the random numbers.

        Returns:
            (P, k) item numbers.
        """
        words = random_words(len(classes) * k, *key).reshape(len(classes), k)
        count = self.count[classes]
        chosen = choose(words, np.maximum(count, k))
        cycled = (below(words[:, 0], count)[:, None] + np.arange(k)) % count[:, None]
        return self.items[self.start[classes][:, None] + np.where(count[:, None] < k, cycled, chosen)]


def check_enough(classes: int, p: int) -> None:
    """Refuse batches of more classes than there are.

    Raises:
        ConfigError: fewer than ``p`` classes.
    """
    if classes < p:
        raise ConfigError(f"{classes} classes can be sampled; batches of {p} need as many. Take a smaller p.")
