"""Uncertainty: the probability that each placement is wrong, and the number of wrong placements.

A placement is *wrong* if people would give the name another group than most names of its group. In predefined groups, a
placement is wrong if people would give the name another group. A logistic model predicts this probability from a few
features (:func:`features`) that mean the same in any data:

* *margins*: the rank of the placement's simplified silhouette among all names, by the joint evidence and by each
  evidence source;
* *words*: the diversity of head nouns in the group, and the frequency of the name's head noun among them;
* the group's size;
* in predefined groups, instead of words and size: the confidence of the placement, and whether the name contains its
  group's words. Two features are of all names together: the mean confidence, and the share of nearest names that have
  the same group. Names that are more like each other than like the groups' texts are more often wrong.

``benchmarks/hierarchy_doubt.py --fit`` fits the coefficients and writes them to ``doubt.yaml``, with a description of
the data. A build only reads them.

The error rate differs between taxonomies, and errors come in groups. So ``doubt.yaml`` also states how much the model's
level differs between taxonomies, and between groups of one taxonomy. :func:`still_wrong` widens its draws by these
deviations. Decisions show the level of the taxonomy, and how carefully the person decides (:func:`believe`). So do
seeds of predefined groups: each is predicted without itself as an example.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import yaml
from scipy.special import expit, logit, softmax
from scipy.stats import rankdata
from threadpoolctl import threadpool_limits

from ..encoders.head_noun import head_noun
from ..unit_rows import leading_axes, nearest, silhouettes, unit

MODEL = Path(__file__).with_name("doubt.yaml")
LEAST, MOST = 0.005, 0.995  # limits of an error probability: a placement that nobody has seen is never certain
_NEIGHBOURS = 5
_SAMPLE = 2000  # number of names whose neighbours are compared


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
    """Predefined groups, the confidence of the placements in them, and predictions of their seeds.

    Attributes:
        labels: names of the G groups; the label of the group "none of these" is empty.
        confidence: (N,) confidences of the placements, 0..1.
        is_named: (N,) bool, True if the name equals a group or a seed.
        seeds: (S,) groups of the seeds that were predicted without themselves as examples.
        right: (S,) bool, True if the prediction was the group of the seed.
    """

    labels: Sequence[str]
    confidence: np.ndarray
    is_named: np.ndarray
    seeds: np.ndarray
    right: np.ndarray


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
    model = Model.read("found" if given is None else "given")
    wrong = model.probabilities(found)
    return (wrong if given is None else with_seeds(wrong, given, model.spreads)).astype(np.float32)


def with_seeds(wrong: np.ndarray, given: Given, spreads: Spreads) -> np.ndarray:
    """Return (N,) error probabilities of placements at the level of the taxonomy that the predicted seeds show.

    A name that equals a group or a seed has the lowest probability, because the table of groups places it.

    Args:
        wrong: (N,) error probabilities by the model.
        given: the predefined groups.
        spreads: deviations of taxonomies and of groups from the model.
    """
    others = wrong[~given.is_named]
    if len(given.seeds) and len(others):
        odds, nobody = np.full(len(given.seeds), logit(others.mean())), np.zeros(len(given.seeds), dtype=bool)
        belief = believe(odds, given.right, nobody, given.seeds, (0, 0), spreads)
        wrong = np.clip(belief.errors(logit(wrong)), LEAST, MOST)
    return np.where(given.is_named, LEAST, wrong)


def features(
    rows: np.ndarray,
    groups: np.ndarray,
    names: Sequence[str],
    *,
    blocks: Sequence[np.ndarray] = (),
    given: Given | None = None,
) -> dict[str, np.ndarray]:
    """Return the features of placements, (N,) float64 each, from the arguments of :func:`wrong_probabilities`."""
    groups = np.asarray(groups, dtype=np.int64)
    with threadpool_limits(limits=1):
        margins = [_margin(space, groups) for space in (rows, *(blocks if len(blocks) > 1 else ()))]
        if given is not None:
            words = [frozenset(label.casefold().split()) for label in given.labels]
            own = [(words[group], name.casefold().split()) for group, name in zip(groups.tolist(), names, strict=True)]
            sure = np.log(max(given.confidence.mean(dtype=np.float64), 1e-3))
            return {
                "margin": margins[0],
                "confidence": (rankdata(given.confidence.round(5)) - 0.5) / len(names),
                "named": np.array([bool(of) and of <= set(name) for of, name in own], dtype=float),
                "sure": np.full(len(names), sure.round(3)),
                "together": np.full(len(names), _together(rows, groups)),
            }
    found = {"margin": margins[0], "margins": np.mean(margins, axis=0)}
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
    """Return the rank of every row's silhouette among all known rows, 0..1; unknown rows have 0.5."""
    space = unit(leading_axes(np.asarray(space, dtype=np.float32))).astype(np.float32)
    known = np.linalg.norm(space, axis=1) > 0
    rank = np.full(len(groups), 0.5)
    if known.any():
        rank[known] = (rankdata(silhouettes(space, groups)[0][known].round(5)) - 0.5) / known.sum()
    return rank


def _together(rows: np.ndarray, groups: np.ndarray) -> float:
    """Return the mean share of a name's nearest names that have its group, 0..1; with no other known name, 1."""
    known = np.flatnonzero(rows.any(axis=1))
    if len(known) < 2:
        return 1.0
    drawn = np.random.default_rng(0).permutation(len(known))[:_SAMPLE]
    space = unit(rows[known]).astype(np.float32)
    found, _ = nearest(space[drawn], space, _NEIGHBOURS + 1)
    same = np.where(found == drawn[:, None], np.nan, groups[known[found]] == groups[known[drawn]][:, None])
    # of equal rows, the name itself may be missing, so the last neighbour counts only in place of it
    same[~np.isnan(same).any(axis=1), -1] = np.nan
    return round(float(np.nanmean(same)), 3)


# -- all placements together ----------------------------------------------------------------------------------------

# Chosen on the datasets of benchmarks/review_trust.py, so its results are better than on other data.
_APART = 0.2  # deviation of the undecided names' level from the decided names' level; the queue chose the decided names
_SAME = 0.97  # probability that a name accepted without reading is in the group that the build gave it
_PER_GROUP = 4  # more decided names of a group count as 4, because the names of a group are often wrong together
_ENOUGH = 30  # more names in all count as 30: the queue asks for the names first that are most probably wrong
_SLIPS = 0.6, 20.0  # beta distribution of the share of mistaken decisions
DRAWS = 1000
INTERVAL = 0.8
# States to sum over: levels of the log-odds in standard deviations, and shares of names accepted without reading.
_LEVELS, _BLIND = (axis.ravel() for axis in np.meshgrid(np.linspace(-3, 3, 25), [0.0, 0.1, 0.25, 0.5, 0.75, 1.0]))
_CARE = np.array([0.5, 0.1, 0.08, 0.07, 0.07, 0.18])  # probabilities of the shares before any decision


@dataclass(frozen=True, eq=False)
class Belief:
    """Beliefs about the level of the taxonomy and about the person's care, from M decided names.

    Attributes:
        levels: (S,) levels of the log-odds in S states.
        states: (S,) probabilities of the states.
        missed: (M, S) probabilities that a name was accepted without looking and is wrong.
        repeated: numbers of names that the person was asked twice: with the same answer, and with different answers.
        between_groups: standard deviation of the groups' average log-odds from the taxonomy's average.
    """

    levels: np.ndarray
    states: np.ndarray
    missed: np.ndarray
    repeated: tuple[int, int]
    between_groups: float

    @property
    def unread(self) -> float:
        """Probability that the person accepts half of the names, or more, without looking."""
        return float(self.states[_BLIND >= 0.5].sum())

    @property
    def care(self) -> np.ndarray:
        """Probabilities of the shares of names that the person accepts without looking."""
        return self.states.reshape(len(_CARE), -1).sum(axis=1)

    def errors(self, odds: np.ndarray) -> np.ndarray:
        """Return (N,) error probabilities of undecided names from (N,) log-odds of the model."""
        levels, of = np.unique(self.levels, return_inverse=True)
        return np.bincount(of, self.states) @ expit(odds + levels[:, None])


def believe(
    odds: np.ndarray,
    kept: np.ndarray,
    accepted: np.ndarray,
    groups: np.ndarray,
    repeated: tuple[int, int],
    spreads: Spreads,
    care: np.ndarray = _CARE,
) -> Belief:
    """Return what M decided names show about the level of the taxonomy and about blind acceptance.

    A person who looks accepts a name only if its group is right. A person who accepts blindly accepts any group. If a
    person keeps every group of an uncertain build, the build is better than the model says, or the person does not
    look. Every name that the person moved shows that the person looks.

    Args:
        odds: (M,) log-odds that the build's group is wrong, before any decision.
        kept: (M,) bool, True if the decision is the build's group.
        accepted: (M,) bool, True if the person accepted the shown group, False if the person chose another group.
        groups: (M,) labels of the names' groups in the build.
        repeated: numbers of names that the person was asked twice: with the same answer, and with different answers.
        spreads: deviations of taxonomies and of groups from the model.
        care: probabilities of the shares of names that the person accepts without looking, from other decisions.
    """
    levels = _LEVELS * spreads.between_sets
    wrong = np.clip(expit(odds[:, None] + levels), 1e-6, 1 - 1e-6)
    by_eye = np.where((kept | accepted)[:, None], 1 - wrong, wrong) * np.maximum(1 - _BLIND, 1e-6)
    blindly = accepted[:, None] * _SAME * _BLIND
    # if an accepted group differs from the build's group, the decision says little about the build
    told = kept | ~accepted
    _, group, sizes = np.unique(groups[told], return_inverse=True, return_counts=True)
    counted = np.minimum(1, _PER_GROUP / sizes)[group]
    seen = counted @ np.log(by_eye + blindly)[told] * min(1.0, _ENOUGH / max(counted.sum(), 1))
    prior = np.repeat(np.log(np.maximum(care, 1e-12)), len(_LEVELS) // len(_CARE)) - _LEVELS**2 / 2
    states = softmax(prior + seen)
    return Belief(levels, states, wrong * blindly / (by_eye + blindly), repeated, spreads.between_groups)


class Expected(NamedTuple):
    """The expected number of wrong placements (or of items in them), with the ends of its 80% interval."""

    mean: float
    low: float
    high: float

    @staticmethod
    def of(draws: np.ndarray) -> "Expected":
        """Return the mean of draws, and the whole numbers at the ends of their interval."""
        low, high = np.quantile(draws, [(1 - INTERVAL) / 2, (1 + INTERVAL) / 2]).round()
        return Expected(float(np.clip(draws.mean(), low, high)), float(low), float(high))


def still_wrong(
    odds: np.ndarray, counted: np.ndarray, groups: np.ndarray, belief: Belief, decided: np.ndarray, *, seed: int = 0
) -> np.ndarray:
    """Return draws of the number of wrong placements.

    Errors are not independent. The average log-odds of a taxonomy may differ from the model, and the average of a group
    from its taxonomy. If these averages are known, the number is approximately normal. Its variance is the variance of
    independent names plus the variance of the groups' averages. A decided name is wrong if the person slipped, or
    accepted it blindly. If a person gave two answers about a name, either answer may be the slip.

    Args:
        odds: (N,) log-odds that undecided placements are wrong.
        counted: (N,) number of items of each undecided name, or 1 per name to count names.
        groups: (N,) labels 0..G-1 of groups whose errors are correlated; -1: no group.
        belief: beliefs from the M decided names.
        decided: (M,) number of items of each decided name, or 1 per name to count names.
        seed: seed of the draws.
    """
    random, (same, other) = np.random.default_rng(seed), belief.repeated
    slips = random.beta(_SLIPS[0] + other / 2, _SLIPS[1] + same + other / 2, DRAWS)
    state = random.choice(len(belief.states), DRAWS, p=belief.states)
    normal, grid = random.standard_normal((2, DRAWS)), np.linspace(belief.levels[0] - 2, belief.levels[-1] + 2, 41)
    means, variances = np.empty((2, len(grid)))
    for i, at in enumerate(grid):
        p = expit(odds + at)
        of_groups = belief.between_groups * np.bincount(groups + 1, counted * p * (1 - p))
        means[i], variances[i] = counted @ p, (counted**2) @ (p * (1 - p)) + (of_groups**2).sum()
    level = belief.levels[state] + (_APART * normal[0] if len(decided) else 0)
    missed = (decided @ belief.missed)[state]
    mean = np.interp(level, grid, means) + missed + decided.sum() * slips
    variance = np.interp(level, grid, variances) + missed + (decided**2).sum() * slips
    return np.clip(mean + np.sqrt(variance) * normal[1], 0, counted.sum() + decided.sum())
