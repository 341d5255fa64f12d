"""Images made smaller once, when they are packed: upright, the shorter side of a given length, as JPEG."""

import io
import warnings

import cv2
import numpy as np
import simplejpeg
from PIL import Image

from pipelines.image_facts import ImageFacts, UnusableImageError, check_decodes

Box = tuple[int, int, int, int]

_LONGEST_SIDE = 65_500  # of a JPEG, as libjpeg writes it
_MIRRORED = {2: 1, 4: 3, 5: 8, 7: 6}  # EXIF: what is left once left and right are exchanged
_ROTATIONS = {3: cv2.ROTATE_180, 6: cv2.ROTATE_90_CLOCKWISE, 8: cv2.ROTATE_90_COUNTERCLOCKWISE}


def upright_size(facts: ImageFacts) -> tuple[int, int]:
    """Width and height once the orientation is applied."""
    return (facts.width, facts.height) if facts.orientation < 5 else (facts.height, facts.width)


def clip_box(box: Box, facts: ImageFacts) -> Box:
    """The part of a box that lies in the upright image.

    Raises:
        UnusableImageError: ``empty-box``.
    """
    width, height = upright_size(facts)
    left, top, right, bottom = max(box[0], 0), max(box[1], 0), min(box[2], width), min(box[3], height)
    if left >= right or top >= bottom:
        raise UnusableImageError("empty-box", f"box {box} leaves nothing of an image of {width} x {height} pixels")
    return left, top, right, bottom


def scale_box(box: Box, before: ImageFacts, after: ImageFacts) -> Box:
    """A box of an upright image in the pixels of a smaller copy, rounded outwards."""
    (width, height), (new_width, new_height) = upright_size(before), upright_size(after)
    left, top, right, bottom = box
    return (
        left * new_width // width,
        top * new_height // height,
        -(-right * new_width // width),
        -(-bottom * new_height // height),
    )


def resize(data: bytes, facts: ImageFacts, side: int, quality: int) -> tuple[bytes, ImageFacts]:
    """An image with its shorter side at ``side`` pixels, upright, as JPEG; never larger than it was.

    One that is upright and small enough already keeps its bytes.

    Args:
        data: the image file.
        facts: of :func:`pipelines.image_facts.image_facts`.
        side: pixels.
        quality: of the JPEG, 1 to 100.

    Raises:
        UnusableImageError: it cannot be decoded, or not be written as JPEG.
    """
    shorter = min(facts.width, facts.height)
    if shorter <= side and facts.orientation == 1:
        check_decodes(data, facts)
        return data, facts
    scale = min(1.0, side / shorter)
    width, height = (max(1, round(n * scale)) for n in (facts.width, facts.height))
    if max(width, height) > _LONGEST_SIDE:
        detail = f"{width} x {height} pixels after resizing; a JPEG has at most {_LONGEST_SIDE} a side"
        raise UnusableImageError("too-many-pixels", detail)
    pixels = _decoded(data, facts, width, height)
    if pixels.shape[:2] != (height, width):
        pixels = cv2.resize(pixels, (width, height), interpolation=cv2.INTER_AREA)
    pixels = _turned_upright(pixels, facts.orientation)
    encoded = simplejpeg.encode_jpeg(pixels, quality=quality, colorspace="RGB", colorsubsampling="420")
    return encoded, ImageFacts("JPEG", pixels.shape[1], pixels.shape[0], 1)


def _decoded(data: bytes, facts: ImageFacts, width: int, height: int) -> np.ndarray:
    """(H, W, 3) uint8 RGB as stored, of at least that size: JPEGs are decoded at a half, quarter or eighth."""
    if facts.format in ("JPEG", "MPO"):
        try:
            return simplejpeg.decode_jpeg(data, colorspace="RGB", min_height=height, min_width=width)
        except ValueError:
            pass  # four inks, or damage: PIL decides
    check_decodes(data, facts)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of odd metadata; the size was judged before
        with Image.open(io.BytesIO(data), formats=[facts.format]) as picture:
            return np.asarray(picture.convert("RGB"))


def _turned_upright(pixels: np.ndarray, orientation: int) -> np.ndarray:
    if orientation in _MIRRORED:
        pixels = cv2.flip(pixels, 1)
        orientation = _MIRRORED[orientation]
    rotation = _ROTATIONS.get(orientation)
    return np.ascontiguousarray(pixels if rotation is None else cv2.rotate(pixels, rotation))
