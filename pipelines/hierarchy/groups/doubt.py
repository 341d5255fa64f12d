"""Uncertainty: the probability that each placement is wrong, and the number of wrong placements.

A placement is *wrong* if people would give the name another group than most names of its group. In predefined groups, a
placement is wrong if people would give the name another group. A logistic model predicts this probability from a few
features (:func:`features`) that mean the same in any data:

* *margins*: the rank of the placement's simplified silhouette among all names, by the joint evidence and by each
  evidence source;
* *words*: the diversity of head nouns in the group, and the frequency of the name's head noun among them;
* the group's size;
* in predefined groups, instead of words and size: the confidence of the placement, and whether the name contains its
  group's words.

``benchmarks/hierarchy_doubt.py --fit`` fits the coefficients and writes them to ``doubt.yaml``, with a description of
the data. A build only reads them.

The error rate differs between taxonomies, and errors come in groups. So ``doubt.yaml`` also states how much the model's
level differs between taxonomies, and between groups of one taxonomy. :func:`still_wrong` widens its interval by these
deviations.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import yaml
from scipy.optimize import brentq
from scipy.special import expit, logit, ndtr
from scipy.stats import rankdata
from threadpoolctl import threadpool_limits

from ..encoders.head_noun import head_noun
from ..unit_rows import leading_axes, silhouettes, unit

MODEL = Path(__file__).with_name("doubt.yaml")
DOUBTFUL = 0.5  # a placement is doubtful if it is more likely wrong than right
LEAST, MOST = 0.005, 0.995  # a placement that nobody has seen is never certain


class Spreads(NamedTuple):
    """Standard deviations of the average log-odds, between taxonomies and between the groups of one taxonomy."""

    between_sets: float
    between_groups: float


@dataclass(frozen=True)
class Model:
    """A logistic model of features.

    Attributes:
        features: mean, scale and coefficient of every feature, by name.
        intercept: log-odds of a placement with average features.
        spreads: deviations of taxonomies and of groups from the model.
    """

    features: Mapping[str, tuple[float, float, float]]
    intercept: float
    spreads: Spreads

    @staticmethod
    @cache
    def read(kind: str) -> "Model":
        """Read hgld's model: ``found`` for clustered groups, ``given`` for predefined groups."""
        return Model.of(yaml.safe_load(MODEL.read_text(encoding="utf-8"))[kind])

    @staticmethod
    def of(stated: Mapping[str, Any]) -> "Model":
        """Return the model of one section of the file."""
        spreads = Spreads(*(float(stated[name]) for name in Spreads._fields))
        features = {
            name: (float(f["mean"]), float(f["scale"]), float(f["weight"])) for name, f in stated["features"].items()
        }
        return Model(features, float(stated["intercept"]), spreads)

    def probabilities(self, found: Mapping[str, np.ndarray]) -> np.ndarray:
        """Return (N,) probabilities that placements are wrong, from their features."""
        odds = self.intercept + sum(
            weight * (found[name] - mean) / scale for name, (mean, scale, weight) in self.features.items()
        )
        return np.clip(expit(odds), LEAST, MOST)


@dataclass(frozen=True, eq=False)
class Given:
    """Predefined groups and the confidence of the placements in them.

    Attributes:
        labels: names of the G groups; the label of the group "none of these" is empty.
        confidence: (N,) confidences of the placements, 0..1.
    """

    labels: Sequence[str]
    confidence: np.ndarray


def wrong_probabilities(
    rows: np.ndarray,
    groups: np.ndarray,
    names: Sequence[str],
    *,
    blocks: Sequence[np.ndarray] = (),
    given: Given | None = None,
) -> np.ndarray:
    """Return for every placement the probability that it is wrong, (N,) float32.

    Args:
        rows: (N, D) unit rows by which the names were grouped; zero for names without evidence.
        groups: (N,) labels 0..G-1.
        names: the N names.
        blocks: for each evidence source, (N, D_b) unit rows; rows of names without this evidence are zero.
        given: predefined groups; None: the groups come from clustering.
    """
    found = features(rows, groups, names, blocks=blocks, given=given)
    return Model.read("found" if given is None else "given").probabilities(found).astype(np.float32)


def features(
    rows: np.ndarray,
    groups: np.ndarray,
    names: Sequence[str],
    *,
    blocks: Sequence[np.ndarray] = (),
    given: Given | None = None,
) -> dict[str, np.ndarray]:
    """Return the features of placements, (N,) float64 each; the arguments are those of :func:`wrong_probabilities`."""
    groups = np.asarray(groups, dtype=np.int64)
    with threadpool_limits(limits=1):
        margins = [_margin(space, groups) for space in (rows, *(blocks if len(blocks) > 1 else ()))]
    found = {"margin": margins[0], "margins": np.mean(margins, axis=0)}
    if given is not None:
        words = [frozenset(label.casefold().split()) for label in given.labels]
        own = [(words[group], name.casefold().split()) for group, name in zip(groups.tolist(), names, strict=True)]
        return found | {
            "confidence": (rankdata(given.confidence.round(5)) - 0.5) / len(names),
            "named": np.array([bool(of) and of <= set(name) for of, name in own], dtype=float),
            "fits_none": np.array([not of for of, _ in own], dtype=float),
        }
    sizes = np.bincount(groups)
    own = sizes[groups]
    heads = np.unique(np.array([head_noun(name) for name in names], dtype=object), return_inverse=True)[1].ravel()
    width = int(heads.max()) + 1
    pairs, pair, counts = np.unique(groups * width + heads, return_inverse=True, return_counts=True)
    shares = counts / sizes[pairs // width]
    entropy = np.bincount(pairs // width, -shares * np.log(shares), len(sizes))
    same = (counts[pair.ravel()] - 1) / np.maximum(own - 1, 1)
    return found | {
        "heads": entropy[groups],
        "same_head": np.where(own > 1, same, 0.0),
        "alone": (own == 1).astype(float),
        "size": np.log(own * np.count_nonzero(sizes) / len(groups)),
    }


def _margin(space: np.ndarray, groups: np.ndarray) -> np.ndarray:
    """Return the rank of every row's silhouette among all known rows, 0..1; unknown rows have .5."""
    space = unit(leading_axes(np.asarray(space, dtype=np.float32))).astype(np.float32)
    known = np.linalg.norm(space, axis=1) > 0
    rank = np.full(len(groups), 0.5)
    if known.any():
        rank[known] = (rankdata(silhouettes(space, groups)[0][known].round(5)) - 0.5) / known.sum()
    return rank


# -- all placements together ----------------------------------------------------------------------------------------

_NODES = np.linspace(-3.5, 3.5, 41)  # levels to integrate over, in standard deviations
INTERVAL = 0.8


class Expected(NamedTuple):
    """The expected number of wrong placements (or of items in them), with the ends of its 80% interval."""

    mean: float
    low: float
    high: float


def still_wrong(
    wrong: np.ndarray, spreads: Spreads, *, weights: np.ndarray | None = None, groups: np.ndarray | None = None
) -> Expected:
    """Return the expected number of wrong placements, with an interval.

    Errors are not independent. The average log-odds of a taxonomy may differ from the model, and the average of a group
    from its taxonomy. If these averages are known, the number is approximately normal. Its variance is the variance of
    independent names plus the variance of the groups' averages.

    Args:
        wrong: (N,) probabilities.
        spreads: standard deviations of the average log-odds.
        weights: (N,) items of each name; None: count names.
        groups: (N,) labels 0..G-1 of groups whose errors are correlated; None: all names are independent.
    """
    if not len(wrong):
        return Expected(0.0, 0.0, 0.0)
    counted = np.ones(len(wrong)) if weights is None else np.asarray(weights, dtype=np.float64)
    odds = logit(np.clip(np.asarray(wrong, dtype=np.float64), LEAST / 10, 1 - LEAST / 10))
    mass = np.exp(-(_NODES**2) / 2)
    mass /= mass.sum()
    means, variances = np.empty(len(_NODES)), np.empty(len(_NODES))
    for place, node in enumerate(_NODES):
        p = expit(odds + spreads.between_sets * node)
        means[place] = counted @ p
        variances[place] = (counted**2) @ (p * (1 - p))
        if groups is not None:
            variances[place] += ((spreads.between_groups * np.bincount(groups, counted * p * (1 - p))) ** 2).sum()
    deviations = np.sqrt(np.maximum(variances, 1e-12))
    ends = (means - 6 * deviations).min(), (means + 6 * deviations).max()
    low, high = (
        float(np.clip(brentq(lambda at, s=s: mass @ ndtr((at - means) / deviations) - s, *ends), 0, counted.sum()))
        for s in ((1 - INTERVAL) / 2, (1 + INTERVAL) / 2)
    )
    return Expected(float(np.clip(mass @ means, low, high)), low, high)
