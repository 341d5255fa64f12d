"""Tiny releases that are built from the user's own list: Copydays, and faces with the templates of IJB-C."""

import csv
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from tests.fake_releases.pictures import put

ORIGINALS, DISTRACTORS = 4, 6
IDENTITIES, FACES = 4, 6  # the protocol drops identities of fewer than five instances


def make_copydays(folder: Path, seed: int = 0) -> None:
    """Write ``copydays.csv`` and its images: two edits of each original, and distractors."""
    originals = [("gallery", f"{n}") for n in range(ORIGINALS)]
    edits = [("query", f"{n}") for n in range(ORIGINALS) for _ in range(2)]
    rows = [*originals, *edits, *[("distractors", "")] * DISTRACTORS]
    _write(folder, "copydays.csv", ("split", "original"), rows, seed)


def make_faces(folder: Path, seed: int = 0) -> None:
    """Write ``faces.csv`` and its images; the two last faces of a test identity are frames of a template."""
    rows = [("train", f"train {n}", "") for n in range(IDENTITIES) for _ in range(FACES)]
    rows += [("test", f"{n}", f"{n}" if i >= FACES - 2 else "") for n in range(IDENTITIES) for i in range(FACES)]
    _write(folder, "faces.csv", ("split", "identity", "template"), rows, seed)


def _write(folder: Path, name: str, columns: Iterable[str], rows: Iterable[tuple[str, ...]], seed: int) -> None:
    rng = np.random.default_rng(seed)
    with (folder / name).open("w", newline="", encoding="utf-8") as file:
        table = csv.writer(file)
        table.writerow(["path", *columns])
        for number, row in enumerate(rows):
            put(folder / f"{number}.jpg", rng)
            table.writerow([f"{number}.jpg", *row])
