"""H-GLDv2: Google Landmarks v2 with hierarchical labels, straight from its tars.

Weyand, Araujo, Cao and Sim: "Google Landmarks Dataset v2", CVPR 2020; Ramzi et al.: "Optimization of Rank Losses for
Image Retrieval", 2023. The source is a folder as ``hgld download gldv2`` leaves it. The CSVs may also be in the folder
itself, and the checksums in the folders of the tars. Relative paths are the same below :data:`BASE_URL` and below the
folder::

    train/images_000.tar ... images_499.tar     index/images_000.tar ... images_099.tar
    test/images_000.tar ... images_019.tar      md5sum/train/md5.images_000.txt ...
    metadata/train_clean.csv ...                ground_truth/retrieval_solution_v2.1.csv ...

The files come from https://github.com/cvdfoundation/google-landmark.

Splits: ``train`` = the images of train_clean.csv whose landmark has hierarchical labels; ``gallery`` = the index images
of such landmarks; ``query`` = the test images that the retrieval solution scores.
"""

import re
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import polars as pl

from hgld.errors import ConfigError, InputError, TableError, quoted

from ...hierarchy.scrape.titles import category_title
from ..catalog import DROPPED, Catalog, Container
from .release import need, read_bytes, read_csv

if TYPE_CHECKING:
    from ..config import SourceConfig


BASE_URL = "https://s3.amazonaws.com/google-landmark"
TARS = {"train": 500, "index": 100, "test": 20}  # number of tars of each split
MAX_TAR_BYTES = 8 << 30  # maximum size of a tar; the largest published tar has about 1 GB
MAX_CSV_BYTES = 1 << 30
METADATA = {  # the lists that hierarchies and shards need
    "train": ("train_clean.csv", "train_label_to_category.csv", "train_label_to_hierarchical.csv"),
    "index": ("index_image_to_landmark.csv", "index_label_to_category.csv", "index_label_to_hierarchical.csv"),
    "test": ("test.csv", "retrieval_solution_v2.1.csv", "recognition_solution_v2.1.csv"),
}
_MD5 = re.compile(r"([0-9a-fA-F]{32})[ \t*]+(\S+)\s*\Z")


def tar_name(split: str, number: int) -> str:
    """Return the path of a tar, such as ``index/images_003.tar``.

    Raises:
        ConfigError: there is no such split, or no tar of that number.
    """
    if split not in TARS:
        raise ConfigError(f"GLDv2 has no split {quoted(split)}; its splits are {', '.join(TARS)}.")
    if not 0 <= number < TARS[split]:
        raise ConfigError(f"GLDv2's {split} set has no tar {number}; its tars are 0-{TARS[split] - 1}.")
    return f"{split}/images_{number:03d}.tar"


def checksum_name(split: str, number: int) -> str:
    """Return the path of the file with a tar's published checksum, such as ``md5sum/index/md5.images_003.txt``.

    Raises:
        ConfigError: there is no such split, or no tar of that number.
    """
    stem = tar_name(split, number).rpartition("/")[2].removesuffix(".tar")
    return f"md5sum/{split}/md5.{stem}.txt"


def metadata_names(splits: Iterable[str]) -> tuple[str, ...]:
    """Return the paths of these splits' lists, such as ``metadata/train_clean.csv``."""
    return tuple(
        f"{'ground_truth' if 'solution' in name else 'metadata'}/{name}" for split in splits for name in METADATA[split]
    )


def parse_checksum(text: str, name: str, where: str) -> str:
    """Parse a checksum file as md5sum writes it: 32 hex digits and the tar's file name.

    Args:
        text: the file's content.
        name: the tar's file name, ``images_003.tar``.
        where: the checksum file, for the message.

    Raises:
        InputError: the text does not have that form, or belongs to another tar.
    """
    match = _MD5.match(text.strip())
    if match is None or match[2].rpartition("/")[2] != name:
        raise InputError(
            f"{where} says {quoted(text.strip()[:80])}; expected 32 hex digits and {name}. Download it again."
        )
    return match[1].lower()


# -- the catalog ------------------------------------------------------------------------------------------------------

LEVELS = ("landmark", "hierarchical_label", "natural_or_human_made")
SPLITS = {"train": "train", "gallery": "index", "query": "test"}  # split: GLDv2's own name for the set
_ID = r"^[0-9a-f]{16}$"


def read(source: Path, options: "SourceConfig") -> Catalog:
    """Read the catalog of H-GLDv2.

    A query has the labels of its first listed relevant image in the gallery. That is the rule of H-GLDv2's authors for
    queries whose relevant images show several landmarks. Index images of landmarks without hierarchical
    labels are rejected, unless ``options.distractors`` asks for the whole gallery of the official retrieval task.

    Args:
        source: the folder with ``train/``, ``index/`` and ``test/`` (tars) and ``metadata/``.
        options: ``labels``, a folder with ``{train,index}_label_to_hierarchical.csv`` (from ``hgld build-hierarchy`` or
            from Google), if the source does not have these files; ``distractors``, to read the whole gallery;
            ``splits``, to read only the lists of these splits.
    """
    wanted = tuple(dict.fromkeys(options.splits)) or tuple(SPLITS)
    if unknown := [split for split in wanted if split not in SPLITS]:
        raise ConfigError(
            f"gldv2 has no split {quoted(unknown[0])}; its splits are {', '.join(SPLITS)}. Correct --splits."
        )
    sources: list[Path] = []

    def find(name: str, folder: Path | None = None) -> Path:
        folders = [folder] if folder else [source / inside for inside in ("metadata", "ground_truth", ".")]
        path = next((f / name for f in folders if (f / name).is_file()), folders[0] / name)
        sources.append(need(path))
        return path

    def labels(name: str) -> pl.DataFrame:
        return read_labels(find(f"{name}_label_to_hierarchical.csv", options.labels), name)

    items: dict[str, pl.DataFrame] = {}
    dropped: dict[str, pl.DataFrame] = {}
    lists = judgements = None
    notes = ["train and index number their landmarks separately: one place may be a class of each."]
    if "train" in wanted:
        columns = ["landmark_id", "images"]
        clean = read_csv(find("train_clean.csv"), columns, filled=columns)
        images = clean.select("landmark_id", pl.col("images").str.split(" ").alias("id")).explode("id")
        items["train"], dropped["train"] = _label(images, labels("train"), "train", keep_unlabelled=False)
    if "gallery" in wanted or "query" in wanted:
        columns = ["id", "landmark_id"]
        images = read_csv(find("index_image_to_landmark.csv"), columns, filled=columns)
        items["gallery"], dropped["gallery"] = _label(
            images, labels("index"), "gallery", keep_unlabelled=options.distractors
        )
    if "query" in wanted:
        queries = _read_queries(find("retrieval_solution_v2.1.csv"), items["gallery"])
        items["query"], dropped["query"], lists, judgements, more = queries
        notes += more
    found = pl.concat([items[split] for split in wanted])
    odd = found.filter(~pl.col("key").str.contains(_ID).fill_null(value=False))
    if not odd.is_empty():
        raise TableError(
            f"{source}: the {odd['split'][0]} list has the image {quoted(str(odd['key'][0]))}; expected ids of 16 hex "
            "digits."
        )
    return Catalog(
        name="h-gldv2",
        levels=LEVELS,
        items=found,
        root=source,
        containers=tuple(c for split in wanted for c in _containers(source, SPLITS[split])),
        lists=lists,
        judgements=judgements if "gallery" in wanted else None,
        dropped=pl.concat([dropped[split] for split in wanted]),
        notes=tuple(notes),
        sources=tuple(sources),
        disjoint=False,
        protocol="gldv2" if options.distractors else "h-gldv2",
    )


def read_labels(path: Path, name: str) -> pl.DataFrame:
    """Read the labels of GLDv2's hierarchical CSV, one row per labelled landmark: landmark_id (text), then the levels.

    A landmark's class is named ``"{set}/{id} {title}"``, as in ``hierarchy.parquet`` of ``hgld build-hierarchy``.

    Raises:
        InputError: the file is missing.
        TableError: the table cannot be read, or has a landmark twice.
    """
    _, group, top = LEVELS
    table = read_csv(path, ["landmark_id", "category", group, top], filled=["landmark_id"])
    table = table.filter(pl.col(group).is_not_null() & (pl.col(group).str.to_lowercase() != "unclassified"))
    if not (twice := table.filter(pl.col("landmark_id").is_duplicated())).is_empty():
        raise TableError(f"{path}: landmark {twice['landmark_id'][0]} has two rows; expected one row per landmark.")
    titles = [(category_title(url or "") or "").removeprefix("Category:") for url in table["category"].to_list()]
    named = pl.format("{}/{} {}", pl.lit(name), "landmark_id", pl.Series("title", titles, dtype=pl.String))
    return table.select("landmark_id", named.str.strip_chars_end().alias("landmark"), group, top)


def _label(
    images: pl.DataFrame, labels: pl.DataFrame, split: str, *, keep_unlabelled: bool
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Join images (id, landmark_id) with their labels; return items, and the images of landmarks without labels."""
    joined = images.join(labels, on="landmark_id", how="left", maintain_order="left").with_columns(
        key="id", split=pl.lit(split), file=pl.format("{}/{}", pl.lit(SPLITS[split]), "id")
    )
    if keep_unlabelled:
        own = pl.format("{}/{}", pl.lit(SPLITS[split]), "landmark_id")
        joined = joined.with_columns(landmark=pl.coalesce("landmark", own))
    unlabelled = pl.col("landmark").is_null()
    reason = pl.lit("landmark without hierarchical labels")
    return joined.filter(~unlabelled).select("key", "split", "file", *LEVELS), joined.filter(unlabelled).select(
        "file", "split", reason=reason, detail=pl.format("landmark {}", "landmark_id")
    )


def _read_queries(
    solution: Path, gallery: pl.DataFrame
) -> tuple[pl.DataFrame, pl.DataFrame, pl.DataFrame, pl.DataFrame, list[str]]:
    """Read the scored test images.

    Args:
        solution: path of ``retrieval_solution_v2.1.csv``.
        gallery: rows of the catalog of the index images.

    Returns:
        rows of the catalog; the test images that are not scored, as dropped files; the lists ``public`` and
        ``private``; judgements of the index images in the gallery; notes for the provenance. The two lists are
        halves of the queries, which have separate scores.
    """
    # imported here, because it imports torch
    from hgld.evaluation.protocols.ground_truths import read_retrieval_solution

    found = read_retrieval_solution(solution)
    halves = {"public": found.public, "private": found.private}
    pairs = [(q, i) for half in halves.values() for q, items in half.items() for i in items]
    listed = pl.DataFrame(pairs, schema={"query": pl.String, "item": pl.String}, orient="row").join(
        gallery.select("key", pl.lit(value=True).alias("there"), *LEVELS),
        left_on="item",
        right_on="key",
        how="left",
        maintain_order="left",
    )
    judged = listed.filter(pl.col("there"))
    labels = judged.group_by("query").agg(pl.col(LEVELS).first())
    several = judged.group_by("query").agg(pl.col(LEVELS[0]).n_unique()).filter(pl.col(LEVELS[0]) > 1)
    note = f"{len(several)} queries have relevant images of several landmarks; they get the labels of the first one."
    rows = [(half, key) for half, queries in halves.items() for key in sorted(queries)]
    lists = pl.DataFrame(rows, schema={"list": pl.String, "key": pl.String}, orient="row")
    items = lists.sort("key").join(labels, left_on="key", right_on="query", how="left", maintain_order="left")
    rows = [(f"test/{image}", "query", "ignored by the retrieval solution", "") for image in sorted(found.ignored)]
    return (
        items.select("key", pl.lit("query").alias("split"), pl.format("test/{}", "key").alias("file"), *LEVELS),
        pl.DataFrame(rows, schema=DROPPED, orient="row"),
        lists,
        judged.select("query", "item", verdict=pl.lit("relevant")).sort("query", "item"),
        [note] if len(several) else [],
    )


def _containers(source: Path, name: str) -> list[Container]:
    """Return all tars of a set, present or not, each with its checksum if the checksum file exists."""
    containers = []
    for number in range(TARS[name]):
        tar, md5 = source / tar_name(name, number), None
        for path in (tar.with_name(f"md5.{tar.stem}.txt"), source / checksum_name(name, number)):
            if md5 is None and path.is_file():
                md5 = parse_checksum(read_bytes(path, 1 << 16).decode("ascii", "replace"), tar.name, str(path))
        containers.append(Container(tar, md5, name))
    return containers
