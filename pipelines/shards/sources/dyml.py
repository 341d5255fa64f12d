"""Dynamic Metric Learning (DyML): vehicles, animals and products at three scales.

Sun, Zhu, Zhang, Zheng, Qiu, Zhang, Wei: "Dynamic Metric Learning: Towards a Scalable Metric Space to Accommodate
Multiple Semantic Scales", CVPR 2021. Layout of the vehicles (``dyml_vehicle``) and animals (``dyml_animal``)::

    train/label.csv             fname, coarse_id, middle_id, fine_id
    train/imgs/0.jpg ...
    bmk_fine/query.csv          fname, labels; gallery.csv too; bmk_middle and bmk_coarse likewise
    bmk_fine/query/0.jpg ...    and gallery/

and of the products (``dyml_product``)::

    train/label.csv, train/imgs/                            as above
    mini-bmk_all_in_one/label.csv, mini-bmk_all_in_one/imgs/    the same
"""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from hgld.errors import TableError, quoted

from ..catalog import Catalog, safe_key
from .release import catalog_of, find_folder, read_lines, relative_path, whole_number

if TYPE_CHECKING:
    from ..config import SourceConfig

LEVELS = ("fine", "middle", "coarse")
_TRAIN = "train/label.csv"


def read_vehicle(source: Path, options: "SourceConfig") -> Catalog:
    """Read the catalog of DyML-Vehicle; see :func:`_read_levels`."""
    return _read_levels(source, "vehicle")


def read_animal(source: Path, options: "SourceConfig") -> Catalog:
    """Read the catalog of DyML-Animal; see :func:`_read_levels`."""
    return _read_levels(source, "animal")


def read_product(source: Path, options: "SourceConfig") -> Catalog:
    """Read the catalog of DyML-Product: train and test, each with its own class numbers."""
    root = find_folder(source, "dyml_product", _TRAIN)
    lists = {"train": root / _TRAIN, "test": root / "mini-bmk_all_in_one" / "label.csv"}
    rows = [row for split, path in lists.items() for row in _read_list(path, split, LEVELS)]
    return catalog_of("dyml-product", LEVELS, rows, root, lists.values())


def _read_levels(source: Path, kind: str) -> Catalog:
    """Read the catalog of a set with a query and a gallery split for each level.

    Images of these splits are labelled at their own level only; their class numbers are not those of train.
    """
    root = find_folder(source, f"dyml_{kind}", _TRAIN)
    lists: dict[str, tuple[Path, tuple[str, ...]]] = {"train": (root / _TRAIN, LEVELS)}
    for level in LEVELS:
        for side in ("query", "gallery"):
            lists[f"{side}_{level}"] = root / f"bmk_{level}" / f"{side}.csv", (level,)
    rows = [row for split, (path, levels) in lists.items() for row in _read_list(path, split, levels)]
    sources = (path for path, _ in lists.values())
    return catalog_of(f"dyml-{kind}", LEVELS, rows, root, sources, protocol="dyml")


def _read_list(path: Path, split: str, levels: tuple[str, ...]) -> Iterator[tuple[str | None, ...]]:
    """Yield the row of every image in a list with labels at some levels.

    The released files lack the line end after the header: the first image is in the header's line.
    """
    columns = ["fname", "labels"] if len(levels) == 1 else ["fname", *(f"{level}_id" for level in reversed(levels))]
    header = ", ".join(columns)
    classes, folder = ("train" if split == "train" else "test"), ("imgs" if levels == LEVELS else path.stem)
    is_first = True
    for where, line in read_lines(path):
        if is_first and not line.startswith(header):
            raise TableError(f"{where} is {quoted(line)}; expected the header {quoted(header)}.")
        line, is_first = line.removeprefix(header) if is_first else line, False
        if not line.strip():
            continue
        stated, *labels = (cell.strip() for cell in line.split(","))
        if len(labels) != len(levels):
            raise TableError(f"{where} is {quoted(line)}: {1 + len(labels)} cells; expected {header}.")
        name = relative_path(stated, where)
        found = {
            level: f"{classes}/{whole_number(label, where, 'a label')}"
            for level, label in zip(levels, reversed(labels), strict=True)
        }
        key = safe_key(f"{split}/{name.rpartition('.')[0] or name}")
        yield key, split, f"{path.parent.name}/{folder}/{name}", *map(found.get, LEVELS)
