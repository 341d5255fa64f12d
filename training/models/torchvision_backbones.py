"""Backbones of torchvision."""

from typing import Any

import torch
import torchvision
from torch import Tensor, nn
from torchvision.models.vision_transformer import interpolate_embeddings

from hgld.data.views import TestView
from hgld.errors import ConfigError, HgldError

from .backbone import (
    FETCH_FAULTS,
    Backbone,
    BackboneOptions,
    load_into,
    no_model,
    no_weights,
    read_weights,
    require_size,
    weights_file,
)

_SIDE = 64  # side in pixels of the image that is used to count the channels of the map
_FAMILIES = (  # models with a feature map or a class token
    *("alexnet", "convnext", "densenet", "efficientnet", "mobilenet", "regnet", "resnet", "resnext", "squeezenet"),
    *("swin", "vgg", "vit_", "wide_resnet"),
)


class ConvolutionalNet(nn.Module):
    """A convolutional net or Swin transformer of torchvision up to its feature map, (B, 3, H, W) -> (B, F, H', W').

    Args:
        net: the model; its classifier is removed.
    """

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        for name in ("fc", "classifier", "head", "avgpool"):
            if hasattr(net, name):
                setattr(net, name, nn.Identity())
        self.net = net

    def forward(self, images: Tensor) -> Tensor:
        net: Any = self.net
        match net:
            case torchvision.models.ResNet():
                maps = net.maxpool(net.relu(net.bn1(net.conv1(images))))
                return net.layer4(net.layer3(net.layer2(net.layer1(maps))))
            case torchvision.models.RegNet():
                return net.trunk_output(net.stem(images))
            case torchvision.models.DenseNet():
                return nn.functional.relu(net.features(images))
            case torchvision.models.SwinTransformer():
                return net.permute(net.norm(net.features(images)))
        return net.features(images)


class VisionTransformer(nn.Module):
    """A ViT of torchvision up to its class token, (B, 3, S, S) -> (B, F), or its patch tokens, (B, F, N, 1).

    Args:
        net: the model; its classifier is removed.
        token: whether to return the class token.
    """

    def __init__(self, net: torchvision.models.VisionTransformer, *, token: bool = True) -> None:
        super().__init__()
        net.heads = nn.Sequential()
        self.net = net
        self.token = token

    def forward(self, images: Tensor) -> Tensor:
        require_size(images, self.net.image_size)
        if self.token:
            return self.net(images)
        patches = self.net._process_input(images)  # (B, N, F); the tokens still attend to the class token
        tokens = self.net.encoder(torch.cat([self.net.class_token.expand(len(patches), -1, -1), patches], dim=1))
        return tokens[:, 1:].transpose(1, 2).unsqueeze(-1)


def torchvision_backbone(name: str, options: BackboneOptions) -> Backbone:
    """Build a classification model of torchvision without its classifier.

    Raises:
        ConfigError: the model does not exist, or its feature map or token is not available.
        MissingResourceError: the model's weights are not available on this machine.
        InputError: the file of weights is damaged or belongs to another model.
    """
    names = [n for n in torchvision.models.list_models(module=torchvision.models) if n.startswith(_FAMILIES)]
    if name not in names:
        raise no_model("torchvision", name, names)
    entry = _entry(name, options.pretrained)
    known = entry.transforms()
    size = options.image_size or known.crop_size[0]
    if name.startswith("vit_"):
        patch = int(name.rpartition("_")[2])
        if size % patch:
            raise ConfigError(f"torchvision:{name} cuts images into patches of {patch} px, which do not divide {size}.")
        net: Any = torchvision.models.get_model(name, weights=None, image_size=size)
        module = VisionTransformer(net, token=options.token is not False)
    elif options.token:
        raise ConfigError(f"torchvision:{name} has no token; use another pooling.")
    else:
        module = ConvolutionalNet(torchvision.models.get_model(name, weights=None))
    if options.load_weights and options.pretrained != "none":
        path = weights_file(options.pretrained)
        try:
            weights: Any = read_weights(path) if path else entry.get_state_dict(progress=False, check_hash=True)
        except HgldError:
            raise
        except FETCH_FAULTS as error:
            raise no_weights(f"torchvision:{name}", "torchvision", "torch's cache (TORCH_HOME)", error) from error
        if isinstance(module, VisionTransformer) and "encoder.pos_embedding" in weights:
            weights = interpolate_embeddings(size, module.net.patch_size, weights)
        load_into(module.net, weights, str(path or f"torchvision:{name}"))
    side = size if isinstance(module, VisionTransformer) else _SIDE
    with torch.no_grad():
        features = module.eval()(torch.zeros(1, 3, side, side)).shape[1]
    crop, resize = known.crop_size[0], known.resize_size[0]
    interpolation = "bicubic" if known.interpolation.value == "bicubic" else "bilinear"
    view = TestView(crop, max(resize, crop), interpolation=interpolation)
    token = isinstance(module, VisionTransformer) and module.token
    return Backbone(module.train(), features, tuple(known.mean), tuple(known.std), token, view)


def _entry(name: str, pretrained: str) -> Any:
    """Return torchvision's entry for a tag, or for the file of its weights; for any other file, the default entry.

    Raises:
        ConfigError: there are no such weights.
    """
    entries = torchvision.models.get_model_weights(name)
    path = weights_file(pretrained)
    if path is not None:
        return next((entry for entry in entries if entry.url.endswith(f"/{path.name}")), entries["DEFAULT"])
    tag = "DEFAULT" if pretrained in ("default", "none") else pretrained
    if tag not in entries.__members__:
        tags = ", ".join(entry.name for entry in entries)
        raise ConfigError(f"torchvision:{name} has no weights {tag!r}; expected default or one of {tags}.")
    return entries[tag]
