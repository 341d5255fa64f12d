"""Taxonomies as acyclic graphs of named classes; a class may have several parents."""

import graphlib
import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from hgld.errors import HierarchyError, some

MOST_NODES = 10_000_000
MOST_STEPS = 1000
"""Largest number of steps from a class to the top; real taxonomies have up to about 40."""
_MOST_NAMED = 5
_LONGEST = 80


@dataclass(frozen=True)
class Taxonomy:
    """A directed acyclic graph of classes; a class has any number of parents.

    Attributes:
        ids: distinct ids of the N classes.
        names: names of the classes; several classes may share a name.
        parents: positions of each class's parents, in the order of the file.
        ranks: rank of each class in the file (``species``, or a level's name); None if the file states none.
        synonyms: further names, each with the positions of the classes that it can mean.
        by_usage: True if each synonym's most frequent class comes first, as in WordNet.
        source: the file, for messages.
        format: format of the file.
        counts: numbers of rows that the reader excluded or changed, per reason.

    Raises:
        HierarchyError: the parents form a cycle, or a path to the top has more than 1,000 steps.
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
        steps = int(self.steps_to_top.max(initial=0))  # raises an error if the parents form a cycle
        if steps > MOST_STEPS:
            raise HierarchyError(
                f"{self.source}: {short(self.names[int(self.steps_to_top.argmax())])} is {steps:,} steps below the "
                f"top; expected {MOST_STEPS:,} at most. That is a chain, not a taxonomy: check its parents."
            )

    def __len__(self) -> int:
        return len(self.ids)

    @cached_property
    def order(self) -> tuple[int, ...]:
        """Positions of all classes, every class after its parents.

        Raises:
            HierarchyError: the parents form a cycle; the message lists it.
        """
        waiting = list(map(len, self.parents))
        below: list[list[int]] = [[] for _ in self.ids]
        for place, parents in enumerate(self.parents):
            for parent in parents:
                below[parent].append(place)
        ready = [place for place, number in enumerate(waiting) if not number]
        for place in ready:  # the loop appends to this list
            for child in below[place]:
                waiting[child] -= 1
                if not waiting[child]:
                    ready.append(child)
        if len(ready) == len(self):
            return tuple(ready)
        shown = []
        try:
            graphlib.TopologicalSorter(dict(enumerate(self.parents))).prepare()
        except graphlib.CycleError as error:
            shown = [short(self.ids[place]) for place in reversed(error.args[1])]
        if len(shown) > _MOST_NAMED + 2:
            shown = [*shown[:_MOST_NAMED], f"{len(shown) - _MOST_NAMED - 1} more", shown[-1]]
        raise HierarchyError(
            f"{self.source}: parents form a cycle: {' -> '.join(shown)} (each the child of the next). Remove one "
            "of these links."
        )

    @cached_property
    def steps_to_top(self) -> np.ndarray:
        """Length of the longest path from each class up to a class without parents."""
        steps = [0] * len(self)
        for place in self.order:
            if self.parents[place]:
                steps[place] = 1 + max(steps[parent] for parent in self.parents[place])
        return np.array(steps, dtype=np.int64)

    @property
    def leaves(self) -> np.ndarray:
        """Positions of the classes without children."""
        inner = {parent for parents in self.parents for parent in parents}
        return np.array([place for place in range(len(self)) if place not in inner], dtype=np.int64)

    @property
    def with_several_parents(self) -> tuple[int, ...]:
        """Positions of the classes with more than one parent."""
        return tuple(place for place, parents in enumerate(self.parents) if len(parents) > 1)

    def fingerprint(self) -> str:
        """Return a hash of the classes, names, ranks and parents, which is the same for every file format."""
        synonyms = list(self.synonyms.items())
        content = (self.ids, self.names, self.parents, self.ranks, synonyms, self.by_usage)
        return hashlib.sha256(json.dumps(content, ensure_ascii=False).encode(errors="replace")).hexdigest()


def short(text: str) -> str:
    """Return a name for messages: quoted, with at most 80 characters."""
    return repr(text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…")


@dataclass(slots=True)
class _Class:
    """A class while its file is read.

    ``named`` is the first row that mentions the class. ``declared`` is the row that declares it (0: none so far).
    """

    place: int
    named: int
    name: str = ""
    rank: str | None = None
    declared: int = 0
    parents: dict[int, None] = field(default_factory=dict)


class TaxonomyBuilder:
    """Builder of a taxonomy; its error messages state the row of a class or link.

    Args:
        source: the file, for messages.
        format: format of the file.
        unit: noun for a row of the file: ``line``, ``entry``.
    """

    # the argument has the same name as in Taxonomy
    def __init__(self, source: str, format: str, unit: str = "line") -> None:  # noqa: A002
        self.source, self.format, self.unit = source, format, unit
        self._classes: dict[str, _Class] = {}
        self._synonyms: dict[str, dict[int, None]] = {}
        self._counts: dict[str, int] = {}

    def __contains__(self, class_id: object) -> bool:
        return class_id in self._classes

    def __len__(self) -> int:
        return len(self._classes)

    @property
    def ids(self) -> tuple[str, ...]:
        """Ids of the classes so far."""
        return tuple(self._classes)

    def add(self, class_id: str, name: str = "", rank: str | None = None, row: int = 0) -> None:
        """Declare a class.

        Raises:
            HierarchyError: the id is empty, or the class was declared before.
        """
        made = self._class(class_id, row)
        if made.declared:
            raise HierarchyError(
                f"{self.source}, {self.unit} {row:,}: the id {short(class_id)} is also the id of {self.unit} "
                f"{made.declared:,}; expected every id once. Rename one, or remove the repetition."
            )
        made.declared = row or 1
        self.describe(class_id, name, rank)

    def describe(self, class_id: str, name: str = "", rank: str | None = None) -> None:
        """Set a class's name and rank; an empty value changes nothing."""
        made = self._classes[class_id]
        made.name, made.rank = name or made.name, rank or made.rank

    def link(self, child: str, parent: str, row: int = 0) -> None:
        """Put a class under a parent; a second identical link is counted as repeated.

        Raises:
            HierarchyError: an id is empty, or the class is its own parent.
        """
        below, above = self._class(child, row), self._class(parent, row)
        if below is above:
            raise HierarchyError(
                f"{self.source}, {self.unit} {row:,}: {short(child)} is its own parent; expected another class, "
                "or nothing for a class at the top."
            )
        if above.place in below.parents:
            self.count("repeated links")
        below.parents[above.place] = None

    def link_chain(self, chain: Iterable[tuple[str, str]], row: int) -> str:
        """Add the classes of a row with one class per rank, each as a child of the next coarser known class.

        The id of a class is its path from the top, because genera of two families can have the same name.

        Args:
            chain: pairs of rank and class name, coarsest first; an empty name is unknown.
            row: number of the row.

        Returns:
            the id of the row's finest class; empty if all classes are unknown.
        """
        parent = ""
        for rank, name in chain:
            if name:
                here = f"{parent} > {name}" if parent else name
                if here not in self:
                    self.add(here, name, rank, row)
                    if parent:
                        self.link(here, parent, row)
                parent = here
        return parent

    def has_link(self, child: str, parent: str) -> bool:
        """Return whether one class is already a child of another class."""
        return self._classes[parent].place in self._classes[child].parents

    def call(self, synonym: str, class_id: str) -> None:
        """Add a class to the meanings of a synonym, after its earlier meanings."""
        self._synonyms.setdefault(synonym, {})[self._classes[class_id].place] = None

    def order_senses(self, senses: Mapping[str, Sequence[str]]) -> None:
        """Move the classes in ``senses[name]``, the most frequent first, to the front of each name's meanings."""
        ordered = {name: dict.fromkeys(self._classes[i].place for i in ids) for name, ids in senses.items()}
        for name, places in self._synonyms.items():
            ordered[name] = ordered.get(name, {}) | places
        self._synonyms = ordered

    def count(self, what: str, number: int = 1) -> None:
        """Count rows that the reader excluded or changed."""
        if number:
            self._counts[what] = self._counts.get(what, 0) + number

    def finish(self, *, declared: bool = False, by_usage: bool = False) -> Taxonomy:
        """Return the taxonomy.

        Args:
            declared: whether to raise an error for parents that were never declared. Default: they become top classes.
            by_usage: whether the most frequent class of each synonym comes first (see :class:`Taxonomy`).

        Raises:
            HierarchyError: there is no class, a parent was not declared, or the parents form a cycle or too long a
                chain.
        """
        if not self._classes:
            raise HierarchyError(f"{self.source} has no classes; expected some in the format {self.format}.")
        unknown = {class_id: made.named for class_id, made in self._classes.items() if not made.declared}
        if declared and unknown:
            raise HierarchyError(
                f"{self.source}: parents that are not in the file: "
                + some((f"{short(i)} ({self.unit} {row:,})" for i, row in unknown.items()), separator="; ")
                + ". Add them, or leave the parent empty."
            )
        return Taxonomy(
            tuple(self._classes),
            tuple(made.name or class_id for class_id, made in self._classes.items()),
            tuple(tuple(made.parents) for made in self._classes.values()),
            tuple(made.rank for made in self._classes.values()),
            {name: tuple(places) for name, places in self._synonyms.items()},
            by_usage,
            self.source,
            self.format,
            dict(self._counts),
        )

    def _class(self, class_id: str, row: int) -> _Class:
        found = self._classes.get(class_id)
        if found is None:
            if not class_id:
                raise HierarchyError(f"{self.source}, {self.unit} {row:,}: an empty id; expected the id of a class.")
            if len(self._classes) == MOST_NODES:
                raise HierarchyError(
                    f"{self.source} has more than {MOST_NODES:,} classes, which is too many for a taxonomy."
                )
            found = self._classes[class_id] = _Class(len(self._classes), row)
        return found


def distinct_names(names: Sequence[str], ids: Sequence[str]) -> tuple[list[str], int]:
    """Make names distinct by appending the class id to repeated names; return the names and the number of changes.

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
