"""Tiny revisited Oxford and Paris, with a few distractors beside them."""

import pickle
from pathlib import Path

import numpy as np

from tests.fake_releases.pictures import put, put_lines

QUERIES, GALLERY, DISTRACTORS = 3, 12, 5


def make_oxford(folder: Path, seed: int = 0) -> None:
    """Write ``roxford5k`` and ``revisitop1m`` into a folder."""
    _make(folder, "roxford5k", "all_souls", seed)


def make_paris(folder: Path, seed: int = 0) -> None:
    """Write ``rparis6k`` and ``revisitop1m`` into a folder."""
    _make(folder, "rparis6k", "paris_louvre", seed)


def _make(folder: Path, name: str, prefix: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    images = [f"{prefix}_{number:06d}" for number in range(QUERIES + GALLERY)]
    for image in images:
        put(folder / name / "jpg" / f"{image}.jpg", rng)
    ground_truth = {
        "imlist": images[QUERIES:],
        "qimlist": images[:QUERIES],
        "gnd": [
            {
                "bbx": [1.5 + query, 2.5, 30.49, 31.0],
                "easy": np.array([query]),
                "hard": np.array([query + 1, query + 2]),
                "junk": np.array([7]) if query else np.array([]),
            }
            for query in range(QUERIES)
        ],
    }
    (folder / name / f"gnd_{name}.pkl").write_bytes(pickle.dumps(ground_truth, protocol=2))
    paths = [f"{number:03x}/{rng.bytes(8).hex()}.jpg" for number in range(DISTRACTORS)]
    for path in paths:
        put(folder / "revisitop1m" / "jpg" / path, rng)
    put_lines(folder / "revisitop1m" / "revisitop1m.txt", paths)
