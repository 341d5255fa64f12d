"""Metrics by name (every name parses and prints back to itself), and the gain of a grade."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from hgld.errors import ConfigError
from hgld.evaluation.metric_kinds import METRICS, PLUGINS, kind_of, metric_names
from hgld.evaluation.protocol_kinds import NOT_SHARES
from hgld.relevance import RelevanceKind, check_relevance, grade_gains, level_weights

# -- names ------------------------------------------------------------------------------------------------------------

TOP_K = "top-k"
_NUMBER = re.compile(r"(?:(?<=[@#])|(?<=^top-))[1-9][0-9]{0,8}\Z")


@dataclass(frozen=True)
class Metric:
    """One retrieval metric.

    Binary metrics make their positives at one level (``/level`` behind the name; without it, every level):

    - ``AP``: average precision; ``mAP@R`` and ``mAP@k``: cut at the number of positives, at k
    - ``R@k``: whether one of the first k is positive; ``TR@k``: positives among the first k over min(k, R)
    - ``P@k``: positives among the first k over k

    Graded metrics read all levels at once:

    - ``H-AP``: hierarchical average precision; ``H-R@k``, ``H-P@k``: hierarchical recall and precision
    - ``NDCG``, ``NDCG@k``: normalised discounted cumulative gain, exponential gain
    - ``ASI``: average set intersection
    - ``wAP``: the weighted sum of the levels' APs
    - ``AP#g``: AP of the items of grade g alone against those of grade 0; items of the other grades are left out
    - ``severity``, ``HD@k``: levels to climb to what is shared, of the first item where it is wrong, of the first k
    - ``kNN-hP@k``, ``kNN-hR@k``, ``kNN-hF1@k``: hierarchical precision, recall, F1 of the class that k items vote for
    - ``kNN-consistency@k``: whether votes of every level lie on one path of the tree

    Metrics of the set are one number at a level, without values a query: ``dists@intra``, ``dists@inter``, ``NMI``.

    And one is of a network's classifier, not of a ranking: ``top-k``, the share of items whose class is among the k
    that it finds most likely.

    Attributes:
        kind: the name with ``k`` (or ``g``) for the number.
        number: k, or the grade of ``AP#g``; None where the name has none.
        level: level of a binary metric; None for every level, and for graded metrics.

    >>> from hgld.metrics import Metric
    >>> Metric.parse("R@10/hierarchical_label")
    Metric(kind='R@k', number=10, level='hierarchical_label')
    >>> str(Metric.parse("AP#2"))
    'AP#2'
    """

    kind: str
    number: int | None = None
    level: str | None = None

    @classmethod
    def parse(cls, name: str) -> "Metric":
        """Return the metric of a name.

        Raises:
            ConfigError: there is no such metric.
        """
        head, slash, level = name.partition("/")
        match = _NUMBER.search(head)
        kind, number = head, None
        if match:
            kind, number = head[: match.start()] + ("g" if head[match.start() - 1] == "#" else "k"), int(match.group())
        exists = kind in METRICS or kind in PLUGINS.names()
        known = exists and (not slash or kind_of(kind).binary)
        if not known or (number is None) != (kind[-2:] not in ("@k", "#g", "-k")) or (slash and not level):
            binary, graded = (", ".join(metric_names(binary=binary)) for binary in (True, False))
            others = f" Other packages bring {', '.join(PLUGINS.names())}." if PLUGINS.names() else ""
            raise ConfigError(
                f"metric {name!r} is unknown; expected one of {binary} (with /level for one level alone) "
                f"or {graded}, with a number from 1 for k and g, for example R@10, AP#2 or top-5.{others}"
            )
        return cls(kind, number, level if slash else None)

    def __str__(self) -> str:
        head = self.kind if self.number is None else f"{self.kind[:-1]}{self.number}"
        return head if self.level is None else f"{head}/{self.level}"

    @property
    def binary(self) -> bool:
        """True for a metric of one level."""
        return kind_of(self.kind).binary

    @property
    def depth(self) -> int | None:
        """The k of a metric that reads only the first k of the list; None for the others."""
        return self.number if self.kind.endswith("@k") else kind_of(self.kind).depth


def is_per_cent(name: str) -> bool:
    """Tell whether tables print a value in per cent: all but those that are no shares."""
    return _has(name, "per_cent", usual=name not in NOT_SHARES)


def lower_is_better(name: str) -> bool:
    """Tell whether the best value of a metric is the lowest."""
    return _has(name, "lower_is_better", usual=False)


def _has(name: str, property_: str, *, usual: bool) -> bool:
    try:
        return getattr(kind_of(Metric.parse(name).kind), property_)
    except ConfigError:  # a value that a benchmark names in its own way, for example UKBench's score
        return usual


def resolve(names: Iterable[str | Metric], levels: Sequence[str]) -> list[Metric]:
    """Return metrics with their levels spelled out, each once, in the order given (levels finest first).

    Raises:
        ConfigError: an unknown metric or level, a grade that does not exist, a metric of a classifier, or no metric.
    """
    resolved: dict[Metric, None] = {}
    for name in [names] if isinstance(names, str) else names:
        metric = Metric.parse(name) if isinstance(name, str) else name
        if metric.kind == TOP_K:
            raise ConfigError(
                f"metric {metric} is of a network's classifier, not of a ranking of embeddings; evaluate a run whose "
                "loss has a classifier (--checkpoint)."
            )
        if metric.level is not None and metric.level not in levels:
            raise ConfigError(
                f"metric {str(metric)!r}: level {metric.level!r} is unknown; expected {', '.join(levels)}."
            )
        if metric.kind == "AP#g" and (metric.number or 0) > len(levels):
            raise ConfigError(f"metric {str(metric)!r}: with {len(levels)} levels the grades are 1..{len(levels)}.")
        every = metric.binary and metric.level is None
        resolved.update(dict.fromkeys([replace(metric, level=level) for level in levels] if every else [metric]))
    if not resolved:
        raise ConfigError("no metrics are named; expected at least one, for example AP.")
    return list(resolved)


def split_top_k(names: Iterable[str | Metric]) -> tuple[tuple[int, ...], tuple[str, ...]]:
    """Return the k of the metrics ``top-k``, each once and ascending, and the names of the other metrics.

    Raises:
        ConfigError: an unknown metric.
    """
    given = [names] if isinstance(names, str) else names
    metrics = [Metric.parse(name) if isinstance(name, str) else name for name in given]
    found = {metric.number or 1 for metric in metrics if metric.kind == TOP_K}
    return tuple(sorted(found)), tuple(str(metric) for metric in metrics if metric.kind != TOP_K)


# -- gains ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class GainFunction:
    """The gain of a grade in H-AP, H-R@k, H-P@k and wAP; the formulas are those of :func:`hgld.graded_relevance`.

    Attributes:
        kind: ``population``, ``total``, ``weighted_ap`` or ``exponential``.
        alpha: exponent of ``population`` and ``total``.
        weights: the L weights of ``weighted_ap`` and of the metric wAP, coarsest level first; equal if None.
        count_query: count the query itself among the items of grade L, for ``population`` alone.

    Raises:
        ConfigError: an unknown kind, an alpha below 0, or weights that are negative or all zero.
    """

    kind: RelevanceKind = "population"
    alpha: float = 1.0
    weights: tuple[float, ...] | None = None
    count_query: bool = False

    def __post_init__(self) -> None:
        if self.weights is not None:
            object.__setattr__(self, "weights", tuple(float(w) for w in self.weights))
        check_relevance(self.kind, self.alpha, self.weights)

    def level_weights(self, counts: np.ndarray) -> np.ndarray:
        """Return the weight of every level's AP to every query, (Q, L); see :func:`hgld.relevance.level_weights`."""
        return level_weights(torch.from_numpy(counts), self.weights).numpy()

    def gains(self, counts: np.ndarray) -> np.ndarray:
        """Return the gain of every grade to every query, up to a factor of the query's own.

        Args:
            counts: (Q, L + 1) int64 items a grade.

        Returns:
            (Q, L + 1) float64, see ``relative`` of :func:`hgld.relevance.grade_gains`.

        Raises:
            ConfigError: another number of weights than levels.
        """
        options = {"count_query": self.count_query, "relative": True}
        return grade_gains(torch.from_numpy(counts), self.kind, self.alpha, self.weights, **options).numpy().copy()
