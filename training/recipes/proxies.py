"""Proxy and tuple losses: NormSoftmax, ProxyNCA++, CSL, triplets, pairs over a memory; sigma: summed over the levels.

Zhai and Wu, "Classification is a Strong Baseline for Deep Metric Learning" (NormSoftmax), BMVC 2019, arXiv:1811.12649;
Teh et al., "ProxyNCA++", ECCV 2020, arXiv:2004.01113; Sun et al., "Dynamic Metric Learning" (CSL), CVPR 2021,
arXiv:2103.11781; Wang et al., "Cross-Batch Memory", CVPR 2020, arXiv:1912.06798. They are baselines of HAPPIER's
papers, in whose setting they stand here, with the options of ``suprank/config/loss`` of elias-ramzi/SupRank; the
triplets' margin of 0.05 in cosine is 0.1 in squared distance (there an anchor has its nearest positive, here all of
them). XBM's pairs are those of ``xbm.yaml`` and ``memory/*.yaml``, the margin a cosine; there the batch's and the
memory's losses are averaged, here they are added, and there the memory, read from the fifth epoch on, is filled from
the first step, here it is empty until it is read, after the fifth. Figures of their own papers are of other settings,
and the recipes say so.
"""

from hgld.training.config import TrainConfig
from hgld.training.recipes.published import Published, papers_with_code
from hgld.training.recipes.recipe import recipe
from hgld.training.recipes.settings import (
    CUB,
    DYML_ANIMAL,
    DYML_PRODUCT,
    DYML_VEHICLE,
    INAT_BASE,
    INAT_FULL,
    SOP,
    Setting,
)

_BASELINE = Published("this loss among the baselines on this dataset in arXiv:2207.04873 and arXiv:2309.08250")
_NCA = "abstract of arXiv:2004.01113"
_NCA_SETTING = "in its own setting: max pooling and its own rates; here it is HAPPIER's baseline"
_NSM = "README of azgo14/classification_metric_learning"
_NSM_SETTING = "in its own setting: 2,048 dimensions, batches of 75, 30 epochs; here it is HAPPIER's baseline"
_XBM = _BASELINE.read(
    papers_with_code("1912.06798"),
    {"R@1": 80.6},
    "in its own setting; readers of its code reached about 75 (issue 12 of msight-tech/research-xbm)",
)


def _slow(setting: Setting) -> Setting:
    """Proxies at the head's rate, as the authors' configurations of these losses have it."""
    return setting.changed(lr_proxies=setting.config.optimizer.lr_head)


_SOP_SLOW, _INAT_BASE_SLOW, _INAT_FULL_SLOW, _CUB_SLOW = (_slow(s) for s in (SOP, INAT_BASE, INAT_FULL, CUB))


@recipe(SOP, _BASELINE.read(_NSM, {"R@1": 79.55, "R@10": 91.54, "R@100": 96.66}, _NSM_SETTING))
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


@recipe(CUB, _BASELINE.read(_NSM, {"R@1": 65.36, "R@2": 76.76, "R@4": 85.42, "R@8": 91.51}, _NSM_SETTING))
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


@recipe(_SOP_SLOW, _BASELINE.read(_NCA, {"R@1": 81.4}, _NCA_SETTING))
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


@recipe(_CUB_SLOW, _BASELINE.read(_NCA, {"R@1": 72.2}, _NCA_SETTING))
def proxy_nca_cub() -> TrainConfig:
    """ProxyNCA++ on CUB's finest level, temperature 1/9."""
    return _CUB_SLOW.train(loss="ProxyNCApp", proxy_temperature=1 / 9)


@recipe(SOP, _BASELINE)
def csl_sop() -> TrainConfig:
    """Cross-scale learning on SOP, scale 32 and the margins of its number of levels."""
    return SOP.train(loss="CSL")


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
    return SOP.train(loss="Triplet", margin=0.1)


@recipe(SOP, _BASELINE)
def triplet_sigma_sop() -> TrainConfig:
    """Triplets with semi-hard negatives (SH) on SOP, summed over the levels."""
    return SOP.train(loss="Triplet", margin=0.1, sum_levels=True)


@recipe(INAT_BASE, _BASELINE)
def triplet_inat_base() -> TrainConfig:
    """Triplets with semi-hard negatives (SH) on iNat-base's finest level."""
    return INAT_BASE.train(loss="Triplet", margin=0.1)


@recipe(INAT_BASE, _BASELINE)
def triplet_sigma_inat_base() -> TrainConfig:
    """Triplets with semi-hard negatives (SH) on iNat-base, summed over the levels."""
    return INAT_BASE.train(loss="Triplet", margin=0.1, sum_levels=True)


@recipe(INAT_FULL, _BASELINE)
def triplet_inat_full() -> TrainConfig:
    """Triplets with semi-hard negatives (SH) on iNat-full's finest level."""
    return INAT_FULL.train(loss="Triplet", margin=0.1)


@recipe(INAT_FULL, _BASELINE)
def triplet_sigma_inat_full() -> TrainConfig:
    """Triplets with semi-hard negatives (SH) on iNat-full, summed over the levels."""
    return INAT_FULL.train(loss="Triplet", margin=0.1, sum_levels=True)


@recipe(DYML_VEHICLE, _BASELINE)
def triplet_dyml_vehicle() -> TrainConfig:
    """Triplets with semi-hard negatives (SH) on DyML-Vehicle's finest level."""
    return DYML_VEHICLE.train(loss="Triplet", margin=0.1)


@recipe(DYML_VEHICLE, _BASELINE)
def triplet_sigma_dyml_vehicle() -> TrainConfig:
    """Triplets with semi-hard negatives (SH) on DyML-Vehicle, summed over the levels."""
    return DYML_VEHICLE.train(loss="Triplet", margin=0.1, sum_levels=True)


@recipe(DYML_ANIMAL, _BASELINE)
def triplet_dyml_animal() -> TrainConfig:
    """Triplets with semi-hard negatives (SH) on DyML-Animal's finest level."""
    return DYML_ANIMAL.train(loss="Triplet", margin=0.1)


@recipe(DYML_ANIMAL, _BASELINE)
def triplet_sigma_dyml_animal() -> TrainConfig:
    """Triplets with semi-hard negatives (SH) on DyML-Animal, summed over the levels."""
    return DYML_ANIMAL.train(loss="Triplet", margin=0.1, sum_levels=True)


@recipe(DYML_PRODUCT, _BASELINE)
def triplet_dyml_product() -> TrainConfig:
    """Triplets with semi-hard negatives (SH) on DyML-Product's finest level."""
    return DYML_PRODUCT.train(loss="Triplet", margin=0.1)


@recipe(DYML_PRODUCT, _BASELINE)
def triplet_sigma_dyml_product() -> TrainConfig:
    """Triplets with semi-hard negatives (SH) on DyML-Product, summed over the levels."""
    return DYML_PRODUCT.train(loss="Triplet", margin=0.1, sum_levels=True)


@recipe(CUB, _BASELINE)
def triplet_cub() -> TrainConfig:
    """Triplets with semi-hard negatives (SH) on CUB."""
    return CUB.train(loss="Triplet", margin=0.1)


@recipe(SOP, _XBM)
def xbm_sop() -> TrainConfig:
    """Contrastive pairs on SOP over a memory of the whole training set."""
    return SOP.train(loss="Contrastive", contrastive="cosine", margin=0.5, memory=-1)


@recipe(INAT_BASE, _BASELINE)
def xbm_inat_base() -> TrainConfig:
    """Contrastive pairs on iNat-base over a memory of 60,000 items."""
    return INAT_BASE.train(loss="Contrastive", contrastive="cosine", margin=0.5, memory=60_000)


@recipe(CUB, _BASELINE)
def xbm_cub() -> TrainConfig:
    """Contrastive pairs on CUB over a memory of the whole training set."""
    return CUB.train(loss="Contrastive", contrastive="cosine", margin=0.5, memory=-1)
