"""A tiny Cars196 in either of its layouts, with all class names and images of a few classes."""

from pathlib import Path

import numpy as np
from scipy.io import savemat

from hgld.pipelines.shards.sources.fine_grained import read_taxonomy
from tests.fake_releases.pictures import put

CLASSES = (1, 4, 98, 99, 116, 196)  # classes with images, in both halves of the literature's split
IMAGES = 4  # images per class; in the release's own split, even images are train and odd ones test


def make(folder: Path, seed: int = 0) -> None:
    """Write ``cars_annos.mat`` and ``car_ims`` into a folder."""
    rng = np.random.default_rng(seed)
    rows = []
    for index in range(len(CLASSES) * IMAGES):
        path = f"car_ims/{index + 1:06d}.jpg"
        put(folder / path, rng)
        rows.append((path, 1, 2, 30, 20, CLASSES[index // IMAGES], index % 2))
    fields = ("relative_im_path", "bbox_x1", "bbox_y1", "bbox_x2", "bbox_y2", "class", "test")
    savemat(folder / "cars_annos.mat", {"annotations": _struct(fields, rows), "class_names": _names()})


def make_devkit(folder: Path, seed: int = 0) -> None:
    """Write ``devkit``, ``cars_train``, ``cars_test`` and the labels of the test images into a folder."""
    rng = np.random.default_rng(seed)
    (folder / "devkit").mkdir(parents=True)
    savemat(folder / "devkit" / "cars_meta.mat", {"class_names": _names()})
    fields = ("bbox_x1", "bbox_y1", "bbox_x2", "bbox_y2", "class", "fname")
    for part, file in (("train", "devkit/cars_train_annos.mat"), ("test", "cars_test_annos_withlabels.mat")):
        rows = []
        for index in range(len(CLASSES) * IMAGES // 2):
            name = f"{index + 1:05d}.jpg"
            put(folder / f"cars_{part}" / name, rng)
            rows.append((1, 2, 30, 20, CLASSES[index // (IMAGES // 2)], name))
        savemat(folder / file, {"annotations": _struct(fields, rows)})


def _struct(fields: tuple[str, ...], rows: list[tuple]) -> np.ndarray:
    """Return a MATLAB struct array of one row; numbers have MATLAB's smallest type."""
    array = np.empty((1, len(rows)), dtype=[(field, object) for field in fields])
    for index, row in enumerate(rows):
        array[0, index] = tuple(np.array([[v]], np.uint8) if isinstance(v, int) else v for v in row)
    return array


def _names() -> np.ndarray:
    """Return a MATLAB cell array of the class names."""
    names = [classes[0] for classes in read_taxonomy("cars196_taxonomy.csv").values()]
    return np.array([names], dtype=object)
