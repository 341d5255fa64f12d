"""Size and orientation of an image from its first bytes, for readers that have no index."""

import io
import struct
from typing import NamedTuple

import simplejpeg
from PIL import Image

from hgld.dataset_names import IMAGE_FORMATS
from hgld.errors import InputError

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
