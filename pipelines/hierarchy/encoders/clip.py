"""CLIP models of open_clip as encoders of names."""

import difflib
import json
import logging
import pickle
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import open_clip
import torch
from open_clip.pretrained import get_pretrained_cfg
from safetensors import SafetensorError

from hgld.errors import ConfigError, MissingResourceError, some

from ...stage import Progress, silent
from .prompts import choose_device, encode_prompts, fingerprint
from .registry import HINT, cached_clip

VERSION = 1
TEMPLATES = (  # those of the prompts published with CLIP that fit scenes and places
    "a photo of a {}.",
    "a photo of the {}.",
    "a photo of a {}, a type of place.",
    "a photo of a {}, a type of landmark.",
    "a picture of a {} on a sunny day.",
)
_NEAREST = 5
_MOST_LISTED = 25  # no model has so many tags
_UNREADABLE = (  # errors of open_clip, torch and safetensors for weights that cannot be fetched or read
    *(RuntimeError, OSError, ValueError, KeyError, TypeError, AttributeError, StopIteration, EOFError, ImportError),
    *(pickle.UnpicklingError, SafetensorError),
)


class ClipEncoder:
    """A CLIP model's text tower.

    Args:
        spec: ``MODEL/PRETRAINED``: a model of open_clip, and a tag of its or a checkpoint's path.
        templates: prompts with ``{}``; empty: ``TEMPLATES``.
        device: torch device; empty: a GPU when there is one.
        batch_size: texts per forward pass.

    Attributes:
        name: ``clip:MODEL/PRETRAINED``, of a path its last part.
        key: version, model, tag or hash of the checkpoint, and templates.

    Raises:
        ConfigError: unknown model or tag (the nearest ones are named), or device.
        MissingResourceError: PRETRAINED is a path, and there is no file.
    """

    def __init__(self, spec: str, *, templates: Sequence[str] = (), device: str = "", batch_size: int = 256) -> None:
        self._model_name, _, self._pretrained = spec.partition("/")
        weights = _check(self._model_name, self._pretrained)
        shown = self._pretrained if weights is None else weights.name
        source = self._pretrained if weights is None else fingerprint(weights)
        self.templates = tuple(templates) or TEMPLATES
        self.name = f"clip:{self._model_name}/{shown}"
        self.key = json.dumps(["clip", VERSION, self._model_name, source, self.templates])
        self._device = choose_device(device)
        self._batch_size = batch_size

    @property
    def dim(self) -> int:
        """Dimension D, read from the model's configuration."""
        return int((open_clip.get_model_config(self._model_name) or {})["embed_dim"])

    def encode(self, names: Sequence[str], progress: Progress = silent) -> np.ndarray:
        """Return (N, D) float32 unit rows: the mean of each name's prompts.

        Raises:
            MissingResourceError: the weights cannot be had or read here.
        """
        model, tokenize = self._loaded

        def encode(texts: list[str]) -> np.ndarray:
            with torch.inference_mode():
                return model.encode_text(tokenize(texts).to(self._device)).float().cpu().numpy()

        return encode_prompts(names, self.templates, self._batch_size, encode, progress)

    @cached_property
    def _loaded(self) -> tuple[Any, Any]:
        known = get_pretrained_cfg(self._model_name, self._pretrained)
        cached = cached_clip(str(known.get("hf_hub", "")).strip("/")) if known else None
        before = logging.root.manager.disable
        logging.disable(max(before, logging.ERROR))  # of attempts at a download: the final error says it once
        try:
            model = open_clip.create_model_from_pretrained(
                self._model_name,
                # of weights at hand the file: by their tag open_clip would ask the server for newer ones
                pretrained=str(cached or self._pretrained),
                device=self._device,
                force_quick_gelu=bool(known.get("quick_gelu")),  # some tags were trained so, under one model name
                weights_only=True,
                return_transform=False,
            )
            tokenize = open_clip.get_tokenizer(self._model_name)
        except _UNREADABLE as error:
            raise MissingResourceError(self._no_weights(bool(known), error)) from error
        finally:
            logging.disable(before)
        return model.eval(), tokenize  # pyright: ignore[reportAttributeAccessIssue]  # a model alone

    def _no_weights(self, is_tag: bool, error: BaseException) -> str:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0][:300]
        if not is_tag:
            return (
                f"{self._pretrained}: cannot be read as weights of {self._model_name} ({reason}). Expected a state "
                "dict of that model, .safetensors or a .pt that holds tensors alone; pickled code is never run."
            )
        return (
            f"--encoder clip:{self._model_name}/{self._pretrained}: the weights cannot be had here ({reason}). "
            "Connect to the internet once, so that open_clip downloads them into Hugging Face's cache (HF_HOME); or "
            f"copy the checkpoint and give --encoder clip:{self._model_name}/PATH. {HINT}"
        )


def _check(model: str, pretrained: str) -> Path | None:
    """Return the checkpoint's path, or None where ``pretrained`` is a tag of the model."""
    models = open_clip.list_models()
    if model not in models:
        raise ConfigError(f"--encoder clip: open_clip knows no model {model!r}; {_nearest(model, models)}")
    tags = open_clip.list_pretrained_tags_by_model(model)
    if not pretrained:
        raise ConfigError(
            f"--encoder clip:{model} names no weights; expected clip:{model}/TAG or a file. {_listed(tags)}"
        )
    if get_pretrained_cfg(model, pretrained):
        return None
    path = Path(pretrained)
    if path.is_file():
        return path
    if "/" in pretrained or path.suffix:
        raise MissingResourceError(
            f"--encoder clip:{model}/{pretrained}: there is no file {pretrained}. {_listed(tags)}"
        )
    raise ConfigError(f"--encoder clip:{model}: no file and no weights {pretrained!r}; {_nearest(pretrained, tags)}")


def _nearest(name: str, known: Sequence[str]) -> str:
    matches = difflib.get_close_matches(name, known, _NEAREST, cutoff=0.4)
    return f"nearest: {', '.join(matches)}." if matches else _listed(known)


def _listed(tags: Sequence[str]) -> str:
    if not tags:
        return "open_clip has none for it; give a checkpoint's path."
    where = " (open_clip.list_models())" if len(tags) > _MOST_LISTED else ""
    return f"open_clip has {some(tags, _MOST_LISTED)}{where}."
