"""Thumbnails of items, made on demand for the review page."""

import io
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path

from hgld.errors import ConfigError

from ..landmark_images import ImagePlace, LandmarkKey, find_images, listed_images, read_image

SIDE = 240  # pixels: 120 on the page, sharp on a screen of two pixels a point
_KEPT = 1024  # thumbnails of some 10 kB


class Thumbnails:
    """Thumbnails of the items with images at ``place``, made on demand; none if it is None.

    Args:
        place: a folder or tar of landmarks' images, or the folder that ``listed`` paths are relative to.
        listed: paths of items' images, of a build that has such; empty: the items are landmarks.

    Raises:
        ConfigError: nothing is at ``place``, or nothing in a known layout, or a listed path leaves it.
        TableError: its ``images.csv`` cannot be used.
    """

    def __init__(self, place: Path | None, listed: Mapping[LandmarkKey, Sequence[str]] | None = None) -> None:
        self._images: Mapping[LandmarkKey, Sequence[ImagePlace]] = {}
        if place and listed:
            if not place.is_dir():
                raise ConfigError(f"--images {place}: expected the folder of the table that lists the images.")
            self._images = dict(zip(listed, listed_images(list(listed.values()), place), strict=True))
        elif place:
            self._images = find_images(place)

    def __contains__(self, landmark: object) -> bool:
        return bool(self._images.get(landmark)) if isinstance(landmark, tuple) else False

    def count(self, landmark: LandmarkKey) -> int:
        """Return the number of images of a landmark, at most ``landmark_images.IMAGES_A_LANDMARK``."""
        return len(self._images.get(landmark, ()))

    def jpeg(self, landmark: LandmarkKey, number: int) -> bytes | None:
        """Return the thumbnail of a landmark's image ``number`` (from 0) as JPEG bytes; None if there is no such image.

        Raises:
            ImageError: the image is there and cannot be decoded.
        """
        images = self._images.get(landmark, ())
        return _thumbnail(images[number]) if 0 <= number < len(images) else None


@lru_cache(maxsize=_KEPT)
def _thumbnail(image: ImagePlace) -> bytes:
    picture = read_image(image)
    picture.thumbnail((SIDE, SIDE))
    data = io.BytesIO()
    picture.save(data, "JPEG", quality=80)
    return data.getvalue()
