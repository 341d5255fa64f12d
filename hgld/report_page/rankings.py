"""Rankings for an evaluation, in one pass: first ranks of all queries, and whole rankings of a sample."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch

from hgld.evaluation.judgements import LabelRelevance
from hgld.evaluation.options import Progress
from hgld.evaluation.scores import block_rows, descending_keys, exact_products, prepare_embeddings, score_blocks
from hgld.evaluation.statistics import first_items
from hgld.metrics import GainFunction
from hgld.report_page.runs import Evaluation, Ranked

MOST_QUERIES = 2000
FIRST_RANKS = 20
_SORTED_AT_A_TIME = 16  # bounds the memory of the integers that sort whole rankings


@dataclass(frozen=True, eq=False)
class FirstRanks:
    """The first :data:`FIRST_RANKS` ranks of every query, without the query; equal scores in order of the grade.

    Attributes:
        items: (Q, R) gallery indices; R is :data:`FIRST_RANKS`, or the gallery's size if it is smaller.
        grades: (Q, R) uint8 grades of these items.
        findable: (Q,) whether the gallery has an item of the query's own finest class.
    """

    items: np.ndarray
    grades: np.ndarray
    findable: np.ndarray


def first_ranks(
    ranked: Ranked,
    *,
    normalize: bool = True,
    visit: Callable[[np.ndarray], None] | None = None,
    task: str = "rank",
    progress: Progress | None = None,
) -> FirstRanks:
    """Rank the gallery for every query, as :func:`hgld.evaluate` ranks it, and keep the first ranks.

    Computing the scores dominates the time; the memory is linear in the number of queries.

    Args:
        ranked: embeddings and labels.
        normalize: whether scores are cosine similarities.
        visit: function that is called for some queries at a time with the (q, G) grades of the whole gallery, best
            first. Of more than :data:`MOST_QUERIES` queries it gets a sample of this size, drawn with seed 0.
        task: name of the task for ``progress``.
        progress: function that is called with the task, the number of finished queries and the total.

    Raises:
        InputError: the embeddings hold NaN, Inf or zero rows.
    """
    leave_one_out = ranked.gallery is None
    num_queries, num_gallery = len(ranked.query.labels), len(ranked.other_side.labels)
    depth = min(FIRST_RANKS, num_gallery - leave_one_out)
    found = FirstRanks(
        np.empty((num_queries, depth), np.int64), np.empty((num_queries, depth), np.uint8), np.empty(num_queries, bool)
    )
    sampled = np.zeros(num_queries, bool)
    sampled[np.random.default_rng(0).permutation(num_queries)[:MOST_QUERIES]] = True
    for start, scores, grades, findable in _blocks(ranked, normalize):
        rows = slice(start, start + len(scores))
        found.items[rows] = first_items(torch.from_numpy(scores), torch.from_numpy(grades), depth)
        found.grades[rows] = np.take_along_axis(grades, found.items[rows], axis=1)
        found.findable[rows] = findable
        if visit is not None:
            chosen = np.flatnonzero(sampled[rows])
            for at in range(0, len(chosen), _SORTED_AT_A_TIME):
                some = chosen[at : at + _SORTED_AT_A_TIME]
                visit(_ordered_grades(scores[some], grades[some])[:, : num_gallery - leave_one_out])
        if progress is not None:
            progress(task, rows.stop, num_queries)
    return found


def _blocks(ranked: Ranked, normalize: bool) -> Iterator[tuple[int, np.ndarray, np.ndarray, np.ndarray]]:
    """Yield blocks of queries: first index, (q, G) scores, (q, G) uint8 grades, (q,) bool: class is in the gallery.

    The arrays are valid until the next block. The query itself has the score -inf and grade 0.
    """
    leave_one_out = ranked.gallery is None
    gallery = prepare_embeddings(ranked.other_side.embeddings, "gallery", normalize=normalize)
    query = gallery if leave_one_out else prepare_embeddings(ranked.query.embeddings, "query", normalize=normalize)
    index = np.arange(len(query)) if leave_one_out else None
    relevance = LabelRelevance(ranked.query.labels, ranked.other_side.labels, self_index=index)
    blocks = score_blocks(query, gallery, block_rows(len(query), len(gallery), gallery.device))
    while True:
        # does not surround the yield, else the caller would run in these modes too
        with exact_products(gallery.device):
            block = next(blocks, None)
        if block is None:
            return
        start, stop, table = block
        judged, scores = relevance.block(start, stop, gallery.device), table.numpy()
        scores[judged.left_out] = -np.inf
        yield start, scores, judged.grades.numpy(), judged.counts[:, -1] > 0


def _ordered_grades(scores: np.ndarray, grades: np.ndarray) -> np.ndarray:
    """Return (q, G) uint8 grades by descending score, equal scores by ascending grade."""
    keys = (descending_keys(torch.from_numpy(scores)) << 8).numpy() | grades
    keys.sort()  # one sort of integers orders scores and ties exactly
    return (keys & 0xFF).astype(np.uint8)


def gain_of(evaluation: Evaluation) -> GainFunction:
    """Return the gain function of the evaluation's H-AP."""
    settings = evaluation.report.settings
    weights = settings.get("weights")
    return GainFunction(
        settings.get("relevance", "population"),
        float(settings.get("alpha", 1.0)),
        None if weights is None else tuple(weights),
        bool(settings.get("count_query", False)),
    )
