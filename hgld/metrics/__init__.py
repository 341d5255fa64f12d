"""Retrieval metrics: their names, their values for given scores, and diagnostics of an embedding.

The definitions are those of :class:`Metric`; :func:`hgld.evaluate` computes them for whole test sets.
"""

from hgld.metrics.diagnostics import ClassDistances as ClassDistances
from hgld.metrics.diagnostics import class_distances as class_distances
from hgld.metrics.diagnostics import clustering_nmi as clustering_nmi
from hgld.metrics.diagnostics import decomposability_gap as decomposability_gap
from hgld.metrics.gains import Relevance as Relevance
from hgld.metrics.names import Metric as Metric
from hgld.metrics.scored import ranking_metrics as ranking_metrics

__all__ = [
    "ClassDistances",
    "Metric",
    "Relevance",
    "class_distances",
    "clustering_nmi",
    "decomposability_gap",
    "ranking_metrics",
]
