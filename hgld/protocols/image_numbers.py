"""Numbers in the names of images: how INRIA Holidays, Copydays and UKBench say what belongs together."""

import re
from collections.abc import Sequence

import numpy as np

from hgld.errors import InputError

_NUMBER = re.compile(r"([0-9]{1,9})(?:\.[A-Za-z]+)?\Z")


def image_numbers(names: Sequence[str]) -> np.ndarray:
    """The number at the end of every image's name, before the suffix: 100001 of ``jpg/100001.jpg``.

    Returns:
        (N,) int64.

    Raises:
        InputError: a name without a number.
    """
    matches = [_NUMBER.search(name) for name in names]
    if None in matches:
        raise InputError(
            f"image {names[matches.index(None)]!r} has no number at its end; expected one as in 100001.jpg."
        )
    return np.array([int(match[1]) for match in matches if match], np.int64)
