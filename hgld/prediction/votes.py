"""Votes of neighbours for the classes of a query, along the tree of classes."""

import itertools
from dataclasses import dataclass

import numpy as np

_ROWS = 1 << 22  # maximum number of labels that are compared at a time, to bound memory


@dataclass(frozen=True, eq=False)
class Votes:
    """The path of classes that the neighbours of each query vote for.

    Attributes:
        labels: (Q, L) class of the path at every level, finest first; -1 if unknown.
        shares: (Q, L) share of the votes in [0, 1]; a coarser level never has a smaller share than a finer level.
        nearest: (Q, L) highest score of a neighbour in the path's class at this level.
        rival: (Q, L) highest score of a neighbour of another class; the lowest of all scores if there is no such
            neighbour.
        supports: (Q, K) finest level at which each neighbour is in the path's class; L if it is in no class of the
            path.
    """

    labels: np.ndarray
    shares: np.ndarray
    nearest: np.ndarray
    rival: np.ndarray
    supports: np.ndarray


def count_votes(scores: np.ndarray, labels: np.ndarray, temperature: float) -> Votes:
    """Count the votes of the nearest neighbours.

    A neighbour of score s votes with weight exp(s / temperature). The share of a class is the weight of its neighbours
    divided by the weight of all neighbours, so neighbours of unknown class vote for nothing. The result is the path of
    a neighbour with the largest sum of shares over the levels, which is the expected number of right levels. Ties are
    broken in favour of the nearest neighbour's path, then of the path with the lowest class ids.

    Args:
        scores: (Q, K) cosine similarities, padded with -inf; every query has at least one neighbour.
        labels: (Q, K, L) integers, finest level first, -1 if unknown.
        temperature: temperature of the weights, above 0.

    Returns:
        the votes, which do not depend on the order of the neighbours.
    """
    count, num, levels = labels.shape
    rows = max(1, _ROWS // max(1, num * num * levels))
    parts = [
        _count(np.asarray(scores[begin : begin + rows], np.float64), labels[begin : begin + rows], temperature)
        for begin in range(0, max(count, 1), rows)
    ]
    return Votes(*map(np.concatenate, zip(*parts, strict=True)))


def _count(scores: np.ndarray, labels: np.ndarray, temperature: float) -> tuple[np.ndarray, ...]:
    keys = [labels[:, :, level] for level in reversed(range(labels.shape[2]))]
    order = np.lexsort((*keys, -scores), axis=1)  # a fixed order makes sums independent of the order of the neighbours
    scores = np.take_along_axis(scores, order, axis=1)
    labels = np.take_along_axis(labels, order[:, :, None], axis=1)
    real = np.isfinite(scores)
    weights = np.exp((scores - scores[:, :1]) / temperature)
    weights /= weights.sum(axis=1, keepdims=True)
    equal = (labels[:, :, None] == labels[:, None]) & (labels >= 0)[:, :, None]  # (q, K, K, L): j, i, level
    same = np.logical_or.accumulate(equal, axis=3)  # items that share a class share all coarser classes
    shares = np.einsum("qjil,qi->qjl", same, weights)
    # sums that are equal in exact arithmetic may differ by rounding
    worth = np.where(real, (shares * (labels >= 0)).sum(axis=2), -1.0).round(9)
    best, row = worth.argmax(axis=1), np.arange(len(scores))
    chosen = same[row, best] & real[:, :, None]
    lowest = np.where(real, scores, np.inf).min(axis=1, keepdims=True)[:, :, None]
    supports = np.empty(order.shape, np.int64)
    np.put_along_axis(supports, order, labels.shape[2] - chosen.sum(axis=2), axis=1)
    return (
        labels[row, best],
        np.clip(np.maximum.accumulate(shares[row, best], axis=1), 0.0, 1.0),
        np.where(chosen, scores[:, :, None], lowest).max(axis=1),
        np.where(chosen | ~real[:, :, None], lowest, scores[:, :, None]).max(axis=1),
        supports,
    )


def complete_labels(labels: np.ndarray) -> np.ndarray:
    """Return (G, L) labels with unknown coarser classes filled in from other items of the same finer class."""
    labels = labels.copy()
    for fine, coarse in itertools.combinations(range(labels.shape[1]), 2):
        classes, member = np.unique(labels[:, fine], return_inverse=True)
        told = (labels[:, fine] >= 0) & (labels[:, coarse] >= 0)
        parent = np.full(len(classes), -1)
        parent[member[told]] = labels[told, coarse]
        labels[:, coarse] = np.where(labels[:, coarse] < 0, parent[member], labels[:, coarse])
    return labels
