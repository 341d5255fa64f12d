"""An image as it is stored in a shard: bytes, orientation, header, and the limits that hold before decoding."""

import io
import struct
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, NamedTuple

import cv2
import numpy as np
import simplejpeg
from numpy.typing import NDArray
from PIL import Image

from hgld.data.format import IMAGE_FORMATS, MOST_PIXELS
from hgld.data.image_structure import check_blocks, check_cost, is_jpeg, jpeg_head, jpeg_metadata, orientation_of
from hgld.errors import ImageError, InputError


@dataclass(frozen=True, slots=True)
class EncodedImage:
    """The bytes of one image and the facts needed to read them.

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


MOST_BATCH_BYTES = 4 << 30  # of the encoded images of a batch


def fits_batch(total: float | NDArray[Any], share: float | NDArray[Any] = 1.0) -> Any:
    """Tell whether encoded images of so many bytes may be in memory together; of arrays, element by element.

    Args:
        total: their total number of bytes.
        share: the part of a batch that they are.
    """
    return total <= share * MOST_BATCH_BYTES


# -- EXIF orientations ------------------------------------------------------------------------------------------------
#
# Rectangles and pixels between the stored and the upright image.


class Turn(NamedTuple):
    """Turn of a stored image upright: swap rows and columns, then mirror left to right, then top to bottom."""

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
    """Return the turn of an EXIF orientation; any other number means upright, as viewers read it."""
    return _TURNS[orientation - 1] if 1 <= orientation <= len(_TURNS) else _TURNS[0]


def upright_size(width: int, height: int, turn: Turn) -> tuple[int, int]:
    """Return width and height after the turn (and, since the swap undoes itself, the stored ones from the upright)."""
    return (height, width) if turn.swapped else (width, height)


def stored_rectangle(upright: Rectangle, width: int, height: int, turn: Turn) -> Rectangle:
    """Return a rectangle of the upright image in coordinates of the stored image.

    Args:
        upright: left, top, width, height.
        width: width of the upright image.
        height: height of the upright image.
        turn: rotation from stored to upright.
    """
    left, top, across, down = upright
    if turn.mirrored:
        left = width - left - across
    if turn.upside_down:
        top = height - top - down
    return (top, left, down, across) if turn.swapped else (left, top, across, down)


def turned(pixels: NDArray[np.uint8], turn: Turn) -> NDArray[np.uint8]:
    """Turn an image (H, W, 3); the result is a view or new memory."""
    if turn.swapped:
        pixels = np.asarray(cv2.transpose(pixels), dtype=np.uint8)
    if turn.mirrored or turn.upside_down:
        code = 1 if not turn.upside_down else 0 if not turn.mirrored else -1
        pixels = np.asarray(cv2.flip(pixels, code), dtype=np.uint8)
    return pixels


# -- headers and limits -----------------------------------------------------------------------------------------------

PILLOW_FAULTS = (  # raised by Pillow's readers at files that were made to break them; Warning where those are errors
    # No MemoryError: what a file may ask for is bounded before, so that it says nothing of the file.
    *(OSError, ValueError, SyntaxError, EOFError, TypeError, LookupError, AttributeError, ArithmeticError),
    *(RuntimeError, struct.error, zlib.error, Image.DecompressionBombError, Warning),
)
_PLAIN = ("YCbCr", "RGB", "Gray")  # the colour spaces that libjpeg-turbo turns into RGB; Pillow does CMYK


class ImageHeader(NamedTuple):
    """An image's format, one of those of a dataset; its width and height as stored; its EXIF orientation, 1 to 8."""

    format: str
    width: int
    height: int
    orientation: int

    @property
    def upright(self) -> tuple[int, int]:
        """Width and height once the orientation is applied."""
        return upright_size(self.width, self.height, turn_of(self.orientation))


def read_header(data: bytes) -> ImageHeader:
    """Read the header of a JPEG, PNG, WebP or GIF; a missing or senseless orientation is 1.

    Raises:
        ImageError: ``empty``, ``undecodable`` (none of these formats, or damaged), ``too-many-pixels``,
            ``too-many-scans`` or ``too-many-blocks``.
    """
    size, segments = _jpeg_size(data), jpeg_head(data).segments
    if size is None or not segments:
        with open_image(data) as picture:
            form = "JPEG" if picture.format == "MPO" else str(picture.format)  # a JPEG with further images behind it
            return ImageHeader(form, *picture.size, _orientation(data, picture))
    check_cost(data, *size[:2])
    return ImageHeader("JPEG", *size[:2], orientation_of(data, *jpeg_metadata(segments)))


@contextmanager
def open_image(data: bytes) -> Iterator[Image.Image]:
    """Open an image with Pillow, by its header, within the limits that hold for every image.

    Raises:
        ImageError: as :func:`read_header` does.
    """
    if not data:
        raise ImageError("empty", "no bytes")
    check_blocks(data)
    try:
        picture = Image.open(io.BytesIO(data), formats=tuple(IMAGE_FORMATS))
    except Image.DecompressionBombError as error:
        raise ImageError("too-many-pixels", f"more pixels than the {MOST_PIXELS:,} that are read") from error
    except Image.UnidentifiedImageError as error:  # its text holds an address in memory, another one in every run
        kinds = ", ".join(IMAGE_FORMATS)
        raise ImageError(
            "undecodable", f"none of {kinds}, which shards hold: convert images of other formats"
        ) from error
    except PILLOW_FAULTS as error:
        raise image_fault(error) from error
    with picture:
        check_cost(data, *picture.size)
        yield picture


def rgb_pixels(picture: Image.Image) -> NDArray[np.uint8]:
    """Decode an image that Pillow opened to (H, W, 3) RGB: transparency is left out, 16 bits become 8."""
    if picture.mode.startswith("I"):  # 16 bits of grey, which Pillow would clip instead of scale
        grey = (np.asarray(picture) >> 8).clip(0, 255).astype(np.uint8)
        return np.repeat(grey[:, :, None], 3, axis=2)
    if picture.mode == "P" and "transparency" in picture.info:
        picture = picture.convert("RGBA")  # the palette's colours, as they are under the transparency
    return np.array(picture.convert("RGB"))


def image_fault(error: BaseException) -> ImageError:
    """Return our error for one that Pillow raised: ``truncated``, else ``undecodable``."""
    said = str(error).replace("\n", " ")[:200] or type(error).__name__
    return ImageError("truncated" if "truncated" in said or isinstance(error, EOFError) else "undecodable", said)


def plain_jpeg_size(image: EncodedImage) -> tuple[int, int] | None:
    """Return the width and height of a JPEG that libjpeg-turbo can decode to RGB; None: ask Pillow."""
    size = _jpeg_size(image.data)
    return None if size is None or size[2] not in _PLAIN else size[:2]


def check_size(image: EncodedImage, stored: tuple[int, int], boxed: tuple[int, int] | None) -> None:
    """Refuse an image by its header, before it is decoded.

    Args:
        image: image to decode.
        stored: width and height that its header states.
        boxed: whether the image has a box, as in :func:`decode_with_pillow`.

    Raises:
        InputError: too many pixels or scans, a box that is not inside the image, or another size than the index says.
    """
    try:
        check_cost(image.data, *stored)
    except ImageError as error:
        raise InputError(f"{image.where}: {error}.") from error
    width, height = upright_size(*stored, turn_of(image.orientation))
    left, top, right, bottom = image.box or (0, 0, width, height)
    if not (0 <= left < right <= width and 0 <= top < bottom <= height):
        raise InputError(f"{image.where}: the box {image.box} is not inside the image of {width} x {height} pixels.")
    found = (right - left, bottom - top)
    if boxed is not None and found != boxed:
        raise InputError(
            f"{image.where}: the upright image has {found[0]} x {found[1]} pixels, the index says {boxed[0]} x "
            f"{boxed[1]}. Rebuild the index with hgld index."
        )


def _jpeg_size(data: bytes) -> tuple[int, int, str] | None:
    """Return width, height and colour space of a JPEG; None if libjpeg-turbo reads none."""
    if not is_jpeg(data):
        return None
    try:
        height, width, colors, _ = simplejpeg.decode_jpeg_header(data)
    except ValueError:
        return None
    return int(width), int(height), colors


def _orientation(data: bytes, picture: Image.Image) -> int:
    exif, xmp = picture.info.get("exif", b""), picture.info.get("XML:com.adobe.xmp") or picture.info.get("xmp", b"")
    raw = picture.info.get("Raw profile type exif")  # as ImageMagick writes it into PNG
    if not exif and isinstance(raw, str):
        with suppress(ValueError):
            exif = bytes.fromhex("".join(raw.split("\n")[3:]))
    xmp = xmp.encode(errors="replace") if isinstance(xmp, str) else xmp
    return orientation_of(data, exif if isinstance(exif, bytes) else b"", xmp if isinstance(xmp, bytes) else b"")
