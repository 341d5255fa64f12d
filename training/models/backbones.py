"""Models by name: a library's backbone, with its weights, made into an embedding model.

A library of backbones is a function of a name and :class:`BackboneOptions`, and a line of :data:`BACKBONES`. Another
package adds such a function by an entry point of the group ``hgld.backbones`` (:mod:`hgld.plugins`).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

from torch import Tensor

from hgld.errors import ConfigError, optional_dependency
from hgld.plugins import Plugins

from ..config import ModelConfig
from .backbone import Backbone, BackboneOptions, names_file
from .embedding_model import EmbeddingModel, build_pooling, init_projection_pca


@dataclass(frozen=True)
class BackboneLibrary:
    """A library whose backbones one function makes.

    Attributes:
        form: the form of their names; the part after the colon is the function's first argument.
        place: module and function, imported when a backbone is asked for, because timm and open_clip take seconds.
        extra: the extra of hgld that brings its packages.
        trains: whether its backbones can be trained.
    """

    form: str
    place: str
    extra: str = ""
    trains: bool = True


_HERE = "hgld.training.models"
BACKBONES: Mapping[str, BackboneLibrary] = {
    "small": BackboneLibrary("small", f"{_HERE}.small_net:small_backbone"),
    "small-resnet": BackboneLibrary("small-resnet", f"{_HERE}.small_net:small_resnet_backbone"),
    "torchvision": BackboneLibrary("torchvision:NAME", f"{_HERE}.torchvision_backbones:torchvision_backbone"),
    "timm": BackboneLibrary("timm:NAME", f"{_HERE}.timm_backbones:timm_backbone"),
    "open_clip": BackboneLibrary("open_clip:NAME", f"{_HERE}.open_clip_backbones:open_clip_backbone"),
    "onnx": BackboneLibrary("onnx:FILE", f"{_HERE}.onnx_network:onnx_network", "onnx", trains=False),
    "pixels": BackboneLibrary("pixels", f"{_HERE}.networks:pixels", trains=False),
}
"""The libraries of backbones that hgld knows."""

PLUGINS = Plugins("hgld.backbones", "library of backbones", BACKBONES)


def build_model(
    config: ModelConfig,
    *,
    image_size: int,
    features: Callable[[EmbeddingModel], Tensor] | None = None,
    load_weights: bool = True,
) -> EmbeddingModel:
    """Build the model of a run.

    Random weights are drawn from torch's global generator.

    Args:
        config: the model's options.
        image_size: side of the square images, pixels; convolutional nets and timm's ViTs take other sizes as well.
        features: computes from the model the (N, F) ``model.features`` of the training set, for projection ``pca``;
            None if the projection's weights come from a checkpoint.
        load_weights: whether to read the pretrained weights; the model is otherwise the same without (including the
            images that it expects), as a checkpoint's weights need it.

    Raises:
        ConfigError: no such backbone, or one that does not have the pooling or the image size.
        MissingResourceError: pretrained weights that are not available.
        InputError: a file of weights that is damaged or of another model.
    """
    entry = BACKBONES.get(config.backbone.partition(":")[0])
    if entry is not None and not entry.trains:
        raise ConfigError(
            f"backbone {config.backbone} cannot be trained; hgld embed, evaluate and search take it as --model."
        )
    pooling = build_pooling(config.pooling, config.gem_p, config.gem_learned)
    # A run outlives the file that it began with, which a model of its checkpoints does not read.
    is_gone = not load_weights and names_file(config.pretrained) and not Path(config.pretrained).expanduser().is_file()
    options = BackboneOptions(
        pretrained="none" if is_gone else config.pretrained,
        load_weights=load_weights,
        token=pooling is None,
        image_size=image_size,
    )
    backbone = build_backbone(config.backbone, options)
    model = EmbeddingModel(
        backbone.module,
        backbone.num_features,
        pooling,
        dim=config.dim,
        layer_norm=config.layer_norm,
        freeze_batch_norm=config.freeze_batch_norm,
        image_mean=backbone.image_mean,
        image_std=backbone.image_std,
    )
    if config.projection == "pca" and features is not None:
        init_projection_pca(model, features(model))
    return model


def build_backbone(spec: str, options: BackboneOptions) -> Backbone:
    """Build the backbone of a name: a library, a colon, and its name there.

    Raises:
        ConfigError: no such library or backbone, or one that does not have what the options ask for.
        MissingExtraError: the library is not installed.
        MissingResourceError: pretrained weights that are not available.
        InputError: a file of weights that is damaged or of another model.
    """
    library, colon, name = spec.partition(":")
    if library in PLUGINS.names():
        return PLUGINS.load(library)(name, options)
    entry = BACKBONES.get(library)
    if entry is None or (":" in entry.form) != bool(name) or bool(colon) != bool(name):
        *first, last = (*(known.form for known in BACKBONES.values()), *PLUGINS.names())
        raise ConfigError(f"backbone is {spec!r}; expected {', '.join(first)} or {last}.")
    PLUGINS.refuse_namesakes(library)
    module, _, function = entry.place.partition(":")
    with optional_dependency(entry.extra, f"backbone {spec}"):
        make = getattr(import_module(module), function)
    return make(*([name] if colon else []), options)
