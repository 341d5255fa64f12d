"""Search of a dataset by image files or texts: nearest images, predictions, and the calibration of predictions."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cosine_similarity

from hgld.data.dataset import ShardDataset, dataset_of_images, open_dataset
from hgld.distributed import any_process
from hgld.errors import ConfigError, InputError
from hgld.evaluation.embedding_files import KEY, check_row_count, read_embeddings, read_labels
from hgld.evaluation.neighbors import nearest_neighbors
from hgld.evaluation.options import Progress
from hgld.evaluation.protocols.benchmark import filled_splits, open_searched
from hgld.prediction.calibration import CALIBRATION, NEIGHBORS, UNKNOWN, Calibration, Cases, calibrate
from hgld.prediction.predict import MIN_CONFIDENCE, Answer, answers_of, known_within
from hgld.prediction.search import Match, Matches

from .embedder import Embedded, Embedder
from .embedding import faults_file, labels_file
from .kept import embed_once, embedding_facts
from .search_index import KeptIndex


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
        place: dataset directory or its URL.
        split: split of queries on which the calibration is fitted; the model must not have been trained on it.
        gallery_split: split that is searched; None: the split that a search of the dataset uses by default.
        test_split: split whose queries measure the calibration; None: ``test`` if the dataset has it, else no split.
        neighbors: number of neighbours that vote.
        unknown: share of future queries whose class the gallery lacks.
        progress: function called with a task, the number of units done and the total number.

    Returns:
        the calibration; None on all processes but the main process.

    Raises:
        InputError: a split does not exist, or has too few classes.
        ConfigError: ``neighbors`` or ``unknown`` is out of range.
    """
    whole = open_dataset(place)
    named = filled_splits(whole)
    if split not in named:
        raise InputError(
            f"{place}: no split {split!r} with images; it has {', '.join(named)}. Choose a split that training did not "
            "see (--split), or build one with separate classes: hgld build-shards --val-classes 0.2."
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
        raise InputError(
            f"{queries!r}: {len(asked):,} query images and {len(searched):,} gallery images can be read; expected at "
            "least 1 query image and 2 gallery images."
        )
    place = np.full(len(found), -1)
    place[searched] = np.arange(len(searched))
    labels = found.labels.numpy().astype(np.int64)
    return Cases(
        embedded.vectors[asked], labels[asked], embedded.vectors[searched], labels[searched], place[asked], progress
    )


def calibration_of(
    embedder: Embedder, run: Path | None, given: Path | None, dataset: ShardDataset
) -> tuple[Calibration | None, str]:
    """Return the calibration to predict with, and the reason if the run's own calibration is not used.

    A run's own file is used by default, so a file that is damaged or belongs to another model is not an error here.

    Args:
        embedder: the model that predicts.
        run: folder of the model's run; None: the model is a pretrained network without a run.
        given: file of a calibration; None: the run's own calibration, if it fits the model and the dataset.
        dataset: dataset that is searched.

    Raises:
        InputError: the file ``given`` cannot be read, or belongs to other levels or another model.
    """
    file = given or (None if run is None else run / CALIBRATION)
    if file is None or (given is None and not file.is_file()):
        return None, ""
    try:
        found = Calibration.load(file)
    except InputError as error:
        if given is not None:
            raise
        return None, f"{error} Until then, no class is predicted."
    model, reason = found.facts.get("model"), ""
    if found.levels != dataset.levels:
        reason = f"it has the levels {', '.join(found.levels)}, but the dataset has {', '.join(dataset.levels)}"
    elif not isinstance(model, dict):
        reason = "it does not state its model"
    elif other := [name for name, value in embedding_facts(embedder).items() if model.get(name) != value]:
        reason = f"it was made with other {' and '.join(other)}"
    if not reason:
        return found, ""
    if given is not None:
        raise InputError(f"{file}: {reason}. Calibrate again: hgld calibrate.")
    return None, f"{file}: {reason}, so no class is predicted. Calibrate again: hgld calibrate"


# -- the search itself --

_COMPARED = 8  # number of items that are embedded again and compared
# minimum mean cosine of one model's embeddings: other precisions and decoders stay above, other scales do not
_SAME_MODEL = 0.98


@dataclass(frozen=True)
class QueryMatches:
    """The matches of one query, best first.

    Attributes:
        image: the file, or the text.
        matches: the nearest items.
        answer: prediction for the query; None if there is no calibration, or the query is a text.
        support: keys of the images that are of the predicted class, best first.
        is_text: whether the query is a text.
    """

    image: str
    matches: tuple[Match, ...]
    answer: Answer | None = None
    support: tuple[str, ...] = ()
    is_text: bool = False

    def to_dict(self) -> dict[str, Any]:
        """Return the matches as a JSON-ready dictionary."""
        found: dict[str, Any] = {"text" if self.is_text else "image": self.image}
        if (answer := self.answer) is not None:
            facts = {"level": answer.level, "path": dict(answer.path), "guess": dict(answer.guess)}
            facts["confidence"] = round(answer.confidence, 4)
            facts["confidences"] = {level: round(one, 4) for level, one in answer.confidences.items()}
            found["answer"] = facts | {"support": list(self.support)}
        return found | {"matches": [vars(match) for match in self.matches]}


@dataclass(frozen=True)
class SearchResult:
    """The result of a search.

    Attributes:
        found: the matches of every query, in the order of the queries.
        left_out: number of items of the dataset that could not be read, so that they were not searched.
    """

    found: tuple[QueryMatches, ...]
    left_out: int


Gallery = tuple[Tensor | np.ndarray, np.ndarray]
"""(G, D) embeddings of the items of a dataset that could be read, and their (G,) positions in it, ascending."""


def search(
    embedder: Embedder,
    images: Sequence[Path] | Sequence[bytes],
    dataset: ShardDataset,
    *,
    k: int = 10,
    gallery: Gallery | None = None,
    index: KeptIndex | None = None,
    calibration: Calibration | None = None,
    min_confidence: float = MIN_CONFIDENCE,
    level: str | None = None,
    within: Mapping[str, str] | None = None,
    texts: Sequence[str] = (),
    progress: Progress | None = None,
) -> SearchResult:
    """Find the k images of a dataset nearest to each image file and text, and predict what the files show.

    Args:
        embedder: model that embeds the queries, and the dataset if ``gallery`` is None.
        images: paths of the query images, or encoded images.
        dataset: N items to search.
        k: number of matches per query; all readable items if there are fewer.
        gallery: embeddings of the dataset by the same model; None: they are computed.
        index: index of these embeddings; it is built if it is missing or stale. None: the search is exhaustive.
        calibration: calibration that gives the confidences of predictions; None: no predictions. A text has no
            prediction, because calibrations hold only for scores of images.
        min_confidence: minimum confidence of a prediction.
        level: finest level to predict; None: the finest.
        within: class names by level, if the queries are known to belong to these classes; only images of these classes
            are searched.
        texts: text queries, for a model with a text tower.
        progress: function called with a task, the number of units done and the total number.

    Returns:
        the matches of the files, then of the texts; only the main process searches, and the other
            processes return nothing.

    Raises:
        InputError: a file, or every item of the dataset, cannot be read; the embeddings have another dimension than the
            model's embeddings; the index is damaged or was not written by a search.
        ConfigError: ``k`` is below 1, the model has no text tower for the texts, or an index is given together with
            ``within``.
        StorageError: the index cannot be written to the cache.
    """
    if index is not None and within:
        raise ConfigError("an index searches all items. To search within some classes, use --index exact.")
    labels, names = dataset.labels.numpy().astype(np.int64), dataset.hierarchy.names
    kept, sure = known_within(labels, dataset.levels, within or {}, names)
    # first, so that an invalid query is reported before the dataset is embedded
    sides = [embedder.embed_texts(texts)] if texts else []
    query = torch.cat([embedder.embed_dataset(dataset_of_images(images)), *sides] if images else sides)
    most = k if calibration is None or k < 1 else max(k, calibration.neighbors)
    opened = None if index is None else index.load()
    is_embedded = any_process(opened is None, embedder.processes)  # either all processes embed, or none
    if is_embedded and gallery is None:
        embedded = embed_once(embedder, dataset, progress)
        gallery = embedded.vectors, embedded.positions(len(dataset))
    if not embedder.processes.is_main:
        return SearchResult((), 0)
    if index is not None:
        if is_embedded or opened is None:
            assert gallery is not None
            opened = index.make(*gallery)
        searched = len(opened.positions)
        places, scores = opened.nearest(query, min(most, searched))
    else:
        assert gallery is not None
        vectors, positions = gallery
        searched, device = len(positions), embedder.processes.device
        if not kept.all():
            rows = np.flatnonzero(kept[positions])
            vectors, positions = vectors[rows], positions[rows]
        nearest, scores = nearest_neighbors(query, vectors, min(most, len(positions)), device=device, progress=progress)
        places = positions[nearest]
    answers: list[Answer | None] = [None] * len(places)
    if calibration is not None and images:
        answers[: len(images)] = answers_of(
            places[: len(images)],
            scores[: len(images)],
            labels,
            dataset.levels,
            calibration=calibration,
            min_confidence=min_confidence,
            level=level,
            sure=sure,
            classes=names,
        )
    ranked = Matches(places[:, :k], scores[:, :k], dataset)
    result = []
    for number, (asked, matches, answer) in enumerate(zip((*images, *texts), ranked, answers, strict=True)):
        support = () if answer is None else tuple(dataset.keys[item] for item in answer.neighbors)
        name = "photo" if isinstance(asked, bytes) else str(asked)
        result.append(QueryMatches(name, tuple(matches), answer, support, number >= len(images)))
    return SearchResult(tuple(result), len(dataset) - searched)


def kept_embeddings(path: Path, dataset: ShardDataset, embedder: Embedder) -> Gallery:
    """Read embeddings of a dataset that ``hgld embed`` has written.

    The files do not say which model made them, so a few items are embedded again and compared.

    Args:
        path: file of the embeddings, with its labels file next to it
            (:func:`hgld.training.inference.embedding.labels_file`).
        dataset: dataset that was embedded; its unreadable items have no embeddings.
        embedder: embedder that must have made the embeddings.

    Raises:
        InputError: a file cannot be read, or belongs to other items, another order or another model.
    """
    embeddings, items = read_embeddings(path), read_labels(labels_file(path), dataset.levels)
    check_row_count(embeddings, items, (path, labels_file(path)))
    keys = dataset.keys.alias(KEY)
    positions = (
        np.flatnonzero(keys.is_in(items[KEY].implode()).to_numpy()) if KEY in items.columns else np.empty(0, int)
    )
    # this file lists the items that hgld embed could not read
    is_whole = len(positions) == len(dataset) or faults_file(path).is_file()
    if not (len(positions) and is_whole and keys.gather(positions).equals(items.get_column(KEY))):
        raise InputError(
            f"{labels_file(path)}: its items are not the items of {dataset!r}. Embed that split again with hgld embed."
        )
    rows = np.unique(np.linspace(0, len(positions) - 1, _COMPARED).astype(int))
    expected = embedder.embed_dataset(dataset.select(positions[rows]))
    if embeddings.shape[1] != expected.shape[1]:
        found = f"{embeddings.shape[1]} dimensions; expected {expected.shape[1]}"
    else:
        similarity = float(
            cosine_similarity(torch.as_tensor(np.asarray(embeddings[rows], np.float32)), expected).mean()
        )
        if similarity >= _SAME_MODEL:
            return embeddings, positions
        found = f"{len(rows)} of them have a mean cosine of {similarity:.3f} to this model's; expected 1"
    raise InputError(
        f"{path}: embeddings of another model: {found}. Search with the checkpoint and options that they were made "
        "with, or embed that split again with hgld embed."
    )
