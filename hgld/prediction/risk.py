"""Risk of answers: expected calibration error, and the share of wrong answers over the share that is answered."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from hgld.errors import quoted

BINS = 15
_POINTS = 101  # of a curve that is kept


@dataclass(frozen=True)
class LevelRisk:
    """The risk of answering at a level.

    Attributes:
        level: its name.
        queries: number of them.
        accuracy: share of the classes voted for that are right.
        confidence: their mean confidence.
        ece: expected calibration error (:func:`calibration_error`).
        area: mean risk over the coverages: the area under the curve.
        coverage: share of the queries that are answered, ascending.
        risk: share of wrong ones among these, at each coverage.
        bound: least confidence of an answer, at each coverage.
    """

    level: str
    queries: int
    accuracy: float
    confidence: float
    ece: float
    area: float
    coverage: tuple[float, ...]
    risk: tuple[float, ...]
    bound: tuple[float, ...]

    @classmethod
    def parse(cls, found: Mapping[str, Any], text: Callable[[Any], str], number: Callable[[Any], float]) -> "LevelRisk":
        """Read the risk of a file's object.

        Args:
            found: the object.
            text: reads a bounded text.
            number: reads a finite number.

        Raises:
            KeyError, TypeError, ValueError: it is not what :func:`level_risk` gives.
        """
        curves = [found[name] for name in ("coverage", "risk", "bound")]
        if not all(isinstance(curve, list) and len(curve) <= _POINTS for curve in curves):
            raise TypeError(f"a curve is no list of at most {_POINTS} numbers")
        coverage, risk, bound = (tuple(number(value) for value in curve) for curve in curves)
        accuracy, confidence, ece, area = (number(found[name]) for name in ("accuracy", "confidence", "ece", "area"))
        if not len(coverage) == len(risk) == len(bound) or not all(
            0 <= value <= 1 for value in (accuracy, confidence, ece, area, *coverage, *risk, *bound)
        ):
            raise ValueError("a curve's parts differ in length, or a share is outside 0..1")
        if type(found["queries"]) is not int or found["queries"] < 0:
            raise ValueError(f"queries is {quoted(found['queries'])}")
        shares = accuracy, confidence, ece, area
        return cls(text(found["level"]), found["queries"], *shares, coverage, risk, bound)


def level_risk(level: str, confidences: np.ndarray, right: np.ndarray, weights: np.ndarray) -> LevelRisk:
    """Measure the risk of answering at a level.

    Args:
        level: its name.
        confidences: (Q,) in [0, 1].
        right: (Q,) bool.
        weights: (Q,) of the queries.
    """
    if not len(right) or not weights.sum():
        return LevelRisk(level, 0, 0.0, 0.0, 0.0, 0.0, (), (), ())
    coverage, risk, bound = risk_coverage(confidences, right, weights)
    at = np.unique(np.searchsorted(coverage, np.linspace(0, 1, _POINTS) * (1 - 1e-12)).clip(max=len(coverage) - 1))
    shares = (
        np.average(right, weights=weights),
        np.average(confidences, weights=weights),
        calibration_error(confidences, right, weights),
        np.average(risk, weights=np.diff(coverage, prepend=0.0)),
    )
    accuracy, confidence, ece, area = (round(float(value), 6) for value in shares)
    kept = (tuple(curve[at].round(6).clip(0, 1).tolist()) for curve in (coverage, risk, bound))
    return LevelRisk(level, len(right), accuracy, confidence, ece, area, *kept)


def risk_coverage(
    confidences: np.ndarray, right: np.ndarray, weights: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the risk-coverage curve: one point for every confidence as the bound, the highest first.

    Returns:
        (P,) coverages, ascending, (P,) risks, (P,) bounds; queries of one confidence are answered together.
    """
    order = np.argsort(-confidences, kind="stable")
    weight, wrong = weights[order], weights[order] * ~right[order]
    last = np.flatnonzero(np.diff(confidences[order], append=-1.0))
    answered = np.cumsum(weight)[last]
    return answered / weights.sum(), np.cumsum(wrong)[last] / np.maximum(answered, 1e-300), confidences[order][last]


def calibration_error(confidences: np.ndarray, right: np.ndarray, weights: np.ndarray | None = None) -> float:
    """Return the expected calibration error over 15 bins of equal width.

    The distance of a bin's mean confidence and its accuracy, averaged by weight.
    Guo et al., "On Calibration of Modern Neural Networks", ICML 2017, Eq. 3.

    Args:
        confidences: (Q,) in [0, 1].
        right: (Q,) bool.
        weights: (Q,) of the queries; None: all count alike.
    """
    weights = np.ones(len(right)) if weights is None else weights
    place = np.minimum((confidences * BINS).astype(int), BINS - 1)
    gaps = np.bincount(place, weights * (confidences - right), BINS)
    return float(np.abs(gaps).sum() / weights.sum())
