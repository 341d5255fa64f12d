"""MultiGrain: one embedding for classes and instances, views of an image as positives.

Berman et al.: "MultiGrain: a unified image embedding for classes and instances", 2019, arXiv:1902.05509; settings of
``scripts/train.py`` of facebookresearch/multigrain. A batch has 510 views, the multiple of three next to the 512 there;
an epoch is twice as many views as ImageNet has images (``--epoch-len-factor 2``). There the classifier has weight decay
as well, here no parameter of a loss has. Top-1 is the classifier's, which hgld does not evaluate; R@1 stands for its
retrieval side.
"""

from hgld.training.config import TrainConfig, with_fields
from hgld.training.recipes.published import Published
from hgld.training.recipes.recipe import Setting, recipe

_IMAGENET = Setting(
    "manifest",
    "ImageNet-1k, or any classes without a hierarchy, by build-shards manifest; split val is evaluated",
    "several GPUs (README of facebookresearch/multigrain: only this step gains from them; how many is not confirmed)",
    with_fields(
        TrainConfig(),
        {
            "backbone": "torchvision:resnet50",
            "pretrained": "none",
            "pooling": "gem",
            "gem_p": 3.0,
            "gem_learned": False,
            "layer_norm": False,
            "dim": 0,
            "crop_min": 0.08,
            "jitter": 0.3,
            "lighting": 0.1,
            "batch_size": 510,
            "sampler": "repeated-augmentation",
            "repeats": 3,
            "steps_per_epoch": 5024,
            "optimizer": "sgd",
            "lr": 0.2,
            "lr_head": 0.2,
            "lr_proxies": 0.2,
            "weight_decay": 1e-4,
            "schedule": "step",
            "milestones": (30, 60, 90),
            "epochs": 120,
            "amp": "bf16",
            "evaluate_on": ("val",),
            "evaluate_every": 10,
            "metrics": ("R@1", "R@5", "AP"),
            "best_by": "R@1",
        },
    ),
)


def _top_1(percent: float) -> Published:
    rows = Published("the table of pretrained networks in that README (top-1 of the classifier at 224 px)")
    return rows.read("README of facebookresearch/multigrain", {"top-1": percent})


@recipe(_IMAGENET, _top_1(77.4))
def multigrain() -> TrainConfig:
    """MultiGrain: classification and retrieval alike, GeM with p = 3."""
    return _IMAGENET.train(loss="MultiGrain", lambda_=0.5)


@recipe(_IMAGENET, _top_1(77.0))
def multigrain_avg() -> TrainConfig:
    """MultiGrain with average pooling (p = 1)."""
    return _IMAGENET.train(loss="MultiGrain", lambda_=0.5, gem_p=1.0)


@recipe(_IMAGENET, _top_1(76.9))
def multigrain_classes() -> TrainConfig:
    """MultiGrain's classification term alone, GeM with p = 3."""
    return _IMAGENET.train(loss="MultiGrain", lambda_=1.0)


@recipe(_IMAGENET, _top_1(76.8))
def multigrain_classes_avg() -> TrainConfig:
    """MultiGrain's classification term alone, with average pooling (p = 1)."""
    return _IMAGENET.train(loss="MultiGrain", lambda_=1.0, gem_p=1.0)
