"""iNaturalist 2018 for retrieval: species, with their super-categories (base) or the whole taxonomy (full).

Van Horn et al.: "The iNaturalist Species Classification and Detection Dataset", CVPR 2018. The class-disjoint split is
that of Brown, Xie, Kalogeiton and Zisserman: "Smooth-AP", ECCV 2020. Layout::

    train_val2018/Plantae/7291/9f8ecb39e5f767e39e9b28e34488f179.jpg ...
    categories.json                     names as released after the competition; or
    train2018.json                      whose categories have numbers for names
    Inat_dataset_splits/Inaturalist_train_set1.txt      one path a line
    Inat_dataset_splits/Inaturalist_test_set1.txt
"""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import polars as pl

from hgld.errors import InputError, TableError, quoted

from ..catalog import Catalog
from .release import (
    keep_splits,
    need,
    read_json,
    read_lines,
    refuse_options,
    relative_path,
)

if TYPE_CHECKING:
    from ..config import SourceConfig

BASE_LEVELS = ("species", "supercategory")
FULL_LEVELS = ("species", "genus", "family", "order", "class", "phylum", "kingdom")
OBTAIN = "See `hgld datasets inat-full` for where images, categories and split files come from."
_PATH = re.compile(r"train_val2018/([A-Za-z]{1,40})/([0-9]{1,9})/([0-9A-Za-z_-]{1,80})\.(?:jpg|jpeg|png)\Z")
_CATEGORIES = ("categories.json", "train2018.json", "val2018.json")


def read_base(source: Path, options: "SourceConfig") -> Catalog:
    """Read the catalog of iNat-base: species and super-category; see :func:`read_full`."""
    return _read(source, options, "inat-base", BASE_LEVELS)


def read_full(source: Path, options: "SourceConfig") -> Catalog:
    """Read the catalog of iNat-full: the seven levels of the taxonomy.

    Some names mean two things (*Prunella* is a bird and a plant): such a name gets its parent's in brackets, so that
    the classes form a tree.

    Args:
        source: the folder that holds ``train_val2018``.
        options: ``labels``, the folder of the split files if it is not ``Inat_dataset_splits`` of the source;
            ``splits``.

    Raises:
        ConfigError: an option that iNaturalist does not take.
        InputError: a file of the release is missing.
        TableError: a file cannot be read, or an image's category is unknown.
    """
    return _read(source, options, "inat-full", FULL_LEVELS)


def _read(source: Path, options: "SourceConfig", name: str, levels: tuple[str, ...]) -> Catalog:
    refuse_options(options, ("labels",), name)
    folder = options.labels or _splits_folder(source)
    lists = {split: folder / f"Inaturalist_{split}_set1.txt" for split in ("train", "test")}
    images = _read_splits(lists)
    categories = next((source / file for file in _CATEGORIES if (source / file).is_file()), source / _CATEGORIES[0])
    taxonomy = _read_categories(categories, levels)
    items = images.join(taxonomy, on="category", how="left", maintain_order="left")
    lost = items.filter(pl.col("species").is_null())
    if not lost.is_empty():
        raise TableError(
            f"{lists[lost['split'][0]]}: {quoted(lost['file'][0])} is of the category {lost['category'][0]}, which "
            f"{categories} does not have. Take the files of one release (2018)."
        )
    _check_supercategories(items, categories)
    items = items.select("key", "split", "file", *levels)
    return Catalog(
        name=name,
        levels=levels,
        items=keep_splits(items, options.splits, name),
        root=source,
        sources=(*lists.values(), categories),
        protocol=name,
    )


def _splits_folder(source: Path) -> Path:
    inside = source / "Inat_dataset_splits"
    return inside if inside.is_dir() or not (source / "Inaturalist_train_set1.txt").is_file() else source


def _read_splits(lists: Mapping[str, Path]) -> pl.DataFrame:
    """Read one row an image: key, split, file, folder (super-category), category (its number)."""
    rows = []
    for split, path in lists.items():
        for number, line in read_lines(path, OBTAIN):
            where = f"{path}, line {number}"
            file = relative_path(line.strip(), where)
            match = _PATH.match(file)
            if match is None:
                raise TableError(f"{where} is {quoted(line)}; expected train_val2018/SUPERCATEGORY/CATEGORY/IMAGE.jpg.")
            rows.append((f"{match[1]}/{match[2]}/{match[3]}", split, file, match[1], int(match[2])))
    schema = {"key": pl.String, "split": pl.String, "file": pl.String, "folder": pl.String, "category": pl.Int64}
    return pl.DataFrame(rows, schema=schema, orient="row")


def _read_categories(path: Path, levels: Sequence[str]) -> pl.DataFrame:
    """Read one row a category: its number, its super-category and its classes' names."""
    data = read_json(need(path, OBTAIN), OBTAIN)
    found = data.get("categories") if isinstance(data, dict) else data
    wanted = ["id", "name", "supercategory", *levels[1:]]
    if not isinstance(found, list) or not all(isinstance(entry, dict) for entry in found):
        raise TableError(f"{path}: expected a list of categories.")
    rows = [_category(path, entry, wanted) for entry in found]
    schema = {"category": pl.Int64, "species": pl.String, "supercategory": pl.String}
    schema |= dict.fromkeys(levels[1:], pl.String)
    table = pl.DataFrame(
        [{"category": row["id"], "species": row["name"], **row} for row in rows], schema=schema, orient="row"
    )
    if table["category"].is_duplicated().any():
        raise InputError(f"{path}: two categories have the same id; expected every id once.")
    return _as_tree(table, levels)


def _category(path: Path, entry: Mapping[str, Any], wanted: Sequence[str]) -> dict[str, Any]:
    missing = [field for field in wanted if entry.get(field) in (None, "")]
    if missing or not isinstance(entry["id"], int) or abs(entry["id"]) >= 2**63:
        raise TableError(
            f"{path}: category {quoted(str(entry.get('id'))[:20])} lacks "
            f"{', '.join(missing) or 'a number as id'}; expected "
            f"{', '.join(wanted)} in every category, as in the release of 2018."
        )
    return {field: entry["id"] if field == "id" else str(entry[field]) for field in wanted}


def _as_tree(table: pl.DataFrame, levels: Sequence[str]) -> pl.DataFrame:
    """Make names unique from the top down: a name under two parents gets its parent's name in brackets."""
    for level, parent in reversed(list(pairwise(levels))):
        identity = [level, "category"] if level == "species" else [level, parent]
        kinds = table.select(identity).unique()
        uses = Counter(kinds[level].to_list())
        twice = [name for name, count in uses.items() if count > 1]
        mark = pl.col("category").cast(pl.String) if level == "species" else pl.col(parent)
        table = table.with_columns(
            pl.when(pl.col(level).is_in(twice)).then(pl.format("{} ({})", level, mark)).otherwise(level).alias(level)
        )
    return table


def _check_supercategories(items: pl.DataFrame, categories: Path) -> None:
    """Refuse images whose folder names another super-category than their category's."""
    wrong = items.filter(pl.col("folder") != pl.col("supercategory"))
    if not wrong.is_empty():
        row = wrong.row(0, named=True)
        raise TableError(
            f"{categories}: category {row['category']} has the super-category {quoted(row['supercategory'])}, "
            f"its image {quoted(row['file'])} lies under {quoted(row['folder'])}. Take the files of one release (2018)."
        )
