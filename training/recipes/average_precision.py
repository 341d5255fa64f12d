"""Average precision by other ways: Smooth-AP, SoftBin-AP, FastAP, Blackbox AP and the five PNP losses.

Brown et al.: "Smooth-AP", ECCV 2020, arXiv:2007.12163; Cakir et al.: "Deep Metric Learning to Rank" (FastAP), CVPR
2019; Rolinek et al.: "Optimizing Rank-Based Metrics With Blackbox Differentiation", CVPR 2020; Li et al.: "Rethinking
the Optimization of Average Precision" (PNP), AAAI 2022, arXiv:2102.04640, whose released command is D_q with alpha 4.
"""

from hgld.training.config import TrainConfig
from hgld.training.recipes.ap_settings import INAT_384, SOP_384, VEHICLEID
from hgld.training.recipes.published import Published, papers_with_code
from hgld.training.recipes.recipe import recipe
from hgld.training.recipes.settings import CUB, INAT_BASE, SOP

_BASELINE = Published("this loss among the AP losses compared in arXiv:2110.01445 and arXiv:2309.08250 (R@1, mAP@R)")
_COMPARED = Published("this loss among the baselines of arXiv:2007.12163 (R@k)")
_PNP = Published("this variant in arXiv:2102.04640 (R@k)")
_SMOOTH_AP = Published("Smooth-AP on this dataset in arXiv:2007.12163 (R@k)")
_LISTED = papers_with_code("2007.12163")


@recipe(SOP_384, _SMOOTH_AP.read(_LISTED, {"R@1": 80.1}))
def smooth_ap_sop() -> TrainConfig:
    """Smooth-AP on SOP, tau 0.01."""
    return SOP_384.train(loss="SmoothAP")


@recipe(
    INAT_384,
    _SMOOTH_AP.read(
        _LISTED,
        {"R@1": 67.2, "R@4": 81.8, "R@16": 90.3, "R@32": 93.1},
        "R@4 is listed as R@5, but the authors' evaluation has k = 1, 4, 16, 32",
    ),
)
def smooth_ap_inat_base() -> TrainConfig:
    """Smooth-AP on iNaturalist, the head at twice the rate."""
    return INAT_384.train(loss="SmoothAP")


@recipe(
    VEHICLEID,
    _SMOOTH_AP.read(
        _LISTED,
        {
            "R@1 (small)": 94.9,
            "R@5 (small)": 97.6,
            "R@1 (medium)": 93.3,
            "R@5 (medium)": 96.4,
            "R@1 (large)": 91.9,
            "R@5 (large)": 96.2,
        },
    ),
)
def smooth_ap_vehicleid() -> TrainConfig:
    """Smooth-AP on VehicleID."""
    return VEHICLEID.train(loss="SmoothAP")


@recipe(CUB, _BASELINE)
def smooth_ap_cub() -> TrainConfig:
    """Smooth-AP on CUB."""
    return CUB.train(loss="SmoothAP")


@recipe(SOP, _BASELINE)
def softbin_ap_sop() -> TrainConfig:
    """SoftBin-AP on SOP with 20 bins."""
    return SOP.train(loss="SoftBinAP")


@recipe(INAT_BASE, _BASELINE)
def softbin_ap_inat_base() -> TrainConfig:
    """SoftBin-AP on iNat-base with 20 bins."""
    return INAT_BASE.train(loss="SoftBinAP")


@recipe(CUB, _BASELINE)
def softbin_ap_cub() -> TrainConfig:
    """SoftBin-AP on CUB with 20 bins."""
    return CUB.train(loss="SoftBinAP")


@recipe(SOP, _BASELINE)
def fast_ap_sop() -> TrainConfig:
    """FastAP on SOP with 20 bins."""
    return SOP.train(loss="FastAP")


@recipe(SOP, _BASELINE)
def blackbox_ap_sop() -> TrainConfig:
    """Blackbox AP on SOP, lambda 4 and margin 0.02."""
    return SOP.train(loss="BlackboxAP")


@recipe(INAT_BASE, _BASELINE)
def fast_ap_inat_base() -> TrainConfig:
    """FastAP on iNat-base with 20 bins."""
    return INAT_BASE.train(loss="FastAP")


@recipe(INAT_BASE, _BASELINE)
def blackbox_ap_inat_base() -> TrainConfig:
    """Blackbox AP on iNat-base, lambda 4 and margin 0.02."""
    return INAT_BASE.train(loss="BlackboxAP")


@recipe(CUB, _BASELINE)
def fast_ap_cub() -> TrainConfig:
    """FastAP on CUB with 20 bins."""
    return CUB.train(loss="FastAP")


@recipe(CUB, _BASELINE)
def blackbox_ap_cub() -> TrainConfig:
    """Blackbox AP on CUB, lambda 4 and margin 0.02."""
    return CUB.train(loss="BlackboxAP")


@recipe(INAT_384, _COMPARED)
def fast_ap_inat_384() -> TrainConfig:
    """FastAP on iNaturalist in Smooth-AP's setting."""
    return INAT_384.train(loss="FastAP")


@recipe(INAT_384, _COMPARED)
def blackbox_ap_inat_384() -> TrainConfig:
    """Blackbox AP on iNaturalist in Smooth-AP's setting."""
    return INAT_384.train(loss="BlackboxAP")


@recipe(VEHICLEID, _COMPARED)
def fast_ap_vehicleid() -> TrainConfig:
    """FastAP on VehicleID in Smooth-AP's setting."""
    return VEHICLEID.train(loss="FastAP")


@recipe(VEHICLEID, _COMPARED)
def blackbox_ap_vehicleid() -> TrainConfig:
    """Blackbox AP on VehicleID in Smooth-AP's setting."""
    return VEHICLEID.train(loss="BlackboxAP")


@recipe(SOP_384, _PNP)
def pnp_o_sop() -> TrainConfig:
    """PNP-O on SOP: the number of negatives before a positive."""
    return SOP_384.train(loss="PNP", pnp="O")


@recipe(SOP_384, _PNP)
def pnp_iu_sop() -> TrainConfig:
    """PNP-I_u on SOP: the slope grows without bound."""
    return SOP_384.train(loss="PNP", pnp="Iu")


@recipe(SOP_384, _PNP)
def pnp_ib_sop() -> TrainConfig:
    """PNP-I_b on SOP: the slope grows up to 1 / b."""
    return SOP_384.train(loss="PNP", pnp="Ib", pnp_b=4.0)


@recipe(SOP_384, _PNP)
def pnp_ds_sop() -> TrainConfig:
    """PNP-D_s on SOP: the slope falls slowly."""
    return SOP_384.train(loss="PNP", pnp="Ds")


@recipe(SOP_384, _PNP)
def pnp_dq_sop() -> TrainConfig:
    """PNP-D_q on SOP: the slope falls quickly; the paper's best."""
    return SOP_384.train(loss="PNP", pnp="Dq", alpha=4.0)


@recipe(VEHICLEID, _PNP)
def pnp_o_vehicleid() -> TrainConfig:
    """PNP-O on VehicleID: the number of negatives before a positive."""
    return VEHICLEID.train(loss="PNP", pnp="O")


@recipe(VEHICLEID, _PNP)
def pnp_iu_vehicleid() -> TrainConfig:
    """PNP-I_u on VehicleID: the slope grows without bound."""
    return VEHICLEID.train(loss="PNP", pnp="Iu")


@recipe(VEHICLEID, _PNP)
def pnp_ib_vehicleid() -> TrainConfig:
    """PNP-I_b on VehicleID: the slope grows up to 1 / b."""
    return VEHICLEID.train(loss="PNP", pnp="Ib", pnp_b=1.0)


@recipe(VEHICLEID, _PNP)
def pnp_ds_vehicleid() -> TrainConfig:
    """PNP-D_s on VehicleID: the slope falls slowly."""
    return VEHICLEID.train(loss="PNP", pnp="Ds")


@recipe(VEHICLEID, _PNP)
def pnp_dq_vehicleid() -> TrainConfig:
    """PNP-D_q on VehicleID: the slope falls quickly; the paper's best."""
    return VEHICLEID.train(loss="PNP", pnp="Dq", alpha=4.0)


@recipe(INAT_384, _PNP)
def pnp_o_inat_base() -> TrainConfig:
    """PNP-O on iNaturalist: the number of negatives before a positive."""
    return INAT_384.train(loss="PNP", pnp="O")


@recipe(INAT_384, _PNP)
def pnp_iu_inat_base() -> TrainConfig:
    """PNP-I_u on iNaturalist: the slope grows without bound."""
    return INAT_384.train(loss="PNP", pnp="Iu")


@recipe(INAT_384, _PNP)
def pnp_ib_inat_base() -> TrainConfig:
    """PNP-I_b on iNaturalist: the slope grows up to 1 / b."""
    return INAT_384.train(loss="PNP", pnp="Ib", pnp_b=4.0)


@recipe(INAT_384, _PNP)
def pnp_ds_inat_base() -> TrainConfig:
    """PNP-D_s on iNaturalist: the slope falls slowly."""
    return INAT_384.train(loss="PNP", pnp="Ds")


@recipe(INAT_384, _PNP)
def pnp_dq_inat_base() -> TrainConfig:
    """PNP-D_q on iNaturalist: the slope falls quickly; the paper's best."""
    return INAT_384.train(loss="PNP", pnp="Dq", alpha=4.0)
