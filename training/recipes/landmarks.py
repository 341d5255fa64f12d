"""Landmarks: listwise AP on Landmarks-clean, and the losses that are compared on H-GLDv2.

Revaud et al.: "Learning with Average Precision: Training Image Retrieval with a Listwise Loss", ICCV 2019,
arXiv:1906.07589; Ramzi et al., arXiv:2309.08250: batches of 256, about 55,000 steps, Adam at 1e-5. What the latter does
not say is from ``suprank/config`` of elias-ramzi/SupRank: ``model/resnet_101_LM.yaml`` (2,048 dimensions, a PCA as the
projection, no layer norm), proxies at the head's rate (``loss/*_LM.yaml``) and at 10 in CSL (``csl_gldv2_L3.yaml``).
``optimizer/gldv2.yaml`` there has a rate of 1e-4 where the paper has 1e-5; it is a flag away. Listwise AP has batch
norm frozen here, because only then a batch may pass in chunks (section 3.3 of the former).
"""

from hgld.training.config import TrainConfig, with_fields
from hgld.training.recipes.published import Published
from hgld.training.recipes.recipe import Setting, recipe
from hgld.training.recipes.settings import RANK_LOSSES

_LANDMARKS_CLEAN = Setting(
    "landmarks-clean",
    "Landmarks-clean at 800 px; --evaluate-on val,ROXFORD:query/gallery for revisited Oxford beside it",
    "not confirmed; one GPU of any size: 4,096 images of 800 px pass it in chunks of 16",
    with_fields(
        TrainConfig(),
        {
            "backbone": "torchvision:resnet101",
            "pooling": "gem",
            "gem_p": 3.0,
            "gem_learned": True,
            "layer_norm": False,
            "freeze_batch_norm": True,
            "dim": 2048,
            "size": 800,
            "resize": 800,
            "batch_size": 4096,
            "chunk": 16,
            "sampler": "shuffled",
            "optimizer": "adam",
            "lr": 1e-4,
            "lr_head": 1e-4,
            "weight_decay": 1e-6,
            "schedule": "linear",
            "epochs": 20,
            "steps_per_epoch": 10,
            "amp": "bf16",
            "evaluate_on": ("val",),
            "evaluate_every": 5,
            "metrics": ("R@1", "R@10", "AP"),
            "best_by": "AP",
        },
    ),
)

_H_GLDV2 = Setting(
    "h-gldv2",
    "Google Landmarks v2 with hierarchical labels",
    "not confirmed; a node of GPUs, or --chunk 64 on one",
    with_fields(
        RANK_LOSSES,
        {
            "backbone": "torchvision:resnet101",
            "pooling": "gem",
            "layer_norm": False,
            "dim": 2048,
            "projection": "pca",
            "lr_head": 1e-5,
            "lr_proxies": 1e-5,
            "weight_decay": 1e-4,
            "frozen_epochs": 0,
            "epochs": 10,
            "steps_per_epoch": 5500,
            "evaluate_on": ("query/gallery",),
            "evaluate_every": 5,
            "metrics": ("mAP@100", "R@1", "AP", "H-AP", "NDCG", "ASI"),
        },
    ),
)

_LISTWISE = Published("the table of revisited Oxford and Paris in arXiv:1906.07589, after whitening (mAP)").read(
    "README of naver/deep-image-retrieval, Resnet101-AP-GeM",
    {
        "AP (ROxford medium)": 67.1,
        "AP (ROxford hard)": 42.3,
        "AP (RParis medium)": 80.3,
        "AP (RParis hard)": 60.9,
    },
    "at one resolution, whitened by a PCA of Landmarks-clean",
)
_ROWS = Published("the row of this loss in the table of H-GLDv2 in arXiv:2309.08250 (mAP@100, H-AP, ASI, NDCG)")


@recipe(_LANDMARKS_CLEAN, _LISTWISE)
def softbin_ap_landmarks_clean() -> TrainConfig:
    """Listwise AP on Landmarks-clean: SoftBin-AP, 20 bins, batches of 4,096, classes weighted alike, 200 steps."""
    return _LANDMARKS_CLEAN.train(loss="SoftBinAP", bins=20, class_weights=True)


@recipe(_H_GLDV2, _ROWS)
def happier_h_gldv2() -> TrainConfig:
    """HAPPIER on H-GLDv2."""
    return _H_GLDV2.train(loss="HAPPIER")


@recipe(_H_GLDV2, _ROWS)
def rod_ndcg_h_gldv2() -> TrainConfig:
    """ROD-NDCG on H-GLDv2."""
    return _H_GLDV2.train(loss="RODNDCG")


@recipe(_H_GLDV2, _ROWS)
def roadmap_proxy_h_gldv2() -> TrainConfig:
    """ROADMAP on H-GLDv2's landmarks."""
    return _H_GLDV2.train(loss="ROADMAP", decomposability="proxy")


@recipe(_H_GLDV2, _ROWS)
def rod_recall_h_gldv2() -> TrainConfig:
    """ROD-R@k on H-GLDv2's landmarks."""
    return _H_GLDV2.train(loss="RODRecall", lambda_=0.5)


@recipe(_H_GLDV2, _ROWS)
def smooth_ap_h_gldv2() -> TrainConfig:
    """Smooth-AP on H-GLDv2's landmarks."""
    return _H_GLDV2.train(loss="SmoothAP")


@recipe(_H_GLDV2, _ROWS)
def softbin_ap_h_gldv2() -> TrainConfig:
    """SoftBin-AP on H-GLDv2's landmarks."""
    return _H_GLDV2.train(loss="SoftBinAP")


@recipe(_H_GLDV2, _ROWS)
def smooth_recall_h_gldv2() -> TrainConfig:
    """Smooth-R@k on H-GLDv2's landmarks."""
    return _H_GLDV2.train(loss="SmoothRecall")


@recipe(_H_GLDV2, _ROWS)
def norm_softmax_h_gldv2() -> TrainConfig:
    """NormSoftmax on H-GLDv2's landmarks."""
    return _H_GLDV2.train(loss="NormSoftmax")


@recipe(_H_GLDV2, _ROWS)
def norm_softmax_sigma_h_gldv2() -> TrainConfig:
    """NormSoftmax on H-GLDv2, summed over the levels."""
    return _H_GLDV2.train(loss="NormSoftmax", sum_levels=True)


@recipe(_H_GLDV2, _ROWS)
def csl_h_gldv2() -> TrainConfig:
    """Cross-scale learning on H-GLDv2."""
    return _H_GLDV2.train(loss="CSL", lr_proxies=10.0)
