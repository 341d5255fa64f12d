"""Backbones as embedding models take them: options, and errors that all libraries share."""

import difflib
import logging
import pickle
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from textwrap import shorten

from safetensors import SafetensorError
from torch import Tensor, nn

from hgld.data.views import TestView
from hgld.errors import ConfigError, MissingResourceError

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)
USUAL_VIEW = TestView()
FETCH_FAULTS = (  # raised by the libraries, Hugging Face's client and torch on weights that they cannot get or read
    *(RuntimeError, OSError, ValueError, KeyError, TypeError, AttributeError, EOFError, ImportError, AssertionError),
    *(pickle.UnpicklingError, SafetensorError),
)


@dataclass(frozen=True)
class BackboneOptions:
    """Options with which a library builds a backbone.

    Attributes:
        pretrained: ``default``, a tag, a path or ``none``.
        load_weights: whether to read the weights; the model is otherwise the same without.
        token: whether the model returns its own vector rather than a feature map; None: what is usual for it, as
            :attr:`Backbone.token` then says.
        image_size: side of the images, pixels; None: as its library tests it.
    """

    pretrained: str
    load_weights: bool
    token: bool | None
    image_size: int | None


@dataclass(frozen=True)
class Backbone:
    """A model without its classifier.

    Attributes:
        module: (B, 3, H, W) -> (B, F, H', W'), or (B, F) if it returns its token.
        num_features: F.
        image_mean: mean of the red, green and blue values 0..1 that it was trained with.
        image_std: their standard deviation.
        token: whether it returns its token.
        view: how its library prepares images in a test; None: in another way than :class:`TestView` can.
    """

    module: nn.Module
    num_features: int
    image_mean: tuple[float, ...] = IMAGENET_MEAN
    image_std: tuple[float, ...] = IMAGENET_STD
    token: bool = False
    view: TestView | None = USUAL_VIEW


@contextmanager
def quiet_libraries() -> Iterator[None]:
    """Silence libraries' log of random weights, downloads and retries; bars are shown, and errors still raised."""
    before = logging.root.manager.disable
    logging.disable(max(before, logging.ERROR))
    try:
        yield
    finally:
        logging.disable(before)


def no_weights(backbone: str, library: str, cache: str, error: BaseException) -> MissingResourceError:
    """Return the error for weights of a library that cannot be had."""
    reason = shorten((str(error).strip() or type(error).__name__).splitlines()[0], 160, placeholder=" ...")
    return MissingResourceError(
        f"{backbone}: its weights cannot be had here ({reason}). Give their file (--weights FILE, in training "
        f"--pretrained FILE; none: random weights), or put them into {cache}, where {library} looks: there it keeps "
        "what it downloads once it has a network."
    )


def no_model(library: str, name: str, names: Sequence[str]) -> ConfigError:
    """Return the error for a name that a library does not have; the nearest of its names are named."""
    near = difflib.get_close_matches(name, names, n=5, cutoff=0.4)
    return ConfigError(f"{library} has no model {name!r}; nearest: {', '.join(near) or 'none'}.")


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
