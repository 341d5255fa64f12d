"""What a library's model is to an embedding model, and what is said where it cannot be had."""

import pickle
from dataclasses import dataclass

from safetensors import SafetensorError
from torch import Tensor, nn

from hgld.errors import ConfigError, MissingResourceError

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)
FETCH_FAULTS = (  # what the libraries, Hugging Face's client and torch raise on weights that they cannot get or read
    *(RuntimeError, OSError, ValueError, KeyError, TypeError, AttributeError, EOFError, ImportError),
    *(pickle.UnpicklingError, SafetensorError),
)


@dataclass(frozen=True)
class BackboneOptions:
    """What a backbone is asked for.

    Attributes:
        pretrained: ``default``, a tag, a path or ``none``.
        load_weights: whether they are read; all else is as they say in either case.
        token: the vector that the model itself gives rather than a feature map.
        image_size: side of the images, pixels.
        gradient_checkpointing: recompute activations in the backward pass.
    """

    pretrained: str
    load_weights: bool
    token: bool
    image_size: int
    gradient_checkpointing: bool


@dataclass(frozen=True)
class Backbone:
    """A model without its classifier.

    Attributes:
        module: (B, 3, H, W) -> (B, F, H', W'), or (B, F) where it gives its token.
        num_features: F.
        image_mean: of the red, green and blue values 0..1 that it was trained with.
        image_std: their standard deviation.
    """

    module: nn.Module
    num_features: int
    image_mean: tuple[float, ...] = IMAGENET_MEAN
    image_std: tuple[float, ...] = IMAGENET_STD


def no_weights(backbone: str, library: str, cache: str, error: BaseException) -> MissingResourceError:
    """The error where a library's weights cannot be had."""
    reason = (str(error).strip() or type(error).__name__).splitlines()[0][:300]
    return MissingResourceError(
        f"{backbone}: the pretrained weights cannot be had here ({reason}). Connect to the internet once, so that "
        f"{library} downloads them into {cache}; or copy them and give their path as pretrained; or take pretrained "
        "none, which starts from random weights."
    )


def require_size(images: Tensor, side: int) -> None:
    """Refuse images that a model with a fixed number of patches cannot take.

    Raises:
        ConfigError: their sides are not the model's.
    """
    if images.shape[-2:] != (side, side):
        height, width = images.shape[-2:]
        raise ConfigError(
            f"images of {width} x {height} pixels; this backbone was built for {side} x {side} and takes "
            "no other size. Take timm's ViTs for several scales, or another size from the start."
        )
