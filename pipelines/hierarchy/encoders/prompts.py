"""Common parts of encoders with model weights: prompts around names, the device, and a fingerprint of model files."""

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from hgld.errors import ConfigError

from ...stage import Progress, silent
from ..unit_rows import unit


class PromptEncoder(ABC):
    """An encoder of names that averages prompts.

    Args:
        templates: prompts with ``{}``.
        device: torch device; empty: a GPU when there is one.
        batch_size: texts per forward pass.
    """

    def __init__(self, templates: Sequence[str], device: str, batch_size: int) -> None:
        self.templates = tuple(templates)
        self._device = choose_device(device)
        self._batch_size = batch_size

    @property
    def dim(self) -> int:
        """Dimension D; reads the model."""
        return int(self.encode([""]).shape[1])

    def encode(self, names: Sequence[str], progress: Progress = silent) -> np.ndarray:
        """Return (N, D) float32 unit rows: the mean of each name's normalised prompts (Radford et al., 2021, 3.1.4).

        Args:
            names: N names, at least one.
            progress: told about names embedded.

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


def choose_device(device: str) -> torch.device:
    """Return the requested device, or by default a GPU if there is one.

    Raises:
        ConfigError: it is not a device, or not available.
    """
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


def fingerprint(path: Path) -> str:
    """Return the SHA-256 of a file, or of a folder's files and names, so that a changed model has another key."""
    digest = hashlib.sha256()
    files = [path] if path.is_file() else sorted(p for p in path.rglob("*") if p.is_file())
    for file in files:
        with open(file, "rb") as opened:
            content = hashlib.file_digest(opened, "sha256").hexdigest()
        label = "" if file == path else file.relative_to(path).as_posix()
        digest.update(f"{label}\n{content}\n".encode())
    return digest.hexdigest()
