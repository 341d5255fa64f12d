"""Nearest-neighbour indexes (faiss) of a dataset's embeddings, kept in the user's cache for later searches.

An index finds nearly the same nearest neighbours as an exhaustive search, but faster. The library faiss trusts the
files that it reads, so an index is never read from a dataset's folder, which may come from anybody.
"""

from dataclasses import dataclass
from importlib import import_module
from math import sqrt
from pathlib import Path
from typing import Any, Literal

import numpy as np
from torch import Tensor

from hgld.data.dataset import ShardDataset
from hgld.errors import ConfigError, InputError, optional_dependency, storage_errors
from hgld.evaluation.scores import prepare_embeddings
from hgld.user_cache import KeptFolder, file_digest

from .embedder import Embedder
from .kept import dataset_facts, embedding_facts

IndexKind = Literal["ivf", "hnsw"]

# How indexes are made and searched; benchmarks/README.md has the results.
# ivf: about 4 sqrt(G) cells, at least 39 items per cell; k-means is fitted on 64 vectors per cell
_CELLS, _ITEMS_A_CELL, _TRAINED_ON = 4, 39, 64
_PROBED, _LEAST_PROBED = 8, 8  # a query searches one in 8 cells, and at least 8
_NEIGHBORS, _CANDIDATES_OF_BUILD, _CANDIDATES = 32, 80, 128  # hnsw
_INDEX, _POSITIONS = "index.faiss", "positions.npy"


def faiss() -> Any:
    """Import the package faiss.

    Raises:
        MissingExtraError: faiss is not installed.
    """
    with optional_dependency("faiss", "an index", "Without an index the search is exact."):
        return import_module("faiss")


@dataclass(frozen=True, eq=False)
class SearchIndex:
    """An index of the embeddings of some items.

    Attributes:
        faiss_index: faiss index of G items.
        kind: ``ivf`` (k-means cells) or ``hnsw`` (a graph of neighbours).
        positions: (G,) int64 positions of the items in their dataset, ascending.
    """

    faiss_index: Any
    kind: IndexKind
    positions: np.ndarray

    @classmethod
    def of(cls, embeddings: Tensor | np.ndarray, kind: IndexKind, positions: np.ndarray | None = None) -> "SearchIndex":
        """Make the index of (G, D) embeddings.

        Raises:
            InputError: the embeddings cannot be ranked: some are NaN or zero, or there are no embeddings.
            MissingExtraError: faiss is not installed.
        """
        vectors = prepare_embeddings(embeddings, "gallery").numpy()
        count, dim = vectors.shape
        library = faiss()
        if kind == "ivf":
            cells = int(max(1, min(_CELLS * sqrt(count), count / _ITEMS_A_CELL)))
            index = library.IndexIVFFlat(library.IndexFlatIP(dim), dim, cells, library.METRIC_INNER_PRODUCT)
            index.cp.seed, index.cp.max_points_per_centroid = 0, _TRAINED_ON
            index.cp.min_points_per_centroid = 1  # otherwise faiss warns of small sets on stderr
            index.train(vectors)
        else:
            index = library.IndexHNSWFlat(dim, _NEIGHBORS, library.METRIC_INNER_PRODUCT)
            index.hnsw.efConstruction = _CANDIDATES_OF_BUILD
        index.add(vectors)
        return cls(index, kind, np.arange(count) if positions is None else positions)

    def nearest(self, query_embeddings: Tensor | np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
        """Find the k items of the highest cosine similarity; the index may miss some of them.

        If the index returns fewer than k items for a query, the query is compared with all items.

        Args:
            query_embeddings: (Q, D) embeddings of the queries.
            k: number of neighbours, at most G.

        Returns:
            positions: (Q, k) int64 positions in the dataset, best first; positions of equal scores are ascending.
            scores: (Q, k) float32 cosine similarities.

        Raises:
            InputError: the embeddings have another dimension, or cannot be ranked.
            ConfigError: ``k`` is below 1 or above G.
        """
        index, count = self.faiss_index, self.faiss_index.ntotal
        if not 1 <= k <= count:
            raise ConfigError(f"k is {k}; expected 1 to {count}, the items of the index.")
        query = prepare_embeddings(query_embeddings, "query").numpy()
        if query.shape[1] != index.d:
            raise InputError(f"query embeddings have {query.shape[1]} dimensions, gallery embeddings {index.d}.")
        if self.kind == "ivf":
            index.nprobe = min(max(_LEAST_PROBED, index.nlist // _PROBED), index.nlist)
        else:
            index.hnsw.efSearch = max(_CANDIDATES, 2 * k)
        scores, indices = index.search(query, k)
        few = np.flatnonzero((indices < 0).any(axis=1))  # -1: the search reached fewer than k items
        if len(few):
            if self.kind == "ivf":
                index.nprobe = index.nlist
            whole = index if self.kind == "ivf" else index.storage
            scores[few], indices[few] = whole.search(query[few], k)
        order = np.lexsort((indices, -scores), axis=1)
        return self.positions[np.take_along_axis(indices, order, axis=1)], np.take_along_axis(scores, order, axis=1)


@dataclass(frozen=True, eq=False)
class KeptIndex:
    """An index in the user's cache, which may not exist yet.

    Attributes:
        kept: folder of the cache.
        kind: type of the index: ``ivf`` or ``hnsw``.
    """

    kept: KeptFolder
    kind: IndexKind

    def load(self) -> SearchIndex | None:
        """Return the index; None if it is missing, damaged, or made from other embeddings."""

        def read(folder: Path) -> SearchIndex:
            data = np.fromfile(folder / _INDEX, dtype=np.uint8)
            return SearchIndex(faiss().deserialize_index(data), self.kind, np.load(folder / _POSITIONS))

        return self.kept.read(read)

    def make(self, embeddings: Tensor | np.ndarray, positions: np.ndarray) -> SearchIndex:
        """Build the index and write it to the cache, in place of an existing index.

        Args:
            embeddings: (G, D) embeddings of the items.
            positions: (G,) int64 of the items in their dataset, ascending.

        Raises:
            InputError: the embeddings cannot be ranked: some are NaN or zero, or there are no embeddings.
            StorageError: the disk is full or not writable; an existing index stays.
        """
        made = SearchIndex.of(embeddings, self.kind, positions)

        def fill(folder: Path) -> None:
            # faiss's own writer of files ends the process if the disk is full.
            (folder / _INDEX).write_bytes(faiss().serialize_index(made.faiss_index).data)
            np.save(folder / _POSITIONS, positions)

        hint = "Free space, or let XDG_CACHE_HOME name another folder."
        with storage_errors(f"keep the index {self.kept.folder}", hint):
            self.kept.write(fill)
        return made


def kept_index(kind: IndexKind, dataset: ShardDataset, embedder: Embedder, embeddings: Path | None = None) -> KeptIndex:
    """Return the index of a dataset's embeddings, as the user's cache keeps it.

    Args:
        kind: type of the index: ``ivf`` or ``hnsw``.
        dataset: the items that the index finds.
        embedder: model that makes the dataset's embeddings, if no file holds them.
        embeddings: file of the embeddings.

    Raises:
        MissingExtraError: faiss is not installed.
        InputError: the file cannot be read.
    """
    faiss()  # if faiss is missing, fail before any work
    try:
        made_by = embedding_facts(embedder) if embeddings is None else {"embeddings": file_digest(embeddings)}
    except OSError as error:
        raise InputError(f"{embeddings}: cannot be read ({error.strerror}).") from error
    return KeptIndex(KeptFolder("indexes", {"kind": kind, **dataset_facts(dataset), **made_by}), kind)
