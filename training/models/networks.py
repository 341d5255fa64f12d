"""Networks as they come, without a run: of a library or a file, with their own weights and preparation of images."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from hgld.data.views import TestView
from hgld.errors import ConfigError

from .backbone import Backbone, BackboneOptions
from .backbones import build_backbone
from .embedding_model import AveragePool, EmbeddingModel, build_pooling

_SEED = 0  # of weights that are drawn


@dataclass(frozen=True)
class Network:
    """A network by its name, as ``hgld evaluate --model`` takes it.

    Attributes:
        name: ``timm:NAME``, ``torchvision:NAME``, ``open_clip:MODEL/PRETRAINED``, ``onnx:FILE`` or ``pixels``.
        weights: ``default``: its library's; a tag; a file; ``none``: drawn at random, always the same.
        pooling: ``avg``, ``gem``, ``max`` or ``token``; empty: the network's own vector, else the average.
    """

    name: str
    weights: str = "default"
    pooling: str = ""


def build_network(network: Network, size: int | None = None) -> tuple[EmbeddingModel, TestView | None]:
    """Build a network that embeds: its backbone, pooled, and nothing after it.

    Args:
        network: its name, weights and pooling.
        size: side of the images, pixels, for networks that are built for one; None: as its library tests it.

    Returns:
        the model, on the CPU in evaluation mode, and how its library prepares images (:attr:`Backbone.view`).

    Raises:
        ConfigError: no such network, or one that does not have the pooling or the size.
        MissingExtraError: its library is not installed.
        MissingResourceError: its weights cannot be had here.
        InputError: a file that is damaged or of another network.
    """
    options = BackboneOptions(
        pretrained=network.weights,
        load_weights=True,
        token=None if not network.pooling else network.pooling == "token",
        image_size=size,
        gradient_checkpointing=False,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(_SEED)
        backbone = build_backbone(network.name, options)
    pooling = build_pooling(network.pooling, gem_p=3.0, gem_learned=False) if network.pooling else None
    model = EmbeddingModel(
        backbone.module,
        backbone.num_features,
        pooling or (None if backbone.token else AveragePool()),
        dim=0,
        layer_norm=False,
        image_mean=backbone.image_mean,
        image_std=backbone.image_std,
    )
    return model.eval(), backbone.view


def embed_texts(network: Network, texts: Sequence[str]) -> Tensor:
    """Compute (N, F) unit embeddings of texts, on the CPU, by the text tower that belongs to a network.

    Raises:
        ConfigError: it has none, or is pooled so that its images lie in another space than texts.
        MissingExtraError: its library is not installed.
        MissingResourceError: its weights or its tokenizer cannot be had here.
        InputError: a file of weights that is damaged, of another model, or without the text tower.
    """
    library, _, name = network.name.partition(":")
    if library != "open_clip":
        raise ConfigError(
            f"--text: {network.name} has no text tower. Texts take --model open_clip:MODEL/PRETRAINED, for instance "
            "open_clip:ViT-B-32/openai."
        )
    if network.pooling not in ("", "token"):
        raise ConfigError(
            f"--text: {network.name} pooled by {network.pooling} has images in another space than texts. Leave "
            "--pooling out."
        )
    from .open_clip_backbones import open_clip_texts

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(_SEED)
        return open_clip_texts(name, network.weights, texts)


# -- pixels as an embedding: what a network has to beat ---------------------------------------------------------------

_SIDE = 32


class RawPixels(nn.Module):
    """The pixels of a small image less their mean over a dataset, (B, 3, H, W) -> (B, 3 H W).

    Attributes:
        centre: (3 H W,) the mean; zero until it is set.
    """

    centre: Tensor

    def __init__(self, side: int) -> None:
        super().__init__()
        self.register_buffer("centre", torch.zeros(3 * side * side))

    def forward(self, images: Tensor) -> Tensor:
        return images.flatten(1) - self.centre


def pixels(options: BackboneOptions) -> Backbone:
    """Return the pixels of the whole image, squashed to 32 x 32, as a network that has nothing to learn.

    Raises:
        ConfigError: weights or a pooling are asked for.
    """
    if options.token is False or options.pretrained not in ("default", "none"):
        raise ConfigError("the network pixels has neither weights nor a pooling; leave both out.")
    side = options.image_size or _SIDE
    view = TestView(side, side, "squash")
    return Backbone(RawPixels(side), 3 * side * side, token=True, view=view)
