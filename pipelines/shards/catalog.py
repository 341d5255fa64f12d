"""The catalog of a release: items, splits and classes that an adapter read, before any image is opened."""

import hashlib
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import polars as pl

from hgld.data.format import BOX, KEY_PATTERN, LONGEST_KEY, SPLIT_PATTERN, check_levels, short
from hgld.errors import HierarchyError, InputError, TableError, quoted, some
from hgld.hierarchy import Hierarchy

TRAIN = "train"
_UNSAFE = re.compile(r"[^A-Za-z0-9_=/-]")
_LONGEST_MADE = LONGEST_KEY - 20  # leaves room for a suffix that an adapter may append
_KEY_KEPT = 160
_LONGEST_FILE, _LONGEST_CLASS = 4_096, 1_000  # bytes
BESIDE_LEVELS = frozenset({"file", "row", "reason", "detail", "origin", "source_offset"})
_ITEM_COLUMNS = ("key", "split", "file")
DROPPED = {"file": pl.String, "split": pl.String, "reason": pl.String, "detail": pl.String}
"""Columns of the files that an adapter leaves out."""
_TABLES = {"lists": ("list", "key"), "judgements": ("query", "item", "verdict"), "dropped": tuple(DROPPED)}
ABOUT_ITEMS = {"lists": ("key",), "judgements": ("query", "item")}  # tables that name items, and their columns of keys


@dataclass(frozen=True)
class Container:
    """A tar of the release that holds images.

    Attributes:
        path: path of the tar, which may be missing.
        md5: official MD5 sum of the tar in hexadecimal; None: no sum is published.
        role: the set of the release to which the tar belongs (``train``, ``index``); the items' ``file`` begins with
            it.
    """

    path: Path
    md5: str | None
    role: str

    def __post_init__(self) -> None:
        object.__setattr__(self, "path", self.path.absolute())  # workers on a cluster may run in another folder


@dataclass(frozen=True)
class Catalog:
    """The items of a release.

    Attributes:
        name: name of the dataset, and of its card.
        levels: names of the levels, finest first.
        items: one row per item: key, split, file, then one text column per level (null: unknown). If some items are
            cropped, further columns are ``box_left, box_top, box_right, box_bottom`` (Int32 pixels of the upright
            image, right and bottom exclusive; null: the whole image). ``file`` is a POSIX path relative to ``root``.
            If the items are in tars (``containers``), it is ``role/stem``: the container's role (such as ``train``),
            and the name of the tar's member without folders and suffix.
        root: folder of the loose files.
        containers: tars that hold the items as members; empty: the items are loose files.
        lists: named lists of items, with the columns list and key.
        judgements: judged pairs, with the columns query, item and verdict.
        dropped: listed files that the adapter excludes, with the columns file, split, reason and detail.
        notes: notes for the user, one line each.
        sources: the list files that were read.
        disjoint: whether no finest class of ``train`` may occur in another split.
        protocol: protocol to evaluate the dataset with (:mod:`hgld.evaluation.protocols`); empty: no protocol.
        image_column: column of parquet files below ``root`` that holds the images; ``file`` is then TABLE/ROW/NAME.
            Empty: the images are files.

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
    image_column: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "root", self.root.absolute())  # absolute, as the paths of containers are
        check_level_names(self.levels, f"dataset {quoted(self.name)}")
        boxes = BOX if self.has_boxes else ()
        expected = {**dict.fromkeys([*_ITEM_COLUMNS, *self.levels], pl.String), **dict.fromkeys(boxes, pl.Int32)}
        self._check_columns("items", self.items, expected)
        known = self.items.with_columns(pl.col(self.levels).replace("", None))
        object.__setattr__(self, "items", known)  # unknown labels are null, never empty texts
        self._check_names()
        for name, columns in _TABLES.items():
            if (table := getattr(self, name)) is not None:
                self._check_columns(name, table, dict.fromkeys(columns, pl.String))
                for column in ABOUT_ITEMS.get(name, ()):
                    self._refuse(
                        table.filter(~pl.col(column).is_in(self.items["key"].implode()))[column],
                        f"its {name} name {column}s that are not items: {{}}.",
                    )
        if roles := {container.role for container in self.containers}:
            lost = self.items.filter(~pl.col("file").str.split("/").list.first().is_in(sorted(roles)))["file"]
            self._refuse(lost, f"items that are in no tar: {{}}; the tars are of {some(sorted(roles))}.")
            repeated = self.items.filter(pl.col("file").is_duplicated())["file"].unique().sort()
            self._refuse(repeated, "members of tars that belong to several items: {}.")
        self.hierarchy()
        if self.disjoint:
            self._check_disjoint()

    @property
    def has_boxes(self) -> bool:
        """True if items may have a box to crop to."""
        return BOX[0] in self.items.columns

    def hierarchy(self) -> Hierarchy:
        """Return the tree of the items' classes.

        Raises:
            HierarchyError: a class has two parents.
        """
        rows = self.items.select(self.levels).unique().sort(self.levels)
        try:
            return Hierarchy.from_columns({level: rows[level].to_list() for level in self.levels})
        except HierarchyError as error:
            raise HierarchyError(f"dataset {quoted(self.name)}: {error}") from error

    def with_items(self, items: pl.DataFrame) -> "Catalog":
        """Return a catalog with only these items, without lists and judgements of the other items."""
        return replace(self, items=items, **{name: self.about(name, items["key"]) for name in ABOUT_ITEMS})

    def about(self, name: str, keys: pl.Series) -> pl.DataFrame | None:
        """Return the lists or judgements whose items are all among the keys; None if the catalog has no such table."""
        table: pl.DataFrame | None = getattr(self, name)
        columns = pl.col(ABOUT_ITEMS[name])
        return None if table is None else table.filter(pl.all_horizontal(columns.is_in(keys.implode())))

    def _refuse(self, found: pl.Series, message: str) -> None:
        """Raise an error that names the first of the given values; do nothing if there are no values."""
        if len(found):
            raise TableError(f"dataset {quoted(self.name)}: " + message.replace("{}", _some(found)))

    def _check_columns(self, what: str, table: pl.DataFrame, expected: dict[str, type[pl.DataType]]) -> None:
        if set(table.schema.items()) != set(expected.items()):
            found, wanted = (", ".join(f"{name}: {kind}" for name, kind in s.items()) for s in (table.schema, expected))
            raise TableError(f"dataset {quoted(self.name)}: its {what} have the columns {found}; expected {wanted}.")

    def _check_names(self) -> None:
        items, key, file = self.items, pl.col("key"), pl.col("file")
        for column in _ITEM_COLUMNS:
            if count := items[column].null_count():
                raise TableError(f"dataset {quoted(self.name)}: {count} items have no {column}.")
        for column, most in {"file": _LONGEST_FILE, **dict.fromkeys(self.levels, _LONGEST_CLASS)}.items():
            # readers limit the size of an item's JSON
            long = items.filter(pl.col(column).str.len_bytes() > most)[column]
            self._refuse(long.head(1), f"{column} {{}} is longer than {most} bytes; shorten it.")
        unsafe = (key.str.len_bytes() > LONGEST_KEY) | ~key.str.contains(f"^{KEY_PATTERN}$")
        self._refuse(
            items.filter(unsafe)["key"],
            f"unsafe keys: {{}}; expected letters, digits and _ - = between single /, at most {LONGEST_KEY} of them.",
        )
        odd = items.filter(file.str.contains(r"[\x00-\x1f\x7f]"))["file"]
        self._refuse(odd, "files with control characters in their names: {}.")
        repeated = items.filter(key.is_duplicated()).sort("key", "file")
        if len(repeated):
            both = repeated.filter(key == repeated["key"][0])["file"]
            self._refuse(
                both,
                f"{repeated['key'].n_unique()} keys belong to several items, the first {quoted(repeated['key'][0])} "
                "of {}. Rename the files, or remove the repeated rows.",
            )
        splits = items["split"].unique().sort()
        odd = splits.filter(~splits.str.contains(f"^{SPLIT_PATTERN}$"))
        self._refuse(odd, "unsafe names of splits: {}; expected letters, digits and _.")

    def _check_disjoint(self) -> None:
        finest, in_train = self.levels[0], pl.col("split") == TRAIN
        train = self.items.filter(in_train)[finest].drop_nulls().unique()
        shared = self.items.filter(~in_train & pl.col(finest).is_in(train.implode()))
        if not shared.is_empty():
            raise HierarchyError(
                f"dataset {quoted(self.name)}: {shared[finest].n_unique()} classes of level {quoted(finest)} are in "
                f"train and in {', '.join(shared['split'].unique().sort())}: {_some(shared[finest].unique().sort())}; "
                "expected splits without common classes. Correct the lists."
            )


def check_level_names(levels: Sequence[str], where: str) -> None:
    """Raise an error for levels that a dataset cannot have, or that are named like columns of a build's own tables.

    Raises:
        InputError: a level is not allowed; the message names it.
    """
    check_levels(levels, where)
    if taken := BESIDE_LEVELS & set(levels):
        raise InputError(
            f"{where}: a level cannot be called {', '.join(sorted(taken))}, because the build's own tables have "
            "columns of that name. Give it another name: --levels NAME=COLUMN."
        )


def safe_key(text: str) -> str:
    """Make a key from a path or name: characters that a key may not hold become ``_``.

    Different texts may give the same key; a catalog with repeated keys raises an error. A text that is too long for a
    key is cut, and part of its SHA-256 is appended.

    >>> safe_key("n01/a b.c"), safe_key("/x//y/")
    ('n01/a_b_c', 'x/y')
    """
    parts = [part for part in _UNSAFE.sub("_", text).split("/") if part]
    key = "/".join(parts) or "_"
    if len(key) <= _LONGEST_MADE:
        return key
    return f"{key[:_KEY_KEPT].rstrip('/')}={hashlib.sha256(text.encode()).hexdigest()[:12]}"


def _some(values: Iterable[str]) -> str:
    return some(map(short, values))
