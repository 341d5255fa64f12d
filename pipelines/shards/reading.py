"""Read foreign files within bounds, hash them, and check and resize images."""

import errno
import hashlib
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

import cv2
import numpy as np
import simplejpeg

from hgld.data.format import MAX_MANIFEST_BYTES, Manifest
from hgld.data.images import (
    PILLOW_FAULTS,
    ImageHeader,
    decoded_rgb,
    image_fault,
    open_image,
    read_header,
    turn_of,
    turned,
)
from hgld.errors import ImageError, InputError
from hgld.files import open_regular

_FILE_ERRORS = {errno.EACCES, errno.EPERM, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG, errno.ENXIO}


class HashedReader:
    """A file that counts and hashes the bytes that are read.

    Args:
        file: file opened at its beginning.
        algorithm: name of the hash, as hashlib spells it.

    Attributes:
        bytes: number of bytes read.
    """

    def __init__(self, file: BinaryIO, algorithm: str) -> None:
        self.file, self.bytes = file, 0
        self._digest = hashlib.new(algorithm, usedforsecurity=False)

    def read(self, size: int, /) -> bytes:
        """Read up to ``size`` bytes."""
        data = self.file.read(size)
        self.bytes += len(data)
        self._digest.update(data)
        return data

    def finish(self) -> str:
        """Read the rest of the tar, because bytes after a tar's end mark belong to its checksum; return the digest."""
        while self.read(1 << 20):
            pass
        return self._digest.hexdigest()


@contextmanager
def opened_regular(path: Path) -> Iterator[BinaryIO]:
    """Open a regular file of a dataset directory; links, devices and pipes raise an error.

    Raises:
        InputError: the path is not a regular file, or cannot be read.
    """
    try:
        file = open_regular(path, follow_links=False)
    except OSError as error:
        what = "a symbolic link, which is not followed" if path.is_symlink() else error.strerror
        raise InputError(f"{path}: cannot be read ({what}). Put the file itself there.") from error
    with file:
        yield file


def read_manifest(path: Path) -> Manifest:
    """Read the manifest of a dataset directory.

    Raises:
        InputError: the file cannot be read, or is not a manifest.
    """
    with opened_regular(path) as file:
        return Manifest.from_json(file.read(MAX_MANIFEST_BYTES + 1), str(path))


def read_inside(root: Path, file: str, most: int) -> bytes:
    """Return the bytes of a regular file of a folder.

    Args:
        root: the folder.
        file: POSIX path relative to it.
        most: largest allowed size in bytes.

    Raises:
        ImageError: the file cannot be used; the reason is ``missing``, ``unreadable``, ``too-large``, or
            ``unsafe-path``: the path leads out of the folder (by ``..`` or a link), or is not a regular file.
        InputError: the disk or the network fails; the file itself may be intact.
    """
    home = os.path.realpath(root)
    try:
        # os.path, because Path would take ten times as long for millions of files
        real = os.path.realpath(os.path.join(root, file))  # noqa: PTH118
        if not real.startswith(home + os.sep):
            raise ImageError("unsafe-path", "leads out of the source folder")
        descriptor = os.open(real, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW)
        try:
            facts = os.fstat(descriptor)
            if not stat.S_ISREG(facts.st_mode):
                raise ImageError("unsafe-path", "is not a regular file")
            if facts.st_size > most:
                raise ImageError("too-large", f"has {facts.st_size} bytes, more than the {most} allowed")
            parts = []
            while part := os.read(descriptor, facts.st_size + 1):
                parts.append(part)
            return b"".join(parts)
        finally:
            os.close(descriptor)
    except FileNotFoundError:
        raise ImageError("missing", "no such file") from None
    except OSError as error:
        if error.errno in _FILE_ERRORS:
            raise ImageError("unreadable", str(error.strerror)) from error
        raise InputError(f"{root}/{file}: cannot be read ({error.strerror}). Run the same command again.") from error


# -- images -----------------------------------------------------------------------------------------------------------

Box = tuple[int, int, int, int]

_LONGEST_SIDE = 65_500  # libjpeg's limit for a side of a JPEG, in pixels


def check_decodes(data: bytes, header: ImageHeader) -> None:
    """Read all of an image's data.

    A JPEG is decoded at an eighth of its size: all of its entropy-coded data is read and checked, and the transforms
    of its blocks, in which nothing can fail, are skipped. Pillow, which is slower, decides about the JPEGs that libjpeg
    does not decode without a warning.

    Raises:
        ImageError: the image cannot be decoded; the reason is ``truncated`` or ``undecodable``.
    """
    if header.format == "JPEG" and decodes_strictly(data):
        return
    with open_image(data) as picture:
        try:
            if picture.format == "WEBP":
                decoded_rgb(data, picture)
            else:
                picture.load()
        except PILLOW_FAULTS as error:
            raise image_fault(error) from error


def decodes_strictly(data: bytes) -> bool:
    """Tell whether libjpeg decodes a JPEG without a warning."""
    try:
        simplejpeg.decode_jpeg(data, colorspace="GRAY", fastdct=True, min_height=1, min_width=1, min_factor=8)
    except ValueError:
        return False
    return True


def _decoded(data: bytes, header: ImageHeader, width: int, height: int) -> np.ndarray:
    """Decode to (H, W, C) uint8 as stored; decode a JPEG at a fraction of its size if that is large enough."""
    if header.format == "JPEG":
        try:
            return simplejpeg.decode_jpeg(data, colorspace="RGB", min_height=height, min_width=width)
        except ValueError:
            pass  # a CMYK or damaged image: let Pillow decode it
    with open_image(data) as picture:
        try:
            return decoded_rgb(data, picture)
        except PILLOW_FAULTS as error:
            raise image_fault(error) from error


def checked_image(
    data: bytes, box: Box | None = None, *, resize: int = 0, quality: int = 90
) -> tuple[bytes, ImageHeader, Box | None]:
    """Check an image by reading all of its data; return the bytes to keep, their header and their box.

    Args:
        data: bytes of the image file.
        box: rectangle to crop to, in pixels of the upright image; the part outside the image is cut off.
        resize: pixels of the shorter side; an image that is larger or not upright becomes an upright JPEG. Images are
            never enlarged. 0: the bytes stay unchanged.
        quality: JPEG quality, 1 to 100.

    Raises:
        ImageError: the image cannot be used; the error has the reason.
    """
    header = read_header(data)
    width, height = header.upright
    if box:
        left, top, right, bottom = max(box[0], 0), max(box[1], 0), min(box[2], width), min(box[3], height)
        if left >= right or top >= bottom:
            raise ImageError("empty-box", f"box {box} leaves nothing of an image of {width} x {height} pixels")
        box = left, top, right, bottom
    shorter = min(header.width, header.height)
    if not resize or (shorter <= resize and header.orientation == 1):
        check_decodes(data, header)
        return data, header, box
    kept, small = _resized(data, header, min(1.0, resize / shorter), quality)
    if box:  # scale the box, and round it outwards
        left, top, right, bottom = box
        across, down = small.width, small.height
        box = left * across // width, top * down // height, -(-right * across // width), -(-bottom * down // height)
    return kept, small, box


def _resized(data: bytes, header: ImageHeader, scale: float, quality: int) -> tuple[bytes, ImageHeader]:
    width, height = (max(1, round(n * scale)) for n in (header.width, header.height))
    if max(width, height) > _LONGEST_SIDE:
        detail = f"{width} x {height} pixels after resizing; a JPEG has at most {_LONGEST_SIDE} per side"
        raise ImageError("too-many-pixels", detail)
    pixels = _decoded(data, header, width, height)
    if pixels.shape[:2] != (height, width):
        pixels = cv2.resize(pixels, (width, height), interpolation=cv2.INTER_AREA)
    pixels = np.ascontiguousarray(turned(np.asarray(pixels, dtype=np.uint8), turn_of(header.orientation)))
    encoded = simplejpeg.encode_jpeg(pixels, quality=quality, colorspace="RGB", colorsubsampling="420")
    return encoded, ImageHeader("JPEG", pixels.shape[1], pixels.shape[0], 1)
