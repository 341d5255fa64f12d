"""Thumbnails of landmarks, made when somebody looks at them."""

import io
from functools import lru_cache
from pathlib import Path

from pipelines.landmark_images import ImagePlace, LandmarkKey, find_images, read_image

SIDE = 240  # pixels: 120 on the page, sharp on a screen of two pixels a point
_KEPT = 1024  # thumbnails of some 10 kB


class Thumbnails:
    """Small JPEGs of the landmarks whose images lie at ``place``; none where it is None.

    Raises:
        ConfigError: nothing is at ``place``, or nothing in a known layout.
        TableError: its ``images.csv`` cannot be used.
    """

    def __init__(self, place: Path | None) -> None:
        self._images = find_images(place) if place else {}

    def __contains__(self, landmark: object) -> bool:
        return landmark in self._images

    def count(self, landmark: LandmarkKey) -> int:
        """How many images a landmark has, at most ``landmark_images.IMAGES_A_LANDMARK``."""
        return len(self._images.get(landmark, ()))

    def jpeg(self, landmark: LandmarkKey, number: int) -> bytes | None:
        """The bytes of the thumbnail of a landmark's image ``number`` (from 0); None if there is no such image.

        Raises:
            UnreadableImageError: the image is there and cannot be decoded.
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
