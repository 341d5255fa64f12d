"""Rankings of some queries of an evaluation: what lies at every rank, and how near it is in the hierarchy."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from hgld.metrics import Relevance
from hgld.ranking import exact_products, prepare_embeddings
from hgld.relevance import shared_levels
from hgld.report_page.runs import Evaluation, Items, Ranked

MOST_QUERIES = 2000
_SCORES_AT_ONCE = 4_000_000


@dataclass(frozen=True, eq=False)
class Ranking:
    """The gallery as one query sees it.

    Attributes:
        query: index of the query.
        items: (G,) gallery indices, best first, the query itself left out; equal scores by ascending grade.
        grades: (G,) their grades.
    """

    query: int
    items: np.ndarray
    grades: np.ndarray


def sample_queries(num_queries: int, seed: int = 0) -> np.ndarray:
    """Indices of at most :data:`MOST_QUERIES` queries, in ascending order; all if there are no more."""
    if num_queries <= MOST_QUERIES:
        return np.arange(num_queries)
    return np.sort(np.random.default_rng(seed).choice(num_queries, MOST_QUERIES, replace=False))


def rank(ranked: Ranked, queries: Sequence[int] | np.ndarray, *, normalize: bool = True) -> Iterator[Ranking]:
    """Rank the gallery for some queries, as :func:`hgld.evaluate` ranks it.

    Args:
        ranked: embeddings and labels.
        queries: indices of the queries.
        normalize: scores are cosine similarities.

    Yields:
        one ranking a query, in their order.

    Raises:
        InputError: embeddings with NaN, Inf or zero rows.
    """
    chosen = np.asarray(queries, dtype=np.int64)
    gallery = ranked.other_side
    against = prepare_embeddings(gallery.embeddings, "gallery", normalize=normalize)
    step = max(1, _SCORES_AT_ONCE // len(against))
    for start in range(0, len(chosen), step):
        part = chosen[start : start + step]
        rows = prepare_embeddings(np.asarray(ranked.query.embeddings[part]), "query", normalize=normalize)
        with exact_products(rows.device):
            scores = (rows @ against.T).numpy()
        grades = shared_levels(ranked.query.labels[part], gallery.labels).numpy()
        for row, query in enumerate(part.tolist()):
            order = np.lexsort((grades[row], -scores[row]))
            if ranked.gallery is None:
                order = order[order != query]
            yield Ranking(query, order, grades[row, order])


def relevance_of(evaluation: Evaluation) -> Relevance:
    """The relevance that the evaluation's H-AP went by."""
    settings = evaluation.report.settings
    weights = settings.get("weights")
    return Relevance(
        settings.get("relevance", "population"),
        float(settings.get("alpha", 1.0)),
        None if weights is None else tuple(weights),
        bool(settings.get("count_query", False)),
    )


def is_normalized(evaluation: Evaluation) -> bool:
    """Whether the evaluation scored by cosine similarity."""
    return bool(evaluation.report.settings.get("normalized", True))


def class_means(items: Items) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Unit means of the unit embeddings of every finest class.

    Returns:
        (C, D) float64 means, (C, L) labels of the classes, (C,) number of items; classes in ascending order of id.
    """
    known = np.flatnonzero(items.labels[:, 0] >= 0)
    classes, first, member = np.unique(items.labels[known, 0], return_index=True, return_inverse=True)
    sums = torch.zeros(len(classes), items.embeddings.shape[1], dtype=torch.float64)
    for start in range(0, len(known), 8192):
        part = known[start : start + 8192]
        unit = prepare_embeddings(np.asarray(items.embeddings[part]), "item").double()
        sums.index_add_(0, torch.from_numpy(member[start : start + 8192]), unit)
    means = sums.numpy()
    norms = np.linalg.norm(means, axis=1, keepdims=True)
    return means / np.maximum(norms, 1e-12), items.labels[known[first]], np.bincount(member, minlength=len(classes))
