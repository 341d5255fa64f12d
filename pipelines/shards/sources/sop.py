"""Stanford Online Products: products photographed by their sellers, in twelve categories.

Oh Song, Xiang, Jegelka, Savarese: "Deep Metric Learning via Lifted Structured Feature Embedding", CVPR 2016. Layout::

    Stanford_Online_Products/
        Ebay_train.txt      image_id class_id super_class_id path
        Ebay_test.txt
        bicycle_final/111085122871_0.JPG ...
"""

from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

import polars as pl

from hgld.errors import TableError, quoted

from ..catalog import Catalog
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

LEVELS = ("product", "category")
OBTAIN = "Get Stanford_Online_Products.zip as `hgld datasets sop` says, and unpack it."
_COLUMNS = ("image_id", "class_id", "super_class_id", "path")
_SUFFIX = "_final"


def read(source: Path, options: "SourceConfig") -> Catalog:
    """Read the catalog of SOP: classes of train and test are disjoint.

    A product's class is named by its number (``00001``), a category by its folder without ``_final``.

    Args:
        source: ``Stanford_Online_Products``, or the folder that holds it.
        options: only ``splits`` is taken.

    Raises:
        ConfigError: an option that SOP does not take.
        InputError: a list is missing.
        TableError: a list cannot be read, or a category's number and folder contradict each other.
    """
    refuse_options(options, (), "sop")
    root = find_folder(source, "Stanford_Online_Products", "Ebay_train.txt", OBTAIN)
    lists = {split: root / f"Ebay_{split}.txt" for split in ("train", "test")}
    folders: dict[int, str] = {}
    rows = [row for split, path in lists.items() for row in _read_list(path, split, folders)]
    schema = ["key", "split", "file", *LEVELS]
    items = pl.DataFrame(rows, schema=dict.fromkeys(schema, pl.String), orient="row")
    return Catalog(
        name="sop",
        levels=LEVELS,
        items=keep_splits(items, options.splits, "sop"),
        root=root,
        sources=tuple(lists.values()),
        protocol="sop",
    )


def _read_list(path: Path, split: str, folders: dict[int, str]) -> list[tuple[str, ...]]:
    """Read one row an image: key, split, file, product, category; add the categories' folders to ``folders``."""
    rows = []
    for image, product, category, stated in read_words(path, _COLUMNS, OBTAIN, header=True):
        where = f"{path}, image {image[:20]}"
        file = PurePosixPath(relative_path(stated, where))
        folder = file.parts[0]
        number = whole_number(category, where, "super_class_id")
        if len(file.parts) != 2 or folders.setdefault(number, folder) != folder:
            raise TableError(
                f"{where}: {quoted(stated)} is listed in the category {number}, whose images lie in "
                f"{folders.get(number, folder)}/; expected one folder a category. Is the list whole?"
            )
        product_name = f"{whole_number(product, where, 'class_id'):05d}"
        rows.append((str(file.with_suffix("")), split, str(file), product_name, folder.removesuffix(_SUFFIX)))
    return rows
