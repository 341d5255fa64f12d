"""Initialisation of the projection as the principal components of a training set's features."""

import torch
from torch import Tensor, nn

from hgld.errors import ConfigError

from .embedding_model import EmbeddingModel


def principal_components(features: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Compute the leading principal components.

    Args:
        features: (N, F) floating, N > count.
        count: D, at most F.

    Returns:
        (D, F) float64 orthonormal components, the largest variance first, with the entry of largest magnitude positive
        in each, so that the result is unique; and the (F,) float64 mean.

    Raises:
        ConfigError: too few features or items for so many components.
    """
    items, dimensions = features.shape
    if count > dimensions or count >= items:
        raise ConfigError(
            f"{count} principal components of {items} items with {dimensions} features; expected at most {dimensions} "
            f"components, of at least {count + 1} items. Take a smaller dim, or projection random."
        )
    exact = features.double()
    mean = exact.mean(dim=0)
    centred = exact - mean
    components = torch.linalg.eigh(centred.T @ centred).eigenvectors.T.flip(0)[:count]  # eigh: smallest value first
    largest = components.gather(1, components.abs().argmax(dim=1, keepdim=True))
    return components * largest.sign(), mean


@torch.no_grad()
def init_projection_pca(model: EmbeddingModel, features: Tensor) -> None:
    """Set the projection to the principal components of features, centred: W = components, b = -W mean.

    Args:
        model: its projection is set.
        features: (N, F) as ``model.features`` returns them; the model's norm is applied here.

    Raises:
        ConfigError: the model has no projection, the features are not F-dimensional, not finite, or too few.
    """
    projection = model.projection
    if not isinstance(projection, nn.Linear):
        raise ConfigError("projection pca sets the weights of a projection; dim 0 has none. Take a dim above 0.")
    if features.ndim != 2 or features.shape[1] != projection.in_features:
        raise ConfigError(f"features of shape {tuple(features.shape)}; expected (N, {projection.in_features}).")
    if not bool(features.isfinite().all()):
        raise ConfigError("features for the PCA hold numbers that are not finite; look at the weights and the images.")
    components, mean = principal_components(model.norm(features), projection.out_features)
    projection.weight.copy_(components)
    projection.bias.copy_(-(components @ mean.to(components.device)))
