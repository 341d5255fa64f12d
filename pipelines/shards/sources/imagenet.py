"""ImageNet-1k (ILSVRC2012): photographs of 1,000 WordNet synsets, for classification.

Russakovsky et al.: "ImageNet Large Scale Visual Recognition Challenge", IJCV 2015. A folder a synset::

    train/n01440764/n01440764_10026.JPEG ...              or ILSVRC2012_img_train/
    val/n01440764/ILSVRC2012_val_00000293.JPEG ...        or ILSVRC2012_img_val/

where the images of val may lie side by side, as its tar holds them, if one of these says what they show::

    ILSVRC2012_devkit_t12/data/meta.mat                   synsets (ILSVRC2012_ID, WNID, ...)
    ILSVRC2012_devkit_t12/data/ILSVRC2012_validation_ground_truth.txt    a number a line
    LOC_val_solution.csv                                  ImageId,PredictionString: of the copy that Kaggle holds
"""

import re
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from hgld.errors import ConfigError, InputError, TableError, quoted

from ..catalog import DROPPED, Catalog
from .cars196 import refuse_large_mat
from .folders import find_images
from .image_files import keys_of_paths
from .release import (
    read_csv,
    read_lines,
    read_mats,
    refuse_options,
    whole_number,
)

if TYPE_CHECKING:
    from ..config import SourceConfig

LEVELS = ("synset",)
OBTAIN = "Get the files as `hgld datasets imagenet` says."
FOLDERS = {"train": ("train", "ILSVRC2012_img_train"), "val": ("val", "ILSVRC2012_img_val")}
_INSIDE = ("", "ILSVRC/Data/CLS-LOC/")  # of the source: as people unpack the tars, and Kaggle's copy
_DEVKIT = "ILSVRC2012_devkit_t12/data"
_TRUTH, _META, _SOLUTION = "ILSVRC2012_validation_ground_truth.txt", "meta.mat", "LOC_val_solution.csv"
_SYNSET = re.compile(r"n[0-9]{8}\Z")
_CLASSES = 1000  # the first synsets of meta.mat; the others are groups of them
_MOST_BYTES = 128 << 20  # limit of a decompressed MATLAB file; the release's is far smaller


def read(source: Path, options: "SourceConfig") -> Catalog:
    """Read the catalog of ImageNet; train and val have the same synsets, which are named by their WordNet ids.

    Other files than images, hidden ones and links to folders are dropped with a reason.

    Args:
        source: the folder that holds ``train`` and ``val``, or the one that holds Kaggle's ``ILSVRC``.
        options: only ``splits`` is taken.

    Raises:
        ConfigError: an option that ImageNet does not take, or a split that it does not have.
        InputError: a split is missing, or an image does not lie in the folder of a synset and nothing says what it is.
        TableError: a list cannot be read, or does not say what an image is.
    """
    refuse_options(options, (), "imagenet")
    rows: list[tuple[str, str, str]] = []
    dropped: list[tuple[str, str, str, str]] = []
    sources: tuple[Path, ...] = ()
    if unknown := [split for split in options.splits if split not in FOLDERS]:
        raise ConfigError(f"imagenet has no split {quoted(unknown[0])}; its splits are train, val. Correct --splits.")
    for split in [split for split in FOLDERS if not options.splits or split in options.splits]:
        folder = _folder(source, split)
        images, others = find_images(source / folder)
        dropped += [(f"{folder}/{file}", split, reason, detail) for file, _, reason, detail in others]
        flat = [image for image in images if "/" not in image]
        stated: Mapping[str, str] = {}
        if flat and split == "val":
            stated, sources = _stated(source)
        rows += [(split, f"{folder}/{image}", _synset(image, stated, source / folder)) for image in images]
    keys = keys_of_paths([f"{split}/{synset}/{PurePosixPath(file).name}" for split, file, synset in rows])
    items = pl.DataFrame(rows, schema=dict.fromkeys(["split", "file", *LEVELS], pl.String), orient="row")
    items = items.select(pl.Series("key", keys, dtype=pl.String), "split", "file", *LEVELS)
    return Catalog(
        name="imagenet",
        levels=LEVELS,
        items=items,
        root=source,
        dropped=pl.DataFrame(dropped, schema=DROPPED, orient="row"),
        sources=sources,
        disjoint=False,
        protocol="classification",
    )


def _folder(source: Path, split: str) -> str:
    """Return the folder of a split, relative to the source."""
    places = [f"{inside}{name}" for inside in _INSIDE for name in FOLDERS[split]]
    found = next((place for place in places if (source / place).is_dir()), None)
    if found is None:
        raise InputError(
            f"{source} holds no {' or '.join(places)}; expected a folder for split {quoted(split)}. {OBTAIN}"
        )
    return found


def _synset(image: str, stated: Mapping[str, str], folder: Path) -> str:
    """Return the synset of an image, by its folder or by what a list states."""
    above, _, name = image.rpartition("/")
    if not above:
        found = stated.get(PurePosixPath(name).stem, "")
        if not found:
            raise TableError(
                f"{folder / name}: nothing says of which synset it is; expected it in the folder of one, or val with "
                f"{_DEVKIT}/{_TRUTH} or {_SOLUTION}. {OBTAIN}"
            )
        return found
    if not _SYNSET.match(above):
        raise InputError(
            f"{folder / image}: its folder is no WordNet id; expected for example n01440764/{name}. Your own classes "
            "are read by `hgld build-shards folders`."
        )
    return above


def _stated(source: Path) -> tuple[dict[str, str], tuple[Path, ...]]:
    """Return the synsets of the images of val by their names without suffix, and the files that state them."""
    truth, meta = source / _DEVKIT / _TRUTH, source / _DEVKIT / _META
    if truth.is_file():
        synsets = _synsets(meta)
        found = {}
        for number, line in read_lines(truth, OBTAIN):
            where = f"{truth}, line {number}"
            synset = synsets.get(whole_number(line.strip(), where, "the synset"))
            if synset is None:
                raise TableError(f"{where} is {quoted(line)}; expected 1 to {max(synsets)}, the synsets of {meta}.")
            found[f"ILSVRC2012_val_{number:08d}"] = synset
        return found, (truth, meta)
    solution = source / _SOLUTION
    if solution.is_file():
        table = read_csv(solution, ("ImageId", "PredictionString"), OBTAIN, filled=("ImageId", "PredictionString"))
        first = {image: answer.split(" ", 1)[0] for image, answer in table.iter_rows()}
        if wrong := next((image for image, synset in first.items() if not _SYNSET.match(synset)), None):
            raise TableError(f"{solution}: {quoted(wrong)} is {quoted(first[wrong])}; expected a synset as n01440764.")
        return first, (solution,)
    return {}, ()


def _synsets(meta: Path) -> dict[int, str]:
    """Return the WordNet ids of the development kit's classes by their numbers."""
    refuse_large_mat(meta, OBTAIN, most=_MOST_BYTES)
    synsets = read_mats({meta: ("synsets",)}, OBTAIN)[0]["synsets"]
    if {"ILSVRC2012_ID", "WNID"} - set(synsets.dtype.names or ()):
        raise TableError(f"{meta}: its synsets lack ILSVRC2012_ID or WNID. {OBTAIN}")
    found = {}
    for entry in synsets.ravel():
        number, synset = (np.asarray(entry[name]).ravel() for name in ("ILSVRC2012_ID", "WNID"))
        if number.size != 1 or number.dtype.kind not in "iu" or synset.size != 1 or not _SYNSET.match(str(synset[0])):
            raise TableError(f"{meta}: synset {len(found) + 1}: expected a number and a WordNet id. Is it of t12?")
        if int(number[0]) <= _CLASSES:
            found[int(number[0])] = str(synset[0])
    return found
