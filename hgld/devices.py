"""Where tensors are computed."""

import numpy as np
import torch
from torch import Tensor

from hgld.errors import ConfigError


def choose_device(embeddings: Tensor | np.ndarray, device: torch.device | str | None) -> torch.device:
    """The device asked for, or that of the embeddings (the CPU for arrays).

    Raises:
        ConfigError: there is no such device here.
    """
    if device is None:
        return embeddings.device if isinstance(embeddings, Tensor) else torch.device("cpu")
    try:
        chosen = torch.device(device)
        torch.empty(0, device=chosen)
    except (RuntimeError, AssertionError) as error:  # torch built without CUDA asserts
        raise ConfigError(f"device {str(device)!r} cannot be used here: {error} Take --device cpu.") from error
    return chosen
