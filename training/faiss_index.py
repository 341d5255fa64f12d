"""Indexes of faiss that find nearly the same nearest neighbours as an exhaustive search, and faster."""

from importlib import import_module
from importlib.util import find_spec
from math import sqrt
from pathlib import Path
from typing import Any, Literal

import numpy as np
from torch import Tensor

from hgld.errors import ConfigError, InputError, MissingResourceError
from hgld.ranking import prepare_embeddings

IndexKind = Literal["ivf", "hnsw"]

SETTINGS: dict[str, dict[str, int]] = {
    # About 4 sqrt(G) cells, of which a query looks into one in 8; k-means sees 64 vectors a cell.
    "ivf": {"cells": 4, "items_a_cell": 39, "of_which_one_is_probed": 8, "least_probed": 8, "training": 64, "seed": 0},
    "hnsw": {"neighbors": 32, "candidates_of_build": 80, "candidates": 128},
}
"""What indexes are made and asked with, by their kind; benchmarks/README.md has what that gives."""

_MAGIC = {"ivf": b"IwFl", "hnsw": b"IHNf"}
_MOST_BYTES_AN_ITEM = 1024  # beside its vector: id, and its edges in all layers


class FaissIndex:
    """An index of the embeddings of some items.

    Args:
        index: faiss's own, of G items.
        kind: ``ivf`` (k-means cells) or ``hnsw`` (a graph of neighbours).
    """

    def __init__(self, index: Any, kind: IndexKind) -> None:
        self._index, self._kind = index, kind

    @classmethod
    def of(cls, embeddings: Tensor | np.ndarray, kind: IndexKind) -> "FaissIndex":
        """The index of (G, D) embeddings.

        Raises:
            InputError: embeddings that cannot be ranked: NaN, zero vectors, none at all.
            MissingResourceError: faiss is not installed.
        """
        vectors = prepare_embeddings(embeddings, "gallery").numpy()
        return cls((_ivf if kind == "ivf" else _hnsw)(faiss(), vectors), kind)

    @property
    def shape(self) -> tuple[int, int]:
        """G and D."""
        return self._index.ntotal, self._index.d

    def save(self, path: Path) -> None:
        """Write the index.

        Raises:
            OSError: it cannot be written.
        """
        try:
            faiss().write_index(self._index, str(path))
        except RuntimeError as error:  # faiss has no other error
            raise OSError(str(error).rpartition(": ")[2]) from error

    def nearest(self, query_embeddings: Tensor | np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
        """The k items of the highest cosine similarities, as far as the index comes to them.

        A query that comes to fewer than k items is compared with all.

        Args:
            query_embeddings: (Q, D).
            k: at most G.

        Returns:
            indices: (Q, k) int64, best first, equal scores by ascending index.
            scores: (Q, k) float32.

        Raises:
            InputError: embeddings of another size, or that cannot be ranked.
            ConfigError: k below 1 or beyond G.
        """
        count, dimensions = self.shape
        if not 1 <= k <= count:
            raise ConfigError(f"k is {k}; expected 1 to {count}, the items of the index.")
        query = prepare_embeddings(query_embeddings, "query").numpy()
        if query.shape[1] != dimensions:
            raise InputError(f"query embeddings have {query.shape[1]} dimensions, gallery embeddings {dimensions}.")
        scores, indices = self._search(query, k)
        few = np.flatnonzero((indices < 0).any(axis=1))  # -1: it came to nothing more
        if len(few):
            scores[few], indices[few] = self._search_all(query[few], k)
        order = np.lexsort((indices, -scores), axis=1)
        return np.take_along_axis(indices, order, axis=1), np.take_along_axis(scores, order, axis=1)

    def _search(self, query: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
        settings = SETTINGS[self._kind]
        if self._kind == "ivf":
            probed = max(settings["least_probed"], self._index.nlist // settings["of_which_one_is_probed"])
            self._index.nprobe = min(probed, self._index.nlist)
        else:
            self._index.hnsw.efSearch = max(settings["candidates"], 2 * k)
        return self._index.search(query, k)

    def _search_all(self, query: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
        if self._kind == "hnsw":
            return self._index.storage.search(query, k)
        self._index.nprobe = self._index.nlist
        return self._index.search(query, k)


def read_index(path: Path, kind: IndexKind, items: int, dimensions: int) -> FaissIndex:
    """Read an index.

    faiss trusts the files that it reads. Its kind and size are checked first, but only a file whose checksum is known
    should come here.

    Args:
        path: what :meth:`FaissIndex.save` has written.
        kind: that it must have.
        items: that it must have.
        dimensions: that it must have.

    Raises:
        InputError: it cannot be read, or is another index.
        MissingResourceError: faiss is not installed.
    """
    most = items * (8 * dimensions + _MOST_BYTES_AN_ITEM) + (
        1 << 20
    )  # as many centroids as items are more than any has
    try:
        with path.open("rb") as file:
            magic = file.read(4)
        size = path.stat().st_size
        if magic != _MAGIC[kind] or size > most:
            raise InputError(
                f"{path}: {size:,} bytes that begin with {magic!r}; expected {_MAGIC[kind]!r}, at most {most:,}."
            )
        index = FaissIndex(faiss().read_index(str(path)), kind)
    except (OSError, RuntimeError) as error:
        reason = getattr(error, "strerror", None) or str(error).rpartition(": ")[2]
        raise InputError(f"{path}: cannot be read ({reason}).") from error
    if index.shape != (items, dimensions):
        found = " x ".join(map(str, index.shape))
        raise InputError(f"{path}: items x dimensions are {found}; expected {items} x {dimensions}.")
    return index


def faiss() -> Any:
    """The package.

    Raises:
        MissingResourceError: it is not installed.
    """
    if find_spec("faiss") is None:
        raise MissingResourceError(
            "an index takes the package faiss-cpu: pip install 'hgld[faiss]'. Without an index the search is exact."
        )
    return import_module("faiss")


def _ivf(faiss: Any, vectors: np.ndarray) -> Any:
    settings, (count, dimensions) = SETTINGS["ivf"], vectors.shape
    cells = int(max(1, min(settings["cells"] * sqrt(count), count / settings["items_a_cell"])))
    index = faiss.IndexIVFFlat(faiss.IndexFlatIP(dimensions), dimensions, cells, faiss.METRIC_INNER_PRODUCT)
    index.cp.seed, index.cp.max_points_per_centroid = settings["seed"], settings["training"]
    index.cp.min_points_per_centroid = 1  # else faiss speaks of small sets on stderr
    index.train(vectors)
    index.add(vectors)
    return index


def _hnsw(faiss: Any, vectors: np.ndarray) -> Any:
    settings = SETTINGS["hnsw"]
    index = faiss.IndexHNSWFlat(vectors.shape[1], settings["neighbors"], faiss.METRIC_INNER_PRODUCT)
    index.hnsw.efConstruction = settings["candidates_of_build"]
    index.add(vectors)
    return index
