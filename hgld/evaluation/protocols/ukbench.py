"""UKBench: 2,550 objects photographed four times; how many of an image's group are among its first four.

Nistér, Stewénius: "Scalable Recognition with a Vocabulary Tree", CVPR 2006. Every image queries all images, itself
among them, so that the score runs to 4.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hgld.errors import InputError
from hgld.evaluation.evaluate import evaluate_labelled
from hgld.evaluation.options import EvaluationOptions, Progress
from hgld.evaluation.protocols.benchmark import Benchmark
from hgld.evaluation.protocols.trapezoid import image_numbers
from hgld.evaluation.report import RetrievalReport

SCORE = "N-S"  # after the names of its authors
_GROUP = 4


def evaluate_ukbench(
    embeddings: Tensor | np.ndarray,
    names: Sequence[str],
    *,
    normalize: bool = True,
    chunk_size: int | None = None,
    device: torch.device | str | None = None,
    progress: Progress | None = None,
) -> RetrievalReport:
    """Evaluate on UKBench.

    Args:
        embeddings: (N, D) of all images.
        names: N file names, for example ``ukbench00000.jpg``, in the same order; four consecutive numbers are a group.
        normalize: scores are cosine similarities; False takes plain dot products.
        chunk_size: queries at a time; None chooses from the free memory.
        device: where to rank.
        progress: called with a task, the number of queries done and their total.

    Returns:
        a report of ``N-S``, 0 to 4.

    Raises:
        InputError: names without a number or not as many as embeddings, or a group that has not four images.
    """
    numbers = image_numbers(names)
    groups, sizes = np.unique(numbers // _GROUP, return_counts=True)
    if len(numbers) != len(embeddings) or len(np.unique(numbers)) != len(numbers):
        raise InputError(
            f"there are {len(names)} names ({len(np.unique(numbers))} of them distinct) for {len(embeddings)} "
            "embeddings; expected one name an embedding, each once."
        )
    if (sizes != _GROUP).any():
        first = int((sizes != _GROUP).argmax())
        raise InputError(
            f"group {groups[first]} has {sizes[first]} images; expected four of every group: ukbench00000.jpg to "
            "ukbench00003.jpg, and so on."
        )
    how: dict[str, Any] = {"normalize": normalize, "chunk_size": chunk_size, "device": device, "progress": progress}
    return _score(embeddings, embeddings, numbers // _GROUP, EvaluationOptions(**how))


def evaluate_ukbench_benchmark(benchmark: Benchmark, options: EvaluationOptions) -> RetrievalReport:
    """Evaluate the split ``test`` by its finest labels.

    Returns:
        a report of ``N-S``; an object of which an image could not be embedded cannot reach 4.
    """
    items = benchmark["test"]
    asking = options.expanded(items.vectors, items.vectors)
    return _score(asking, items.vectors, items.labels[:, 0], replace(options, query_expansion=None))


def _score(
    asking: Tensor | np.ndarray, embeddings: Tensor | np.ndarray, groups: np.ndarray, options: EvaluationOptions
) -> RetrievalReport:
    """Rank all (N, D) embeddings for (N, D) queries of the same items, by the (N,) group of each."""
    options = replace(options, metrics=(f"P@{_GROUP}",), share=None)
    report = evaluate_labelled((asking, groups), (embeddings, groups), levels=("object",), options=options)
    score = report.per_query[f"P@{_GROUP}/object"].to_numpy() * _GROUP
    stated = {"protocol": "UKBench", "metrics": [SCORE], "ranked": "the query among the others"}
    return RetrievalReport.from_columns({SCORE: score}, report.settings | stated)
