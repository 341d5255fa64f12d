"""How the evaluator's inner loops are compiled."""

from collections.abc import Callable
from typing import Any

import numba


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile at the first call, without the GIL; keep the machine code where numba finds a folder to write to.

    Importing this module imports numba, which takes longer than the rest of hgld: import what uses it where it is used.
    """
    try:
        return numba.njit(nogil=True, error_model="numpy", cache=True)(function)
    except RuntimeError:  # numba's "cannot cache function": neither the package's nor the user's folder is writable
        return numba.njit(nogil=True, error_model="numpy")(function)
