"""Tiny images; a random generator with the same seed gives the same bytes."""

import io
from collections.abc import Iterable
from pathlib import Path

import numpy as np
from PIL import Image

ORIENTATION = 0x0112  # EXIF tag of the orientation


def jpeg(rng: np.random.Generator, width: int = 40, height: int = 32, orientation: int | None = None) -> bytes:
    """Return a JPEG of a stored size, with an EXIF orientation if one is given."""
    exif = Image.Exif()
    if orientation is not None:
        exif[ORIENTATION] = orientation
    file = io.BytesIO()
    _picture(rng, width, height).save(file, "JPEG", quality=85, exif=exif)
    return file.getvalue()


def png(rng: np.random.Generator, width: int = 40, height: int = 32) -> bytes:
    """Return a PNG of a size."""
    file = io.BytesIO()
    _picture(rng, width, height).save(file, "PNG")
    return file.getvalue()


def put(path: Path, rng: np.random.Generator, orientation: int | None = None) -> None:
    """Write a JPEG and the folders above it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(jpeg(rng, orientation=orientation))


def put_lines(path: Path, lines: Iterable[str], end: str = "\n") -> None:
    """Write a list and the folders above it; every line has a line end."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes("".join(f"{line}{end}" for line in lines).encode())


def _picture(rng: np.random.Generator, width: int, height: int) -> Image.Image:
    """Return an image of four blended colours; every call gives another image of less than a kilobyte."""
    corners = Image.fromarray(rng.integers(0, 256, (2, 2, 3), dtype=np.uint8))
    return corners.resize((width, height), Image.Resampling.BILINEAR)
