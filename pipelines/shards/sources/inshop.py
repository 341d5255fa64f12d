"""In-Shop Clothes Retrieval: shop photographs of clothes, with a gallery of its own.

Liu, Luo, Qiu, Wang, Tang: "DeepFashion: Powering Robust Clothes Recognition and Retrieval with Rich Annotations", CVPR
2016. Layout, either as released or with ``Eval`` and ``Img`` left out::

    Eval/list_eval_partition.txt        image_name item_id evaluation_status
    Img/img/WOMEN/Blouses_Shirts/id_00000001/02_1_front.jpg ...
"""

from pathlib import Path
from typing import TYPE_CHECKING

import polars as pl

from hgld.errors import TableError, quoted

from ..catalog import Catalog
from .release import keep_splits, need, refuse_options, relative_path

if TYPE_CHECKING:
    from ..config import SourceConfig

LEVELS = ("item", "category", "department")
OBTAIN = "Get the In-shop Clothes Retrieval Benchmark of DeepFashion as `hgld datasets inshop` says."
_LIST = "list_eval_partition.txt"


def read(source: Path, options: "SourceConfig") -> Catalog:
    """Read the catalog of In-Shop: train, query and gallery; items of train are in neither of the others.

    A category is named with its department (``WOMEN/Denim``), because both departments have some of the same name.

    Args:
        source: the folder that holds ``Eval`` and ``Img``, or ``list_eval_partition.txt`` and ``img``.
        options: only ``splits`` is taken.

    Raises:
        ConfigError: an option that In-Shop does not take.
        InputError: the list is missing.
        TableError: the list cannot be read, or an image is not in a category's folder.
    """
    from hgld.evaluation.protocols.ground_truths import read_in_shop

    refuse_options(options, (), "inshop")
    path = need(next((p for p in (source / "Eval" / _LIST, source / _LIST) if p.is_file()), source / _LIST), OBTAIN)
    table = read_in_shop(path)
    places = [_place(image, path) for image in table["image"].to_list()]
    items = pl.DataFrame(
        {
            "key": [file.removeprefix("img/").rpartition(".")[0] for file, _, _ in places],
            "split": table["split"],
            "file": [file for file, _, _ in places],
            "item": table["item"],
            "category": [f"{department}/{category}" for _, department, category in places],
            "department": [department for _, department, _ in places],
        }
    )
    items, notes = _forget_torn(items)
    return Catalog(
        name="inshop",
        levels=LEVELS,
        items=keep_splits(items, options.splits, "inshop"),
        root=source / "Img" if (source / "Img" / "img").is_dir() else source,
        notes=notes,
        sources=(path,),
        protocol="inshop",
    )


def _place(image: str, path: Path) -> tuple[str, str, str]:
    """Return the file, department and category of ``img/WOMEN/Denim/id_00000001/02_1_front.jpg``."""
    file = relative_path(image, f"{path}, image {quoted(image[:80])}")
    parts = file.split("/")
    if len(parts) != 5 or parts[0] != "img" or "." not in parts[-1]:
        raise TableError(f"{path}: image {quoted(image[:80])}; expected img/DEPARTMENT/CATEGORY/ITEM/IMAGE.jpg.")
    return file, parts[1], parts[2]


def _forget_torn(items: pl.DataFrame) -> tuple[pl.DataFrame, tuple[str, ...]]:
    """Clear the category (or department) of items that lie in folders of several: the folders contradict each other."""
    notes = []
    for level in LEVELS[1:]:
        torn = items.group_by("item").agg(pl.col(level).n_unique()).filter(pl.col(level) > 1)["item"].sort()
        if len(torn):
            notes.append(
                f"{len(torn)} items lie under more than one {level}, so it is unknown; the first is {torn[0]}."
            )
            known = pl.when(~pl.col("item").is_in(torn.to_list())).then(pl.col(level))
            items = items.with_columns(known.alias(level))
    return items, tuple(notes)
