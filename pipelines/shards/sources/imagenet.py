"""ImageNet-1k (ILSVRC2012): photographs of 1,000 WordNet synsets, for classification.

Russakovsky et al.: "ImageNet Large Scale Visual Recognition Challenge", IJCV 2015. One folder per synset::

    train/n01440764/n01440764_10026.JPEG ...              or ILSVRC2012_img_train/
    val/n01440764/ILSVRC2012_val_00000293.JPEG ...        or ILSVRC2012_img_val/

The images of val may be in one folder, as in its tar, if one of these files states the synset of every image::

    ILSVRC2012_devkit_t12/data/meta.mat                   synsets (ILSVRC2012_ID, WNID, ...)
    ILSVRC2012_devkit_t12/data/ILSVRC2012_validation_ground_truth.txt    one number per line
    LOC_val_solution.csv                                  ImageId,PredictionString: of the copy that Kaggle holds
"""

import re
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

import polars as pl

from hgld.errors import ConfigError, InputError, TableError, quoted

from ..catalog import DROPPED, Catalog
from .own_images import find_images, keys_of_paths
from .release import catalog_of, mat_rows, read_csv, read_lines, read_mats, whole_number

if TYPE_CHECKING:
    from ..config import SourceConfig

LEVELS = ("synset",)
SPLITS = ("train", "val")
_DEVKIT = "ILSVRC2012_devkit_t12/data"
_TRUTH, _META, _SOLUTION = "ILSVRC2012_validation_ground_truth.txt", "meta.mat", "LOC_val_solution.csv"
_SYNSET = re.compile(r"n[0-9]{8}\Z")
_CLASSES = 1000  # number of classes: the first synsets of meta.mat; the remaining synsets are groups of them


def read(source: Path, options: "SourceConfig") -> Catalog:
    """Read the catalog of ImageNet; train and val have the same synsets, which are named by their WordNet ids.

    Hidden files, files that are not images, and links to folders are dropped with a reason. ``source`` is the folder
    that holds ``train`` and ``val``, or the folder that holds Kaggle's ``ILSVRC``.
    """
    if unknown := [split for split in options.splits if split not in SPLITS]:
        raise ConfigError(f"imagenet has no split {quoted(unknown[0])}; its splits are train, val. Correct --splits.")
    rows: list[tuple[str, str, str]] = []
    dropped: list[tuple[str, str, str, str]] = []
    sources: tuple[Path, ...] = ()
    for split in (split for split in SPLITS if split in (options.splits or SPLITS)):
        names = (split, f"ILSVRC2012_img_{split}")
        places = [f"{above}{name}" for above in ("", "ILSVRC/Data/CLS-LOC/") for name in names]
        folder = next((place for place in places if (source / place).is_dir()), None)
        if folder is None:
            raise InputError(f"{source} holds no {' or '.join(places)}; expected a folder for split {quoted(split)}.")
        images, others = find_images(source / folder)
        dropped += [(f"{folder}/{file}", split, reason, detail) for file, _, reason, detail in others]
        stated: Mapping[str, str] = {}
        if split == "val" and any("/" not in image for image in images):
            stated, sources = _stated(source)
        rows += [(split, f"{folder}/{image}", _synset(image, stated, source / folder)) for image in images]
    keys = keys_of_paths([f"{split}/{synset}/{PurePosixPath(file).name}" for split, file, synset in rows])
    return catalog_of(
        "imagenet",
        LEVELS,
        [(key, *row) for key, row in zip(keys, rows, strict=True)],
        source,
        sources,
        dropped=pl.DataFrame(dropped, schema=DROPPED, orient="row"),
        disjoint=False,
        protocol="classification",
    )


def _synset(image: str, stated: Mapping[str, str], folder: Path) -> str:
    """Return the synset of an image, as its folder or a list states it."""
    above, _, name = image.rpartition("/")
    synset = above or stated.get(PurePosixPath(name).stem, "")
    if not synset:
        raise TableError(
            f"{folder / name}: the synset of this image is unknown; expected the image in the folder of its synset, "
            "or for val the file "
            f"{_DEVKIT}/{_TRUTH} or {_SOLUTION}."
        )
    if not _SYNSET.match(synset):
        raise InputError(
            f"{folder / image}: {quoted(synset)} is not a WordNet id; expected for example n01440764/{name}. Your own "
            "classes are read by `hgld build-shards folders`."
        )
    return synset


def _stated(source: Path) -> tuple[dict[str, str], tuple[Path, ...]]:
    """Return the synset of every image of val by the name without suffix, and the files with the synsets."""
    truth, meta, solution = source / _DEVKIT / _TRUTH, source / _DEVKIT / _META, source / _SOLUTION
    if solution.is_file():
        columns = ("ImageId", "PredictionString")
        rows = read_csv(solution, columns, filled=columns).iter_rows()
        return {image: answer.partition(" ")[0] for image, answer in rows}, (solution,)
    if not truth.is_file():
        return {}, ()
    fields = {"ILSVRC2012_ID": int, "WNID": str}
    stated = mat_rows(meta, read_mats({meta: ("synsets",)})[0]["synsets"], fields)
    numbered = {number: synset for _, (number, synset) in stated if number <= _CLASSES}
    if not numbered:
        raise TableError(f"{meta} has no synset with a number from 1 to {_CLASSES:,}; download the file again.")
    found = {}
    for image, (where, line) in enumerate(read_lines(truth), start=1):
        number = whole_number(line.strip(), where, "the synset")
        if number not in numbered:
            raise TableError(
                f"{where} is {quoted(line)}; expected the number of a synset in {meta}: 1 to {max(numbered)}."
            )
        found[f"ILSVRC2012_val_{image:08d}"] = numbered[number]
    return found, (truth, meta)
