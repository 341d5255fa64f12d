"""Rows of names by their images: the mean of the images' embeddings."""

from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

import numpy as np
from PIL import Image

from hgld.errors import ConfigError, ImageError

from ...stage import Progress
from ..groups.kmeans import unit
from ..landmark_images import IMAGES_A_LANDMARK, ImagePlace, read_image

if TYPE_CHECKING:  # the review page finds images without open_clip
    from ..encoders.clip import ClipEncoder

_BATCH = 64


def image_places(images: Sequence[Sequence[str]], folder: Path) -> list[list[ImagePlace]]:
    """Return where the images of every name lie, at most 8 of them, those missing left out.

    Args:
        images: paths of every name, relative to ``folder``.
        folder: that of the table that lists them.

    Raises:
        ConfigError: a path leaves the folder.
    """
    found: list[list[ImagePlace]] = []
    for listed in images:
        places = [_place(path, folder) for path in listed[:IMAGES_A_LANDMARK]]
        found.append([place for place in places if place is not None])
    return found


def _place(path: str, folder: Path) -> ImagePlace | None:
    pure = PurePosixPath(path.replace("\\", "/"))
    file = folder / pure
    if pure.is_absolute() or ".." in pure.parts or not file.resolve().is_relative_to(folder.resolve()):
        raise ConfigError(
            f"image {path[:200]!r} lies outside the folder of its table, {folder}; expected a path within it. "
            "Move the table to where the images are."
        )
    try:
        status = file.stat()
    except (OSError, ValueError):
        return None
    return ImagePlace(path, file, 0, status.st_size, status.st_mtime_ns)


def image_rows(
    places: Sequence[Sequence[ImagePlace]], encoder: "ClipEncoder", progress: Progress
) -> tuple[np.ndarray, list[tuple[str, str]]]:
    """Return (N, D) float32 unit rows, zero for names without a readable image, and (path, reason) of those left out.

    Raises:
        MissingResourceError: the encoder's weights cannot be had here.
    """
    sums = np.zeros((len(places), encoder.dim), dtype=np.float64)
    left_out: list[tuple[str, str]] = []
    total, done = sum(map(len, places)), 0
    batch: list[tuple[int, Image.Image]] = []

    def add() -> None:
        if batch:
            np.add.at(sums, [name for name, _ in batch], encoder.encode_images([image for _, image in batch]))
            batch.clear()

    for name, images in enumerate(places):
        for image in images:
            try:
                batch.append((name, read_image(image)))
            except ImageError as error:
                left_out.append((image.member, str(error)))
            done += 1
            if len(batch) == _BATCH:
                add()
                progress("embed images", done, total)
    add()
    progress("embed images", total, total)
    return unit(sums).astype(np.float32), left_out
