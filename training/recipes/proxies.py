"""Proxy and tuple losses: NormSoftmax, ProxyNCA++, CSL, triplets, pairs over a memory; sigma: summed over the levels.

Zhai and Wu, BMVC 2019; Teh et al., "ProxyNCA++", ECCV 2020, arXiv:2004.01113; Sun et al., "Dynamic Metric Learning",
CVPR 2021, arXiv:2103.11781; Wang et al., "Cross-Batch Memory", CVPR 2020, arXiv:1912.06798. They are baselines of
HAPPIER's papers, in whose setting they stand here.
"""

from training.config import TrainConfig
from training.recipes.recipe import recipe
from training.recipes.settings import CUB, DYML_ANIMAL, DYML_PRODUCT, DYML_VEHICLE, INAT_BASE, INAT_FULL, SOP, Setting

_BASELINE = "the row of this loss among the baselines of arXiv:2207.04873 and arXiv:2309.08250 on this dataset"
_NCA = "R@1 {} in its own setting, with max pooling (abstract of arXiv:2004.01113); here it is HAPPIER's baseline"
_XBM = "R@1 80.6 on SOP (Papers with Code on arXiv:1912.06798)"


def _slow(setting: Setting) -> Setting:
    """Proxies at the head's rate, as the authors' configurations of these losses have it."""
    return setting.changed(lr_proxies=setting.config.optimizer.lr_head)


_SOP_SLOW, _INAT_BASE_SLOW, _INAT_FULL_SLOW, _CUB_SLOW = (_slow(s) for s in (SOP, INAT_BASE, INAT_FULL, CUB))


@recipe(SOP, _BASELINE)
def norm_softmax_sop() -> TrainConfig:
    """NormSoftmax on SOP's finest level."""
    return SOP.train(loss="NormSoftmax")


@recipe(SOP, _BASELINE)
def norm_softmax_sigma_sop() -> TrainConfig:
    """NormSoftmax on SOP, summed over the levels."""
    return SOP.train(loss="NormSoftmax", sum_levels=True)


@recipe(INAT_BASE, _BASELINE)
def norm_softmax_inat_base() -> TrainConfig:
    """NormSoftmax on iNat-base's finest level."""
    return INAT_BASE.train(loss="NormSoftmax")


@recipe(INAT_BASE, _BASELINE)
def norm_softmax_sigma_inat_base() -> TrainConfig:
    """NormSoftmax on iNat-base, summed over the levels."""
    return INAT_BASE.train(loss="NormSoftmax", sum_levels=True)


@recipe(INAT_FULL, _BASELINE)
def norm_softmax_inat_full() -> TrainConfig:
    """NormSoftmax on iNat-full's finest level."""
    return INAT_FULL.train(loss="NormSoftmax")


@recipe(INAT_FULL, _BASELINE)
def norm_softmax_sigma_inat_full() -> TrainConfig:
    """NormSoftmax on iNat-full, summed over the levels."""
    return INAT_FULL.train(loss="NormSoftmax", sum_levels=True)


@recipe(CUB, _BASELINE)
def norm_softmax_cub() -> TrainConfig:
    """NormSoftmax on CUB's finest level."""
    return CUB.train(loss="NormSoftmax", lr_proxies=400.0)


@recipe(DYML_VEHICLE, _BASELINE)
def norm_softmax_dyml_vehicle() -> TrainConfig:
    """NormSoftmax on DyML-Vehicle's finest level."""
    return DYML_VEHICLE.train(loss="NormSoftmax")


@recipe(DYML_VEHICLE, _BASELINE)
def norm_softmax_sigma_dyml_vehicle() -> TrainConfig:
    """NormSoftmax on DyML-Vehicle, summed over the levels."""
    return DYML_VEHICLE.train(loss="NormSoftmax", sum_levels=True)


@recipe(DYML_ANIMAL, _BASELINE)
def norm_softmax_dyml_animal() -> TrainConfig:
    """NormSoftmax on DyML-Animal's finest level."""
    return DYML_ANIMAL.train(loss="NormSoftmax")


@recipe(DYML_ANIMAL, _BASELINE)
def norm_softmax_sigma_dyml_animal() -> TrainConfig:
    """NormSoftmax on DyML-Animal, summed over the levels."""
    return DYML_ANIMAL.train(loss="NormSoftmax", sum_levels=True)


@recipe(DYML_PRODUCT, _BASELINE)
def norm_softmax_dyml_product() -> TrainConfig:
    """NormSoftmax on DyML-Product's finest level."""
    return DYML_PRODUCT.train(loss="NormSoftmax")


@recipe(DYML_PRODUCT, _BASELINE)
def norm_softmax_sigma_dyml_product() -> TrainConfig:
    """NormSoftmax on DyML-Product, summed over the levels."""
    return DYML_PRODUCT.train(loss="NormSoftmax", sum_levels=True)


@recipe(_SOP_SLOW, _NCA.format("81.4"))
def proxy_nca_sop() -> TrainConfig:
    """ProxyNCA++ on SOP's finest level, temperature 1/9."""
    return _SOP_SLOW.train(loss="ProxyNCApp", proxy_temperature=1 / 9)


@recipe(_SOP_SLOW, _BASELINE)
def proxy_nca_sigma_sop() -> TrainConfig:
    """ProxyNCA++ on SOP, summed over the levels."""
    return _SOP_SLOW.train(loss="ProxyNCApp", proxy_temperature=1 / 9, sum_levels=True)


@recipe(_INAT_BASE_SLOW, _BASELINE)
def proxy_nca_inat_base() -> TrainConfig:
    """ProxyNCA++ on iNat-base's finest level, temperature 1/9."""
    return _INAT_BASE_SLOW.train(loss="ProxyNCApp", proxy_temperature=1 / 9)


@recipe(_INAT_BASE_SLOW, _BASELINE)
def proxy_nca_sigma_inat_base() -> TrainConfig:
    """ProxyNCA++ on iNat-base, summed over the levels."""
    return _INAT_BASE_SLOW.train(loss="ProxyNCApp", proxy_temperature=1 / 9, sum_levels=True)


@recipe(_INAT_FULL_SLOW, _BASELINE)
def proxy_nca_inat_full() -> TrainConfig:
    """ProxyNCA++ on iNat-full's finest level, temperature 1/9."""
    return _INAT_FULL_SLOW.train(loss="ProxyNCApp", proxy_temperature=1 / 9)


@recipe(_INAT_FULL_SLOW, _BASELINE)
def proxy_nca_sigma_inat_full() -> TrainConfig:
    """ProxyNCA++ on iNat-full, summed over the levels."""
    return _INAT_FULL_SLOW.train(loss="ProxyNCApp", proxy_temperature=1 / 9, sum_levels=True)


@recipe(_CUB_SLOW, _NCA.format("72.2"))
def proxy_nca_cub() -> TrainConfig:
    """ProxyNCA++ on CUB's finest level, temperature 1/9."""
    return _CUB_SLOW.train(loss="ProxyNCApp", proxy_temperature=1 / 9)


@recipe(_SOP_SLOW, _BASELINE)
def csl_sop() -> TrainConfig:
    """Cross-scale learning on SOP, scale 32 and the margins of its number of levels."""
    return _SOP_SLOW.train(loss="CSL")


@recipe(_INAT_BASE_SLOW, _BASELINE)
def csl_inat_base() -> TrainConfig:
    """Cross-scale learning on iNat-base, scale 32 and the margins of its number of levels."""
    return _INAT_BASE_SLOW.train(loss="CSL")


@recipe(_INAT_FULL_SLOW, _BASELINE)
def csl_inat_full() -> TrainConfig:
    """Cross-scale learning on iNat-full, scale 32 and the margins of its number of levels."""
    return _INAT_FULL_SLOW.train(loss="CSL")


@recipe(DYML_VEHICLE, _BASELINE)
def csl_dyml_vehicle() -> TrainConfig:
    """Cross-scale learning on DyML-Vehicle, scale 32 and the margins of its number of levels."""
    return DYML_VEHICLE.train(loss="CSL")


@recipe(DYML_ANIMAL, _BASELINE)
def csl_dyml_animal() -> TrainConfig:
    """Cross-scale learning on DyML-Animal, scale 32 and the margins of its number of levels."""
    return DYML_ANIMAL.train(loss="CSL")


@recipe(DYML_PRODUCT, _BASELINE)
def csl_dyml_product() -> TrainConfig:
    """Cross-scale learning on DyML-Product, scale 32 and the margins of its number of levels."""
    return DYML_PRODUCT.train(loss="CSL")


@recipe(SOP, _BASELINE)
def triplet_sop() -> TrainConfig:
    """Triplets with semi-hard negatives (SH) on SOP's finest level."""
    return SOP.train(loss="Triplet")


@recipe(SOP, _BASELINE)
def triplet_sigma_sop() -> TrainConfig:
    """Triplets with semi-hard negatives (SH) on SOP, summed over the levels."""
    return SOP.train(loss="Triplet", sum_levels=True)


@recipe(INAT_BASE, _BASELINE)
def triplet_inat_base() -> TrainConfig:
    """Triplets with semi-hard negatives (SH) on iNat-base's finest level."""
    return INAT_BASE.train(loss="Triplet")


@recipe(INAT_BASE, _BASELINE)
def triplet_sigma_inat_base() -> TrainConfig:
    """Triplets with semi-hard negatives (SH) on iNat-base, summed over the levels."""
    return INAT_BASE.train(loss="Triplet", sum_levels=True)


@recipe(INAT_FULL, _BASELINE)
def triplet_inat_full() -> TrainConfig:
    """Triplets with semi-hard negatives (SH) on iNat-full's finest level."""
    return INAT_FULL.train(loss="Triplet")


@recipe(INAT_FULL, _BASELINE)
def triplet_sigma_inat_full() -> TrainConfig:
    """Triplets with semi-hard negatives (SH) on iNat-full, summed over the levels."""
    return INAT_FULL.train(loss="Triplet", sum_levels=True)


@recipe(DYML_VEHICLE, _BASELINE)
def triplet_dyml_vehicle() -> TrainConfig:
    """Triplets with semi-hard negatives (SH) on DyML-Vehicle's finest level."""
    return DYML_VEHICLE.train(loss="Triplet")


@recipe(DYML_VEHICLE, _BASELINE)
def triplet_sigma_dyml_vehicle() -> TrainConfig:
    """Triplets with semi-hard negatives (SH) on DyML-Vehicle, summed over the levels."""
    return DYML_VEHICLE.train(loss="Triplet", sum_levels=True)


@recipe(DYML_ANIMAL, _BASELINE)
def triplet_dyml_animal() -> TrainConfig:
    """Triplets with semi-hard negatives (SH) on DyML-Animal's finest level."""
    return DYML_ANIMAL.train(loss="Triplet")


@recipe(DYML_ANIMAL, _BASELINE)
def triplet_sigma_dyml_animal() -> TrainConfig:
    """Triplets with semi-hard negatives (SH) on DyML-Animal, summed over the levels."""
    return DYML_ANIMAL.train(loss="Triplet", sum_levels=True)


@recipe(DYML_PRODUCT, _BASELINE)
def triplet_dyml_product() -> TrainConfig:
    """Triplets with semi-hard negatives (SH) on DyML-Product's finest level."""
    return DYML_PRODUCT.train(loss="Triplet")


@recipe(DYML_PRODUCT, _BASELINE)
def triplet_sigma_dyml_product() -> TrainConfig:
    """Triplets with semi-hard negatives (SH) on DyML-Product, summed over the levels."""
    return DYML_PRODUCT.train(loss="Triplet", sum_levels=True)


@recipe(CUB, _BASELINE)
def triplet_cub() -> TrainConfig:
    """Triplets with semi-hard negatives (SH) on CUB."""
    return CUB.train(loss="Triplet")


@recipe(SOP, _XBM)
def xbm_sop() -> TrainConfig:
    """Contrastive pairs on SOP over a memory of the whole training set."""
    return SOP.train(loss="Contrastive", margin=0.5, memory=-1)


@recipe(INAT_BASE, _BASELINE)
def xbm_inat_base() -> TrainConfig:
    """Contrastive pairs on iNat-base over a memory of the whole training set."""
    return INAT_BASE.train(loss="Contrastive", margin=0.5, memory=-1)


@recipe(CUB, _BASELINE)
def xbm_cub() -> TrainConfig:
    """Contrastive pairs on CUB over a memory of the whole training set."""
    return CUB.train(loss="Contrastive", margin=0.5, memory=-1)
