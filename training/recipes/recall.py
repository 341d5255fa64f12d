"""Recall at k: by a sigmoid, by its upper bound, with a proxy loss, with virtual items (SiMix).

Patel, Tolias and Matas: "Recall@k Surrogate Loss with Large Batches and Similarity Mixup", CVPR 2022, arXiv:2108.11179,
whose batches of 4,000 pass the model in chunks; Ramzi et al., arXiv:2309.08250. Settings of the former are those of
``src/main.py`` (44b7011) and ``src/netlib.py`` of yash0307/RecallatK_surrogate: GeM and layer norm, Adam, one rate for
backbone and head (the author in issue 5 there), multiplied by 0.3 at two epochs. The second temperature is the paper's,
1; the released code has k itself. ROD-R@k weighs both terms the same, as ``loss/ROADRatk_*.yaml`` of
elias-ramzi/SupRank, which name no weights, so that ``suprank/getter.py`` takes equal ones.
"""

from dataclasses import replace

from hgld.training.config import TrainConfig
from hgld.training.recipes.ap_settings import VEHICLEID
from hgld.training.recipes.published import Published, papers_with_code
from hgld.training.recipes.recipe import Setting, recipe
from hgld.training.recipes.settings import CUB, INAT_BASE, SOP

_SUPRANK = Published("R@k on this dataset in arXiv:2309.08250 (R@1, mAP@R)")
_PATEL = Published("RS@k with ResNet-50 on this dataset in arXiv:2108.11179 (R@k)")
_LISTED = papers_with_code("2108.11179")
_SIMIX = "listed without saying whether SiMix was on; its authors find it useful on small datasets most"
_PATEL_SOP = _PATEL.read(_LISTED, {"R@1": 82.7}, _SIMIX)
_PATEL_INAT = _PATEL.read(
    _LISTED,
    {"R@1": 71.8, "R@4": 84.7, "R@16": 91.9, "R@32": 94.3},
    f"{_SIMIX}; R@4 is listed as R@5, but the authors' evaluation has k = 1, 4, 16, 32",
)


def _large(setting: Setting, lr: float, milestones: tuple[int, int], epochs: int) -> Setting:
    """The setting in batches of 4,000."""
    changed = setting.changed(
        batch_size=4000,
        chunk=200,
        sampler="pk",
        pooling="gem",
        layer_norm=True,
        lr=lr,
        lr_head=lr,
        weight_decay=4e-4,
        schedule="step",
        milestones=milestones,
        gamma=0.3,
        frozen_epochs=0,
        epochs=epochs,
    )
    hardware = "one V100 of 32 GB, chunks of 200 (README of yash0307/RecallatK_surrogate)"
    return replace(changed, hardware=hardware)


_SOP_4000 = _large(SOP, 2e-4, (25, 50), 55)
_INAT_4000 = _large(INAT_BASE, 1e-4, (40, 70), 90)
_VEHICLEID_4000 = _large(VEHICLEID, 1e-4, (40, 70), 90)


@recipe(SOP, _SUPRANK)
def smooth_recall_sop() -> TrainConfig:
    """Smooth-R@k on SOP: ranks by a sigmoid."""
    return SOP.train(loss="SmoothRecall")


@recipe(SOP, _SUPRANK)
def sup_recall_sop() -> TrainConfig:
    """Sup-R@k on SOP: ranks by their upper bound."""
    return SOP.train(loss="SupRecall")


@recipe(SOP, _SUPRANK)
def rod_recall_sop() -> TrainConfig:
    """ROD-R@k on SOP: recall's upper bound and a proxy loss."""
    return SOP.train(loss="RODRecall", lambda_=0.5)


@recipe(INAT_BASE, _SUPRANK)
def smooth_recall_inat_base() -> TrainConfig:
    """Smooth-R@k on iNat-base: ranks by a sigmoid."""
    return INAT_BASE.train(loss="SmoothRecall")


@recipe(INAT_BASE, _SUPRANK)
def sup_recall_inat_base() -> TrainConfig:
    """Sup-R@k on iNat-base: ranks by their upper bound."""
    return INAT_BASE.train(loss="SupRecall")


@recipe(INAT_BASE, _SUPRANK)
def rod_recall_inat_base() -> TrainConfig:
    """ROD-R@k on iNat-base: recall's upper bound and a proxy loss."""
    return INAT_BASE.train(loss="RODRecall", lambda_=0.5)


@recipe(CUB, _SUPRANK)
def smooth_recall_cub() -> TrainConfig:
    """Smooth-R@k on CUB: ranks by a sigmoid."""
    return CUB.train(loss="SmoothRecall")


@recipe(CUB, _SUPRANK)
def sup_recall_cub() -> TrainConfig:
    """Sup-R@k on CUB: ranks by their upper bound."""
    return CUB.train(loss="SupRecall")


@recipe(CUB, _SUPRANK)
def rod_recall_cub() -> TrainConfig:
    """ROD-R@k on CUB: recall's upper bound and a proxy loss."""
    return CUB.train(loss="RODRecall", lambda_=0.5)


@recipe(_SOP_4000, _PATEL_SOP)
def smooth_recall_large_sop() -> TrainConfig:
    """Smooth-R@k on SOP in batches of 4,000, without SiMix."""
    return _SOP_4000.train(loss="SmoothRecall")


@recipe(_SOP_4000, _PATEL_SOP)
def smooth_recall_simix_sop() -> TrainConfig:
    """Smooth-R@k on SOP in batches of 4,000 with SiMix."""
    return _SOP_4000.train(loss="SmoothRecall", simix=True)


@recipe(_INAT_4000, _PATEL_INAT)
def smooth_recall_large_inat_base() -> TrainConfig:
    """Smooth-R@k on iNat-base in batches of 4,000, without SiMix."""
    return _INAT_4000.train(loss="SmoothRecall")


@recipe(_INAT_4000, _PATEL_INAT)
def smooth_recall_simix_inat_base() -> TrainConfig:
    """Smooth-R@k on iNat-base in batches of 4,000 with SiMix."""
    return _INAT_4000.train(loss="SmoothRecall", simix=True)


@recipe(_VEHICLEID_4000, _PATEL)
def smooth_recall_large_vehicleid() -> TrainConfig:
    """Smooth-R@k on VehicleID in batches of 4,000, without SiMix."""
    return _VEHICLEID_4000.train(loss="SmoothRecall")


@recipe(_VEHICLEID_4000, _PATEL)
def smooth_recall_simix_vehicleid() -> TrainConfig:
    """Smooth-R@k on VehicleID in batches of 4,000 with SiMix."""
    return _VEHICLEID_4000.train(loss="SmoothRecall", simix=True)


@recipe(SOP, _SUPRANK)
def sup_recall_simix_sop() -> TrainConfig:
    """Sup-R@k on SOP with SiMix."""
    return SOP.train(loss="SupRecall", simix=True)


@recipe(SOP, _SUPRANK)
def rod_recall_simix_sop() -> TrainConfig:
    """ROD-R@k on SOP with SiMix."""
    return SOP.train(loss="RODRecall", lambda_=0.5, simix=True)


@recipe(INAT_BASE, _SUPRANK)
def sup_recall_simix_inat_base() -> TrainConfig:
    """Sup-R@k on iNat-base with SiMix."""
    return INAT_BASE.train(loss="SupRecall", simix=True)


@recipe(INAT_BASE, _SUPRANK)
def rod_recall_simix_inat_base() -> TrainConfig:
    """ROD-R@k on iNat-base with SiMix."""
    return INAT_BASE.train(loss="RODRecall", lambda_=0.5, simix=True)
