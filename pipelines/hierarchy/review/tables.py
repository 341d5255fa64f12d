"""The tables of a build for the review page: names, groups, items, images and labels for new groups."""

import io
import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import polars as pl

from hgld.errors import ConfigError
from hgld.files import read_json
from hgld.tables import parquet_schema, read_parquet

from ..groups.group_names import Member, propose_labels
from ..groups.levels import LANDMARKS
from ..landmark_images import LandmarkKey, find_images, listed_images, read_image
from ..names.class_graph import ClassGraph
from ..names.classes import SPLIT
from ..names.clean import NameRules
from ..names.landmark_tables import with_item_columns
from .grouping import Classes, GroupId, OpenClasses

_TABLES = {
    "cluster/names.parquet": ("name", "landmarks", "group", "confidence", "next_group", "wrong"),
    "cluster/groups.parquet": ("group", "label", "method", "evidence"),
    "toplevel/groups.parquet": ("group", "label", "top", "method", "evidence"),
    "clean/names.parquet": ("name", "class_ids", "raw", "english"),
    "clean/landmarks.parquet": ("split", "landmark_id", "category", "title", "supercategory", "name"),
}
LEVELS = "levels.parquet"
_MOST_CLASSES = 6
_MOST_LABELS = 5
_LONGEST_LINK = 2_000
_SIDE = 240  # pixels per side of a thumbnail; the page shows 120, so it is sharp on high-resolution screens


class BuildTables:
    """The tables of a finished build.

    Args:
        directory: the build's folder.

    Attributes:
        names: the table ``cluster/names.parquet``.
        groups: the table ``toplevel/groups.parquet``.
        levels: the table ``toplevel/levels.parquet``; None if the build has no such table.
        classes: the classes of every level above the groups, finest level first.
        place: group number by name.
        sizes: number of items by name.
        labels: label by group.
        label_evidence: evidence for a group's label, by group of the clustering.
        item: the noun for the things that have names, ``landmark`` or ``item``.

    Raises:
        ConfigError: the folder is not a build, or the build has no groups yet.
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
        levels, toplevel = self._stages / "toplevel" / LEVELS, read_json(self._stages / "toplevel" / "done.json")
        self.levels = read_parquet(levels) if levels.is_file() else None
        self.classes = classes_above(toplevel.get("details", {}), self.levels)
        self.place: dict[str, int] = dict(self.names.select("name", "group").iter_rows())
        self.sizes: dict[str, int] = dict(self.names.select("name", "landmarks").iter_rows())
        self.labels: dict[int, str] = dict(self.groups.select("group", "label").iter_rows())
        evidence = tables["cluster/groups.parquet"].select("group", "method", "evidence")
        self.label_evidence: Mapping[GroupId, str] = {
            g: f"{method}: {said}" for g, method, said in evidence.iter_rows()
        }
        self._landmarks = self._with_ids(tables["clean/landmarks.parquet"]).sort("name", "split", "landmark_id")
        self.item = "item" if self._landmarks["split"].unique().to_list() == [SPLIT] else "landmark"
        self._cleaned = {name: facts for name, *facts in tables["clean/names.parquet"].iter_rows()}

    def _read(self, file: str, columns: Sequence[str]) -> pl.DataFrame:
        return read_parquet(self._stages / file, columns, fix="Run hgld build-hierarchy again.")

    def facts(self) -> list[list[Any]]:
        """Return per name: name, number of items, confidence, label of its group and of the second best group."""
        columns = self.names.select("name", "landmarks", "group", "confidence", "next_group")
        return [
            [name, landmarks, round(confidence, 3), self.labels[group], self.labels.get(second)]
            for name, landmarks, group, confidence, second in columns.iter_rows()
        ]

    @cached_property
    def items(self) -> frozenset[tuple[str, str]]:
        """Split and id of every item."""
        return frozenset(self._landmarks.select("split", "id").iter_rows())

    def _with_ids(self, landmarks: pl.DataFrame) -> pl.DataFrame:
        """Add the ids, descriptions and images from a list of names. The id of a landmark is its number."""
        keys, file = ["split", "landmark_id"], self._stages / "scrape" / "landmarks.parquet"
        found = set(parquet_schema(file)) if file.is_file() else set()
        stated = sorted({"id", "description", "images"} & found)
        scraped = self._read("scrape/landmarks.parquet", [*keys, *stated]) if stated else landmarks.select(keys).clear()
        told = with_item_columns(scraped).select(*keys, "id", "description", "images")
        joined = landmarks.join(told, on=keys, how="left", maintain_order="left")
        return joined.with_columns(pl.col("id").fill_null(pl.col("landmark_id").cast(pl.String)))

    def images(self) -> dict[tuple[str, int], list[str]]:
        """Return the image paths of items from a list of names; empty for landmarks."""
        rows = self._landmarks.filter(pl.col("images").list.len() > 0).select("split", "landmark_id", "images")
        return {(split, number): images for split, number, images in rows.iter_rows()}

    def landmarks(self, name: str, start: int, most: int) -> list[dict[str, Any]]:
        """Return at most ``most`` landmarks of a name, beginning at position ``start``.

        Each landmark has the fields split, landmark_id, id, title, supercategory, description and link (the item's page
        at its source).
        """
        rows = self._landmarks.filter(pl.col("name") == name).slice(start, most).drop("name", "images")
        return [{**row, "link": link_of(row.pop("category"), row["id"])} for row in rows.iter_rows(named=True)]

    def classes_of(self, name: str) -> list[list[str | None]]:
        """Return id, label and link of a name's classes; only classes of Wikidata have a link."""
        ids = self._cleaned[name][0] if name in self._cleaned else ()
        return [[id_, self.graph.label(id_) or id_, wikidata_link(id_)] for id_ in ids[:_MOST_CLASSES]]

    def spellings(self, name: str) -> list[str]:
        """Return the scraped texts that were cleaned to this name."""
        return self._cleaned[name][1] if name in self._cleaned else []

    @cached_property
    def graph(self) -> ClassGraph:
        """The class graph; empty if the build has no class graph."""
        return ClassGraph.read(self._stages / "scrape" / "classes.parquet")

    def labels_for(self, names: Sequence[str], taken: Collection[str]) -> list[dict[str, str]]:
        """Return labels for a new group of names, each with its reason, the best first, without labels in ``taken``.

        The first label is the one that the build would give the group. Then come words that at least half of the names
        share, then the names with most items.
        """
        facts = [(name, self.sizes[name], self._cleaned[name]) for name in sorted(names)]
        members = [Member(name, size, tuple(ids or ()), 0.0, english) for name, size, (ids, _, english) in facts]
        rules = NameRules.read(domain=self._domain)
        found = {one.label: one.evidence for one in propose_labels([members], self.graph, rules, self._domain)}
        words = Counter(word for name in names for word in {*name.split()} if len(word) > 2)
        shared = [word for word, count in words.items() if count > 1 and 2 * count >= len(names)]
        for word in sorted(shared, key=lambda word: (-words[word], -len(word), word))[:2]:
            found.setdefault(word, f"in {words[word]} of {len(names)} names")
        for name, size, _ in sorted(facts, key=lambda fact: -fact[1])[:_MOST_LABELS]:
            found.setdefault(name, f"a name of {size:,} {self.item}{'s' * (size != 1)}")
        return [{"label": label, "why": why} for label, why in found.items() if label not in taken][:_MOST_LABELS]

    @cached_property
    def _domain(self) -> str:
        """The domain of the build's names, from the settings of its clean stage."""
        return str(read_json(self._stages / "clean" / "done.json")["config"]["domain"])


def classes_above(details: Mapping[str, Any], labels: pl.DataFrame | None) -> Classes:
    """Return the classes of every level above the groups, finest level first.

    Args:
        details: details of the top-level stage, ``levels`` and ``tops``; a missing entry means the levels or tops of
            landmarks.
        labels: the stage's ``levels.parquet``: the classes of the levels that the data defines.
    """
    above = list(details.get("levels", LANDMARKS.names))[2:]
    found: dict[str, tuple[str, ...]] = dict.fromkeys(above, ())
    if labels is not None:
        rows = labels.select("level", "label").drop_nulls().unique().sort("level", "label").group_by("level")
        found |= {level[0]: OpenClasses(part["label"].to_list()) for level, part in rows if level[0] in found}
    if above and (tops := tuple(details.get("tops", LANDMARKS.top))):
        found[above[-1]] = tops
    return found


def link_of(category: object, id_: str = "") -> str | None:
    """Return the URL of an item's page: at its source, else on Wikidata by its id; None if neither is known."""
    if not isinstance(category, str) or len(category) > _LONGEST_LINK:
        return wikidata_link(id_)
    text = category.strip().replace(" ", "%20")
    try:
        parts = urlsplit(text)
        is_web = parts.scheme in ("http", "https") and bool(parts.hostname) and text.isprintable()
    except ValueError:  # the URL is invalid, such as http://[
        is_web = False
    return text if is_web else wikidata_link(id_)


def wikidata_link(class_id: str) -> str | None:
    """Return the URL of a Wikidata class; None for other ids."""
    return f"https://www.wikidata.org/wiki/{class_id}" if re.fullmatch(r"Q[1-9][0-9]{0,17}", class_id) else None


class Thumbnails:
    """Thumbnails of items, made when the page asks for them.

    Args:
        folder: folder of landmarks' images, or the folder that ``listed`` paths are relative to; None: no images.
        listed: image paths by item, if the build lists them; empty: the items are landmarks.

    Raises:
        ConfigError: the folder does not exist or has no known layout, or a listed path leaves the folder.
        TableError: the folder's ``images.csv`` cannot be used.
    """

    def __init__(self, folder: Path | None, listed: Mapping[LandmarkKey, Sequence[str]] | None = None) -> None:
        self._images: Mapping[LandmarkKey, Sequence[Path]] = {}
        if folder and listed:
            if not folder.is_dir():
                raise ConfigError(f"--images {folder}: expected the folder of the table that lists the images.")
            self._images = dict(zip(listed, listed_images(list(listed.values()), folder), strict=True))
        elif folder:
            self._images = find_images(folder)

    def count(self, landmark: LandmarkKey) -> int:
        """Return the number of images of a landmark, at most ``landmark_images.IMAGES_A_LANDMARK``."""
        return len(self._images.get(landmark, ()))

    def jpeg(self, landmark: LandmarkKey, number: int) -> bytes | None:
        """Return a landmark's image ``number`` (from 0) as a JPEG thumbnail; None if there is no such image.

        Raises:
            ImageError: the image cannot be decoded.
        """
        return _thumbnail(self._images[landmark][number]) if number < self.count(landmark) else None


@lru_cache(maxsize=1024)  # one thumbnail has some 10 kB
def _thumbnail(path: Path) -> bytes:
    image = read_image(path)
    image.thumbnail((_SIDE, _SIDE))
    data = io.BytesIO()
    image.save(data, "JPEG", quality=80)
    return data.getvalue()
