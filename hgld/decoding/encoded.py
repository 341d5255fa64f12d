"""An image as it lies in a shard, with what the index knows about it."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class EncodedImage:
    """The bytes of one image and how they are to be read.

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
