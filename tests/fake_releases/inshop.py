"""A tiny In-Shop Clothes Retrieval Benchmark; both departments have a category ``Denim``."""

from pathlib import Path

import numpy as np

from tests.fake_releases.pictures import put, put_lines

CATEGORIES = ("WOMEN/Blouses_Shirts", "WOMEN/Denim", "MEN/Denim", "MEN/Sweatshirts_Hoodies")
ITEMS = 8  # number of items; the first half is train
VIEWS = ("01_1_front", "01_2_side", "02_3_back", "02_4_full")


def make(folder: Path, seed: int = 0) -> None:
    """Write ``Eval`` and ``Img`` into a folder; two of an item's four images are queries."""
    rng = np.random.default_rng(seed)
    rows = []
    for item in range(ITEMS):
        place = f"img/{CATEGORIES[item % len(CATEGORIES)]}/id_{item + 1:08d}"
        for number, view in enumerate(VIEWS):
            put(folder / "Img" / place / f"{view}.jpg", rng)
            split = "train" if item < ITEMS // 2 else ("query", "gallery")[number % 2]
            rows.append(f"{place}/{view}.jpg".ljust(80) + f" id_{item + 1:08d} {split}")
    lines = [str(len(rows)), "image_name item_id evaluation_status", *rows]
    put_lines(folder / "Eval" / "list_eval_partition.txt", lines)
