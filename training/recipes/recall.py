"""Recall at k: by a sigmoid, by its upper bound, with a proxy loss, with virtual items (SiMix).

Patel, Tolias and Matas: "Recall@k Surrogate Loss with Large Batches and Similarity Mixup", CVPR 2022, arXiv:2108.11179,
whose batches of 4,000 pass the model in chunks; Ramzi et al., arXiv:2309.08250. The figures are R@1 of the former as
Papers with Code lists them; it took SiMix in all of them.
"""

from training.config import TrainConfig
from training.recipes.recipe import recipe
from training.recipes.settings import CUB, INAT_BASE, SOP, VEHICLEID

_PATEL_SOP = "R@1 82.7 on SOP (ResNet-50; Papers with Code on arXiv:2108.11179)"
_PATEL_INAT = (
    "R@1 71.8, R@5 84.7, R@16 91.9, R@32 94.3 on iNaturalist (ResNet-50; Papers with Code on arXiv:2108.11179)"
)
_PATEL_VEHICLEID = "the rows RS@k of arXiv:2108.11179 on VehicleID (R@1, R@5)"
_SUPRANK = "the rows R@k of arXiv:2309.08250 on this dataset (R@1, mAP@R)"

_SOP_4000 = SOP.changed(batch_size=4000, chunk=200, pooling="gem", sampler="pk")
_INAT_4000 = INAT_BASE.changed(batch_size=4000, chunk=200, pooling="gem")
_VEHICLEID_4000 = VEHICLEID.changed(batch_size=4000, chunk=200, pooling="gem", layer_norm=True)


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
    return SOP.train(loss="RODRecall")


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
    return INAT_BASE.train(loss="RODRecall")


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
    return CUB.train(loss="RODRecall")


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


@recipe(_VEHICLEID_4000, _PATEL_VEHICLEID)
def smooth_recall_large_vehicleid() -> TrainConfig:
    """Smooth-R@k on VehicleID in batches of 4,000, without SiMix."""
    return _VEHICLEID_4000.train(loss="SmoothRecall")


@recipe(_VEHICLEID_4000, _PATEL_VEHICLEID)
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
    return SOP.train(loss="RODRecall", simix=True)


@recipe(INAT_BASE, _SUPRANK)
def sup_recall_simix_inat_base() -> TrainConfig:
    """Sup-R@k on iNat-base with SiMix."""
    return INAT_BASE.train(loss="SupRecall", simix=True)


@recipe(INAT_BASE, _SUPRANK)
def rod_recall_simix_inat_base() -> TrainConfig:
    """ROD-R@k on iNat-base with SiMix."""
    return INAT_BASE.train(loss="RODRecall", simix=True)
