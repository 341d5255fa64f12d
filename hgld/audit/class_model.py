"""Gaussian model of classes whose means vary: scores of items that leave the item out, and evidence for sets of items.

An item is its class's mean plus noise, x ~ N(m, W), and the means are m ~ N(0, B): probabilistic linear discriminant
analysis (Ioffe, Probabilistic Linear Discriminant Analysis, ECCV 2006). In the basis that makes W the identity and B
diagonal everything is a sum over dimensions, and a class of one item has wide predictions in place of wrong ones.
"""

from dataclasses import dataclass

import numpy as np

_RIDGE = 0.05  # of W's mean eigenvalue: embeddings of few dimensions in use have a singular W
_LEAST_BETWEEN = 1e-6


@dataclass(frozen=True, eq=False)
class ClassModel:
    """Model of the classes of some items.

    Attributes:
        items: (N, D) float64 in the model's basis, where the variance within a class is 1 in every dimension.
        labels: (N,) class of each item.
        weights: (N,) weight of each item in its class, 0 to 1.
        between: (D,) variance of the classes' means.
        counts: (C,) sums of weights.
        sums: (C, D) weighted sums of items.
    """

    items: np.ndarray
    labels: np.ndarray
    weights: np.ndarray
    between: np.ndarray
    counts: np.ndarray
    sums: np.ndarray

    @classmethod
    def fit(cls, embeddings: np.ndarray, labels: np.ndarray, weights: np.ndarray | None = None) -> "ClassModel":
        """Estimate the model by moments.

        Args:
            embeddings: (N, D).
            labels: (N,) from 0.
            weights: (N,) probability that a label is right; None: 1.
        """
        own = np.ones(len(labels)) if weights is None else np.asarray(weights, np.float64)
        x = np.asarray(embeddings, np.float64)
        x = x - x.mean(axis=0)
        counts, sums = _class_sums(x, labels, own)
        means = sums / np.maximum(counts, 1e-12)[:, None]
        inner = (x - means[labels]) * np.sqrt(own)[:, None]
        present = counts > 0
        freedom = max(own.sum() - present.sum(), 1.0)
        within = inner.T @ inner / freedom
        dim = x.shape[1]
        within += np.eye(dim) * (_RIDGE * np.trace(within) / dim + 1e-12)
        scale, axes = np.linalg.eigh(within)
        whiten = axes / np.sqrt(scale)
        spread = (means[present] * counts[present, None]).T @ means[present] / counts.sum()
        excess = whiten.T @ spread @ whiten - np.eye(dim) * (present.sum() / counts.sum())  # means of few items vary too
        between, turn = np.linalg.eigh(excess)
        basis = whiten @ turn
        return cls(x @ basis, labels, own, np.maximum(between, _LEAST_BETWEEN), counts, sums @ basis)

    def scores(self, rows: np.ndarray) -> np.ndarray:
        """Return (R, C) log densities of some items in every class, each item left out of its own."""
        x, own = self.items[rows], self.labels[rows]
        mean, variance = self._predictive(self.counts, self.sums)
        precision = 1 / variance
        table = -0.5 * (
            x**2 @ precision.T
            - 2 * x @ (mean * precision).T
            + (mean**2 * precision).sum(axis=1)
            + np.log(variance).sum(axis=1)
        )
        weight = self.weights[rows]
        mean, variance = self._predictive(self.counts[own] - weight, self.sums[own] - weight[:, None] * x)
        table[np.arange(len(rows)), own] = -0.5 * ((x - mean) ** 2 / variance + np.log(variance)).sum(axis=1)
        return table

    def _predictive(self, counts: np.ndarray, sums: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return means and variances, (C, D), of a new item of classes with these counts and sums."""
        shrunk = 1 + np.maximum(counts, 0)[:, None] * self.between
        return self.between * sums / shrunk, 1 + self.between / shrunk

    def log_ratio(self, first: tuple[float, np.ndarray], second: tuple[float, np.ndarray]) -> float:
        """Return the log Bayes factor of one class against two, for two sets of items given as (count, (D,) sum)."""
        both = first[0] + second[0], first[1] + second[1]
        return float(self._evidence(*both) - self._evidence(*first) - self._evidence(*second))

    def _evidence(self, count: float, total: np.ndarray) -> float:
        """Return the log evidence of a set of items, less what every division of the items shares."""
        return float(0.5 * (self.between * total**2 / (1 + count * self.between) - np.log1p(count * self.between)).sum())

    def class_means(self) -> np.ndarray:
        """Return (C, D) expected means of the classes."""
        return self.between * self.sums / (1 + self.counts[:, None] * self.between)


def _class_sums(items: np.ndarray, labels: np.ndarray, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    size = int(labels.max()) + 1
    counts = np.bincount(labels, weights=weights, minlength=size)
    sums = np.zeros((size, items.shape[1]))
    np.add.at(sums, labels, items * weights[:, None])
    return counts, sums
