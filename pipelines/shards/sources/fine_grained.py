"""CUB-200-2011 and Cars196: the first half of the classes is for training, the second half for testing.

Tables of this project name the classes of the coarser levels.
"""

import csv
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from hgld.errors import InputError, TableError, quoted

from ..catalog import Catalog, safe_key
from .release import (
    catalog_of,
    find_folder,
    mat_rows,
    mat_value,
    read_mats,
    read_words,
    relative_path,
    whole_number,
)

if TYPE_CHECKING:
    from ..config import SourceConfig

OFFICIAL = ("classification-train", "classification-test")  # lists of the release's own split


def read_cub(source: Path, options: "SourceConfig") -> Catalog:
    """Read the catalog of CUB-200-2011: birds with their families and orders.

    Wah, Branson, Welinder, Perona, Belongie: "The Caltech-UCSD Birds-200-2011 Dataset", CNS-TR-2011-001. Layout::

        CUB_200_2011/
            images.txt                  image_id path
            image_class_labels.txt      image_id class_id
            classes.txt                 class_id name
            train_test_split.txt        image_id is_training_image
            images/001.Black_footed_Albatross/Black_Footed_Albatross_0001_796111.jpg ...
    """
    root = find_folder(source, "CUB_200_2011", "images.txt")
    paths = [root / f"{name}.txt" for name in ("images", "image_class_labels", "classes", "train_test_split")]
    images, labels, classes, official = map(_read_numbered, paths)
    species = {number: folder.partition(".")[2].replace("_", " ") for number, folder in classes.items()}
    tree = classes_of("cub_taxonomy.csv", species, str(paths[2]))
    for path, table in ((paths[1], labels), (paths[3], official)):
        if rest := table.keys() - images.keys():
            raise TableError(f"{path}: image {min(rest)} is not in images.txt. Use the lists of one release.")
    rows, listed = [], []
    for image, path in images.items():
        where = f"{paths[0]}, image {image}"
        number = whole_number(labels.get(image, ""), f"{paths[1]}, image {image}", "class_id")
        flag = whole_number(official.get(image, ""), f"{paths[3]}, image {image}", "is_training_image")
        file = relative_path(path, where)
        if classes.get(number) != file.rpartition("/")[0] or flag > 1:
            raise TableError(
                f"{where}: {quoted(path)} is of class {number}, {quoted(classes.get(number))}; expected it in that "
                "class's folder. Use the lists of one release."
            )
        key = safe_key(file.rpartition(".")[0])
        rows.append((key, _split(number, tree), file, *tree[number]))
        listed.append((OFFICIAL[1 - flag], key))
    return catalog_of("cub", ("species", "family", "order"), rows, root / "images", paths, listed=listed)


def _read_numbered(path: Path) -> dict[int, str]:
    """Read a list with a number and a word per line."""
    found: dict[int, str] = {}
    for where, (word, value) in read_words(path, ("number", "value")):
        number = whole_number(word, where, "the number")
        if number in found:
            raise TableError(f"{where}: {number} occurs twice; expected every number once.")
        found[number] = value
    return found


def read_cars196(source: Path, options: "SourceConfig") -> Catalog:
    """Read the catalog of Cars196 (Stanford Cars): models of cars under nine body types.

    Krause, Stark, Deng, Fei-Fei: "3D Object Representations for Fine-Grained Categorization", 3dRR 2013. One of two
    layouts::

        cars_annos.mat                      annotations (relative_im_path, class, test, ...), class_names
        car_ims/000001.jpg ...

        devkit/cars_meta.mat                class_names
        devkit/cars_train_annos.mat         annotations (fname, class, ...)
        cars_test_annos_withlabels.mat      the same of the test images; in devkit/ or beside it
        cars_train/00001.jpg ... cars_test/00001.jpg ...
    """
    whole, devkit = source / "cars_annos.mat", source / "devkit"
    labelled = "cars_test_annos_withlabels.mat"
    if whole.is_file():
        paths, folders = [whole], ("",)
        (found,) = read_mats({whole: ("annotations", "class_names")})
        names, annotations = found["class_names"], [found["annotations"]]
    elif devkit.is_dir():
        test = next((f for f in (source / labelled, devkit / labelled) if f.is_file()), source / labelled)
        paths = [devkit / "cars_meta.mat", devkit / "cars_train_annos.mat", test]
        folders = ("cars_train/", "cars_test/")
        meta, *others = read_mats({paths[0]: ("class_names",), **dict.fromkeys(paths[1:], ("annotations",))})
        names, annotations = meta["class_names"], [other["annotations"] for other in others]
    else:
        raise InputError(f"{source} holds neither cars_annos.mat nor devkit/; expected one of them.")
    models = {n: mat_value(f"{paths[0]}: class {n}", name, str) for n, name in enumerate(names.ravel(), start=1)}
    tree = classes_of("cars196_taxonomy.csv", models, str(paths[0]))
    fields = {"relative_im_path": str, "class": int, "test": int} if whole.is_file() else {"fname": str, "class": int}
    rows, listed = [], []
    for part, (table, folder) in enumerate(zip(annotations, folders, strict=True)):
        for where, (name, number, *flag) in mat_rows(paths[-len(annotations) :][part], table, fields):
            file = f"{folder}{relative_path(name, where)}"
            if number not in tree:
                raise TableError(f"{where}: class is {number}; expected 1 to {len(tree)}.")
            key = safe_key(file.rpartition(".")[0])
            rows.append((key, _split(number, tree), file, *tree[number]))
            listed.append((OFFICIAL[bool(flag[0]) if flag else part], key))
    return catalog_of("cars196", ("model", "type"), rows, source, paths, listed=listed)


def _split(number: int, tree: Mapping[int, object]) -> str:
    """Return the split that the literature gives a class, from the class's number."""
    return "train" if number <= len(tree) // 2 else "test"


def read_taxonomy(table: str) -> dict[int, tuple[str, ...]]:
    """Read a table of this folder; return the names of a class and its coarser classes, finest first, by class number.

    Args:
        table: file name, for example ``cub_taxonomy.csv``; the dataset's card states the table's origin.
    """
    with open(Path(__file__).parent / table, encoding="utf-8", newline="") as file:
        rows = csv.reader(file)
        next(rows)
        return {int(number): tuple(names) for number, *names in rows}


def classes_of(table: str, classes: Mapping[int, str], where: str) -> dict[int, tuple[str, ...]]:
    """Return the taxonomy of a release's classes.

    Args:
        table: the table that :func:`read_taxonomy` reads.
        classes: the release's classes, by number.
        where: the file that lists the classes, for messages.

    Raises:
        TableError: a class is missing or unknown, or has another name than in the taxonomy, so the taxonomy does not
            belong to this release.
    """
    taxonomy = read_taxonomy(table)
    expected = {number: names[0] for number, names in taxonomy.items()}
    for number in sorted(expected.keys() | classes.keys()):
        if classes.get(number) != expected.get(number):
            raise TableError(
                f"{where}: class {number} is {quoted(classes.get(number))}; expected {quoted(expected.get(number))}, "
                f"as in {table}. Is it the complete release that the card names?"
            )
    return taxonomy
