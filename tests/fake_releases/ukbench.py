"""A tiny UKBench: three objects of four images."""

from pathlib import Path

import numpy as np

from tests.fake_releases.pictures import put

OBJECTS = 3


def make(folder: Path, seed: int = 0) -> None:
    """Write ``full`` into a folder."""
    rng = np.random.default_rng(seed)
    for number in range(4 * OBJECTS):
        put(folder / "full" / f"ukbench{number:05d}.jpg", rng)
