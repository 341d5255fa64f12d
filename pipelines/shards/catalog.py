"""The catalog of a release: its items, splits and classes as an adapter reads them, before any image is opened."""

import hashlib
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import polars as pl

from hgld.data.format import BOX, KEY_PATTERN, LONGEST_KEY, SPLIT_PATTERN, check_levels, short
from hgld.errors import HierarchyError, InputError, TableError, quoted, some

if TYPE_CHECKING:
    from hgld.hierarchy import Hierarchy

TRAIN = "train"
_UNSAFE = re.compile(r"[^A-Za-z0-9_=/-]")
_LONGEST_MADE = LONGEST_KEY - 20  # leaves room for a suffix that an adapter may append
_KEY_KEPT = 160
_LONGEST_FILE, _LONGEST_CLASS = 4_096, 1_000  # bytes
_SHOWN = 5
_BESIDE_LEVELS = {"file", "row", "reason", "detail", "origin", "source_offset", "label"}
_ITEM_COLUMNS = ("key", "split", "file")
DROPPED = {"file": pl.String, "split": pl.String, "reason": pl.String, "detail": pl.String}
"""Columns of the files that an adapter leaves out."""
_TABLES = {
    "lists": ("list", "key"),
    "judgements": ("query", "item", "verdict"),
    "dropped": tuple(DROPPED),
}


@dataclass(frozen=True)
class Container:
    """A tar of the release that holds images.

    Attributes:
        path: of the tar, which may be missing.
        md5: its official MD5 sum in hexadecimal, or the file that holds it; None: none is published.
        role: the release's set that it belongs to (``train``, ``index``); the items' ``file`` begins with it.
    """

    path: Path
    md5: Path | str | None
    role: str

    def __post_init__(self) -> None:
        object.__setattr__(self, "path", self.path.absolute())  # workers on a cluster may run in another folder


@dataclass(frozen=True)
class Catalog:
    """The items of a release.

    Attributes:
        name: of the dataset, as its card's.
        levels: finest first.
        items: one row an item: key, split, file, then one text column a level (null: unknown), and, only if some items
            are to be cropped, ``box_left, box_top, box_right, box_bottom`` (Int32 pixels of the upright image, right
            and bottom exclusive, null: all of it). ``file`` is a POSIX path relative to ``root``, or ``role/stem``
            where there are containers: the stem of the member's file name.
        root: folder of the loose files.
        containers: tars that hold the items as members; empty: the items are loose files.
        lists: named lists of items: list, key.
        judgements: judged pairs: query, item, verdict.
        dropped: files that the release's lists name and the adapter leaves out: file, split, reason, detail.
        notes: for people, one line each.
        sources: the list files that were read.
        disjoint: if True, no finest class of ``train`` may occur in another split.
        protocol: by which the dataset is evaluated (:mod:`hgld.evaluation.protocols`); empty: none.

    Raises:
        TableError: columns are missing or unknown; keys or splits are unsafe or repeat.
        HierarchyError: the classes do not form a tree, or train shares classes with another split.
        InputError: levels or containers are invalid.
    """

    name: str
    levels: tuple[str, ...]
    items: pl.DataFrame
    root: Path
    containers: tuple[Container, ...] = ()
    lists: pl.DataFrame | None = None
    judgements: pl.DataFrame | None = None
    dropped: pl.DataFrame | None = None
    notes: tuple[str, ...] = ()
    sources: tuple[Path, ...] = ()
    disjoint: bool = True
    protocol: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "root", self.root.absolute())  # as those of containers
        check_level_names(self.levels, f"dataset {quoted(self.name)}")
        self._check_columns()
        known = self.items.with_columns(pl.col(self.levels).replace("", None))
        object.__setattr__(self, "items", known)  # unknown has one spelling, null
        _check_names(self.items, self.name)
        _check_length(self.items, self.levels, _LONGEST_CLASS, self.name)
        for name in _TABLES:
            _check_table(getattr(self, name), name, self.name)
        self._check_references()
        self._check_containers()
        self.hierarchy()
        if self.disjoint:
            self._check_disjoint()

    @property
    def has_boxes(self) -> bool:
        """True if items may have a box to crop to."""
        return BOX[0] in self.items.columns

    def classes(self) -> pl.DataFrame:
        """Distinct rows of class names, one column a level, sorted."""
        return self.items.select(self.levels).unique().sort(self.levels)

    def hierarchy(self) -> "Hierarchy":
        """The tree of the items' classes.

        Raises:
            HierarchyError: a class has two parents.
        """
        from hgld.hierarchy import Hierarchy

        rows = self.classes()
        try:
            return Hierarchy.from_columns({level: rows[level].to_list() for level in self.levels})
        except HierarchyError as error:
            raise HierarchyError(f"dataset {quoted(self.name)}: {error}") from error

    def with_items(self, items: pl.DataFrame) -> "Catalog":
        """Return the catalog with these of its items; lists and judgements about others are left out."""
        return replace(
            self,
            items=items,
            lists=_about(self.lists, ("key",), items["key"]),
            judgements=_about(self.judgements, ("query", "item"), items["key"]),
        )

    def _check_columns(self) -> None:
        given = self.items.schema
        boxes = BOX if any(side in given for side in BOX) else ()
        expected = {**dict.fromkeys([*_ITEM_COLUMNS, *self.levels], pl.String), **dict.fromkeys(boxes, pl.Int32)}
        if set(given.items()) != set(expected.items()):
            found = ", ".join(f"{name}: {kind}" for name, kind in given.items())
            wanted = ", ".join(f"{name}: {kind}" for name, kind in expected.items())
            raise TableError(f"dataset {quoted(self.name)}: its items have the columns {found}; expected {wanted}.")

    def _check_references(self) -> None:
        """Refuse lists and judgements that name anything but items."""
        known = self.items["key"].implode()
        for name, columns in (("lists", ("key",)), ("judgements", ("query", "item"))):
            table: pl.DataFrame | None = getattr(self, name)
            for column in columns if table is not None else ():
                assert table is not None
                strange = table.filter(~pl.col(column).is_in(known))[column]
                if len(strange):
                    raise TableError(
                        f"dataset {quoted(self.name)}: its {name} name {column}s that are no items: {_some(strange)}."
                    )

    def _check_containers(self) -> None:
        roles = {container.role for container in self.containers}
        if not roles:
            return
        strange = self.items.filter(~pl.col("file").str.split("/").list.first().is_in(sorted(roles)))["file"]
        if len(strange):
            raise InputError(
                f"dataset {quoted(self.name)}: items of no tar: {_some(strange)}; the tars are of "
                f"{', '.join(sorted(roles))}."
            )
        repeated = self.items.filter(pl.col("file").is_duplicated())["file"].unique().sort()
        if len(repeated):
            raise TableError(f"dataset {quoted(self.name)}: members of tars that are several items: {_some(repeated)}.")

    def _check_disjoint(self) -> None:
        finest = self.levels[0]
        in_train = pl.col("split") == TRAIN
        train = self.items.filter(in_train)[finest].drop_nulls().unique()
        shared = self.items.filter(~in_train & pl.col(finest).is_in(train.implode()))
        if not shared.is_empty():
            raise HierarchyError(
                f"dataset {quoted(self.name)}: {shared[finest].n_unique()} classes of level {quoted(finest)} are in "
                f"train and in {', '.join(shared['split'].unique().sort())}: {_some(shared[finest].unique().sort())}; "
                "expected splits without common classes. Correct the lists."
            )


def _about(table: pl.DataFrame | None, columns: Sequence[str], keys: pl.Series) -> pl.DataFrame | None:
    """Return the rows of a table that name these items alone."""
    return None if table is None else table.filter(pl.all_horizontal(pl.col(columns).is_in(keys.implode())))


def check_level_names(levels: Sequence[str], where: str) -> None:
    """Refuse levels that a dataset cannot have, or whose names are columns of a build's own tables.

    Raises:
        InputError: names the levels.
    """
    check_levels(levels, where)
    if taken := _BESIDE_LEVELS & set(levels):
        raise InputError(
            f"{where}: a level cannot be called {', '.join(sorted(taken))}, as a build calls columns of its own "
            "tables. Give it another name: --levels NAME=COLUMN."
        )


def safe_key(text: str) -> str:
    """Make a key from a path or name: characters that a key may not hold become ``_``.

    Different texts may give the same key, which a catalog refuses. A text that is too long for a key is cut, and part
    of its SHA-256 is appended.

    >>> safe_key("n01/a b.c"), safe_key("/x//y/")
    ('n01/a_b_c', 'x/y')
    """
    parts = [part for part in _UNSAFE.sub("_", text).split("/") if part]
    key = "/".join(parts) or "_"
    if len(key) <= _LONGEST_MADE:
        return key
    return f"{key[:_KEY_KEPT].rstrip('/')}={hashlib.sha256(text.encode()).hexdigest()[:12]}"


def _check_names(items: pl.DataFrame, name: str) -> None:
    for column in _ITEM_COLUMNS:
        if items[column].null_count():
            raise TableError(f"dataset {quoted(name)}: {items[column].null_count()} items have no {column}.")
    long = pl.col("key").str.len_bytes() > LONGEST_KEY
    unsafe = items.filter(long | ~pl.col("key").str.contains(f"^{KEY_PATTERN}$"))["key"]
    if len(unsafe):
        raise TableError(
            f"dataset {quoted(name)}: unsafe keys: {_some(unsafe)}; expected letters, digits and _ - = between "
            f"single /, at most {LONGEST_KEY} of them."
        )
    _check_length(items, ["file"], _LONGEST_FILE, name)
    odd = items.filter(pl.col("file").str.contains(r"[\x00-\x1f\x7f]"))["file"]
    if len(odd):
        raise TableError(f"dataset {quoted(name)}: files with control characters in their names: {_some(odd)}.")
    repeated = items.filter(pl.col("key").is_duplicated()).sort("key", "file")
    if not repeated.is_empty():
        both = repeated.filter(pl.col("key") == repeated["key"][0])["file"]
        raise TableError(
            f"dataset {quoted(name)}: {repeated['key'].n_unique()} keys are those of several items, the first "
            f"{quoted(repeated['key'][0])} of {_some(both)}. Rename the files, or leave out the repeated rows."
        )
    splits = items["split"].unique().sort()
    odd = splits.filter(~splits.str.contains(f"^{SPLIT_PATTERN}$"))
    if len(odd):
        raise TableError(
            f"dataset {quoted(name)}: unsafe names of splits: {_some(odd)}; expected letters, digits and _."
        )


def _check_length(items: pl.DataFrame, columns: Sequence[str], most: int, name: str) -> None:
    """Refuse text that would make an item's JSON longer than readers accept."""
    for column in columns:
        long = items.filter(pl.col(column).str.len_bytes() > most)[column]
        if len(long):
            raise TableError(
                f"dataset {quoted(name)}: {column} {short(long[0])} is longer than {most} bytes; shorten it."
            )


def _check_table(table: pl.DataFrame | None, name: str, dataset: str) -> None:
    expected = dict.fromkeys(_TABLES[name], pl.String)
    if table is not None and set(table.schema.items()) != set(expected.items()):
        raise TableError(
            f"dataset {quoted(dataset)}: its {name} have the columns {dict(table.schema)}; expected "
            f"{', '.join(expected)}, all text."
        )


def _some(values: Iterable[str]) -> str:
    return some(map(short, values), _SHOWN)
