"""A tiny PKU VehicleID: nested test lists, models of some vehicles, and lists that hgld does not read."""

from pathlib import Path

import numpy as np

from tests.fake_releases.pictures import jpeg

TRAIN = range(1, 7)  # ids of the training vehicles
TESTS = {800: range(7, 9), 1600: range(7, 11), 2400: range(7, 13)}
IMAGES = 3  # images per vehicle


def make(folder: Path, seed: int = 0) -> None:
    """Write ``VehicleID_V1.0`` into a folder."""
    rng = np.random.default_rng(seed)
    root = folder / "VehicleID_V1.0"
    for name in ("train_test_split", "attribute", "image"):
        (root / name).mkdir(parents=True)
    everyone = [*TRAIN, *TESTS[2400]]
    images = {vehicle: [f"{vehicle * 10 + view:07d}" for view in range(IMAGES)] for vehicle in everyone}
    for names in images.values():
        for name in names:
            (root / "image" / f"{name}.jpg").write_bytes(jpeg(rng))
    lists = {"train_list": TRAIN, **{f"test_list_{count}": vehicles for count, vehicles in TESTS.items()}}
    for name, vehicles in (lists | {"test_list_13164": TESTS[2400]}).items():
        rows = [f"{image} {vehicle}" for vehicle in vehicles for image in images[vehicle]]
        _write(root / "train_test_split" / f"{name}.txt", rows)
    _write(root / "attribute" / "img2vid.txt", [f"{image} {v}" for v, names in images.items() for image in names])
    _write(root / "attribute" / "model_attr.txt", [f"{vehicle} {vehicle % 3}" for vehicle in everyone if vehicle % 2])
    _write(root / "attribute" / "color_attr.txt", ["1 0", "3 5"])
    (root / "attribute" / "model_names.txt").write_bytes("奥迪A6L 0\n大众朗逸 1\n现代悦动 2\n".encode("gbk"))


def _write(path: Path, rows: list[str]) -> None:
    path.write_text("\n".join([*rows, ""]))
