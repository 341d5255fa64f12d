"""Tiny DyML datasets; as in the released lists, no line end follows the header."""

from pathlib import Path

import numpy as np

from tests.fake_releases.pictures import put

TREE = {0: (0, 0), 1: (0, 0), 2: (1, 0), 3: (2, 1)}  # fine class: (middle class, coarse class)
IMAGES = 3  # images per fine class
SIDES = {"query": 2, "gallery": 4}  # images per fine class in each test split


def make_vehicle(folder: Path, seed: int = 0) -> None:
    """Write ``dyml_vehicle`` into a folder."""
    _make_levels(folder / "dyml_vehicle", seed)


def make_animal(folder: Path, seed: int = 0) -> None:
    """Write ``dyml_animal`` into a folder."""
    _make_levels(folder / "dyml_animal", seed)


def make_product(folder: Path, seed: int = 0) -> None:
    """Write ``dyml_product`` into a folder."""
    rng = np.random.default_rng(seed)
    _make_tree(folder / "dyml_product" / "train", rng)
    _make_tree(folder / "dyml_product" / "mini-bmk_all_in_one", rng)


def _make_levels(root: Path, seed: int) -> None:
    rng = np.random.default_rng(seed)
    _make_tree(root / "train", rng)
    for level, classes in (("fine", 3), ("middle", 2), ("coarse", 2)):
        for side, count in SIDES.items():
            labels = [label for label in range(classes) for _ in range(count)]
            _write(root / f"bmk_{level}" / side, f"{side}.csv", "fname, labels", [f"{label}" for label in labels], rng)


def _make_tree(folder: Path, rng: np.random.Generator) -> None:
    labels = [f"{coarse}, {middle}, {fine}" for fine, (middle, coarse) in TREE.items() for _ in range(IMAGES)]
    _write(folder / "imgs", "label.csv", "fname, coarse_id, middle_id, fine_id", labels, rng)


def _write(folder: Path, name: str, header: str, labels: list[str], rng: np.random.Generator) -> None:
    for number in range(len(labels)):
        put(folder / f"{number}.jpg", rng)
    rows = [f"{number}.jpg, {label}" for number, label in enumerate(labels)]
    (folder.parent / name).write_text(header + "\n".join([*rows, ""]))
