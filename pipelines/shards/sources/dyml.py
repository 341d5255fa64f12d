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

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import polars as pl

from hgld.errors import TableError, quoted

from ..catalog import Catalog, safe_key
from .release import (
    find_folder,
    keep_splits,
    read_lines,
    refuse_options,
    relative_path,
    whole_number,
)

if TYPE_CHECKING:
    from ..config import SourceConfig

LEVELS = ("fine", "middle", "coarse")
TRAIN_LIST = "train/label.csv"
PRODUCT_TEST = "mini-bmk_all_in_one"
_THREE = ("fname", "coarse_id", "middle_id", "fine_id")
_ONE = ("fname", "labels")

_Row = tuple[str | None, ...]  # key, split, file, fine, middle, coarse


def read_vehicle(source: Path, options: "SourceConfig") -> Catalog:
    """Read the catalog of DyML-Vehicle; see :func:`_read_levels`."""
    return _read_levels(source, options, "vehicle")


def read_animal(source: Path, options: "SourceConfig") -> Catalog:
    """Read the catalog of DyML-Animal; see :func:`_read_levels`."""
    return _read_levels(source, options, "animal")


def read_product(source: Path, options: "SourceConfig") -> Catalog:
    """Read the catalog of DyML-Product: train and test, each with its own class numbers.

    Args:
        source: ``dyml_product``, or the folder that holds it.
        options: only ``splits`` is taken.

    Raises:
        ConfigError: an option that DyML does not take.
        InputError: a list is missing.
        TableError: a list cannot be read.
    """
    root = _find(source, options, "product")
    lists = {"train": root / TRAIN_LIST, "test": root / PRODUCT_TEST / "label.csv"}
    rows = [row for split, path in lists.items() for row in _read_three(path, split, "product")]
    return _catalog("product", root, rows, tuple(lists.values()), options)


def _read_levels(source: Path, options: "SourceConfig", kind: str) -> Catalog:
    """Read the catalog of a set with a query and a gallery split for each level.

    Images of these splits are labelled at their own level only; their class numbers are not those of train.

    Args:
        source: ``dyml_KIND``, or the folder that holds it.
        options: only ``splits`` is taken.
        kind: ``vehicle`` or ``animal``.

    Raises:
        ConfigError: an option that DyML does not take.
        InputError: a list is missing.
        TableError: a list cannot be read.
    """
    root = _find(source, options, kind)
    rows = list(_read_three(root / TRAIN_LIST, "train", kind))
    sources = [root / TRAIN_LIST]
    for level in LEVELS:
        for side in ("query", "gallery"):
            path = root / f"bmk_{level}" / f"{side}.csv"
            rows += _read_one(path, f"{side}_{level}", level, kind)
            sources.append(path)
    return _catalog(kind, root, rows, tuple(sources), options)


def _find(source: Path, options: "SourceConfig", kind: str) -> Path:
    refuse_options(options, (), f"dyml-{kind}")
    return find_folder(source, f"dyml_{kind}", TRAIN_LIST, _obtain(kind))


def _obtain(kind: str) -> str:
    return f"Get it as `hgld datasets dyml-{kind}` says, and unpack it."


def _catalog(kind: str, root: Path, rows: list[_Row], sources: tuple[Path, ...], options: "SourceConfig") -> Catalog:
    schema = ["key", "split", "file", *LEVELS]
    items = pl.DataFrame(rows, schema=dict.fromkeys(schema, pl.String), orient="row")
    name = f"dyml-{kind}"
    return Catalog(
        name=name,
        levels=LEVELS,
        items=keep_splits(items, options.splits, name),
        root=root,
        sources=sources,
        protocol="dyml-product" if kind == "product" else "dyml",
    )


def _read_three(path: Path, split: str, kind: str) -> Iterator[_Row]:
    """Read a list with labels at three levels; its images lie in ``imgs`` beside it."""
    for where, name, (coarse, middle, fine) in _read_list(path, _THREE, kind):
        labels = (whole_number(label, where, "a label") for label in (fine, middle, coarse))
        yield _key(split, name), split, f"{path.parent.name}/imgs/{name}", *(f"{split}/{label}" for label in labels)


def _read_one(path: Path, split: str, level: str, kind: str) -> Iterator[_Row]:
    """Read a list with labels at one level; its images lie in a folder of the list's name."""
    for where, name, (label,) in _read_list(path, _ONE, kind):
        known = f"test/{whole_number(label, where, 'the label')}"
        yield (
            _key(split, name),
            split,
            f"{path.parent.name}/{path.stem}/{name}",
            *(known if c == level else None for c in LEVELS),
        )


def _key(split: str, name: str) -> str:
    return safe_key(f"{split}/{name.rpartition('.')[0] or name}")


def _read_list(path: Path, columns: Sequence[str], kind: str) -> Iterator[tuple[str, str, list[str]]]:
    """Yield every image: where it is stated (for messages), its file name and its labels.

    The released files lack the line end behind the header: the first image stands in the header's line.
    """
    header = ", ".join(columns)
    for number, line in read_lines(path, _obtain(kind)):
        where = f"{path}, line {number}"
        if number == 1:
            if not line.startswith(header):
                raise TableError(f"{where} is {quoted(line)}; expected the header {quoted(header)}.")
            line = line.removeprefix(header)
            if not line.strip():
                continue
        name, *labels = (cell.strip() for cell in line.split(","))
        if len(labels) != len(columns) - 1:
            raise TableError(f"{where} is {quoted(line)}: {1 + len(labels)} cells; expected {header}.")
        yield where, relative_path(name, where), labels
