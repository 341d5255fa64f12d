"""An image as it lies in a shard, with what the index knows about it."""

import io
import struct
from dataclasses import dataclass
from typing import NamedTuple

import cv2
import numpy as np
import simplejpeg
from numpy.typing import NDArray
from PIL import Image

from hgld.data.format import IMAGE_FORMATS
from hgld.errors import InputError


@dataclass(frozen=True, slots=True)
class EncodedImage:
    """The bytes of one image and how they are to be read.

    Attributes:
        data: a whole JPEG, PNG, WebP or GIF file.
        orientation: EXIF orientation, 1 to 8, which readers apply before anything else; 1: upright as stored.
        box: left, top, right, bottom in pixels of the upright image, right and bottom exclusive; None: all of it.
        where: shard and key (or file), for messages.
    """

    data: bytes
    orientation: int
    box: tuple[int, int, int, int] | None
    where: str


# EXIF orientations: rectangles and small pictures between the stored and the upright image.


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


# What an image's header says, and whether to decode on.

MOST_PIXELS = 178_956_970  # beyond these Pillow speaks of a decompression bomb
_PLAIN = ("YCbCr", "RGB", "Gray")  # the colour spaces that libjpeg-turbo turns into RGB; Pillow does CMYK


def plain_jpeg_size(image: EncodedImage) -> tuple[int, int] | None:
    """Width and height of a JPEG that libjpeg-turbo can decode to RGB; None: ask Pillow."""
    if not image.data.startswith(b"\xff\xd8"):
        return None
    try:
        height, width, colors, _ = simplejpeg.decode_jpeg_header(image.data)
    except ValueError:
        return None
    return (int(width), int(height)) if colors in _PLAIN else None


def check_size(image: EncodedImage, stored: tuple[int, int], boxed: tuple[int, int] | None) -> None:
    """Refuse an image by its header, before it is decoded.

    Args:
        image: to be decoded.
        stored: width and height that its header states.
        boxed: as in :func:`decode_with_pillow`.

    Raises:
        InputError: too many pixels, a box that is not inside the image, or another size than the index says.
    """
    width, height = upright_size(*stored, turn_of(image.orientation))
    if width * height > MOST_PIXELS:
        raise InputError(f"{image.where}: {width} x {height} pixels, more than the {MOST_PIXELS:,} that are decoded.")
    left, top, right, bottom = image.box or (0, 0, width, height)
    if not (0 <= left < right <= width and 0 <= top < bottom <= height):
        raise InputError(f"{image.where}: the box {image.box} is not inside the image of {width} x {height} pixels.")
    found = (right - left, bottom - top)
    if boxed is not None and found != boxed:
        raise InputError(
            f"{image.where}: the upright image has {found[0]} x {found[1]} pixels, the index says {boxed[0]} x "
            f"{boxed[1]}. Rebuild the index with hgld index."
        )


# Size and orientation of an image from its first bytes, for readers that have no index.

_ORIENTATION = 0x0112  # EXIF
_EXIF = b"Exif\x00\x00"
_MOST_EXIF_BYTES = 1 << 17  # EXIF stands first in a JPEG, in one segment of at most 64 KiB
_REFUSALS = (
    *(OSError, ValueError, SyntaxError, EOFError, TypeError, LookupError, ArithmeticError, RuntimeError),
    *(struct.error, MemoryError, Image.DecompressionBombError, Image.DecompressionBombWarning),
)


class ImageHeader(NamedTuple):
    """Width and height as stored, in pixels, and the EXIF orientation: 1 to 8, 1 where it is missing or senseless."""

    width: int
    height: int
    orientation: int


def read_header(data: bytes) -> ImageHeader:
    """Read the header of a JPEG, PNG, WebP or GIF.

    Raises:
        InputError: it is none of these, or damaged.
    """
    if data.startswith(b"\xff\xd8") and data.find(_EXIF, 0, _MOST_EXIF_BYTES) < 0:
        try:
            height, width, *_ = simplejpeg.decode_jpeg_header(data)
        except ValueError:
            pass  # Pillow says what is wrong, or reads it after all
        else:
            return ImageHeader(int(width), int(height), 1)
    try:
        with Image.open(io.BytesIO(data), formats=tuple(IMAGE_FORMATS)) as picture:
            return ImageHeader(*picture.size, _orientation(picture))
    except _REFUSALS as error:
        reason = str(error).replace("\n", " ")[:200] or type(error).__name__
        raise InputError(f"cannot be read as an image ({reason}).") from error


def _orientation(picture: Image.Image) -> int:
    try:
        found = picture.getexif().get(_ORIENTATION, 1)
    except _REFUSALS:
        return 1  # damaged metadata: the image itself may still be sound
    return found if isinstance(found, int) and 1 <= found <= 8 else 1
