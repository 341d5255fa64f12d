"""How the losses' inner loops are compiled, and the one transcendental function they need.

Not as the metrics' (:mod:`hgld.evaluation.ranks`), which report numbers and so keep the order of every sum: a loss
promises error bounds alone, and its sums are vectorised only where they may be reordered.
"""

import math
from collections.abc import Callable
from typing import Any

import numba
import numpy as np
from numba.extending import overload

# Sums may be reordered and products contracted, without which reductions are not vectorised; infinities keep their
# meaning, because -inf is the score of an item that is not ranked.
_FASTMATH = {"reassoc", "contract", "arcp", "nsz"}


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile at the first call, without the GIL; keep the machine code where numba finds a folder to write to.

    numba renews what it kept when the file of ``function`` changes, not when a file that ``function`` calls into does:
    after an edit of this module or of kernels_spread, delete the .nbi files in __pycache__.
    """
    return _njit(function, _FASTMATH)


def _njit(function: Callable[..., Any], fastmath: set[str]) -> Callable[..., Any]:
    try:
        return numba.njit(nogil=True, error_model="numpy", cache=True, fastmath=fastmath)(function)
    except RuntimeError:  # numba's "cannot cache function": neither the package's nor the user's folder is writable
        return numba.njit(nogil=True, error_model="numpy", fastmath=fastmath)(function)


def _product(a: Any, b: Any) -> Any:
    """A product that is never reordered: (s_j - s_k) b must not become s_j b - s_k b, which cancels and overflows."""
    return a * b


product = _njit(_product, set())


def sigmoid(t: Any) -> Any:
    """1 / (1 + e^-t) and its derivative, in the dtype of ``t``; for compiled code only.

    The exponential is the C library's in float64. In float32 it is 2^n times a polynomial on [-1/2, 1/2], relative
    error below 1e-6 for |t| < 17, which vectorises without Intel's SVML.
    """
    raise TypeError("sigmoid is for compiled code only")


@overload(sigmoid)
def _sigmoid_for(t: Any) -> Callable[..., Any]:
    return _sigmoid_float32 if t == numba.types.float32 else _sigmoid_float64


def _sigmoid_float64(t: Any) -> Any:
    decay = math.exp(-min(abs(t), 700.0))
    upper = 1.0 / (1.0 + decay)
    lower = decay * upper
    return upper if t >= 0 else lower, lower * upper


def _sigmoid_float32(t: Any) -> Any:
    decay = exp_float32(-min(abs(t), np.float32(80)))  # at most 1, so that no order of factors overflows
    upper = np.float32(1) / (np.float32(1) + decay)
    lower = decay * upper
    return upper if t >= 0 else lower, lower * upper


@compiled
def exp_float32(x: Any) -> Any:
    """e^x for a float32 of |x| <= 80."""
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
