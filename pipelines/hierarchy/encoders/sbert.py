"""Sentence-transformers models, from a folder, as encoders of names (extra ``sbert``)."""

import json
from collections.abc import Sequence
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from hgld.errors import ConfigError, MissingResourceError, excerpt, optional_dependency, quoted
from hgld.files import read_json

from .prompts import PromptEncoder, fingerprint
from .registry import HINT

VERSION = 1
TEMPLATES = ("{}",)


class SbertEncoder(PromptEncoder):
    """A folder written by ``SentenceTransformer.save``, read from disk alone.

    Args:
        path: the folder, with its ``modules.json``.
        templates: prompts with ``{}``; empty: the name alone.
        device: torch device; empty: a GPU when there is one.
        batch_size: texts per forward pass.

    Attributes:
        name: ``sbert:`` and the folder's last part.
        key: version, hash of the folder's files, and templates.

    Raises:
        ConfigError: no such device, or a model that asks for code from outside sentence-transformers.
        MissingResourceError: no such folder, or not a sentence-transformers model's.
    """

    def __init__(self, path: str, *, templates: Sequence[str] = (), device: str = "", batch_size: int = 256) -> None:
        super().__init__(templates or TEMPLATES, device, batch_size)
        self._folder = Path(path)
        _check(self._folder)
        self.name = f"sbert:{_name(self._folder.resolve())}"
        self.key = json.dumps(["sbert", VERSION, fingerprint(self._folder), self.templates])

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
            reason = (str(error).strip() or type(error).__name__).splitlines()[0][:300]
            raise MissingResourceError(
                f"{self._folder}: sentence-transformers cannot read this model ({reason}). Expected a folder written "
                f"by SentenceTransformer.save with all its files. {HINT}"
            ) from error


def _name(folder: Path) -> str:
    """Return a folder's name; for a snapshot in Hugging Face's cache, whose own is a hash, the name of its model."""
    repository = folder.parent.parent.name
    return repository.rpartition("--")[2] if folder.parent.name == "snapshots" else folder.name


def _check(folder: Path) -> None:
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
            f"{listing}: module {quoted(foreign[0])} is code from outside sentence-transformers; it is not run."
        )
