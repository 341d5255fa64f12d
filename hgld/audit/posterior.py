"""Probabilities of findings from planted ones: what a fault looks like in these very data, and how often it is seen.

Faults that are made on purpose (classes cut in halves, joined, hung elsewhere) show how the marks of a fault are
distributed, f_1; what is there shows a mixture, f = (1 - s) f_0 + s f_1 with an unknown share s of faults. s is at most
the smallest quotient of their upper tails (and no more than is plausible), and the probability of a fault where the
marks are x is s f_1(x) / f(x).
"""

import numpy as np
from sklearn.isotonic import IsotonicRegression
from sklearn.linear_model import LogisticRegression

FEWEST = 8  # findings or planted ones below which nothing is said
_TAILS = np.linspace(0.1, 0.9, 17)  # of the planted ones, where the share is read


def planted_posterior(found: np.ndarray, planted: np.ndarray, most: float) -> tuple[np.ndarray, np.ndarray]:
    """Return how much each finding is like the planted faults, and the probability that it is one.

    Args:
        found: (M, F) marks of what is there.
        planted: (K, F) marks of faults made on purpose.
        most: largest plausible share of faults.

    Returns:
        (M,) scores and (M,) probabilities, of NaN where there are fewer than :data:`FEWEST` of either.
    """
    if min(len(found), len(planted)) < FEWEST:
        return np.full(len(found), np.nan), np.full(len(found), np.nan)
    marks, is_planted = np.concatenate([found, planted]), np.arange(len(found) + len(planted)) >= len(found)
    marks = (marks - marks.mean(axis=0)) / np.maximum(marks.std(axis=0), 1e-9)
    scores = LogisticRegression(class_weight="balanced", max_iter=1000).fit(marks, is_planted).decision_function(marks)
    there = scores[~is_planted]
    share = min(most, max(share_of_faults(there, scores[is_planted]), 0.5 / len(there)))
    part = _share_at(scores, is_planted)[~is_planted]
    return there, np.minimum(1.0, share * part / np.maximum(1 - part, 1e-9))


def share_of_faults(found: np.ndarray, planted: np.ndarray) -> float:
    """Return the largest share of faults that the upper tails of the scores allow.

    Args:
        found: (M,) scores.
        planted: (K,) scores of faults.
    """
    bounds = np.quantile(planted, _TAILS)
    tails = [(scores[:, None] >= bounds).mean(axis=0) for scores in (found, planted)]
    return float(min(1.0, (tails[0] / np.maximum(tails[1], 1e-12)).min()))


def _share_at(scores: np.ndarray, is_one: np.ndarray) -> np.ndarray:
    """Return (N,) share of ones at each score, both kinds counting as equally many; not falling in the score."""
    weights = np.where(is_one, 1 / max(is_one.sum(), 1), 1 / max((~is_one).sum(), 1))
    return IsotonicRegression().fit_transform(scores, is_one.astype(float), sample_weight=weights)


def decoy_posterior(found: np.ndarray, decoys: np.ndarray) -> np.ndarray:
    """Return the probability that each finding is none of the kind that the decoys are of: 1 - f_decoy / f.

    It is the local false discovery rate's complement (Efron, Journal of the American Statistical Association 2004),
    by decoys as proteomics takes them.

    Args:
        found: (M,) scores.
        decoys: (K,) scores of pairs that are no findings.
    """
    if not len(found) or not len(decoys):
        return np.full(len(found), np.nan)
    scores, is_found = np.concatenate([found, decoys]), np.arange(len(found) + len(decoys)) < len(found)
    part = _share_at(scores, is_found)[: len(found)]
    return np.clip(1 - (1 - part) / np.maximum(part, 1e-9), 0.0, 1.0)
