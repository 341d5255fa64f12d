"""An image as stored in a shard: bytes, orientation, structure, header, and the limits before decoding."""

import io
import re
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
from hgld.errors import ImageError, InputError

Pixels = NDArray[np.uint8]  # (H, W, 3), RGB
Integers = NDArray[np.int64]
Floats = NDArray[np.float64]
Size = tuple[int, int]  # width and height
Box = tuple[int, int, int, int]  # left, top, right, bottom, with right and bottom exclusive
Rectangle = tuple[int, int, int, int]  # left, top, width, height


@dataclass(frozen=True, slots=True)
class EncodedImage:
    """The bytes of one image, and what decoders must know about it.

    Attributes:
        data: a whole JPEG, PNG, WebP or GIF file.
        orientation: EXIF orientation, 1 to 8, which is applied before anything else; 1: upright as stored.
        box: left, top, right, bottom in pixels of the upright image, right and bottom exclusive; None: the whole image.
        where: shard and key (or file), for messages.
    """

    data: bytes
    orientation: int
    box: Box | None
    where: str


MOST_BATCH_BYTES = 4 << 30  # maximum total size of the encoded images of a batch, in bytes


def fits_batch(total: float | NDArray[Any], share: float | NDArray[Any] = 1.0) -> Any:
    """Tell whether encoded images with this total size may be in memory together; elementwise for arrays.

    Args:
        total: total number of bytes of the images.
        share: share of a batch's memory that these images may use.
    """
    return total <= share * MOST_BATCH_BYTES


# -- EXIF orientations ------------------------------------------------------------------------------------------------
#
# Conversion of rectangles and pixels between the stored and the upright image.


class Turn(NamedTuple):
    """Steps that turn a stored image upright, in order: swap rows and columns, mirror left to right, top to bottom."""

    swapped: bool
    mirrored: bool
    upside_down: bool


# Turns for the values 1 to 8 of EXIF's tag 0x0112, in this order.
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


def turn_of(orientation: int) -> Turn:
    """Return the turn of an EXIF orientation; any other number means upright, as in image viewers."""
    return _TURNS[orientation - 1] if 1 <= orientation <= len(_TURNS) else _TURNS[0]


def upright_size(width: int, height: int, turn: Turn) -> Size:
    """Return width and height after the turn; given the upright size, return the stored size."""
    return (height, width) if turn.swapped else (width, height)


def stored_rectangle(upright: Rectangle, width: int, height: int, turn: Turn) -> Rectangle:
    """Convert a rectangle of the upright image to coordinates of the stored image.

    Args:
        upright: left, top, width, height.
        width: width of the upright image.
        height: height of the upright image.
        turn: turn from the stored to the upright image.
    """
    left, top, across, down = upright
    if turn.mirrored:
        left = width - left - across
    if turn.upside_down:
        top = height - top - down
    return (top, left, down, across) if turn.swapped else (left, top, across, down)


def turned(pixels: Pixels, turn: Turn) -> Pixels:
    """Turn an image (H, W, 3); the result may share the image's memory."""
    if turn.swapped:
        pixels = np.asarray(cv2.transpose(pixels), dtype=np.uint8)
    if turn.mirrored or turn.upside_down:
        code = 1 if not turn.upside_down else 0 if not turn.mirrored else -1
        pixels = np.asarray(cv2.flip(pixels, code), dtype=np.uint8)
    return pixels


# -- structure --------------------------------------------------------------------------------------------------------
#
# Decoders have no limits of time and memory. So hgld limits their input first: pixels, passes over the pixels, and the
# blocks (segments, chunks, extensions) that Pillow reads one by one. hgld reads the one EXIF tag that it needs without
# Pillow, because Pillow copies the bytes of every tag. In an EXIF segment of 64 KiB, many tags can refer to the same
# bytes, gigabytes in total.

# maximum pixels of a PNG, WebP or GIF (decoding takes 1.5 s); JPEGs can be decoded at a smaller scale
MOST_PIXELS_WHOLE = 50_000_000
MOST_SCANS = 100  # maximum scans of a progressive JPEG, which usually has 10; each scan is a pass over the image
MOST_PASSES = 1_000_000_000  # maximum of scans times pixels; decoding that many takes 1.5 s
_JPEG_BYTES = 6  # bytes of memory per pixel for the coefficients of a progressive JPEG
# bytes of memory per pixel in other formats: an animated WebP needs most, because two frames are decoded
_OTHER_BYTES = 12
_BAND = 512  # number of rows that are converted to RGB at once
# maximum segments before the first scan of a JPEG, or extensions before the first frame of a GIF
_MOST_SEGMENTS = 4_096
_MOST_CHUNKS = 100_000  # maximum chunks of a PNG; chunks usually have 8 KiB or more

# markers; the 0 belongs to the scan header's length, which is below 256 bytes
_START, _SCAN = b"\xff\xd8", b"\xff\xda\x00"
_FRAMES = {*range(0xC0, 0xD0)} - {0xC4, 0xC8, 0xCC}  # markers that begin a frame, one per coding process
# Markers without a length field.
_ALONE = {0x00, 0x01, *range(0xD0, 0xDA)}
_SEQUENTIAL = (b"\xc0", b"\xc1", b"\xc9")
_PNG, _GIF = b"\x89PNG\r\n\x1a\n", (b"GIF87a", b"GIF89a")
_APP1, _EXIF, _XMP_SEGMENT = 0xE1, b"Exif\0\0", b"http://ns.adobe.com/xap/1.0/\0"
_ORIENTATION = 0x0112  # EXIF tag of the orientation
_BYTE_ORDERS = {b"II*\0": "<", b"MM\0*": ">"}
_NUMBERS = {1: "B", 3: "H", 4: "I"}  # EXIF's types of whole numbers
_XMP = re.compile(rb'tiff:Orientation(?:="|>)([0-9])')


class JpegHead(NamedTuple):
    """The segments of a JPEG before its first scan (empty if unreadable), and whether the JPEG has only one scan."""

    segments: bytes
    one_scan: bool


def is_jpeg(data: bytes) -> bool:
    """Tell whether bytes begin like a JPEG."""
    return data.startswith(_START)


def jpeg_head(data: bytes) -> JpegHead:
    """Return the segments of a JPEG before its first scan, and whether the JPEG has only one scan.

    Raises:
        ImageError: the JPEG has too many segments (``too-many-blocks``).
    """
    at, frame = len(_START), b""
    for _ in range(_MOST_SEGMENTS):
        marker = data[at : at + 4]
        if len(marker) < 4 or marker[0] != 0xFF or marker[1] in _ALONE or not is_jpeg(data):
            return JpegHead(b"", one_scan=False)
        if marker.startswith(_SCAN):
            return JpegHead(data[:at], frame[1:2] in _SEQUENTIAL and frame[9:10] == data[at + 4 : at + 5])
        if marker[1] in _FRAMES:
            frame = data[at : at + 10]
        at += 1 if marker[1] == 0xFF else 2 + int.from_bytes(marker[2:])
    raise _too_many("segments before the first scan", _MOST_SEGMENTS)


def jpeg_metadata(segments: bytes) -> tuple[bytes, bytes]:
    """Return the EXIF and the XMP data in segments of :func:`jpeg_head`; empty if there are no such data."""
    at, exif, xmp = len(_START), b"", b""
    while at + 4 <= len(segments):
        if segments[at + 1] == 0xFF:  # 0xFF before a marker is a fill byte
            at += 1
            continue
        end = at + 2 + int.from_bytes(segments[at + 2 : at + 4])
        content = segments[at + 4 : end] if segments[at + 1] == _APP1 else b""
        if content.startswith(_EXIF):
            exif += content.removeprefix(_EXIF) if exif else content
        elif content.startswith(_XMP_SEGMENT):
            xmp = content
        at = end
    return exif, xmp


def check_blocks(data: bytes) -> None:
    """Raise an error if an image has so many blocks that reading its header would take long.

    Raises:
        ImageError: the image has too many blocks (``too-many-blocks``).
    """
    if is_jpeg(data):
        jpeg_head(data)
    elif data.startswith(_PNG):
        _png_exif(data)
    elif data.startswith(_GIF):
        _check_gif(data)


def check_cost(data: bytes, width: int, height: int) -> None:
    """Raise an error if decoding an image would take too much memory or time.

    Raises:
        ImageError: the image exceeds a limit; the reason is ``too-many-pixels``, ``too-many-scans`` or
            ``too-many-blocks``.
    """
    pixels, most = width * height, MOST_PIXELS if is_jpeg(data) else MOST_PIXELS_WHOLE
    if pixels > most:
        raise ImageError("too-many-pixels", f"{width} x {height} pixels; hgld reads at most {most:,}")
    head = jpeg_head(data)
    if head.one_scan or not is_jpeg(data):
        return
    scans = data.count(_SCAN, len(head.segments))  # entropy-coded data cannot contain a marker
    if scans > MOST_SCANS or scans * pixels > MOST_PASSES:
        raise ImageError(
            "too-many-scans",
            f"a JPEG of {scans:,} scans of {pixels:,} pixels, more than the {MOST_SCANS} scans and the {MOST_PASSES:,} "
            "pixels in all of them that are decoded",
        )


def _png_exif(data: bytes) -> bytes:
    """Return the EXIF data of a PNG, even if they come after the pixels; empty if there are no such data."""
    at, exif = len(_PNG), b""
    for _ in range(_MOST_CHUNKS):
        kind = data[at + 4 : at + 8]
        if len(kind) < 4 or kind == b"IEND":
            return exif
        length = int.from_bytes(data[at : at + 4])
        if kind == b"eXIf":
            exif = data[at + 8 : at + 8 + length]
        at += 12 + length
    raise _too_many("chunks", _MOST_CHUNKS)


def _check_gif(data: bytes) -> None:
    """Raise an error if a GIF has too many extensions, or parts of extensions, before its first frame."""
    at = 13 + (3 << ((data[10] & 7) + 1) if len(data) > 10 and data[10] & 0x80 else 0)
    inside = False
    for _ in range(_MOST_SEGMENTS):
        kind = data[at : at + 1]
        if not kind or (not inside and kind != b"!"):
            return
        at, inside = (at + 1 + kind[0], kind[0] > 0) if inside else (at + 2, True)
    raise _too_many("extensions before the first image", _MOST_SEGMENTS)


def _too_many(what: str, most: int) -> ImageError:
    return ImageError("too-many-blocks", f"more than {most:,} {what}")


def orientation_of(data: bytes, exif: bytes, xmp: bytes) -> int:
    """Return the EXIF orientation of an image, 1 to 8; 1 if it is missing or invalid.

    Args:
        data: bytes of the image file.
        exif: EXIF data that Pillow found in the head.
        xmp: XMP data that Pillow found in the head; used if EXIF states no orientation.
    """
    found = _exif_orientation(exif or (_png_exif(data) if data.startswith(_PNG) else b""))
    if found is None:
        stated = _XMP.search(xmp)
        found = int(stated[1]) if stated else 1
    return found if 1 <= found <= 8 else 1


def _exif_orientation(exif: bytes) -> int | None:
    exif = exif.removeprefix(_EXIF)
    order = _BYTE_ORDERS.get(exif[:4])
    if order is None or len(exif) < 8:
        return None
    found = None
    try:
        (at,) = struct.unpack_from(f"{order}I", exif, 4)
        (count,) = struct.unpack_from(f"{order}H", exif, at)
        for entry in range(at + 2, at + 2 + 12 * count, 12):
            tag, kind, values = struct.unpack_from(f"{order}HHI", exif, entry)
            if tag == _ORIENTATION and values == 1 and kind in _NUMBERS:
                (found,) = struct.unpack_from(order + _NUMBERS[kind], exif, entry + 8)
    except struct.error:  # the data are truncated
        pass
    return found


# -- headers and limits -----------------------------------------------------------------------------------------------

PILLOW_FAULTS = (  # Pillow's readers raise these errors for hostile files (Warning if warnings are errors)
    # MemoryError is not among them: hgld limits an image's memory before, so a MemoryError says nothing about the file.
    *(OSError, ValueError, SyntaxError, EOFError, TypeError, LookupError, AttributeError, ArithmeticError),
    *(RuntimeError, struct.error, zlib.error, Image.DecompressionBombError, Warning),
)
_PLAIN = ("YCbCr", "RGB", "Gray")  # the colour spaces that libjpeg-turbo converts to RGB; Pillow converts CMYK


class ImageHeader(NamedTuple):
    """An image's format, its width and height as stored, and its EXIF orientation, 1 to 8."""

    format: str
    width: int
    height: int
    orientation: int

    @property
    def upright(self) -> Size:
        """Width and height after applying the orientation."""
        return upright_size(self.width, self.height, turn_of(self.orientation))


def read_header(data: bytes) -> ImageHeader:
    """Read the header of a JPEG, PNG, WebP or GIF; a missing or invalid orientation becomes 1.

    Raises:
        ImageError: the image cannot be used; the reason is ``empty``, ``undecodable`` (none of these formats, or
            damaged), ``too-many-pixels``, ``too-many-scans`` or ``too-many-blocks``.
    """
    size, segments = _jpeg_size(data), jpeg_head(data).segments
    if size is None or not segments:
        with open_image(data) as picture:
            form = "JPEG" if picture.format == "MPO" else str(picture.format)  # MPO: a JPEG with further images
            return ImageHeader(form, *picture.size, _orientation(data, picture))
    check_cost(data, *size[:2])
    return ImageHeader("JPEG", *size[:2], orientation_of(data, *jpeg_metadata(segments)))


@contextmanager
def open_image(data: bytes) -> Iterator[Image.Image]:
    """Open an image with Pillow, which reads the header, after checking hgld's limits.

    Raises:
        ImageError: the image cannot be used; the reason is ``empty``, ``undecodable`` (none of these formats, or
            damaged), ``too-many-pixels``, ``too-many-scans`` or ``too-many-blocks``.
    """
    if not data:
        raise ImageError("empty", "no bytes")
    check_blocks(data)
    try:
        picture = Image.open(io.BytesIO(data), formats=tuple(IMAGE_FORMATS))
    except Image.DecompressionBombError as error:
        raise ImageError(
            "too-many-pixels", f"more than {MOST_PIXELS:,} pixels, the largest image that hgld reads"
        ) from error
    except Image.UnidentifiedImageError as error:  # Pillow's text contains a memory address, which differs in every run
        detail = f"none of {', '.join(IMAGE_FORMATS)}, the formats of shards; convert the image to one of them"
        raise ImageError("undecodable", detail) from error
    except PILLOW_FAULTS as error:
        raise image_fault(error) from error
    with picture:
        check_cost(data, *picture.size)
        yield picture


def decoded_bytes(data: bytes, pixels: int) -> int:
    """Return the bytes of memory that decoding an image takes at most."""
    return pixels * (_JPEG_BYTES if is_jpeg(data) else _OTHER_BYTES)


def decoded_rgb(data: bytes, picture: Image.Image) -> Pixels:
    """Decode an image that Pillow opened from ``data`` to (H, W, 3) 8-bit RGB without transparency.

    OpenCV decodes WebP to the same pixels as Pillow in less than half of the memory.
    """
    if picture.format == "WEBP":
        pixels = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR_RGB | cv2.IMREAD_IGNORE_ORIENTATION)
        if pixels is not None:
            return np.asarray(pixels, dtype=np.uint8)
    return rgb_pixels(picture)


def rgb_pixels(picture: Image.Image) -> Pixels:
    """Convert an image that Pillow opened to (H, W, 3) 8-bit RGB without transparency."""
    if picture.mode.startswith("I"):  # Pillow would clip 16 bits of grey instead of scaling them
        grey = (np.asarray(picture) >> 8).clip(0, 255).astype(np.uint8)
        return np.repeat(grey[:, :, None], 3, axis=2)
    if picture.mode == "P" and "transparency" in picture.info:
        picture = picture.convert("RGBA")  # keep the colours of transparent palette entries
    width, height = picture.size
    if height <= _BAND:
        return np.array(picture.convert("RGB"))
    pixels = np.empty((height, width, 3), np.uint8)
    # convert in bands: Pillow's copies of a whole image would take another 10 bytes per pixel
    for top in range(0, height, _BAND):
        bottom = min(top + _BAND, height)
        pixels[top:bottom] = np.asarray(picture.crop((0, top, width, bottom)).convert("RGB"))
    return pixels


def image_fault(error: BaseException) -> ImageError:
    """Return hgld's error (``truncated`` or ``undecodable``) for an error of Pillow."""
    said = str(error).replace("\n", " ")[:200] or type(error).__name__
    return ImageError("truncated" if "truncated" in said or isinstance(error, EOFError) else "undecodable", said)


def plain_jpeg_size(image: EncodedImage) -> Size | None:
    """Return the width and height of a JPEG that libjpeg-turbo can decode to RGB; None if Pillow must decode it."""
    size = _jpeg_size(image.data)
    return None if size is None or size[2] not in _PLAIN else size[:2]


def check_size(image: EncodedImage, stored: Size, boxed: Size | None) -> None:
    """Check the size of an image before it is decoded.

    Args:
        image: image to decode.
        stored: width and height that its header states.
        boxed: expected width and height of the upright image after cropping to its box; None: any size.

    Raises:
        InputError: the image has too many pixels or scans, its box is not inside it, or its size differs from the
            index.
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
    """Return width, height and colour space of a JPEG; None if libjpeg-turbo cannot read its header."""
    if not is_jpeg(data):
        return None
    try:
        height, width, colors, _ = simplejpeg.decode_jpeg_header(data)
    except ValueError:
        return None
    return int(width), int(height), colors


def _orientation(data: bytes, picture: Image.Image) -> int:
    exif, xmp = picture.info.get("exif", b""), picture.info.get("XML:com.adobe.xmp") or picture.info.get("xmp", b"")
    raw = picture.info.get("Raw profile type exif")  # ImageMagick stores EXIF in PNG files under this name
    if not exif and isinstance(raw, str):
        with suppress(ValueError):
            exif = bytes.fromhex("".join(raw.split("\n")[3:]))
    xmp = xmp.encode(errors="replace") if isinstance(xmp, str) else xmp
    return orientation_of(data, exif if isinstance(exif, bytes) else b"", xmp if isinstance(xmp, bytes) else b"")
