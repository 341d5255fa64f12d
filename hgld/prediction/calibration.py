"""Calibration of predictions: from the neighbours' votes to the probability that a class is right, per level.

The method is Platt scaling (Platt, Advances in Large Margin Classifiers, 1999): one logistic regression per level on
the features of :func:`features_of`. For some of the fitted queries, all items of their class are removed from the
gallery. Such a query still has nearest neighbours, and they often agree. Without such queries a calibration would give
wrong predictions a high confidence.
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.special import expit, logit

from hgld.errors import ConfigError, InputError, SchemaError, excerpt, quoted, storage_errors
from hgld.evaluation.options import Progress
from hgld.evaluation.scores import (
    block_rows,
    checked_self_index,
    choose_device,
    exact_products,
    prepare_embeddings,
    score_blocks,
)
from hgld.files import read_json, write_atomic
from hgld.labels import Array, Labels, read_label_sides
from hgld.prediction.votes import Votes, complete_labels, count_votes

SCHEMA_VERSION = 2
CALIBRATION = "calibration.json"  # file name in the folder of a run
NEIGHBORS, TEMPERATURE, UNKNOWN = 20, 0.05, 0.2
MOST_QUERIES = 10_000
_FOLDS = 5
_FEWEST_CLASSES = 10  # minimum number of finest classes: with fewer, the cross-validation folds are too small
_LEAST_SHARE = 1e-3  # shares are clipped this far from 0 and 1, so that log-odds are finite
_FEATURES = 3
_UNMEASURED = -30.0  # log-odds of a level without measured labels: a confidence of almost 0
_MOST_BYTES = 1 << 20
_MOST_LEVELS, _MOST_NEIGHBORS, _MOST_TEXT = 32, 1000, 200

# -- risk --------------------------------------------------------------------------------------------------------------

BINS = 15
_POINTS = 101  # maximum number of points of a saved curve


@dataclass(frozen=True)
class LevelRisk:
    """Risk of predictions at a level.

    Attributes:
        level: name of the level.
        queries: number of queries.
        accuracy: share of queries for which the class with most votes is right.
        confidence: mean confidence of the predictions.
        ece: expected calibration error (:func:`calibration_error`).
        area: mean risk over the coverages: the area under the curve.
        coverage: share of the queries with a prediction, ascending.
        risk: share of wrong predictions at each coverage.
        threshold: minimum confidence of a prediction at each coverage.
    """

    level: str
    queries: int
    accuracy: float
    confidence: float
    ece: float
    area: float
    coverage: tuple[float, ...]
    risk: tuple[float, ...]
    threshold: tuple[float, ...]


def level_risk(level: str, confidences: np.ndarray, right: np.ndarray, weights: np.ndarray) -> LevelRisk:
    """Measure the risk of predictions at a level.

    Args:
        level: name of the level.
        confidences: (Q,) confidences in [0, 1].
        right: (Q,) bool, whether each prediction is right.
        weights: (Q,) weights of the queries.
    """
    if not len(right) or not weights.sum():
        return LevelRisk(level, 0, 0.0, 0.0, 0.0, 0.0, (), (), ())
    coverage, risk, threshold = risk_coverage(confidences, right, weights)
    at = np.unique(np.searchsorted(coverage, np.linspace(0, 1, _POINTS) * (1 - 1e-12)).clip(max=len(coverage) - 1))
    shares = (
        np.average(right, weights=weights),
        np.average(confidences, weights=weights),
        calibration_error(confidences, right, weights),
        np.average(risk, weights=np.diff(coverage, prepend=0.0)),
    )
    accuracy, confidence, ece, area = (round(float(share), 6) for share in shares)
    curves = (tuple(curve[at].round(6).clip(0, 1).tolist()) for curve in (coverage, risk, threshold))
    return LevelRisk(level, len(right), accuracy, confidence, ece, area, *curves)


def risk_coverage(
    confidences: np.ndarray, right: np.ndarray, weights: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the risk-coverage curve: one point for every confidence as the threshold, the highest first.

    Returns:
        (P,) coverages, ascending, (P,) risks and (P,) thresholds; queries of equal confidence form one point.
    """
    order = np.argsort(-confidences, kind="stable")
    weight, wrong = weights[order], weights[order] * ~right[order]
    last = np.flatnonzero(np.diff(confidences[order], append=-1.0))
    answered = np.cumsum(weight)[last]
    return answered / weights.sum(), np.cumsum(wrong)[last] / np.maximum(answered, 1e-300), confidences[order][last]


def calibration_error(confidences: np.ndarray, right: np.ndarray, weights: np.ndarray | None = None) -> float:
    """Return the expected calibration error over 15 bins of equal width.

    The error is the weighted mean over bins of the distance between a bin's mean confidence and its accuracy.
    Guo et al., "On Calibration of Modern Neural Networks", ICML 2017, Eq. 3.

    Args:
        confidences: (Q,) confidences in [0, 1].
        right: (Q,) bool, whether each prediction is right.
        weights: (Q,) weights of the queries; None: equal weights.
    """
    weights = np.ones(len(right)) if weights is None else weights
    place = np.minimum((confidences * BINS).astype(int), BINS - 1)
    gaps = np.bincount(place, weights * (confidences - right), BINS)
    return float(np.abs(gaps).sum() / weights.sum())


# -- the calibration ---------------------------------------------------------------------------------------------------


def features_of(votes: Votes) -> np.ndarray:
    """Return (Q, L, 3) features of the class that the neighbours vote for at each level.

    The features are the log-odds of a class's share of the votes, the score of its nearest neighbour, and that score
    minus the score of the nearest neighbour of another class.
    """
    share = votes.shares.clip(_LEAST_SHARE, 1 - _LEAST_SHARE)
    return np.stack([logit(share), votes.nearest, votes.nearest - votes.rival], axis=2)


@dataclass(frozen=True)
class LevelScaling:
    """The logistic regression of a level: probability = sigmoid(intercept + weights . features)."""

    weights: tuple[float, ...]
    intercept: float


@dataclass(frozen=True)
class Calibration:
    """Calibration of a model's predictions on a dataset's levels.

    Attributes:
        levels: names of the levels, finest first.
        scalings: logistic regression of each level.
        neighbors: number of neighbours that vote.
        temperature: temperature of the votes.
        unknown: assumed share of queries whose class the gallery lacks.
        risks: measured risks by split, for example ``val``. The risks of the fitted queries are cross-validated, on
            classes that the regression was not fitted on.
        facts: origin of the calibration: dataset, split, items, and the model's weights and view.
    """

    levels: tuple[str, ...]
    scalings: tuple[LevelScaling, ...]
    neighbors: int = NEIGHBORS
    temperature: float = TEMPERATURE
    unknown: float = UNKNOWN
    risks: Mapping[str, tuple[LevelRisk, ...]] = field(default_factory=dict)
    facts: Mapping[str, Any] = field(default_factory=dict)

    def confidences(self, votes: Votes) -> np.ndarray:
        """Return (Q, L) probabilities that the votes' classes are right; they never fall from fine to coarse levels."""
        return self._scale(features_of(votes))

    def _scale(self, features: np.ndarray) -> np.ndarray:
        columns = [expit(features[:, c] @ np.array(s.weights) + s.intercept) for c, s in enumerate(self.scalings)]
        # a prediction that is right at a level is right at coarser levels
        return np.maximum.accumulate(np.stack(columns, axis=1), axis=1)

    def check_levels(self, levels: Sequence[str]) -> None:
        """Raise an error if levels differ from the calibration's levels.

        Raises:
            InputError: the levels differ.
        """
        if tuple(levels) != self.levels:
            raise InputError(
                f"the calibration has the levels {', '.join(self.levels)}, but these labels have {', '.join(levels)}. "
                "Calibrate on a dataset with the same levels."
            )

    def measured(self, cases: "Cases", name: str) -> "Calibration":
        """Return this calibration with its risks on other queries, for instance of a test split.

        Args:
            cases: the queries with their gallery.
            name: key of the queries in ``risks``.
        """
        votes = cases.votes_of(self.neighbors, self.temperature, self.unknown)
        return replace(self, risks={**self.risks, name: votes.risks(self._scale(votes.features), self.levels)})

    def to_dict(self) -> dict[str, Any]:
        """Return the calibration as a JSON-ready dictionary."""
        return {"schema_version": SCHEMA_VERSION, **asdict(self)}

    def save(self, path: Path) -> None:
        """Write the calibration as JSON.

        Raises:
            StorageError: the file cannot be written.
        """
        with storage_errors(f"write {path}", "Choose another --out."):
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomic(path, json.dumps(self.to_dict(), ensure_ascii=False, indent=1, allow_nan=False) + "\n")

    @classmethod
    def load(cls, path: Path) -> "Calibration":
        """Read and check a calibration from an untrusted file.

        Raises:
            InputError: the file cannot be read, or has an invalid value.
            SchemaError: the file has another schema version.
        """
        found = read_json(path, kind=dict, max_bytes=_MOST_BYTES, fix="Calibrate again: hgld calibrate.")
        if found.get("schema_version") != SCHEMA_VERSION:
            raise SchemaError(
                f"{path}: schema version {quoted(found.get('schema_version'))}; this hgld reads "
                f"{SCHEMA_VERSION}. Calibrate again: hgld calibrate."
            )
        try:
            return _parse(found)
        except (KeyError, TypeError, ValueError, OverflowError, AttributeError) as error:
            raise InputError(
                f"{path} is not what hgld calibrate writes ({excerpt(error)}). Calibrate again."
            ) from error


def _parse(found: dict[str, Any]) -> Calibration:
    levels, facts, neighbors = found["levels"], found["facts"], found["neighbors"]
    if not 0 < len(set(levels)) == len(levels) <= _MOST_LEVELS or max(map(len, levels)) > _MOST_TEXT:
        raise ValueError(f"levels are {quoted(levels)}")
    scalings = [
        LevelScaling(_numbers(one["weights"], _FEATURES), *_numbers([one["intercept"]], 1)) for one in found["scalings"]
    ]
    risks = {name: tuple(map(_parse_risk, rows)) for name, rows in found["risks"].items()}
    of_levels = [[risk.level for risk in rows] for rows in risks.values()]
    if len(scalings) != len(levels) or any(of != levels for of in of_levels) or max(len(risks), len(facts)) > 100:
        raise ValueError("the scalings or risks do not belong to the levels")
    temperature, unknown = _numbers([found["temperature"], found["unknown"]], 2)
    if type(neighbors) is not int or not (1 <= neighbors <= _MOST_NEIGHBORS and temperature > 0 and 0 <= unknown < 1):
        raise ValueError(
            f"neighbors is {quoted(neighbors)}, temperature {temperature}, unknown {unknown}; expected neighbors in "
            f"1..{_MOST_NEIGHBORS}, temperature above 0 and unknown in [0, 1)"
        )
    return Calibration(tuple(levels), tuple(scalings), neighbors, temperature, unknown, risks, dict(facts.items()))


def _parse_risk(row: dict[str, Any]) -> LevelRisk:
    points = len(row["coverage"])
    if type(row["queries"]) is not int or row["queries"] < 0:
        raise ValueError(f"queries is {quoted(row['queries'])}; expected a whole number from 0")
    if points > _POINTS:
        raise ValueError(f"a curve has {points:,} points; expected at most {_POINTS}")
    shares = _numbers([row[name] for name in ("accuracy", "confidence", "ece", "area")], 4, is_share=True)
    curves = (_numbers(row[name], points, is_share=True) for name in ("coverage", "risk", "threshold"))
    return LevelRisk(row["level"], row["queries"], *shares, *curves)


def _numbers(found: Any, count: int, *, is_share: bool = False) -> tuple[Any, ...]:
    """Return the numbers of a JSON list after checking the length, finiteness, and the range 0..1 of shares."""
    if not isinstance(found, list) or len(found) != count or not all(type(n) in (int, float) for n in found):
        raise TypeError(f"{excerpt(str(found))} instead of {count} numbers")
    if not all(0 <= n <= 1 if is_share else math.isfinite(n) for n in found):
        raise ValueError(f"{excerpt(str(found))} is out of range")
    return tuple(map(float, found))


# -- fitting -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Cases:
    """Queries with known classes, and the gallery that they search.

    Attributes:
        queries: (Q, D) of any floating dtype.
        labels: (Q, L) int64 class ids, finest level first, -1 if unknown.
        gallery: (G, D) embeddings; None: every query searches the other queries.
        gallery_labels: (G, L) labels.
        self_index: (Q,) gallery index of the query itself, which does not vote; -1 if the query is not in the gallery.
        progress: function that is called with a task name, the number of finished queries and the total.
    """

    queries: Array
    labels: np.ndarray
    gallery: Array | None = None
    gallery_labels: np.ndarray | None = None
    self_index: np.ndarray | None = None
    progress: Progress | None = None

    def votes_of(self, neighbors: int, temperature: float, unknown: float) -> "_CaseVotes":
        """Return the votes for every query, with the whole gallery and again without the query's classes.

        If there are more than 10,000 queries, 10,000 of them are drawn with seed 0.
        """
        table = complete_labels(self.labels if self.gallery_labels is None else self.gallery_labels)
        own = np.arange(len(self.labels)) if self.gallery is None else self.self_index
        known = np.flatnonzero((self.labels >= 0).any(axis=1))
        asked = np.sort(np.random.default_rng(0).permutation(known)[:MOST_QUERIES])
        labels, own = self.labels[asked], None if own is None else own[asked]
        device = choose_device(self.queries, None)
        query = prepare_embeddings(self.queries, "query", device=device)[torch.from_numpy(asked).to(device)]
        gallery = prepare_embeddings(self.queries if self.gallery is None else self.gallery, "gallery", device=device)
        # Levels at which the query's class is hidden from the gallery; -1: no class is hidden.
        several = [c for c in range(table.shape[1]) if len(np.unique(table[table[:, c] >= 0, c])) > 2]
        hidden = [-1, *several] if unknown else [-1]
        k = min(neighbors, len(gallery) - int(own is not None))
        index = np.empty((len(hidden), len(asked), k), np.int64)
        scores = np.empty((len(hidden), len(asked), k), np.float32)  # -inf where fewer than k items are left
        asked_labels, gallery_labels = (torch.from_numpy(part).to(device) for part in (labels, table))
        with exact_products(device):
            for start, stop, block in score_blocks(query, gallery, block_rows(len(query), len(gallery), device)):
                if own is not None:
                    inside = np.flatnonzero(own[start:stop] >= 0)
                    block[torch.from_numpy(inside), torch.from_numpy(own[start:stop][inside])] = -torch.inf
                for i, column in enumerate(hidden):
                    left = block
                    if column >= 0:
                        mine = asked_labels[start:stop, column, None]
                        left = block.masked_fill((mine == gallery_labels[:, column]) & (mine >= 0), -torch.inf)
                    best, place = left.topk(k, dim=1)
                    scores[i, start:stop], index[i, start:stop] = best.cpu().numpy(), place.cpu().numpy()
                if self.progress is not None:
                    self.progress("calibrate", stop, len(query))
        parts = [count_votes(part, table[places], temperature) for places, part in zip(index, scores, strict=True)]
        lacking = len(hidden) - 1
        shares = [1 - unknown if lacking else 1.0, *([unknown / lacking] * lacking if lacking else ())]
        return _CaseVotes(
            np.concatenate([features_of(votes) for votes in parts]),
            np.concatenate([(votes.labels == labels) & (labels >= 0) for votes in parts]),
            np.tile(labels >= 0, (len(parts), 1)),
            np.repeat(shares, len(asked)),
            np.tile(labels[:, 0], len(parts)),
        )


@dataclass(frozen=True, eq=False)
class _CaseVotes:
    """Votes for queries with known classes, with the whole gallery and again without the query's classes.

    Attributes:
        features: (M, L, 3) features of the votes' classes.
        right: (M, L) bool, whether the votes' class is the query's class.
        known: (M, L) bool, whether the query's class is known.
        weights: (M,) weights of the cases.
        group: (M,) finest class of the query.
    """

    features: np.ndarray
    right: np.ndarray
    known: np.ndarray
    weights: np.ndarray
    group: np.ndarray

    def fit(self, rows: np.ndarray | slice = slice(None)) -> tuple[LevelScaling, ...]:
        """Fit the logistic regression of every level on some cases."""
        part = _CaseVotes(*(getattr(self, one.name)[rows] for one in fields(self)))
        return tuple(part._fit(column) for column in range(part.right.shape[1]))

    def _fit(self, column: int) -> LevelScaling:
        # imported here: it is slow to import, and a search does not need it
        from sklearn.linear_model import LogisticRegression

        known = self.known[:, column]
        features, right, weights = self.features[known, column], self.right[known, column], self.weights[known]
        if not len(right):  # without labels, the level takes the confidence of the finer level
            return LevelScaling((0.0,) * _FEATURES, _UNMEASURED)
        if right.all() or not right.any():  # all predictions are right, or all wrong: use Laplace's rule of succession
            return LevelScaling((0.0,) * _FEATURES, float(logit((right.sum() + 1) / (len(right) + 2))))
        middle, spread = features.mean(axis=0), np.maximum(features.std(axis=0), 1e-6)
        model = LogisticRegression(max_iter=1000)
        model.fit((features - middle) / spread, right, sample_weight=weights / weights.mean())
        scaled: np.ndarray = np.ravel(model.coef_) / spread
        return LevelScaling(tuple(scaled.tolist()), float(np.ravel(model.intercept_)[0] - scaled @ middle))

    def risks(self, confidences: np.ndarray, levels: Sequence[str]) -> tuple[LevelRisk, ...]:
        """Measure the risk of predictions at every level."""
        return tuple(
            level_risk(level, confidences[known, c], self.right[known, c], self.weights[known])
            for c, (level, known) in enumerate(zip(levels, self.known.T, strict=True))
        )


def calibrate(
    query_embeddings: Array,
    query_labels: Labels,
    gallery_embeddings: Array | None = None,
    gallery_labels: Labels | None = None,
    *,
    levels: Sequence[str] | None = None,
    self_index: Array | None = None,
    neighbors: int = NEIGHBORS,
    temperature: float = TEMPERATURE,
    unknown: float = UNKNOWN,
    name: str = "val",
    facts: Mapping[str, Any] | None = None,
    progress: Progress | None = None,
) -> Calibration:
    """Calibrate predictions on queries that the model was not trained on, ideally of classes unseen in training.

    Every query searches the whole gallery. For each level it also searches the gallery without its own class of that
    level, as if the gallery lacked the class. A level is skipped if fewer than two classes would be left. The queries
    without their class in the gallery get the total weight ``unknown``.

    Confidences hold only for galleries like this one, because the number of classes and their distances decide how
    often the nearest neighbours are right. So use the gallery that will be searched. If no query has a class at a
    level, the level has the confidence of the next finer level. From more than 10,000 queries 10,000 are drawn, with
    seed 0.

    Args:
        query_embeddings: (Q, D) of any floating dtype.
        query_labels: (Q, L) integers, finest level first, negative if unknown; (Q,) for one level. Or class names,
            a table or a dataset, in any form that :func:`hgld.labels.class_numbers` reads.
        gallery_embeddings: (G, D) embeddings; None: every query searches the other queries.
        gallery_labels: (G, L) labels.
        levels: names of the L levels, or of a table's columns; None: all columns, or ``level0``, ``level1``, ...
        self_index: (Q,) gallery index of the query itself, which does not vote; -1 if the query is not in the gallery.
        neighbors: number of neighbours that vote.
        temperature: temperature of the votes, in units of cosine similarity.
        unknown: expected share of future queries whose class the gallery lacks, in [0, 1).
        name: key of these queries in ``risks``.
        facts: facts about the origin of the embeddings, stored in the calibration.
        progress: function that is called with a task name, the number of finished queries and the total.

    Returns:
        the calibration; ``risks[name]`` is measured by cross-validation over the queries' finest classes.

    Raises:
        InputError: embeddings or labels have the wrong shape or dtype, or the queries have fewer than 10 finest
            classes.
        HierarchyError: the labels put one class under two parents.
        ConfigError: a number is out of range.
    """
    from sklearn.model_selection import GroupKFold  # imported here: it is slow to import, and a search does not need it

    if not 1 <= neighbors <= _MOST_NEIGHBORS:
        raise ConfigError(f"neighbors is {neighbors}; expected 1 to {_MOST_NEIGHBORS}.")
    if not 0 < temperature < math.inf:
        raise ConfigError(f"temperature is {temperature}; expected a finite number above 0.")
    if not 0 <= unknown < 1:
        raise ConfigError(f"unknown is {unknown}; expected a share of at least 0 and below 1.")
    if (gallery_embeddings is None) != (gallery_labels is None) or (gallery_labels is None and self_index is not None):
        raise InputError("gallery embeddings or gallery labels are missing; pass both (self_index needs both too).")
    sides = [query_labels] if gallery_labels is None else [query_labels, gallery_labels]
    counts = [len(part) for part in (query_embeddings, gallery_embeddings) if part is not None]
    tables, names = read_label_sides(sides, counts, levels)
    labels, table = tables[0], None if gallery_labels is None else tables[1]
    own = None if self_index is None else checked_self_index(self_index, len(labels))
    classes = len(np.unique(labels[labels[:, 0] >= 0, 0]))
    if classes < _FEWEST_CLASSES:
        raise InputError(
            f"the queries have {classes} classes at the level {names[0]}; a calibration needs at least "
            f"{_FEWEST_CLASSES}. "
            "Calibrate on a larger split."
        )
    cases = Cases(query_embeddings, labels, gallery_embeddings, table, own, progress)
    votes = cases.votes_of(neighbors, temperature, unknown)
    whole = Calibration(names, votes.fit(), neighbors, temperature, unknown, {}, dict(facts or {}))
    confidences = np.empty(votes.right.shape)
    for others, fold in GroupKFold(_FOLDS).split(votes.group, groups=votes.group):
        confidences[fold] = replace(whole, scalings=votes.fit(others))._scale(votes.features[fold])
    return replace(whole, risks={name: votes.risks(confidences, names)})
