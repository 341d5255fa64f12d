"""A tiny CUB-200-2011 with all 200 classes in its lists, and images of a few classes."""

from pathlib import Path

import numpy as np

from hgld.pipelines.shards.sources.fine_grained import read_taxonomy
from tests.fake_releases.pictures import put, put_lines

CLASSES = (1, 2, 9, 100, 101, 118, 200)  # classes with images, in both halves of the literature's split
IMAGES = 3  # images per class


def make(folder: Path, seed: int = 0) -> None:
    """Write ``CUB_200_2011`` into a folder."""
    rng = np.random.default_rng(seed)
    root = folder / "CUB_200_2011"
    folders = {n: f"{n:03d}.{names[0].replace(' ', '_')}" for n, names in read_taxonomy("cub_taxonomy.csv").items()}
    images, labels, official = [], [], []
    for number in CLASSES:
        for view in range(IMAGES):
            image_id = len(images) + 1
            path = f"{folders[number]}/{folders[number][4:].title()}_{view + 1:04d}_{700_000 + image_id}.jpg"
            put(root / "images" / path, rng, orientation=8 if image_id == 2 else None)
            images.append(f"{image_id} {path}")
            labels.append(f"{image_id} {number}")
            official.append(f"{image_id} {view % 2}")
    (root / "README").write_text("The Caltech-UCSD Birds-200-2011 Dataset\n")
    put_lines(root / "images.txt", images)
    put_lines(root / "image_class_labels.txt", labels)
    put_lines(root / "classes.txt", [f"{number} {name}" for number, name in folders.items()])
    put_lines(root / "train_test_split.txt", official)
    put_lines(root / "bounding_boxes.txt", [f"{n} 2.0 3.0 20.0 15.0" for n in range(1, len(images) + 1)])
