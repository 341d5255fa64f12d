"""Models by name: the backbone of a library, with its weights, made into an embedding model."""

from collections.abc import Callable

from torch import Tensor

from hgld.errors import ConfigError, takes_extra
from hgld.training.config import ModelConfig
from hgld.training.models.backbone import Backbone, BackboneOptions, recompute_stages
from hgld.training.models.embedding_model import EmbeddingModel, build_pooling
from hgld.training.models.pca import init_projection_pca
from hgld.training.models.small_net import SmallNet
from hgld.training.models.weights import load_into, read_weights, weights_file


def build_model(
    config: ModelConfig,
    *,
    image_size: int,
    features: Callable[[EmbeddingModel], Tensor] | None = None,
    load_weights: bool = True,
) -> EmbeddingModel:
    """The model of a run.

    What is random in it (a projection, weights that are not pretrained) is drawn from torch's global generator.

    Args:
        config: the model's options.
        image_size: side of the square images, pixels; convolutional nets and timm's ViTs take other sizes as well.
        features: from the model to the (N, F) ``model.features`` of the training set, for projection ``pca``; None
            where the projection's weights come from a checkpoint.
        load_weights: whether to read the pretrained weights; without, the model is otherwise the same (what images it
            expects included), as a checkpoint's weights need it.

    Raises:
        ConfigError: no such backbone, or one that does not have the pooling, the image size or gradient checkpointing.
        MissingResourceError: pretrained weights that cannot be had.
        InputError: a file of weights that is damaged or of another model.
    """
    pooling = build_pooling(config.pooling, config.gem_p, config.gem_learned)
    options = BackboneOptions(
        pretrained=config.pretrained,
        load_weights=load_weights,
        token=pooling is None,
        image_size=image_size,
        gradient_checkpointing=config.gradient_checkpointing,
    )
    backbone = _backbone(config.backbone, options)
    model = EmbeddingModel(
        backbone.module,
        backbone.num_features,
        pooling,
        dim=config.dim,
        layer_norm=config.layer_norm,
        dropout=config.dropout,
        freeze_batch_norm=config.freeze_batch_norm,
        image_mean=backbone.image_mean,
        image_std=backbone.image_std,
    )
    if config.projection == "pca" and features is not None:
        init_projection_pca(model, features(model))
    if config.compile:
        model.backbone.compile()
    return model


def _backbone(spec: str, options: BackboneOptions) -> Backbone:
    library, colon, name = spec.partition(":")
    match library:  # each library is imported where it is asked for: timm and open_clip take seconds
        case "small" if not colon:
            return _small(options)
        case "torchvision" if name:
            with takes_extra("torchvision", f"backbone {spec}"):
                from hgld.training.models.torchvision_backbones import torchvision_backbone

            return torchvision_backbone(name, options)
        case "timm" if name:
            with takes_extra("timm", f"backbone {spec}"):
                from hgld.training.models.timm_backbones import timm_backbone

            return timm_backbone(name, options)
        case "open_clip" if name:
            with takes_extra("clip", f"backbone {spec}"):
                from hgld.training.models.open_clip_backbones import open_clip_backbone

            return open_clip_backbone(name, options)
    raise ConfigError(f"backbone is {spec!r}; expected small, torchvision:NAME, timm:NAME or open_clip:NAME.")


def _small(options: BackboneOptions) -> Backbone:
    if options.token:
        raise ConfigError("backbone small has no token of its own; take pooling avg, gem or max.")
    net = SmallNet()
    path = weights_file(options.pretrained)
    if path is None and options.pretrained not in ("default", "none"):
        raise ConfigError(f"pretrained is {options.pretrained!r}; backbone small has no weights but a file's, or none.")
    if options.load_weights and path is not None:
        load_into(net, read_weights(path), str(path))
    if options.gradient_checkpointing:
        recompute_stages(net.stages.children())
    return Backbone(net, net.num_features)
