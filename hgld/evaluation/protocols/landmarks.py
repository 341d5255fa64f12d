"""Protocols of landmark benchmarks, with lists of relevant images or with mAP by the trapezoid rule.

- Google Landmarks v2 retrieval (Weyand et al., CVPR 2020): test images query the index; mAP@100 on two halves.
- Revisited Oxford and Paris (Radenović et al., CVPR 2018): an image that shows the landmark clearly is *easy*,
  otherwise *hard*; an image that shows too little of it is *junk*. In the task *easy*, easy images are positives and
  hard images are junk. In the task *hard*, hard images are positives and easy images are junk. In the task *medium*,
  easy and hard images are positives.
- INRIA Holidays (Jégou, Douze, Schmid, ECCV 2008): 500 queries against 1,491 photographs; a query is excluded from its
  own ranking.
- INRIA Copydays (Douze et al., CIVR 2009): edited copies query the 157 originals, among distractors. MultiGrain reports
  the subset *strong*: 229 print-and-scan, painted or otherwise strong edits, with 10,000 distractors.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from hgld.evaluation.evaluate import evaluate_judged
from hgld.evaluation.judgements import LabelRelevance, ListRelevance, RelevanceSource
from hgld.evaluation.options import EvaluationOptions
from hgld.evaluation.postprocess import expand_queries
from hgld.evaluation.protocols.benchmark import DISTRACTORS, Benchmark
from hgld.evaluation.report import RetrievalReport
from hgld.evaluation.row_table import ALONE
from hgld.evaluation.scores import (
    Rows,
    block_rows,
    check_dimensions,
    choose_device,
    exact_products,
    open_embeddings,
    score_blocks,
)
from hgld.labels import Array

# -- Google Landmarks v2 ----------------------------------------------------------------------------------------------

_DEPTH = 100
_HALVES = ("public", "private")


def evaluate_gldv2(benchmark: Benchmark, options: EvaluationOptions) -> RetrievalReport:
    """Evaluate the split ``query`` against ``gallery`` with the judgements, on the lists ``public`` and ``private``.

    Returns:
        a report of ``mAP@100/public`` and ``mAP@100/private``. Its settings count the judgements of images that could
        not be embedded, and the queries without a relevant image.

    Raises:
        InputError: a list is missing, or a verdict is not ``relevant``.
    """
    query = benchmark["query"]
    judged, left_out = benchmark.judged("query", "gallery", ("relevant",))
    gallery, _ = benchmark.with_distractors(benchmark["gallery"], options.share)
    metric = f"mAP@{_DEPTH}"
    relevance = ListRelevance(len(gallery), judged)
    report = evaluate_judged(
        query.vectors, gallery, relevance, levels=("landmark",), options=replace(options, metrics=(metric,))
    )
    values = report.per_query[f"{metric}/landmark"].to_numpy()
    columns = {}
    for half in _HALVES:
        rows = np.isin(np.arange(len(query)), benchmark.listed(half, "query"))
        columns[f"{metric}/{half}"] = np.where(rows, values, np.nan)
    stated = {half: int((~np.isnan(column)).sum()) for half, column in zip(_HALVES, columns.values(), strict=True)}
    lost = {"judgements_left_out": left_out, "queries_without_relevant": sum(not len(row[0]) for row in judged)}
    stated |= {name: count for name, count in lost.items() if count}
    return RetrievalReport.from_columns(columns, {**report.settings, "metrics": list(columns), **stated})


# -- benchmarks with the trapezoid rule -------------------------------------------------------------------------------

_VERDICTS = ("easy", "hard", "junk")
_POSITIVE = {"easy": ("easy",), "medium": ("easy", "hard"), "hard": ("hard",)}
_LEFT_OUT = {"easy": ("junk", "hard"), "medium": ("junk",), "hard": ("junk", "easy")}
_PRECISION_AT = (1, 5, 10)


def evaluate_revisited(benchmark: Benchmark, options: EvaluationOptions) -> RetrievalReport:
    """Evaluate the split ``query`` against ``gallery`` with the judgements, first without and then with distractors.

    Returns:
        a report of ``mAP`` and ``mP@k`` for ``easy``, ``medium`` and ``hard``, and with distractors for
        ``easy+distractors`` and so on. Its settings count the judgements of images that could not be embedded. The
        value of a query without positives is undefined, as in the published evaluation.

    Raises:
        InputError: a verdict is not easy, hard or junk, or a query judges an image twice.
    """
    query = benchmark["query"]
    rows, left_out = benchmark.judged("query", "gallery", _VERDICTS)
    judged = [dict(zip(_VERDICTS, lists, strict=True)) for lists in rows]
    columns: dict[str, np.ndarray] = {}
    settings: dict[str, Any] = {}
    plain = replace(benchmark, splits={name: part for name, part in benchmark.splits.items() if name != DISTRACTORS})
    for ending, of in (("", plain), ("+distractors", benchmark)):
        if ending and of.distractors is None:
            continue
        gallery, _ = of.with_distractors(of["gallery"], options.share)
        tasks: dict[str, RelevanceSource] = {
            difficulty: ListRelevance(
                len(gallery),
                [[np.concatenate([lists[part] for part in _POSITIVE[difficulty]])] for lists in judged],
                [np.concatenate([lists[part] for part in _LEFT_OUT[difficulty]]) for lists in judged],
            )
            for difficulty in _POSITIVE
        }
        asking = expand_queries(query.vectors, gallery, options)
        report = evaluate_trapezoid(asking, gallery, tasks, options, precision_at=_PRECISION_AT)
        columns |= {name + ending: report.per_query[name].to_numpy() for name in report.values}
        settings = report.settings | {"distractors": len(gallery) - len(benchmark["gallery"])}
    return RetrievalReport.from_columns(columns, settings | ({"judgements_left_out": left_out} if left_out else {}))


def evaluate_holidays(benchmark: Benchmark, options: EvaluationOptions) -> RetrievalReport:
    """Evaluate the split ``test``: the images in its list ``queries`` search the other images and the distractors.

    Returns:
        a report of ``mAP``.

    Raises:
        InputError: no image of the list could be embedded.
    """
    items, queries = benchmark["test"], benchmark.listed("queries", "test")
    gallery, _ = benchmark.with_distractors(benchmark["test"], options.share)
    groups, places = items.labels[:, 0], np.arange(len(items))
    relevant = [np.flatnonzero((groups == groups[q]) & (groups >= 0) & (places != q)) for q in queries]
    relevance = ListRelevance(len(gallery), [[part] for part in relevant], [np.array([query]) for query in queries])
    asking = expand_queries(items.vectors[queries], gallery, options, queries)
    settings = {"distractors": len(gallery) - len(items)}
    return evaluate_trapezoid(asking, gallery, {"": relevance}, options, settings=settings)


def evaluate_copydays(benchmark: Benchmark, options: EvaluationOptions) -> RetrievalReport:
    """Evaluate the edited copies of the split ``query`` against the originals of ``gallery`` and the distractors.

    A copy has the finest label of its original.

    Returns:
        a report of ``mAP``. Its settings count the copies without an original in the gallery, whose value is undefined.
    """
    query, (gallery, labels) = benchmark["query"], benchmark.with_distractors(benchmark["gallery"], options.share)
    relevance = LabelRelevance(query.labels[:, :1], labels[:, :1])
    asking = expand_queries(query.vectors, gallery, options)
    settings = {"distractors": len(gallery) - len(benchmark["gallery"])}
    report = evaluate_trapezoid(asking, gallery, {"": relevance}, options, settings=settings)
    lost = report.undefined["mAP"]
    return replace(report, settings=report.settings | ({"queries_without_original": lost} if lost else {}))


# -- the trapezoid rule and precision at k ----------------------------------------------------------------------------
#
# The evaluation code of Oxford Buildings, Holidays, Copydays, and revisited Oxford and Paris computes the area under
# the precision-recall curve with straight lines between its points. This area is never larger than AP in
# :func:`hgld.evaluate`, so these values have different names: ``mAP`` and ``mP@k``.

_BLOCK_SCORES = 32_000_000  # scores per block: 128 MB, plus one byte of grade per score and task


def trapezoid_ap(positions: np.ndarray) -> float:
    """Compute the average precision of one query by the trapezoid rule.

    Every positive spans 1/P of the recall axis. Over this span precision changes linearly from its value before the
    positive, j/rank (1 at rank 0), to its value including the positive, (j + 1)/(rank + 1).

    Args:
        positions: (P,) ranks of all positives, ascending, from 0; excluded items do not count.

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
    """Compute precision at k as in revisited Oxford and Paris: k is reduced to the rank of the last positive.

    Args:
        positions: (P,) ranks of all positives, ascending, from 0.
        k: maximum number of first items to count.

    Returns:
        the share of positives among the counted items; NaN if there are no positives.

    >>> import numpy as np
    >>> truncated_precision(np.array([0, 2]), 10)
    0.6666666666666666
    """
    if not len(positions):
        return float("nan")
    depth = min(int(positions[-1]) + 1, k)
    return float(np.count_nonzero(positions < depth) / depth)


def positive_positions(ordered: np.ndarray, positive: np.ndarray, left_out: np.ndarray) -> np.ndarray:
    """Return the ranks of one query's positives; items with equal scores rank before a positive.

    Args:
        ordered: (G,) scores of the whole gallery, ascending.
        positive: (P,) scores of the positives.
        left_out: scores of the items that are not ranked.

    Returns:
        (P,) ascending ranks, from 0.
    """
    positives = np.sort(positive)
    every = (ordered, positives, np.sort(left_out))
    # number of scores that are at least the positive's score
    passed = [len(part) - np.searchsorted(part, positives) for part in every]
    negatives = passed[0] - passed[1] - passed[2]
    return (negatives + np.arange(len(positives))[::-1])[::-1]


def evaluate_trapezoid(
    query_embeddings: Array | Rows,
    gallery_embeddings: Array,
    tasks: Mapping[str, RelevanceSource],
    options: EvaluationOptions,
    *,
    precision_at: Sequence[int] = (),
    settings: Mapping[str, Any] | None = None,
) -> RetrievalReport:
    """Evaluate embeddings by the trapezoid rule, with one or more ground truths for the same queries.

    Args:
        query_embeddings: (Q, D) of any floating dtype.
        gallery_embeddings: (G, D) embeddings.
        tasks: judgements of one level under the task's name; the name is ``""`` if there is only one task.
        options: options of ranking.
        precision_at: values of k for ``mP@k``.
        settings: entries to add to the report's settings.

    Returns:
        a report with ``mAP/task`` and ``mP@k/task`` (without ``/`` for the task ``""``). The value of a query without
        positives in a task is undefined.

    Raises:
        InputError: embeddings have the wrong shape or dtype, or their number differs from the judgements'.
        ConfigError: the device is not available.
    """
    device, is_shared = choose_device(query_embeddings, options.device), options.share is not None
    how: dict[str, Any] = {"normalize": options.normalize, "device": device, "is_shared": is_shared}
    query = open_embeddings(query_embeddings, "query", **how)
    gallery = open_embeddings(gallery_embeddings, "gallery", **how)
    check_dimensions(query, gallery)
    names = [f"{m}{'/' * bool(task)}{task}" for task in tasks for m in ("mAP", *(f"mP@{k}" for k in precision_at))]
    rows = block_rows(len(query), len(gallery), query.device, options.chunk_size)
    # larger blocks than usual, so that a gallery with distractors is read only a few times
    if options.chunk_size is None:
        rows = max(rows, min(len(query), _BLOCK_SCORES // len(gallery)))
    stated = {"average_precision": "trapezoid rule", "queries": len(query), "gallery": len(gallery)}
    stated |= {"dimensions": query.shape[1], "normalized": options.normalize}
    stated |= {"scores": "float32, TF32 off", "ties": "against the query", "device": query.device.type}

    def rank(part: range) -> RetrievalReport:
        values: list[list[float]] = []
        with exact_products(device):
            for start, stop, scores in score_blocks(query, gallery, rows, part):
                judged = [relevance.block(start, stop, torch.device("cpu")) for relevance in tasks.values()]
                for row, row_scores in enumerate(scores.cpu().numpy()):
                    ordered = np.sort(row_scores)
                    values.append([])
                    for block in judged:
                        rows_out, items_out = block.left_out
                        positive = np.flatnonzero(block.grades[row].numpy())
                        left_out = row_scores[items_out[rows_out == row]]
                        positions = positive_positions(ordered, row_scores[positive], left_out)
                        values[-1].append(trapezoid_ap(positions))
                        values[-1].extend(truncated_precision(positions, k) for k in precision_at)
                if options.progress is not None:
                    options.progress("rank", stop - part.start, len(part))
        columns = dict(zip(names, np.array(values, np.float64).T, strict=True))
        facts = {**(settings or {}), **stated}
        return RetrievalReport.from_columns(columns, facts, first_query=part.start, num_queries=len(part))

    return (options.share or ALONE).rank(rank, len(query))
