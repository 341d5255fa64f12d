"""Registry of the losses that a run can be trained with: each loss's module and the parameters that a config sets.

This module imports nothing slow, because ``hgld train --help`` and the checks of a config use it. To add a loss to
hgld, write its class and a table in ``losses.toml``. To add a loss in another package, write its class and an entry
point of the group ``hgld.losses`` (:mod:`hgld.plugins`).
"""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any, Literal

from hgld.plugins import Plugins, read_definitions

SECOND_TERMS = {"pair": "CalibrationLoss", "proxy": "NormSoftmax"}
"""Config names of the second terms of a composition."""


@dataclass(frozen=True)
class LossEntry:
    """Facts about a loss that a config needs.

    Attributes:
        module: module of ``hgld.losses``.
        kind: ``rank``: a ``RankLoss``; ``pairs``: a loss of pairs or triplets; ``proxies``: a loss with one learned
            vector per class; ``views``: a loss of several views of an image; ``terms``: a composition of two losses.
        options: parameters of the loss's ``__init__`` that a config sets, each with the config field's name.
        learns: whether the loss always has trainable parameters.
        rank: the first term of a composition.
        second: the default second term of a composition.
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
    """Return the names of all losses: first hgld's losses, then losses of other packages."""
    return (*LOSSES, *PLUGINS.names())


def entry_of(name: str) -> LossEntry:
    """Return the registry entry of a loss.

    For a loss of another package, the entry is made from its class: a config field sets the parameter of the same name
    (``margin``, ``tau``, ``level``). A loss with the parameter ``dim`` is taken to have trainable parameters.

    Raises:
        ConfigError: no loss has this name, or its module cannot be imported.
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
        ConfigError: no loss has this name, or its module cannot be imported.
    """
    if name in LOSSES:
        return getattr(import_module(f"hgld.losses.{LOSSES[name].module}"), name)
    return PLUGINS.load(name)


def options_of(name: str) -> frozenset[str]:
    """Return the config fields that apply to a loss: its parameters, and parameters of the wrappers for its kind."""
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
    """Return whether a loss can be called with a gallery, as a cross-batch memory calls it."""
    if name in LOSSES:
        return True
    made = loss_class(name)
    if not isinstance(made, type):  # a function builds this loss, so its call signature is unknown
        return True
    try:
        # The six arguments: self, embeddings, labels, ref_embeddings, ref_labels, self_index.
        inspect.signature(made.forward).bind(*range(6))
    except TypeError:
        return False
    return True


_OF_OTHER_MEANING = {  # losses of pytorch-metric-learning that differ from hgld's most similar loss, and how
    "ContrastiveLoss": "Contrastive squares the distances and averages per query",
    "MarginLoss": "Margin draws negatives by their distance",
    "TripletMarginLoss": "Triplet compares squared distances to one semi-hard negative per pair",
}


def missing_name(name: str) -> str:
    """Return the error message for an unknown name; for a loss of pytorch-metric-learning it suggests a substitute."""
    message = f"module 'hgld.losses' has no attribute {name!r}"
    if not name.endswith("Loss"):
        return message
    differs = f"{_OF_OTHER_MEANING[name]}. " if name in _OF_OTHER_MEANING else ""
    return f"{message}: {differs}Use hgld.losses.wrap(pytorch_metric_learning.losses.{name}(...))."
