"""Tables of a build for the review page: names and groups, items with images, evidence, labels for new groups."""

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
from .grouping import Classes

_TABLES = {
    "cluster/names.parquet": ("name", "landmarks", "group", "confidence", "next_group", "wrong", "doubtful"),
    "cluster/groups.parquet": ("group", "label", "method", "evidence"),
    "toplevel/groups.parquet": ("group", "label", "top", "method", "evidence"),
    "clean/names.parquet": ("name", "class_ids", "raw", "english"),
    "clean/landmarks.parquet": ("split", "landmark_id", "category", "title", "supercategory", "name"),
}
LEVELS = "levels.parquet"
_MOST_CLASSES = 6
_MOST_LABELS = 5
_LONGEST_LINK = 2_000
_SIDE = 240  # pixels of a thumbnail, shown at 120 so that it is sharp on screens of high resolution


class BuildTables:
    """The tables of a finished build.

    Args:
        directory: the build's folder.

    Attributes:
        names: cluster/names.parquet, by name.
        groups: toplevel/groups.parquet.
        place: group number of every name.
        labels: label of every group.

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
        self.place: dict[str, int] = dict(self.names.select("name", "group").iter_rows())
        self.labels: dict[int, str] = dict(self.groups.select("group", "label").iter_rows())
        evidence = tables["cluster/groups.parquet"].select("group", "method", "evidence")
        self._titles = {group: f"{method}: {said}" for group, method, said in evidence.iter_rows()}
        self._landmarks = self._with_ids(tables["clean/landmarks.parquet"]).sort("name", "split", "landmark_id")
        counts = self._landmarks["name"].rle().struct.unnest()
        starts = counts["len"].cum_sum() - counts["len"]
        self._rows = dict(zip(counts["value"], zip(starts, counts["len"], strict=True), strict=True))  # first, number
        cleaned = tables["clean/names.parquet"]
        self._classes = {name: (ids, raw) for name, ids, raw, _ in cleaned.iter_rows()}
        self._english = frozenset(cleaned.filter("english")["name"])

    def _read(self, file: str, columns: Sequence[str]) -> pl.DataFrame:
        return read_parquet(self._stages / file, columns, fix="Run hgld build-hierarchy again.")

    def label_evidence(self, group: object) -> str | None:
        """Return the evidence for a group's label; None for a group that a decision made."""
        return self._titles.get(group) if isinstance(group, int) else None

    def facts(self) -> list[list[Any]]:
        """Return name, number of items, confidence, label of its group and of the second best group."""
        columns = self.names.select("name", "landmarks", "group", "confidence", "next_group")
        return [
            [name, landmarks, round(confidence, 3), self.labels[group], self.labels.get(second)]
            for name, landmarks, group, confidence, second in columns.iter_rows()
        ]

    @cached_property
    def item(self) -> str:
        """``landmark`` or ``item``: what a name of this build belongs to."""
        return "item" if self._landmarks["split"].unique().to_list() == [SPLIT] else "landmark"

    @cached_property
    def classes(self) -> Classes:
        """The classes of every level above the groups, finest level first."""
        stage = self._stages / "toplevel"
        table = read_parquet(stage / LEVELS) if (stage / LEVELS).is_file() else None
        return classes_above(read_json(stage / "done.json").get("details", {}), table)

    def has_item(self, split: str, id_: str) -> bool:
        """Return whether the build has an item of this split and id."""
        return (split, id_) in self._items

    @cached_property
    def _items(self) -> frozenset[tuple[str, str]]:
        return frozenset(self._landmarks.select("split", "id").iter_rows())

    def _with_ids(self, landmarks: pl.DataFrame) -> pl.DataFrame:
        """Add the ids, descriptions and images of a list of names; a landmark's id is its number."""
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

        Each has split, landmark_id, id, title, supercategory, description and link (the item's page at its source).
        """
        first, count = self._rows.get(name, (0, 0))
        rows = self._landmarks.slice(first + start, max(min(most, count - start), 0)).drop("name", "images")
        return [{**row, "link": link_of(row.pop("category"), row["id"])} for row in rows.iter_rows(named=True)]

    def classes_of(self, name: str) -> list[list[str | None]]:
        """Return id, label and link of a name's classes; only Wikidata's have a link."""
        ids, _ = self._classes.get(name, ([], []))
        return [[id_, self.graph.label(id_) or id_, wikidata_link(id_)] for id_ in ids[:_MOST_CLASSES]]

    def spellings(self, name: str) -> list[str]:
        """Return the scraped texts that were cleaned to this name."""
        return list(self._classes.get(name, ([], []))[1])

    @cached_property
    def graph(self) -> ClassGraph:
        """The class graph; empty if the build has none."""
        return ClassGraph.read(self._stages / "scrape" / "classes.parquet")

    @cached_property
    def sizes(self) -> dict[str, int]:
        """Number of items of every name."""
        return dict(self.names.select("name", "landmarks").iter_rows())

    def labels_for(self, names: Sequence[str], taken: Collection[str]) -> list[dict[str, str]]:
        """Return labels for a new group of names, the best first, each with its reason; no label of ``taken``.

        First the label that the build would give the group, then words that at least half of the names share, then the
        names with most items.
        """
        members = [
            Member(name, self.sizes[name], tuple(self._classes[name][0] or ()), 0.0, name in self._english)
            for name in sorted(names)
        ]
        rules = NameRules.read(domain=self._domain)
        found = {one.label: one.evidence for one in propose_labels([members], self.graph, rules, self._domain)}
        words = Counter(word for name in names for word in {*name.split()} if len(word) > 2)
        shared = [word for word, count in words.items() if count > 1 and 2 * count >= len(names)]
        for word in sorted(shared, key=lambda word: (-words[word], -len(word), word))[:2]:
            found.setdefault(word, f"in {words[word]} of {len(names)} names")
        for name in sorted(names, key=lambda name: (-self.sizes[name], name))[:_MOST_LABELS]:
            found.setdefault(name, f"a name of {self.sizes[name]:,} {self.item}{'s' * (self.sizes[name] != 1)}")
        return [{"label": label, "why": why} for label, why in found.items() if label not in taken][:_MOST_LABELS]

    @cached_property
    def _domain(self) -> str:
        """The domain of the build's names, as its clean stage states it."""
        return str(read_json(self._stages / "clean" / "done.json")["config"]["domain"])


def classes_above(details: Mapping[str, Any], labels: pl.DataFrame | None) -> Classes:
    """Return the classes of every level above the groups, finest level first.

    Args:
        details: the top-level stage's details: ``levels`` and ``tops``; those of landmarks where it has none.
        labels: its ``levels.parquet``: the classes of the levels that come from the data.
    """
    above = list(details.get("levels", LANDMARKS.names))[2:]
    found: dict[str, tuple[str, ...]] = dict.fromkeys(above, ())
    if labels is not None:
        rows = labels.select("level", "label").drop_nulls().unique().sort("level", "label").group_by("level")
        found |= {level[0]: tuple(part["label"].to_list()) for level, part in rows if level[0] in found}
    if above and (tops := tuple(details.get("tops", LANDMARKS.top))):
        found[above[-1]] = tops
    return found


def link_of(category: object, id_: str = "") -> str | None:
    """Return the page of an item: the URL from its source, else Wikidata's page of its id; None without either."""
    if not isinstance(category, str) or len(category) > _LONGEST_LINK:
        return wikidata_link(id_)
    text = category.strip().replace(" ", "%20")
    try:
        parts = urlsplit(text)
        is_web = parts.scheme in ("http", "https") and bool(parts.hostname) and text.isprintable()
    except ValueError:  # such as http://[
        is_web = False
    return text if is_web else wikidata_link(id_)


def wikidata_link(class_id: str) -> str | None:
    """Return the page of a Wikidata class; None for any other id."""
    return f"https://www.wikidata.org/wiki/{class_id}" if re.fullmatch(r"Q[1-9][0-9]{0,17}", class_id) else None


class Thumbnails:
    """Thumbnails of the items with images at ``place``, made on demand; none if it is None.

    Args:
        place: folder of landmarks' images, or the folder that ``listed`` paths are relative to.
        listed: paths of images by item, if the build lists them; empty: the items are landmarks.

    Raises:
        ConfigError: nothing is at ``place``, or nothing in a known layout, or a listed path leaves it.
        TableError: its ``images.csv`` cannot be used.
    """

    def __init__(self, place: Path | None, listed: Mapping[LandmarkKey, Sequence[str]] | None = None) -> None:
        self._images: Mapping[LandmarkKey, Sequence[Path]] = {}
        if place and listed:
            if not place.is_dir():
                raise ConfigError(f"--images {place}: expected the folder of the table that lists the images.")
            self._images = dict(zip(listed, listed_images(list(listed.values()), place), strict=True))
        elif place:
            self._images = find_images(place)

    def __contains__(self, landmark: object) -> bool:
        return bool(self._images.get(landmark)) if isinstance(landmark, tuple) else False

    def count(self, landmark: LandmarkKey) -> int:
        """Return the number of images of a landmark, at most ``landmark_images.IMAGES_A_LANDMARK``."""
        return len(self._images.get(landmark, ()))

    def jpeg(self, landmark: LandmarkKey, number: int) -> bytes | None:
        """Return the thumbnail of a landmark's image ``number`` (from 0) as JPEG bytes; None if there is no such image.

        Raises:
            ImageError: the image is there and cannot be decoded.
        """
        images = self._images.get(landmark, ())
        return _thumbnail(images[number]) if 0 <= number < len(images) else None


@lru_cache(maxsize=1024)  # a thumbnail has some 10 kB
def _thumbnail(image: Path) -> bytes:
    picture = read_image(image)
    picture.thumbnail((_SIDE, _SIDE))
    data = io.BytesIO()
    picture.save(data, "JPEG", quality=80)
    return data.getvalue()
