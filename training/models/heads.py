"""The classifier that a library's network was pretrained with, to test networks off the shelf at any size and p.

MultiGrain, appendix E: the last linear layer of a network that pools by the mean reads GeM's features as well.
"""

import re
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from hgld.errors import ConfigError

from .backbone import FETCH_FAULTS, no_weights
from .embedding_model import EmbeddingModel
from .weights import load_into, read_weights, weights_file

_TOLERANCE = 1e-3  # largest difference of scores, as a share of the largest score
_SYNSET = re.compile(r"n[0-9]{8}\Z")


def library_head(spec: str, pretrained: str, model: EmbeddingModel, *, image_size: int = 64) -> tuple[Tensor, Tensor]:
    """Return weight (C, F) and bias (C,) of the classifier that a network of torchvision or timm comes with.

    The whole network is run on noise, and its scores are held against those of the classifier after the model's mean
    features.

    Args:
        spec: ``torchvision:NAME`` or ``timm:NAME``, as of the model's backbone.
        pretrained: weights of the model: ``default``, a tag of its library, or a file of weights with the classifier.
        model: model with these weights, without norm and projection after its pooling.
        image_size: side of the noise, pixels.

    Raises:
        ConfigError: another library, a network without weights or whose classifier is not one linear layer behind the
            mean, or a model that changes the features.
        MissingResourceError: weights that are not available.
        InputError: a file of weights that is damaged or of another model.
    """
    library, _, name = spec.partition(":")
    if library not in ("torchvision", "timm") or pretrained == "none":
        raise ConfigError(
            f"backbone {spec} with pretrained {pretrained} has no classifier of its own; expected weights of "
            "torchvision or timm."
        )
    if not (isinstance(model.norm, nn.Identity) and isinstance(model.projection, nn.Identity)):
        raise ConfigError("a network's own classifier reads its features; take --dim 0 and --no-layer-norm.")
    whole = _whole_network(library, name, pretrained).eval()
    linear = [module for module in whole.modules() if isinstance(module, nn.Linear)]
    head = linear[-1] if linear else None
    if head is None or head.bias is None or not _reads_mean(whole, head, model, image_size):
        raise ConfigError(
            f"the classifier of {spec} is not one linear layer behind the mean of its feature map, so that it cannot "
            "be tested with another pooling. Take a ResNet, RegNet, DenseNet, EfficientNet or MobileNet."
        )
    return head.weight.detach(), head.bias.detach()


def check_synsets(names: Sequence[str], classes: int, level: str) -> None:
    """Refuse classes that are not those of a network trained on ImageNet-1k: WordNet ids, in their order.

    Args:
        names: names of the dataset's classes.
        classes: number of the network's classes.
        level: level of the dataset's classes.

    Raises:
        ConfigError: they are no WordNet ids, not in order, or not as many as the network has classes.
    """
    if len(names) != classes or list(names) != sorted(names) or not all(_SYNSET.match(name) for name in names):
        raise ConfigError(
            f"the network's classifier has {classes} classes, and level {level!r} {len(names)}, the first "
            f"{names[0]!r}; expected the {classes} WordNet ids of its training set (build-shards imagenet)."
        )


@torch.no_grad()
def _reads_mean(whole: nn.Module, head: nn.Linear, model: EmbeddingModel, size: int) -> bool:
    noise = torch.randn(2, 3, size, size, generator=torch.Generator().manual_seed(0))
    was_training, device = model.training, next(model.parameters()).device
    model.eval()
    features: Any = model.backbone(noise.to(device)).cpu()
    model.train(was_training)
    pooled = features.mean(dim=(2, 3)) if features.ndim == 4 else features
    if pooled.shape[1] != head.in_features:
        return False
    expected = whole(noise)
    return bool((head(pooled) - expected).abs().max() <= _TOLERANCE * expected.abs().max().clamp(min=1))


def _whole_network(library: str, name: str, pretrained: str) -> nn.Module:
    """Build a network with its classifier; its weights are a file's or the library's."""
    import timm
    import torchvision

    if (path := weights_file(pretrained)) is not None:
        network = torchvision.models.get_model(name) if library == "torchvision" else timm.create_model(name)
        load_into(network, read_weights(path), str(path))
        return network
    try:
        if library == "timm":
            tagged = name if pretrained == "default" or "." in name else f"{name}.{pretrained}"
            return timm.create_model(tagged, pretrained=True)
        entries = torchvision.models.get_model_weights(name)
        return torchvision.models.get_model(name, weights=entries["DEFAULT" if pretrained == "default" else pretrained])
    except FETCH_FAULTS as error:
        cache = "torch's cache (TORCH_HOME)" if library == "torchvision" else "Hugging Face's cache (HF_HOME)"
        raise no_weights(f"{library}:{name}", library, cache, error) from error
