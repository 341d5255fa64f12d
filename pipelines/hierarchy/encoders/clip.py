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

from .prompts import PromptEncoder, fingerprint
from .registry import HINT

VERSION = 1
TEMPLATES = (  # prompts published with CLIP that fit scenes and places
    "a photo of a {}.",
    "a photo of the {}.",
    "a photo of a {}, a type of place.",
    "a photo of a {}, a type of landmark.",
    "a picture of a {} on a sunny day.",
)
_HUB = "hf-hub:"  # a repository says how its model is built, and has its weights
_MOST_LISTED = 25  # no model has so many tags
_UNREADABLE = (  # errors of open_clip, torch and safetensors for weights that cannot be fetched or read
    *(RuntimeError, OSError, ValueError, KeyError, TypeError, AttributeError, StopIteration, EOFError, ImportError),
    *(pickle.UnpicklingError, SafetensorError),
)


class ClipEncoder(PromptEncoder):
    """A CLIP model's text tower.

    Args:
        spec: ``MODEL/PRETRAINED``: a model of open_clip, and a tag of its or a checkpoint's path; or
            ``hf-hub:USER/NAME``.
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
        super().__init__(templates or TEMPLATES, device, batch_size)
        self._model_name, _, self._pretrained = (spec, "", "") if spec.startswith(_HUB) else spec.partition("/")
        weights = _check(self._model_name, self._pretrained)
        shown = self._pretrained if weights is None else weights.name
        source = self._pretrained if weights is None else fingerprint(weights)
        self.name = f"clip:{self._model_name}{'/' * bool(shown)}{shown}"
        self.key = json.dumps(["clip", VERSION, self._model_name, source, self.templates])

    def _rows(self, texts: list[str]) -> np.ndarray:
        model, tokenize = self._loaded
        with torch.inference_mode():
            return model.encode_text(tokenize(texts).to(self._device)).float().cpu().numpy()

    @cached_property
    def _loaded(self) -> tuple[Any, Any]:
        known = get_pretrained_cfg(self._model_name, self._pretrained)
        before = logging.root.manager.disable
        logging.disable(max(before, logging.ERROR))  # of attempts at a download: the final error says it once
        try:
            model: Any = open_clip.create_model(
                self._model_name,
                pretrained=self._pretrained or None,
                device=self._device,
                force_quick_gelu=bool(known.get("quick_gelu")),  # some tags were trained so, under one model name
                require_pretrained=True,
                weights_only=True,
            )
            tokenize = open_clip.get_tokenizer(self._model_name)
        except _UNREADABLE as error:
            reason = (str(error).strip() or type(error).__name__).splitlines()[0][:300]
            raise MissingResourceError(
                f"--encoder {self.name}: the weights cannot be had or read here ({reason}). Connect to the internet "
                "once, so that open_clip downloads them into Hugging Face's cache (HF_HOME); or give a checkpoint as "
                f"--encoder clip:MODEL/PATH: .safetensors, or a .pt that holds tensors alone; pickled code is never "
                f"run. {HINT}"
            ) from error
        finally:
            logging.disable(before)
        return model.eval(), tokenize


def _check(model: str, pretrained: str) -> Path | None:
    """Return the checkpoint's path, or None if ``pretrained`` is a tag of the model."""
    if model.startswith(_HUB) or get_pretrained_cfg(model, pretrained):
        return None
    models, path = open_clip.list_models(), Path(pretrained)
    if model not in models:
        raise ConfigError(f"--encoder clip: open_clip knows no model {model!r}; {_nearest(model, models)}")
    if path.is_file():
        return path
    missing = MissingResourceError if "/" in pretrained or path.suffix else ConfigError
    tags = open_clip.list_pretrained_tags_by_model(model)
    raise missing(
        f"--encoder clip:{model}/{pretrained}: there are no weights and there is no file {pretrained!r}; "
        f"{_nearest(pretrained, tags)}"
    )


def _nearest(name: str, known: Sequence[str]) -> str:
    matches = difflib.get_close_matches(name, known, cutoff=0.4)
    return f"nearest: {', '.join(matches)}." if matches else f"open_clip has {some(known, _MOST_LISTED) or 'none'}."
