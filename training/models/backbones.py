"""Build embedding models from names: a library's backbone with its weights.

A library of backbones is an entry of :data:`BACKBONES`: a function that takes a name and :class:`BackboneOptions`.
Another package adds such a function with an entry point of the group ``hgld.backbones`` (:mod:`hgld.plugins`).
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
    """A library of backbones, all built by one function.

    Attributes:
        form: form of the backbones' names; the part after the colon is the function's first argument.
        place: module and function; imported on demand, because timm and open_clip take seconds to import.
        extra: the extra of hgld that installs the library's packages.
        trains: whether the backbones can be trained.
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
        image_size: side of the square images, pixels; convolutional nets and timm's ViTs accept other sizes too.
        features: function that computes ``model.features`` of the training set, (N, F), with a given model; projection
            ``pca`` needs it. None if the projection's weights come from a checkpoint.
        load_weights: whether to read the pretrained weights. Without them, the model has the same architecture and
            preprocessing, so that a checkpoint's weights fit.

    Raises:
        ConfigError: the backbone does not exist, or lacks the pooling or image size.
        MissingResourceError: pretrained weights are not available.
        InputError: a file of weights is damaged or belongs to another model.
    """
    entry = BACKBONES.get(config.backbone.partition(":")[0])
    if entry is not None and not entry.trains:
        raise ConfigError(
            f"backbone {config.backbone} cannot be trained; use it as --model of hgld embed, evaluate and search."
        )
    pooling = build_pooling(config.pooling, config.gem_p, config.gem_learned)
    # The file of the initial weights may be deleted later: a model from the run's checkpoints does not read it.
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
    """Build a backbone from its name, ``LIBRARY:NAME``.

    Raises:
        ConfigError: the library or backbone does not exist, or lacks what the options request.
        MissingExtraError: the library is not installed.
        MissingResourceError: pretrained weights are not available on this machine.
        InputError: a file of weights is damaged or belongs to another model.
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
