"""Retrieval metrics: their names, their values for given scores, and diagnostics of an embedding.

The definitions are those of :class:`Metric`; :func:`hgld.evaluate` computes them for whole test sets.
"""

from hgld.evaluation.diagnostics import ClassDistances as ClassDistances
from hgld.evaluation.diagnostics import GapOverBatches as GapOverBatches
from hgld.evaluation.diagnostics import SmoothingError as SmoothingError
from hgld.evaluation.diagnostics import class_batches as class_batches
from hgld.evaluation.diagnostics import class_distances as class_distances
from hgld.evaluation.diagnostics import clustering_nmi as clustering_nmi
from hgld.evaluation.diagnostics import decomposability_bound as decomposability_bound
from hgld.evaluation.diagnostics import decomposability_gap as decomposability_gap
from hgld.evaluation.diagnostics import gap_over_batches as gap_over_batches
from hgld.evaluation.diagnostics import smoothing_errors as smoothing_errors
from hgld.evaluation.evaluate import ranking_metrics as ranking_metrics
from hgld.relevance import GainFunction as GainFunction
from hgld.evaluation.metric import Metric as Metric
from hgld.evaluation.metric import MetricDefinition as MetricDefinition
from hgld.evaluation.running import Retrieval as Retrieval
from hgld.evaluation.statistics import RankedQueries as RankedQueries

__all__ = [
    "ClassDistances",
    "GainFunction",
    "GapOverBatches",
    "Metric",
    "MetricDefinition",
    "RankedQueries",
    "Retrieval",
    "SmoothingError",
    "class_batches",
    "class_distances",
    "clustering_nmi",
    "decomposability_bound",
    "decomposability_gap",
    "gap_over_batches",
    "ranking_metrics",
    "smoothing_errors",
]
