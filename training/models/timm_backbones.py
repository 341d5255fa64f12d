"""Backbones of timm."""

import inspect
from collections.abc import Mapping
from typing import Any

import timm
import torch
from timm.data.config import resolve_model_data_config
from torch import Tensor, nn

from hgld.data.views import ResizeMode, TestView
from hgld.errors import ConfigError

from .backbone import (
    FETCH_FAULTS,
    Backbone,
    BackboneOptions,
    load_into,
    no_model,
    no_weights,
    quiet_libraries,
    read_weights,
    weights_file,
)


class TimmNet(nn.Module):
    """A model of timm up to its feature map or its own pooled vector.

    Args:
        net: the model, made without a classifier.
        token: whether to return the model's own vector, (B, F), rather than a feature map, (B, F, H', W'). A
            transformer's tokens make a map of (B, F, N, 1), because pooling does not depend on their positions.
    """

    def __init__(self, net: nn.Module, *, token: bool) -> None:
        super().__init__()
        self.net = net
        self.token = token
        self._channels_last = getattr(net, "output_fmt", "NCHW") == "NHWC"
        self._prefix = int(getattr(net, "num_prefix_tokens", 0))  # number of class tokens and register tokens

    def forward(self, images: Tensor) -> Tensor:
        net: Any = self.net
        features = net.forward_features(images)
        if self.token:
            return net.forward_head(features, pre_logits=True)
        if features.ndim == 3:
            return features[:, self._prefix :].transpose(1, 2).unsqueeze(-1)
        return features.permute(0, 3, 1, 2) if self._channels_last else features


def timm_backbone(name: str, options: BackboneOptions) -> Backbone:
    """Build a model of timm without its classifier.

    Transformers accept images of any size if timm can interpolate their positions. If the patch size does not divide a
    side, the image is padded with zeros, which are the mean colour.

    Raises:
        ConfigError: the model does not exist, or does not have the pooling.
        MissingResourceError: the model's weights are not available on this machine.
        InputError: the file of weights is damaged or belongs to another model.
    """
    if not timm.is_model(name):
        raise no_model("timm", name, [*timm.list_models(), *timm.list_pretrained()])
    path = weights_file(options.pretrained)
    plain = _plain(name)
    tagged = name if path is not None else _tagged(name, options.pretrained)
    net = _create(tagged, plain, options, fetch=options.load_weights and path is None and options.pretrained != "none")
    module = TimmNet(net, token=options.token is not False)
    known = resolve_model_data_config(net)
    view = _view(known)
    features = _probe(module, name, options.image_size or known["input_size"][-1])
    if options.load_weights and path is not None:
        load_into(net, read_weights(path), str(path), unused=plain.state_dict().keys())
    return Backbone(module.train(), features, tuple(known["mean"]), tuple(known["std"]), module.token, view)


def _view(known: Mapping[str, Any]) -> TestView | None:
    """Return timm's own preprocessing; None if this preprocessing pads, or crops a squashed image."""
    _, height, width = known["input_size"]
    resize_modes: dict[str, ResizeMode] = {"center": "crop", "squash": "squash"}
    resize_mode = resize_modes.get(known["crop_mode"])
    if height != width or resize_mode is None or (resize_mode == "squash" and known["crop_pct"] != 1):
        return None
    interpolation = "bicubic" if known["interpolation"] == "bicubic" else "bilinear"
    return TestView(height, int(height / known["crop_pct"]), resize_mode, interpolation=interpolation)


def _tagged(name: str, pretrained: str) -> str:
    """Return the name with the tag of its weights, ``NAME.TAG``, if ``pretrained`` is a tag.

    Raises:
        ConfigError: timm knows no such weights, or the name has another tag.
    """
    model, dot, tag = name.partition(".")
    if pretrained in ("default", "none") or (dot and tag == pretrained):
        return name
    tags = [known.partition(".")[2] for known in timm.list_pretrained(f"{model}.*")]
    if dot or pretrained not in tags:
        has = f"the name has the tag {tag}" if dot else f"timm:{model} has {', '.join(tags) or 'no tags'}"
        raise ConfigError(f"pretrained is {pretrained!r}; {has}. Expected default, none, one of its tags or a file.")
    return f"{model}.{pretrained}"


def _plain(name: str) -> nn.Module:
    """Build the model without a classifier, and keep the state of torch's generator."""
    try:
        with torch.random.fork_rng(devices=[]):
            return timm.create_model(name, pretrained=False, num_classes=0)
    except RuntimeError as error:
        known = timm.list_pretrained(name.partition(".")[0] + ".*")
        tags = ", ".join(known) or "none"
        raise ConfigError(f"timm:{name} cannot be built ({error}). Pretrained tags of the model: {tags}.") from error


def _create(name: str, plain: nn.Module, options: BackboneOptions, *, fetch: bool) -> nn.Module:
    taken = {p for kind in type(plain).__mro__ for p in inspect.signature(kind.__init__).parameters}
    arguments: dict[str, Any] = {"global_pool": ""} if options.token is False else {}
    if "dynamic_img_size" in taken:
        arguments["dynamic_img_size"] = True
        arguments |= {"dynamic_img_pad": True} if "dynamic_img_pad" in taken else {}
    elif "img_size" in taken and options.image_size is not None:
        arguments["img_size"] = options.image_size
    try:
        with quiet_libraries():
            return timm.create_model(name, pretrained=fetch, num_classes=0, **arguments)
    except FETCH_FAULTS as error:
        if not fetch:
            raise ConfigError(f"timm:{name} cannot be built with {arguments} ({error}).") from error
        raise no_weights(f"timm:{name}", "timm", "Hugging Face's cache (HF_HOME)", error) from error


def _probe(module: TimmNet, name: str, image_size: int) -> int:
    """Return the number of features, and remove parts of the model that do not affect the features.

    If a part is only used by the classifier (a norm or convolution after the pooling), its parameters would have no
    gradient, and DistributedDataParallel would raise an error.
    """
    net = module.net.eval()
    try:
        features = module(torch.zeros(1, 3, image_size, image_size))
    except (RuntimeError, AssertionError, ValueError) as error:
        raise ConfigError(f"timm:{name} does not accept images of {image_size} px ({error}).") from error
    if features.ndim != (2 if module.token else 4):
        raise ConfigError(f"timm:{name} has no {'token' if module.token else 'feature map'}; use another pooling.")
    features.sum().backward()
    for child_name, child in list(net.named_children()):
        parameters = list(child.parameters())
        if parameters and all(p.grad is None for p in parameters):
            setattr(net, child_name, nn.Identity())
    net.zero_grad(set_to_none=True)
    return features.shape[1]
