"""Retrieval metrics: their names, their values for given scores, and diagnostics of an embedding.

:class:`Metric` defines the metrics; :func:`hgld.evaluate` computes them for whole test sets.
"""

from hgld.evaluation.evaluate import ranking_metrics as ranking_metrics
from hgld.evaluation.metric import Metric as Metric
from hgld.evaluation.metric import MetricDefinition as MetricDefinition
from hgld.evaluation.running import Retrieval as Retrieval
from hgld.evaluation.statistics import ClassDistances as ClassDistances
from hgld.evaluation.statistics import RankedQueries as RankedQueries
from hgld.evaluation.statistics import class_distances as class_distances
from hgld.evaluation.statistics import clustering_nmi as clustering_nmi
from hgld.relevance import GainFunction as GainFunction

__all__ = [
    "ClassDistances",
    "GainFunction",
    "Metric",
    "MetricDefinition",
    "RankedQueries",
    "Retrieval",
    "class_distances",
    "clustering_nmi",
    "ranking_metrics",
]
