"""The heads of rankings: the items at the first places of every query, found in one pass over a gallery of any size."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise, repeat

import numpy as np
import torch
from torch import Tensor

from hgld.evaluation.scores import Rows, score_tiles

_FEWEST_ITEMS_A_PLACE = 64  # of shorter galleries whole rows of scores are as cheap
_MOST_QUERIES = 1024  # at once: with more, a product is no faster
_KEPT_BYTES = 256 << 20
_KEPT_A_PLACE = 4  # room for more than the head: it is shortened the less often


@dataclass(frozen=True)
class Heads:
    """The heads of q consecutive queries' rankings.

    Attributes:
        queries: which queries.
        scores: (q, C) float32; -inf behind the last item.
        items: (q, C) int32 gallery indices, ascending; -1 behind the last.
        overfull: rows whose place ``depth`` is one of very many equal scores: their items are not here.
    """

    queries: range
    scores: Tensor
    items: np.ndarray
    overfull: np.ndarray


def worth_heads(depth: int, num_gallery: int) -> bool:
    """Tell whether heads of so many places are cheaper than whole rows of scores."""
    return depth * _FEWEST_ITEMS_A_PLACE <= num_gallery


def ranking_heads(query: Tensor | Rows, gallery: Tensor | Rows, depth: int, part: range) -> Iterator[Heads]:
    """Yield the items of every query that score no less than the one at place ``depth``, block by block.

    Args:
        query: (Q, D) float32 on the CPU.
        gallery: (G, D) float32 on the CPU; see :func:`worth_heads`.
        depth: how many places, from 1.
        part: consecutive queries.
    """
    from hgld.evaluation.ranks import FULL, HEAD_CHUNK, finish_heads, scratch  # numba is slow to import

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
            memories = [scratch(room, 1)[:3] for _ in shares]
            for first, columns, scores in score_tiles(query, gallery, queries):
                place = repeat((first, columns.start, columns.stop, depth))
                tiles = [scores[rows].numpy() for rows in shares]
                list((pool.map if len(shares) > 1 else map)(_gather, tiles, place, states, memories))
            for state, memory in zip(states, memories, strict=True):
                finish_heads(depth, *state, memory)
            widest = max(int(sizes.max(initial=0)), depth)
            gone = np.arange(widest) >= sizes[:, None]
            scores, items = (table[:, :widest].copy() for table in kept)
            scores[gone], items[gone] = -np.inf, -1
            yield Heads(queries, torch.from_numpy(scores), items, np.flatnonzero(sizes == FULL))


def _gather(
    scores: np.ndarray, place: tuple[int, ...], state: tuple[np.ndarray, ...], memory: tuple[np.ndarray, ...]
) -> None:
    from hgld.evaluation.ranks import gather_heads

    gather_heads(scores, *place, *state, memory)
