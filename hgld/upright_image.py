"""One image as people see it: upright, cropped to its box, RGB."""

import io

import numpy as np
from PIL import Image, UnidentifiedImageError

from hgld.decoding.encoded import EncodedImage
from hgld.errors import InputError

FORMATS = ("JPEG", "PNG", "WEBP", "GIF")

_TURNS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
_FAULTS = (
    UnidentifiedImageError,
    Image.DecompressionBombError,
    Image.DecompressionBombWarning,  # where warnings are errors
    OSError,
    SyntaxError,
    ValueError,
    EOFError,
)


def upright_image(encoded: EncodedImage, stored_size: tuple[int, int]) -> Image.Image:
    """Decode one image with Pillow.

    Args:
        encoded: the file, its orientation and box.
        stored_size: width and height that it is known to have as stored.

    Returns:
        RGB; transparent parts show what lies below them.

    Raises:
        InputError: not a whole image of a known kind, of another size, or smaller than its box.
    """
    try:
        with Image.open(io.BytesIO(encoded.data), formats=FORMATS) as image:
            found = image.size
            picture = _rgb(image) if found == stored_size else None
    except _FAULTS as error:
        raise InputError(
            f"{encoded.where}: not a whole image ({type(error).__name__}: {error}). hgld verify --decode lists "
            "all such items."
        ) from error
    if picture is None:
        raise InputError(
            f"{encoded.where}: an image of {found[0]} x {found[1]} pixels; the index says {stored_size[0]} x "
            f"{stored_size[1]}. The index belongs to other shards: hgld index writes it again."
        )
    if encoded.orientation in _TURNS:
        picture = picture.transpose(_TURNS[encoded.orientation])
    return picture if encoded.box is None else _cropped(picture, encoded.box, encoded.where)


def _rgb(image: Image.Image) -> Image.Image:
    if image.mode.startswith("I"):  # 16 bits a channel, which Pillow would clip rather than scale
        return Image.fromarray((np.asarray(image) >> 8).astype(np.uint8)).convert("RGB")
    if "transparency" in image.info:
        return image.convert("RGBA").convert("RGB")
    return image.convert("RGB")


def _cropped(picture: Image.Image, box: tuple[int, int, int, int], where: str) -> Image.Image:
    left, top, right, bottom = box
    if not (0 <= left < right <= picture.width and 0 <= top < bottom <= picture.height):
        raise InputError(
            f"{where}: box {box} in an upright image of {picture.width} x {picture.height} pixels; expected left, top, "
            "right, bottom inside it."
        )
    return picture.crop(box)
