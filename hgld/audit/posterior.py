"""Probabilities of findings: from faults that are planted in these very data, and from decoys that are none.

Faults that are made on purpose (classes cut in halves, joined, hung elsewhere) show what the marks of a fault are like;
what is there is sound for the most. The direction that tells the two apart best is a logistic regression's; along it
both are taken for Student's t of :data:`_FREEDOM` degrees around their medians, which outliers do not move, and the
share of faults is the largest that the scores allow.
"""

import numpy as np
from scipy.stats import t as student
from sklearn.isotonic import IsotonicRegression
from sklearn.linear_model import LogisticRegression

FEWEST = 8  # findings or planted ones below which nothing is said
_FREEDOM = 15
_TAILS = np.linspace(0.1, 0.9, 17)  # of the planted faults, where their share is read
_TO_DEVIATION = 1.4826  # standard deviation of a Gaussian, in median absolute deviations


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
    return scores[: len(found)], mixture_posterior(scores[: len(found)], scores[len(found) :], most)


def mixture_posterior(found: np.ndarray, planted: np.ndarray, most: float) -> np.ndarray:
    """Return the probability that each score is a fault's: not falling in the score, 0 below the median.

    Args:
        found: (M,) scores of what is there, of faults at most a share ``most``.
        planted: (K,) scores of faults.
        most: below 0.5, for the median of ``found`` to be that of what is sound.
    """
    sound, fault = _density(found, found, 1), _density(found, planted, -1)
    share = min(most, share_of_faults(found, planted))
    likely = share * fault / (share * fault + (1 - share) * sound)
    likely[found <= np.median(found)] = 0.0
    order = np.argsort(found, kind="stable")
    likely[order] = np.maximum.accumulate(likely[order])
    return likely


def share_of_faults(found: np.ndarray, planted: np.ndarray) -> float:
    """Return the largest share of faults that the upper tails of the scores allow.

    Args:
        found: (M,) scores of what is there.
        planted: (K,) scores of faults.
    """
    bounds = np.quantile(planted, _TAILS)
    above = (found[:, None] >= bounds).sum(axis=0)
    tails = (above + 1) / (len(found) + 1)  # by Laplace's rule: one that is not seen is not ruled out
    return float(min(1.0, (tails / (planted[:, None] >= bounds).mean(axis=0)).min()))


def _density(scores: np.ndarray, sample: np.ndarray, side: int) -> np.ndarray:
    """Return the density of scores under Student's t at a sample's median, as wide as the sample is on one side of it.

    The other side is that of the clear cases, which may be far away and say nothing of those between.
    """
    middle = np.median(sample)
    beyond = side * (sample - middle)
    scale = max(_TO_DEVIATION * np.median(beyond[beyond >= 0]), 1e-6)
    return student.pdf((scores - middle) / scale, _FREEDOM) / scale + 1e-300


def decoy_posterior(found: np.ndarray, decoys: np.ndarray) -> np.ndarray:
    """Return the probability that each finding is none of the kind that the decoys are of: 1 - f_decoy / f.

    It is the local false discovery rate's complement (Efron, Journal of the American Statistical Association 2004),
    by decoys as proteomics takes them, which counts one decoy more than there are (Levitsky et al., Unbiased False
    Discovery Rate Estimation for Shotgun Proteomics, Journal of Proteome Research 2017): here above all scores, for
    without it the highest score is a certain finding wherever it happens to be no decoy's.

    Args:
        found: (M,) scores.
        decoys: (K,) scores of pairs that are no findings.
    """
    if not len(found) or not len(decoys):
        return np.full(len(found), np.nan)
    decoys = np.append(decoys, max(found.max(), decoys.max()) + 1)
    scores, is_found = np.concatenate([found, decoys]), np.arange(len(found) + len(decoys)) < len(found)
    weights = np.where(is_found, 1 / len(found), 1 / (len(decoys) - 1))  # both kinds count as equally many
    part = IsotonicRegression().fit_transform(scores, is_found.astype(float), sample_weight=weights)[: len(found)]
    return np.clip(1 - (1 - part) / np.maximum(part, 1e-9), 0.0, 1.0)
