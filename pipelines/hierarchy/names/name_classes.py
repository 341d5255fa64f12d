"""Classes of names from elsewhere, a taxonomy or Wikidata: which class each item has, and the graph above these."""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import polars as pl

from hgld.errors import some

from .classes import Item
from .clean import name_key

MATCH_COLUMNS = pl.Schema(dict.fromkeys(("id", "name", "class_id", "how", "detail"), pl.String))
SEVERAL = "several-meanings"
_MOST_LISTED = 10


@dataclass(frozen=True)
class NameClasses:
    """The classes of a list's items.

    Attributes:
        of: the class of each item that has one, by the item's id.
        how: how it was found, or why there is none, by the item's id.
        graph: these classes and all above them, as the scrape's ``classes.parquet``.
        statuses: the status of the items that cannot be placed without a class, by the item's id.
        key: what determines all this, for the stage's key.
        notes: for people.
        details: what else is to be said of an item, by its id: the classes that it may mean.
    """

    of: Mapping[str, str]
    how: Mapping[str, str]
    graph: pl.DataFrame
    statuses: Mapping[str, str] = field(default_factory=dict)
    key: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    details: Mapping[str, str] = field(default_factory=dict)

    def matches(self, items: Sequence[Item]) -> pl.DataFrame:
        """Return ``matches.parquet``: id, name, class_id (null: none), how and detail, in the order of the items."""
        rows = [
            (item.id, item.name, self.of.get(item.id), self.how.get(item.id), self.details.get(item.id, ""))
            for item in items
        ]
        return pl.DataFrame(rows, schema=MATCH_COLUMNS, orient="row")


class ClassFinder(Protocol):
    """A callable that finds the classes of items."""

    def __call__(self, items: Sequence[Item]) -> NameClasses: ...


def match_key(name: str) -> str:
    """Return the key by which a name and a class are the same: letters without case, underscores and blanks alike.

    >>> match_key("Container_ship "), match_key("container  ship")
    ('container ship', 'container ship')
    """
    return " ".join(name_key(name).replace("_", " ").split())


def one_class_a_name(
    items: Sequence[Item], of: Mapping[str, str], how: Mapping[str, str]
) -> tuple[dict[str, str], dict[str, str]]:
    """Return classes and how without those of names whose items have different ones: a name is placed as a whole."""
    found: dict[str, set[str]] = defaultdict(set)
    for item in items:
        if item.id in of:
            found[item.name].add(of[item.id])
    torn = {item.id for item in items if len(found[item.name]) > 1}
    kept = {item: class_id for item, class_id in of.items() if item not in torn}
    return kept, {**how, **dict.fromkeys(sorted(torn), SEVERAL)}


def tally(how: Mapping[str, str]) -> str:
    """Return how often each way was taken, the most usual first."""
    counted = sorted(Counter(how.values()).items(), key=lambda pair: (-pair[1], pair[0]))
    return ", ".join(f"{number:,} {way}" for way, number in counted)


def names_without_class(items: Sequence[Item], how: Mapping[str, str], reasons: Mapping[str, str]) -> list[str]:
    """Return a note for each reason that left items without a class, with their first names.

    Args:
        items: in order.
        how: as of :attr:`NameClasses.how`.
        reasons: in words, by how ``how`` has them.
    """
    notes = []
    for reason, said in reasons.items():
        names = [item.name for item in items if how[item.id] == reason]
        if names:
            notes.append(f"{said}: {some((name[:60] for name in names), _MOST_LISTED)}.")
    return notes
