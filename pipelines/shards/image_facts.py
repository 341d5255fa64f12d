"""What an image's bytes say about it, read without trusting them: format, size, orientation, and whether it decodes."""

import io
import struct
import warnings
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import cv2
import numpy as np
import simplejpeg
from PIL import Image

from hgld.data.format import IMAGE_FORMATS

LARGEST_IMAGE = 100_000_000  # pixels; a decoded RGB image of that size takes 300 MB
SUFFIXES = {  # by the format that PIL finds; the first is the usual one
    **IMAGE_FORMATS,
    "MPO": IMAGE_FORMATS["JPEG"],  # a JPEG with further pictures behind it, as some cameras write
}
_ORIENTATION = 0x0112  # EXIF
_DAMAGE = (  # what PIL raises for files that were made to break it
    *(OSError, ValueError, SyntaxError, EOFError, TypeError, IndexError, KeyError, OverflowError, RuntimeError),
    *(struct.error, zlib.error, MemoryError, Image.DecompressionBombError),
)


class UnusableImageError(ValueError):
    """An image that cannot be used: a ``reason`` to count by, and the message."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason


@dataclass(frozen=True, slots=True)
class ImageFacts:
    """What an image's header says.

    Attributes:
        format: PIL's name of the format.
        width: pixels as stored.
        height: pixels as stored.
        orientation: EXIF 1 to 8; 1 where it is missing or senseless.
    """

    format: str
    width: int
    height: int
    orientation: int


def image_facts(data: bytes) -> ImageFacts:
    """Read an image's header.

    Raises:
        UnusableImageError: ``empty``, ``undecodable`` (of no format that shards hold) or ``too-many-pixels``.
    """
    if not data:
        raise UnusableImageError("empty", "no bytes")
    with _opened(data) as picture:
        width, height = picture.size
        if width * height > LARGEST_IMAGE:
            raise UnusableImageError("too-many-pixels", f"{width} x {height} pixels; at most {LARGEST_IMAGE} are read")
        try:
            stored = picture.getexif().get(_ORIENTATION, 1)
        except _DAMAGE:
            stored = 1  # damaged metadata: the image itself may still be sound
        orientation = stored if isinstance(stored, int) and 1 <= stored <= 8 else 1
        return ImageFacts(str(picture.format), width, height, orientation)


def check_decodes(data: bytes, facts: ImageFacts) -> None:
    """Decode all pixels.

    Raises:
        UnusableImageError: ``truncated`` or ``undecodable``.
    """
    if facts.format in ("JPEG", "MPO") and _decodes_strictly(data):
        return
    with _opened(data) as picture:
        try:
            picture.load()
        except _DAMAGE as error:
            reason = "truncated" if "truncated" in str(error) or isinstance(error, EOFError) else "undecodable"
            raise UnusableImageError(reason, str(error) or type(error).__name__) from error


def thumbnail(data: bytes, facts: ImageFacts, side: int) -> np.ndarray:
    """The upright image as (side, side) float32 grey values of 0..255.

    Raises:
        UnusableImageError: it cannot be decoded.
    """
    grey = _grey(data, facts, 2 * side)
    small = cv2.resize(grey, (side, side), interpolation=cv2.INTER_AREA).astype(np.float32)
    if facts.orientation in (2, 4, 5, 7):
        small = small[:, ::-1]
    quarters = {3: 2, 4: 2, 5: 1, 6: 3, 7: 3, 8: 1}.get(facts.orientation, 0)
    return np.ascontiguousarray(np.rot90(small, quarters))


def _grey(data: bytes, facts: ImageFacts, side: int) -> np.ndarray:
    """(H, W) uint8 of at least ``side`` pixels a side, where the image has as many."""
    if facts.format in ("JPEG", "MPO"):
        try:
            return simplejpeg.decode_jpeg(data, colorspace="GRAY", min_height=side, min_width=side)[:, :, 0]
        except ValueError:
            pass  # four inks, or damage: PIL decides
    with _opened(data) as picture:
        try:
            return np.asarray(picture.convert("L"))
        except _DAMAGE as error:
            raise UnusableImageError("undecodable", str(error) or type(error).__name__) from error


def _decodes_strictly(data: bytes) -> bool:
    """Whether libjpeg decodes it without even a warning: faster than PIL, which decides about the others."""
    try:
        simplejpeg.decode_jpeg(data, colorspace="GRAY", fastdct=True, fastupsample=True, strict=True)
    except ValueError:
        return False
    return True


@contextmanager
def _opened(data: bytes) -> Iterator[Image.Image]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PIL warns of odd metadata and of large images: the size is judged here
        try:
            picture = Image.open(io.BytesIO(data), formats=tuple(IMAGE_FORMATS))
        except _DAMAGE as error:
            if isinstance(error, Image.DecompressionBombError):
                raise UnusableImageError("too-many-pixels", str(error)) from error
            kinds = ", ".join(IMAGE_FORMATS)
            detail = f"none of {kinds}, which shards hold: convert images of other formats"
            known = not isinstance(error, Image.UnidentifiedImageError)
            raise UnusableImageError("undecodable", str(error) if known and str(error) else detail) from error
        with picture:
            yield picture
