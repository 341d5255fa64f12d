"""Search of a dataset by image files or texts: answers, and the nearest images to each."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cosine_similarity

from hgld.data.dataset import ShardDataset
from hgld.distributed import any_process
from hgld.errors import ConfigError, InputError
from hgld.evaluation.embedding_files import KEY, check_same_items, read_embeddings, read_labels
from hgld.evaluation.neighbors import nearest_neighbors
from hgld.evaluation.options import Progress
from hgld.prediction.predict import answers_of, known_within

from .answers import NO_ANSWERS, Asking
from .embedder import Embedder
from .embedding import faults_file, labels_file
from .search_index import KeptIndex

_COMPARED = 8  # items of kept embeddings that are embedded again
_ALIKE = 0.98  # mean cosine to these: half precision and other decoders stay above, another scale falls below


@dataclass(frozen=True)
class Match:
    """An item of the dataset found for a query.

    Attributes:
        rank: from 1.
        score: cosine similarity to the query.
        key: of the item.
        index: of the item in the dataset.
        classes: name of its class by level, finest first; None where unknown.
    """

    rank: int
    score: float
    key: str
    index: int
    classes: dict[str, str | None]


@dataclass(frozen=True)
class NamedAnswer:
    """The answer to a query, by the names of the classes.

    Attributes:
        level: at which it is given; None: no class is sure enough.
        path: name of the class by level, from the answer's up, finest first.
        confidence: probability that it is right; 0 without an answer.
        support: keys of the neighbours that are of its class, best first.
    """

    level: str | None
    path: dict[str, str]
    confidence: float
    support: tuple[str, ...]


@dataclass(frozen=True)
class QueryMatches:
    """The matches of one query, best first.

    Attributes:
        image: the file, or the text.
        matches: the nearest items.
        answer: the class of the query; None where there is no calibration, and for a text.
        is_text: whether the query is a text.
    """

    image: str
    matches: tuple[Match, ...]
    answer: NamedAnswer | None = None
    is_text: bool = False

    def to_dict(self) -> dict[str, Any]:
        """Return the matches as a JSON-ready dictionary."""
        found: dict[str, Any] = {"text" if self.is_text else "image": self.image}
        found |= {} if self.answer is None else {"answer": asdict(self.answer)}
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

    def within(self, dataset: ShardDataset, asking: Asking) -> "Gallery":
        """Return the items of the classes that are asked for.

        Raises:
            InputError: there is none.
        """
        if not asking.within:
            return self
        kept, _ = known_within(dataset.labels.numpy()[self.positions], dataset.levels, asking.within)
        rows = np.flatnonzero(kept)
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
    sides = [embedder.embed_texts(texts)] if texts else []  # first, so that bad queries cost no embedding of a dataset
    query = torch.cat([embedder.embed_files(images), *sides] if images else sides)
    asked = _Queries(tuple(map(str, images)), tuple(texts), dataset, asking, k)
    if index is None:
        items = (gallery or _embedded(embedder, dataset, progress)).within(dataset, asking)
        most, device = asked.most(items.positions), embedder.processes.device
        places, scores = nearest_neighbors(query, items.vectors, most, device=device, progress=progress)
        return asked.result(items.positions[places], scores, items.left_out)
    # Every process checks before the main one makes the index, because they embed together or not at all.
    if any_process(not index.is_current, embedder.processes):
        gallery = gallery or _embedded(embedder, dataset, progress)
    else:
        gallery = None
    if not embedder.processes.is_main:
        return SearchResult((), 0)
    opened = index.load() if gallery is None else index.make(gallery.vectors, gallery.positions)
    places, scores = opened.nearest(query, asked.most(opened.positions))
    return asked.result(places, scores, len(dataset) - len(opened.positions))


def _embedded(embedder: Embedder, dataset: ShardDataset, progress: Progress | None) -> Gallery:
    embedded = embedder.embed_readable(dataset, progress)
    left_out = [fault.index for fault in embedded.faults]
    return Gallery(embedded.vectors, np.setdiff1d(np.arange(len(dataset)), left_out), len(left_out))


@dataclass(frozen=True)
class _Queries:
    """Queries of a search, and what is asked of them."""

    images: tuple[str, ...]
    texts: tuple[str, ...]
    dataset: ShardDataset
    asking: Asking
    k: int

    def most(self, positions: np.ndarray) -> int:
        """Return the number of neighbours to look for: those to show, and those that vote."""
        voting = 0 if self.asking.calibration is None else self.asking.calibration.neighbors
        return min(max(self.k, voting) if self.k > 0 else self.k, len(positions))

    def result(self, places: np.ndarray, scores: np.ndarray, left_out: int) -> SearchResult:
        """Return what was found at these positions of the dataset, (Q, K) both."""
        answers = [*self._answers(places[: len(self.images)], scores), *(None for _ in self.texts)]
        found = []
        for i, (query, row, row_scores) in enumerate(
            zip((*self.images, *self.texts), places.tolist(), scores.tolist(), strict=True)
        ):
            ranked = enumerate(zip(row[: self.k], row_scores[: self.k], strict=True), 1)
            matches = tuple(_match(self.dataset, rank, place, score) for rank, (place, score) in ranked)
            found.append(QueryMatches(query, matches, answers[i], i >= len(self.images)))
        return SearchResult(tuple(found), left_out)

    def _answers(self, places: np.ndarray, scores: np.ndarray) -> list[NamedAnswer | None]:
        asking, dataset = self.asking, self.dataset
        if asking.calibration is None or not len(places):
            return [None] * len(places)
        labels = dataset.labels.numpy().astype(np.int64)
        found = answers_of(
            places,
            scores[: len(places)],
            labels,
            dataset.levels,
            calibration=asking.calibration,
            min_confidence=asking.min_confidence,
            level=asking.level,
            sure=known_within(labels, dataset.levels, asking.within or {})[1],
            classes=dataset.hierarchy.names,
        )
        return [
            NamedAnswer(
                one.level,
                {level: str(name) for level, name in one.path.items()},
                round(one.confidence, 4),
                tuple(dataset.keys[i] for i in one.neighbors),
            )
            for one in found
        ]


def _match(dataset: ShardDataset, rank: int, index: int, score: float) -> Match:
    names, labels = dataset.hierarchy.names, dataset.labels[index].tolist()
    classes = {
        level: names[c][label] if label >= 0 else None
        for c, (level, label) in enumerate(zip(dataset.levels, labels, strict=True))
    }
    return Match(rank, round(score, 6), dataset.keys[index], index, classes)


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
    check_same_items(embeddings, items, (path, labels_file(path)))
    keys = dataset.keys.alias(KEY)
    positions = (
        np.flatnonzero(keys.is_in(items[KEY].implode()).to_numpy()) if KEY in items.columns else np.empty(0, int)
    )
    left_out = len(dataset) - len(positions)
    named = left_out == 0 or faults_file(path).is_file()  # as hgld embed names the items that it left out
    if not (len(positions) and named and keys.gather(positions).equals(items.get_column(KEY))):
        raise InputError(f"{labels_file(path)}: not the items of {dataset!r}. Embed that split anew with hgld embed.")
    _check_model(path, embeddings.values, dataset.select(positions), embedder)
    return Gallery(embeddings.values, positions, left_out)


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
