"""MultiGrain: one embedding for classes and instances, views of an image as positives.

Berman et al.: "MultiGrain: a unified image embedding for classes and instances", 2019, arXiv:1902.05509. A
batch has 510 views, the multiple of three next to the paper's 512. Top-1 is the classifier's, which hgld does not
evaluate; R@1 stands for its retrieval side.
"""

from training.config import TrainConfig
from training.recipes.recipe import recipe
from training.recipes.settings import IMAGENET

_FULL = "ImageNet top-1 {} at 224 px (table of the authors' repository)"


@recipe(IMAGENET, _FULL.format("77.4"))
def multigrain() -> TrainConfig:
    """MultiGrain: classification and retrieval alike, GeM with p = 3."""
    return IMAGENET.train(loss="MultiGrain", lambda_=0.5)


@recipe(IMAGENET, _FULL.format("77.0"))
def multigrain_avg() -> TrainConfig:
    """MultiGrain with average pooling (p = 1)."""
    return IMAGENET.train(loss="MultiGrain", lambda_=0.5, gem_p=1.0)


@recipe(IMAGENET, _FULL.format("76.9"))
def multigrain_classes() -> TrainConfig:
    """MultiGrain's classification term alone, GeM with p = 3."""
    return IMAGENET.train(loss="MultiGrain", lambda_=1.0)


@recipe(IMAGENET, _FULL.format("76.8"))
def multigrain_classes_avg() -> TrainConfig:
    """MultiGrain's classification term alone, with average pooling (p = 1)."""
    return IMAGENET.train(loss="MultiGrain", lambda_=1.0, gem_p=1.0)
