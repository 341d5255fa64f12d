"""Landmarks-clean: photographs from image searches for landmarks, cleaned by matching local features.

Gordo, Almazán, Revaud, Larlus: "Deep Image Retrieval: Learning Global Representations for Image Search", ECCV 2016; the
training set of listwise average precision (Revaud et al., ICCV 2019). Only addresses are published. Layout::

    annotations_landmarks/annotation_clean_train.txt    address landmark, and maybe a box
    annotations_landmarks/annotation_clean_val.txt
    images/NAME or images/LANDMARK/NAME                 NAME: the last part of the address

Where the first word of a line is a path below the source and no address, as the authors' own training code has it, it
is taken as it is.
"""

import re
from pathlib import Path
from typing import TYPE_CHECKING

import polars as pl

from hgld.errors import InputError, TableError, quoted

from ..catalog import Catalog
from .image_files import keys_of_paths
from .release import (
    keep_splits,
    read_lines,
    refuse_options,
    relative_path,
    whole_number,
)

if TYPE_CHECKING:
    from ..config import SourceConfig

LEVELS = ("landmark",)
OBTAIN = "Get the lists as `hgld datasets landmarks-clean` says."
_FOLDERS = ("annotations_landmarks", "annotations", ".")
_ADDRESS = re.compile(r"(?i)(?:https?|ftp)://")
_WORDS = (2, 6)  # with and without a box
_LONGEST_NAME = 255  # bytes of a file name, on any usual file system


def read(source: Path, options: "SourceConfig") -> Catalog:
    """Read the catalog of Landmarks-clean; train and val have the same landmarks.

    Listed addresses without an image in the folder are dropped with a reason, as many are dead.

    Args:
        source: the folder that holds the lists' folder and ``images``.
        options: only ``splits`` is taken.

    Raises:
        ConfigError: an option that Landmarks-clean does not take.
        InputError: a list is missing, or no image at all is there.
        TableError: a list cannot be read.
    """
    refuse_options(options, (), "landmarks-clean")
    folder = next((source / f for f in _FOLDERS if (source / f / "annotation_clean_train.txt").is_file()), None)
    if folder is None:
        raise InputError(
            f"{source} holds no annotations_landmarks/annotation_clean_train.txt; expected the folder that "
            f"holds the lists and images/. {OBTAIN}"
        )
    paths = {split: folder / f"annotation_clean_{split}.txt" for split in ("train", "val")}
    listed = [(split, *line) for split, path in paths.items() for line in _read_list(path)]
    schema = {"split": pl.String, "stated": pl.String, "landmark": pl.String, "file": pl.String, "reason": pl.String}
    table = pl.DataFrame(
        [(split, stated, landmark, *_find(source, stated, landmark)) for split, stated, landmark in listed],
        schema=schema,
        orient="row",
    )
    table = _drop_ambiguous(keep_splits(table, options.splits, "landmarks-clean"))
    items = table.filter(pl.col("reason").is_null())
    if items.is_empty():
        raise InputError(f"{source / 'images'}: none of the {len(table):,} listed images is there. {OBTAIN}")
    keys = keys_of_paths([file.removeprefix("images/") for file in items["file"]])
    return Catalog(
        name="landmarks-clean",
        levels=LEVELS,
        items=items.select(pl.Series("key", keys), "split", "file", "landmark"),
        root=source,
        dropped=table.filter(pl.col("reason").is_not_null()).select(
            pl.col("stated").alias("file"),
            "split",
            "reason",
            pl.lit("landmark ").add(pl.col("landmark")).alias("detail"),
        ),
        sources=tuple(paths.values()),
        disjoint=False,
        protocol="landmarks-clean",
    )


def _read_list(path: Path) -> list[tuple[str, str]]:
    """Return the first two words of every line: an address or path, and a landmark's number."""
    found = []
    for number, line in read_lines(path, OBTAIN):
        words = line.split()
        where = f"{path}, line {number}"
        if len(words) not in _WORDS:
            raise TableError(f"{where} is {quoted(line)}; expected an address, a landmark and perhaps a box of four.")
        found.append((words[0], f"{whole_number(words[1], where, 'the landmark'):03d}"))
        if not _ADDRESS.match(words[0]):
            relative_path(words[0], where)
    return found


def _find(source: Path, stated: str, landmark: str) -> tuple[str | None, str | None]:
    """Return the file of a listed image, or the reason why there is none."""
    if not _ADDRESS.match(stated):
        return relative_path(stated, "the list"), None
    name = stated.rpartition("/")[2]
    if name in ("", ".", "..") or not name.isprintable() or "\\" in name or len(name.encode()) > _LONGEST_NAME:
        return None, "unusable-name"
    for file in (f"images/{int(landmark)}/{name}", f"images/{name}"):
        if (source / file).is_file():
            return file, None
    return None, "not-downloaded"


def _drop_ambiguous(table: pl.DataFrame) -> pl.DataFrame:
    """Drop images whose name is shared by several addresses: the file could be of any of them."""
    ambiguous = pl.col("file").is_not_null() & pl.col("file").is_duplicated()
    return table.with_columns(
        reason=pl.when(ambiguous).then(pl.lit("ambiguous-name")).otherwise("reason"),
    )
