"""Search of a dataset by image files or texts: the nearest images to each, and predictions."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cosine_similarity

from hgld.data.dataset import ShardDataset, dataset_of_images
from hgld.distributed import any_process
from hgld.errors import ConfigError, InputError
from hgld.evaluation.embedding_files import KEY, check_row_count, read_embeddings, read_labels
from hgld.evaluation.neighbors import nearest_neighbors
from hgld.evaluation.options import Progress
from hgld.prediction.predict import Answer, answers_of, known_within
from hgld.prediction.search import Match, Matches

from .answers import NO_ANSWERS, Asking
from .embedder import Embedder
from .embedding import faults_file, labels_file
from .kept import embed_once
from .search_index import KeptIndex

_COMPARED = 8  # items of kept embeddings that are embedded again
_ALIKE = 0.98  # mean cosine to these: half precision and other decoders stay above, another scale falls below


@dataclass(frozen=True)
class QueryMatches:
    """The matches of one query, best first.

    Attributes:
        image: the file, or the text.
        matches: the nearest items.
        answer: prediction for the query; None without a calibration, and for a text.
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
        found: the matches of every file, in their order.
        left_out: number of items of the dataset that were not searched, because they could not be read.
    """

    found: tuple[QueryMatches, ...]
    left_out: int


@dataclass(frozen=True, eq=False)
class Gallery:
    """Embeddings of the items of a dataset that could be read.

    Attributes:
        vectors: (G, D).
        positions: (G,) int64 of the items in the dataset, ascending.
        left_out: number of items that could not be read.
    """

    vectors: Tensor | np.ndarray
    positions: np.ndarray
    left_out: int = 0

    def within(self, kept: np.ndarray) -> "Gallery":
        """Return the items that are kept: (N,) bool of the dataset's."""
        if kept.all():
            return self
        rows = np.flatnonzero(kept[self.positions])
        return replace(self, vectors=self.vectors[rows], positions=self.positions[rows])


def search(
    embedder: Embedder,
    images: Sequence[Path],
    dataset: ShardDataset,
    *,
    k: int = 10,
    gallery: Gallery | None = None,
    index: KeptIndex | None = None,
    asking: Asking = NO_ANSWERS,
    texts: Sequence[str] = (),
    progress: Progress | None = None,
) -> SearchResult:
    """Find the k images of a dataset that are nearest to each of some image files and texts, and what they show.

    Args:
        embedder: embeds the files, and the dataset if need be.
        images: the files.
        dataset: N items to search.
        k: matches a file; all readable items if there are fewer.
        gallery: embeddings of the dataset by the same model; None: they are computed.
        index: of these embeddings, made anew if it is not there or is of others; None: the search is exhaustive.
        asking: how queries are answered, and the classes within which they search. A text is not answered, because
            its scores are not those of images.
        texts: queries by their meaning, of a model with a text tower.
        progress: called with a task, the number of units done and their total.

    Returns:
        the matches, of the files and then of the texts; with an index the main process alone searches, and the others
        return nothing.

    Raises:
        InputError: a file, or every item of the dataset, cannot be read; embeddings of another model's size; an index
            that is damaged or was not written by a search.
        ConfigError: k below 1, texts for a model without a text tower, or an index beside ``within``.
        StorageError: the index cannot be kept.
    """
    if index is not None and asking.within:
        raise ConfigError("an index searches in all items; leave it out (--index exact) to search within some classes.")
    labels, names = dataset.labels.numpy().astype(np.int64), dataset.hierarchy.names
    kept, sure = known_within(labels, dataset.levels, asking.within or {}, names)
    sides = [embedder.embed_texts(texts)] if texts else []  # first, so that bad queries cost no embedding of a dataset
    query = torch.cat([embedder.embed_dataset(dataset_of_images(images)), *sides] if images else sides)
    asked = _Queries(tuple(map(str, images)), tuple(texts), dataset, asking, k, sure)
    if index is None:
        items = (gallery or _embedded(embedder, dataset, progress)).within(kept)
        most, device = asked.most(items.positions), embedder.processes.device
        places, scores = nearest_neighbors(query, items.vectors, most, device=device, progress=progress)
        return asked.result(items.positions[places], scores, items.left_out)
    opened = index.load()
    if any_process(opened is None, embedder.processes):  # they embed together or not at all
        gallery, opened = gallery or _embedded(embedder, dataset, progress), None
    if not embedder.processes.is_main:
        return SearchResult((), 0)
    if opened is None:
        assert gallery is not None
        opened = index.make(gallery.vectors, gallery.positions)
    places, scores = opened.nearest(query, asked.most(opened.positions))
    return asked.result(places, scores, len(dataset) - len(opened.positions))


def _embedded(embedder: Embedder, dataset: ShardDataset, progress: Progress | None) -> Gallery:
    embedded = embed_once(embedder, dataset, progress)
    return Gallery(embedded.vectors, embedded.positions(len(dataset)), len(embedded.faults))


@dataclass(frozen=True)
class _Queries:
    """Queries of a search, and what is asked of them."""

    images: tuple[str, ...]
    texts: tuple[str, ...]
    dataset: ShardDataset
    asking: Asking
    k: int
    sure: int | None

    def most(self, positions: np.ndarray) -> int:
        """Return the number of neighbours to look for: those to show, and those that vote."""
        voting = 0 if self.asking.calibration is None else self.asking.calibration.neighbors
        return min(max(self.k, voting) if self.k > 0 else self.k, len(positions))

    def result(self, places: np.ndarray, scores: np.ndarray, left_out: int) -> SearchResult:
        """Return what was found at these positions of the dataset, (Q, K) both."""
        answers = [*self._answers(places[: len(self.images)], scores), *(None for _ in self.texts)]
        ranked = Matches(places[:, : self.k], scores[:, : self.k], self.dataset)
        found = []
        for i, (query, matches, answer) in enumerate(zip((*self.images, *self.texts), ranked, answers, strict=True)):
            support = () if answer is None else tuple(self.dataset.keys[item] for item in answer.neighbors)
            found.append(QueryMatches(query, tuple(matches), answer, support, i >= len(self.images)))
        return SearchResult(tuple(found), left_out)

    def _answers(self, places: np.ndarray, scores: np.ndarray) -> Sequence[Answer | None]:
        asking, dataset = self.asking, self.dataset
        if asking.calibration is None or not len(places):
            return [None] * len(places)
        return answers_of(
            places,
            scores[: len(places)],
            dataset.labels.numpy().astype(np.int64),
            dataset.levels,
            calibration=asking.calibration,
            min_confidence=asking.min_confidence,
            level=asking.level,
            sure=self.sure,
            classes=dataset.hierarchy.names,
        )


def kept_embeddings(path: Path, dataset: ShardDataset, embedder: Embedder) -> Gallery:
    """Read embeddings of a dataset that ``hgld embed`` has written.

    The files do not say which model made them, so a few items are embedded again and compared.

    Args:
        path: the embeddings; their keys lie beside them (:func:`hgld.training.inference.embedding.labels_file`).
        dataset: the dataset that they are of; items that could not be read are missing.
        embedder: the embedder that must have made them.

    Raises:
        InputError: a file cannot be read, or it is of other items, another order or another model.
    """
    embeddings, items = read_embeddings(path), read_labels(labels_file(path), dataset.levels)
    check_row_count(embeddings, items, (path, labels_file(path)))
    keys = dataset.keys.alias(KEY)
    positions = (
        np.flatnonzero(keys.is_in(items[KEY].implode()).to_numpy()) if KEY in items.columns else np.empty(0, int)
    )
    left_out = len(dataset) - len(positions)
    named = left_out == 0 or faults_file(path).is_file()  # as hgld embed names the items that it left out
    if not (len(positions) and named and keys.gather(positions).equals(items.get_column(KEY))):
        raise InputError(f"{labels_file(path)}: not the items of {dataset!r}. Embed that split anew with hgld embed.")
    _check_model(path, embeddings, dataset.select(positions), embedder)
    return Gallery(embeddings, positions, left_out)


def _check_model(path: Path, vectors: Tensor | np.ndarray, dataset: ShardDataset, embedder: Embedder) -> None:
    """Refuse embeddings of a dataset's items that are not this model's."""
    rows = np.unique(np.linspace(0, len(dataset) - 1, _COMPARED).astype(int))
    expected = embedder.embed_dataset(dataset.select(rows))
    if vectors.shape[1] != expected.shape[1]:
        found = f"{vectors.shape[1]} dimensions; expected {expected.shape[1]}"
    else:
        kept = vectors[rows] if isinstance(vectors, Tensor) else torch.from_numpy(vectors[rows].astype(np.float32))
        alike = float(cosine_similarity(kept.float(), expected).mean())
        if alike >= _ALIKE:
            return
        found = f"{len(rows)} of them have a mean cosine of {alike:.3f} to this model's; expected 1"
    raise InputError(
        f"{path}: embeddings of another model: {found}. Search with the checkpoint and options that they were made "
        "with, or embed that split anew with hgld embed."
    )
