"""EXIF orientations: rectangles and small pictures between the stored and the upright image."""

from typing import NamedTuple

import cv2
import numpy as np
from numpy.typing import NDArray


class Turn(NamedTuple):
    """How a stored image becomes upright: rows and columns swapped, then mirrored left to right, then top to bottom."""

    swapped: bool
    mirrored: bool
    upside_down: bool


# In the order of EXIF's tag 0x0112, 1 to 8.
_TURNS = (
    Turn(False, False, False),
    Turn(False, True, False),
    Turn(False, True, True),
    Turn(False, False, True),
    Turn(True, False, False),
    Turn(True, True, False),
    Turn(True, True, True),
    Turn(True, False, True),
)

Rectangle = tuple[int, int, int, int]  # left, top, width, height


def turn_of(orientation: int) -> Turn:
    """The turn of an EXIF orientation; what is no orientation means upright, as viewers read it."""
    return _TURNS[orientation - 1] if 1 <= orientation <= len(_TURNS) else _TURNS[0]


def upright_size(width: int, height: int, turn: Turn) -> tuple[int, int]:
    """Width and height after the turn (and, the turn being of its own kind, of stored from upright)."""
    return (height, width) if turn.swapped else (width, height)


def stored_rectangle(upright: Rectangle, width: int, height: int, turn: Turn) -> Rectangle:
    """Where a rectangle of the upright image lies in the stored one.

    Args:
        upright: left, top, width, height.
        width: of the upright image.
        height: of the upright image.
        turn: from stored to upright.
    """
    left, top, across, down = upright
    if turn.mirrored:
        left = width - left - across
    if turn.upside_down:
        top = height - top - down
    return (top, left, down, across) if turn.swapped else (left, top, across, down)


def turned(pixels: NDArray[np.uint8], turn: Turn) -> NDArray[np.uint8]:
    """A picture (H, W, 3), turned; a view or new memory."""
    if turn.swapped:
        pixels = np.asarray(cv2.transpose(pixels), dtype=np.uint8)
    if turn.mirrored or turn.upside_down:
        code = 1 if not turn.upside_down else 0 if not turn.mirrored else -1
        pixels = np.asarray(cv2.flip(pixels, code), dtype=np.uint8)
    return pixels
