"""Images of landmarks: finding them, and decoding them as untrusted data.

Three layouts are understood, by what is found at the given path:

- a folder ``{split}/{landmark_id}/*.jpg`` (also .jpeg, .png, .webp);
- uncompressed tars whose members have those names: one tar, or every ``*.tar`` of the folder;
- ``images.csv`` in the folder, with columns split, landmark_id, path (relative to the folder); it then is
  the only source.
"""

import re
import tarfile
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from PIL import Image

from hgld.data.images import PILLOW_FAULTS, image_fault, open_image, read_header, rgb_pixels, turn_of, turned
from hgld.errors import ConfigError, ImageError, TableError, excerpt, quoted
from hgld.tables import CsvText

LandmarkKey = tuple[str, int]

MANIFEST = "images.csv"
IMAGES_A_LANDMARK = 8  # the mean embedding hardly moves after that; bounds the work for landmarks with thousands
LARGEST_FILE = 64 * 2**20
LONGEST_SIDE = 512  # of decoded images; encoders look at 224 to 448 pixels
_MEMBER = re.compile(r"(?P<split>[A-Za-z0-9_-]+)/(?P<id>\d{1,18})/[^/]+\.(?:jpe?g|png|webp)", re.IGNORECASE)


@dataclass(frozen=True, order=True)
class ImagePlace:
    """The location of one image's bytes: a file, or ``size`` bytes at ``offset`` of a tar."""

    member: str
    file: Path
    offset: int
    size: int


def find_images(place: Path) -> dict[LandmarkKey, tuple[ImagePlace, ...]]:
    """Find the images of every landmark, sorted by member name, at most ``IMAGES_A_LANDMARK`` each.

    Raises:
        ConfigError: nothing is there, or nothing in one of the layouts above, or a listed path leaves the folder.
        TableError: ``images.csv`` lacks a column, or a row cannot be used.
    """
    if not place.exists():
        raise ConfigError(f"--images {place}: there is no such folder or tar.")
    found: dict[LandmarkKey, list[ImagePlace]] = {}
    for landmark, image in _scan(place):
        found.setdefault(landmark, []).append(image)
    if not found:
        raise ConfigError(
            f"--images {place}: no image found. Expected {{split}}/{{landmark_id}}/*.jpg, the same in *.tar, "
            f"or {MANIFEST} with columns split, landmark_id, path."
        )
    return {landmark: tuple(sorted(images)[:IMAGES_A_LANDMARK]) for landmark, images in sorted(found.items())}


def listed_images(images: Sequence[Sequence[str]], folder: Path) -> list[list[ImagePlace]]:
    """Return where the images of every item are, at most 8 of them; missing files are ignored.

    Args:
        images: paths of every item's images, relative to ``folder``.
        folder: of the table that lists them.

    Raises:
        ConfigError: a path leaves the folder.
    """
    found: list[list[ImagePlace]] = []
    for listed in images:
        found.append([])
        for path in listed[:IMAGES_A_LANDMARK]:
            pure = PurePosixPath(path.replace("\\", "/"))
            file = folder / pure
            if pure.is_absolute() or ".." in pure.parts or not file.resolve().is_relative_to(folder.resolve()):
                raise ConfigError(
                    f"image {path[:200]!r} is outside the folder of its table, {folder}; expected a path within it. "
                    "Move the table to where the images are."
                )
            try:
                found[-1].append(_whole_file(path, file))
            except (OSError, ValueError):
                continue
    return found


def read_image(image: ImagePlace) -> Image.Image:
    """Decode one image to RGB, upright, at most ``LONGEST_SIDE`` pixels a side.

    Raises:
        ImageError: too large, truncated, not an image, or of a format that shards do not hold.
    """
    if image.size > LARGEST_FILE:
        raise ImageError("too-large", f"{image.size:,} bytes; at most {LARGEST_FILE:,} are read")
    try:
        with open(image.file, "rb") as file:
            file.seek(image.offset)
            data = file.read(image.size)
    except OSError as error:
        raise ImageError("unreadable", str(error.strerror or error)) from error
    with warnings.catch_warnings(action="ignore"):  # Pillow's, of odd metadata and of large images
        turn = turn_of(read_header(data).orientation)
        with open_image(data) as picture:
            try:
                picture.draft("RGB", (LONGEST_SIDE, LONGEST_SIDE))
                picture.thumbnail((LONGEST_SIDE, LONGEST_SIDE))
                pixels = rgb_pixels(picture)
            except PILLOW_FAULTS as error:
                raise image_fault(error) from error
    return Image.fromarray(turned(pixels, turn))


def _scan(place: Path) -> Iterator[tuple[LandmarkKey, ImagePlace]]:
    if place.is_file():
        yield from _scan_tar(place)
    elif (place / MANIFEST).is_file():
        yield from _scan_manifest(place)
    else:
        for file in sorted(place.glob("*/*/*")):
            member = file.relative_to(place).as_posix()
            if (match := _MEMBER.fullmatch(member)) and file.is_file():
                yield _landmark(match), _whole_file(member, file)
        for tar in sorted(place.glob("*.tar")):
            yield from _scan_tar(tar)


def _landmark(match: re.Match[str]) -> LandmarkKey:
    return match["split"], int(match["id"])


def _whole_file(member: str, file: Path) -> ImagePlace:
    return ImagePlace(member, file, 0, file.stat().st_size)


def _scan_tar(tar: Path) -> Iterator[tuple[LandmarkKey, ImagePlace]]:
    try:
        with tarfile.open(tar, "r:") as archive:  # "r:": members of a compressed tar have no place of their own
            for info in archive:
                name = str(PurePosixPath(info.name))
                if info.isreg() and (match := _MEMBER.fullmatch(name)):
                    yield _landmark(match), ImagePlace(name, tar, info.offset_data, info.size)
    except (tarfile.TarError, ValueError, OverflowError, OSError) as error:  # of sizes that no file has
        raise ConfigError(
            f"--images {tar}: not a readable, uncompressed tar ({excerpt(error)}). Unpack it, or make it anew "
            "without compression."
        ) from error


def _scan_manifest(folder: Path) -> Iterator[tuple[LandmarkKey, ImagePlace]]:
    rows = list(CsvText.read(folder / MANIFEST).select(["split", "landmark_id", "path"]))
    for line, (_, number, _) in rows:
        if not re.fullmatch(r"[0-9]{1,18}", number):
            raise TableError(
                f"{folder / MANIFEST}, line {line}: landmark_id is {quoted(number)}; expected a whole number."
            )
    found = listed_images([[path] for _, (_, _, path) in rows], folder)
    for (_, (split, number, _)), images in zip(rows, found, strict=True):
        for image in images:
            yield (split, int(number)), image
