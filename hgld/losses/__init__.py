"""Rank losses, decomposability and proxy losses, and their compositions.

``loss(embeddings, labels)`` and ``loss(embeddings, labels, ref_embeddings, ref_labels)``; functions of (scores, grades)
beneath. Names are handed on lazily (PEP 562).
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from hgld.losses.registry import LOSSES, missing_name

if TYPE_CHECKING:
    from hgld.losses.binned import FastAP as FastAP
    from hgld.losses.binned import SoftBinAP as SoftBinAP
    from hgld.losses.binned import soft_bin_ap_loss as soft_bin_ap_loss
    from hgld.losses.blackbox_ap import BlackboxAP as BlackboxAP
    from hgld.losses.blackbox_ap import blackbox_ap_loss as blackbox_ap_loss
    from hgld.losses.compositions import HAPPIER as HAPPIER
    from hgld.losses.compositions import ROADMAP as ROADMAP
    from hgld.losses.compositions import RODNDCG as RODNDCG
    from hgld.losses.compositions import Composition as Composition
    from hgld.losses.compositions import MultiGrain as MultiGrain
    from hgld.losses.compositions import RODRecall as RODRecall
    from hgld.losses.compositions import SumOverLevels as SumOverLevels
    from hgld.losses.library_names import FastAPLoss as FastAPLoss
    from hgld.losses.library_names import NormalizedSoftmaxLoss as NormalizedSoftmaxLoss
    from hgld.losses.library_names import PNPLoss as PNPLoss
    from hgld.losses.library_names import ProxyNCALoss as ProxyNCALoss
    from hgld.losses.library_names import SmoothAPLoss as SmoothAPLoss
    from hgld.losses.memory import CrossBatchMemory as CrossBatchMemory
    from hgld.losses.pairs import CalibrationLoss as CalibrationLoss
    from hgld.losses.pairs import Contrastive as Contrastive
    from hgld.losses.pairs import Margin as Margin
    from hgld.losses.pairs import Triplet as Triplet
    from hgld.losses.proxies import CSL as CSL
    from hgld.losses.proxies import NormSoftmax as NormSoftmax
    from hgld.losses.proxies import ProxyNCApp as ProxyNCApp
    from hgld.losses.rank_loss import RankLoss as RankLoss
    from hgld.losses.rank_loss import TermSum as TermSum
    from hgld.losses.surrogate_losses import PNP as PNP
    from hgld.losses.surrogate_losses import SmoothAP as SmoothAP
    from hgld.losses.surrogate_losses import SmoothHAP as SmoothHAP
    from hgld.losses.surrogate_losses import SmoothRecall as SmoothRecall
    from hgld.losses.surrogate_losses import SupAP as SupAP
    from hgld.losses.surrogate_losses import SupHAP as SupHAP
    from hgld.losses.surrogate_losses import SupNDCG as SupNDCG
    from hgld.losses.surrogate_losses import SupRecall as SupRecall
    from hgld.losses.surrogate_losses import graded_ap_loss as graded_ap_loss
    from hgld.losses.surrogate_losses import ndcg_loss as ndcg_loss
    from hgld.losses.surrogate_losses import pnp_loss as pnp_loss
    from hgld.losses.surrogate_losses import recall_loss as recall_loss
    from hgld.losses.wrappers import ClassWeighted as ClassWeighted
    from hgld.losses.wrappers import MatryoshkaLoss as MatryoshkaLoss
    from hgld.losses.wrappers import MetricLearningLoss as MetricLearningLoss
    from hgld.losses.wrappers import SiMix as SiMix
    from hgld.losses.wrappers import wrap as wrap

_OTHERS = {
    "binned": ("soft_bin_ap_loss",),
    "blackbox_ap": ("blackbox_ap_loss",),
    "compositions": ("Composition", "SumOverLevels"),
    "library_names": ("FastAPLoss", "NormalizedSoftmaxLoss", "PNPLoss", "ProxyNCALoss", "SmoothAPLoss"),
    "memory": ("CrossBatchMemory",),
    "rank_loss": ("RankLoss", "TermSum"),
    "surrogate_losses": ("graded_ap_loss", "ndcg_loss", "pnp_loss", "recall_loss"),
    "wrappers": ("ClassWeighted", "MatryoshkaLoss", "MetricLearningLoss", "SiMix", "wrap"),
}
_MODULES = {name: entry.module for name, entry in LOSSES.items()} | {
    name: module for module, names in _OTHERS.items() for name in names
}

__all__ = sorted(_MODULES)  # pyright: ignore[reportUnsupportedDunderAll]


if not TYPE_CHECKING:  # a checker that saw it would take every misspelt name for a good one

    def __getattr__(name: str) -> Any:
        if name in _MODULES:
            return getattr(import_module(f"hgld.losses.{_MODULES[name]}"), name)
        raise AttributeError(missing_name(name))


def __dir__() -> list[str]:
    return sorted(__all__)
