"""Image files of anyone, read as items of a dataset are."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from hgld.decoding.encoded import EncodedImage
from hgld.decoding.orientation import turn_of, upright_size
from hgld.errors import InputError
from hgld.image_header import read_header

_MOST_BYTES = 1 << 28


def read_images(paths: Sequence[Path]) -> tuple[list[EncodedImage], NDArray[np.int64]]:
    """Read image files.

    Args:
        paths: N files: JPEG, PNG, WebP or GIF.

    Returns:
        the encoded images, and their (N, 2) width and height when upright.

    Raises:
        InputError: a file cannot be read, is too large or is no such image.
    """
    images, sizes = [], np.empty((len(paths), 2), dtype=np.int64)
    for row, path in enumerate(paths):
        data = _read(path)
        try:
            header = read_header(data)
        except InputError as error:
            raise InputError(f"{path}: {error}") from error
        sizes[row] = upright_size(header.width, header.height, turn_of(header.orientation))
        images.append(EncodedImage(data, header.orientation, None, str(path)))
    return images, sizes


def _read(path: Path) -> bytes:
    try:
        size = path.stat().st_size
        if size > _MOST_BYTES:
            raise InputError(f"{path}: {size} bytes; expected an image of at most {_MOST_BYTES}.")
        return path.read_bytes()
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror or error}).") from error
