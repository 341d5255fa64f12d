"""A tiny Landmarks-clean with the images that could still be downloaded."""

from pathlib import Path

import numpy as np

from tests.fake_releases.pictures import put, put_lines

LANDMARKS = (0, 7, 585)
TRAIN, VAL = 4, 2  # URLs per landmark in each list
# two files of one name, both of the first landmark of train
AMBIGUOUS = "http://a.example/x/photo.jpg", "http://b.example/y/photo.jpg"


def make(folder: Path, seed: int = 0) -> None:
    """Write ``annotations_landmarks`` and ``images`` into a folder.

    The images of the second landmark are in a subfolder. One image of the third landmark could not be downloaded.
    Two images of the first landmark have the same file name.
    """
    rng = np.random.default_rng(seed)
    lists: dict[str, list[str]] = {"train": [], "val": []}
    for landmark in LANDMARKS:
        for number in range(TRAIN + VAL):
            name = f"{landmark}_{number}.jpg"
            lists["train" if number < TRAIN else "val"].append(f"http://c.example/p/{name} {landmark} 1 2 30 31")
            if (landmark, number) != (585, 0):
                place = folder / "images" / "7" if landmark == 7 else folder / "images"
                put(place / name, rng)
    lists["train"] += [f"{address} 0 0 0 9 9" for address in AMBIGUOUS]
    put(folder / "images" / "photo.jpg", rng)
    for split, rows in lists.items():
        put_lines(folder / "annotations_landmarks" / f"annotation_clean_{split}.txt", rows)
