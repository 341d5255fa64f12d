"""H-GLDv2: Google Landmarks v2 with hierarchical labels, straight from its tars.

Weyand, Araujo, Cao and Sim: "Google Landmarks Dataset v2", CVPR 2020; Ramzi et al.: "Optimization of Rank Losses for
Image Retrieval", 2023. The source is a folder as ``hgld download gldv2`` leaves it (see
:mod:`pipelines.gldv2_files`); the CSVs may also lie in the folder itself, checksums beside their tars.

Splits: ``train`` = the images of train_clean.csv whose landmark has hierarchical labels; ``gallery`` = the index images
of such landmarks; ``query`` = the test images that the retrieval solution scores.
"""

from pathlib import Path
from typing import TYPE_CHECKING

import polars as pl

from hgld.errors import ConfigError, TableError
from pipelines.catalog import Catalog, Container
from pipelines.gldv2_files import BASE_URL, TARS, checksum_name, tar_name
from pipelines.sources.release import need, read_csv, refuse_options
from pipelines.titles import category_title

if TYPE_CHECKING:
    from pipelines.shard_config import SourceConfig

LEVELS = ("landmark", "hierarchical_label", "natural_or_human_made")
SPLITS = {"train": "train", "gallery": "index", "query": "test"}  # split: GLDv2's own name of the set
OBTAIN = f"Get it from {BASE_URL}: hgld download gldv2 --metadata --out DIR."
_ID = r"^[0-9a-f]{16}$"


def read(source: Path, options: "SourceConfig") -> Catalog:
    """The catalog of H-GLDv2.

    A query has the labels that all its relevant index images share. Index images of landmarks without hierarchical
    labels are kept aside, unless ``distractors`` asks for the whole gallery of the official retrieval task.

    Args:
        source: the folder with ``train/``, ``index/`` and ``test/`` (tars) and ``metadata/``.
        options: ``labels``, a folder with ``{train,index}_label_to_hierarchical.csv`` (of ``hgld build-hierarchy``, or
            Google's own) if they are not in the source; ``distractors``; ``splits``.

    Raises:
        ConfigError: options that GLDv2 does not take, or a split that it does not have.
        InputError: a list is missing.
        TableError: a list cannot be read or contradicts itself.
    """
    from pipelines.sources.gldv2_queries import read_queries  # imports torch

    refuse_options(options, ("labels", "distractors"), "gldv2")
    wanted = tuple(dict.fromkeys(options.splits)) or tuple(SPLITS)
    if unknown := [split for split in wanted if split not in SPLITS]:
        raise ConfigError(f"gldv2 has no split {unknown[0]!r}; its splits are {', '.join(SPLITS)}. Correct --splits.")
    lists = _Lists(source, options.labels)
    parts: dict[str, tuple[pl.DataFrame, pl.DataFrame]] = {}
    if "train" in wanted:
        parts["train"] = _read_train(lists)
    if "gallery" in wanted or "query" in wanted:
        parts["gallery"] = _read_gallery(lists, whole=options.distractors)
    queries = (
        read_queries(lists.find("retrieval_solution_v2.1.csv"), parts["gallery"][0]) if "query" in wanted else None
    )
    if queries:
        parts["query"] = (queries.items, queries.dropped)
    items = pl.concat([parts[split][0] for split in wanted])
    _check_ids(items, source)
    return Catalog(
        name="gldv2",
        levels=LEVELS,
        items=items,
        root=source,
        containers=tuple(c for split in wanted for c in _containers(source, SPLITS[split])),
        lists=queries.lists if queries else None,
        judgements=queries.judgements if queries and "gallery" in wanted else None,
        dropped=pl.concat([parts[split][1] for split in wanted]),
        notes=("train and index number their landmarks apart: one place may be a class of each.",),
        sources=tuple(lists.read),
        disjoint=False,
    )


class _Lists:
    """Finds the CSVs of the release, and remembers which were read."""

    def __init__(self, source: Path, labels: Path | None) -> None:
        self.source, self.labels_folder = source, labels
        self.read: list[Path] = []

    def find(self, name: str, *folders: Path) -> Path:
        places = folders or tuple(self.source / place for place in ("metadata", "ground_truth", "."))
        path = next((folder / name for folder in places if (folder / name).is_file()), places[0] / name)
        self.read.append(need(path, OBTAIN))
        return path

    def labels(self, name: str) -> pl.DataFrame:
        """One row a landmark with labels: landmark_id (text) and the levels."""
        folder = () if self.labels_folder is None else (self.labels_folder,)
        return read_labels(self.find(f"{name}_label_to_hierarchical.csv", *folder), name)


def _read_train(lists: _Lists) -> tuple[pl.DataFrame, pl.DataFrame]:
    """The images of train_clean.csv as items, and those of landmarks without labels."""
    columns = ["landmark_id", "images"]
    clean = read_csv(lists.find("train_clean.csv"), columns, OBTAIN, filled=columns)
    images = clean.select("landmark_id", pl.col("images").str.split(" ").alias("id")).explode("id")
    return _label(images, lists.labels("train"), "train", keep_unlabelled=False)


def _read_gallery(lists: _Lists, *, whole: bool) -> tuple[pl.DataFrame, pl.DataFrame]:
    """The index images as items, and, unless the whole gallery is wanted, those of landmarks without labels."""
    columns = ["id", "landmark_id"]
    index = read_csv(lists.find("index_image_to_landmark.csv"), columns, OBTAIN, filled=columns)
    return _label(index, lists.labels("index"), "gallery", keep_unlabelled=whole)


def read_labels(path: Path, name: str) -> pl.DataFrame:
    """The labels of GLDv2's hierarchical CSV, one row a landmark that has any: landmark_id (text), then the levels.

    A landmark's class is named ``"{set}/{id} {title}"``, as in ``hierarchy.parquet`` of ``hgld build-hierarchy``.

    Raises:
        InputError: the file is missing.
        TableError: it cannot be read, or has a landmark twice.
    """
    _, group, top = LEVELS
    table = read_csv(path, ["landmark_id", "category", group, top], OBTAIN, filled=["landmark_id"])
    table = table.filter(pl.col(group).is_not_null() & (pl.col(group).str.to_lowercase() != "unclassified"))
    if not (twice := table.filter(pl.col("landmark_id").is_duplicated())).is_empty():
        raise TableError(f"{path}: landmark {twice['landmark_id'][0]} has two rows; expected one a landmark.")
    titles = [(category_title(url or "") or "").removeprefix("Category:") for url in table["category"].to_list()]
    named = pl.format("{}/{} {}", pl.lit(name), "landmark_id", pl.Series("title", titles, dtype=pl.String))
    return table.select("landmark_id", named.str.strip_chars_end().alias("landmark"), group, top)


def _label(
    images: pl.DataFrame, labels: pl.DataFrame, split: str, *, keep_unlabelled: bool
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Images (id, landmark_id) as items with their labels; and those of landmarks that have none."""
    container = SPLITS[split]
    joined = images.join(labels, on="landmark_id", how="left", maintain_order="left")
    unlabelled = pl.col("landmark").is_null()
    if keep_unlabelled:
        own = pl.format("{}/{}", pl.lit(container), "landmark_id")
        joined = joined.with_columns(pl.coalesce("landmark", own).alias("landmark"))
    file = pl.format("{}/{}", pl.lit(container), "id")
    kept = joined.filter(~unlabelled).select(
        pl.col("id").alias("key"), pl.lit(split).alias("split"), file.alias("file"), *LEVELS
    )
    left = joined.filter(unlabelled).select(
        file=file,
        split=pl.lit(split),
        reason=pl.lit("landmark without hierarchical labels"),
        detail=pl.format("landmark {}", "landmark_id"),
    )
    return kept, left


def _check_ids(items: pl.DataFrame, source: Path) -> None:
    odd = items.filter(~pl.col("key").str.contains(_ID).fill_null(value=False))
    if not odd.is_empty():
        row = odd.row(0, named=True)
        raise TableError(
            f"{source}: the {row['split']} list has the image {str(row['key'])[:80]!r}; expected ids of 16 hex digits."
        )


def _containers(source: Path, name: str) -> list[Container]:
    """All tars of a set, there or not, each with its checksum file where there is one."""
    containers = []
    for number in range(TARS[name]):
        tar = source / tar_name(name, number)
        beside = tar.with_name(f"md5.{tar.stem}.txt")
        checksum = next((p for p in (beside, source / checksum_name(name, number)) if p.is_file()), None)
        containers.append(Container(tar, checksum, name))
    return containers
