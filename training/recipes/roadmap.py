"""Average precision by its upper bound: Sup-AP, and ROADMAP with the pair and the proxy loss.

Ramzi et al.: "Robust and Decomposable Average Precision for Image Retrieval", NeurIPS 2021, arXiv:2110.01445, and
arXiv:2309.08250. The figures are R@1 as Papers with Code lists them for the former; the backbone names are its own.
"""

from training.config import TrainConfig
from training.recipes.recipe import recipe
from training.recipes.settings import CUB, INAT_BASE, SOP, Setting

_SUP_AP = "the ablation of Sup-AP and the second term in arXiv:2110.01445 and arXiv:2309.08250 (mAP@R, R@1)"
_PROXY = "the rows ROADMAP with the proxy loss of arXiv:2309.08250 on this dataset (R@1, mAP@R)"
_XBM = "the rows ROADMAP with a memory in arXiv:2309.08250, state-of-the-art setting (R@1)"

_TRANSFORMER = {
    "pooling": "token",
    "freeze_batch_norm": False,
    "layer_norm": False,
    "optimizer": "adamw",
    "weight_decay": 5e-4,
    "epochs": 75,
}


def _deit(setting: Setting) -> Setting:
    return setting.changed(**_TRANSFORMER, backbone="timm:deit_small_patch16_224", dim=0)


def _vit(setting: Setting) -> Setting:
    return setting.changed(**_TRANSFORMER, backbone="timm:vit_base_patch16_224", dim=512)


_CUB_224 = CUB.changed(size=224, resize=256)
_SOP_DEIT, _INAT_DEIT, _CUB_DEIT = (
    _deit(setting) for setting in (SOP.changed(lr=1e-5, lr_head=1e-5), INAT_BASE, _CUB_224)
)
_SOP_VIT, _INAT_VIT, _CUB_VIT = (_vit(setting) for setting in (SOP.changed(lr=1e-5, lr_head=2e-5), INAT_BASE, _CUB_224))


@recipe(SOP, _SUP_AP)
def sup_ap_sop() -> TrainConfig:
    """Sup-AP on SOP: AP's upper bound alone."""
    return SOP.train(loss="SupAP")


@recipe(INAT_BASE, _SUP_AP)
def sup_ap_inat_base() -> TrainConfig:
    """Sup-AP on iNat-base: AP's upper bound alone."""
    return INAT_BASE.train(loss="SupAP")


@recipe(CUB, _SUP_AP)
def sup_ap_cub() -> TrainConfig:
    """Sup-AP on CUB: AP's upper bound alone."""
    return CUB.train(loss="SupAP")


@recipe(SOP, "R@1 83.1 on SOP (ROADMAP, ResNet-50; Papers with Code on arXiv:2110.01445)")
def roadmap_pair_sop() -> TrainConfig:
    """ROADMAP on SOP with the pair loss, as it was first published."""
    return SOP.train(loss="ROADMAP", decomposability="pair")


@recipe(INAT_BASE, "the row ROADMAP (ResNet-50) of arXiv:2110.01445 on iNaturalist, batches of 384 there (R@1)")
def roadmap_pair_inat_base() -> TrainConfig:
    """ROADMAP on iNat-base with the pair loss, as it was first published."""
    return INAT_BASE.train(loss="ROADMAP", decomposability="pair")


@recipe(CUB, "R@1 68.5 on CUB-200-2011 (ROADMAP, ResNet-50; Papers with Code on arXiv:2110.01445)")
def roadmap_pair_cub() -> TrainConfig:
    """ROADMAP on CUB with the pair loss, as it was first published."""
    return CUB.train(loss="ROADMAP", decomposability="pair")


@recipe(SOP, _PROXY)
def roadmap_proxy_sop() -> TrainConfig:
    """ROADMAP on SOP with the proxy loss, as the later paper mostly reports it."""
    return SOP.train(loss="ROADMAP", decomposability="proxy")


@recipe(INAT_BASE, _PROXY)
def roadmap_proxy_inat_base() -> TrainConfig:
    """ROADMAP on iNat-base with the proxy loss, as the later paper mostly reports it."""
    return INAT_BASE.train(loss="ROADMAP", decomposability="proxy")


@recipe(CUB, _PROXY)
def roadmap_proxy_cub() -> TrainConfig:
    """ROADMAP on CUB with the proxy loss, as the later paper mostly reports it."""
    return CUB.train(loss="ROADMAP", decomposability="proxy")


@recipe(SOP, _XBM)
def roadmap_xbm_sop() -> TrainConfig:
    """ROADMAP on SOP with GeM and a memory of the whole training set from epoch 5 on."""
    return SOP.train(loss="ROADMAP", decomposability="proxy", pooling="gem", memory=-1)


@recipe(INAT_BASE, _XBM)
def roadmap_xbm_inat_base() -> TrainConfig:
    """ROADMAP on iNat-base with GeM and a memory of the whole training set from epoch 5 on."""
    return INAT_BASE.train(loss="ROADMAP", decomposability="proxy", pooling="gem", memory=-1)


@recipe(_SOP_DEIT, "R@1 86.0 on SOP (listed as ROADMAP, DeiT-B; Papers with Code on arXiv:2110.01445)")
def roadmap_deit_sop() -> TrainConfig:
    """ROADMAP on SOP with DeiT-S and its own 384 dimensions."""
    return _SOP_DEIT.train(loss="ROADMAP", decomposability="pair")


@recipe(_INAT_DEIT, "R@1 73.6 on iNaturalist (ROADMAP, DeiT-S; Papers with Code on arXiv:2110.01445)")
def roadmap_deit_inat_base() -> TrainConfig:
    """ROADMAP on iNat-base with DeiT-S and its own 384 dimensions."""
    return _INAT_DEIT.train(loss="ROADMAP", decomposability="pair")


@recipe(_CUB_DEIT, "R@1 77.4 on CUB-200-2011 (listed as ROADMAP, DeiT-B; Papers with Code on arXiv:2110.01445)")
def roadmap_deit_cub() -> TrainConfig:
    """ROADMAP on CUB with DeiT-S and its own 384 dimensions."""
    return _CUB_DEIT.train(loss="ROADMAP", decomposability="pair")


@recipe(_SOP_VIT, "the rows ROADMAP with ViT-B of arXiv:2309.08250 on this dataset (R@1)")
def roadmap_vit_sop() -> TrainConfig:
    """ROADMAP on SOP with ViT-B projected to 512 dimensions."""
    return _SOP_VIT.train(loss="ROADMAP", decomposability="proxy")


@recipe(_INAT_VIT, "the rows ROADMAP with ViT-B of arXiv:2309.08250 on this dataset (R@1)")
def roadmap_vit_inat_base() -> TrainConfig:
    """ROADMAP on iNat-base with ViT-B projected to 512 dimensions."""
    return _INAT_VIT.train(loss="ROADMAP", decomposability="proxy")


@recipe(_CUB_VIT, "the rows ROADMAP with ViT-B of arXiv:2309.08250 on this dataset (R@1)")
def roadmap_vit_cub() -> TrainConfig:
    """ROADMAP on CUB with ViT-B projected to 512 dimensions."""
    return _CUB_VIT.train(loss="ROADMAP", decomposability="proxy")
