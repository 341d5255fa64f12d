"""A tiny PKU VehicleID: nested test lists, models of some vehicles, and lists that hgld does not read."""

from pathlib import Path

import numpy as np

from tests.fake_releases.pictures import put, put_lines

TRAIN = range(1, 7)  # ids of the training vehicles
TESTS = {800: range(7, 9), 1600: range(7, 11), 2400: range(7, 13)}
IMAGES = 3  # images per vehicle


def make(folder: Path, seed: int = 0) -> None:
    """Write ``VehicleID_V1.0`` into a folder."""
    rng = np.random.default_rng(seed)
    root = folder / "VehicleID_V1.0"
    everyone = [*TRAIN, *TESTS[2400]]
    images = {vehicle: [f"{vehicle * 10 + view:07d}" for view in range(IMAGES)] for vehicle in everyone}
    for names in images.values():
        for name in names:
            put(root / "image" / f"{name}.jpg", rng)
    lists = {"train_list": TRAIN, **{f"test_list_{count}": vehicles for count, vehicles in TESTS.items()}}
    for name, vehicles in (lists | {"test_list_13164": TESTS[2400]}).items():
        rows = [f"{image} {vehicle}" for vehicle in vehicles for image in images[vehicle]]
        put_lines(root / "train_test_split" / f"{name}.txt", rows)
    put_lines(root / "attribute" / "img2vid.txt", [f"{image} {v}" for v, names in images.items() for image in names])
    put_lines(root / "attribute" / "model_attr.txt", [f"{v} {v % 3}" for v in everyone if v % 2])
    put_lines(root / "attribute" / "color_attr.txt", ["1 0", "3 5"])
    (root / "attribute" / "model_names.txt").write_bytes("奥迪A6L 0\n大众朗逸 1\n现代悦动 2\n".encode("gbk"))
