"""Losses over the whole hierarchy: HAPPIER, ROD-NDCG and their parts.

Ramzi et al.: "Hierarchical Average Precision Training for Pertinent Image Retrieval", ECCV 2022, arXiv:2207.04873, and
"Optimization of Rank Losses for Image Retrieval", arXiv:2309.08250. Of their tables only what Papers with Code lists
was read: the fine R@1 of HAPPIER and HAPPIER_F, and the mean AP on DyML. Their H-AP, ASI and NDCG are not confirmed.
"""

from hgld.training.config import TrainConfig
from hgld.training.recipes.published import Published, papers_with_code
from hgld.training.recipes.recipe import recipe
from hgld.training.recipes.settings import CUB, DYML_ANIMAL, DYML_PRODUCT, DYML_VEHICLE, INAT_BASE, INAT_FULL, SOP

_HAPPIER = Published("HAPPIER on this dataset in arXiv:2207.04873 and arXiv:2309.08250 (H-AP, ASI, NDCG, fine R@1)")
_HAPPIER_F = Published("HAPPIER_F on this dataset in arXiv:2207.04873 and arXiv:2309.08250 (H-AP, ASI, NDCG, fine R@1)")
_NDCG = Published("Sup-NDCG and ROD-NDCG on this dataset in arXiv:2309.08250 (H-AP, ASI, NDCG, fine R@1)")
_ABLATION = Published("ablation of H-AP, its surrogate and its relevance in arXiv:2207.04873 (H-AP, ASI, NDCG)")
_LISTED = papers_with_code("2207.04873")
_INAT = "listed for iNaturalist, without saying whether base or full"
_F = "lambda 0.1 as in the paper; the released loss/HAPPIER_5_SOP.yaml, named HAPPIER_F, has 0.5"


def _dyml(mean_ap: float) -> Published:
    return _HAPPIER.read(_LISTED, {"AP (mean of the levels)": mean_ap})


@recipe(SOP, _HAPPIER.read(_LISTED, {"R@1": 81.0}))
def happier_sop() -> TrainConfig:
    """HAPPIER on SOP: H-AP's upper bound and a proxy loss on the finest level, lambda 0.1."""
    return SOP.train(loss="HAPPIER")


@recipe(INAT_BASE, _HAPPIER.read(_LISTED, {"R@1": 70.7}, _INAT))
def happier_inat_base() -> TrainConfig:
    """HAPPIER on iNat-base: H-AP's upper bound and a proxy loss on the finest level, lambda 0.1."""
    return INAT_BASE.train(loss="HAPPIER")


@recipe(INAT_FULL, _HAPPIER)
def happier_inat_full() -> TrainConfig:
    """HAPPIER on iNat-full: H-AP's upper bound and a proxy loss on the finest level, lambda 0.1."""
    return INAT_FULL.train(loss="HAPPIER")


@recipe(CUB, _HAPPIER)
def happier_cub() -> TrainConfig:
    """HAPPIER on CUB: H-AP's upper bound and a proxy loss on the finest level, lambda 0.1."""
    return CUB.train(loss="HAPPIER")


@recipe(DYML_VEHICLE, _dyml(37.0))
def happier_dyml_vehicle() -> TrainConfig:
    """HAPPIER on DyML-Vehicle: H-AP's upper bound and a proxy loss on the finest level, lambda 0.1."""
    return DYML_VEHICLE.train(loss="HAPPIER")


@recipe(DYML_PRODUCT, _dyml(38.0))
def happier_dyml_product() -> TrainConfig:
    """HAPPIER on DyML-Product: H-AP's upper bound and a proxy loss on the finest level, lambda 0.1."""
    return DYML_PRODUCT.train(loss="HAPPIER")


@recipe(DYML_ANIMAL, _dyml(43.8))
def happier_dyml_animal() -> TrainConfig:
    """HAPPIER on DyML-Animal: both terms weigh the same, as in the authors' command (loss HAPPIER_5)."""
    return DYML_ANIMAL.train(loss="HAPPIER", lambda_=0.5)


@recipe(SOP, _HAPPIER_F.read(_LISTED, {"R@1": 81.8}, _F))
def happier_f_sop() -> TrainConfig:
    """HAPPIER_F on SOP: alpha 5 weighs the finest level more."""
    return SOP.train(loss="HAPPIER", alpha=5.0)


@recipe(INAT_BASE, _HAPPIER_F.read(_LISTED, {"R@1": 71.0}, _INAT))
def happier_f_inat_base() -> TrainConfig:
    """HAPPIER_F on iNat-base: alpha 3 weighs the finest level more."""
    return INAT_BASE.train(loss="HAPPIER", alpha=3.0)


@recipe(INAT_FULL, _HAPPIER_F)
def happier_f_inat_full() -> TrainConfig:
    """HAPPIER_F on iNat-full: alpha 3 weighs the finest level more."""
    return INAT_FULL.train(loss="HAPPIER", alpha=3.0)


@recipe(SOP, _NDCG)
def sup_ndcg_sop() -> TrainConfig:
    """Sup-NDCG on SOP: NDCG's upper bound alone."""
    return SOP.train(loss="SupNDCG")


@recipe(INAT_BASE, _NDCG)
def sup_ndcg_inat_base() -> TrainConfig:
    """Sup-NDCG on iNat-base: NDCG's upper bound alone."""
    return INAT_BASE.train(loss="SupNDCG")


@recipe(INAT_FULL, _NDCG)
def sup_ndcg_inat_full() -> TrainConfig:
    """Sup-NDCG on iNat-full: NDCG's upper bound alone."""
    return INAT_FULL.train(loss="SupNDCG")


@recipe(SOP, _NDCG)
def rod_ndcg_sop() -> TrainConfig:
    """ROD-NDCG on SOP: NDCG's upper bound and a proxy loss."""
    return SOP.train(loss="RODNDCG")


@recipe(INAT_BASE, _NDCG)
def rod_ndcg_inat_base() -> TrainConfig:
    """ROD-NDCG on iNat-base: NDCG's upper bound and a proxy loss."""
    return INAT_BASE.train(loss="RODNDCG")


@recipe(INAT_FULL, _NDCG)
def rod_ndcg_inat_full() -> TrainConfig:
    """ROD-NDCG on iNat-full: NDCG's upper bound and a proxy loss."""
    return INAT_FULL.train(loss="RODNDCG")


@recipe(DYML_VEHICLE, _NDCG)
def rod_ndcg_dyml_vehicle() -> TrainConfig:
    """ROD-NDCG on DyML-Vehicle: NDCG's upper bound and a proxy loss."""
    return DYML_VEHICLE.train(loss="RODNDCG")


@recipe(DYML_ANIMAL, _NDCG)
def rod_ndcg_dyml_animal() -> TrainConfig:
    """ROD-NDCG on DyML-Animal: NDCG's upper bound and a proxy loss."""
    return DYML_ANIMAL.train(loss="RODNDCG")


@recipe(DYML_PRODUCT, _NDCG)
def rod_ndcg_dyml_product() -> TrainConfig:
    """ROD-NDCG on DyML-Product: NDCG's upper bound and a proxy loss."""
    return DYML_PRODUCT.train(loss="RODNDCG")


@recipe(SOP, _ABLATION)
def sup_h_ap_sop() -> TrainConfig:
    """Sup-H-AP alone on SOP: HAPPIER without its proxy loss."""
    return SOP.train(loss="SupHAP")


@recipe(INAT_BASE, _ABLATION)
def sup_h_ap_inat_base() -> TrainConfig:
    """Sup-H-AP alone on iNat-base: HAPPIER without its proxy loss."""
    return INAT_BASE.train(loss="SupHAP")


@recipe(INAT_FULL, _ABLATION)
def sup_h_ap_inat_full() -> TrainConfig:
    """Sup-H-AP alone on iNat-full: HAPPIER without its proxy loss."""
    return INAT_FULL.train(loss="SupHAP")


@recipe(SOP, _ABLATION)
def sigmoid_h_ap_sop() -> TrainConfig:
    """H-AP on SOP by a sigmoid in place of the upper bound."""
    return SOP.train(loss="SmoothHAP")


@recipe(INAT_BASE, _ABLATION)
def sigmoid_h_ap_inat_base() -> TrainConfig:
    """H-AP on iNat-base by a sigmoid in place of the upper bound."""
    return INAT_BASE.train(loss="SmoothHAP")


@recipe(SOP, _ABLATION)
def weighted_ap_sop() -> TrainConfig:
    """Weighted AP on SOP: HAPPIER with the relevance under which H-AP is the weighted mean of the levels' APs."""
    return SOP.train(loss="HAPPIER", relevance="weighted_ap")


@recipe(INAT_BASE, _ABLATION)
def weighted_ap_inat_base() -> TrainConfig:
    """Weighted AP on iNat-base: HAPPIER with the relevance under which H-AP is the weighted mean of the levels' APs."""
    return INAT_BASE.train(loss="HAPPIER", relevance="weighted_ap")
