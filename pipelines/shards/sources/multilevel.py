"""Datasets with labels at many levels: iNaturalist 2018 and Dynamic Metric Learning (DyML).

iNaturalist 2018 for retrieval: species, with their super-categories (base) or the whole taxonomy (full).

Van Horn et al.: "The iNaturalist Species Classification and Detection Dataset", CVPR 2018. The class-disjoint split
comes from Brown, Xie, Kalogeiton and Zisserman: "Smooth-AP", ECCV 2020. Layout::

    train_val2018/Plantae/7291/9f8ecb39e5f767e39e9b28e34488f179.jpg ...
    categories.json                     names as released after the competition; or
    train2018.json                      whose categories have numbers for names
    Inat_dataset_splits/Inaturalist_train_set1.txt      one path per line
    Inat_dataset_splits/Inaturalist_test_set1.txt

Dynamic Metric Learning (DyML): vehicles, animals and products at three scales.

Sun, Zhu, Zhang, Zheng, Qiu, Zhang, Wei: "Dynamic Metric Learning: Towards a Scalable Metric Space to Accommodate
Multiple Semantic Scales", CVPR 2021. Layout of the vehicles (``dyml_vehicle``) and animals (``dyml_animal``)::

    train/label.csv             fname, coarse_id, middle_id, fine_id
    train/imgs/0.jpg ...
    bmk_fine/query.csv          fname, labels; gallery.csv too; bmk_middle and bmk_coarse likewise
    bmk_fine/query/0.jpg ...    and gallery/

Layout of the products (``dyml_product``)::

    train/label.csv, train/imgs/                            as above
    mini-bmk_all_in_one/label.csv, mini-bmk_all_in_one/imgs/    the same
"""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

from hgld.errors import TableError, quoted
from hgld.files import read_json

from ..catalog import Catalog, safe_key
from .release import MAX_LIST_BYTES, catalog_of, find_folder, need, read_lines, relative_path, whole_number

if TYPE_CHECKING:
    from ..config import SourceConfig

LEVELS = {
    "inat-base": ("species", "supercategory"),
    "inat-full": ("species", "genus", "family", "order", "class", "phylum", "kingdom"),
}
_PATH = re.compile(r"train_val2018/([A-Za-z]{1,40})/([0-9]{1,9})/([0-9A-Za-z_-]{1,80})\.(?:jpg|jpeg|png)\Z")
_CATEGORIES = ("categories.json", "train2018.json", "val2018.json")


def read_inaturalist(name: str, source: Path, options: "SourceConfig") -> Catalog:
    """Read the catalog of ``inat-base`` (species, super-category) or ``inat-full`` (the whole taxonomy).

    Some names mean two things (*Prunella* is a bird and a plant). The classes must form a tree, so the name of the
    parent is added to such a name in brackets. ``options.labels`` is the folder of the split files; default:
    ``Inat_dataset_splits`` of the source.
    """
    levels, inside = LEVELS[name], source / "Inat_dataset_splits"
    beside = not inside.is_dir() and (source / "Inaturalist_train_set1.txt").is_file()
    folder = options.labels or (source if beside else inside)
    lists = {split: folder / f"Inaturalist_{split}_set1.txt" for split in ("train", "test")}
    path = next((source / file for file in _CATEGORIES if (source / file).is_file()), source / _CATEGORIES[0])
    images = [(split, where, line) for split, file in lists.items() for where, line in read_lines(file)]
    categories = _read_categories(path, levels)
    rows = []
    for split, where, line in images:
        file = relative_path(line.strip(), where)
        match = _PATH.match(file)
        if match is None:
            raise TableError(f"{where} is {quoted(line)}; expected train_val2018/SUPERCATEGORY/CATEGORY/IMAGE.jpg.")
        above, category = match[1], int(match[2])
        if category not in categories:
            raise TableError(
                f"{where}: {quoted(file)} is of the category {category}, which {path} does not have. Use the files of "
                "one release (2018)."
            )
        expected, classes = categories[category]
        if above != expected:
            raise TableError(
                f"{path}: category {category} has the super-category {quoted(expected)}, but its image {quoted(file)} "
                f"is in {quoted(above)}. Use the files of one release (2018)."
            )
        rows.append((f"{above}/{match[2]}/{match[3]}", split, file, *classes))
    return catalog_of(name, levels, rows, source, [*lists.values(), path])


def _read_categories(path: Path, levels: Sequence[str]) -> dict[int, tuple[str, tuple[str, ...]]]:
    """Return the super-category and the classes, finest first, of every category by its number."""
    # a high limit, because the list has 3 million images
    data = read_json(need(path), max_bytes=MAX_LIST_BYTES, max_values=1 << 27)
    found = data.get("categories") if isinstance(data, dict) else data
    wanted = ["id", "name", "supercategory", *levels[1:]]
    if not isinstance(found, list) or not all(isinstance(entry, dict) for entry in found):
        raise TableError(f"{path}: expected a list of categories.")
    rows: dict[int, dict[str, str]] = {}
    for entry in found:
        missing = [field for field in wanted if entry.get(field) in (None, "")]
        if missing or not isinstance(entry["id"], int):
            raise TableError(
                f"{path}: category {quoted(str(entry.get('id'))[:20])} lacks {', '.join(missing) or 'a number as id'}; "
                f"expected {', '.join(wanted)} in every category, as in the release of 2018."
            )
        if entry["id"] in rows:
            raise TableError(f"{path}: two categories have the same id {entry['id']}; expected every id once.")
        rows[entry["id"]] = {field: str(entry[field]) for field in wanted} | {"species": str(entry["name"])}
    # From the top down, because parents' names must be unique first.
    for level, parent in reversed(list(pairwise(levels))):
        mark = "id" if level == "species" else parent
        uses = Counter(name for name, _ in {(row[level], row[mark]) for row in rows.values()})
        for row in rows.values():
            if uses[row[level]] > 1:
                row[level] = f"{row[level]} ({row[mark]})"
    return {number: (row["supercategory"], tuple(row[level] for level in levels)) for number, row in rows.items()}


# -- DyML --------------------------------------------------------------------------------------------------------------

DYML_LEVELS = ("fine", "middle", "coarse")
_DYML_TRAIN = "train/label.csv"


def read_dyml_product(source: Path, options: "SourceConfig") -> Catalog:
    """Read the catalog of DyML-Product: train and test, each with its own class numbers."""
    root = find_folder(source, "dyml_product", _DYML_TRAIN)
    lists = {"train": root / _DYML_TRAIN, "test": root / "mini-bmk_all_in_one" / "label.csv"}
    rows = [row for split, path in lists.items() for row in _read_dyml_list(path, split, DYML_LEVELS)]
    return catalog_of("dyml-product", DYML_LEVELS, rows, root, lists.values())


def read_dyml(kind: str, source: Path, options: "SourceConfig") -> Catalog:
    """Read the catalog of ``vehicle`` or ``animal``: train, and a query and a gallery split for each level.

    Images of these splits have labels only at the split's own level; their class numbers differ from train's numbers.
    """
    root = find_folder(source, f"dyml_{kind}", _DYML_TRAIN)
    lists: dict[str, tuple[Path, tuple[str, ...]]] = {"train": (root / _DYML_TRAIN, DYML_LEVELS)}
    for level in DYML_LEVELS:
        for side in ("query", "gallery"):
            lists[f"{side}_{level}"] = root / f"bmk_{level}" / f"{side}.csv", (level,)
    rows = [row for split, (path, levels) in lists.items() for row in _read_dyml_list(path, split, levels)]
    sources = (path for path, _ in lists.values())
    return catalog_of(f"dyml-{kind}", DYML_LEVELS, rows, root, sources, protocol="dyml")


def _read_dyml_list(path: Path, split: str, levels: tuple[str, ...]) -> Iterator[tuple[str | None, ...]]:
    """Yield the row of every image in a list with labels at some levels.

    The released files lack the line end after the header: the first image is in the header's line.
    """
    columns = ["fname", "labels"] if len(levels) == 1 else ["fname", *(f"{level}_id" for level in reversed(levels))]
    header = ", ".join(columns)
    classes, folder = ("train" if split == "train" else "test"), ("imgs" if levels == DYML_LEVELS else path.stem)
    is_first = True
    for where, line in read_lines(path):
        if is_first and not line.startswith(header):
            raise TableError(f"{where} is {quoted(line)}; expected the header {quoted(header)}.")
        line, is_first = line.removeprefix(header) if is_first else line, False
        if not line.strip():
            continue
        stated, *labels = (cell.strip() for cell in line.split(","))
        if len(labels) != len(levels):
            raise TableError(f"{where} is {quoted(line)} with {1 + len(labels)} cells; expected {header}.")
        name = relative_path(stated, where)
        found = {
            level: f"{classes}/{whole_number(label, where, 'a label')}"
            for level, label in zip(levels, reversed(labels), strict=True)
        }
        key = safe_key(f"{split}/{name.rpartition('.')[0] or name}")
        yield key, split, f"{path.parent.name}/{folder}/{name}", *map(found.get, DYML_LEVELS)
