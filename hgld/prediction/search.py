"""Search: the nearest items of a gallery to each query."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, overload

import numpy as np
import torch
from torch import Tensor

from hgld.errors import ConfigError, InputError
from hgld.evaluation.neighbors import nearest_neighbors

if TYPE_CHECKING:
    from hgld.data.dataset import ShardDataset


@dataclass(frozen=True)
class Match:
    """An item of the gallery that was found for a query.

    Attributes:
        rank: rank, from 1.
        score: cosine similarity to the query.
        key: name of the item: its key in a dataset, its path in a folder; empty if the gallery is an array.
        source: original path of the image as the dataset states it, else the key.
        index: index of the item in the gallery.
        classes: class name per level, finest first; None if unknown; empty if the gallery is an array.
    """

    rank: int
    score: float
    key: str
    source: str
    index: int
    classes: dict[str, str | None]


@dataclass(frozen=True, eq=False)
class Matches(Sequence[list[Match]]):
    """The k nearest items to each of Q queries: a sequence with one list of :class:`Match` per query.

    Attributes:
        indices: (Q, k) int64 indices in the gallery, best first.
        scores: (Q, k) float32 cosine similarities.
        dataset: the gallery; None: the gallery is an array.
        left_out: number of gallery images that could not be read.
    """

    indices: np.ndarray
    scores: np.ndarray
    dataset: "ShardDataset | None" = None
    left_out: int = 0

    def __len__(self) -> int:
        return len(self.indices)

    @overload
    def __getitem__(self, index: int) -> list[Match]: ...
    @overload
    def __getitem__(self, index: slice) -> list[list[Match]]: ...
    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self[row] for row in range(len(self))[index]]
        pairs = zip(self.indices[index].tolist(), self.scores[index].tolist(), strict=True)
        return [self._match(rank, item, score) for rank, (item, score) in enumerate(pairs, 1)]

    def _match(self, rank: int, item: int, score: float) -> Match:
        data = self.dataset
        if data is None:
            return Match(rank, round(score, 6), "", "", item, {})
        columns = zip(data.levels, data.hierarchy.names, data.labels[item].tolist(), strict=True)
        classes = {level: names[label] if label >= 0 else None for level, names, label in columns}
        return Match(rank, round(score, 6), data.keys[item], data.sources[item], item, classes)


def search(
    query: Any, gallery: Any, k: int = 5, *, model: Any = None, device: torch.device | str | None = None
) -> Matches:
    """Find the k nearest items of a gallery to each query, by cosine similarity.

    Args:
        query: (Q, D) or (D,) embeddings; if ``model`` is given, images in any form that ``model.encode`` accepts.
        gallery: (G, D) embeddings; if ``model`` is given, a dataset or a folder of images, whose embeddings are kept in
            the user's cache.
        k: number of items per query, at most G.
        model: model from :func:`hgld.load_model` that embeds query and gallery; None: both are embeddings.
        device: device to search on; None: the device of the query embeddings.

    Raises:
        InputError: an array has the wrong shape or dtype, or an image cannot be read.
        ConfigError: k is below 1, or the query holds images and there is no model.

    >>> import numpy as np, hgld
    >>> found = hgld.search(np.array([1.0, 0.1]), np.array([[0.0, 1.0], [1.0, 0.0], [0.7, 0.7]]), k=2)
    >>> found.indices.tolist()
    [[1, 2]]
    """
    if model is not None:
        if not hasattr(model, "search"):
            raise ConfigError(f"model is {type(model).__name__}; expected what hgld.load_model returns.")
        return model.search(query, gallery, k)
    for side, what in ((query, "query"), (gallery, "gallery")):
        if not isinstance(side, Tensor | np.ndarray):
            raise InputError(
                f"{what} is {type(side).__name__}; expected embeddings, an array or tensor. To search by images, pass "
                "model=hgld.load_model(...)."
            )
    rows = query[None] if query.ndim == 1 else query
    return Matches(*nearest_neighbors(rows, gallery, min(k, len(gallery)), device=device))
