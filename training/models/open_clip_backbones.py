"""Backbones of open_clip: the image towers of CLIP models."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import open_clip
import torch
from open_clip.model import resize_pos_embed
from open_clip.modified_resnet import ModifiedResNet
from open_clip.pretrained import get_pretrained_cfg
from open_clip.transformer import VisionTransformer
from torch import Tensor, nn

from hgld.data.views import ResizeMode, TestView
from hgld.errors import ConfigError, InputError

from .backbone import (
    FETCH_FAULTS,
    Backbone,
    BackboneOptions,
    load_into,
    no_model,
    no_weights,
    quiet_libraries,
    read_weights,
    require_size,
    weights_file,
)

_CACHE = "Hugging Face's cache (HF_HOME)"
_VISUAL = "visual."  # prefix of the image tower's weights in a whole CLIP model
_MOST_LISTED = 25  # maximum number of tags in a message; no model has more
_SCHEMAS = ("hf-hub:", "local-dir:")


class ImageTower(nn.Module):
    """The image tower of a CLIP model: (B, 3, S, S) -> (B, F), or its map (B, F, H', W').

    A transformer's patch tokens make a map of (B, F, N, 1), because pooling does not depend on their positions.

    Args:
        net: image tower of a CLIP model.
        image_size: side S of the input images in pixels.
    """

    def __init__(self, net: nn.Module, image_size: int) -> None:
        super().__init__()
        self.net = net
        self.image_size = image_size

    def forward(self, images: Tensor) -> Tensor:
        require_size(images, self.image_size)
        found = self.net(images)
        # (B, F, N, 1) patch tokens
        return found[1].transpose(1, 2).unsqueeze(-1) if isinstance(found, tuple) else found


def open_clip_backbone(name: str, options: BackboneOptions) -> Backbone:
    """Build the image tower of a CLIP model, as a feature map, or with its projection into the space of texts.

    Args:
        name: name of the model: ``MODEL``, ``MODEL/TAG`` with the tag of its weights, ``hf-hub:USER/NAME`` or
            ``local-dir:FOLDER``. If the weights are a file, the tag only determines the architecture and the
            preprocessing.
        options: options of the backbone; if the name has a tag, ``default`` means the weights of the tag.

    Raises:
        ConfigError: the model or tag does not exist, or the model does not have the pooling.
        MissingResourceError: the model's weights are not available on this machine.
        InputError: the file of weights is damaged or belongs to another model.
    """
    clip, name, known = _create(name, options)
    token = options.token is not False
    mean, std = known.get("mean") or clip.visual.image_mean, known.get("std") or clip.visual.image_std
    own = clip.visual.image_size
    size = options.image_size or (own if isinstance(own, int) else own[0])
    prepared = {**clip.visual.preprocess_cfg, **known}
    modes: dict[str, ResizeMode] = {"shortest": "crop", "squash": "squash"}
    mode = modes.get(prepared.get("resize_mode") or "shortest")
    interpolation = "bilinear" if prepared.get("interpolation") == "bilinear" else "bicubic"
    view = None if mode is None else TestView(size, size, mode, interpolation=interpolation)
    tower = clip.visual
    if not token and isinstance(tower, ModifiedResNet):
        setattr(tower, "attnpool", nn.Identity())  # noqa: B010  # its declared type is AttentionPool2d
    elif not token and isinstance(tower, VisionTransformer) and tower.attn_pool is None:
        tower.output_tokens, tower.proj, tower.final_ln_after_pool = True, None, False
    elif not token:
        raise ConfigError(f"open_clip:{name} returns one pooled vector and no feature map. Use --pooling token.")
    module = ImageTower(clip.visual, size)
    with torch.no_grad():
        features = module.eval()(torch.zeros(1, 3, size, size)).shape[1]
    return Backbone(module.train(), features, tuple(mean), tuple(std), token, view)


def open_clip_texts(name: str, weights: str, texts: Sequence[str]) -> Tensor:
    """Compute (N, F) unit embeddings of texts with the text tower of a CLIP model.

    Args:
        name: name of the model, in a form that :func:`open_clip_backbone` takes.
        weights: weights of the model: ``default``, a tag, a file of the whole model, or ``none``.
        texts: texts of any length; the model reads only its first tokens, 77 in most models.

    Raises:
        ConfigError: the model or tag does not exist.
        MissingResourceError: the model's weights or its tokenizer are not available on this machine.
        InputError: the file of weights is damaged, belongs to another model, or has no text tower.
    """
    options = BackboneOptions(weights, load_weights=True, token=None, image_size=None)
    clip, name, _ = _create(name, options, texts=True)
    try:
        with quiet_libraries():
            tokens = open_clip.get_tokenizer(name)(list(texts))
    except FETCH_FAULTS as error:
        raise no_weights(f"the tokenizer of open_clip:{name}", "open_clip", _CACHE, error) from error
    with torch.inference_mode():
        return clip.eval().encode_text(tokens, normalize=True).float()


def _create(name: str, options: BackboneOptions, *, texts: bool = False) -> tuple[Any, str, Mapping[str, Any]]:
    """Create a CLIP model with its weights; return it, its name without tag, and open_clip's facts about the tag."""
    pretrained = options.pretrained
    if name.startswith(_SCHEMAS):  # a repository or folder contains both the architecture and the weights
        path, tag = weights_file(pretrained), ""
        if path is None and pretrained not in ("default", "none"):
            raise ConfigError(f"pretrained is {pretrained!r}; open_clip:{name} has its own weights: default or none.")
    else:
        name, _, tag = name.partition("/")
        wanted = tag if tag and pretrained == "default" else pretrained
        path = _check(name, tag, wanted)
        tag = tag if path is not None or wanted == "none" else wanted
        pretrained = "none" if wanted == "none" else pretrained
    is_fetched = options.load_weights and path is None and pretrained != "none"
    known = {} if name.startswith(_SCHEMAS) else get_pretrained_cfg(name, tag)
    try:
        with quiet_libraries():
            clip: Any = open_clip.create_model(
                name,
                pretrained=tag if tag and is_fetched else None,
                load_weights=is_fetched,
                force_image_size=options.image_size,
                force_quick_gelu=bool(known.get("quick_gelu")),  # some tags of a model were trained with QuickGELU
                pretrained_text=False,
                weights_only=True,
            )
    except FETCH_FAULTS as error:
        if not is_fetched:
            sized = f" for {options.image_size} px" if options.image_size else ""
            raise ConfigError(f"open_clip:{name} cannot be built{sized} ({error}).") from error
        raise no_weights(f"open_clip:{name}{f' with {tag}' if tag else ''}", "open_clip", _CACHE, error) from error
    if path is not None and options.load_weights:
        _load(clip, path, texts=texts)
    return clip, name, known


def _check(name: str, tag: str, wanted: str) -> Path | None:
    """Check name, tag and weights; return the path of the weights, or None for a tag or no weights."""
    models = open_clip.list_models()
    if name not in models:
        raise no_model("open_clip", name, models)
    tags = open_clip.list_pretrained_tags_by_model(name)
    path = weights_file(wanted) if wanted not in tags else None
    unknown = next((one for one in (tag, wanted if path is None else "") if one not in ("", "none", *tags)), None)
    if unknown is not None:
        shown = ", ".join(tags[:_MOST_LISTED]) or "no tag"
        raise ConfigError(
            f"pretrained is {unknown!r}; open_clip:{name} has {shown}. Expected one of them, a file, or none."
        )
    return path


def _load(clip: Any, path: Path, *, texts: bool) -> None:
    """Load weights of the tower or of a whole CLIP model; positions are interpolated to the images' size."""
    found = read_weights(path)
    whole = {n.removeprefix("module."): tensor for n, tensor in found.items()}
    weights = {n: tensor for n, tensor in whole.items() if n.startswith(_VISUAL)}
    if texts:
        if len(weights) in (0, len(whole)):
            raise InputError(
                f"{path}: holds only the weights of an image tower; texts need the weights of the whole model."
            )
        weights = whole
    elif not weights:
        weights = {_VISUAL + n: tensor for n, tensor in whole.items()}
    resize_pos_embed(weights, clip)
    if texts:
        load_into(clip, weights, str(path))
    else:
        load_into(clip.visual, {n.removeprefix(_VISUAL): tensor for n, tensor in weights.items()}, str(path))
