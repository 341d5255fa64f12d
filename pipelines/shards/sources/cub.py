"""CUB-200-2011: 200 kinds of birds, with their families and orders.

Wah, Branson, Welinder, Perona, Belongie: "The Caltech-UCSD Birds-200-2011 Dataset", CNS-TR-2011-001, 2011. Layout::

    CUB_200_2011/
        images.txt                  image_id path
        image_class_labels.txt      image_id class_id
        classes.txt                 class_id name
        train_test_split.txt        image_id is_training_image
        images/001.Black_footed_Albatross/Black_Footed_Albatross_0001_796111.jpg ...
"""

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
from .taxonomies import classes_of

if TYPE_CHECKING:
    from ..config import SourceConfig

LEVELS = ("species", "family", "order")
OBTAIN = "Get CUB_200_2011.tgz as `hgld datasets cub` says, and unpack it."
TAXONOMY = "cub_taxonomy.csv"
OFFICIAL = {0: "classification-test", 1: "classification-train"}  # lists: the release's own split, by its flag


def read(source: Path, options: "SourceConfig") -> Catalog:
    """Read the catalog of CUB: the first half of the classes is train, the second half test.

    Args:
        source: ``CUB_200_2011``, or the folder that holds it.
        options: only ``splits`` is taken.

    Raises:
        ConfigError: an option that CUB does not take.
        InputError: a list is missing.
        TableError: a list cannot be read, or the lists contradict each other.
    """
    refuse_options(options, (), "cub")
    root = find_folder(source, "CUB_200_2011", "images.txt", OBTAIN)
    names = ("images.txt", "image_class_labels.txt", "classes.txt", "train_test_split.txt")
    images, labels, classes, official = (_read_numbered(root / name) for name in names)
    species = {number: folder.partition(".")[2].replace("_", " ") for number, folder in classes.items()}
    tree = classes_of(TAXONOMY, species, str(root / names[2]))
    rows, listed = [], []
    for image, path in images.items():
        where = f"{root / names[0]}, image {image}"
        number = whole_number(labels.pop(image, ""), f"{root / names[1]}, image {image}", "class_id")
        flag = whole_number(official.pop(image, ""), f"{root / names[3]}, image {image}", "is_training_image")
        file = relative_path(path, where)
        if classes.get(number) != file.rpartition("/")[0] or flag not in OFFICIAL:
            raise TableError(
                f"{where}: {quoted(path)} is of class {number}, {quoted(classes.get(number))}; expected it in "
                "that class's folder. Do the lists belong together?"
            )
        key = safe_key(file.rpartition(".")[0])
        rows.append((key, "train" if number <= len(classes) // 2 else "test", file, *tree[number]))
        listed.append((OFFICIAL[flag], key))
    _refuse_rest(root / names[1], labels)
    _refuse_rest(root / names[3], official)
    schema = ["key", "split", "file", *LEVELS]
    items = pl.DataFrame(rows, schema=dict.fromkeys(schema, pl.String), orient="row")
    items = keep_splits(items, options.splits, "cub")
    lists = pl.DataFrame(listed, schema={"list": pl.String, "key": pl.String}, orient="row")
    return Catalog(
        name="cub",
        levels=LEVELS,
        items=items,
        root=root / "images",
        lists=lists.filter(pl.col("key").is_in(items["key"].implode())),
        sources=tuple(root / name for name in names),
        protocol="cub",
    )


def _read_numbered(path: Path) -> dict[int, str]:
    """Read a list with a number and a word a line."""
    found: dict[int, str] = {}
    for word, value in read_words(path, ("number", "value"), OBTAIN):
        where = f"{path}, {quoted(word)}"
        number = whole_number(word, where, "the number")
        if number in found:
            raise TableError(f"{where} stands there twice; expected every number once.")
        found[number] = value
    return found


def _refuse_rest(path: Path, rest: dict[int, str]) -> None:
    if rest:
        raise TableError(f"{path}: image {min(rest)} is not in images.txt. Do the lists belong together?")
