"""The tree of classes: its levels (finest first), the names of the classes, and their parents."""

import html
import itertools
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from hgld.errors import HierarchyError, quoted, some
from hgld.tables import level_metadata, read_levels, read_parquet
from hgld.taxonomy.graph import Taxonomy, TaxonomyBuilder

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from networkx import DiGraph, Graph

FILE = "hierarchy.parquet"
SCHEMA_VERSION = 1
_MOST_NAMED = 5
_MOST_LINES = 40  # maximum number of lines of a printed tree
_COLUMNS = pl.Schema({"level": pl.String, "label": pl.Int32, "name": pl.String, "parent": pl.Int32})


def _some(items: Iterable[str]) -> str:
    return some(items, _MOST_NAMED, "; ")


@dataclass(frozen=True, eq=False)
class Hierarchy:
    """A tree of classes over named levels, finest level first.

    Attributes:
        levels: names of the L levels, finest first.
        names: per level, the distinct names of its classes. The index of a name is the class id (label).
        parents: per level except the coarsest, an int32 array with the parent's class id at the next coarser level, -1
            if the parent is unknown.

    Raises:
        HierarchyError: levels or names repeat, sizes do not match, or a parent does not exist.

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
        # The cast cannot overflow, because the parents are checked above.
        parents = tuple(np.array(p, dtype=np.int32) for p in self.parents)
        for array in parents:
            array.setflags(write=False)
        object.__setattr__(self, "parents", parents)

    def _check(self) -> None:
        if not self.levels or len(set(self.levels)) != len(self.levels) or not all(self.levels):
            raise HierarchyError(f"levels are {quoted(self.levels)}; expected at least one level, with distinct names.")
        if len(self.names) != len(self.levels) or len(self.parents) != len(self.levels) - 1:
            raise HierarchyError(
                f"{len(self.levels)} levels come with {len(self.names)} lists of names and {len(self.parents)} lists "
                f"of parents; expected {len(self.levels)} lists of names and {len(self.levels) - 1} of parents."
            )
        for level, names in zip(self.levels, self.names, strict=True):
            if not all(isinstance(name, str) and name for name in names):
                raise HierarchyError(f"level {quoted(level)} has classes without a name; every class needs one.")
            if len(set(names)) != len(names):
                twice = sorted(name for name, times in Counter(names).items() if times > 1)
                raise HierarchyError(
                    f"level {quoted(level)} has classes of the same name: {_some(map(quoted, twice))}."
                )
        for c, parent in enumerate(self.parents):
            size, above, level = len(self.names[c]), len(self.names[c + 1]), quoted(self.levels[c])
            if parent.shape != (size,) or (size and not np.issubdtype(parent.dtype, np.integer)):
                raise HierarchyError(
                    f"level {level} has {size} classes and parents of shape {parent.shape} and dtype {parent.dtype}; "
                    "expected integers, one per class."
                )
            wrong = np.flatnonzero((parent < -1) | (parent >= above))
            if wrong.size:
                raise HierarchyError(
                    f"level {level}: parents that do not exist at level {quoted(self.levels[c + 1])} "
                    f"({above} classes): " + _some(f"{quoted(self.names[c][i])} -> {parent[i]}" for i in wrong)
                )

    # -- construction -------------------------------------------------------------------------------------------

    @classmethod
    def from_columns(cls, columns: Mapping[str, Sequence[str | None]] | pl.DataFrame | Any) -> "Hierarchy":
        """Build a tree from a table with one column per level (finest first) and one row per item or class.

        Class ids follow the sorted names of a level, so they do not depend on the order of the rows. ``None``, NaN and
        the empty string are unknown.

        Args:
            columns: names by level, or a table of polars, pandas, or any package with Arrow's interface.

        Raises:
            HierarchyError: the columns differ in length, a cell is not text, or a class has two parents.
        """
        table = _table_columns(columns)
        cells = {level: [_class_name(cell, level) for cell in column] for level, column in table.items()}
        if len({len(column) for column in cells.values()}) > 1:
            sizes = ", ".join(f"{level}: {len(column)}" for level, column in cells.items())
            raise HierarchyError(f"columns have different lengths ({sizes}); expected one row per item.")
        names = [sorted({name for name in column if name is not None}) for column in cells.values()]
        ids = [{None: -1} | {name: i for i, name in enumerate(level)} for level in names]
        labels = [[known[name] for name in column] for known, column in zip(ids, cells.values(), strict=True)]
        return cls.from_labels(np.array(labels, dtype=np.int32).T.reshape(-1, len(cells)), tuple(cells), names)

    @classmethod
    def from_labels(
        cls, labels: np.ndarray, levels: Sequence[str], names: Sequence[Sequence[str]] | None = None
    ) -> "Hierarchy":
        """Build a tree from an (N, L) integer table of labels, finest level first, -1 if unknown.

        Args:
            labels: (N, L) class ids of N items.
            levels: the L level names.
            names: class names per level; default: ``"0"``, ``"1"``, ... up to the largest label.

        Raises:
            HierarchyError: a class has two parents, the shape does not match the levels, or a label has no name.
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

    @classmethod
    def from_edges(
        cls, edges: Iterable[tuple[Any, Any]] | Mapping[Any, Any], levels: Sequence[str] | None = None
    ) -> "Hierarchy":
        """Build a tree from pairs of a child and its parent.

        The classes without children are the finest level. A single class above all others is excluded, because it
        distinguishes nothing. If a branch has fewer levels than the longest branch, its finest class also fills the
        missing levels.

        Args:
            edges: (child, parent) pairs of names, or a mapping of child to parent; None is the parent of a class at
                the top.
            levels: names of the levels, finest first; default: ``level0``, ``level1``, ...

        Raises:
            HierarchyError: a class has two parents, the edges form a cycle, there are no classes, or the number of
                names differs from the number of levels.

        >>> tree = Hierarchy.from_edges([("dog", "pet"), ("cat", "pet"), ("oak", "plant")], levels=("kind", "top"))
        >>> tree.names
        (('cat', 'dog', 'oak'), ('pet', 'plant'))
        """
        made = TaxonomyBuilder("edges", "edges", "edge")
        for number, (child, parent) in enumerate(edges.items() if isinstance(edges, Mapping) else edges, 1):
            if parent is not None:
                made.link(str(child), str(parent), number)
            elif str(child) not in made:
                made.add(str(child), row=number)
        rows = _paths_down(made.finish())
        depth = max(map(len, rows))
        named = tuple(f"level{c}" for c in range(depth)) if levels is None else tuple(levels)
        if len(named) != depth:
            raise HierarchyError(
                f"{len(named)} level names, but the edges form {depth} levels (without a single class above all "
                f"others); give {depth} names."
            )
        padded = [row + row[-1:] * (depth - len(row)) for row in rows]
        return cls.from_columns({level: [row[depth - 1 - c] for row in padded] for c, level in enumerate(named)})

    @classmethod
    def from_networkx(cls, graph: "Graph[Any]", levels: Sequence[str] | None = None) -> "Hierarchy":
        """Build a tree from a directed graph of networkx: a graph that :meth:`to_networkx` made, or any tree.

        Edges point from parent to child, as in networkx's own trees. If several edges point to one class, hgld assumes
        that edges point from child to parent. :meth:`from_edges` explains the levels.

        Args:
            graph: one or several trees.
            levels: names of the levels, finest first; default: the levels stored by :meth:`to_networkx`, or ``level0``,
                ...

        Raises:
            HierarchyError: the graph is undirected, or :meth:`from_edges` rejects its edges.
        """
        if not graph.is_directed():
            raise HierarchyError("the graph is undirected; expected a DiGraph, whose edges point from parent to child.")
        if stated := graph.graph.get("hgld_levels"):
            label = dict(graph.nodes(data="label"))
            parent = {child: label[above] for above, child in graph.edges}
            nodes = [sorted((node for node in label if node[0] == level), key=label.__getitem__) for level in stated]
            parents = [np.array([parent.get(node, -1) for node in level], dtype=np.int64) for level in nodes[:-1]]
            return cls(tuple(levels or stated), tuple(tuple(name for _, name in n) for n in nodes), tuple(parents))
        ends = [end for _, end in graph.edges]
        # edges lead up if a class is the end of two edges: in a tree, no class has two parents
        leads_up = len(set(ends)) < len(ends)
        pairs = [edge if leads_up else edge[::-1] for edge in graph.edges]
        return cls.from_edges([*pairs, *((node, None) for node in graph)], levels)

    # -- queries --------------------------------------------------------------------------------------------

    @property
    def num_classes(self) -> tuple[int, ...]:
        """Number of classes per level, finest first."""
        return tuple(len(names) for names in self.names)

    def level_index(self, level: str | int) -> int:
        """Return the column (0 is the finest) of a level, given by name or column.

        Raises:
            HierarchyError: there is no such level.
        """
        if level in self.levels:
            return self.levels.index(level)  # pyright: ignore[reportArgumentType]  # a member of levels is a name
        if isinstance(level, int) and 0 <= level < len(self.levels):
            return level
        raise HierarchyError(f"level {quoted(level)} is unknown; the levels are {', '.join(self.levels)}.")

    def index(self, name: str, level: str | int = 0) -> int:
        """Return the class id (label) of a name at a level, the finest by default.

        Raises:
            HierarchyError: there is no such class or level.

        >>> Hierarchy.from_columns({"kind": ["dog", "cat"]}).index("dog")
        1
        """
        c = self.level_index(level)
        if name in self.names[c]:
            return self.names[c].index(name)
        elsewhere = [other for other, names in zip(self.levels, self.names, strict=True) if name in names]
        near = get_close_matches(str(name), self.names[c], n=1)
        hint = f" It is a class of level {elsewhere[0]}." if elsewhere else ""
        hint = f" Did you mean {quoted(near[0])}?" if near and not hint else hint
        raise HierarchyError(f"level {quoted(self.levels[c])} has no class {quoted(name)}.{hint}")

    def lca(self, first: str | int, second: str | int, level: str | int = 0) -> tuple[str, str] | None:
        """Return the lowest common ancestor of two classes: (level, name) of the finest class above both.

        Args:
            first: name or class id at ``level``.
            second: name or class id at ``level``.
            level: name or column; the finest by default.

        Returns:
            (level, name); None if the classes have no common ancestor.

        Raises:
            HierarchyError: there is no such class or level.

        >>> tree = Hierarchy.from_columns({"kind": ["dog", "cat", "oak"], "top": ["animal", "animal", "plant"]})
        >>> tree.lca("dog", "cat"), tree.lca("dog", "oak")
        (('top', 'animal'), None)
        """
        c = self.level_index(level)
        ids = [self.index(one, level) if isinstance(one, str) else int(one) for one in (first, second)]
        one, other = self.expand(ids, self.levels[c])
        shared = np.flatnonzero((one == other) & (one >= 0))
        if not shared.size:
            return None
        found = c + int(shared[0])
        return self.levels[found], self.names[found][one[shared[0]]]

    def expand(self, labels: Sequence[int] | np.ndarray, level: str | None = None) -> np.ndarray:
        """Return labels at ``level`` and at every coarser level.

        Args:
            labels: (N,) class ids at ``level``; -1 stays unknown.
            level: level of the labels; default: the finest.

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
            padded = np.append(parent, np.int32(-1))  # index -1 reads the appended last entry, so unknown stays unknown
            columns.append(padded[columns[-1]])
        return np.stack(columns, axis=1)

    def restrict(self, levels: Sequence[str]) -> "Hierarchy":
        """Return the tree with only some of its levels, given finest first.

        Raises:
            HierarchyError: a level is unknown, or the levels are not from fine to coarse.
        """
        chosen = [self.level_index(level) for level in levels]
        if not chosen or chosen != sorted(set(chosen)):
            raise HierarchyError(f"levels are {tuple(levels)}; expected some of {self.levels}, from fine to coarse.")
        parents = []
        for c, d in itertools.pairwise(chosen):
            parents.append(self.expand(np.arange(len(self.names[c])), self.levels[c])[:, d - c])
        return Hierarchy(tuple(levels), tuple(self.names[c] for c in chosen), tuple(parents))

    def counts(self, labels: np.ndarray | None = None) -> dict[str, np.ndarray]:
        """Count the items of every class at every level; unknown labels are not counted.

        Args:
            labels: (N,) finest labels, or (N, L) labels. Default: count each finest class once.

        Returns:
            per level, a (number of classes,) int64 array.
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
        """Check that an (N, L) table of labels agrees with the tree; unknown labels always agree.

        Raises:
            HierarchyError: an item's labels are not on one path of the tree; the message lists the first such items.
        """
        table = np.asarray(labels)
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

    __hash__ = None  # pyright: ignore[reportAssignmentType]  # a hierarchy holds arrays, which have no hash

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
            depth: number of levels, from the coarsest; None: all levels.
            most: maximum number of children to draw per class; None: all children.
            lines: maximum number of lines; without ``depth``, only the levels that fit are drawn. None: no limit.
            width: maximum number of characters per line.

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

    def plot(self, ax: "Axes | None" = None, *, labels: np.ndarray | None = None) -> "Axes":
        """Draw the tree with matplotlib: one row per level, coarsest on top. A class's width is its item count.

        Args:
            ax: axes to draw on. Default: the axes of a new figure (``.figure.savefig(path)`` writes it).
            labels: (N,) finest labels or (N, L) labels of items. Default: each finest class has one item.

        Returns:
            the axes.

        Raises:
            HierarchyError: a label is not a class.
        """
        from hgld.tree_drawing import plot_tree

        sizes = self.counts(labels)[self.levels[0]]
        table = self.expand(np.arange(len(sizes)))
        return plot_tree(self.levels, lambda c, label: self.names[c][label], table, sizes, ax)

    def to_networkx(self) -> "DiGraph[tuple[str, str]]":
        """Return a directed graph of networkx: one node (level, name) per class, edges from parent to child.

        Nodes have the attributes ``level``, ``name`` and ``label`` (class id). :meth:`from_networkx` reads the graph.
        """
        from networkx import DiGraph  # always installed, because torch depends on it

        graph: DiGraph[tuple[str, str]] = DiGraph(hgld_levels=self.levels)
        for level, names in zip(reversed(self.levels), reversed(self.names), strict=True):
            for label, name in enumerate(names):
                graph.add_node((level, name), level=level, name=name, label=label)
        for c, parents in enumerate(self.parents):
            for label in np.flatnonzero(parents >= 0).tolist():
                above = (self.levels[c + 1], self.names[c + 1][parents[label]])
                graph.add_edge(above, (self.levels[c], self.names[c][label]))
        return graph

    # -- files ------------------------------------------------------------------------------------------------

    @classmethod
    def read(cls, path: str | Path) -> "Hierarchy":
        """Read a hierarchy that hgld wrote; :func:`hgld.taxonomy.formats.read_levels` reads other taxonomies.

        Args:
            path: ``hierarchy.parquet``, or the folder of a build or dataset that contains it.

        Raises:
            InputError: the file is not a hierarchy.
        """
        file = Path(path)
        return cls.from_parquet(file / FILE if file.is_dir() else file)

    def to_frame(self) -> pl.DataFrame:
        """Return a table of the classes: level, label, name, parent (label at the next coarser level or null)."""
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
        """Write ``hierarchy.parquet``: the table of :meth:`to_frame`, with levels and schema version as metadata."""
        self.to_frame().write_parquet(path, metadata=level_metadata(SCHEMA_VERSION, self.levels))

    @classmethod
    def from_parquet(cls, source: str | Path | bytes, where: str | None = None) -> "Hierarchy":
        """Read a file that :meth:`to_parquet` wrote.

        Args:
            source: the file, or its bytes.
            where: name of the source in messages.

        Raises:
            SchemaError: this hgld does not read the file's schema version.
            TableError: the file is not readable parquet, or has wrong columns.
            HierarchyError: the rows are not a tree.
        """
        file = where or (FILE if isinstance(source, bytes) else str(source))
        fix = "Rebuild the file, or install the version of hgld that wrote it."
        levels = read_levels(source, SCHEMA_VERSION, "hierarchy", where=file, fix=fix)
        frame = read_parquet(source, schema=_COLUMNS, where=file)
        other = frame.filter(~pl.col("level").is_in(levels).fill_null(False))
        if len(other):
            raise HierarchyError(
                f"{file}: {len(other)} rows have the level {quoted(other['level'][0])}; expected {list(levels)}."
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


def _table_columns(columns: Any) -> dict[str, list[Any]]:
    """Return the cells of a table per column name."""
    if isinstance(columns, Mapping):
        return {str(name): list(column) for name, column in columns.items()}
    if hasattr(columns, "iloc"):  # pandas is read directly, because its Arrow interface needs pyarrow
        return {str(name): columns[name].tolist() for name in columns.columns}
    return pl.DataFrame(columns).to_dict(as_series=False)


def _class_name(cell: Any, level: str) -> str | None:
    if cell is None or type(cell).__name__ == "NAType" or cell == "" or (isinstance(cell, float) and cell != cell):
        return None
    if not isinstance(cell, str):
        raise HierarchyError(
            f"level {quoted(level)} has the class {quoted(cell)}; expected names (text), or None where unknown. "
            "Use Hierarchy.from_labels for integers."
        )
    return cell


def _paths_down(taxonomy: Taxonomy) -> list[list[str]]:
    """Return for each class without children the names from the top down to it; a single top class is excluded."""
    if several := taxonomy.with_several_parents:
        shown = (
            f"{quoted(taxonomy.names[p])} under " + " and ".join(quoted(taxonomy.names[q]) for q in taxonomy.parents[p])
            for p in several
        )
        raise HierarchyError(f"classes have several parents: {_some(shown)}. Keep one parent for each.")
    paths: dict[int, list[str]] = {}
    for place in taxonomy.order:  # in this order, each class comes after its parent
        above = taxonomy.parents[place]
        paths[place] = [*(paths[above[0]] if above else ()), taxonomy.names[place]]
    has_one_top = len(taxonomy) > 1 and sum(not parents for parents in taxonomy.parents) == 1
    return [paths[place][has_one_top:] for place in taxonomy.leaves.tolist()]


def _parents(
    fine: np.ndarray, coarse: np.ndarray, size: int, levels: tuple[str, str], names: tuple[Sequence[str], Sequence[str]]
) -> np.ndarray:
    """Return the parent of each of ``size`` fine classes, from items' labels; raise an error for two parents."""
    parent = np.full(size, -1, dtype=np.int32)
    both = (fine >= 0) & (coarse >= 0)
    pairs = np.unique(np.stack([fine[both], coarse[both]], axis=1), axis=0)
    parent[pairs[:, 0]] = pairs[:, 1]
    child, times = np.unique(pairs[:, 0], return_counts=True)
    several = child[times > 1]
    if several.size:
        raise HierarchyError(
            f"classes of level {quoted(levels[0])} are in more than one class of level {quoted(levels[1])}: "
            + _some(
                f"{quoted(names[0][i])} under " + " and ".join(quoted(names[1][j]) for j in pairs[pairs[:, 0] == i, 1])
                for i in several
            )
            + ". Give each one parent, or rename the classes if they are different classes."
        )
    return parent
