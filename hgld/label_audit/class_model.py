"""Two models of classes, a Gaussian model and a regression, which score each item without training on it.

In the Gaussian model an item is its class's mean plus noise, x ~ N(m, W), and the means are m ~ N(0, B): probabilistic
linear discriminant analysis (Ioffe, Probabilistic Linear Discriminant Analysis, ECCV 2006). In the basis that makes W
the identity and B diagonal everything is a sum over dimensions. A class of one item gets wide predictions instead of
wrong predictions. The model also gives the evidence that two groups of items are one class.

The regression is a softmax over classes, fitted to all folds except the item's fold. It needs many items per class and
assumes no distribution. It is the better model for embeddings that were trained on the labels.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

_RIDGE = 0.05  # ridge as a share of W's mean eigenvalue: W is singular if embeddings use few dimensions
_LEAST_BETWEEN = 1e-6
_MOST_AXES = 64  # maximum number of principal axes; on raw pixels more axes find fewer errors
_FOLDS = 5
_REGRESSION_STEPS = 40
_SMOOTHING = 0.05  # label smoothing, because some labels are wrong
_BLOCK_NUMBERS = 20_000_000  # maximum number of values in a block's table of scores


@dataclass(frozen=True, eq=False)
class ClassModel:
    """Model of the classes of some items.

    Attributes:
        items: (N, D) float64 in the model's basis, where the variance within a class is 1 in every dimension.
        labels: (N,) class of each item.
        between: (D,) variance of the classes' means.
        counts: (C,) number of items per class.
        sums: (C, D) sum of the items' embeddings per class.
    """

    items: np.ndarray
    labels: np.ndarray
    between: np.ndarray
    counts: np.ndarray
    sums: np.ndarray

    @classmethod
    def fit(cls, embeddings: np.ndarray, labels: np.ndarray) -> "ClassModel":
        """Estimate the model by moments.

        Args:
            embeddings: (N, D'); if D' exceeds 64, they are projected on the D = 64 principal axes.
            labels: (N,) class ids from 0.
        """
        x = reduced(embeddings)
        counts = np.bincount(labels).astype(np.float64)
        sums = np.zeros((len(counts), x.shape[1]))
        np.add.at(sums, labels, x)
        means = sums / np.maximum(counts, 1)[:, None]
        inner = x - means[labels]
        num, classes, dim = len(x), (counts > 0).sum(), x.shape[1]
        within = inner.T @ inner / max(num - classes, 1)
        within += np.eye(dim) * (_RIDGE * np.trace(within) / dim + 1e-12)
        scale, axes = np.linalg.eigh(within)
        whiten = axes / np.sqrt(scale)
        spread = whiten.T @ ((means * counts[:, None]).T @ means / num) @ whiten
        excess = spread - np.eye(dim) * (classes / num)  # subtract the variance that means of few items have by chance
        between, turn = np.linalg.eigh(excess)
        basis = whiten @ turn
        return cls(x @ basis, labels, np.maximum(between, _LEAST_BETWEEN), counts, sums @ basis)

    def scores(self, rows: np.ndarray) -> np.ndarray:
        """Return (R, C) log densities of items in every class; an item is excluded from its own class."""
        x, own = self.items[rows], self.labels[rows]
        mean, variance = self._predictive(self.counts, self.sums)
        precision = 1 / variance
        table = x**2 @ precision.T - 2 * x @ (mean * precision).T
        table += (mean**2 * precision + np.log(variance)).sum(axis=1)
        mean, variance = self._predictive(self.counts[own] - 1, self.sums[own] - x)
        table[np.arange(len(rows)), own] = ((x - mean) ** 2 / variance + np.log(variance)).sum(axis=1)
        return -0.5 * table

    def _predictive(self, counts: np.ndarray, sums: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return means and variances, (C, D), of a new item, for classes with these counts and sums."""
        shrunk = 1 + counts[:, None] * self.between
        return self.between * sums / shrunk, 1 + self.between / shrunk

    def log_ratio(self, first: np.ndarray, second: np.ndarray) -> float:
        """Return the log Bayes factor of one class against two, for two sets of items given as rows of ``items``."""
        both = np.concatenate([first, second])
        return self._evidence(both) - self._evidence(first) - self._evidence(second)

    def _evidence(self, part: np.ndarray) -> float:
        """Return the log evidence of a set of items, without the terms that every partition of the items shares."""
        shrunk = 1 + len(part) * self.between
        return float(0.5 * (self.between * part.sum(axis=0) ** 2 / shrunk - np.log(shrunk)).sum())

    def class_means(self) -> np.ndarray:
        """Return (C, D) expected means of the classes."""
        return self._predictive(self.counts, self.sums)[0]


@dataclass(frozen=True, eq=False)
class ClassRegression:
    """Softmax regressions of the classes, each fitted without one fold of the items.

    Attributes:
        items: (N, D + 1) float32 embeddings, scaled to unit variance in every dimension, then a column of ones.
        folds: (N,) fold of each item; every class is spread over the folds.
        weights: (folds, C, D + 1) float32; per fold, the weights of the regression that was fitted without this fold.
    """

    items: Tensor
    folds: Tensor
    weights: Tensor

    @classmethod
    def fit(cls, embeddings: np.ndarray, labels: np.ndarray) -> "ClassRegression":
        """Fit the regressions by penalised likelihood; the time grows with N x C, the memory does not.

        Args:
            embeddings: (N, D'); if D' exceeds 64, they are projected on the 64 principal axes.
            labels: (N,) class ids from 0.
        """
        x = reduced(embeddings)
        x = np.concatenate([x / np.maximum(x.std(axis=0), 1e-12), np.ones((len(x), 1))], axis=1)
        # sort by a fixed random projection: the folds then do not depend on the order of the items
        along = x @ np.random.default_rng(0).standard_normal(x.shape[1])
        folds = np.empty(len(x), np.int64)
        folds[np.lexsort((along, labels))] = np.arange(len(x)) % _FOLDS
        items, targets = torch.from_numpy(x.astype(np.float32)), torch.from_numpy(labels)
        classes = int(labels.max()) + 1
        weights = [_regression(items[folds != fold], targets[folds != fold], classes) for fold in range(_FOLDS)]
        return cls(items, torch.from_numpy(folds), torch.stack(weights))

    def scores(self, rows: np.ndarray) -> np.ndarray:
        """Return (R, C) log probabilities of the classes of items; an item's regression was not fitted to it."""
        table = torch.empty(len(rows), self.weights.shape[1])
        for fold, weights in enumerate(self.weights):
            here = self.folds[rows] == fold
            table[here] = torch.log_softmax(self.items[rows[here.numpy()]] @ weights.T, dim=1)
        return table.numpy()


def _regression(items: Tensor, targets: Tensor, classes: int) -> Tensor:
    """Return (C, D + 1) weights of a softmax regression with a standard normal prior on all but the constant."""
    block = max(1, _BLOCK_NUMBERS // classes)
    smoothed = torch.nn.CrossEntropyLoss(reduction="sum", label_smoothing=_SMOOTHING)

    def backward(weights: Tensor) -> float:
        total = 0.0
        for some, theirs in zip(items.split(block), targets.split(block), strict=True):
            value = smoothed(some @ weights.T, theirs) / len(items)
            value.backward()
            total += value.item()
        penalty = weights[:, :-1].square().sum() / (2 * len(items))
        penalty.backward()
        return total + penalty.item()

    return minimized(backward, torch.zeros(classes, items.shape[1]), _REGRESSION_STEPS)


def minimized(backward: Callable[[Tensor], float], start: Tensor, steps: int) -> Tensor:
    """Minimise a smooth function by L-BFGS.

    Args:
        backward: function that returns the value and adds the gradient to its argument's ``grad``.
        start: values to begin with.
        steps: maximum number of steps.
    """
    values = start.clone().requires_grad_()
    optimizer = torch.optim.LBFGS([values], max_iter=steps, line_search_fn="strong_wolfe")

    def closure() -> float:
        optimizer.zero_grad()
        return backward(values)

    optimizer.step(closure)
    return values.detach()


def reduced(items: np.ndarray) -> np.ndarray:
    """Subtract the mean of the items (float64), and project them on the principal axes if they have many dimensions."""
    centred = np.asarray(items, np.float64)
    centred = centred - centred.mean(axis=0)
    if items.shape[1] <= _MOST_AXES:
        return centred
    return centred @ np.linalg.eigh(centred.T @ centred)[1][:, -_MOST_AXES:]
