"""Average precision by its upper bound: Sup-AP, and ROADMAP with the pair and the proxy loss.

Ramzi et al.: "Robust and Decomposable Average Precision for Image Retrieval", NeurIPS 2021, arXiv:2110.01445, and
arXiv:2309.08250. With the pair loss the settings are those of the commands in the README of elias-ramzi/ROADMAP, which
give its best rows: on SOP 128 images of 256 px, on iNaturalist batches of 384, no frozen epochs, layer norm on CUB
alone, and DeiT under AdamW (``optimizer/{sop,cub}_deit.yaml`` there, ``inat_deit_sch.yaml`` of elias-ramzi/SupRank).
The rates of its ResNet are not among them and are those of the later paper, as is everything with the proxy loss.
"""

from dataclasses import replace

from hgld.training.config import TrainConfig
from hgld.training.recipes.published import Published, papers_with_code
from hgld.training.recipes.recipe import Setting, recipe
from hgld.training.recipes.settings import CUB, INAT_BASE, SOP

_SUP_AP = Published("the ablation of Sup-AP and the second term in arXiv:2110.01445 and arXiv:2309.08250 (mAP@R, R@1)")
_PAIR = Published("ROADMAP with ResNet-50 on this dataset in arXiv:2110.01445 (R@k)")
_DEIT = Published("ROADMAP with DeiT-S on this dataset in arXiv:2110.01445 (R@k)")
_PROXY = Published("ROADMAP with the proxy loss on this dataset in arXiv:2309.08250 (R@1, mAP@R)")
_XBM = Published("ROADMAP with a memory on this dataset in arXiv:2309.08250, state-of-the-art setting (R@1)")
_VIT = Published("ROADMAP with ViT-B on this dataset in arXiv:2309.08250 (R@1)")
_LISTED = papers_with_code("2110.01445")
_DEIT_B = "listed as DeiT-B; the released model has the 384 dimensions of DeiT-S"

_README = "README of elias-ramzi/ROADMAP"
_JOBS = "jean-zay/submit_scripts of elias-ramzi/ROADMAP"


def _first(setting: Setting, **fields: object) -> Setting:
    """The setting of the first paper: a batch of 128 without frozen epochs unless said otherwise."""
    changed = setting.changed(**({"batch_size": 128, "frozen_epochs": 0} | fields))
    return replace(changed, hardware=f"one GPU (commands in the {_README})")


def _deit(setting: Setting, **fields: object) -> Setting:
    return _first(
        setting,
        backbone="timm:deit_small_patch16_224",
        dim=0,
        pooling="token",
        freeze_batch_norm=False,
        layer_norm=False,
        optimizer="adamw",
        weight_decay=5e-4,
        **fields,
    )


def _vit(setting: Setting, **fields: object) -> Setting:
    return setting.changed(
        backbone="timm:vit_base_patch16_224.augreg_in21k",
        dim=512,
        pooling="token",
        freeze_batch_norm=False,
        layer_norm=False,
        optimizer="adamw",
        weight_decay=5e-4,
        epochs=100,
        **fields,
    )


_SOP_PAIR = _first(SOP, size=256, resize=288, layer_norm=False)
_INAT_PAIR = replace(
    _first(INAT_BASE, batch_size=384, layer_norm=False, epochs=90),
    hardware=f"three GPUs (commands in the {_README}); --chunk 96 on one",
)
_CUB_PAIR = _first(CUB)
_CUB_224 = CUB.changed(size=224, resize=256)
_SOP_DEIT = replace(
    _deit(SOP, lr=1e-5, lr_head=1e-5, schedule="step", milestones=(25, 50), gamma=0.3, epochs=75),
    hours=f"not confirmed; 20 is the limit of a job of 100 epochs ({_JOBS})",
)
_INAT_DEIT = replace(
    _deit(INAT_BASE, schedule="step", milestones=(30, 70), gamma=0.3),
    hours=f"not confirmed; 30 is the limit of a job of 100 epochs ({_JOBS})",
)
_CUB_DEIT = _deit(_CUB_224, schedule="constant", epochs=150)
_SOP_VIT, _INAT_VIT, _CUB_VIT = _vit(SOP, lr=1e-5, lr_head=2e-5), _vit(INAT_BASE), _vit(_CUB_224)


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


@recipe(_SOP_PAIR, _PAIR.read(_LISTED, {"R@1": 83.1}))
def roadmap_pair_sop() -> TrainConfig:
    """ROADMAP on SOP with the pair loss, as it was first published."""
    return _SOP_PAIR.train(loss="ROADMAP", decomposability="pair")


@recipe(_INAT_PAIR, _PAIR)
def roadmap_pair_inat_base() -> TrainConfig:
    """ROADMAP on iNat-base with the pair loss, as it was first published."""
    return _INAT_PAIR.train(loss="ROADMAP", decomposability="pair")


@recipe(_CUB_PAIR, _PAIR.read(_LISTED, {"R@1": 68.5}))
def roadmap_pair_cub() -> TrainConfig:
    """ROADMAP on CUB with the pair loss, as it was first published."""
    return _CUB_PAIR.train(loss="ROADMAP", decomposability="pair")


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
    """ROADMAP on iNat-base with GeM and a memory of 60,000 items from epoch 5 on."""
    return INAT_BASE.train(loss="ROADMAP", decomposability="proxy", pooling="gem", memory=60_000)


@recipe(_SOP_DEIT, _DEIT.read(_LISTED, {"R@1": 86.0}, _DEIT_B))
def roadmap_deit_sop() -> TrainConfig:
    """ROADMAP on SOP with DeiT-S and its own 384 dimensions."""
    return _SOP_DEIT.train(loss="ROADMAP", decomposability="pair")


@recipe(_INAT_DEIT, _DEIT.read(_LISTED, {"R@1": 73.6}))
def roadmap_deit_inat_base() -> TrainConfig:
    """ROADMAP on iNat-base with DeiT-S and its own 384 dimensions."""
    return _INAT_DEIT.train(loss="ROADMAP", decomposability="pair")


@recipe(_CUB_DEIT, _DEIT.read(_LISTED, {"R@1": 77.4}, _DEIT_B))
def roadmap_deit_cub() -> TrainConfig:
    """ROADMAP on CUB with DeiT-S and its own 384 dimensions."""
    return _CUB_DEIT.train(loss="ROADMAP", decomposability="pair")


@recipe(_SOP_VIT, _VIT)
def roadmap_vit_sop() -> TrainConfig:
    """ROADMAP on SOP with ViT-B projected to 512 dimensions."""
    return _SOP_VIT.train(loss="ROADMAP", decomposability="proxy")


@recipe(_INAT_VIT, _VIT)
def roadmap_vit_inat_base() -> TrainConfig:
    """ROADMAP on iNat-base with ViT-B projected to 512 dimensions."""
    return _INAT_VIT.train(loss="ROADMAP", decomposability="proxy")


@recipe(_CUB_VIT, _VIT)
def roadmap_vit_cub() -> TrainConfig:
    """ROADMAP on CUB with ViT-B projected to 512 dimensions."""
    return _CUB_VIT.train(loss="ROADMAP", decomposability="proxy")
