"""Taxonomies as graphs: classes with ids and names, each under any number of parents, without cycles."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from hgld.errors import HierarchyError, some

MOST_NODES = 10_000_000
MOST_STEPS = 1000
"""Steps from a class to the top at most: real taxonomies have up to some 40."""
_MOST_NAMED = 5
_LONGEST = 80


@dataclass(frozen=True)
class Taxonomy:
    """A directed graph of classes without cycles, of any depth, each class under no, one or several parents.

    Attributes:
        ids: of the N classes, each once.
        names: of the classes; several may share one.
        parents: positions of each class's parents, in the order of the file.
        ranks: the rank that the file gives each class (``species``, or a level's name); None where it gives none.
        synonyms: further names, each with the classes it can mean, the most usual first where ``by_usage``.
        by_usage: whether the order of a name's classes says which meaning is the most usual (WordNet's senses).
        source: the file, for messages.
        format: of the file.
        counts: what reading left out or found odd, by what it was.

    Raises:
        HierarchyError: ids repeat, or parents lead in a circle or through more than 1,000 steps.
    """

    ids: tuple[str, ...]
    names: tuple[str, ...]
    parents: tuple[tuple[int, ...], ...]
    ranks: tuple[str | None, ...]
    synonyms: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    by_usage: bool = False
    source: str = "taxonomy"
    format: str = ""
    counts: Mapping[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not len(self.ids) == len(self.names) == len(self.parents) == len(self.ranks):
            raise HierarchyError(f"{self.source}: ids, names, parents and ranks differ in number.")
        if len(set(self.ids)) != len(self.ids):
            raise HierarchyError(f"{self.source}: ids repeat; each class has an id of its own.")
        steps = int(self.steps_to_top.max(initial=0))  # finds cycles, too
        if steps > MOST_STEPS:
            raise HierarchyError(
                f"{self.source}: {short(self.names[int(self.steps_to_top.argmax())])} lies {steps:,} steps below the "
                f"top; expected {MOST_STEPS:,} at most. That is a chain, not a taxonomy: look at its parents."
            )

    def __len__(self) -> int:
        return len(self.ids)

    @cached_property
    def order(self) -> np.ndarray:
        """Positions of all classes, every class behind all of its parents.

        Raises:
            HierarchyError: naming a cycle.
        """
        waiting = np.fromiter(map(len, self.parents), np.int64, len(self))
        ready = np.flatnonzero(waiting == 0).tolist()
        for place in ready:  # grows while it is walked
            for child in self.children[place]:
                waiting[child] -= 1
                if not waiting[child]:
                    ready.append(child)
        if len(ready) < len(self):
            self._refuse_cycle(np.flatnonzero(waiting > 0))
        return np.array(ready, dtype=np.int64)

    @cached_property
    def children(self) -> tuple[tuple[int, ...], ...]:
        """Positions of the classes directly below each class, in the order of the file."""
        below: list[list[int]] = [[] for _ in self.ids]
        for place, parents in enumerate(self.parents):
            for parent in parents:
                below[parent].append(place)
        return tuple(map(tuple, below))

    @cached_property
    def steps_to_top(self) -> np.ndarray:
        """Length of the longest way from each class up to one that has no parent."""
        steps = np.zeros(len(self), dtype=np.int64)
        for place in self.order.tolist():
            if self.parents[place]:
                steps[place] = 1 + max(steps[parent] for parent in self.parents[place])
        return steps

    @property
    def leaves(self) -> np.ndarray:
        """Positions of the classes that nothing lies below."""
        return np.array([place for place, below in enumerate(self.children) if not below], dtype=np.int64)

    @property
    def with_several_parents(self) -> tuple[int, ...]:
        """Positions of the classes under more than one parent."""
        return tuple(place for place, parents in enumerate(self.parents) if len(parents) > 1)

    def fingerprint(self) -> str:
        """Return a hash of the classes, their names, ranks and parents, whatever the file looks like."""
        synonyms = list(self.synonyms.items())
        content = (self.ids, self.names, self.parents, self.ranks, synonyms, self.by_usage)
        return hashlib.sha256(json.dumps(content, ensure_ascii=False).encode(errors="replace")).hexdigest()

    def _refuse_cycle(self, unfinished: np.ndarray) -> None:
        left = set(unfinished.tolist())
        place, way, seen = min(left), list[int](), dict[int, int]()
        while place not in seen:  # each has a parent that is left over as well
            seen[place] = len(way)
            way.append(place)
            place = next(parent for parent in self.parents[place] if parent in left)
        circle = [*way[seen[place] :], place]
        shown = [short(self.ids[p]) for p in circle]
        if len(shown) > _MOST_NAMED + 2:
            shown = [*shown[:_MOST_NAMED], f"{len(shown) - _MOST_NAMED - 1} more", shown[-1]]
        raise HierarchyError(
            f"{self.source}: parents lead in a circle: {' -> '.join(shown)} (each the child of the next). Remove one "
            "of these links."
        )


def short(text: str) -> str:
    """Return a name as messages show it: quoted, at most 80 letters."""
    return repr(text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…")


class TaxonomyBuilder:
    """A taxonomy in the making, which knows where each class and link stood.

    Args:
        source: the file, for messages.
        format: of the file.
        unit: what its numbers count: ``line``, ``entry``.
    """

    def __init__(self, source: str, format: str, unit: str = "line") -> None:  # noqa: A002  # as the field is called
        self.source, self.format, self.unit = source, format, unit
        self._places: dict[str, int] = {}
        self._names: list[str] = []
        self._ranks: list[str | None] = []
        self._rows: list[int] = []  # where a class was declared; 0: only named as a parent so far
        self._named_at: list[int] = []
        self._parents: list[dict[int, None]] = []
        self._synonyms: dict[str, dict[int, None]] = {}
        self._counts: dict[str, int] = {}

    def __contains__(self, class_id: object) -> bool:
        return class_id in self._places

    def __len__(self) -> int:
        return len(self._places)

    @property
    def ids(self) -> tuple[str, ...]:
        """Ids of the classes so far."""
        return tuple(self._places)

    def add(self, class_id: str, name: str = "", rank: str | None = None, row: int = 0) -> None:
        """Declare a class.

        Raises:
            HierarchyError: it has no id, or was declared before.
        """
        place = self._place(class_id, row)
        if self._rows[place]:
            raise HierarchyError(
                f"{self.source}, {self.unit} {row:,}: the id {short(class_id)} is that of {self.unit} "
                f"{self._rows[place]:,} too; expected every id once. Rename one, or remove the repetition."
            )
        self._rows[place] = row or 1
        self.describe(class_id, name, rank)

    def describe(self, class_id: str, name: str = "", rank: str | None = None) -> None:
        """Give a class a name and a rank; what is empty stays as it was."""
        place = self._places[class_id]
        self._names[place] = name or self._names[place]
        self._ranks[place] = rank or self._ranks[place]

    def link(self, child: str, parent: str, row: int = 0) -> None:
        """Put a class under a parent; the same link twice counts as repeated.

        Raises:
            HierarchyError: an id is empty, or the class is its own parent.
        """
        below, above = self._place(child, row), self._place(parent, row)
        if below == above:
            raise HierarchyError(
                f"{self.source}, {self.unit} {row:,}: {short(child)} is its own parent; expected another class there, "
                "or nothing for a class at the top."
            )
        if above in self._parents[below]:
            self.count("repeated links")
        self._parents[below][above] = None

    def has_link(self, child: str, parent: str) -> bool:
        """Tell whether one class stands under another already."""
        return self._places[parent] in self._parents[self._places[child]]

    def call(self, synonym: str, class_id: str) -> None:
        """Let a further name mean a class, after those that it means already."""
        self._synonyms.setdefault(synonym, {})[self._places[class_id]] = None

    def order_senses(self, senses: Mapping[str, Sequence[str]]) -> None:
        """Let names mean these classes, the most usual first, before whatever else they may mean."""
        ordered = {name: dict.fromkeys(self._places[i] for i in ids) for name, ids in senses.items()}
        for name, places in self._synonyms.items():
            ordered[name] = ordered.get(name, {}) | places
        self._synonyms = ordered

    def count(self, what: str, number: int = 1) -> None:
        """Count something that reading left out or found odd."""
        if number:
            self._counts[what] = self._counts.get(what, 0) + number

    def finish(self, *, declared: bool = False, by_usage: bool = False) -> Taxonomy:
        """Return the taxonomy.

        Args:
            declared: refuse parents that were never declared, in place of taking them for classes at the top.
            by_usage: of :class:`Taxonomy`.

        Raises:
            HierarchyError: there is no class, an undeclared parent, a cycle or too long a chain.
        """
        ids = tuple(self._places)
        if not ids:
            raise HierarchyError(f"{self.source} has no classes; expected some in the format {self.format}.")
        if declared and 0 in self._rows:
            unknown = [place for place, row in enumerate(self._rows) if not row]
            raise HierarchyError(
                f"{self.source}: parents that are not in the file: "
                + some((f"{short(ids[p])} ({self.unit} {self._named_at[p]:,})" for p in unknown), separator="; ")
                + ". Add them, or leave the parent empty."
            )
        return Taxonomy(
            ids,
            tuple(name or ids[place] for place, name in enumerate(self._names)),
            tuple(map(tuple, self._parents)),
            tuple(self._ranks),
            {name: tuple(places) for name, places in self._synonyms.items()},
            by_usage,
            self.source,
            self.format,
            dict(self._counts),
        )

    def _place(self, class_id: str, row: int) -> int:
        place = self._places.get(class_id)
        if place is not None:
            return place
        if not class_id:
            raise HierarchyError(f"{self.source}, {self.unit} {row:,}: an empty id; expected a class there.")
        if len(self._places) == MOST_NODES:
            raise HierarchyError(f"{self.source} has more than {MOST_NODES:,} classes; that is no taxonomy.")
        self._places[class_id] = len(self._places)
        for column, first in ((self._names, ""), (self._ranks, None), (self._rows, 0), (self._named_at, row)):
            column.append(first)  # pyright: ignore[reportArgumentType]  # of the column's own type
        self._parents.append({})
        return len(self._places) - 1


def distinct_names(names: Sequence[str], ids: Sequence[str]) -> tuple[list[str], int]:
    """Return names that differ, and how many were changed: a name of several classes has each one's id behind it.

    >>> distinct_names(["bank", "bank", "shore"], ["n1", "n2", "n3"])
    (['bank [n1]', 'bank [n2]', 'shore'], 2)
    """
    result, changed = list(names), set[int]()
    while True:
        places: dict[str, list[int]] = {}
        for place, name in enumerate(result):
            places.setdefault(name, []).append(place)
        shared = [place for several in places.values() if len(several) > 1 for place in several]
        if not shared:
            return result, len(changed)
        changed.update(shared)
        for place in shared:
            result[place] = f"{result[place]} [{ids[place]}]"
