"""Calibration of answers: from the votes of neighbours to the probability that a class is right, level by level.

Platt scaling (Platt, Advances in Large Margin Classifiers, 1999) of the marks of :func:`marks_of`, one logistic
regression a level. It is fitted on queries some of whose classes are kept out of the gallery on purpose: a query whose
class the gallery lacks still has nearest neighbours, and they often agree. A calibration that has never seen one takes
them for sure.
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.special import expit, logit
from torch import Tensor

from hgld.errors import ConfigError, InputError, SchemaError, StorageError, excerpt, quoted
from hgld.evaluation.evaluate import check_tree, checked_self_index, label_table, level_names
from hgld.evaluation.options import Progress
from hgld.evaluation.scores import block_rows, choose_device, exact_products, prepare_embeddings, score_blocks
from hgld.files import read_json, write_atomic
from hgld.labels import Labels, class_numbers
from hgld.prediction.risk import LevelRisk, level_risk
from hgld.prediction.votes import Votes, complete_labels, count_votes

SCHEMA_VERSION = 1
CALIBRATION = "calibration.json"  # in the folder of a run
NEIGHBORS, TEMPERATURE, UNKNOWN = 20, 0.05, 0.2
MOST_QUERIES = 10_000
_FOLDS = 5
_FEWEST_CLASSES = 10  # finest ones, for folds that are worth the name
_LEAST_SHARE = 1e-3  # shares are taken this far from 0 and 1, for their log-odds
_MARKS = 3
_REGULARISATION = 1.0
_UNMEASURED = -30.0  # log-odds
_MOST_BYTES = 1 << 20
_MOST_LEVELS, _MOST_NEIGHBORS, _MOST_TEXT = 32, 1000, 200


def marks_of(votes: Votes, column: int) -> np.ndarray:
    """Return (Q, 3) marks of the class voted for at a level.

    They are the log-odds of its share of the votes, the score of its nearest neighbour, and how far the nearest
    neighbour that is not of it lies behind.
    """
    share = votes.shares[:, column].clip(_LEAST_SHARE, 1 - _LEAST_SHARE)
    nearest, rival = votes.nearest[:, column], votes.rival[:, column]
    return np.stack([logit(share), nearest, nearest - rival], axis=1)


@dataclass(frozen=True)
class LevelScaling:
    """The logistic regression of a level: probability = sigmoid(intercept + weights . marks)."""

    weights: tuple[float, ...]
    intercept: float

    def __call__(self, marks: np.ndarray) -> np.ndarray:
        """Return (Q,) probabilities of (Q, 3) marks."""
        return expit(marks @ np.asarray(self.weights) + self.intercept)


@dataclass(frozen=True)
class Calibration:
    """The calibration of a model's answers on a dataset's levels.

    Attributes:
        levels: names of the levels, finest first.
        scalings: one a level.
        neighbors: number of neighbours that vote.
        temperature: of their votes.
        unknown: share of queries whose class the gallery lacks, for which confidences hold.
        risks: measured calibration by what it was measured on: ``val`` or another split, the calibration's own always
            on queries of classes that it was not fitted on.
        facts: what it was made with: dataset, split, items; of a model its weights and view.
    """

    levels: tuple[str, ...]
    scalings: tuple[LevelScaling, ...]
    neighbors: int = NEIGHBORS
    temperature: float = TEMPERATURE
    unknown: float = UNKNOWN
    risks: Mapping[str, tuple[LevelRisk, ...]] = field(default_factory=dict)
    facts: Mapping[str, Any] = field(default_factory=dict)

    def confidences(self, votes: Votes) -> np.ndarray:
        """Return (Q, L) probabilities that the classes voted for are right; they do not fall from fine to coarse.

        Whoever is right at a level is right at all coarser ones, so a coarser level has at least the probability of
        the finer ones.
        """
        columns = [scale(marks_of(votes, c)) for c, scale in enumerate(self.scalings)]
        return np.maximum.accumulate(np.stack(columns, axis=1), axis=1)

    def check_levels(self, levels: Sequence[str]) -> None:
        """Refuse other levels than those of the calibration.

        Raises:
            InputError: names both.
        """
        if tuple(levels) != self.levels:
            raise InputError(
                f"the calibration is of the levels {', '.join(self.levels)}; these labels have {', '.join(levels)}. "
                "Calibrate on a dataset of the same levels."
            )

    def measured(self, cases: "Cases", name: str) -> "Calibration":
        """Return this calibration with its errors on other queries, for instance of a test split.

        Args:
            cases: the queries with their gallery.
            name: of the queries, in ``risks``.
        """
        votes = cases.votes_of(self.neighbors, self.temperature, self.unknown)
        return replace(self, risks={**self.risks, name: votes.risks(self.confidences(votes.votes), self.levels)})

    # -- its file --

    def to_dict(self) -> dict[str, Any]:
        """Return the calibration as a JSON-ready dictionary."""
        return {"schema_version": SCHEMA_VERSION, **asdict(self)}

    def save(self, path: Path) -> None:
        """Write the calibration as JSON.

        Raises:
            StorageError: it cannot be written.
        """
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomic(path, json.dumps(self.to_dict(), ensure_ascii=False, indent=1, allow_nan=False) + "\n")
        except OSError as error:
            raise StorageError(
                f"cannot write {path} ({error.strerror or error}). Write it elsewhere: --out."
            ) from error

    @classmethod
    def load(cls, path: Path) -> "Calibration":
        """Read a calibration; the file may be anybody's.

        Raises:
            InputError: it cannot be read, or holds what a calibration cannot have.
            SchemaError: it is of another schema version.
        """
        found = _read_object(path)
        if found.get("schema_version") != SCHEMA_VERSION:
            raise SchemaError(
                f"{path}: schema version {quoted(found.get('schema_version'))}; this hgld reads "
                f"{SCHEMA_VERSION}. Calibrate again: hgld calibrate."
            )
        try:
            return _parsed(found)
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise InputError(
                f"{path} is not what hgld calibrate writes ({excerpt(error)}). Calibrate again."
            ) from error


@dataclass(frozen=True, eq=False)
class Cases:
    """Queries with known answers, and the gallery that they search.

    Attributes:
        queries: (Q, D) of any floating dtype.
        labels: (Q, L) int64 class ids, finest level first, -1 where unknown.
        gallery: (G, D); None: the queries search in one another.
        gallery_labels: (G, L).
        self_index: (Q,) gallery index of the query itself, which does not vote; -1 where it is not in the gallery.
        progress: called with a task, the number of queries done and their total.
    """

    queries: Tensor | np.ndarray
    labels: np.ndarray
    gallery: Tensor | np.ndarray | None = None
    gallery_labels: np.ndarray | None = None
    self_index: np.ndarray | None = None
    progress: Progress | None = None

    def votes_of(self, neighbors: int, temperature: float, unknown: float) -> "_Votes":
        """Return the votes for every query, with the whole gallery and again without its classes."""
        gallery = self.queries if self.gallery is None else self.gallery
        table = complete_labels(self.labels if self.gallery_labels is None else self.gallery_labels)
        own = np.arange(len(self.labels)) if self.gallery is None else self.self_index
        asked = np.flatnonzero((self.labels >= 0).any(axis=1))
        if len(asked) > MOST_QUERIES:
            asked = np.sort(np.random.default_rng(0).permutation(asked)[:MOST_QUERIES])
        hidden = [c for c in range(table.shape[1]) if len(np.unique(table[table[:, c] >= 0, c])) > 2]
        hidden = hidden if unknown else []
        device = choose_device(self.queries, None)
        query = prepare_embeddings(self.queries, "query", device=device)[torch.from_numpy(asked).to(device)]
        items = prepare_embeddings(gallery, "gallery", device=device)
        sides = (query, self.labels[asked], items, table, None if own is None else own[asked])
        found = _neighbors(*sides, [-1, *hidden], neighbors, self.progress)
        parts = [count_votes(scores, table[index], temperature) for index, scores in found]
        labels = self.labels[asked]
        shares = [1 - unknown if hidden else 1.0, *([unknown / max(len(hidden), 1)] * len(hidden))]
        return _Votes(
            Votes(*(np.concatenate([getattr(part, name) for part in parts]) for name in _FIELDS)),
            np.concatenate([(votes.labels == labels) & (labels >= 0) for votes in parts]),
            np.tile(labels >= 0, (len(parts), 1)),
            np.repeat(shares, len(asked)),
            np.tile(labels[:, 0], len(parts)),
        )


_FIELDS = tuple(Votes.__dataclass_fields__)


def calibrate(
    query_embeddings: Tensor | np.ndarray,
    query_labels: Labels,
    gallery_embeddings: Tensor | np.ndarray | None = None,
    gallery_labels: Labels | None = None,
    *,
    levels: Sequence[str] | None = None,
    self_index: Tensor | np.ndarray | None = None,
    neighbors: int = NEIGHBORS,
    temperature: float = TEMPERATURE,
    unknown: float = UNKNOWN,
    name: str = "val",
    facts: Mapping[str, Any] | None = None,
    progress: Progress | None = None,
) -> Calibration:
    """Calibrate answers on queries that the model was not trained on, best of classes that it was not trained on.

    Every query searches in the gallery, and again, for each level, in the gallery without its class of that level, as
    if the gallery lacked it; levels at which fewer than two classes would be left are not asked so. The queries of
    lacking classes count together as a share ``unknown`` of all. Confidences hold for galleries like this one: how many
    classes it has and how close they lie decides how often the nearest are right. So take the one that will be
    searched. A level of which no query has a class is not measured: its confidence is that of the next finer level. Of
    more than 10,000 queries as many are drawn, with seed 0.

    Args:
        query_embeddings: (Q, D) of any floating dtype.
        query_labels: (Q, L) integers, finest level first, negative where unknown; (Q,) for one level. Or class names,
            a table or a dataset: all that :func:`hgld.labels.class_numbers` reads.
        gallery_embeddings: (G, D); None: every query searches in the others.
        gallery_labels: (G, L).
        levels: names of the L levels, or of a table's columns; None: as :func:`hgld.evaluate` names them.
        self_index: (Q,) gallery index of the query itself, which does not vote; -1 where it is not in the gallery.
        neighbors: number of neighbours that vote.
        temperature: of the votes, in units of cosine similarity.
        unknown: share of the queries to come whose class the gallery lacks, in [0, 1).
        name: of these queries, in ``risks``.
        facts: what is to be kept of where they come from.
        progress: called with a task, the number of queries done and their total.

    Returns:
        the calibration; ``risks[name]`` is measured by cross-validation over the queries' finest classes.

    Raises:
        InputError: embeddings or labels of the wrong shape or dtype, or queries of fewer than 10 finest classes.
        HierarchyError: labels that put one class under two parents.
        ConfigError: numbers out of their range.
    """
    from sklearn.model_selection import GroupKFold  # slow to import, and a search needs none of it

    if not (1 <= neighbors <= _MOST_NEIGHBORS and 0 < temperature < math.inf and 0 <= unknown < 1):
        raise ConfigError(
            f"neighbors is {neighbors}, temperature {temperature}, unknown {unknown}; expected 1..{_MOST_NEIGHBORS}, "
            "above 0, and a share of at least 0 and below 1."
        )
    query = query_embeddings, query_labels
    names, cases = checked_cases(query, gallery_embeddings, gallery_labels, levels, self_index, progress)
    classes = len(np.unique(cases.labels[cases.labels[:, 0] >= 0, 0]))
    if classes < _FEWEST_CLASSES:
        raise InputError(
            f"the queries are of {classes} classes of {names[0]}; a calibration takes {_FEWEST_CLASSES} at least. "
            "Calibrate on a larger split."
        )
    votes = cases.votes_of(neighbors, temperature, unknown)
    whole = Calibration(names, votes.fit(), neighbors, temperature, unknown, {}, dict(facts or {}))
    confidences = np.empty((len(votes.group), len(names)))
    for others, fold in GroupKFold(_FOLDS).split(votes.group, groups=votes.group):
        kept, left = votes.part(others), votes.part(fold)
        confidences[fold] = replace(whole, scalings=kept.fit()).confidences(left.votes)
    return replace(whole, risks={name: votes.risks(confidences, names)})


def checked_cases(
    query: tuple[Tensor | np.ndarray, Labels],
    gallery: Tensor | np.ndarray | None,
    gallery_labels: Labels | None,
    levels: Sequence[str] | None,
    self_index: Tensor | np.ndarray | None,
    progress: Progress | None = None,
) -> tuple[tuple[str, ...], Cases]:
    """Return the names of the levels, and queries with a gallery, as :func:`calibrate` takes them."""
    if (gallery is None) != (gallery_labels is None) or (gallery is None and self_index is not None):
        raise InputError("gallery embeddings and gallery labels come together, and self_index with them.")
    sides = [query[1]] if gallery_labels is None else [query[1], gallery_labels]
    numbers, named = class_numbers(*sides, levels=levels, what=("query labels", "gallery labels"))
    levels = levels if named is None else named
    labels = label_table(numbers[0], len(query[0]), "query")
    if gallery is None or gallery_labels is None:
        names, table, own = level_names(levels, labels, labels), None, None
        check_tree(labels, names)
    else:
        table = label_table(numbers[1], len(gallery), "gallery")
        names = level_names(levels, labels, table)
        check_tree(np.concatenate([labels, table]), names)
        own = None if self_index is None else checked_self_index(self_index, len(labels))
    return names, Cases(query[0], labels, gallery, table, own, progress)


@dataclass(frozen=True, eq=False)
class _Votes:
    """Votes for queries whose classes are known, each with the whole gallery and again without its classes.

    Attributes:
        votes: of M cases.
        right: (M, L) bool, whether the class voted for is the query's.
        known: (M, L) bool, whether the query's class is known.
        weights: (M,) of the cases.
        group: (M,) finest class of the query.
    """

    votes: Votes
    right: np.ndarray
    known: np.ndarray
    weights: np.ndarray
    group: np.ndarray

    def part(self, rows: np.ndarray) -> "_Votes":
        votes = Votes(*(getattr(self.votes, name)[rows] for name in _FIELDS))
        return _Votes(votes, self.right[rows], self.known[rows], self.weights[rows], self.group[rows])

    def fit(self) -> tuple[LevelScaling, ...]:
        return tuple(self._fit(column) for column in range(self.right.shape[1]))

    def _fit(self, column: int) -> LevelScaling:
        from sklearn.linear_model import LogisticRegression  # as in calibrate

        known = self.known[:, column]
        marks, right, weights = marks_of(self.votes, column)[known], self.right[known, column], self.weights[known]
        if not len(right):  # nothing was measured, so that the confidence is that of the finer level
            return LevelScaling((0.0,) * _MARKS, _UNMEASURED)
        if right.all() or not right.any():  # nothing to tell apart: Laplace's rule of succession
            return LevelScaling((0.0,) * _MARKS, float(logit((right.sum() + 1) / (len(right) + 2))))
        middle, spread = marks.mean(axis=0), np.maximum(marks.std(axis=0), 1e-6)
        model = LogisticRegression(C=_REGULARISATION, max_iter=1000)
        model.fit((marks - middle) / spread, right, sample_weight=weights / weights.mean())
        scaled: np.ndarray = np.ravel(model.coef_) / spread
        return LevelScaling(tuple(scaled.tolist()), float(np.ravel(model.intercept_)[0] - scaled @ middle))

    def risks(self, confidences: np.ndarray, levels: Sequence[str]) -> tuple[LevelRisk, ...]:
        return tuple(
            level_risk(level, confidences[known, c], self.right[known, c], self.weights[known])
            for c, (level, known) in enumerate(zip(levels, self.known.T, strict=True))
        )


def _neighbors(
    query: Tensor,
    query_labels: np.ndarray,
    gallery: Tensor,
    gallery_labels: np.ndarray,
    own: np.ndarray | None,
    hidden: Sequence[int],
    neighbors: int,
    progress: Progress | None,
) -> tuple[tuple[np.ndarray, np.ndarray], ...]:
    """Find indices and scores (Q, K) of the nearest, for each level whose class is hidden from its queries (-1: none).

    Scores are -inf where fewer than K items are left.
    """
    device, k = query.device, min(neighbors, len(gallery) - int(own is not None))
    index = np.empty((len(hidden), len(query), k), np.int64)
    scores = np.empty((len(hidden), len(query), k), np.float32)
    asked, table = (torch.from_numpy(labels).to(device) for labels in (query_labels, gallery_labels))
    with exact_products(device):
        for start, stop, block in score_blocks(query, gallery, block_rows(len(query), len(gallery), device)):
            if own is not None:
                known = np.flatnonzero(own[start:stop] >= 0)
                block[torch.from_numpy(known), torch.from_numpy(own[start:stop][known])] = -torch.inf
            for i, column in enumerate(hidden):
                mine = asked[start:stop, column]
                left = block
                if column >= 0:
                    left = block.masked_fill((mine[:, None] == table[:, column]) & (mine >= 0)[:, None], -torch.inf)
                best, place = left.topk(k, dim=1)
                scores[i, start:stop], index[i, start:stop] = best.cpu().numpy(), place.cpu().numpy()
            if progress is not None:
                progress("calibrate", stop, len(query))
    return tuple(zip(index, scores, strict=True))


# -- the file ----------------------------------------------------------------------------------------------------------


def _read_object(path: Path) -> dict[str, Any]:
    found = read_json(path, max_bytes=_MOST_BYTES)
    if not isinstance(found, dict):
        raise InputError(f"{path}: holds {type(found).__name__}; expected the object that hgld calibrate writes.")
    return found


def _parsed(found: Mapping[str, Any]) -> Calibration:
    levels = tuple(_text(name) for name in _list(found["levels"], _MOST_LEVELS))
    scalings = tuple(_scaling(one) for one in _list(found["scalings"], _MOST_LEVELS))
    if not levels or len(set(levels)) != len(levels) or len(scalings) != len(levels):
        raise ValueError(f"{len(scalings)} scalings of the levels {levels}")
    risks = {}
    for name, rows in _items(found["risks"]):
        risks[name] = tuple(LevelRisk.parse(_object(row), _text, _number) for row in _list(rows, _MOST_LEVELS))
        if tuple(risk.level for risk in risks[name]) != levels:
            raise ValueError(f"risks of {name} are not of the levels {levels}")
    neighbors = found["neighbors"]
    if type(neighbors) is not int or not 1 <= neighbors <= _MOST_NEIGHBORS:
        raise ValueError(f"neighbors is {quoted(neighbors)}")
    temperature, unknown = _number(found["temperature"]), _number(found["unknown"])
    if not (temperature > 0 and 0 <= unknown < 1):
        raise ValueError(f"temperature is {temperature}, unknown {unknown}")
    facts = dict(_items(found["facts"]))
    return Calibration(levels, scalings, neighbors, temperature, unknown, risks, facts)


def _scaling(found: Any) -> LevelScaling:
    weights = tuple(_number(weight) for weight in _list(_object(found)["weights"], _MARKS))
    if len(weights) != _MARKS:
        raise ValueError(f"{len(weights)} weights; expected {_MARKS}")
    return LevelScaling(weights, _number(found["intercept"]))


def _object(found: Any) -> dict[str, Any]:
    if not isinstance(found, dict):
        raise TypeError(f"{type(found).__name__} in place of an object")
    return found


def _items(found: Any) -> list[tuple[str, Any]]:
    return [(_text(name), value) for name, value in _list(list(_object(found).items()), _MOST_TEXT)]


def _list(found: Any, most: int) -> list[Any]:
    if not isinstance(found, list) or len(found) > most:
        raise TypeError(f"{type(found).__name__} in place of a list of at most {most}")
    return found


def _text(found: Any) -> str:
    if not isinstance(found, str) or not 0 < len(found) <= _MOST_TEXT:
        raise TypeError(f"{type(found).__name__} in place of a text of at most {_MOST_TEXT} characters")
    return found


def _number(found: Any) -> float:
    if isinstance(found, bool) or not isinstance(found, int | float) or not math.isfinite(found):
        raise TypeError(f"{quoted(str(found)[:40])} in place of a finite number")
    return float(found)
