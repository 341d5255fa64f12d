"""Checks of untrusted images: full decoding, and resizing with their boxes."""

import cv2
import numpy as np
import simplejpeg

from hgld.data.images import (
    PILLOW_FAULTS,
    ImageHeader,
    image_fault,
    open_image,
    read_header,
    rgb_pixels,
    turn_of,
    turned,
)
from hgld.errors import ImageError

Box = tuple[int, int, int, int]

_LONGEST_SIDE = 65_500  # libjpeg's limit for a JPEG


def check_decodes(data: bytes, header: ImageHeader) -> None:
    """Read all of an image's data.

    A JPEG is decoded at an eighth of its size: all of its entropy-coded data is read and checked, and the transforms
    of its blocks, in which nothing can fail, are skipped. Pillow, which is slower, decides about the JPEGs that libjpeg
    does not decode without a warning.

    Raises:
        ImageError: ``truncated`` or ``undecodable``.
    """
    if header.format == "JPEG" and decodes_strictly(data):
        return
    with open_image(data) as picture:
        try:
            picture.load()
        except PILLOW_FAULTS as error:
            raise image_fault(error) from error


def decodes_strictly(data: bytes) -> bool:
    """Tell whether libjpeg decodes a JPEG without a warning."""
    try:
        simplejpeg.decode_jpeg(data, colorspace="GRAY", fastdct=True, min_height=1, min_width=1, min_factor=8)
    except ValueError:
        return False
    return True


def _decoded(data: bytes, header: ImageHeader, width: int, height: int) -> np.ndarray:
    """Decode to (H, W, C) uint8 as stored, a JPEG at a half, quarter or eighth if that is of the size asked for."""
    if header.format == "JPEG":
        try:
            return simplejpeg.decode_jpeg(data, colorspace="RGB", min_height=height, min_width=width)
        except ValueError:
            pass  # CMYK, or damage: Pillow decides
    with open_image(data) as picture:
        try:
            return np.asarray(rgb_pixels(picture))
        except PILLOW_FAULTS as error:
            raise image_fault(error) from error


def checked_image(
    data: bytes, box: Box | None, *, max_pixels: int, resize: int, quality: int
) -> tuple[bytes, ImageHeader, Box | None]:
    """Check an image by reading all of its data; return the bytes to keep, their header and their box.

    Args:
        data: the image file.
        box: to crop to, in pixels of the upright image; cut to the part in the image.
        max_pixels: larger images are refused.
        resize: pixels of the shorter side; an image that is larger or not upright becomes an upright JPEG. It is never
            enlarged. 0: the bytes stay.
        quality: of the JPEG, 1 to 100.

    Raises:
        ImageError: with the reason.
    """
    header = read_header(data)
    if header.width * header.height > max_pixels:
        detail = f"{header.width} x {header.height} pixels, more than the {max_pixels} allowed"
        raise ImageError("too-many-pixels", detail)
    width, height = header.upright
    if box:
        left, top, right, bottom = max(box[0], 0), max(box[1], 0), min(box[2], width), min(box[3], height)
        if left >= right or top >= bottom:
            raise ImageError("empty-box", f"box {box} leaves nothing of an image of {width} x {height} pixels")
        box = left, top, right, bottom
    shorter = min(header.width, header.height)
    if not resize or (shorter <= resize and header.orientation == 1):
        check_decodes(data, header)
        return data, header, box
    kept, small = _resized(data, header, min(1.0, resize / shorter), quality)
    if box:  # rounded outwards
        left, top, right, bottom = box
        across, down = small.width, small.height
        box = left * across // width, top * down // height, -(-right * across // width), -(-bottom * down // height)
    return kept, small, box


def _resized(data: bytes, header: ImageHeader, scale: float, quality: int) -> tuple[bytes, ImageHeader]:
    width, height = (max(1, round(n * scale)) for n in (header.width, header.height))
    if max(width, height) > _LONGEST_SIDE:
        detail = f"{width} x {height} pixels after resizing; a JPEG has at most {_LONGEST_SIDE} a side"
        raise ImageError("too-many-pixels", detail)
    pixels = _decoded(data, header, width, height)
    if pixels.shape[:2] != (height, width):
        pixels = cv2.resize(pixels, (width, height), interpolation=cv2.INTER_AREA)
    pixels = np.ascontiguousarray(turned(np.asarray(pixels, dtype=np.uint8), turn_of(header.orientation)))
    encoded = simplejpeg.encode_jpeg(pixels, quality=quality, colorspace="RGB", colorsubsampling="420")
    return encoded, ImageHeader("JPEG", pixels.shape[1], pixels.shape[0], 1)
