"""Images of landmarks: search in a folder, and decoding of untrusted files.

A folder has one of two layouts: ``{split}/{landmark_id}/*.jpg`` (also .jpeg, .png, .webp), or a table ``images.csv``
with columns split, landmark_id and path (relative to the folder). If the table exists, only its images are used.
"""

import re
import warnings
from collections.abc import Sequence
from pathlib import Path, PurePosixPath

from PIL import Image

from hgld.data.images import PILLOW_FAULTS, image_fault, open_image, read_header, rgb_pixels, turn_of, turned
from hgld.errors import ConfigError, ImageError, TableError, quoted
from hgld.files import is_file
from hgld.tables import CsvText

LandmarkKey = tuple[str, int]

MANIFEST = "images.csv"
IMAGES_A_LANDMARK = 8
LARGEST_FILE = 64 * 2**20
LONGEST_SIDE = 512  # pixels
_IMAGE = re.compile(r"(?P<split>[A-Za-z0-9_-]+)/(?P<id>\d{1,18})/[^/]+\.(?:jpe?g|png|webp)", re.IGNORECASE)


def find_images(place: Path) -> dict[LandmarkKey, list[Path]]:
    """Find the images of every landmark, sorted by path, at most ``IMAGES_A_LANDMARK`` each.

    Raises:
        ConfigError: the folder has no image in one of the two layouts, or a listed path leaves the folder.
        TableError: ``images.csv`` lacks a column, or a row is invalid.
    """
    found: dict[LandmarkKey, list[Path]] = {}
    if (place / MANIFEST).is_file():
        for line, (split, number, path) in CsvText.read(place / MANIFEST).select(["split", "landmark_id", "path"]):
            if not re.fullmatch(r"[0-9]{1,18}", number):
                raise TableError(
                    f"{place / MANIFEST}, line {line}: landmark_id is {quoted(number)}; expected a whole number."
                )
            found.setdefault((split, int(number)), []).extend(*listed_images([[path]], place))
    else:
        for file in place.glob("*/*/*"):
            if (match := _IMAGE.fullmatch(file.relative_to(place).as_posix())) and file.is_file():
                found.setdefault((match["split"], int(match["id"])), []).append(file)
    if not any(found.values()):
        raise ConfigError(
            f"--images {place}: no image found. Expected a folder with {{split}}/{{landmark_id}}/*.jpg, or with "
            f"{MANIFEST}, whose columns are split, landmark_id, path."
        )
    return {landmark: sorted(images)[:IMAGES_A_LANDMARK] for landmark, images in sorted(found.items())}


def listed_images(images: Sequence[Sequence[str]], folder: Path) -> list[list[Path]]:
    """Return the files of every item's images, at most 8 each; missing files are ignored.

    Args:
        images: paths of every item's images, relative to ``folder``.
        folder: folder of the table with these paths.

    Raises:
        ConfigError: a path leaves the folder.
    """
    found: list[list[Path]] = []
    for listed in images:
        found.append([])
        for path in listed[:IMAGES_A_LANDMARK]:
            pure = PurePosixPath(path.replace("\\", "/"))
            file = folder / pure
            is_inside = "\0" not in path and ".." not in pure.parts and not pure.is_absolute()
            if not (is_inside and file.resolve().is_relative_to(folder.resolve())):
                raise ConfigError(
                    f"image {path[:200]!r} is not a path within the folder of its table, {folder}. "
                    "Move the table to the folder of the images."
                )
            if is_file(folder, str(pure)):
                found[-1].append(file)
    return found


def read_image(file: Path) -> Image.Image:
    """Decode one image to RGB, upright, at most ``LONGEST_SIDE`` pixels per side.

    Raises:
        ImageError: the file is too large, truncated, not an image, or in a format that shards do not support.
    """
    try:
        if (size := file.stat().st_size) > LARGEST_FILE:
            raise ImageError("too-large", f"{size:,} bytes; expected at most {LARGEST_FILE:,}")
        data = file.read_bytes()
    except OSError as error:
        raise ImageError("unreadable", str(error.strerror or error)) from error
    with warnings.catch_warnings(action="ignore"):  # hide Pillow's warnings about odd metadata and large images
        turn = turn_of(read_header(data).orientation)
        with open_image(data) as picture:
            try:
                picture.draft("RGB", (LONGEST_SIDE, LONGEST_SIDE))
                picture.thumbnail((LONGEST_SIDE, LONGEST_SIDE))
                pixels = rgb_pixels(picture)
            except PILLOW_FAULTS as error:
                raise image_fault(error) from error
    return Image.fromarray(turned(pixels, turn))
