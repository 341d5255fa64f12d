"""Compilers of the losses' inner loops, and the one transcendental function that they need.

They differ from the metrics' (:mod:`hgld.evaluation.ranks`), which report numbers and so keep the order of every sum: a
loss promises error bounds alone, and its sums are vectorised only where they may be reordered.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from hgld.evaluation.ranks import njit

# Sums may be reordered and products contracted, without which reductions are not vectorised; infinities keep their
# meaning, because -inf is the score of an item that is not ranked.
_FASTMATH = {"reassoc", "contract", "arcp", "nsz"}


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile a function that Python calls; see :func:`hgld.evaluation.ranks.compiled`."""
    return njit(function, fastmath=_FASTMATH)


def helper(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile a function that compiled functions call; see :func:`hgld.evaluation.ranks.helper`."""
    return njit(function, fastmath=_FASTMATH, entry=False)


def _product(a: Any, b: Any) -> Any:
    """Multiply without reordering: (s_j - s_k) b must not become s_j b - s_k b, which cancels and overflows."""
    return a * b


product = njit(_product, entry=False)


@helper
def exp_float32(x: Any) -> Any:
    """Return e^x for a float32 of |x| <= 80, with a relative error below 1e-6 for |x| < 17.

    It is 2^n times a polynomial on [-1/2, 1/2], and vectorises without Intel's SVML.
    """
    y = x * np.float32(1.4426950408889634)
    whole = np.floor(y + np.float32(0.5))
    f = y - whole
    power = np.float32(1.535336188319500e-4)
    power = power * f + np.float32(1.339887440266574e-3)
    power = power * f + np.float32(9.618437357674640e-3)
    power = power * f + np.float32(5.550332471162809e-2)
    power = power * f + np.float32(2.402264791363012e-1)
    power = power * f + np.float32(6.931472028550421e-1)
    power = power * f + np.float32(1.0)
    return power * np.int32((np.int32(whole) + np.int32(127)) << np.int32(23)).view(np.float32)


@helper
def sigmoid(t: Any) -> Any:
    """Return 1 / (1 + e^-t) and its derivative, in float32."""
    decay = exp_float32(-min(abs(t), np.float32(80)))  # at most 1, so that no order of factors overflows
    upper = np.float32(1) / (np.float32(1) + decay)
    lower = decay * upper
    return upper if t >= 0 else lower, lower * upper
