"""Datasets of instances (products, clothes, vehicles, scenes, objects): SOP, In-Shop, VehicleID, Holidays, UKBench."""

import os
import re
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import polars as pl

from hgld.errors import InputError, TableError, quoted

from ..catalog import DROPPED, Catalog, safe_key
from .release import catalog_of, find_folder, need, read_words, relative_path, whole_number

if TYPE_CHECKING:
    from ..config import SourceConfig


def read_sop(source: Path, options: "SourceConfig") -> Catalog:
    """Read the catalog of Stanford Online Products: classes of train and test are disjoint.

    Oh Song, Xiang, Jegelka, Savarese: "Deep Metric Learning via Lifted Structured Feature Embedding", CVPR 2016. A
    product's class is named by its number (``00001``), a category by its folder without ``_final``. Layout::

        Stanford_Online_Products/
            Ebay_train.txt      image_id class_id super_class_id path
            Ebay_test.txt
            bicycle_final/111085122871_0.JPG ...
    """
    root = find_folder(source, "Stanford_Online_Products", "Ebay_train.txt")
    lists = {split: root / f"Ebay_{split}.txt" for split in ("train", "test")}
    folders: dict[int, str] = {}
    rows = []
    for split, path in lists.items():
        for where, words in read_words(path, ("image_id", "class_id", "super_class_id", "path"), header=True):
            folder, _, name = relative_path(words[3], where).partition("/")
            product = whole_number(words[1], where, "class_id")
            category = whole_number(words[2], where, "super_class_id")
            if not name or "/" in name:
                raise TableError(f"{where}: {quoted(words[3])}; expected FOLDER/NAME.")
            if folders.setdefault(category, folder) != folder:
                raise TableError(
                    f"{where}: {quoted(words[3])} is listed in the category {category}, whose images are in "
                    f"{folders[category]}/; expected one folder per category. Is the list complete?"
                )
            key = f"{folder}/{name.rpartition('.')[0]}"
            rows.append((key, split, f"{folder}/{name}", f"{product:05d}", folder.removesuffix("_final")))
    return catalog_of("sop", ("product", "category"), rows, root, lists.values())


def read_inshop(source: Path, options: "SourceConfig") -> Catalog:
    """Read the catalog of In-Shop Clothes Retrieval: train, query and gallery; no item of train is in query or gallery.

    Liu, Luo, Qiu, Wang, Tang: "DeepFashion: Powering Robust Clothes Recognition and Retrieval with Rich Annotations",
    CVPR 2016. A category is named with its department (``WOMEN/Denim``), because both departments have categories of
    the same name. An item in folders of several categories has an unknown category. Layout (the folders ``Eval`` and
    ``Img`` may be missing)::

        Eval/list_eval_partition.txt        image_name item_id evaluation_status
        Img/img/WOMEN/Blouses_Shirts/id_00000001/02_1_front.jpg ...
    """
    from hgld.evaluation.protocols.ground_truths import read_in_shop  # imported here, because it imports torch

    levels, stated = ("item", "category", "department"), "list_eval_partition.txt"
    path = need(next((p for p in (source / "Eval" / stated, source / stated) if p.is_file()), source / stated))
    rows = []
    for image, item, split in read_in_shop(path).select("image", "item", "split").iter_rows():
        file = relative_path(image, f"{path}, image {quoted(image[:80])}")
        parts = file.split("/")
        if len(parts) != 5 or parts[0] != "img" or "." not in parts[-1]:
            raise TableError(f"{path}: image {quoted(image[:80])}; expected img/DEPARTMENT/CATEGORY/ITEM/IMAGE.jpg.")
        key = file.removeprefix("img/").rpartition(".")[0]
        rows.append((key, split, file, item, f"{parts[1]}/{parts[2]}", parts[1]))
    items, notes = pl.DataFrame(rows, ["key", "split", "file", *levels], orient="row"), []
    for level in levels[1:]:
        torn = items.group_by("item").agg(pl.col(level).n_unique()).filter(pl.col(level) > 1)["item"].sort()
        if len(torn):
            notes.append(f"{len(torn)} items are in more than one {level}, so it is unknown; the first is {torn[0]}.")
            items = items.with_columns(pl.when(~pl.col("item").is_in(torn.to_list())).then(level).alias(level))
    root = source / "Img" if (source / "Img" / "img").is_dir() else source
    return catalog_of("inshop", levels, items.rows(), root, [path], notes=tuple(notes))


def read_vehicleid(source: Path, options: "SourceConfig") -> Catalog:
    """Read the catalog of PKU VehicleID: train, and the images of the three test lists as one split.

    Liu, Tian, Wang, Pang, Huang: "Deep Relative Distance Learning: Tell the Difference Between Similar Vehicles", CVPR
    2016. Vehicles and models are named by their numbers; the model of a vehicle that was not labelled is unknown.
    Layout::

        VehicleID_V1.0/
            train_test_split/train_list.txt             image vehicle
            train_test_split/test_list_800.txt          the same; 1600 and 2400 too
            attribute/model_attr.txt                    vehicle model
            image/0000001.jpg ...
    """
    root = find_folder(source, "VehicleID_V1.0", "train_test_split/train_list.txt")
    folder, attributes = root / "train_test_split", root / "attribute" / "model_attr.txt"
    paths = {"train": folder / "train_list.txt"}
    paths |= {name: folder / f"test_list_{n}.txt" for name, n in (("small", 800), ("medium", 1600), ("large", 2400))}
    models, vehicles = {}, {}
    for where, (vehicle, model) in read_words(attributes, ("vehicle", "model")):
        number = whole_number(vehicle, where, "vehicle")
        _agree(models, number, whole_number(model, where, "model"), where, "model")
    images: dict[str, str] = {}  # split of every image
    listed = []
    for name, path in paths.items():
        for where, (image, vehicle) in read_words(path, ("image", "vehicle")):
            file = relative_path(image, where)
            _agree(vehicles, file, whole_number(vehicle, where, "vehicle"), where, "vehicle")
            _agree(images, file, "train" if name == "train" else "test", where, "split")
            listed += [(name, safe_key(file))] if name != "train" else []
    rows = [
        (
            safe_key(image),
            split,
            f"image/{image}.jpg",
            f"{vehicles[image]:05d}",
            f"{models[vehicles[image]]:03d}" if vehicles[image] in models else None,
        )
        for image, split in images.items()
    ]
    sources = [*paths.values(), attributes]
    return catalog_of("vehicleid", ("vehicle", "model"), rows, root, sources, listed=dict.fromkeys(listed))


def _agree(known: dict, key: object, value: object, where: str, what: str) -> None:
    """Add a fact to the known facts; raise an error if it contradicts them."""
    if known.setdefault(key, value) != value:
        raise TableError(
            f"{where}: {quoted(key)} has the {what} {value} here and {known[key]} in an earlier line; expected one "
            f"{what}."
        )


# -- releases without a list: the labels follow from the images' names -------------------------------------------------


def read_holidays(source: Path, options: "SourceConfig") -> Catalog:
    """Read the catalog of INRIA Holidays: one split, ``test``, whose list ``queries`` names the query images.

    Jégou, Douze, Schmid: "Hamming Embedding and Weak Geometric Consistency for Large Scale Image Search", ECCV 2008.
    Layout::

        jpg/100000.jpg          the query of group 1000: its number ends in 00
        jpg/100001.jpg ...
    """
    numbers, dropped = _numbered_images(source, "jpg", r"([1-9][0-9]{5})\.jpg", "100000.jpg")
    queries = [number for number in numbers.values() if number % 100 == 0]
    if lost := sorted({number // 100 for number in numbers.values()} - {query // 100 for query in queries}):
        raise InputError(
            f"{source}: groups without a query: {len(lost)}. The first is {lost[0]}: {lost[0]}00.jpg is missing. The "
            "release is incomplete."
        )
    rows = [(str(number), "test", file, str(number // 100)) for file, number in numbers.items()]
    listed = [("queries", str(query)) for query in queries]
    return catalog_of("holidays", ("instance",), rows, source, listed=listed, dropped=dropped)


def read_ukbench(source: Path, options: "SourceConfig") -> Catalog:
    """Read the catalog of UKBench: one split, ``test``; images with four consecutive numbers show one object.

    Nistér, Stewénius: "Scalable Recognition with a Vocabulary Tree", CVPR 2006. Layout::

        full/ukbench00000.jpg ... ukbench00003.jpg      the first object
        full/ukbench00004.jpg ...
    """
    numbers, dropped = _numbered_images(source, "full", r"ukbench([0-9]{5})\.jpg", "ukbench00000.jpg")
    sizes = Counter(number // 4 for number in numbers.values())
    if torn := [group for group, size in sorted(sizes.items()) if size != 4]:
        raise InputError(
            f"{source}: objects without exactly 4 images: {len(torn)}. The first has {sizes[torn[0]]} images; expected "
            f"ukbench{4 * torn[0]:05d}.jpg to ukbench{4 * torn[0] + 3:05d}.jpg. The release is incomplete."
        )
    rows = [(f"ukbench{number:05d}", "test", file, f"{number // 4:04d}") for file, number in numbers.items()]
    return catalog_of("ukbench", ("instance",), rows, source, dropped=dropped)


def _numbered_images(source: Path, inside: str, pattern: str, example: str) -> tuple[dict[str, int], pl.DataFrame]:
    """Find images whose names hold a number.

    Args:
        source: the folder of the images, or the folder that holds it under the name ``inside``.
        inside: name of the folder.
        pattern: regular expression for the whole name of an image; its group matches the number.
        example: an example of such a name, for the message.

    Returns:
        the number of every image by its path relative to ``source``, in the order of the numbers; and a list of the
        files with other names, in the form of a catalog's ``dropped``.
    """
    prefix = f"{inside}/" if (source / inside).is_dir() else ""
    names = sorted(path.name for path in (source / prefix).iterdir()) if source.is_dir() else []
    found = {f"{prefix}{name}": int(match[1]) for name in names if (match := re.fullmatch(pattern, name))}
    if not found:
        raise InputError(f"{source / prefix}: no image named like {example} in it ({len(names)} other files).")
    others = [
        (prefix + os.fsencode(name).decode("utf-8", errors="replace"), "", "not an image of the release", "")
        for name in names
        if prefix + name not in found
    ]
    ordered = dict(sorted(found.items(), key=lambda image: image[1]))
    return ordered, pl.DataFrame(others, schema=DROPPED, orient="row")
