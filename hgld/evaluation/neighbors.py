"""The nearest gallery items of every query, and ranking heads: the first ranks of every query."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from hgld.errors import ConfigError, InputError
from hgld.evaluation.options import Progress
from hgld.evaluation.scores import (
    Rows,
    block_rows,
    check_dimensions,
    checked_self_index,
    choose_device,
    descending_keys,
    exact_products,
    open_embeddings,
    score_blocks,
    score_tiles,
)
from hgld.labels import Array

# -- the first ranks of each query, from one pass over a gallery of any size ------------------------------------------

_FEWEST_ITEMS_A_PLACE = 64  # with fewer gallery items per wanted rank, keeping whole rows of scores is as cheap
_MOST_QUERIES = 1024  # maximum queries per matrix product; more queries are no faster
_KEPT_BYTES = 256 << 20
_KEPT_A_PLACE = 4  # entries buffered per wanted rank; a larger buffer is cut to the best ``depth`` entries less often


@dataclass(frozen=True)
class Heads:
    """The first ranks of q queries.

    Attributes:
        queries: indices of the queries.
        scores: (q, C) float32; -inf after the last item.
        items: (q, C) int32 gallery indices, ascending; -1 after the last item.
        overfull: rows in which too many items tie with rank ``depth``; ``items`` does not hold the items of these rows.
    """

    queries: range
    scores: Tensor
    items: np.ndarray
    overfull: np.ndarray


def worth_heads(depth: int, num_gallery: int) -> bool:
    """Tell whether it is cheaper to compute only the first ``depth`` ranks than whole rows of scores."""
    return depth * _FEWEST_ITEMS_A_PLACE <= num_gallery


def ranking_heads(query: Tensor | Rows, gallery: Tensor | Rows, depth: int, part: range) -> Iterator[Heads]:
    """Yield blocks of heads: per query, the items whose score is at least the score at rank ``depth``.

    Args:
        query: (Q, D) float32 on the CPU.
        gallery: (G, D) float32 on the CPU, large enough for :func:`worth_heads`.
        depth: number of ranks, from 1.
        part: indices of consecutive queries.
    """
    # imported here, because numba is slow to import
    from hgld.evaluation.ranks import FULL, HEAD_CHUNK, finish_heads, gather_heads

    room = _KEPT_A_PLACE * depth + 16 * HEAD_CHUNK
    at_once = min(_MOST_QUERIES, max(16, _KEPT_BYTES // (8 * room)))
    threads = torch.get_num_threads()
    with ThreadPoolExecutor(threads) as pool:
        for start in range(part.start, part.stop, at_once):
            queries = range(start, min(start + at_once, part.stop))
            count = len(queries)
            floors, sizes = np.full(count, -np.inf, np.float32), np.zeros(count, np.int64)
            kept = np.empty((count, room), np.float32), np.empty((count, room), np.int32)
            edges = np.linspace(0, count, min(threads, count) + 1).astype(int)
            shares = [slice(*pair) for pair in pairwise(edges)]
            states = [tuple(table[rows] for table in (floors, sizes, *kept)) for rows in shares]
            for first, columns, scores in score_tiles(query, gallery, queries):
                tile, within = scores.numpy(), (columns.start, columns.stop)
                tasks = [
                    pool.submit(gather_heads, tile[rows], first, within, depth, *state)
                    for rows, state in zip(shares, states, strict=True)
                ]
                for task in tasks:
                    task.result()
            for state in states:
                finish_heads(depth, *state)
            widest = max(int(sizes.max(initial=0)), depth)
            gone = np.arange(widest) >= sizes[:, None]
            scores, items = (table[:, :widest].copy() for table in kept)
            scores[gone], items[gone] = -np.inf, -1
            yield Heads(queries, torch.from_numpy(scores), items, np.flatnonzero(sizes == FULL))


# -- nearest neighbors ------------------------------------------------------------------------------------------------


def nearest_neighbors(
    query_embeddings: Array,
    gallery_embeddings: Array,
    k: int,
    *,
    self_index: Array | None = None,
    normalize: bool = True,
    chunk_size: int | None = None,
    device: torch.device | str | None = None,
    progress: Progress | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Find the k gallery items with the highest scores, by exhaustive search.

    Args:
        query_embeddings: (Q, D) of any floating dtype.
        gallery_embeddings: (G, D) embeddings.
        k: number of neighbours, at most G, or G - 1 if ``self_index`` excludes the query.
        self_index: (Q,) gallery index of the query itself, which is excluded; -1 if the query is not in the gallery.
            None: no query is in the gallery.
        normalize: whether scores are cosine similarities; if False, dot products.
        chunk_size: number of queries at a time; None: as many as the free memory allows.
        device: device to search on; None: the device of the query embeddings.
        progress: function that is called with a task name, the number of finished queries and the total number.

    Returns:
        indices: (Q, k) int64, best first; equal scores are in order of ascending index.
        scores: (Q, k) float32 scores.

    Raises:
        InputError: embeddings have the wrong shape or dtype, or an entry of ``self_index`` is not in the gallery.
        ConfigError: k is below 1 or exceeds the gallery, or the device is not available.

    >>> import numpy as np
    >>> from hgld.evaluation.neighbors import nearest_neighbors
    >>> gallery = np.array([[0.0, 1.0], [1.0, 0.0], [0.6, 0.8]])
    >>> indices, scores = nearest_neighbors(np.array([[0.0, 2.0]]), gallery, 2)
    >>> indices.tolist(), scores.astype(float).round(2).tolist()
    ([[0, 2]], [[1.0, 0.8]])
    """
    device = choose_device(query_embeddings, device)
    query = open_embeddings(query_embeddings, "query", normalize=normalize, device=device)
    gallery = open_embeddings(gallery_embeddings, "gallery", normalize=normalize, device=device)
    blocks = neighbor_blocks(query, gallery, k, self_index, range(len(query)), chunk_size)
    indices, scores = np.empty((len(query), k), np.int64), np.empty((len(query), k), np.float32)
    with exact_products(query.device):
        for queries, found, best in blocks:
            indices[queries.start : queries.stop], scores[queries.start : queries.stop] = found, best
            if progress is not None:
                progress("search", queries.stop, len(query))
    return indices, scores


_Blocks = Iterator[tuple[range, np.ndarray, np.ndarray]]


def neighbor_blocks(
    query: Tensor | Rows,
    gallery: Tensor | Rows,
    k: int,
    self_index: Array | None,
    part: range,
    chunk_size: int | None = None,
    *,
    is_shared: bool = False,
) -> _Blocks:
    """Return blocks of queries with their nearest neighbors, in the form of :func:`nearest_neighbors`.

    Args:
        query: (Q, D) float32.
        gallery: (G, D) float32 on the same device.
        k: number of neighbors.
        self_index: (Q,) gallery index of the query itself, or None.
        part: indices of consecutive queries.
        chunk_size: number of queries at a time; None: as many as the free memory allows.
        is_shared: whether several processes search, which share the memory.

    Returns:
        an iterator over the ranges of q queries, their (q, k) indices and (q, k) scores, best first.

    Raises:
        InputError: the dimensions differ, or an entry of ``self_index`` is not in the gallery.
        ConfigError: k is below 1 or exceeds the gallery.
    """
    index = np.full(len(query), -1) if self_index is None else checked_self_index(self_index, len(query))
    check_dimensions(query, gallery)
    if index.max() >= len(gallery):
        raise InputError(f"self_index holds {index.max()}; the gallery has items 0..{len(gallery) - 1}.")
    most = len(gallery) - int((index >= 0).any())
    if not 1 <= k <= most:
        raise ConfigError(f"k is {k}; expected 1 to {most}, the number of items that a query can find in this gallery.")

    depth = k + int((index >= 0).any())
    is_headed = query.device.type == "cpu" and worth_heads(depth, len(gallery))

    def by_rows(queries: range) -> _Blocks:
        rows = block_rows(len(queries), len(gallery), query.device, chunk_size, is_shared=is_shared)
        for start, stop, block in score_blocks(query, gallery, rows, queries):
            known = np.flatnonzero(index[start:stop] >= 0)
            block[torch.from_numpy(known), torch.from_numpy(index[start:stop][known])] = -torch.inf
            best, place = (table.cpu().numpy() for table in _highest(block, k))
            yield range(start, stop), place, best

    def by_heads() -> _Blocks:
        for head in ranking_heads(query, gallery, depth, part):
            own = index[head.queries.start : head.queries.stop]
            head.scores[torch.from_numpy((head.items == own[:, None]) & (own >= 0)[:, None])] = -torch.inf
            # among equal scores, the item with the lowest index comes first
            best, place = (table.numpy() for table in _highest(head.scores, k))
            found = np.take_along_axis(head.items, place, axis=1).astype(np.int64)
            for row in head.overfull:
                number = head.queries.start + int(row)
                ((_, found[row], best[row]),) = by_rows(range(number, number + 1))
            yield head.queries, found, best

    def in_order(blocks: _Blocks) -> _Blocks:
        for queries, found, best in blocks:
            order = np.lexsort((found, -best), axis=1)
            yield queries, np.take_along_axis(found, order, axis=1), np.take_along_axis(best, order, axis=1)

    return in_order(by_heads() if is_headed else by_rows(part))


_PLACE_BITS = 31


def _highest(scores: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Return the k highest scores of every row and their columns; of equal scores at rank k, the first columns."""
    best, place = scores.topk(min(k + 1, scores.shape[1]), dim=1)
    tied = torch.nonzero(best[:, k - 1] == best[:, k])[:, 0] if best.shape[1] > k else best.new_empty(0)
    best, place = best[:, :k], place[:, :k]
    if len(tied):  # handle all tied rows in one call, because the host waits for a GPU in every call
        keys = descending_keys(scores[tied]) << _PLACE_BITS | torch.arange(scores.shape[1], device=scores.device)
        place[tied] = keys.topk(k, dim=1, largest=False).values & ((1 << _PLACE_BITS) - 1)
        best[tied] = scores[tied].gather(1, place[tied])
    return best, place
