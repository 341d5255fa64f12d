"""Where tensors are computed."""

import numpy as np
import torch
from torch import Tensor

from hgld.errors import ConfigError


def choose_device(embeddings: Tensor | np.ndarray, device: torch.device | str | None) -> torch.device:
    """The device asked for, or that of the embeddings (the CPU for arrays).

    Raises:
        ConfigError: there is no such device here, or it cannot compute in float64.
    """
    wanted = embeddings.device if device is None and isinstance(embeddings, Tensor) else device or "cpu"
    try:
        chosen = torch.device(wanted)
        torch.empty(0, dtype=torch.float64, device=chosen).cpu()  # norms and sums are taken in float64
    except (RuntimeError, AssertionError, TypeError) as error:  # torch without CUDA asserts, MPS has no float64
        reason = str(error).partition(". ")[0].rstrip(".")  # what follows lists torch's builds
        raise ConfigError(f"device {str(wanted)!r} cannot be used here ({reason}). Take the device cpu.") from error
    return chosen
