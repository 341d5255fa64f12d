"""Registry of the kinds of metrics, by name: the level of each, its meaning to readers and the function for it.

This module imports nothing heavy, because shells complete names of metrics from it. A metric of hgld needs its
function (:mod:`hgld.evaluation.statistics`) and its lines of :data:`METRICS`; one of another package a
:class:`MetricDefinition` and an entry point of the group ``hgld.metrics`` (:mod:`hgld.plugins`).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any

from hgld.errors import ConfigError
from hgld.plugins import Plugins

if TYPE_CHECKING:
    pass


@dataclass(frozen=True)
class MetricDefinition:
    """One kind of metric.

    Attributes:
        meaning: a sentence for the glossary of reports.
        value: function from ranked queries to (q,) float64, NaN where undefined; a text names a function of
            :mod:`hgld.evaluation.statistics`. Where it is ``of_set``, a function from unit embeddings (N, D) on the CPU
            and the labels (N,) of one level to a number; a text names one of :mod:`hgld.evaluation.diagnostics`. None
            says that no ranking has it, but a classifier.
        binary: whether it is of one level, not of all levels at once.
        first_positives: whether it reads the list no deeper than its positives are many; the whole list else, or the
            first k where the name ends in ``@k``.
        offered: names that shells complete.
        depth: the k of a metric whose name has none and that reads only the first k of the list.
        of_labels: whether it reads the labels of the first k, not their grades alone; judged lists have none.
        of_set: whether it is one number of all items together, without values a query.
        per_cent: whether it is a share, which tables print in per cent; else it is printed as it is.
        lower_is_better: whether the best value is the lowest.
    """

    meaning: str
    value: "str | Callable[..., Any] | None"
    binary: bool = False
    first_positives: bool = False
    offered: tuple[str, ...] = ()
    depth: int | None = None
    of_labels: bool = False
    of_set: bool = False
    per_cent: bool = True
    lower_is_better: bool = False

    def compute(self, *given: Any) -> Any:
        """Return the (q,) values of ranked queries; of a metric of the set the number of embeddings and labels."""
        if callable(self.value):
            return self.value(*given)
        assert self.value is not None  # no name of such a metric reaches a ranking
        module = "diagnostics" if self.of_set else "statistics"
        return getattr(import_module(f"hgld.evaluation.{module}"), self.value)(*given)


METRICS: Mapping[str, MetricDefinition] = {
    "AP": MetricDefinition(
        "Average precision over the whole ranking; positives are the items of the query's class at that level.",
        "average_precision",
        binary=True,
        offered=("AP",),
    ),
    "mAP@R": MetricDefinition(
        "Precision at the ranks of the positives among the first R, summed, over R: the number of positives.",
        "map_at_r",
        binary=True,
        first_positives=True,
        offered=("mAP@R",),
    ),
    "R@k": MetricDefinition(
        "Share of queries with a positive among the first k.",
        "recall_at_k",
        binary=True,
        offered=("R@1", "R@10", "R@100"),
    ),
    "TR@k": MetricDefinition(
        "Positives among the first k, over min(k, R).",
        "true_recall_at_k",
        binary=True,
        offered=("TR@10",),
    ),
    "P@k": MetricDefinition("Share of positives among the first k.", "precision_at_k", binary=True, offered=("P@10",)),
    "mAP@k": MetricDefinition(
        "Average precision of the first k, over min(k, R): the rule of Google Landmarks v2.",
        "map_at_k",
        binary=True,
        offered=("mAP@100",),
    ),
    "H-AP": MetricDefinition(
        "Hierarchical average precision: AP in which an item counts by how fine a level it shares with the query.",
        "hierarchical_ap",
        offered=("H-AP",),
    ),
    "H-R@k": MetricDefinition(
        "Relevance found among the first k, over all there is to find.",
        "hierarchical_recall_at_k",
        offered=("H-R@1", "H-R@10"),
    ),
    "H-P@k": MetricDefinition(
        "Hierarchical precision of the first k.", "hierarchical_precision_at_k", offered=("H-P@10",)
    ),
    "NDCG": MetricDefinition(
        "Discounted gain (2^grade - 1) over the whole ranking, over that of the ideal one.", "ndcg", offered=("NDCG",)
    ),
    "NDCG@k": MetricDefinition("The same over the first k.", "ndcg_at_k", offered=("NDCG@10",)),
    "ASI": MetricDefinition(
        "Average set intersection of the ranking's beginnings with those of an ideal ranking.",
        "set_intersection",
        first_positives=True,
        offered=("ASI",),
    ),
    "wAP": MetricDefinition("The weighted sum of the levels' APs.", "weighted_ap", offered=("wAP",)),
    "AP#g": MetricDefinition(
        "AP of the items of one grade against those that share nothing with the query.",
        "ap_of_grade",
        offered=("AP#1", "AP#2"),
    ),
    "top-k": MetricDefinition(
        "Share of items whose class is among the k that the network's classifier finds most likely.",
        None,
        offered=("top-1", "top-5"),
    ),
    "severity": MetricDefinition(
        "Mistake severity: levels to climb from the query's finest class to one that the first item shares, over the "
        "queries whose first item is wrong; lower is better.",
        "mistake_severity",
        offered=("severity",),
        depth=1,
        per_cent=False,
        lower_is_better=True,
    ),
    "HD@k": MetricDefinition(
        "Hierarchical distance: levels to climb, 0 for the same finest class, averaged over the first k; lower is "
        "better.",
        "hierarchical_distance_at_k",
        offered=("HD@1", "HD@5", "HD@20"),
        per_cent=False,
        lower_is_better=True,
    ),
    "kNN-hP@k": MetricDefinition(
        "Hierarchical precision of the class that the first k vote for: its ancestors and itself that are the query's.",
        "knn_precision",
        offered=("kNN-hP@5",),
        of_labels=True,
    ),
    "kNN-hR@k": MetricDefinition(
        "Hierarchical recall of that class: the query's ancestors and class that are among its own.",
        "knn_recall",
        offered=("kNN-hR@5",),
        of_labels=True,
    ),
    "kNN-hF1@k": MetricDefinition(
        "Harmonic mean of the two: hierarchical F1 of the class that the first k vote for.",
        "knn_f1",
        offered=("kNN-hF1@5",),
        of_labels=True,
    ),
    "kNN-consistency@k": MetricDefinition(
        "Tree consistency: whether the classes that the first k vote for, level by level, lie on one path of the tree.",
        "knn_consistency",
        offered=("kNN-consistency@5",),
        of_labels=True,
    ),
    "dists@intra": MetricDefinition(
        "Mean cosine distance of two items of one class, over all pairs; lower is denser.",
        "intra_class_distance",
        binary=True,
        offered=("dists@intra",),
        of_set=True,
        per_cent=False,
        lower_is_better=True,
    ),
    "dists@inter": MetricDefinition(
        "Mean cosine distance of two items of different classes, over all pairs.",
        "inter_class_distance",
        binary=True,
        offered=("dists@inter",),
        of_set=True,
        per_cent=False,
    ),
    "NMI": MetricDefinition(
        "Normalised mutual information of the classes and a k-means clustering into as many clusters.",
        "clustering_nmi",
        binary=True,
        offered=("NMI",),
        of_set=True,
    ),
}
"""The metrics of hgld."""

PLUGINS = Plugins("hgld.metrics", "metric", METRICS)


def metric_names(*, binary: bool) -> list[str]:
    """Return the kinds of hgld that are binary, or those that are not."""
    return [name for name, kind in METRICS.items() if kind.binary == binary]


def offered_names() -> list[str]:
    """Return the names that shells complete, with numbers that are common for k and g; nothing is imported."""
    own = [name for kind in METRICS.values() for name in kind.offered]
    return [*own, *(name.replace("@k", "@10").replace("#g", "#1") for name in PLUGINS.names())]


@cache
def kind_of(name: str) -> MetricDefinition:
    """Return a kind of metric by its name, of hgld or of another package.

    Raises:
        ConfigError: there is none, or it cannot be imported.
    """
    if name in METRICS:
        PLUGINS.refuse_namesakes(name)
        return METRICS[name]
    kind = PLUGINS.load(name)
    if not isinstance(kind, MetricDefinition):
        raise ConfigError(
            f"the metric {name!r} of another package is {kind!r}; expected a hgld.metrics.MetricDefinition."
        )
    return kind
