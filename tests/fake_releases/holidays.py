"""A tiny INRIA Holidays with groups of two and three images in one folder."""

from pathlib import Path

import numpy as np

from tests.fake_releases.pictures import put

GROUPS = {1000: 2, 1001: 3, 1250: 2, 1499: 3}  # first four digits of the image numbers: number of images


def make(folder: Path, seed: int = 0) -> None:
    """Write ``jpg`` into a folder."""
    rng = np.random.default_rng(seed)
    for group, images in GROUPS.items():
        for image in range(images):
            put(folder / "jpg" / f"{100 * group + image}.jpg", rng)
