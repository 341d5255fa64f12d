"""Pillow as the decoder of everything that is no plain JPEG, and as the judge of what other decoders refuse."""

import io
import struct
import zlib

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from hgld.dataset_names import IMAGE_FORMATS
from hgld.decoding.encoded import EncodedImage
from hgld.decoding.headers import check_size
from hgld.errors import InputError

# What Pillow's readers raise on bytes that are no image; DecompressionBombWarning where warnings are errors.
_REFUSALS = (
    OSError,
    ValueError,
    SyntaxError,
    EOFError,
    LookupError,
    TypeError,
    AttributeError,
    ArithmeticError,
    MemoryError,
    RuntimeError,
    struct.error,
    zlib.error,
    Image.DecompressionBombError,
    Image.DecompressionBombWarning,
)


def decode_with_pillow(image: EncodedImage, boxed: tuple[int, int] | None = None) -> NDArray[np.uint8]:
    """The whole picture as stored, in RGB; transparency is left out, 16 bits become 8, the first frame counts.

    Args:
        image: JPEG, PNG, WebP or GIF.
        boxed: width and height that the upright image, cut to its box, must have; None: any.

    Returns:
        (H, W, 3).

    Raises:
        InputError: it is none of these, damaged, cut short, or of another size.
    """
    try:
        with Image.open(io.BytesIO(image.data), formats=tuple(IMAGE_FORMATS)) as picture:
            check_size(image, picture.size, boxed)
            return _rgb(picture)
    except InputError:
        raise
    except Image.UnidentifiedImageError as error:  # its text holds an address in memory, other in every run
        kinds = ", ".join(IMAGE_FORMATS)
        raise InputError(f"{image.where}: cannot be decoded as an image (the header of none of {kinds}).") from error
    except _REFUSALS as error:
        reason = str(error).replace("\n", " ")[:200] or type(error).__name__
        raise InputError(f"{image.where}: cannot be decoded as an image ({reason}).") from error


def _rgb(picture: Image.Image) -> NDArray[np.uint8]:
    if picture.mode.startswith("I"):  # 16 bits of grey, which Pillow would clip instead of scale
        grey = (np.asarray(picture) >> 8).clip(0, 255).astype(np.uint8)
        return np.repeat(grey[:, :, None], 3, axis=2)
    if picture.mode == "P" and "transparency" in picture.info:
        picture = picture.convert("RGBA")  # the palette's colours, as they are under the transparency
    return np.array(picture.convert("RGB"))
