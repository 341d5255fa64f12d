"""Rank losses, decomposability and proxy losses, and their compositions.

Losses are called as ``loss(embeddings, labels)`` or ``loss(embeddings, labels, ref_embeddings, ref_labels)``. Inside,
they call functions that take scores and grades. Names are imported lazily (PEP 562).
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from hgld.losses.registry import missing_name

if TYPE_CHECKING:
    from hgld.losses.binned import FastAP, SoftBinAP, soft_bin_ap_loss
    from hgld.losses.blackbox_ap import BlackboxAP, blackbox_ap_loss
    from hgld.losses.compositions import HAPPIER, ROADMAP, RODNDCG, Composition, MultiGrain, RODRecall, SumOverLevels
    from hgld.losses.memory import CrossBatchMemory
    from hgld.losses.pairs import CalibrationLoss, Contrastive, Margin, Triplet
    from hgld.losses.proxies import CSL, NormSoftmax, ProxyNCApp
    from hgld.losses.rank_loss import RankLoss, TermSum
    from hgld.losses.surrogate_losses import (
        PNP,
        SmoothAP,
        SmoothHAP,
        SmoothRecall,
        SupAP,
        SupHAP,
        SupNDCG,
        SupRecall,
        graded_ap_loss,
        ndcg_loss,
        pnp_loss,
        recall_loss,
    )
    from hgld.losses.wrappers import (
        ClassWeighted,
        FastAPLoss,
        MatryoshkaLoss,
        MetricLearningLoss,
        NormalizedSoftmaxLoss,
        PNPLoss,
        ProxyNCALoss,
        SiMix,
        SmoothAPLoss,
        wrap,
    )

__all__ = [
    "CSL",
    "HAPPIER",
    "PNP",
    "ROADMAP",
    "RODNDCG",
    "BlackboxAP",
    "CalibrationLoss",
    "ClassWeighted",
    "Composition",
    "Contrastive",
    "CrossBatchMemory",
    "FastAP",
    "FastAPLoss",
    "Margin",
    "MatryoshkaLoss",
    "MetricLearningLoss",
    "MultiGrain",
    "NormSoftmax",
    "NormalizedSoftmaxLoss",
    "PNPLoss",
    "ProxyNCALoss",
    "ProxyNCApp",
    "RODRecall",
    "RankLoss",
    "SiMix",
    "SmoothAP",
    "SmoothAPLoss",
    "SmoothHAP",
    "SmoothRecall",
    "SoftBinAP",
    "SumOverLevels",
    "SupAP",
    "SupHAP",
    "SupNDCG",
    "SupRecall",
    "TermSum",
    "Triplet",
    "blackbox_ap_loss",
    "graded_ap_loss",
    "ndcg_loss",
    "pnp_loss",
    "recall_loss",
    "soft_bin_ap_loss",
    "wrap",
]

_MODULES = (
    "surrogate_losses",
    "compositions",
    "pairs",
    "proxies",
    "binned",
    "blackbox_ap",
    "wrappers",
    "memory",
)


if not TYPE_CHECKING:  # a type checker that saw __getattr__ would accept every misspelt name

    def __getattr__(name: str) -> Any:
        if name not in __all__:
            raise AttributeError(missing_name(name))
        modules = (import_module(f"hgld.losses.{module}") for module in _MODULES)
        return next(getattr(module, name) for module in modules if hasattr(module, name))


def __dir__() -> list[str]:
    return list(__all__)
