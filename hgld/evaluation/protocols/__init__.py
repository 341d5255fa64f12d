"""Registry of evaluation protocols: splits to rank, metrics, and requirements for a dataset.

``dataset.json`` names the protocol of its dataset; ``hgld evaluate``, ``train --evaluate-on``, ``report`` and
``search`` look it up here. This module imports nothing slow, because help and shell completion import it. To add a
protocol to hgld, write a function in a module of this package and a table in ``protocols.toml``. To add a protocol in
another package, write a :class:`Protocol` and an entry point of the group ``hgld.protocols`` (:mod:`hgld.plugins`).
"""

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any, Literal

from hgld.errors import ConfigError, InputError
from hgld.evaluation.metric import Metric, MetricDefinition, definition_of
from hgld.plugins import Plugins, read_definitions

FINEST = "finest"  # level name in a metric that stands for the finest level of the dataset
EVERY = "every"  # level name in a metric that stands for every level
_LEAVE_ONE_OUT = "hgld.evaluation.protocols.by_labels:evaluate_leave_one_out"
_QUERY_GALLERY = "hgld.evaluation.protocols.by_labels:evaluate_query_gallery"


@dataclass(frozen=True)
class Protocol:
    """An evaluation protocol: how to evaluate a benchmark, and what this requires of a dataset.

    Attributes:
        summary: one readable line: queries, gallery, excluded items and the averages.
        evaluate: function from the embedded splits (:class:`hgld.evaluation.protocols.benchmark.Benchmark`) and the
            options of ranking (:class:`hgld.evaluation.options.EvaluationOptions`) to a report, or its name as
            ``module:function``.
        splits: splits that are embedded; the dataset must have them.
        further: splits that are also embedded if the dataset has them (distractors).
        gallery: splits that ``hgld search`` searches; empty: all of ``splits``.
        metrics: default metrics; ``/finest`` means the finest level, ``/every`` each level. Empty: the protocol
            computes fixed values, and users cannot choose metrics.
        printed: names of the values that the published tables print, in table order, spelled like ``metrics``. One of
            them chooses the best checkpoint of a run.
        tables: tables that the protocol reads in addition to the index: ``judgements``, ``lists``.
        columns: columns that a table for ``hgld build-shards manifest`` needs in addition to its levels, each with its
            meaning.
        may_have: optional columns of that table.
        levels: levels that the dataset must have; empty: any levels.
    """

    summary: str
    evaluate: str | Callable[..., Any]
    splits: tuple[str, ...]
    further: tuple[str, ...] = ()
    gallery: tuple[str, ...] = ()
    metrics: tuple[str, ...] = ()
    printed: tuple[str, ...] = ()
    tables: tuple[Literal["judgements", "lists"], ...] = ()
    columns: Mapping[str, str] = field(default_factory=dict)
    may_have: Mapping[str, str] = field(default_factory=dict)
    levels: tuple[str, ...] = ()

    def function(self) -> Callable[..., Any]:
        """Import and return the function ``evaluate``."""
        if callable(self.evaluate):
            return self.evaluate
        module, _, name = self.evaluate.partition(":")
        return getattr(import_module(module), name)

    @property
    def queries(self) -> tuple[str, ...]:
        """Return the splits whose items are queries."""
        return tuple(split for split in self.splits if split not in self.gallery) or self.splits

    def wanted(self, splits: Collection[str]) -> tuple[str, ...]:
        """Return the splits of a dataset that the protocol needs embeddings of, in the protocol's order."""
        return tuple(split for split in (*self.splits, *self.further) if split in splits)

    def searched(self, splits: Collection[str]) -> tuple[str, ...]:
        """Return the splits of a dataset that ``hgld search`` searches."""
        return tuple(split for split in (*(self.gallery or self.splits), *self.further) if split in splits)

    def ranked_by_labels(self, settings: Mapping[str, Any]) -> tuple[str, ...]:
        """Return the query and gallery splits of a report whose relevance follows from labels; empty for other reports.

        Args:
            settings: settings of the report.
        """
        plain = self.evaluate in (_LEAVE_ONE_OUT, _QUERY_GALLERY) and "distractors" not in settings
        return self.splits if plain and "queries" in settings and "gallery" in settings else ()

    def check(
        self, name: str, where: str, splits: Collection[str], tables: Collection[str], levels: Collection[str]
    ) -> None:
        """Raise an error if a dataset lacks a split, table or level that the protocol needs.

        Args:
            name: name of the protocol.
            where: name of the dataset in messages.
            splits: names of the dataset's splits that hold items.
            tables: names of the dataset's tables: ``judgements``, ``lists``.
            levels: names of the dataset's levels.

        Raises:
            InputError: a split, table or level is missing; the message states which, and the fix.
        """
        if any(level not in levels for level in self.levels):
            raise InputError(
                f"{where}: the protocol {name} needs the levels {', '.join(self.levels)}, but the dataset has "
                f"{', '.join(levels)}. Build it with these levels: hgld build-shards --levels LEVEL=COLUMN."
            )
        lost = [split for split in self.splits if split not in splits]
        if lost:
            raise InputError(
                f"{where}: the protocol {name} needs the split{'s' * (len(lost) > 1)} {', '.join(lost)}, but the "
                f"dataset has {', '.join(splits) or 'none with items'}. Build the missing splits too, or choose splits "
                "to evaluate (--split, or --query-split and --gallery-split)."
            )
        without = [table for table in self.tables if table not in tables]
        if without:
            raise InputError(
                f"{where}: the protocol {name} reads {' and '.join(f'{table}.parquet' for table in without)}, which "
                "the dataset lacks. Build the dataset again (hgld build-shards), or choose another protocol "
                "(--protocol)."
            )


PROTOCOLS: Mapping[str, Protocol] = read_definitions(Path(__file__).with_name("protocols.toml"), Protocol)
"""The protocols of hgld."""

VALUES: Mapping[str, str] = {
    "mAP": "Mean average precision by the trapezoid rule, as in the evaluation code of the landmark benchmarks.",
    "mP@k": "Precision of the first k, or down to the last positive if that comes first (revisited Oxford and Paris).",
    "N-S": "Number of an object's four images among the first four, 0 to 4.",
}
"""Meanings of the values that only protocols compute."""

PLUGINS = Plugins("hgld.protocols", "protocol", PROTOCOLS)


def protocol_names() -> list[str]:
    """Return the names of all protocols: first hgld's protocols, then protocols of other packages."""
    return [*PROTOCOLS, *PLUGINS.names()]


@cache
def protocol_of(name: str) -> Protocol:
    """Return a protocol by its name, of hgld or of another package.

    Raises:
        ConfigError: the protocol is unknown, or cannot be imported.
    """
    if name in PROTOCOLS:
        PLUGINS.refuse_namesakes(name)
        return PROTOCOLS[name]
    found: Any = PLUGINS.load(name)
    if not isinstance(found, Protocol):
        raise ConfigError(f"the protocol {name!r} of another package is {found!r}; expected a Protocol.")
    return found


def value_parts(name: str) -> tuple[str, str | None]:
    """Split the name of a report's value into its kind, with ``k`` for the number, and its level or set (or None).

    Raises:
        ConfigError: neither a metric nor a protocol's value has this name.

    >>> value_parts("mP@5/easy"), value_parts("R@1/species"), value_parts("H-AP")
    (('mP@k', 'easy'), ('R@k', 'species'), ('H-AP', None))
    """
    head, slash, part = name.partition("/")
    kind = re.sub(r"(?<=@)[1-9][0-9]{0,8}\Z", "k", head)
    if kind in VALUES and (part or not slash):
        return kind, part or None
    metric = Metric.parse(name)
    return metric.kind, metric.level


def meaning_of(kind: str) -> str:
    """Return the meaning of a kind of value, for a glossary."""
    return VALUES.get(kind) or definition_of(kind).meaning


def is_per_cent(name: str) -> bool:
    """Return whether tables print a value in per cent, because it is a share."""
    definition = _definition(name)
    return name.partition("/")[0] != "N-S" and (definition is None or definition.per_cent)


def lower_is_better(name: str) -> bool:
    """Return whether the best value of a metric is the lowest."""
    definition = _definition(name)
    return definition is not None and definition.lower_is_better


def _definition(name: str) -> MetricDefinition | None:
    """Return the definition of a value's metric; None if only protocols compute the value."""
    try:
        return definition_of(value_parts(name)[0])
    except ConfigError:
        return None


def at_finest(names: Collection[str], levels: Collection[str]) -> tuple[str, ...]:
    """Return names of metrics with ``/finest`` and ``/every`` replaced by level names.

    >>> at_finest(["R@1/finest", "AP/every", "H-AP"], ["species", "genus"])
    ('R@1/species', 'AP/species', 'AP/genus', 'H-AP')
    """
    of = {FINEST: [*levels][:1], EVERY: levels}
    heads = [name.rpartition("/") for name in names]
    return tuple(
        spelled
        for name, (head, _, level) in zip(names, heads, strict=True)
        for spelled in ([f"{head}/{own}" for own in of[level]] if head and level in of else [name])
    )
