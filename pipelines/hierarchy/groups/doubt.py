"""Uncertainty: the probability that each placement is wrong, and how many placements are wrong in all.

A placement is *wrong* if people would give the name another group than most names of its group have. In predefined
groups it is wrong if people would give the name another group. Nothing here sees such groups: a placement is described
by a few features (:func:`features`) that mean the same in any data,

* *margins*: the rank of its simplified silhouette among those of all names, by the joint evidence and by every single
  evidence;
* *words*: how many head nouns the group has, and how common the name's own is among them;
* the group's size; in predefined groups instead of it and of words, the confidence of the placement, and whether the
  name has its group's words;

and a logistic model turns them into a probability. Its coefficients are in ``doubt.yaml``, with what they were fitted
on (``benchmarks/hierarchy_doubt.py --fit``); a build reads them and never learns them.

Taxonomies differ in how often such placements are wrong, and errors come in groups. So a file of coefficients also has
how much the model's level differs between taxonomies it was not fitted on, and between the groups of one, by which
:func:`still_wrong` widens its interval.
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
from ..unit_rows import leading_axes, unit
from .clustering import silhouettes

MODEL = Path(__file__).with_name("doubt.yaml")
DOUBTFUL = 0.5  # a placement is doubtful if it is more likely wrong than right
LEAST, MOST = 0.005, 0.995  # nothing that nobody looked at is certain


class Spreads(NamedTuple):
    """Standard deviations of the level of log-odds, between taxonomies and between the groups of one taxonomy."""

    between_sets: float
    between_groups: float


@dataclass(frozen=True)
class Model:
    """A logistic model of features.

    Attributes:
        features: (mean, scale, coefficient) of every feature.
        intercept: the log-odds of a placement whose features are all at their means.
        spreads: deviations of taxonomies and of groups from the model.
    """

    features: Mapping[str, tuple[float, float, float]]
    intercept: float
    spreads: Spreads

    @staticmethod
    @cache
    def read(kind: str) -> "Model":
        """Read the model for groups that were ``found`` or ``given``, as it ships with hgld."""
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
        """Return (N,) probabilities of being wrong by the features of N placements."""
        odds = self.intercept + sum(
            weight * (found[name] - mean) / scale for name, (mean, scale, weight) in self.features.items()
        )
        return np.clip(expit(odds), LEAST, MOST)


@dataclass(frozen=True, eq=False)
class Given:
    """The predefined groups that names were put into, and how sure the placement was.

    Attributes:
        labels: the names of the G groups; empty for the group of names that fit none.
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
        rows: (N, D) unit rows by which the names were grouped; a name of which nothing is known may have a zero row.
        groups: (N,) labels 0..G-1.
        names: the N names.
        blocks: the single evidences in the rows, (N, D_b) unit rows each, zero if unknown.
        given: the groups, if names were put into predefined ones; None: groups were found.
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
    """Return the rank of every row's silhouette among those of all known rows, 0..1; .5 if nothing is known."""
    space = unit(leading_axes(np.asarray(space, dtype=np.float32))).astype(np.float32)
    known = np.linalg.norm(space, axis=1) > 0
    rank = np.full(len(groups), 0.5)
    if known.any():
        rank[known] = (rankdata(silhouettes(space, groups)[0][known].round(5)) - 0.5) / known.sum()
    return rank


# -- all placements together ----------------------------------------------------------------------------------------

_NODES = np.linspace(-3.5, 3.5, 41)  # standard deviations of the level
INTERVAL = 0.8


class Expected(NamedTuple):
    """The expected number of wrong placements, or of their items, and the ends of its 80% interval."""

    mean: float
    low: float
    high: float


def still_wrong(
    wrong: np.ndarray, spreads: Spreads, *, weights: np.ndarray | None = None, groups: np.ndarray | None = None
) -> Expected:
    """Return how many placements are wrong.

    Errors are not independent. The level of all log-odds is uncertain by as much as taxonomies differ from the model,
    and the level of each group by as much as groups do. Given the level, the number is taken as normal, with the
    variance of independent names and of the groups' levels.

    Args:
        wrong: (N,) probabilities.
        spreads: standard deviations of the level of their log-odds.
        weights: (N,) items of each name; None: names are counted.
        groups: (N,) labels 0..G-1, within which errors go together; None: each name is a group of its own.
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
