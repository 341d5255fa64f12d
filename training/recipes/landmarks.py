"""Landmarks: listwise AP on Landmarks-clean, and the losses that are compared on H-GLDv2.

Revaud et al.: "Learning with Average Precision: Training Image Retrieval with a Listwise Loss", ICCV 2019,
arXiv:1906.07589; Ramzi et al., arXiv:2309.08250: about 55,000 steps with Adam.
"""

from training.config import TrainConfig
from training.recipes.recipe import recipe
from training.recipes.settings import H_GLDV2, LANDMARKS_CLEAN

_LISTWISE = "the table of revisited Oxford and Paris in arXiv:1906.07589, after whitening (mAP medium and hard)"
_H_GLDV2 = "the row of this loss in the table of H-GLDv2 in arXiv:2309.08250 (mAP@100, H-AP, ASI, NDCG)"


@recipe(LANDMARKS_CLEAN, _LISTWISE)
def softbin_ap_landmarks_clean() -> TrainConfig:
    """Listwise AP on Landmarks-clean: SoftBin-AP, 20 bins, batches of 4,096, classes weighted alike, 200 steps."""
    return LANDMARKS_CLEAN.train(loss="SoftBinAP", bins=20, class_weights=True)


@recipe(H_GLDV2, _H_GLDV2)
def happier_h_gldv2() -> TrainConfig:
    """HAPPIER on H-GLDv2."""
    return H_GLDV2.train(loss="HAPPIER")


@recipe(H_GLDV2, _H_GLDV2)
def rod_ndcg_h_gldv2() -> TrainConfig:
    """ROD-NDCG on H-GLDv2."""
    return H_GLDV2.train(loss="RODNDCG")


@recipe(H_GLDV2, _H_GLDV2)
def roadmap_proxy_h_gldv2() -> TrainConfig:
    """ROADMAP on H-GLDv2's landmarks."""
    return H_GLDV2.train(loss="ROADMAP", decomposability="proxy")


@recipe(H_GLDV2, _H_GLDV2)
def rod_recall_h_gldv2() -> TrainConfig:
    """ROD-R@k on H-GLDv2's landmarks."""
    return H_GLDV2.train(loss="RODRecall")


@recipe(H_GLDV2, _H_GLDV2)
def smooth_ap_h_gldv2() -> TrainConfig:
    """Smooth-AP on H-GLDv2's landmarks."""
    return H_GLDV2.train(loss="SmoothAP")


@recipe(H_GLDV2, _H_GLDV2)
def softbin_ap_h_gldv2() -> TrainConfig:
    """SoftBin-AP on H-GLDv2's landmarks."""
    return H_GLDV2.train(loss="SoftBinAP")


@recipe(H_GLDV2, _H_GLDV2)
def smooth_recall_h_gldv2() -> TrainConfig:
    """Smooth-R@k on H-GLDv2's landmarks."""
    return H_GLDV2.train(loss="SmoothRecall")


@recipe(H_GLDV2, _H_GLDV2)
def norm_softmax_h_gldv2() -> TrainConfig:
    """NormSoftmax on H-GLDv2's landmarks."""
    return H_GLDV2.train(loss="NormSoftmax")


@recipe(H_GLDV2, _H_GLDV2)
def norm_softmax_sigma_h_gldv2() -> TrainConfig:
    """NormSoftmax on H-GLDv2, summed over the levels."""
    return H_GLDV2.train(loss="NormSoftmax", sum_levels=True)


@recipe(H_GLDV2, _H_GLDV2)
def csl_h_gldv2() -> TrainConfig:
    """Cross-scale learning on H-GLDv2."""
    return H_GLDV2.train(loss="CSL", lr_proxies=1e-05)
