"""The nearest images of a dataset to images of anyone."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from hgld.dataset import ShardDataset
from hgld.embedding_files import KEY, check_same_items, read_embeddings, read_labels
from hgld.errors import InputError
from hgld.evaluator import Progress
from hgld.neighbors import nearest_neighbors
from training.embedder import Embedder
from training.embedding import labels_file


@dataclass(frozen=True)
class Match:
    """An image of the dataset that was found.

    Attributes:
        rank: from 1.
        score: cosine similarity to the query.
        key: of the item.
        index: of the item in the dataset.
        classes: name of its class a level, finest first; None where unknown.
    """

    rank: int
    score: float
    key: str
    index: int
    classes: dict[str, str | None]


@dataclass(frozen=True)
class Found:
    """What was found for one image, best first."""

    image: str
    matches: tuple[Match, ...]

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        return {"image": self.image, "matches": [vars(match) for match in self.matches]}


def search(
    embedder: Embedder,
    images: Sequence[Path],
    dataset: ShardDataset,
    *,
    k: int = 10,
    gallery: Tensor | np.ndarray | None = None,
    progress: Progress | None = None,
) -> list[Found]:
    """The k images of a dataset that are nearest to each of some image files, by exhaustive search.

    Args:
        embedder: of the files, and of the dataset.
        images: the files.
        dataset: what is searched in: N items.
        k: how many; all N where there are fewer.
        gallery: (N, D) embeddings of the dataset by the same model; None: they are computed.
        progress: called with a task, the number of units done and their total.

    Returns:
        an answer for every file, in their order.

    Raises:
        InputError: a file, or an item of the dataset, cannot be read; embeddings of another model's size.
        ConfigError: k below 1.
    """
    query = embedder.embed_files(images)  # bad files are named before the dataset is embedded
    items = embedder.embed_dataset(dataset, progress) if gallery is None else gallery
    most = min(k, len(dataset))
    places, scores = nearest_neighbors(query, items, most, device=embedder.processes.device, progress=progress)
    found = []
    for image, row, row_scores in zip(images, places.tolist(), scores.tolist(), strict=True):
        ranked = enumerate(zip(row, row_scores, strict=True), 1)
        found.append(Found(str(image), tuple(_match(dataset, rank, index, score) for rank, (index, score) in ranked)))
    return found


def _match(dataset: ShardDataset, rank: int, index: int, score: float) -> Match:
    names, labels = dataset.hierarchy.names, dataset.labels[index].tolist()
    classes = {
        level: names[c][label] if label >= 0 else None
        for c, (level, label) in enumerate(zip(dataset.levels, labels, strict=True))
    }
    return Match(rank, round(score, 6), dataset.keys[index], index, classes)


def kept_embeddings(path: Path, dataset: ShardDataset) -> Tensor | np.ndarray:
    """Embeddings of a dataset that ``hgld embed`` has written.

    Args:
        path: of the embeddings; their keys lie beside them (:func:`training.embedding.labels_file`).
        dataset: N items.

    Returns:
        (N, D).

    Raises:
        InputError: a file cannot be read, or it is of other items or another order.
    """
    embeddings, items = read_embeddings(path), read_labels(labels_file(path), dataset.levels)
    check_same_items(embeddings, items, (path, labels_file(path)))
    if KEY not in items.columns or not items[KEY].equals(dataset.keys.alias(KEY)):
        raise InputError(f"{labels_file(path)}: not the items of {dataset!r}. Embed that split anew with hgld embed.")
    return embeddings.values
