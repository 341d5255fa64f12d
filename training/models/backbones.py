"""Models by name: the backbone of a library, with its weights, made into an embedding model."""

from collections.abc import Callable

from torch import Tensor

from hgld.errors import ConfigError
from training.config import ModelConfig
from training.models.embedding_model import EmbeddingModel, build_pooling
from training.models.pca import init_projection_pca
from training.models.small_net import SmallNet


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
        image_size: side of the square images, pixels; other sizes are taken as well.
        features: from the model to the (N, F) ``model.features`` of the training set, for projection ``pca``; None
            where the projection's weights come from a checkpoint.
        load_weights: whether to read the pretrained weights; without, the model is otherwise the same, normalisation
            of images included, as a checkpoint needs it.

    Raises:
        ConfigError: no such backbone, or one that does not have the pooling.
        MissingResourceError: pretrained weights that cannot be had.
        InputError: a file of weights that is damaged or of another model.
    """
    if config.backbone != "small":
        raise ConfigError(f"backbone is {config.backbone!r}; expected small.")
    pooling = build_pooling(config.pooling, config.gem_p, config.gem_learned)
    if pooling is None:
        raise ConfigError("backbone small has no pooling of its own (token); take avg, gem or max.")
    backbone = SmallNet()
    model = EmbeddingModel(
        backbone,
        backbone.num_features,
        pooling,
        dim=config.dim,
        layer_norm=config.layer_norm,
        dropout=config.dropout,
        freeze_batch_norm=config.freeze_batch_norm,
    )
    if config.projection == "pca" and features is not None:
        init_projection_pca(model, features(model))
    return model
