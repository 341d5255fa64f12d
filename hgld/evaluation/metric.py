"""Definitions of metrics, and the parsing and printing of their names.

This module imports nothing slow, because shell completion of metric names imports it. To add a metric to hgld, write a
function in :mod:`hgld.evaluation.statistics` and a table in ``metrics.toml``. To add a metric in another package, write
a :class:`MetricDefinition` and an entry point of the group ``hgld.metrics`` (:mod:`hgld.plugins`).
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

from hgld.errors import ConfigError
from hgld.plugins import Plugins, read_definitions

# -- definitions ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class MetricDefinition:
    """Definition of all metrics of one name, such as ``R@k``.

    Attributes:
        meaning: a sentence for the glossary of reports.
        value: function from ranked queries to (q,) float64, NaN if undefined, or the name of a function of
            :mod:`hgld.evaluation.statistics`. If ``of_set``, a function from unit embeddings (N, D) on the CPU and
            labels (N,) of one level to a number. None: the metric belongs to a classifier, not to a ranking.
        binary: whether the metric measures one level, not all levels at once.
        first_positives: whether the metric needs only as many ranks as there are positives. If False, it needs the
            whole list, or the first k if the name ends in ``@k``.
        offered: values of k that shell completion offers.
        depth: number of first ranks that the metric needs, if its name has no k; None: the whole list.
        of_set: whether the metric is one number for all items together, without values per query.
        per_cent: whether the metric is a share, which tables print in per cent.
        lower_is_better: whether the best value is the lowest.
    """

    meaning: str
    value: "str | Callable[..., Any] | None" = None
    binary: bool = False
    first_positives: bool = False
    offered: tuple[int, ...] = (10,)
    depth: int | None = None
    of_set: bool = False
    per_cent: bool = True
    lower_is_better: bool = False

    def compute(self, *inputs: Any) -> Any:
        """Return the (q,) values of ranked queries; for an ``of_set`` metric, one number from embeddings and labels."""
        if callable(self.value):
            return self.value(*inputs)
        assert self.value is not None  # only classifier metrics have no value, and resolve() rejects them
        return getattr(import_module("hgld.evaluation.statistics"), self.value)(*inputs)


METRICS: Mapping[str, MetricDefinition] = read_definitions(Path(__file__).with_name("metrics.toml"), MetricDefinition)
"""The metrics of hgld."""

PLUGINS = Plugins("hgld.metrics", "metric", METRICS)


@cache
def definition_of(name: str) -> MetricDefinition:
    """Return the definition of a metric of hgld or of another package; ``k`` replaces the number in its name.

    Raises:
        ConfigError: the metric is unknown, or cannot be imported.
    """
    if name in METRICS:
        PLUGINS.refuse_namesakes(name)
        return METRICS[name]
    definition = PLUGINS.load(name)
    if not isinstance(definition, MetricDefinition):
        raise ConfigError(
            f"the metric {name!r} of another package is {definition!r}; expected a hgld.metrics.MetricDefinition."
        )
    return definition


def offered_names() -> list[str]:
    """Return the names that shell completion offers, with common values of k; imports nothing."""
    own = [
        name if not _takes_number(name) else f"{name[:-1]}{k}"
        for name, definition in METRICS.items()
        for k in (definition.offered if _takes_number(name) else (0,))
    ]
    return [*own, *(name.replace("@k", "@10") for name in PLUGINS.names())]


def _takes_number(name: str) -> bool:
    return name.endswith(("@k", "-k"))


# -- names ------------------------------------------------------------------------------------------------------------

TOP_K = "top-k"
_NUMBER = re.compile(r"(?:(?<=@)|(?<=^top-)|(?<=^rank-))[1-9][0-9]{0,8}\Z", re.IGNORECASE)
_OTHER_NAMES = {name.lower(): name for name in METRICS} | {  # other common spellings, in lower case
    "recall@k": "R@k",
    "rank-k": "R@k",
    "cmc@k": "R@k",
    "hits@k": "R@k",
    "precision@k": "P@k",
    "map": "AP",
    "mean-average-precision": "AP",
    "mean-average-precision@r": "mAP@R",
    "ap@r": "mAP@R",
    "ap@k": "mAP@k",
    "hap": "H-AP",
}


@dataclass(frozen=True)
class Metric:
    """Parsed name of one retrieval metric.

    Binary metrics define positives at one level (``/level`` after the name; without it, at every level in turn):

    - ``AP``: average precision
    - ``mAP@R``, ``mAP@k``: average precision cut off at the number of positives R, or at k
    - ``R@k``: 1 if one of the first k items is positive, else 0
    - ``TR@k``: number of positives among the first k, divided by min(k, R)
    - ``P@k``: number of positives among the first k, divided by k

    Graded metrics read all levels at once:

    - ``H-AP``: hierarchical average precision
    - ``H-R@k``, ``H-P@k``: hierarchical recall and precision
    - ``NDCG``, ``NDCG@k``: normalised discounted cumulative gain, with exponential gain
    - ``ASI``: average set intersection
    - ``wAP``: the weighted sum of the levels' APs
    - ``severity``: number of levels up to the class that the query and the first item share, if that item is wrong
    - ``HD@k``: mean over the first k items of the number of levels up to the class shared with the query

    Clustering metrics have one value per level, without values per query: ``dists@intra``, ``dists@inter``, ``NMI``.

    ``top-k`` belongs to a network's classifier, not to a ranking: the share of items whose class is among its k most
    likely classes.

    Attributes:
        kind: name of the metric, with ``k`` in place of the number.
        number: value of k; None if the name has no k.
        level: level of a binary metric; None: every level, or the metric is graded.

    >>> from hgld.metrics import Metric
    >>> Metric.parse("R@10/hierarchical_label")
    Metric(kind='R@k', number=10, level='hierarchical_label')
    >>> str(Metric.parse("recall@1"))  # other common spellings are accepted
    'R@1'
    """

    kind: str
    number: int | None = None
    level: str | None = None

    @classmethod
    def parse(cls, name: str) -> "Metric":
        """Parse a metric's name; other common spellings are accepted.

        Raises:
            ConfigError: the metric is unknown.
        """
        head, slash, level = name.partition("/")
        if "_at_" in head and head not in PLUGINS.names():
            head = head.replace("_at_", "@")
        match = _NUMBER.search(head)
        kind, number = (f"{head[: match.start()]}k", int(match.group())) if match else (head, None)
        if kind not in METRICS and kind not in PLUGINS.names():
            kind = _OTHER_NAMES.get(kind.lower().replace("_", "-"), kind)
        known = kind in METRICS or kind in PLUGINS.names()
        if known and slash:
            known = bool(level) and definition_of(kind).binary
        if not known or (number is None) == _takes_number(kind):
            binary, graded = (
                ", ".join(n for n, d in METRICS.items() if d.binary is is_binary) for is_binary in (True, False)
            )
            others = f" Other packages provide {', '.join(PLUGINS.names())}." if PLUGINS.names() else ""
            raise ConfigError(
                f"metric {name!r} is unknown; expected one of {binary} (with /level for one level only) "
                f"or {graded}, with a number from 1 for k, for example R@10 or top-5.{others}"
            )
        return cls(kind, number, level if slash else None)

    def __str__(self) -> str:
        head = self.kind if self.number is None else f"{self.kind[:-1]}{self.number}"
        return head if self.level is None else f"{head}/{self.level}"

    @property
    def definition(self) -> MetricDefinition:
        """Return the definition of the metric."""
        return definition_of(self.kind)

    @property
    def binary(self) -> bool:
        """True if the metric measures one level."""
        return self.definition.binary

    @property
    def depth(self) -> int | None:
        """Return the number of first ranks that the metric needs; None: the whole list."""
        return self.number if self.kind.endswith("@k") else self.definition.depth


def resolve(names: Iterable[str | Metric], levels: Sequence[str]) -> list[Metric]:
    """Return the metrics in the given order, without repetitions.

    A binary metric without a level becomes one metric per level, finest first.

    Raises:
        ConfigError: a metric or level is unknown, a metric belongs to a classifier, or there is no metric.
    """
    resolved: dict[Metric, None] = {}
    for name in [names] if isinstance(names, str) else names:
        metric = Metric.parse(name) if isinstance(name, str) else name
        if metric.kind == TOP_K:
            raise ConfigError(
                f"metric {metric} measures a network's classifier, not a ranking of embeddings; evaluate a run whose "
                "loss has a classifier (--checkpoint)."
            )
        if metric.level is not None and metric.level not in levels:
            raise ConfigError(
                f"metric {str(metric)!r}: level {metric.level!r} is unknown; expected {', '.join(levels)}."
            )
        every = metric.binary and metric.level is None
        resolved.update(dict.fromkeys([replace(metric, level=level) for level in levels] if every else [metric]))
    if not resolved:
        raise ConfigError("no metrics were chosen; expected at least one, for example AP.")
    return list(resolved)


def split_top_k(names: Iterable[str | Metric]) -> tuple[tuple[int, ...], tuple[str, ...]]:
    """Return the distinct values k of the metrics ``top-k``, ascending, and the names of the other metrics.

    Raises:
        ConfigError: a metric is unknown.
    """
    asked = [names] if isinstance(names, str) else names
    metrics = [Metric.parse(name) if isinstance(name, str) else name for name in asked]
    numbers = {metric.number or 1 for metric in metrics if metric.kind == TOP_K}
    return tuple(sorted(numbers)), tuple(str(metric) for metric in metrics if metric.kind != TOP_K)
