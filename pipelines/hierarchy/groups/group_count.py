"""The number of groups by stability: where groupings of resamples agree most beyond those of structureless rows.

For every number of groups tried, two resamples of four fifths of the names are grouped by Ward's linkage, and the
adjusted Rand index over the names in both says how far the two groupings agree. Agreement alone is no measure of a
number: many small groups come back by themselves. So the same is done with rows drawn from one normal distribution of
the same mean and covariance, which has no groups, and the difference of the two is the score (Tibshirani, Walther and
Hastie, "Estimating the number of clusters in a data set via the gap statistic", JRSS B 63, 2001, compare to the same
reference; Ben-Hur, Elisseeff and Guyon, "A stability based method for discovering structure in clustered data", 2002,
take the agreement of resamples).

Numbers run from half the root of the names to half the names. The data say a number where the score has a peak that
stands out from a valley on either side by more than twice its standard error; of several the highest. Else they do not.

Of more than 1,000 names the points are 1,000 small parts of them, each with the weight of its names.
"""

from dataclasses import dataclass

import numpy as np
from sklearn.metrics import adjusted_rand_score
from threadpoolctl import threadpool_limits

from ...stage import Progress, silent
from .kmeans import leading_axes
from .ward_tree import ward_cuts

RESAMPLES = 8
SHARE = 0.8
STEPS = 24
LEAST_NAMES, LEAST_STEPS = 12, 3
ERRORS = 2.0
WINDOW = 2  # steps on either side within which a peak is the highest
MOST = 0.6  # of a resample's points: beyond, most groups are single points


@dataclass(frozen=True)
class StabilityCurve:
    """The stability of every number of groups tried, ascending.

    Attributes:
        k: numbers of groups.
        agreement: mean adjusted Rand index of the groupings of two resamples.
        by_chance: the same of rows without groups.
        error: standard error of the difference of the two.
        best: the number that the data say; None where they do not.
    """

    k: tuple[int, ...]
    agreement: tuple[float, ...]
    by_chance: tuple[float, ...]
    error: tuple[float, ...]
    best: int | None

    @property
    def score(self) -> tuple[float, ...]:
        """Agreement beyond chance."""
        return tuple(a - b for a, b in zip(self.agreement, self.by_chance, strict=True))


NOTHING_TO_CHOOSE = StabilityCurve((), (), (), (), None)


def stability_curve(
    points: np.ndarray, weights: np.ndarray, *, names: int, seed: int, progress: Progress = silent
) -> StabilityCurve:
    """Try numbers of groups of weighted points.

    Args:
        points: (n, D) float rows, at most some 1,000.
        weights: (n,) positive: names that each point stands for.
        names: the number of names, whose root gives the range.
        seed: of the resamples and the rows without groups.
        progress: told after every resample.

    Returns:
        the curve; an empty one for fewer than 12 points.
    """
    steps = numbers_to_try(len(points), names)
    if len(steps) < LEAST_STEPS:
        return NOTHING_TO_CHOOSE
    random = np.random.default_rng(seed)
    low = leading_axes(points)
    low = low - low.mean(axis=0)
    _, spread, axes = np.linalg.svd(low * np.sqrt(weights / weights.mean())[:, None], full_matrices=False)
    agreement, by_chance = np.empty((RESAMPLES, len(steps))), np.empty((RESAMPLES, len(steps)))
    size = round(SHARE * len(points))
    with threadpool_limits(limits=1):
        for done in range(RESAMPLES):
            progress("try numbers of groups", done, RESAMPLES)
            drawn = [np.sort(random.permutation(len(points))[:size]) for _ in range(2)]
            without = random.normal(size=(len(points), len(spread))) * (spread / len(points) ** 0.5) @ axes
            agreement[done] = _agreement(low, weights, drawn, steps)
            by_chance[done] = _agreement(without, weights, drawn, steps)
    progress("try numbers of groups", RESAMPLES, RESAMPLES)
    score = agreement - by_chance
    error = score.std(axis=0, ddof=1) / RESAMPLES**0.5
    return StabilityCurve(
        tuple(steps),
        tuple(agreement.mean(axis=0).tolist()),
        tuple(by_chance.mean(axis=0).tolist()),
        tuple(error.tolist()),
        _optimum(steps, score),
    )


def numbers_to_try(points: int, names: int) -> list[int]:
    """Return the numbers of groups to try, in steps of equal ratio; empty where there is nothing to choose."""
    least, most = max(2, round(names**0.5 / 2)), round(MOST * SHARE * points)
    if points < LEAST_NAMES or most <= least:
        return []
    return sorted({round(k) for k in np.geomspace(least, most, STEPS)})


def _agreement(rows: np.ndarray, weights: np.ndarray, drawn: list[np.ndarray], steps: list[int]) -> list[float]:
    first, second = (ward_cuts(rows[places], weights[places], steps) for places in drawn)
    _, here, there = np.intersect1d(drawn[0], drawn[1], return_indices=True)
    return [adjusted_rand_score(first[here, step], second[there, step]) for step in range(len(steps))]


def _optimum(steps: list[int], scores: np.ndarray) -> int | None:
    """Return the number of the highest peak that stands out from a valley on either side; None if none does.

    Args:
        steps: the numbers tried.
        scores: (R, len(steps)) scores of every pair of resamples.
    """
    mean = scores.mean(axis=0)
    smooth = np.convolve(np.pad(mean, 1, mode="edge"), (0.25, 0.5, 0.25), mode="valid")
    peaks = [i for i in range(1, len(steps) - 1) if smooth[i] == smooth[max(0, i - WINDOW) : i + WINDOW + 1].max()]
    for peak in sorted(peaks, key=lambda i: (-smooth[i], i)):
        valleys = (int(smooth[:peak].argmin()), peak + 1 + int(smooth[peak + 1 :].argmin()))
        if all(_stands_out(scores[:, peak] - scores[:, valley]) for valley in valleys):
            return steps[max(range(peak - 1, peak + 2), key=lambda i: mean[i])]
    return None


def _stands_out(differences: np.ndarray) -> bool:
    """Tell whether paired differences of the resamples are above 0 by more than twice their standard error."""
    return bool(differences.mean() > ERRORS * differences.std(ddof=1) / len(differences) ** 0.5)
