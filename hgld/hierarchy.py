"""The tree of classes: levels finest first, every class with its name and its parent."""

import html
import itertools
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from hgld.errors import HierarchyError, SchemaError, quoted, some
from hgld.tables import parquet_metadata, read_parquet

FILE = "hierarchy.parquet"
SCHEMA_VERSION = 1
_MOST_NAMED = 5
_MOST_LINES = 40  # of a tree that is printed
_COLUMNS = pl.Schema({"level": pl.String, "label": pl.Int32, "name": pl.String, "parent": pl.Int32})


def _some(items: Iterable[str]) -> str:
    return some(items, _MOST_NAMED, "; ")


@dataclass(frozen=True, eq=False)
class Hierarchy:
    """A tree of classes over named levels, finest level first.

    Attributes:
        levels: names of the L levels, finest first.
        names: for every level the names of its classes; the index of a name is the class id (label). Names are
            unique within a level.
        parents: for every level but the coarsest an int32 array: the class id at the next coarser level, -1 where
            the parent is unknown.

    Raises:
        HierarchyError: levels or names repeat, sizes do not fit together, or a parent does not exist.

    >>> from hgld import Hierarchy
    >>> tree = Hierarchy.from_columns(
    ...     {
    ...         "landmark": ["Chartres Cathedral", "Neuschwanstein", "Lake Como"],
    ...         "group": ["church", "castle", "lake"],
    ...         "top": ["human-made", "human-made", "natural"],
    ...     }
    ... )
    >>> tree.num_classes
    (3, 3, 2)
    >>> tree.names[1]
    ('castle', 'church', 'lake')
    >>> tree.expand([0, 2]).tolist()
    [[0, 1, 0], [2, 0, 0]]
    """

    levels: tuple[str, ...]
    names: tuple[tuple[str, ...], ...]
    parents: tuple[np.ndarray, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "levels", tuple(self.levels))
        object.__setattr__(self, "names", tuple(tuple(names) for names in self.names))
        object.__setattr__(self, "parents", tuple(np.asarray(p) for p in self.parents))
        self._check()
        parents = tuple(np.array(p, dtype=np.int32) for p in self.parents)  # no number wraps: all are class ids or -1
        for array in parents:
            array.setflags(write=False)
        object.__setattr__(self, "parents", parents)

    def _check(self) -> None:
        if not self.levels or len(set(self.levels)) != len(self.levels) or not all(self.levels):
            raise HierarchyError(f"levels are {quoted(self.levels)}; expected at least one level, with distinct names.")
        if len(self.names) != len(self.levels) or len(self.parents) != len(self.levels) - 1:
            raise HierarchyError(
                f"{len(self.levels)} levels come with {len(self.names)} lists of names and {len(self.parents)} "
                f"of parents; expected {len(self.levels)} and {len(self.levels) - 1}."
            )
        for level, names in zip(self.levels, self.names, strict=True):
            if not all(isinstance(name, str) and name for name in names):
                raise HierarchyError(f"level {quoted(level)} has classes without a name; every class needs one.")
            if len(set(names)) != len(names):
                seen: set[str] = set()
                twice = sorted({n for n in names if n in seen or seen.add(n)})
                raise HierarchyError(
                    f"level {quoted(level)} has classes of the same name: {_some(map(quoted, twice))}."
                )
        for c, parent in enumerate(self.parents):
            size, above = len(self.names[c]), len(self.names[c + 1])
            if parent.shape != (size,):
                raise HierarchyError(
                    f"level {quoted(self.levels[c])} has {size} classes and parents of shape {parent.shape}; "
                    "expected one parent per class."
                )
            if size and not np.issubdtype(parent.dtype, np.integer):
                raise HierarchyError(
                    f"level {quoted(self.levels[c])} has parents of {parent.dtype}; expected integers."
                )
            wrong = np.flatnonzero((parent < -1) | (parent >= above))
            if wrong.size:
                raise HierarchyError(
                    f"level {quoted(self.levels[c])}: parents that do not exist at level {quoted(self.levels[c + 1])} "
                    f"({above} classes): " + _some(f"{quoted(self.names[c][i])} -> {parent[i]}" for i in wrong)
                )

    # -- construction -------------------------------------------------------------------------------------------

    @classmethod
    def from_columns(cls, columns: Mapping[str, Sequence[str | None]] | pl.DataFrame | Any) -> "Hierarchy":
        """Build from a table with one column per level (finest first) and one row per item or class.

        Class ids follow the sorted names of a level, so that they do not depend on the order of the rows. ``None``
        and the empty string are unknown.

        Args:
            columns: names by level, or a frame of polars, Arrow or whatever has Arrow's interface.

        Raises:
            HierarchyError: columns of different lengths, or a class with two parents (named with both).
        """
        if not isinstance(columns, Mapping):
            columns = pl.DataFrame(columns).to_dict(as_series=False)
        levels = tuple(columns)
        cells = [[v or None for v in columns[level]] for level in levels]
        if len({len(c) for c in cells}) > 1:
            sizes = ", ".join(f"{k}: {len(c)}" for k, c in zip(levels, cells, strict=True))
            raise HierarchyError(f"columns have different lengths ({sizes}); expected one row per item.")
        names = tuple(tuple(sorted({v for v in column if v is not None})) for column in cells)
        ids = [{name: i for i, name in enumerate(level)} for level in names]
        labels = np.array(
            [[-1 if v is None else ids[c][v] for v in column] for c, column in enumerate(cells)], dtype=np.int32
        ).T.reshape(-1, len(levels))
        return cls.from_labels(labels, levels, names)

    @classmethod
    def from_labels(
        cls, labels: np.ndarray, levels: Sequence[str], names: Sequence[Sequence[str]] | None = None
    ) -> "Hierarchy":
        """Build from an (N, L) integer table of labels, finest level first, -1 where unknown.

        Args:
            labels: (N, L) class ids of N items.
            levels: the L level names.
            names: class names per level; ``"0"``, ``"1"``, ... up to the largest label if None.

        Raises:
            HierarchyError: a class has two parents, the shape does not fit the levels, or a label has no name.
        """
        table = np.asarray(labels)
        if table.ndim != 2 or table.shape[1] != len(levels) or not np.issubdtype(table.dtype, np.integer):
            raise HierarchyError(
                f"labels have shape {table.shape} and dtype {table.dtype}; "
                f"expected integers of shape (N, {len(levels)})."
            )
        sizes = [int(table[:, c].max(initial=-1)) + 1 for c in range(table.shape[1])]
        named = [tuple(str(i) for i in range(n)) for n in sizes] if names is None else [tuple(n) for n in names]
        for level, size, known in zip(levels, sizes, named, strict=True):
            if size > len(known):
                raise HierarchyError(f"level {quoted(level)} has label {size - 1} but only {len(known)} names.")
        parents = [
            _parents(table[:, c], table[:, c + 1], len(named[c]), (levels[c], levels[c + 1]), (named[c], named[c + 1]))
            for c in range(len(levels) - 1)
        ]
        return cls(tuple(levels), tuple(named), tuple(parents))

    # -- queries --------------------------------------------------------------------------------------------

    @property
    def num_classes(self) -> tuple[int, ...]:
        """Number of classes per level, finest first."""
        return tuple(len(names) for names in self.names)

    def level_index(self, level: str) -> int:
        """Column of a level (0 is the finest).

        Raises:
            HierarchyError: there is no such level.
        """
        if level not in self.levels:
            raise HierarchyError(f"level {quoted(level)} is unknown; the levels are {', '.join(self.levels)}.")
        return self.levels.index(level)

    def expand(self, labels: Sequence[int] | np.ndarray, level: str | None = None) -> np.ndarray:
        """Return labels at ``level`` and every coarser one.

        Args:
            labels: (N,) class ids at ``level``; -1 stays unknown.
            level: the level they are of; the finest if None.

        Returns:
            (N, L - c) int32, one column per level from ``level`` (column c) to the coarsest.

        Raises:
            HierarchyError: a label is not a class of that level.
        """
        c = 0 if level is None else self.level_index(level)
        column = np.asarray(labels, dtype=np.int64).reshape(-1)
        if column.size and (column.min() < -1 or column.max() >= len(self.names[c])):
            raise HierarchyError(
                f"labels run from {column.min()} to {column.max()}; level {quoted(self.levels[c])} has classes "
                f"0..{len(self.names[c]) - 1} (-1 is unknown)."
            )
        columns = [column.astype(np.int32)]
        for parent in self.parents[c:]:
            padded = np.append(parent, np.int32(-1))  # index -1 reads the last place: unknown stays unknown
            columns.append(padded[columns[-1]])
        return np.stack(columns, axis=1)

    def restrict(self, levels: Sequence[str]) -> "Hierarchy":
        """Return the same tree with only some of its levels, which keep their order (finest first).

        Raises:
            HierarchyError: a level is unknown, or the order is not from fine to coarse.
        """
        chosen = [self.level_index(level) for level in levels]
        if not chosen or chosen != sorted(set(chosen)):
            raise HierarchyError(f"levels {tuple(levels)} must be a selection of {self.levels} from fine to coarse.")
        parents = []
        for c, d in itertools.pairwise(chosen):
            parents.append(self.expand(np.arange(len(self.names[c])), self.levels[c])[:, d - c])
        return Hierarchy(tuple(levels), tuple(self.names[c] for c in chosen), tuple(parents))

    def counts(self, labels: np.ndarray | None = None) -> dict[str, np.ndarray]:
        """Count the items of every class at every level, unknown labels left out.

        Args:
            labels: (N,) finest labels, or (N, L); None counts every finest class once.

        Returns:
            for every level an (number of classes,) int64 array.
        """
        table = self.expand(np.arange(len(self.names[0]))) if labels is None else np.asarray(labels)
        if table.ndim == 1:
            table = self.expand(table)
        if table.ndim != 2 or table.shape[1] != len(self.levels):
            raise HierarchyError(f"labels have shape {table.shape}; expected (N,) or (N, {len(self.levels)}).")
        result = {}
        for c, level in enumerate(self.levels):
            known = table[:, c][table[:, c] >= 0]
            if known.size and known.max() >= len(self.names[c]):
                raise HierarchyError(
                    f"label {known.max()} is not a class of level {quoted(level)} ({len(self.names[c])} classes)."
                )
            result[level] = np.bincount(known, minlength=len(self.names[c])).astype(np.int64)
        return result

    def check_labels(self, labels: np.ndarray) -> None:
        """Refuse an (N, L) table of labels that contradicts the tree; unknown labels contradict nothing.

        Raises:
            HierarchyError: naming the first items whose labels are not on one path.
        """
        table = np.asarray(labels)
        expected = self.expand(table[:, 0])
        for c in range(len(self.levels) - 1):
            expected = self.expand(table[:, c], self.levels[c])[:, 1]
            wrong = np.flatnonzero((table[:, c + 1] >= 0) & (expected >= 0) & (table[:, c + 1] != expected))
            if wrong.size:
                raise HierarchyError(
                    f"labels contradict the hierarchy between {quoted(self.levels[c])} and "
                    f"{quoted(self.levels[c + 1])}: "
                    + _some(
                        f"item {i}: {quoted(self.names[c][table[i, c]])} belongs to "
                        f"{quoted(self.names[c + 1][expected[i]])}, not {quoted(self.names[c + 1][table[i, c + 1]])}"
                        for i in wrong
                    )
                )

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Hierarchy):
            return NotImplemented
        same = self.levels == other.levels and self.names == other.names
        return same and all(np.array_equal(a, b) for a, b in zip(self.parents, other.parents, strict=True))

    __hash__ = None  # pyright: ignore[reportAssignmentType]  # holds arrays

    def __repr__(self) -> str:
        sizes = ", ".join(f"{level}: {n}" for level, n in zip(self.levels, self.num_classes, strict=True))
        return f"Hierarchy({sizes})"

    def __str__(self) -> str:
        return self.to_tree_text(most=_MOST_NAMED, lines=_MOST_LINES)

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(str(self))}</pre>"

    def to_tree_text(
        self, *, depth: int | None = None, most: int | None = 8, lines: int | None = None, width: int = 80
    ) -> str:
        """Draw the classes as a tree of text, the largest first, with their numbers of finest classes.

        Args:
            depth: number of levels, from the coarsest; None: all.
            most: classes drawn below each class; None: all.
            lines: of the drawing at most; without a depth only as many levels are drawn as fit. None: any number.
            width: columns of a line.

        >>> tree = Hierarchy.from_columns({"name": ["dog", "cat", "oak"], "kind": ["animal", "animal", "plant"]})
        >>> print(tree.to_tree_text())
        kind 2 > name 3
        ├─ animal  2
        │  ├─ cat
        │  └─ dog
        └─ plant  1
           └─ oak
        """
        from hgld.tree_drawing import tree_text

        return tree_text(self, depth=depth, most=most, lines=lines, width=width)

    # -- files ------------------------------------------------------------------------------------------------

    @classmethod
    def read(cls, path: str | Path) -> "Hierarchy":
        """Read hgld's own files; :func:`hgld.taxonomy.formats.read_levels` reads taxonomies of others.

        Args:
            path: ``hierarchy.parquet``, or the folder of a build or dataset that holds it.

        Raises:
            InputError: the file is not a hierarchy.
        """
        file = Path(path)
        return cls.from_parquet(file / FILE if file.is_dir() else file)

    def to_frame(self) -> pl.DataFrame:
        """Tabulate the classes: level, label, name, parent (label at the next coarser level, null at the coarsest)."""
        frames = [
            pl.DataFrame(
                {
                    "level": [level] * len(names),
                    "label": np.arange(len(names), dtype=np.int32),
                    "name": list(names),
                    "parent": self.parents[c] if c < len(self.parents) else [None] * len(names),
                },
                schema=_COLUMNS,
            )
            for c, (level, names) in enumerate(zip(self.levels, self.names, strict=True))
        ]
        return pl.concat(frames)

    def to_parquet(self, path: str | Path) -> None:
        """Write ``hierarchy.parquet``: the rows of :meth:`to_frame`; levels and schema version in the metadata."""
        metadata = {"hgld.schema_version": str(SCHEMA_VERSION), "hgld.levels": json.dumps(self.levels)}
        self.to_frame().write_parquet(path, metadata=metadata)

    @classmethod
    def from_parquet(cls, source: str | Path | bytes, where: str | None = None) -> "Hierarchy":
        """Read a file of :meth:`to_parquet`.

        Args:
            source: the file, or its bytes.
            where: name of the source in messages.

        Raises:
            SchemaError: the file is of another schema version.
            TableError: it is not readable parquet, or has other columns.
            HierarchyError: its rows are not a tree.
        """
        file = where or (FILE if isinstance(source, bytes) else str(source))
        metadata = parquet_metadata(source, where=file)
        version = metadata.get("hgld.schema_version")
        if version != str(SCHEMA_VERSION):
            raise SchemaError(
                f"{file}: hierarchy schema version is {quoted(version)}; this hgld reads version {SCHEMA_VERSION}. "
                "Rebuild the file, or install the hgld that wrote it."
            )
        frame = read_parquet(source, schema=_COLUMNS, where=file)
        try:
            levels = json.loads(metadata.get("hgld.levels", ""))
        except (ValueError, RecursionError):
            levels = None
        if not isinstance(levels, list) or not all(isinstance(level, str) for level in levels):
            raise SchemaError(f"{file}: metadata 'hgld.levels' is not a JSON list of level names.")
        other = frame.filter(~pl.col("level").is_in(levels).fill_null(False))
        if len(other):
            raise HierarchyError(
                f"{file}: {len(other)} rows of level {quoted(other['level'][0])}; expected {list(levels)}."
            )
        parts = [frame.filter(pl.col("level") == level).sort("label") for level in levels]
        for level, part in zip(levels, parts, strict=True):
            if part["label"].to_list() != list(range(len(part))):
                raise HierarchyError(
                    f"{file}: level {quoted(level)} has labels that are not 0..{len(part) - 1}, each once."
                )
        names = tuple(tuple(p["name"].to_list()) for p in parts)
        parents = tuple(p["parent"].fill_null(-1).to_numpy() for p in parts[:-1])
        try:
            return cls(tuple(levels), names, parents)
        except HierarchyError as error:
            raise HierarchyError(f"{file}: {error}") from error


def _parents(
    fine: np.ndarray, coarse: np.ndarray, size: int, levels: tuple[str, str], names: tuple[Sequence[str], Sequence[str]]
) -> np.ndarray:
    """Derive the parent of each of ``size`` fine classes from the labels of items; refuse a class under two parents."""
    parent = np.full(size, -1, dtype=np.int32)
    both = (fine >= 0) & (coarse >= 0)
    pairs = np.unique(np.stack([fine[both], coarse[both]], axis=1), axis=0)
    parent[pairs[:, 0]] = pairs[:, 1]
    child, times = np.unique(pairs[:, 0], return_counts=True)
    torn = child[times > 1]
    if torn.size:
        raise HierarchyError(
            f"classes of level {quoted(levels[0])} lie under more than one class of level {quoted(levels[1])}: "
            + _some(
                f"{quoted(names[0][i])} under " + " and ".join(quoted(names[1][j]) for j in pairs[pairs[:, 0] == i, 1])
                for i in torn
            )
            + ". Give each one parent, or rename the classes that are really different."
        )
    return parent
