"""Labels as the losses take them: (N, L) integers, finest level first, or (N,) for one level; negative is unknown."""

import torch
from torch import Tensor

from hgld.errors import ConfigError, InputError


def check_level(level: int) -> None:
    """Raise ConfigError for a column below 0."""
    if level < 0:
        raise ConfigError(f"level is {level}; expected a column of the labels, 0 the finest.")


def check_labels(labels: Tensor, num_items: int, prefix: str = "") -> None:
    """Raise InputError unless there is one row of integers an embedding."""
    integers = not labels.is_floating_point() and not labels.is_complex() and labels.dtype != torch.bool
    if labels.ndim not in (1, 2) or len(labels) != num_items or not integers:
        raise InputError(
            f"{prefix}labels have shape {tuple(labels.shape)} and dtype {labels.dtype} for {num_items} "
            f"{prefix}embeddings; expected one row of labels an embedding, (N, L) or (N,) integers."
        )


def label_columns(labels: Tensor) -> Tensor:
    """(N, L) labels; a column of its own for those of one level."""
    return labels[:, None] if labels.ndim == 1 else labels


def label_column(labels: Tensor, level: int) -> Tensor:
    """(N,) labels of one level.

    Raises:
        InputError: there is no such level.
    """
    columns = label_columns(labels)
    if level >= columns.shape[1]:
        raise InputError(
            f"the labels have {columns.shape[1]} levels and the loss reads level {level} (0 is the finest); "
            "give it labels of that level, or another level=."
        )
    return columns[:, level]
