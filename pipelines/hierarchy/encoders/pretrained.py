"""Encoders with pretrained weights: CLIP models of open_clip, and sentence-transformers models (extra ``sbert``).

Each encoder averages the rows of several prompts that contain the name.
"""

import difflib
import hashlib
import json
import logging
import pickle
from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError

from hgld.errors import ConfigError, MissingResourceError, excerpt, optional_dependency, quoted, some
from hgld.files import read_json

from ...stage import Progress, sha256_of, silent
from ..unit_rows import unit
from .registry import HINT

VERSION = 1
TEMPLATES = (  # prompts published with CLIP that fit scenes and places
    "a photo of a {}.",
    "a photo of the {}.",
    "a photo of a {}, a type of place.",
    "a photo of a {}, a type of landmark.",
    "a picture of a {} on a sunny day.",
)
_HUB = "hf-hub:"  # a repository with this prefix describes its model and holds its weights
_MOST_LISTED = 25  # maximum number of tags in a message; no model has more
_UNREADABLE = (  # errors of open_clip, torch and the readers of weights, for weights that cannot be fetched or read
    *(RuntimeError, OSError, ValueError, KeyError, TypeError, AttributeError, StopIteration, EOFError, ImportError),
    *(pickle.UnpicklingError, SafetensorError),
)


class PromptEncoder(ABC):
    """An encoder that averages the rows of several prompts that contain the name.

    Args:
        templates: prompt templates with ``{}`` in place of the name.
        device: torch device; empty: a GPU if there is one.
        batch_size: number of texts per forward pass.
    """

    def __init__(self, templates: Sequence[str], device: str, batch_size: int) -> None:
        self.templates = tuple(templates)
        self._device = _choose_device(device)
        self._batch_size = batch_size

    @property
    def dim(self) -> int:
        """Dimension D; reads the model."""
        return int(self.encode([""]).shape[1])

    def encode(self, names: Sequence[str], progress: Progress = silent) -> np.ndarray:
        """Return (N, D) float32 unit rows: the mean of each name's normalised prompts (Radford et al., 2021, 3.1.4).

        Args:
            names: N names, at least one.
            progress: receives the number of embedded names.

        Raises:
            MissingResourceError: the weights are missing or cannot be read.
        """
        templates, means = self.templates, []
        step = max(1, self._batch_size // len(templates))
        for start in range(0, len(names), step):
            batch = names[start : start + step]
            rows = self._rows([template.replace("{}", name) for name in batch for template in templates])
            means.append(unit(rows.astype(np.float64)).reshape(len(batch), len(templates), -1).mean(axis=1))
            progress("embed", start + len(batch), len(names))
        return unit(np.concatenate(means)).astype(np.float32)

    @abstractmethod
    def _rows(self, texts: list[str]) -> np.ndarray:
        """Return (n, D) rows of n texts."""


def _choose_device(device: str) -> torch.device:
    """Return the requested device, or by default a GPU if there is one."""
    if not device:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        torch.empty(0, device=device)
        return torch.device(device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).strip().partition("\n")[0]
        raise ConfigError(
            f"--device is {device!r}, which cannot be used here ({reason}); expected cpu, cuda, cuda:1 ..."
        ) from error


def _fingerprint(path: Path) -> str:
    """Return a hash of a file, or of a folder's files and their names, so that a changed model has another key."""
    files = [path] if path.is_file() else sorted(p for p in path.rglob("*") if p.is_file())
    digest = hashlib.sha256()
    for file in files:
        label = "" if file == path else file.relative_to(path).as_posix()
        digest.update(f"{label}\n{sha256_of(file)}\n".encode())
    return digest.hexdigest()


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0][:300]


# -- CLIP --------------------------------------------------------------------------------------------------------------


class ClipEncoder(PromptEncoder):
    """A CLIP model's text tower.

    Args:
        spec: ``MODEL/PRETRAINED``: an open_clip model, and one of its tags or the path of a checkpoint. Or
            ``hf-hub:USER/NAME``.
        templates: prompt templates with ``{}`` in place of the name; empty: ``TEMPLATES``.
        device: torch device; empty: a GPU if there is one.
        batch_size: texts per forward pass.

    Attributes:
        name: name of the encoder, ``clip:MODEL/PRETRAINED``, with only the last part of a path.
        key: version, model, tag or hash of the checkpoint, and templates.

    Raises:
        ConfigError: the model, tag or device is unknown; the message names the nearest models or tags.
        MissingResourceError: PRETRAINED is the path of a file that does not exist.
    """

    def __init__(self, spec: str, *, templates: Sequence[str] = (), device: str = "", batch_size: int = 256) -> None:
        super().__init__(templates or TEMPLATES, device, batch_size)
        self._model_name, _, self._pretrained = (spec, "", "") if spec.startswith(_HUB) else spec.partition("/")
        weights = _checkpoint_of(self._model_name, self._pretrained)
        shown = self._pretrained if weights is None else weights.name
        source = self._pretrained if weights is None else _fingerprint(weights)
        self.name = f"clip:{self._model_name}{'/' * bool(shown)}{shown}"
        self.key = json.dumps(["clip", VERSION, self._model_name, source, self.templates])

    def _rows(self, texts: list[str]) -> np.ndarray:
        model, tokenize = self._loaded
        with torch.inference_mode():
            return model.encode_text(tokenize(texts).to(self._device)).float().cpu().numpy()

    @cached_property
    def _loaded(self) -> tuple[Any, Any]:
        import open_clip

        known = open_clip.get_pretrained_cfg(self._model_name, self._pretrained)
        before = logging.root.manager.disable
        # libraries log every attempt to download; hgld's error reports the failure once
        logging.disable(max(before, logging.ERROR))
        try:
            model: Any = open_clip.create_model(
                self._model_name,
                pretrained=self._pretrained or None,
                device=self._device,
                force_quick_gelu=bool(known.get("quick_gelu")),  # some tags of a model were trained with QuickGELU
                require_pretrained=True,
                weights_only=True,
            )
            tokenize = open_clip.get_tokenizer(self._model_name)
        except _UNREADABLE as error:
            raise MissingResourceError(
                f"--encoder {self.name}: the weights cannot be downloaded or read here ({_first_line(error)}). "
                "Connect to the internet once, so that open_clip downloads them into Hugging Face's cache (HF_HOME). "
                "Or give a checkpoint as --encoder clip:MODEL/PATH: .safetensors, or a .pt file that holds only "
                f"tensors; pickled code is never run. {HINT}"
            ) from error
        finally:
            logging.disable(before)
        return model.eval(), tokenize


def _checkpoint_of(model: str, pretrained: str) -> Path | None:
    """Return the checkpoint's path, or None if ``pretrained`` is a tag of the model."""
    import open_clip  # imported here: the import takes seconds, and sentence-transformers models do not need it

    if model.startswith(_HUB) or open_clip.get_pretrained_cfg(model, pretrained):
        return None
    models, path = open_clip.list_models(), Path(pretrained)
    if model not in models:
        raise ConfigError(f"--encoder clip: open_clip has no model {model!r}; {_nearest(model, models)}")
    if path.is_file():
        return path
    missing = MissingResourceError if "/" in pretrained or path.suffix else ConfigError
    tags = open_clip.list_pretrained_tags_by_model(model)
    raise missing(
        f"--encoder clip:{model}/{pretrained}: {pretrained!r} is neither a file nor weights that open_clip has; "
        f"{_nearest(pretrained, tags)}"
    )


def _nearest(name: str, known: Sequence[str]) -> str:
    matches = difflib.get_close_matches(name, known, cutoff=0.4)
    return f"nearest: {', '.join(matches)}." if matches else f"open_clip has {some(known, _MOST_LISTED) or 'none'}."


# -- sentence-transformers ---------------------------------------------------------------------------------------------


class SbertEncoder(PromptEncoder):
    """A sentence-transformers model in a folder, as ``SentenceTransformer.save`` writes it; nothing is downloaded.

    Args:
        path: the folder, with its ``modules.json``.
        templates: prompt templates with ``{}`` in place of the name; empty: only the name.
        device: torch device; empty: a GPU if there is one.
        batch_size: texts per forward pass.

    Attributes:
        name: ``sbert:`` and the folder's last part.
        key: version, hash of the folder's files, and templates.

    Raises:
        ConfigError: the device does not exist, or the model needs code from outside sentence-transformers.
        MissingResourceError: the folder is missing, or holds no sentence-transformers model.
    """

    def __init__(self, path: str, *, templates: Sequence[str] = (), device: str = "", batch_size: int = 256) -> None:
        super().__init__(templates or ("{}",), device, batch_size)
        self._folder = Path(path)
        _check_modules(self._folder)
        real = self._folder.resolve()
        is_snapshot = real.parent.name == "snapshots"  # the folder is in Hugging Face's cache, where its name is a hash
        self.name = f"sbert:{real.parents[1].name.rpartition('--')[2] if is_snapshot else real.name}"
        self.key = json.dumps(["sbert", VERSION, _fingerprint(self._folder), self.templates])

    def _rows(self, texts: list[str]) -> np.ndarray:
        return np.asarray(self._model.encode(texts, batch_size=len(texts), show_progress_bar=False))

    @cached_property
    def _model(self) -> Any:
        try:
            with optional_dependency("sbert", f"--encoder {self.name}", HINT):
                package = import_module("sentence_transformers")
            return package.SentenceTransformer(
                str(self._folder), device=str(self._device), local_files_only=True, trust_remote_code=False
            )
        except (OSError, ValueError, RuntimeError, KeyError, ImportError) as error:
            raise MissingResourceError(
                f"{self._folder}: sentence-transformers cannot read this model ({_first_line(error)}). Expected a "
                f"folder written by SentenceTransformer.save with all its files. {HINT}"
            ) from error


def _check_modules(folder: Path) -> None:
    """Raise an error if ``modules.json`` is missing, or names code from outside sentence-transformers."""
    listing = folder / "modules.json"
    try:
        types = [str(module["type"]) for module in read_json(listing)]
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise MissingResourceError(
            f"--encoder sbert:{folder}: no readable modules.json ({excerpt(error)}). Expected the folder of a "
            f"sentence-transformers model (SentenceTransformer.save, or a snapshot of its repository). {HINT}"
        ) from error
    foreign = [name for name in types if not name.startswith("sentence_transformers.")]
    if foreign:
        raise ConfigError(
            f"{listing}: module {quoted(foreign[0])} is code from outside sentence-transformers, which hgld does not "
            "run."
        )
