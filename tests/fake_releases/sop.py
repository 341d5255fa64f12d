"""A tiny Stanford Online Products, with its twelve categories."""

from pathlib import Path

import numpy as np

from tests.fake_releases.pictures import put, put_lines

CATEGORIES = (
    "bicycle", "cabinet", "chair", "coffee_maker", "fan", "kettle",
    "lamp", "mug", "sofa", "stapler", "table", "toaster",
)  # fmt: skip
PRODUCTS = {"train": 13, "test": 12}  # number of products; one category has two products in train
IMAGES = (2, 3, 4)  # images per product, repeated in this order


def make(folder: Path, seed: int = 0) -> None:
    """Write ``Stanford_Online_Products`` into a folder: lists with spaces and Windows line ends, images beside them."""
    rng = np.random.default_rng(seed)
    root = folder / "Stanford_Online_Products"
    image_id = class_id = 0
    info = []
    for split, products in PRODUCTS.items():
        rows = []
        for product in range(products):
            class_id += 1
            category = product % len(CATEGORIES)
            name = f"{CATEGORIES[category]}_final"
            for view in range(IMAGES[product % len(IMAGES)]):
                image_id += 1
                path = f"{name}/{100_000_000_000 + class_id}_{view}.JPG"
                put(root / path, rng, orientation=6 if image_id == 1 else None)
                rows.append(f"{image_id} {class_id} {category + 1} {path}")
        _write_list(root / f"Ebay_{split}.txt", rows)
        info += rows
    _write_list(root / "Ebay_info.txt", info)


def _write_list(path: Path, rows: list[str]) -> None:
    put_lines(path, ["image_id class_id super_class_id path", *rows], "\r\n")
