"""Evaluation by the trapezoid rule of the landmark benchmarks, and the lists and image names that they publish."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hgld.errors import ConfigError, InputError, TableError, excerpt, quoted
from hgld.evaluation.judgements import RelevanceBlock, RelevanceSource
from hgld.evaluation.options import Progress
from hgld.evaluation.report import RetrievalReport
from hgld.evaluation.scores import block_rows, choose_device, exact_products, prepare_embeddings, score_blocks

# -- numbers in names of images ---------------------------------------------------------------------------------------
#
# They name the groups of INRIA Holidays, Copydays and UKBench.

_NUMBER = re.compile(r"([0-9]{1,9})(?:\.[A-Za-z]+)?\Z")


def image_numbers(names: Sequence[str]) -> np.ndarray:
    """Return the number at the end of every image's name, before the suffix: 100001 of ``jpg/100001.jpg``.

    Returns:
        (N,) int64.

    Raises:
        InputError: a name without a number.
    """
    matches = [_NUMBER.search(name) for name in names]
    if None in matches:
        raise InputError(
            f"image {quoted(names[matches.index(None)])} has no number at its end; expected one as in 100001.jpg."
        )
    return np.array([int(match[1]) for match in matches if match], np.int64)


# -- lists of images, published as plain text -------------------------------------------------------------------------

_MOST_BYTES = 256 << 20


def read_list_lines(path: str | Path) -> list[list[str]]:
    """Read the words of every line of a list, empty lines included.

    Raises:
        TableError: the file cannot be read, is larger than any benchmark's list, or is not UTF-8.
    """
    file = Path(path)
    try:
        size = file.stat().st_size
        if size > _MOST_BYTES:
            raise TableError(f"{file}: {size} bytes; a list of images has at most {_MOST_BYTES}.")
        return [line.split() for line in file.read_text(encoding="utf-8").splitlines()]
    except OSError as error:
        raise TableError(f"{file}: cannot be read ({error.strerror}).") from error
    except UnicodeDecodeError as error:
        raise TableError(f"{file}: not a text file ({excerpt(error)}); expected a list of images in UTF-8.") from error


# -- the trapezoid rule and precision at k ----------------------------------------------------------------------------
#
# The evaluation packages of Oxford Buildings, Holidays and Copydays, and of revisited Oxford and Paris after them, take
# the area under the precision-recall curve with straight lines between its points. That is less than AP as
# :func:`hgld.evaluate` has it, so the values here have names of their own, ``mAP`` and ``mP@k``.

_BLOCK_SCORES = 32_000_000  # 128 MB of scores, and a byte of grade a task beside each


def trapezoid_ap(positions: np.ndarray) -> float:
    """Compute the average precision of one query by the trapezoid rule.

    Every positive spans 1/P of the recall axis; over it precision runs from that before the positive, j/rank (1 at
    rank 0), to that with it, (j + 1)/(rank + 1).

    Args:
        positions: (P,) ascending places of all positives in the ranking, from 0, items left out not counted.

    Returns:
        the area; NaN if there are no positives.

    >>> import numpy as np
    >>> round(trapezoid_ap(np.array([0, 1, 4])), 4)  # (1 + 1) / 2, (1 + 1) / 2, (2/4 + 3/5) / 2
    0.85
    """
    if not len(positions):
        return float("nan")
    found = np.arange(len(positions))
    before = np.where(positions == 0, 1.0, found / np.maximum(positions, 1))
    return float(np.mean((before + (found + 1) / (positions + 1)) / 2))


def truncated_precision(positions: np.ndarray, k: int) -> float:
    """Compute the precision at k of revisited Oxford and Paris: k is cut down to the rank of the last positive.

    Args:
        positions: (P,) ascending places of all positives, from 0.
        k: how many items are looked at, at most.

    Returns:
        the share of positives among them; NaN if there are no positives.

    >>> import numpy as np
    >>> truncated_precision(np.array([0, 2]), 10)
    0.6666666666666666
    """
    if not len(positions):
        return float("nan")
    depth = min(int(positions[-1]) + 1, k)
    return float(np.count_nonzero(positions < depth) / depth)


def positive_positions(ordered: np.ndarray, positive: np.ndarray, left_out: np.ndarray) -> np.ndarray:
    """Return the places of one query's positives in its ranking; equal scores count against them.

    Args:
        ordered: (G,) scores of the whole gallery, ascending.
        positive: (P,) scores of the positives.
        left_out: scores of the items that are not ranked.

    Returns:
        (P,) ascending places, from 0.
    """
    positives = np.sort(positive)
    every = (ordered, positives, np.sort(left_out))
    passed = [len(part) - np.searchsorted(part, positives) for part in every]  # scores no less than a positive's
    negatives = passed[0] - passed[1] - passed[2]
    return (negatives + np.arange(len(positives))[::-1])[::-1]


def evaluate_trapezoid(
    query_embeddings: Tensor | np.ndarray,
    gallery_embeddings: Tensor | np.ndarray,
    tasks: Mapping[str, RelevanceSource],
    *,
    precision_at: Sequence[int] = (),
    normalize: bool = True,
    chunk_size: int | None = None,
    device: torch.device | str | None = None,
    progress: Progress | None = None,
    settings: Mapping[str, Any] | None = None,
) -> RetrievalReport:
    """Evaluate embeddings by the trapezoid rule, for one or several ground truths of the same queries at once.

    Args:
        query_embeddings: (Q, D) of any floating dtype.
        gallery_embeddings: (G, D).
        tasks: judgements of one level by the name of the task; ``""`` where there is one task.
        precision_at: the k of ``mP@k``.
        normalize: scores are cosine similarities; False takes plain dot products.
        chunk_size: queries at a time; None chooses from the free memory.
        device: where to take products; None takes the embeddings' own device.
        progress: called with a task, the number of queries done and their total.
        settings: further settings of the report, beside those that it always states.

    Returns:
        a report with ``mAP/task`` and ``mP@k/task`` (without ``/`` for the task ``""``). Queries without positives in a
        task are undefined there.

    Raises:
        InputError: embeddings of the wrong shape or dtype, or not as many as there are judgements for.
        ConfigError: a k below 1, or a device that is not there.
    """
    if any(k < 1 for k in precision_at):
        raise ConfigError(f"precision_at is {list(precision_at)}; expected numbers from 1.")
    device = choose_device(query_embeddings, device)
    query = prepare_embeddings(query_embeddings, "query", normalize=normalize, device=device)
    gallery = prepare_embeddings(gallery_embeddings, "gallery", normalize=normalize, device=device)
    if query.shape[1] != gallery.shape[1]:
        raise InputError(f"query embeddings have {query.shape[1]} dimensions, gallery embeddings {gallery.shape[1]}.")
    for name, judgements in tasks.items():
        if judgements.shape != (len(query), len(gallery)) or judgements.num_levels != 1:
            raise InputError(
                f"judgements {quoted(name)} are of {judgements.shape[0]} queries, {judgements.shape[1]} gallery items "
                f"and {judgements.num_levels} levels; expected {len(query)}, {len(gallery)} and 1, as the embeddings "
                "are."
            )
    names = [f"{metric}{'/' if task else ''}{task}" for task in tasks for metric in _metrics(precision_at)]
    rows = block_rows(len(query), len(gallery), query.device, chunk_size)
    if chunk_size is None:  # few queries, and a gallery with distractors is better read few times
        rows = max(rows, min(len(query), _BLOCK_SCORES // len(gallery)))
    values: list[list[float]] = []
    with exact_products(query.device):
        for start, stop, scores in score_blocks(query, gallery, rows):
            judged = [judgements.block(start, stop, torch.device("cpu")) for judgements in tasks.values()]
            values.extend(_block_values(scores.cpu().numpy(), judged, precision_at))
            if progress is not None:
                progress("rank", stop, len(query))
    columns = dict(zip(names, np.array(values, np.float64).T, strict=True))
    stated = {"average_precision": "trapezoid rule", "queries": len(query), "gallery": len(gallery)}
    stated |= {"dimensions": query.shape[1], "normalized": normalize}
    stated |= {"scores": "float32, TF32 off", "ties": "against the query", "device": query.device.type}
    return RetrievalReport.from_columns(columns, {**(settings or {}), **stated})


def _metrics(precision_at: Sequence[int]) -> list[str]:
    return ["mAP", *(f"mP@{k}" for k in precision_at)]


def _block_values(
    scores: np.ndarray, judged: Sequence[RelevanceBlock], precision_at: Sequence[int]
) -> list[list[float]]:
    """Return for every query of a block the values of all metrics of all tasks."""
    values: list[list[float]] = []
    for row, row_scores in enumerate(scores):
        ordered = np.sort(row_scores)
        values.append([])
        for block in judged:
            rows, items = block.left_out
            positive = np.flatnonzero(block.grades[row].numpy())
            positions = positive_positions(ordered, row_scores[positive], row_scores[items[rows == row]])
            values[-1].append(trapezoid_ap(positions))
            values[-1].extend(truncated_precision(positions, k) for k in precision_at)
    return values
