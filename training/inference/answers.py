"""Calibration of a model's predictions on a dataset, and the file in which a run keeps it."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from hgld.data.dataset import ShardDataset, open_dataset
from hgld.errors import InputError
from hgld.evaluation.options import Progress
from hgld.evaluation.protocols.benchmark import filled_splits, open_searched
from hgld.prediction.calibration import CALIBRATION, NEIGHBORS, UNKNOWN, Calibration, Cases, calibrate
from hgld.prediction.predict import MIN_CONFIDENCE

from .embedder import Embedded, Embedder
from .kept import embedding_facts


def calibrate_answers(
    embedder: Embedder,
    place: str,
    *,
    split: str = "val",
    gallery_split: str | None = None,
    test_split: str | None = None,
    neighbors: int = NEIGHBORS,
    unknown: float = UNKNOWN,
    progress: Progress | None = None,
) -> Calibration | None:
    """Calibrate a model's predictions on a dataset, in the gallery that will be searched.

    Args:
        embedder: the model; its processes embed together.
        place: dataset directory or its address.
        split: of the queries that the calibration is fitted on; the model was not trained on them.
        gallery_split: split that is searched; None: what :func:`hgld.training.inference.search.search` searches in.
        test_split: split whose queries measure the calibration; None: ``test`` where there is one, else none.
        neighbors: number of neighbours that vote.
        unknown: share of the queries to come whose class the gallery lacks.
        progress: called with a task, the number of units done and their total.

    Returns:
        the calibration; None on all processes but the main one.

    Raises:
        InputError: a split that is not there, or too few classes.
        ConfigError: numbers out of their range.
    """
    whole = open_dataset(place)
    named = filled_splits(whole)
    if split not in named:
        raise InputError(
            f"{place}: no split {split!r} with images; it has {', '.join(named)}. Take one that training did not see "
            "(--split), or make one of classes of its own: hgld build-shards --val-classes 0.2."
        )
    if test_split is None and "test" in named and split != "test":
        test_split = "test"
    gallery = open_searched(place) if gallery_split is None else open_dataset(place, gallery_split)
    asked = [open_dataset(place, name) for name in (split, test_split) if name]
    wanted = set(gallery.keys).union(*(set(part.keys) for part in asked))
    rows = np.flatnonzero(whole.keys.is_in(list(wanted)).to_numpy())
    embedded = embedder.embed_readable(whole.select(rows), progress)
    if not embedder.processes.is_main:
        return None
    facts: dict[str, Any] = {"dataset": whole.manifest.name, "split": split, "items": len(asked[0])}
    facts |= {"gallery": gallery_split or "searched by default", "gallery_items": len(gallery)}
    facts |= {"checkpoint": embedder.checkpoint} if embedder.checkpoint else {}
    fitted, *tested = (_cases(embedded, part, gallery, progress) for part in asked)
    given = (fitted.queries, fitted.labels, fitted.gallery, fitted.gallery_labels)
    made = calibrate(
        *given,
        levels=whole.levels,
        self_index=fitted.self_index,
        neighbors=neighbors,
        unknown=unknown,
        name=split,
        facts=facts | {"model": embedding_facts(embedder)},
        progress=progress,
    )
    return made.measured(tested[0], str(test_split)) if tested else made


def _cases(embedded: Embedded, queries: ShardDataset, gallery: ShardDataset, progress: Progress | None) -> Cases:
    """Return the readable queries and gallery items; a query in the gallery does not find itself."""
    found = embedded.dataset
    asked = np.flatnonzero(found.keys.is_in(queries.keys.implode()).to_numpy())
    searched = np.flatnonzero(found.keys.is_in(gallery.keys.implode()).to_numpy())
    if not len(asked) or len(searched) < 2:
        raise InputError(f"{queries!r}: no image of it, or fewer than two of the gallery, can be read.")
    place = np.full(len(found), -1)
    place[searched] = np.arange(len(searched))
    labels = found.labels.numpy().astype(np.int64)
    return Cases(
        embedded.vectors[asked], labels[asked], embedded.vectors[searched], labels[searched], place[asked], progress
    )


def calibration_of(
    embedder: Embedder, run: Path | None, given: Path | None, dataset: ShardDataset
) -> tuple[Calibration | None, str]:
    """Return the calibration to predict with, and the reason for which a run's own is not taken.

    A run's own file is taken without being asked for, so one that is damaged or of another model is no error here.

    Args:
        embedder: the model that answers.
        run: folder of the model's run; None: a network.
        given: a file to take; None: the run's own, where it has one that fits.
        dataset: that is searched.

    Raises:
        InputError: the file that is given cannot be read, or is of other levels or another model.
    """
    file = given or (None if run is None else run / CALIBRATION)
    if file is None or (given is None and not file.is_file()):
        return None, ""
    try:
        found = Calibration.load(file)
    except InputError as error:
        if given is not None:
            raise
        return None, f"{error} No answers until then."
    reason = _misfit(found, embedder, dataset)
    if reason and given is not None:
        raise InputError(f"{file}: {reason}. Calibrate again: hgld calibrate.")
    return (None, f"{file}: {reason}; no answers. Calibrate again: hgld calibrate") if reason else (found, "")


def _misfit(found: Calibration, embedder: Embedder, dataset: ShardDataset) -> str:
    if found.levels != dataset.levels:
        return f"it is of the levels {', '.join(found.levels)}, the dataset's are {', '.join(dataset.levels)}"
    made, here = found.facts.get("model"), embedding_facts(embedder)
    if not isinstance(made, dict):
        return "it does not say which model it is of"
    other = [name for name, value in here.items() if made.get(name) != value]
    return f"it was made with other {' and '.join(other)}" if other else ""


@dataclass(frozen=True)
class Asking:
    """Options of the predictions of a search.

    Attributes:
        calibration: gives the confidences; None: no predictions.
        min_confidence: least confidence of a prediction.
        level: finest level to predict; None: the finest.
        within: class names by level, which the queries are known to be of.
    """

    calibration: Calibration | None = None
    min_confidence: float = MIN_CONFIDENCE
    level: str | None = None
    within: Mapping[str, str] | None = None


NO_ANSWERS = Asking()
