"""Tables of a build as the review page shows them: the clustering, the landmarks, the evidence."""

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import polars as pl

from hgld.errors import ConfigError, TableError
from hgld.pipelines.hierarchy.class_graph import ClassGraph
from hgld.pipelines.hierarchy.toplevel import Anchors

_TABLES = {
    "cluster/names.parquet": ("name", "landmarks", "group", "confidence", "next_group", "doubtful"),
    "cluster/groups.parquet": ("group", "label", "method", "evidence"),
    "toplevel/groups.parquet": ("group", "label", "top", "method", "evidence"),
    "clean/names.parquet": ("name", "class_ids", "raw"),
    "clean/landmarks.parquet": ("split", "landmark_id", "title", "supercategory", "name"),
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
        self._titles = {
            group: f"{method}: {evidence}"
            for group, method, evidence in tables["cluster/groups.parquet"]
            .select("group", "method", "evidence")
            .iter_rows()
        }
        self._landmarks = tables["clean/landmarks.parquet"].sort("name", "split", "landmark_id")
        self._where = self._positions()
        self._classes = {name: (ids, raw) for name, ids, raw in tables["clean/names.parquet"].iter_rows()}

    def _read(self, file: str, columns: Sequence[str]) -> pl.DataFrame:
        path = self._stages / file
        try:
            return pl.read_parquet(path, columns=list(columns)).select(columns)
        except (pl.exceptions.PolarsError, OSError) as error:
            raise TableError(
                f"{path}: cannot be read as the build writes it ({error}). Run hgld build-hierarchy again."
            ) from error

    def _positions(self) -> dict[str, tuple[int, int]]:
        """First row and number of rows of each name's landmarks."""
        counts = self._landmarks["name"].rle().struct.unnest()
        starts = counts["len"].cum_sum() - counts["len"]
        return dict(zip(counts["value"], zip(starts, counts["len"], strict=True), strict=True))

    def label_evidence(self, group: object) -> str | None:
        """Return the evidence for a group's label in the clustering; None for a group that a decision made."""
        return self._titles.get(group) if isinstance(group, int) else None

    def facts(self) -> list[list[Any]]:
        """Return the facts that no decision changes: name, landmarks, confidence, doubtful, label of group and next."""
        return [
            [name, landmarks, round(confidence, 3), doubtful, self.labels[group], self.labels.get(second)]
            for name, landmarks, group, confidence, second, doubtful in self.names.iter_rows()
        ]

    def landmarks(self, name: str, start: int, most: int) -> list[dict[str, Any]]:
        """Return ``most`` landmarks of a name from position ``start``: split, landmark_id, title, supercategory."""
        first, count = self._where.get(name, (0, 0))
        rows = self._landmarks.slice(first + start, max(min(most, count - start), 0))
        return rows.drop("name").to_dicts()

    def classes(self, name: str) -> list[list[list[str]]]:
        """Return the paths of a name's Wikidata classes up to the nearest class that is natural or human-made.

        Each is a list of (id, label); the path of a class that reaches none of them is that class alone.
        """
        ids, _ = self._classes.get(name, ([], []))
        return [
            [[step, self._graph.label(step) or step] for step in self._path(class_id)]
            for class_id in ids[:_MOST_CLASSES]
        ]

    def spellings(self, name: str) -> list[str]:
        """Return the scraped texts that were cleaned to this name."""
        return list(self._classes.get(name, ([], []))[1])

    @cached_property
    def _graph(self) -> ClassGraph:
        return ClassGraph.read(self._stages / "scrape" / "classes.parquet")

    @cached_property
    def _anchors(self) -> Anchors:
        return Anchors.read()

    def _path(self, class_id: str) -> tuple[str, ...]:
        above = {class_id: 0, **self._graph.ancestors(class_id)}
        known = above.keys() & self._anchors.classes.keys()
        nearest = min(known, key=lambda other: (above[other], other), default=class_id)
        return self._graph.path(class_id, nearest)
