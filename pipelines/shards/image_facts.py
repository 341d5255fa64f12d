"""Checks of untrusted images: full decoding, and a small grey copy."""

import cv2
import numpy as np
import simplejpeg
from PIL import Image

from hgld.data.images import PILLOW_FAULTS, ImageHeader, image_fault, open_image, rgb_pixels, turn_of, turned
from hgld.errors import ImageError


def check_decodes(data: bytes, header: ImageHeader) -> None:
    """Read all of an image's data.

    A JPEG is decoded at an eighth of its size: all of its entropy-coded data is read and checked, and the transforms
    of its blocks, in which nothing can fail, are skipped.

    Raises:
        ImageError: ``truncated`` or ``undecodable``.
    """
    if header.format == "JPEG" and _decodes_strictly(data):
        return
    with open_image(data) as picture:
        try:
            picture.load()
        except PILLOW_FAULTS as error:
            raise image_fault(error) from error


def thumbnail(data: bytes, header: ImageHeader, side: int) -> np.ndarray:
    """Return the upright image as (side, side) float32 grey values of 0..255.

    Raises:
        ImageError: it cannot be decoded.
    """
    grey = _grey(data, header, 2 * side)
    small = np.asarray(cv2.resize(grey, (side, side), interpolation=cv2.INTER_AREA), dtype=np.uint8)
    return turned(small, turn_of(header.orientation)).astype(np.float32)


def _grey(data: bytes, header: ImageHeader, side: int) -> np.ndarray:
    """Decode to (H, W) uint8 grey with at least ``side`` pixels a side, where the image has as many."""
    if header.format == "JPEG":
        try:
            return simplejpeg.decode_jpeg(data, colorspace="GRAY", min_height=side, min_width=side)[:, :, 0]
        except ValueError:
            pass  # CMYK, or damage: Pillow decides
    with open_image(data) as picture:
        try:
            return np.asarray(Image.fromarray(rgb_pixels(picture)).convert("L"))
        except PILLOW_FAULTS as error:
            raise ImageError("undecodable", str(error) or type(error).__name__) from error


def _decodes_strictly(data: bytes) -> bool:
    """Tell whether libjpeg decodes it without a warning: faster than Pillow, which decides about the others."""
    try:
        simplejpeg.decode_jpeg(data, colorspace="GRAY", fastdct=True, min_height=1, min_width=1, min_factor=8)
    except ValueError:
        return False
    return True
