"""Predictions for queries: the finest class that the gallery neighbours support, and the path above it."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import numpy as np
import torch

from hgld.errors import ConfigError, InputError
from hgld.evaluation.neighbors import nearest_neighbors
from hgld.evaluation.options import Progress
from hgld.evaluation.scores import checked_self_index
from hgld.labels import Array, Labels, class_names, read_label_sides
from hgld.prediction.calibration import NEIGHBORS, TEMPERATURE, Calibration
from hgld.prediction.votes import complete_labels, count_votes

MIN_CONFIDENCE = 0.8
_MOST_CLASSES = 20  # maximum number of classes that an error lists
Within = Mapping[str, int | str | Collection[int] | Collection[str]]


@dataclass(frozen=True)
class Answer:
    """The prediction for one query.

    Attributes:
        level: level of the predicted class; None: no class has enough confidence.
        path: class by level, from the predicted level up, finest first, as a name if the gallery's labels are names,
            else as an id. Levels at which the class is unknown are omitted.
        confidence: probability that the prediction is right; 0 without a prediction.
        confidences: confidence per level, finest first, of the classes that the neighbours vote for, including levels
            below ``level``.
        guess: class per level, finest first, that the neighbours vote for; the best guess if ``level`` is None.
        neighbors: gallery indices of the neighbours in the predicted class, best first.
        scores: cosine similarities of these neighbours.
    """

    level: str | None
    path: Mapping[str, int | str]
    confidence: float
    confidences: Mapping[str, float]
    guess: Mapping[str, int | str]
    neighbors: tuple[int, ...] = ()
    scores: tuple[float, ...] = ()


@dataclass(frozen=True, eq=False)
class Answers(Sequence[Answer]):
    """The predictions for Q queries: a sequence of :class:`Answer`, and the arrays behind it.

    Attributes:
        levels: names of the L levels, finest first.
        column: (Q,) int64 column of the predicted level, 0 the finest; -1: no prediction.
        paths: (Q, L) int64 class that the neighbours vote for at every level, -1 if unknown. The prediction is the part
            from ``column`` on.
        confidences: (Q, L) probability that each class of the path is right; a coarser level never has a smaller
            probability than a finer level.
        neighbors: (Q, K) int64 gallery indices, best first.
        scores: (Q, K) cosine similarities.
        supports: (Q, K) int64 finest column at which each neighbour is on the path; L if it is not on the path.
        calibrated: whether confidences are calibrated. If False, they are shares of the votes, which are usually too
            high.
        classes: class names per level, indexed by the entries of ``paths``; None if labels are ids.
    """

    levels: tuple[str, ...]
    column: np.ndarray
    paths: np.ndarray
    confidences: np.ndarray
    neighbors: np.ndarray
    scores: np.ndarray
    supports: np.ndarray
    calibrated: bool = field(default=False)
    classes: tuple[tuple[str, ...] | None, ...] = ()

    def __len__(self) -> int:
        return len(self.column)

    def __getitem__(self, index: Any) -> Any:
        rows = range(len(self))[index]
        return self._answer(rows) if isinstance(rows, int) else [self._answer(row) for row in rows]

    def _answer(self, row: int) -> Answer:
        column = int(self.column[row])
        confidences = dict(zip(self.levels, self.confidences[row].tolist(), strict=True))
        paths = enumerate(self.paths[row].tolist())
        guess = {self.levels[c]: self._class(c, label) for c, label in paths if label >= 0}
        if column < 0:
            return Answer(None, {}, 0.0, confidences, guess)
        support = self.supports[row] <= column
        return Answer(
            self.levels[column],
            {level: guess[level] for level in self.levels[column:] if level in guess},
            float(self.confidences[row, column]),
            confidences,
            guess,
            tuple(self.neighbors[row, support].tolist()),
            tuple(self.scores[row, support].tolist()),
        )

    def _class(self, column: int, label: int) -> int | str:
        names = self.classes[column] if self.classes else None
        return label if names is None else names[label]


def predict(
    query_embeddings: Array,
    gallery_embeddings: Array,
    gallery_labels: Labels,
    *,
    levels: Sequence[str] | None = None,
    calibration: Calibration | str | Path | None = None,
    min_confidence: float = MIN_CONFIDENCE,
    level: str | None = None,
    within: Within | None = None,
    self_index: Array | None = None,
    device: torch.device | str | None = None,
    progress: Progress | None = None,
) -> Answers:
    """Predict the class of each query, at the finest level that its neighbours in a gallery support.

    The neighbours vote (:func:`hgld.prediction.votes.count_votes`), and the calibration turns their votes into the
    probability that the class is right, level by level. The prediction is the finest class whose probability is at
    least ``min_confidence``, with the path above it.

    Args:
        query_embeddings: (Q, D) of any floating dtype.
        gallery_embeddings: (G, D) embeddings.
        gallery_labels: (G, L) integers, finest level first, negative if unknown; (G,) for one level. Or class names,
            a table or a dataset, in any form that :func:`hgld.labels.class_numbers` reads.
        levels: names of the L levels, finest first, or of a table's columns; None: all columns, or ``level0``, ...
        calibration: calibration that :func:`hgld.prediction.calibrate` made for the same model and levels, or its file.
            None: confidences are shares of the votes, which do not consider that the gallery may lack the query's
            class.
        min_confidence: minimum confidence of a prediction; 0: predict the finest known class, above 1: predict nothing.
        level: finest level to predict; None: the finest level of the labels.
        within: one or several classes per level, as ids or names like the labels. Only gallery items of these classes
            are searched. The confidence at these and coarser levels is 1, because the caller knows the class.
        self_index: (Q,) gallery index of the query itself, which does not vote; -1 if the query is not in the gallery.
        device: device to search on; None: the device of the query embeddings.
        progress: function called with a task, the number of queries done and the total number.

    Returns:
        the predictions; the neighbours' indices refer to the whole gallery.

    Raises:
        InputError: embeddings or labels have the wrong shape or dtype, the calibration has other levels, or no gallery
            item is in the classes of ``within``.
        HierarchyError: the labels put one class under two parents.
        ConfigError: the level is unknown, or ``min_confidence`` is not a number >= 0.

    >>> import numpy as np, hgld
    >>> gallery = np.array([[1.0, 0.0], [0.9, 0.1], [0.0, 1.0], [0.1, 0.9]])
    >>> labels = np.array([[0, 0], [0, 0], [1, 1], [2, 1]])  # product, kind
    >>> answers = hgld.predict(np.array([[1.0, 0.05], [0.05, 1.0]]), gallery, labels, levels=("product", "kind"))
    >>> [(answer.level, dict(answer.path)) for answer in answers]
    [('product', {'product': 0, 'kind': 0}), ('kind', {'kind': 1})]
    """
    (labels,), names = read_label_sides([gallery_labels], [len(gallery_embeddings)], levels, ["gallery"])
    classes = class_names(gallery_labels, levels, "gallery labels")
    if isinstance(calibration, str | Path):
        calibration = Calibration.load(Path(calibration))
    if calibration is not None:
        calibration.check_levels(names)
    kept, sure = known_within(labels, names, within or {}, classes)
    rows, own = np.flatnonzero(kept), None
    if self_index is not None:
        own = checked_self_index(self_index, len(query_embeddings))
        if len(own) and own.max() >= len(labels):
            raise InputError(f"self_index holds {own.max()}; the gallery has items 0..{len(labels) - 1}.")
        # position of the query among the searched rows
        own = np.where((own >= 0) & kept[own], np.cumsum(kept)[own] - 1, -1)
    most = len(rows) - int(own is not None and bool((own >= 0).any()))
    if most < 1:
        raise InputError(
            "only one gallery item can be searched, and it is a query itself; add classes to within, or omit it."
        )
    k = min(NEIGHBORS if calibration is None else calibration.neighbors, most)
    # if all items are searched, avoid a copy
    searched = gallery_embeddings if len(rows) == len(labels) else gallery_embeddings[rows]
    found, scores = nearest_neighbors(query_embeddings, searched, k, self_index=own, device=device, progress=progress)
    return answers_of(
        rows[found],
        scores,
        labels,
        names,
        calibration=calibration,
        min_confidence=min_confidence,
        level=level,
        sure=sure,
        classes=classes,
    )


def answers_of(
    neighbors: np.ndarray,
    scores: np.ndarray,
    gallery_labels: np.ndarray,
    levels: tuple[str, ...],
    *,
    calibration: Calibration | None,
    min_confidence: float = MIN_CONFIDENCE,
    level: str | None = None,
    sure: int | None = None,
    classes: Sequence[tuple[str, ...] | None] = (),
) -> Answers:
    """Return the predictions from neighbours that were already found.

    Args:
        neighbors: (Q, K) gallery indices, best first; only the first ``calibration.neighbors`` vote.
        scores: (Q, K) cosine similarities.
        gallery_labels: (G, L) int64, finest level first, -1 if unknown.
        levels: names of the L levels.
        calibration: calibration of the model; None: confidences are shares of the votes.
        min_confidence: minimum confidence of a prediction.
        level: finest level to predict.
        sure: finest column at which the caller knows the class; None: the caller knows no class.
        classes: class names per level, indexed by the labels; None, or empty: labels are ids.

    Raises:
        ConfigError: the level is unknown, or ``min_confidence`` is not a number >= 0.
    """
    if level is not None and level not in levels:
        raise ConfigError(f"level is {level!r}; expected one of {', '.join(levels)}.")
    if not min_confidence >= 0:
        raise ConfigError(f"min_confidence is {min_confidence}; expected a confidence of at least 0.")
    k = NEIGHBORS if calibration is None else calibration.neighbors
    temperature = TEMPERATURE if calibration is None else calibration.temperature
    neighbors, scores = neighbors[:, :k], scores[:, :k]
    votes = count_votes(scores, complete_labels(gallery_labels)[neighbors], temperature)
    confidences = votes.shares.copy() if calibration is None else calibration.confidences(votes)
    if sure is not None:
        confidences[:, sure:] = 1.0
    allowed = (votes.labels >= 0) & (confidences >= min_confidence)
    allowed[:, : levels.index(level) if level else 0] = False
    column = np.where(allowed.any(axis=1), allowed.argmax(axis=1), -1)
    calibrated = calibration is not None
    return Answers(
        levels, column, votes.labels, confidences, neighbors, scores, votes.supports, calibrated, tuple(classes)
    )


def known_within(
    gallery_labels: np.ndarray,
    levels: Sequence[str],
    within: Within,
    classes: Sequence[Sequence[str] | None] = (),
) -> tuple[np.ndarray, int | None]:
    """Return (G,) bool for the gallery items in given classes, and the finest column at which the class is known.

    Args:
        gallery_labels: (G, L) labels.
        levels: names of the levels.
        within: classes per level; an item must be in one of the classes at every given level.
        classes: class names per level, indexed by the labels; None, or empty: labels are ids.

    Raises:
        ConfigError: a level is unknown.
        InputError: no item is left, or ``within`` mixes ids and names.
    """
    kept, columns = np.ones(len(gallery_labels), bool), []
    for name, wanted in within.items():
        if name not in levels:
            raise ConfigError(f"within {name}={wanted}: unknown level; the levels are {', '.join(levels)}.")
        asked = [wanted] if isinstance(wanted, int | np.integer | str) else list(wanted)
        columns.append(list(levels).index(name))
        column = gallery_labels[:, columns[-1]]
        named = classes[columns[-1]] if classes else None
        known: dict[Any, int] = {i: i for i in np.unique(column).tolist()} if named is None else {}
        known |= {text: i for i, text in enumerate(named or ())}
        if (unknown := next((one for one in asked if one not in known), None)) is not None:
            there = list(map(str, known))
            near = get_close_matches(str(unknown), there, n=3, cutoff=0.5) or sorted(there)[:_MOST_CLASSES]
            kind = "ids" if named is None else "names"
            raise InputError(
                f"within {name}={unknown!r}: unknown class; classes of {name} have {kind}, such as {', '.join(near)}."
            )
        kept &= np.isin(column, [known[one] for one in asked]) & (column >= 0)
        if len(asked) > 1:
            columns.pop()  # several allowed classes do not fix the class at this level
    if not kept.any():
        said = ", ".join(f"{name}={wanted}" for name, wanted in within.items())
        raise InputError(f"no gallery item belongs to {said}; omit within, or choose classes of the gallery.")
    return kept, min(columns, default=None)
