"""Smaller embeddings: leading dimensions alone, int8 and binary codes."""

import numpy as np
import torch
from torch import Tensor

from hgld.errors import ConfigError
from hgld.evaluation.options import EvaluationOptions

QUANTIZED = ("int8", "binary")
_MOST_CODE = 127
_ROWS_AT_ONCE = 1024


def int8_codes(embeddings: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Round embeddings to int8: code = round(127 x / m), m the row's largest absolute value, halves to even.

    Args:
        embeddings: (N, D) finite; the codes of a row of zeros are zeros.

    Returns:
        codes: (N, D) int8 in -127..127.
        scales: (N,) float32, m / 127. A row is its codes times its scale, to within half a scale; a cosine needs none.
    """
    rows = np.asarray(embeddings, np.float64)
    largest = np.abs(rows).max(axis=1, keepdims=True)
    largest[largest == 0] = 1
    return np.rint(rows * (_MOST_CODE / largest)).astype(np.int8), (largest[:, 0] / _MOST_CODE).astype(np.float32)


def binary_codes(embeddings: np.ndarray) -> np.ndarray:
    """Keep the signs of embeddings: (N, D) -> (N, ceil(D / 8)) uint8, a bit is set where x >= 0, the first highest."""
    return np.packbits(np.asarray(embeddings) >= 0, axis=1)


def decode_quantized(embeddings: Tensor | np.ndarray, quantized: str, *, normalize: bool = True) -> np.ndarray:
    """Return the vectors that the codes of (N, D) embeddings stand for: whole numbers, unless scaled.

    Products of signs are whole numbers, so that ties are exact: D - 2 x the Hamming distance.
    """
    scaled = quantized == "int8" and not normalize
    decoded = np.empty(tuple(embeddings.shape), np.float32 if scaled else np.float16)
    for start in range(0, len(decoded), _ROWS_AT_ONCE):
        rows = embeddings[start : start + _ROWS_AT_ONCE]
        part = torch.as_tensor(np.asarray(rows) if isinstance(rows, np.ndarray) else rows).detach().cpu().double()
        if quantized == "binary":
            decoded[start : start + len(part)] = np.where(part.numpy() >= 0, 1, -1)
        else:
            codes, scales = int8_codes(part.numpy())
            decoded[start : start + len(part)] = codes * scales[:, None] if scaled else codes
    return decoded


def check_smaller(options: EvaluationOptions, dim: int) -> None:
    """Refuse leading dimensions and codes that embeddings of so many dimensions cannot have, before anything is ranked.

    Raises:
        ConfigError: says which.
    """
    dims = options.truncate_dim
    if dims and (dims[0] < 1 or sorted(set(dims)) != list(dims) or dims[-1] > dim):
        raise ConfigError(f"truncate_dim is {dims} for {dim} dimensions; expected ascending numbers of 1 to {dim}.")
    if unknown := [quantized for quantized in options.quantize if quantized not in QUANTIZED]:
        raise ConfigError(f"quantize is {unknown[0]!r}; expected {', '.join(QUANTIZED)}.")
