"""The model of a run: backbone, pooling and projection, from images to embeddings."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from hgld.data.batch import normalize
from hgld.errors import ConfigError

from ..config import POOLINGS

_RMAC_OVERLAP = 0.4  # overlap of neighbouring regions, as a share of a region's side
_LONGEST_MAP = 8  # largest ratio of a map's sides: views crop images to 4, and strides round
_LEAST = 1e-6  # lower bound of features before the power, so that powers and gradients stay finite


class AveragePool(nn.Module):
    """The mean over positions: (B, F, H, W) -> (B, F)."""

    def forward(self, features: Tensor) -> Tensor:
        return features.mean(dim=(2, 3))


class MaxPool(nn.Module):
    """The maximum over positions: (B, F, H, W) -> (B, F)."""

    def forward(self, features: Tensor) -> Tensor:
        return features.amax(dim=(2, 3))


class GeM(nn.Module):
    """Generalised mean over positions, (mean x^p)^(1/p) (Radenovic, Tolias, Chum, TPAMI 2019, Eq. 3).

    p = 1 is the average; the larger p, the closer the result is to the maximum. Powers are computed in fp32, also under
    autocast.

    Args:
        p: the exponent, above 0.
        learned: whether the exponent is a parameter.

    Attributes:
        p: () the exponent.
    """

    p: Tensor

    def __init__(self, p: float = 3.0, *, learned: bool = True) -> None:
        super().__init__()
        if not p > 0:
            raise ConfigError(f"GeM's p is {p}; expected a number above 0.")
        if learned:
            self.p = nn.Parameter(torch.tensor(float(p)))
        else:
            self.register_buffer("p", torch.tensor(float(p)))

    def forward(self, features: Tensor) -> Tensor:
        with torch.autocast(features.device.type, enabled=False):
            positive = features.float().clamp(min=_LEAST)
            # Divide maps by their largest feature first, so that its p-th power neither overflows nor vanishes.
            largest = positive.amax(dim=(2, 3), keepdim=True)
            mean = (positive / largest).pow(self.p).mean(dim=(2, 3))
            return largest[:, :, 0, 0] * mean.pow(1 / self.p)

    def extra_repr(self) -> str:
        return f"p={float(self.p.detach()):.3g}"


class CroW(nn.Module):
    """Cross-dimensional weighting: a sum over positions with weights per position and per channel.

    A position's weight is the square root of its share of all activation. A channel has a larger weight if it is active
    at fewer positions.

    Kalantidis, Mellina and Osindero, "Cross-dimensional Weighting for Aggregated Deep Convolutional Features", ECCV
    workshops 2016.
    """

    def forward(self, features: Tensor) -> Tensor:
        positive = features.float().relu().flatten(2)
        at_position = nn.functional.normalize(positive.sum(dim=1), dim=1, eps=_LEAST)
        # a position without activation adds nothing, but the root of 0 has no gradient
        pooled = (positive * at_position.clamp(min=_LEAST).sqrt()[:, None]).sum(dim=2)
        active = (positive > 0).float().mean(dim=2)
        return pooled * ((active + _LEAST).sum(dim=1, keepdim=True) / (active + _LEAST)).log()


class RMac(nn.Module):
    """R-MAC: the sum of the unit vectors of the maxima of square regions at three scales.

    Tolias, Sicre and Jégou, "Particular object retrieval with integral max-pooling of CNN activations", ICLR 2016. In
    the paper each region's vector is whitened too; here the whitening of embeddings comes after the sum.
    """

    def forward(self, features: Tensor) -> Tensor:
        regions = rmac_regions(*features.shape[2:])
        parts = [features[:, :, y : y + side, x : x + side].float().amax(dim=(2, 3)) for y, x, side in regions]
        return torch.stack([nn.functional.normalize(part, dim=1) for part in parts]).sum(dim=0)


def rmac_regions(height: int, width: int) -> list[tuple[int, int, int]]:
    """Return the top, left and side of R-MAC's regions in a feature map.

    At scale l = 1, 2, 3 a region's side is 2 / (l + 1) of the short side, and l regions fit along the short side. The
    long side has additional regions: the number with which the overlap of neighbours at scale 1 is nearest to 40%.

    Raises:
        ConfigError: the map is long and thin, such as a transformer's row of tokens.
    """
    short, long = sorted((height, width))
    if long > _LONGEST_MAP * short:
        raise ConfigError(
            f"pooling rmac needs a feature map with rows and columns, but this one is {height} x {width}, like "
            "a transformer's row of tokens. Use another pooling."
        )
    steps = range(1, 2 * _LONGEST_MAP)
    more = min(steps, key=lambda n: abs((1 - _RMAC_OVERLAP) * short - (long - short) / n))
    regions = []
    for scale in (1, 2, 3):
        side = max(2 * short // (scale + 1), 1)
        tops, lefts = (
            np.linspace(0, length - side, scale + more * (length > short)).astype(int).tolist()
            for length in (height, width)
        )
        regions += [(top, left, side) for top in tops for left in lefts]
    return regions


class EmbeddingModel(nn.Module):
    """An embedding model: backbone, pooling, layer norm without affine parameters, linear projection.

    Embeddings are not L2-normalised here; losses and metrics normalise them.

    Args:
        backbone: (B, 3, H, W) -> (B, F, H', W'), or (B, F) if it pools itself.
        num_features: number of features F.
        pooling: module that pools over positions; None if the backbone pools itself.
        dim: D, dimensions of the embedding; 0: F dimensions, without a projection.
        layer_norm: whether to normalise the pooled features.
        freeze_batch_norm: whether batch norm keeps its statistics and its parameters.
        image_mean: mean of red, green and blue in 0..1, with which the backbone's training images were normalised.
        image_std: standard deviation of red, green and blue in 0..1, with which the backbone's training images were
            normalised.

    Attributes:
        dim: embedding dimension D.
    """

    def __init__(
        self,
        backbone: nn.Module,
        num_features: int,
        pooling: nn.Module | None,
        *,
        dim: int = 512,
        layer_norm: bool = True,
        freeze_batch_norm: bool = False,
        image_mean: Sequence[float] = (0.485, 0.456, 0.406),
        image_std: Sequence[float] = (0.229, 0.224, 0.225),
    ) -> None:
        super().__init__()
        self.backbone = backbone
        self.pooling = nn.Identity() if pooling is None else pooling
        self.norm = nn.LayerNorm(num_features, elementwise_affine=False) if layer_norm else nn.Identity()
        self.projection = nn.Linear(num_features, dim) if dim else nn.Identity()
        self.dim = dim or num_features
        self.image_mean = tuple(float(v) for v in image_mean)
        self.image_std = tuple(float(v) for v in image_std)
        self._frozen = False
        self._norms_frozen = freeze_batch_norm
        if freeze_batch_norm:
            for parameter in self._batch_norm_parameters():
                parameter.requires_grad_(False)

    def features(self, images: Tensor) -> Tensor:
        """Compute pooled features, before norm and projection: (B, 3, H, W) normalised images -> (B, F)."""
        return self.pooling(self.backbone(images))

    def forward(self, images: Tensor) -> Tensor:
        """Compute embeddings: (B, 3, H, W) normalised images -> (B, D)."""
        return self.projection(self.norm(self.features(images)))

    def parameter_groups(self) -> dict[str, list[tuple[str, nn.Parameter]]]:
        """Return the named parameters of ``backbone`` and ``head`` (pooling and projection), without frozen norms."""
        kept = {id(p) for p in self._batch_norm_parameters()} if self._norms_frozen else set()
        groups: dict[str, list[tuple[str, nn.Parameter]]] = {"backbone": [], "head": []}
        for name, parameter in self.named_parameters():
            if id(parameter) not in kept:
                groups["backbone" if name.startswith("backbone.") else "head"].append((name, parameter))
        return groups

    def freeze_backbone(self, frozen: bool) -> None:
        """Freeze or unfreeze the backbone's parameters and statistics."""
        self._frozen = frozen
        for _, parameter in self.parameter_groups()["backbone"]:
            parameter.requires_grad_(not frozen)
        self.train(self.training)

    @property
    def backbone_frozen(self) -> bool:
        """True while the backbone is frozen by :meth:`freeze_backbone`."""
        return self._frozen

    def train(self, mode: bool = True) -> "EmbeddingModel":
        """Set training or evaluation mode; frozen parts stay in evaluation mode."""
        super().train(mode)
        if self._frozen:
            self.backbone.eval()
        if self._norms_frozen:
            for module in self.modules():
                if isinstance(module, _BatchNorm):
                    module.eval()
        return self

    @property
    def has_live_batch_norm(self) -> bool:
        """True if batch norm uses the statistics of the batch in training."""
        return not self._norms_frozen and any(isinstance(module, _BatchNorm) for module in self.modules())

    def _batch_norm_parameters(self) -> list[nn.Parameter]:
        return [p for module in self.modules() if isinstance(module, _BatchNorm) for p in module.parameters()]


def build_pooling(kind: str, gem_p: float, gem_learned: bool) -> nn.Module | None:
    """Build a pooling from its name, an item of :data:`POOLINGS`; None for ``token``: the backbone pools itself."""
    if kind not in POOLINGS:
        raise ConfigError(f"pooling is {kind!r}; expected {', '.join(POOLINGS[:-1])} or {POOLINGS[-1]}.")
    if kind == "gem":
        return GeM(gem_p, learned=gem_learned)
    made = {"avg": AveragePool, "max": MaxPool, "crow": CroW, "rmac": RMac}.get(kind)
    return made and made()


def prepare_images(images: Tensor, model: EmbeddingModel, device: torch.device) -> Tensor:
    """Normalise (B, 3, H, W) uint8 images as the model's backbone expects, in float32 on the device."""
    placed = images.to(device, non_blocking=True).contiguous(memory_format=torch.channels_last)
    return normalize(placed, model.image_mean, model.image_std)


# -- the projection's start: the principal components of a training set's features --


def principal_components(features: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Compute the leading principal components.

    Args:
        features: (N, F) floating point, N > count.
        count: D, at most F.

    Returns:
        (D, F) float64 orthonormal components, the largest variance first; and the (F,) float64 mean. In each component
        the entry of largest magnitude is positive, so that the result is unique.

    Raises:
        ConfigError: there are too few features or items for this number of components.
    """
    items, dimensions = features.shape
    if count > dimensions or count >= items:
        raise ConfigError(
            f"a PCA to {count} components cannot be computed from {items} items with {dimensions} features; expected "
            f"at most {dimensions} components and at least {count + 1} items. Use a smaller dim, or projection random."
        )
    exact = features.double()
    mean = exact.mean(dim=0)
    centred = exact - mean
    # eigh returns the smallest eigenvalue first
    components = torch.linalg.eigh(centred.T @ centred).eigenvectors.T.flip(0)[:count]
    largest = components.gather(1, components.abs().argmax(dim=1, keepdim=True))
    return components * largest.sign(), mean


@torch.no_grad()
def init_projection_pca(model: EmbeddingModel, features: Tensor) -> None:
    """Set the projection to the principal components of centred features: W = components, b = -W mean.

    Args:
        model: model whose projection is set.
        features: (N, F) as ``model.features`` returns them; this function applies the model's norm to them.

    Raises:
        ConfigError: the model has no projection, or the features are not finite, or there are too few.
    """
    projection = model.projection
    if not isinstance(projection, nn.Linear):
        raise ConfigError(
            "projection pca sets the weights of a projection, but with dim 0 there is none. Use a dim above 0."
        )
    if not bool(features.isfinite().all()):
        raise ConfigError("features for the PCA contain numbers that are not finite; check the weights and the images.")
    components, mean = principal_components(model.norm(features), projection.out_features)
    projection.weight.copy_(components)
    projection.bias.copy_(-(components @ mean.to(components.device)))
