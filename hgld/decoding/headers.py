"""What an image's header says, and whether to decode on."""

import simplejpeg

from hgld.decoding.encoded import EncodedImage
from hgld.decoding.orientation import turn_of, upright_size
from hgld.errors import InputError

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
