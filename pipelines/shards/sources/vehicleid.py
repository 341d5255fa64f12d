"""PKU VehicleID: vehicles by their number plates, with the model of some.

Liu, Tian, Wang, Pang, Huang: "Deep Relative Distance Learning: Tell the Difference Between Similar Vehicles", CVPR
2016. Layout::

    VehicleID_V1.0/
        train_test_split/train_list.txt             image vehicle
        train_test_split/test_list_800.txt          the same; 1600 and 2400 too
        attribute/model_attr.txt                    vehicle model
        image/0000001.jpg ...
"""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import polars as pl

from hgld.errors import TableError, quoted

from ..catalog import Catalog, safe_key
from .release import (
    find_folder,
    keep_splits,
    read_words,
    refuse_options,
    relative_path,
    whole_number,
)

if TYPE_CHECKING:
    from ..config import SourceConfig

LEVELS = ("vehicle", "model")
OBTAIN = "Get VehicleID_V1.0 as `hgld datasets vehicleid` says, and unpack it."
TEST_LISTS = {"small": 800, "medium": 1600, "large": 2400}  # vehicles in each, as the files are named


def read(source: Path, options: "SourceConfig") -> Catalog:
    """Read the catalog of VehicleID: train, and the images of the three test lists as one split.

    Vehicles and models are named by their numbers; the model of a vehicle that was not labelled is unknown.

    Args:
        source: ``VehicleID_V1.0``, or the folder that holds it.
        options: only ``splits`` is taken.

    Raises:
        ConfigError: an option that VehicleID does not take.
        InputError: a list is missing.
        TableError: a list cannot be read, or the lists contradict each other.
    """
    refuse_options(options, (), "vehicleid")
    root = find_folder(source, "VehicleID_V1.0", "train_test_split/train_list.txt", OBTAIN)
    folder = root / "train_test_split"
    paths = {name: folder / f"test_list_{count}.txt" for name, count in TEST_LISTS.items()}
    train, attributes = folder / "train_list.txt", root / "attribute" / "model_attr.txt"
    models = _read_pairs(attributes, "vehicle", "model", {})
    vehicles: dict[str, int] = {}
    images = {"train": _read_pairs(train, "image", "vehicle", vehicles)}
    tests = {name: _read_pairs(path, "image", "vehicle", vehicles) for name, path in paths.items()}
    images["test"] = {image: vehicle for found in tests.values() for image, vehicle in found.items()}
    rows = [
        (safe_key(image), split, f"image/{image}.jpg", f"{vehicle:05d}", _model(models, vehicle))
        for split, found in images.items()
        for image, vehicle in found.items()
    ]
    schema = ["key", "split", "file", *LEVELS]
    items = pl.DataFrame(rows, schema=dict.fromkeys(schema, pl.String), orient="row")
    items = keep_splits(items, options.splits, "vehicleid")
    listed = [(name, safe_key(image)) for name, found in tests.items() for image in found]
    lists = pl.DataFrame(listed, schema={"list": pl.String, "key": pl.String}, orient="row")
    return Catalog(
        name="vehicleid",
        levels=LEVELS,
        items=items,
        root=root,
        lists=lists.filter(pl.col("key").is_in(items["key"].implode())),
        sources=(train, *paths.values(), attributes),
        protocol="vehicleid",
    )


def _model(models: Mapping[str, int], vehicle: int) -> str | None:
    model = models.get(str(vehicle))
    return None if model is None else f"{model:03d}"


def _read_pairs(path: Path, what: str, of: str, known: dict[str, int]) -> dict[str, int]:
    """Read a list with a word and a number a line, and add it to ``known``, which it must not contradict."""
    found: dict[str, int] = {}
    for word, number in read_words(path, (what, of), OBTAIN):
        where = f"{path}, {what} {quoted(word)}"
        value = whole_number(number, where, of)
        name = relative_path(word, where) if what == "image" else str(whole_number(word, where, what))
        if known.setdefault(name, value) != value:
            raise TableError(f"{where} is of {of} {value}, but {known[name]} before; expected one.")
        found[name] = value
    return found
