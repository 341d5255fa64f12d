"""Protocols by labels: every item of a split queries the others, or one split queries another."""

from dataclasses import replace

import numpy as np

from hgld.evaluation.evaluate import evaluate_known_levels
from hgld.evaluation.options import EvaluationOptions
from hgld.evaluation.protocols.benchmark import Benchmark, EmbeddedSplit
from hgld.evaluation.protocols.distractors import with_distractors
from hgld.evaluation.report import RetrievalReport


def evaluate_leave_one_out(benchmark: Benchmark, options: EvaluationOptions) -> RetrievalReport:
    """Evaluate the first split: every item queries the others, and the distractors if there are any."""
    return rank_by_labels(benchmark, next(iter(benchmark.splits.values())), None, options)


def evaluate_query_gallery(benchmark: Benchmark, options: EvaluationOptions) -> RetrievalReport:
    """Evaluate the split ``query`` against ``gallery``, and the distractors if there are any."""
    return rank_by_labels(benchmark, benchmark["query"], benchmark["gallery"], options)


def rank_by_labels(
    benchmark: Benchmark,
    query: EmbeddedSplit,
    gallery: EmbeddedSplit | None,
    options: EvaluationOptions,
    self_index: np.ndarray | None = None,
) -> RetrievalReport:
    """Rank a split by its labels, at the levels that are known on both sides.

    Args:
        benchmark: its levels, and its distractors.
        query: Q items.
        gallery: G items; None: every query searches in the other queries.
        options: the metrics, and how to rank.
        self_index: (Q,) gallery index of the query itself, -1 for none.

    Returns:
        the report; see :func:`hgld.evaluation.evaluate.evaluate_known_levels`.

    Raises:
        InputError: no level is known on both sides, or no value is defined.
        ConfigError: a metric of a level that is not known.
    """
    sides = None if gallery is None else (gallery.vectors, gallery.labels)
    further, stated = benchmark.distractors, {}
    if further is not None:
        if gallery is None:
            gallery, self_index = query, np.arange(len(query))
            stated["protocol"] = "leave-one-out"
        sides = with_distractors(gallery.vectors, gallery.labels, further)
        stated["distractors"] = len(further)
    report = evaluate_known_levels(
        (query.vectors, query.labels),
        sides,
        levels=benchmark.levels,
        self_index=self_index,
        options=options,
        where=f"dataset {benchmark.name}",
    )
    return replace(report, settings=report.settings | stated)
