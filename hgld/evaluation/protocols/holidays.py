"""INRIA Holidays: 500 queries against 1,491 photographs, mean average precision by the trapezoid rule.

Jégou, Douze, Schmid: "Hamming Embedding and Weak Geometric Consistency for Large Scale Image Search", ECCV 2008. The
images of a group share their number up to the last two digits; the one ending in 00 is the query, and is not ranked.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hgld.errors import InputError
from hgld.evaluation.judgements import ListRelevance
from hgld.evaluation.options import EvaluationOptions, Progress
from hgld.evaluation.protocols.benchmark import Benchmark
from hgld.evaluation.protocols.distractors import stack_gallery
from hgld.evaluation.protocols.trapezoid import evaluate_trapezoid, image_numbers
from hgld.evaluation.report import RetrievalReport

_GROUP = 100


def evaluate_holidays(
    embeddings: Tensor | np.ndarray,
    names: Sequence[str],
    *,
    distractors: Tensor | np.ndarray | None = None,
    normalize: bool = True,
    chunk_size: int | None = None,
    device: torch.device | str | None = None,
    progress: Progress | None = None,
) -> RetrievalReport:
    """Evaluate on Holidays.

    Args:
        embeddings: (N, D) of all images, queries among them.
        names: N file names, for example ``100000.jpg``, in the same order.
        distractors: (M, D) further images that are relevant to no query; None: none.
        normalize: scores are cosine similarities; False takes plain dot products.
        chunk_size: queries at a time; None chooses from the free memory.
        device: where to take products.
        progress: called with a task, the number of queries done and their total.

    Returns:
        a report of ``mAP``, the queries in the order of their rows.

    Raises:
        InputError: names without a number or not as many as embeddings, a group with two queries, or none at all.
    """
    numbers = image_numbers(names)
    if len(numbers) != len(embeddings) or len(np.unique(numbers)) != len(numbers):
        raise InputError(
            f"there are {len(names)} names ({len(np.unique(numbers))} of them distinct) for {len(embeddings)} "
            "embeddings; expected one name an embedding, each once."
        )
    queries = np.flatnonzero(numbers % _GROUP == 0)
    if not len(queries):
        raise InputError("no image is a query: expected names whose number ends in 00, as 100000.jpg.")
    how: dict[str, Any] = {"normalize": normalize, "chunk_size": chunk_size, "device": device, "progress": progress}
    return _rank(embeddings, embeddings[queries], numbers // _GROUP, queries, distractors, **how)


QUERIES = "queries"  # the list of the images that search


def evaluate_holidays_benchmark(benchmark: Benchmark, options: EvaluationOptions) -> RetrievalReport:
    """Evaluate the split ``test``: the images of its list ``queries`` search the others and the distractors.

    Returns:
        a report of ``mAP``.

    Raises:
        InputError: no image of the list is among those that could be embedded.
    """
    items = benchmark["test"]
    queries = benchmark.listed(QUERIES, "test")
    further = benchmark.distractors
    gallery = items.vectors if further is None else stack_gallery(items.vectors, further)
    asking = options.expanded(items.vectors[queries], gallery, queries)
    how: dict[str, Any] = {"normalize": options.normalize, "chunk_size": options.chunk_size, "device": options.device}
    return _rank(items.vectors, asking, items.labels[:, 0], queries, further, **how, progress=options.progress)


def _rank(
    embeddings: Tensor | np.ndarray,
    asking: Tensor | np.ndarray,
    groups: np.ndarray,
    queries: np.ndarray,
    distractors: Tensor | np.ndarray | None,
    *,
    normalize: bool,
    chunk_size: int | None,
    device: torch.device | str | None,
    progress: Progress | None,
) -> RetrievalReport:
    """Rank all (N, D) embeddings for the queries at some (Q,) places of them, by the (N,) group of each."""
    places = np.arange(len(groups))
    known = groups >= 0
    relevant = [np.flatnonzero((groups == groups[query]) & known & (places != query)) for query in queries]
    gallery = embeddings if distractors is None else stack_gallery(embeddings, distractors)
    judgements = ListRelevance(len(gallery), [[part] for part in relevant], [np.array([query]) for query in queries])
    return evaluate_trapezoid(
        asking,
        gallery,
        {"": judgements},
        normalize=normalize,
        chunk_size=chunk_size,
        device=device,
        progress=progress,
        settings={"protocol": "Holidays", "distractors": len(gallery) - len(embeddings)},
    )
