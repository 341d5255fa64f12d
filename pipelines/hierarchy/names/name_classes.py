"""Classes of names in a taxonomy (``--tree``): the class of each item, and the graph of all classes above.

An item's class is the one whose id is the item's own; else the one of its name, letters'
case and underscores aside. If no class is called so, further names count (synonyms, vernacular names). A name that
several classes have means the most usual one if the format says which that is (WordNet's senses); else it has no class,
and is listed.
"""

from collections import defaultdict
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import polars as pl

from hgld.errors import HierarchyError, some
from hgld.hierarchy import FILE
from hgld.taxonomy.graph import Taxonomy

from ..config import TreeConfig
from .classes import Item
from .clean import name_key
from .landmark_tables import CLASSES

MATCH_COLUMNS = pl.Schema(dict.fromkeys(("id", "name", "class_id", "how"), pl.String))
SEVERAL = "several-meanings"
NOT_THERE = "not-in-tree"
_MOST_LISTED = 10


@dataclass(frozen=True)
class NameClasses:
    """The classes of a list's items.

    Attributes:
        of: the class of each item that has one, by the item's id.
        how: text per item id: how its class was found, or why it has none.
        graph: the classes and all classes above them, in the form of the scrape's ``classes.parquet``.
        statuses: the status of the items that cannot be placed without a class, by the item's id.
        key: facts that determine the result, for the stage's key.
        notes: notes for people.
    """

    of: Mapping[str, str]
    how: Mapping[str, str]
    graph: pl.DataFrame
    statuses: Mapping[str, str] = field(default_factory=dict)
    key: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def matches(self, items: Sequence[Item]) -> pl.DataFrame:
        """Return ``matches.parquet``: id, name, class_id (null: none) and how, in the order of the items."""
        rows = [(item.id, item.name, self.of.get(item.id), self.how.get(item.id)) for item in items]
        return pl.DataFrame(rows, schema=MATCH_COLUMNS, orient="row")


def match_key(name: str) -> str:
    """Return the key by which a name and a class are the same: letters without case, underscores and blanks alike.

    >>> match_key("Container_ship "), match_key("container  ship")
    ('container ship', 'container ship')
    """
    return " ".join(name_key(name).replace("_", " ").split())


def tree_files(config: TreeConfig) -> list[Path]:
    """Return the files of ``--tree`` whose contents are stated in the provenance; of a folder tree there are none."""
    place = config.tree
    names = ("", FILE, "data.noun", "index.noun")
    return [file for name in names if (file := place / name).is_file()] if place else []


def classes_in_tree(
    taxonomy: Taxonomy, items: Sequence[Item], *, group_of: Container[str] | None = None, rules: Mapping[str, Any] = {}
) -> NameClasses:
    """Find the classes of items in a taxonomy.

    Args:
        taxonomy: the taxonomy that was read.
        items: the names.
        group_of: the classes that have a group, if the tree is the levels: items without a class, or of a class
            without a group, have a status of their own, by which they are dropped.
        rules: rules by which the tree is the levels, for the stage's key.

    Raises:
        HierarchyError: no name is in the tree.
    """
    by_id = {class_id: place for place, class_id in enumerate(taxonomy.ids)}
    named: dict[str, dict[int, None]] = defaultdict(dict)
    further: dict[str, dict[int, None]] = defaultdict(dict)
    for place, name in enumerate(taxonomy.names):
        named[match_key(name)][place] = None
    for name, meant in taxonomy.synonyms.items():
        further[match_key(name)].update(dict.fromkeys(meant))
    if taxonomy.by_usage:  # their order says more than whose first name it is
        named = defaultdict(dict, {key: meant for key, meant in named.items() if key not in further})
    of, how = {}, {}
    for item in items:
        key = match_key(item.name)
        meant = list(named.get(key) or further.get(key, ()))
        if item.id != item.name and item.id in by_id:
            of[item.id], how[item.id] = item.id, "by id"
        elif len(meant) == 1 or (meant and taxonomy.by_usage):
            first_name = key in named or taxonomy.by_usage
            of[item.id] = taxonomy.ids[meant[0]]
            how[item.id] = (
                "by its most usual meaning" if len(meant) > 1 else "by name" if first_name else "by a further name"
            )
        else:
            how[item.id] = SEVERAL if meant else NOT_THERE
    if not of:
        raise HierarchyError(
            f"{taxonomy.source}: none of the {len(items):,} names is a class of it, for instance "
            f"{', '.join(repr(item.name[:60]) for item in items[:3])}; it has {len(taxonomy):,} classes, for instance "
            f"{', '.join(map(repr, taxonomy.names[:3]))}. Is it the tree of these names, read in the right format "
            f"({taxonomy.format})?"
        )
    found: dict[str, set[str]] = defaultdict(set)
    for item in items:
        if item.id in of:
            found[item.name].add(of[item.id])
    for item in items:  # a name is placed as a whole: items of one name that have different classes have none
        if len(found[item.name]) > 1:
            of.pop(item.id, None)
            how[item.id] = SEVERAL
    statuses = {}
    if group_of is not None:
        statuses = {item.id: how[item.id] for item in items if item.id not in of}
        statuses |= {item: "no-class-above" for item, class_id in of.items() if class_id not in group_of}
    kept = {by_id[class_id] for class_id in of.values()}
    front = list(kept)
    while front:
        front = [p for p in {parent for place in front for parent in taxonomy.parents[place]} if p not in kept]
        kept.update(front)
    rows = sorted(
        (taxonomy.ids[p], taxonomy.names[p], None, [taxonomy.ids[above] for above in taxonomy.parents[p]]) for p in kept
    )
    size = f"{taxonomy.format} with {len(taxonomy):,} classes"
    notes = [f"the tree ({size}) has classes for {len(of):,} of {len(items):,} names."]
    for reason, said in ((NOT_THERE, "not in the tree"), (SEVERAL, "of several classes in the tree")):
        names = [item.name[:60] for item in items if how[item.id] == reason]
        notes += [f"{said}: {some(names, _MOST_LISTED)}."] if names else []
    graph = pl.DataFrame(rows, schema=CLASSES, orient="row")
    key = {"tree": taxonomy.fingerprint(), "levels": group_of is not None, **rules}
    return NameClasses(of, how, graph, statuses, key, tuple(notes))
