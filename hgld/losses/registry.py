"""The losses that a run can be trained with, by name: where each is, and what of its parameters a config sets.

This module imports nothing heavy, because ``hgld train --help`` and the checks of a config are made from it. A loss of
one's own needs its class and one line of :data:`LOSSES`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

SECOND_TERMS = {"pair": "CalibrationLoss", "proxy": "NormSoftmax"}
"""The second terms of a composition, by the names that a config gives them."""


@dataclass(frozen=True)
class LossEntry:
    """A loss, as far as a config needs to know it.

    Attributes:
        module: of ``hgld.losses``.
        kind: ``rank``: a ``RankLoss``; ``pairs``: of pairs and triplets; ``proxies``: with a vector for each class;
            ``views``: of several views of an image; ``terms``: a composition of two.
        options: names of the parameters of its ``__init__`` that a config sets, with the config's names for them.
        learns: whether it has parameters of its own, whatever its options.
        rank: the first term of a composition.
        second: the second term of a composition, where a config leaves it open.
    """

    module: str
    kind: Literal["rank", "pairs", "proxies", "views", "terms"]
    options: Mapping[str, str] = field(default_factory=dict)
    learns: bool = False
    rank: str = ""
    second: str = ""


def _same(*names: str, **renamed: str) -> dict[str, str]:
    return {**{name: name for name in names}, **renamed}


_SUP = _same("tau", "rho", "delta")
_H_AP = _same("alpha", "relevance")
_RECALL = _same(k="recall_at", temperature="recall_temperature")
_LEVEL = _same("level")
_PROXY = _same(temperature="proxy_temperature")
_PAIR = _same(alpha="pair_positive", beta="pair_negative")
_BLACKBOX = _same(lambda_="blackbox_lambda", margin="blackbox_margin")
_PNP = _same("alpha", "tau", variant="pnp", b="pnp_b")

LOSSES: Mapping[str, LossEntry] = {
    "HAPPIER": LossEntry("compositions", "terms", rank="SupHAP", second="proxy"),
    "RODNDCG": LossEntry("compositions", "terms", rank="SupNDCG", second="proxy"),
    "ROADMAP": LossEntry("compositions", "terms", rank="SupAP", second="pair"),
    "RODRecall": LossEntry("compositions", "terms", rank="SupRecall", second="proxy"),
    "SupHAP": LossEntry("surrogate_loss", "rank", _SUP | _H_AP),
    "SmoothHAP": LossEntry("surrogate_loss", "rank", _same("tau") | _H_AP),
    "SupNDCG": LossEntry("surrogate_loss", "rank", _SUP),
    "SupAP": LossEntry("surrogate_loss", "rank", _SUP | _LEVEL),
    "SmoothAP": LossEntry("surrogate_loss", "rank", _same("tau") | _LEVEL),
    "SupRecall": LossEntry("surrogate_loss", "rank", _RECALL | _SUP | _LEVEL),
    "SmoothRecall": LossEntry("surrogate_loss", "rank", _RECALL | _same("tau") | _LEVEL),
    "SoftBinAP": LossEntry("soft_bin_ap", "rank", _same("bins") | _LEVEL),
    "FastAP": LossEntry("fast_ap", "rank", _same("bins") | _LEVEL),
    "BlackboxAP": LossEntry("blackbox_ap", "rank", _BLACKBOX | _LEVEL),
    "PNP": LossEntry("pnp", "rank", _PNP | _LEVEL),
    "CSL": LossEntry("csl", "proxies", _same(margins="csl_margins", scale="csl_scale"), learns=True),
    "NormSoftmax": LossEntry("proxies", "proxies", _PROXY | _LEVEL, learns=True),
    "ProxyNCApp": LossEntry("proxies", "proxies", _PROXY | _LEVEL, learns=True),
    "Triplet": LossEntry("triplet", "pairs", _same("margin") | _LEVEL),
    "Contrastive": LossEntry("pair_loss", "pairs", _same("margin", variant="contrastive") | _LEVEL),
    "Margin": LossEntry("margin", "pairs", _same("margin", "beta") | _LEVEL, learns=True),
    "MultiGrain": LossEntry("multigrain", "views", _same("lambda_", "margin", "beta") | _LEVEL, learns=True),
    "CalibrationLoss": LossEntry("pair_loss", "pairs", _PAIR | _LEVEL),
}
"""All losses that a run can be trained with."""


def options_of(name: str) -> frozenset[str]:
    """Return what of a config a loss takes: its own parameters, and what can be put around a loss of its kind."""
    entry = LOSSES[name]
    if entry.kind == "terms":
        second = {option for term in SECOND_TERMS.values() for option in LOSSES[term].options.values()} - {"level"}
        return options_of(entry.rank) - {"class_weights"} | {"lambda_", "decomposability"} | second
    taken = set(entry.options.values())
    binary = "level" in taken
    if binary and entry.kind != "views":
        taken.add("sum_levels")
    if entry.kind == "rank":
        taken |= {"simix", "class_weights"} if binary else {"simix"}
    if entry.kind == "rank" or (entry.kind == "pairs" and not entry.learns):
        taken |= {"memory", "memory_from_epoch", "memory_weight"}
    return frozenset(taken)
