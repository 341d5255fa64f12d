"""Tables of a build as the review page shows them: the clustering, the landmarks, the evidence."""

import re
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import polars as pl

from hgld.errors import ConfigError, TableError
from hgld.files import read_json
from hgld.tables import parquet_schema, read_parquet

from ..levels.toplevel import Anchors
from ..names.class_graph import ClassGraph
from ..names.classes import SPLIT
from ..names.landmark_tables import with_item_columns
from .decisions.classes_above import read_classes_above
from .decisions.grouping import Classes

_TABLES = {
    "cluster/names.parquet": ("name", "landmarks", "group", "confidence", "next_group", "wrong", "doubtful"),
    "cluster/groups.parquet": ("group", "label", "method", "evidence"),
    "toplevel/groups.parquet": ("group", "label", "top", "method", "evidence"),
    "clean/names.parquet": ("name", "class_ids", "raw", "english"),
    "clean/landmarks.parquet": ("split", "landmark_id", "category", "title", "supercategory", "name"),
}
_MOST_CLASSES = 6


class BuildTables:
    """The tables of a finished build.

    Args:
        directory: the build's folder.

    Attributes:
        names: cluster/names.parquet, by name.
        groups: toplevel/groups.parquet.
        place: every name's group number.
        labels: every group's label.
        are_given: whether people gave the groups by name.

    Raises:
        ConfigError: the folder is no build, or one that has not made its groups yet.
        TableError: a table cannot be read or lacks a column.
    """

    def __init__(self, directory: Path) -> None:
        self._stages = directory / "stages"
        if not (self._stages / "toplevel" / "done.json").is_file():
            raise ConfigError(
                f"{directory}: no finished build of a hierarchy. Run hgld build-hierarchy ... --out {directory} first."
            )
        tables = {file: self._read(file, columns) for file, columns in _TABLES.items()}
        self.names, self.groups = tables["cluster/names.parquet"], tables["toplevel/groups.parquet"]
        self.place: dict[str, int] = dict(self.names.select("name", "group").iter_rows())
        self.labels: dict[int, str] = dict(self.groups.select("group", "label").iter_rows())
        unknown = sorted(set(self.place.values()) - self.labels.keys())
        if unknown:
            raise TableError(
                f"{self._stages}: cluster/names.parquet and toplevel/groups.parquet do not belong together (group "
                f"{unknown[0]} has no label). Remove both folders and run hgld build-hierarchy again."
            )
        self.are_given = (tables["cluster/groups.parquet"]["method"] == "given").any()
        self._titles = {
            group: f"{method}: {evidence}"
            for group, method, evidence in tables["cluster/groups.parquet"]
            .select("group", "method", "evidence")
            .iter_rows()
        }
        self._landmarks = self._with_ids(tables["clean/landmarks.parquet"]).sort("name", "split", "landmark_id")
        self._where = self._positions()
        cleaned = tables["clean/names.parquet"]
        self._classes = {name: (ids, raw) for name, ids, raw, _ in cleaned.iter_rows()}
        self._english = frozenset(cleaned.filter("english")["name"])

    def _read(self, file: str, columns: Sequence[str]) -> pl.DataFrame:
        return read_parquet(self._stages / file, columns, fix="Run hgld build-hierarchy again.")

    def _positions(self) -> dict[str, tuple[int, int]]:
        """First row and number of rows of each name's landmarks."""
        counts = self._landmarks["name"].rle().struct.unnest()
        starts = counts["len"].cum_sum() - counts["len"]
        return dict(zip(counts["value"], zip(starts, counts["len"], strict=True), strict=True))

    def label_evidence(self, group: object) -> str | None:
        """Return the evidence for a group's label in the clustering; None for a group that a decision made."""
        return self._titles.get(group) if isinstance(group, int) else None

    def facts(self) -> list[list[Any]]:
        """Return the facts that no decision changes: name, landmarks, confidence, label of group and of the next."""
        columns = self.names.select("name", "landmarks", "group", "confidence", "next_group")
        return [
            [name, landmarks, round(confidence, 3), self.labels[group], self.labels.get(second)]
            for name, landmarks, group, confidence, second in columns.iter_rows()
        ]

    @cached_property
    def item(self) -> str:
        """Word for what has a name in this build."""
        return "item" if self._landmarks["split"].unique().to_list() == [SPLIT] else "landmark"

    @cached_property
    def classes(self) -> Classes:
        """The classes of every level above the groups, finest level first."""
        return read_classes_above(self._stages / "toplevel")

    def has_item(self, split: str, id_: str) -> bool:
        """Return whether the build has an item of this split and id."""
        return (split, id_) in self._items

    @cached_property
    def _items(self) -> frozenset[tuple[str, str]]:
        return frozenset(self._landmarks.select("split", "id").iter_rows())

    def _with_ids(self, landmarks: pl.DataFrame) -> pl.DataFrame:
        """Add the ids and descriptions that a list of names gave to its items; a landmark's id is its number."""
        file = self._stages / "scrape" / "landmarks.parquet"
        number = pl.col("landmark_id").cast(pl.String)
        given = {"id", "description", "images"} & set(parquet_schema(file)) if file.is_file() else set()
        if not given:
            nothing = {"description": pl.lit(None, dtype=pl.String), "images": pl.lit(None, dtype=pl.List(pl.String))}
            return landmarks.with_columns(id=number, **nothing)
        told = with_item_columns(self._read("scrape/landmarks.parquet", ("split", "landmark_id", *sorted(given))))
        joined = landmarks.join(
            told.select("split", "landmark_id", "id", "description", "images"), on=("split", "landmark_id"), how="left"
        )
        return joined.with_columns(id=pl.col("id").fill_null(number))

    def images(self) -> dict[tuple[str, int], list[str]]:
        """Return the paths of images that a list of names gave to its items; empty for landmarks."""
        rows = self._landmarks.filter(pl.col("images").list.len() > 0).select("split", "landmark_id", "images")
        return {(split, number): images for split, number, images in rows.iter_rows()}

    def landmarks(self, name: str, start: int, most: int) -> list[dict[str, Any]]:
        """Return ``most`` landmarks of a name from position ``start``.

        Each has split, landmark_id, id, title, supercategory, description and link, the page that the build's source
        names for it.
        """
        first, count = self._where.get(name, (0, 0))
        rows = self._landmarks.slice(first + start, max(min(most, count - start), 0)).drop("name", "images")
        return [{**row, "link": link_of(row.pop("category"), row["id"])} for row in rows.iter_rows(named=True)]

    def classes_of(self, name: str) -> list[list[list[str | None]]]:
        """Return the paths of a name's Wikidata classes up to the nearest class that is natural or human-made.

        Each is a list of (id, label, link); the path of a class that reaches none of them is that class alone. Only
        what Wikidata calls Q and a number has a link there.
        """
        ids, _ = self._classes.get(name, ([], []))
        return [
            [[step, self.graph.label(step) or step, wikidata_link(step)] for step in self._path(class_id)]
            for class_id in ids[:_MOST_CLASSES]
        ]

    def spellings(self, name: str) -> list[str]:
        """Return the scraped texts that were cleaned to this name."""
        return list(self._classes.get(name, ([], []))[1])

    @cached_property
    def graph(self) -> ClassGraph:
        """The class graph; empty where the build has none."""
        return ClassGraph.read(self._stages / "scrape" / "classes.parquet")

    @cached_property
    def _anchors(self) -> Anchors:
        return Anchors.read()

    @cached_property
    def sizes(self) -> dict[str, int]:
        """Number of items of every name."""
        return dict(self.names.select("name", "landmarks").iter_rows())

    def class_ids(self, name: str) -> tuple[str, ...]:
        """Return the ids of a name's classes."""
        return tuple(self._classes.get(name, ([], []))[0] or ())

    def is_english(self, name: str) -> bool:
        """Return whether the rules of English apply to a name."""
        return name in self._english

    @cached_property
    def domain(self) -> str:
        """The domain of the build's names, as its clean stage states it.

        Raises:
            TableError: the stage's record cannot be read.
        """
        file = self._stages / "clean" / "done.json"
        try:
            return str(read_json(file)["config"]["domain"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise TableError(
                f"{file}: does not say the domain of the names. Run hgld build-hierarchy again."
            ) from error

    def _path(self, class_id: str) -> tuple[str, ...]:
        above = {class_id: 0, **self.graph.ancestors(class_id)}
        known = above.keys() & self._anchors.classes.keys()
        nearest = min(known, key=lambda other: (above[other], other), default=class_id)
        return self.graph.path(class_id, nearest)


_LONGEST_LINK = 2_000


def link_of(category: object, id_: str = "") -> str | None:
    """Return an item's page: the web address that its source gave, or Wikidata's for an id of its; None without one."""
    if not isinstance(category, str) or len(category) > _LONGEST_LINK:
        return wikidata_link(id_)
    text = category.strip().replace(" ", "%20")
    try:
        parts = urlsplit(text)
        is_web = parts.scheme in ("http", "https") and bool(parts.hostname) and text.isprintable()
    except ValueError:  # brackets that are no address
        is_web = False
    return text if is_web else wikidata_link(id_)


def wikidata_link(class_id: str) -> str | None:
    """Return the page of a class of Wikidata; None for an id of anything else."""
    return f"https://www.wikidata.org/wiki/{class_id}" if re.fullmatch(r"Q[1-9][0-9]{0,17}", class_id) else None
