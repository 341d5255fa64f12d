"""Registry of the losses that a run can be trained with: the module of each, and its parameters that a config sets.

This module imports nothing heavy, because ``hgld train --help`` and the checks of a config are made from it. A loss of
hgld needs its class and its table in ``losses.toml``; one of another package its class and an entry point of the group
``hgld.losses`` (:mod:`hgld.plugins`).
"""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any, Literal

from hgld.plugins import Plugins, read_definitions

SECOND_TERMS = {"pair": "CalibrationLoss", "proxy": "NormSoftmax"}
"""The second terms of a composition, by the names that a config gives them."""


@dataclass(frozen=True)
class LossEntry:
    """Facts of a loss that a config needs.

    Attributes:
        module: module of ``hgld.losses``.
        kind: ``rank``: a ``RankLoss``; ``pairs``: of pairs and triplets; ``proxies``: with a vector for each class;
            ``views``: of several views of an image; ``terms``: a composition of two.
        options: names of the parameters of its ``__init__`` that a config sets, with the config's names for them.
        learns: whether it has parameters of its own, regardless of its options.
        rank: the first term of a composition.
        second: the second term of a composition if a config names none.
    """

    module: str
    kind: Literal["rank", "pairs", "proxies", "views", "terms"]
    options: Mapping[str, str] = field(default_factory=dict)
    learns: bool = False
    rank: str = ""
    second: str = ""


LOSSES: Mapping[str, LossEntry] = read_definitions(Path(__file__).with_name("losses.toml"), LossEntry)
"""The losses of hgld that a run can be trained with."""

PLUGINS = Plugins("hgld.losses", "loss", LOSSES)
_OPTIONS = {option for entry in LOSSES.values() for option in entry.options.values()}


def loss_names() -> tuple[str, ...]:
    """Return the names of all losses: those of hgld, then those of other packages."""
    return (*LOSSES, *PLUGINS.names())


def entry_of(name: str) -> LossEntry:
    """Return the facts of a loss that a config needs.

    The facts of another package's loss come from its class: an option sets the parameter of the same name (``margin``,
    ``tau``, ``level``). A loss that asks for ``dim`` has parameters of its own.

    Raises:
        ConfigError: there is no such loss, or it cannot be imported.
    """
    if name in LOSSES:
        PLUGINS.refuse_namesakes(name)
        return LOSSES[name]
    from hgld.losses.rank_loss import RankLoss

    made = PLUGINS.load(name)
    parameters = inspect.signature(made).parameters
    ranks = isinstance(made, type) and issubclass(made, RankLoss)
    return LossEntry(
        "",
        "rank" if ranks else "pairs",
        {parameter: parameter for parameter in parameters if parameter in _OPTIONS},
        learns="dim" in parameters,
    )


def loss_class(name: str) -> Callable[..., Any]:
    """Import a loss by its name.

    Raises:
        ConfigError: there is no such loss, or it cannot be imported.
    """
    if name in LOSSES:
        return getattr(import_module(f"hgld.losses.{LOSSES[name].module}"), name)
    return PLUGINS.load(name)


def options_of(name: str) -> frozenset[str]:
    """Return the config fields that a loss takes: its own parameters, and those of wrappers for a loss of its kind."""
    entry = entry_of(name)
    if entry.kind == "terms":
        second = {option for term in SECOND_TERMS.values() for option in LOSSES[term].options.values()} - {"level"}
        of_rank = options_of(entry.rank) - {"class_weights"}
        return of_rank | {"lambda_", "decomposability"} | second
    taken = set(entry.options.values())
    binary = "level" in taken
    if binary and entry.kind != "views":
        taken.add("sum_levels")
    if entry.kind == "rank":
        taken |= {"simix", "class_weights"} if binary else {"simix"}
    if entry.kind == "rank" or (entry.kind == "pairs" and not entry.learns and _takes_references(name)):
        taken |= {"memory", "memory_from_epoch"}
    if entry.kind != "views":
        taken.add("matryoshka")
    return frozenset(taken)


def _takes_references(name: str) -> bool:
    """Tell whether a loss is called with references too, which a memory hands on."""
    if name in LOSSES:
        return True
    made = loss_class(name)
    if not isinstance(made, type):  # a function that makes the loss
        return True
    try:
        inspect.signature(made.forward).bind(
            *range(6)
        )  # self, embeddings, labels, ref_embeddings, ref_labels, self_index
    except TypeError:
        return False
    return True


_OF_OTHER_MEANING = {  # names of pytorch-metric-learning whose nearest loss of hgld is another function
    "ContrastiveLoss": "Contrastive squares the distances and averages per query",
    "MarginLoss": "Margin draws negatives by their distance",
    "TripletMarginLoss": "Triplet compares squared distances to one semi-hard negative per pair",
}


def missing_name(name: str) -> str:
    """Return the message for a name that ``hgld.losses`` lacks; for a loss of another library it says what to use."""
    message = f"module 'hgld.losses' has no attribute {name!r}"
    if not name.endswith("Loss"):
        return message
    differs = f"{_OF_OTHER_MEANING[name]}. " if name in _OF_OTHER_MEANING else ""
    return f"{message}: {differs}hgld.losses.wrap(pytorch_metric_learning.losses.{name}(...)) takes the library's own."
