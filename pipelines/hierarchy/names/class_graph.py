"""The graph of classes and their superclasses (P279), and the classes of names in a taxonomy (``--tree``).

The graph is built from ``classes.parquet`` of the scrape, which holds every class found and all its ancestors. In
Wikidata, classes may have several parents and cycles; nothing here assumes a tree.

An item's class in a taxonomy is the class with the item's id, else the class with its name, regardless of letter case
and underscores. If no class has this name, synonyms and vernacular names count. If several classes have the name, the
most usual one is taken if the format states it (WordNet's senses). Otherwise the item has no class, and is listed.
"""

from collections import defaultdict
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import networkx  # installed with torch
import numpy as np
import polars as pl
from sklearn.decomposition import TruncatedSVD
from sklearn.feature_extraction import DictVectorizer

from hgld.errors import HierarchyError, some
from hgld.hierarchy import FILE
from hgld.tables import read_parquet
from hgld.taxonomy.graph import Taxonomy

from ..config import TreeConfig
from ..unit_rows import unit
from .classes import Item
from .clean import match_key
from .landmark_tables import CLASSES

_AXES = 128


class ClassGraph:
    """Classes by id, with labels, parents and cached ancestors.

    Args:
        labels: label of every class of the table (None: no label in any language).
        parents: ids of the direct superclasses by class. Parents may be missing in ``labels``; if a class names itself
            as its parent, this parent is ignored.

    Attributes:
        ids: all classes of the graph, sorted, including parents that are missing in ``labels``.

    >>> graph = ClassGraph(
    ...     {"Q2977": "cathedral", "Q16970": "church building", "Q41176": "building"},
    ...     {"Q2977": ["Q16970"], "Q16970": ["Q41176"]},
    ... )
    >>> graph.ancestors("Q2977")
    {'Q16970': 1, 'Q41176': 2}
    """

    def __init__(self, labels: Mapping[str, str | None], parents: Mapping[str, Iterable[str]]) -> None:
        self._labels = dict(labels)
        self._graph = networkx.DiGraph()
        self._graph.add_nodes_from(labels)
        self._graph.add_edges_from((child, up) for child in parents for up in sorted(set(parents[child]) - {child}))
        self._graph.add_nodes_from(parents)
        self.ids = tuple(sorted(self._graph))
        self._paths: dict[str, dict[str, list[str]]] = {}

    @classmethod
    def read(cls, path: Path) -> "ClassGraph":
        """Read ``classes.parquet``; an empty table (html route, ``--names``) gives an empty graph.

        Raises:
            TableError: the file is not parquet, or lacks class_id, label or parents.
        """
        rows = read_parquet(path, columns=["class_id", "label", "parents"], fix="Run the scrape again.").rows()
        return cls({own: label for own, label, _ in rows}, {own: above or () for own, _, above in rows})

    def __len__(self) -> int:
        return len(self.ids)

    def __contains__(self, class_id: object) -> bool:
        return class_id in self._graph

    def label(self, class_id: str) -> str | None:
        return self._labels.get(class_id)

    def ancestors(self, class_id: str) -> Mapping[str, int]:
        """Return every proper ancestor with its distance (smallest number of P279 steps), nearest first, then by id.

        A class is never its own ancestor, not even on a cycle. An unknown class has no ancestors.
        """
        far = {ancestor: len(path) - 1 for ancestor, path in self._ways(class_id).items() if ancestor != class_id}
        return dict(sorted(far.items(), key=lambda pair: (pair[1], pair[0])))

    def path(self, class_id: str, ancestor: str) -> tuple[str, ...]:
        """Return the shortest path up, both ends included; ``()`` if there is no path. At a tie the smaller id wins."""
        return tuple(self._ways(class_id).get(ancestor, ()))

    @cached_property
    def information_content(self) -> Mapping[str, float]:
        """Information content of each class, from 0 (every class is below it) to 1 (no class is below it).

        The information content is ``1 - log(below + 1) / log(all)``, as Seco, Veale and Hayes (ECAI 2004) define it,
        which needs no corpus. ``below`` is the number of descendants in this graph, ``all`` the number of classes.
        """
        below = dict.fromkeys(self.ids, 0)  # each class is counted below itself too
        for class_id in self.ids:
            for ancestor in self._ways(class_id):
                below[ancestor] += 1
        scale = np.log(max(len(self), 2))
        return {class_id: float(1 - np.log(count) / scale) for class_id, count in below.items()}

    def rows(self, members: Sequence[Sequence[str]]) -> np.ndarray:
        """Return rows that represent the classes of each name and all their ancestors.

        The features of a name are its classes and all their ancestors, each weighted by the root of its information
        content. So the cosine of two names compares the content of their common ancestors with the content of all
        ancestors. The measure simGIC is the Jaccard index of the same sets (Pesquita et al., BMC Bioinformatics 9, S4,
        2008). The rows have the 128 leading axes, which best keep inner products.

        Args:
            members: ids of the classes of each name; unknown ids are ignored.

        Returns:
            (N, D) float32 unit rows; zero for names without known classes.
        """
        content = self.information_content
        found = [{above: content[above] ** 0.5 for own in ids for above in self._ways(own)} for ids in members]
        if not any(found):
            return np.zeros((len(members), 1), dtype=np.float32)
        features: Any = DictVectorizer().fit_transform(found)
        if min(features.shape) <= _AXES:
            return unit(features.toarray()).astype(np.float32)
        return unit(TruncatedSVD(_AXES, random_state=0).fit_transform(features)).astype(np.float32)

    def _ways(self, class_id: str) -> dict[str, list[str]]:
        """Return the shortest paths from a class to itself and its ancestors; an unknown class has no path."""
        if class_id not in self._paths:
            known = class_id in self
            self._paths[class_id] = networkx.single_source_shortest_path(self._graph, class_id) if known else {}
        return self._paths[class_id]


# -- classes of names in a taxonomy (``--tree``) ---------------------------------------------------------------------

MATCH_COLUMNS = pl.Schema(dict.fromkeys(("id", "name", "class_id", "how"), pl.String))
SEVERAL = "several-meanings"
NOT_THERE = "not-in-tree"
_MOST_LISTED = 10


@dataclass(frozen=True)
class NameClasses:
    """The classes of a list's items.

    Attributes:
        of: id of the class by item id; items without a class are absent.
        how: text per item id: how its class was found, or why it has no class.
        graph: the classes and all classes above them, with the columns of the scrape's ``classes.parquet``.
        statuses: for each item to drop, by its id, the reason (its status).
        key: facts that determine the result, for the stage's key.
        notes: notes for the user, one line each.
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


def tree_files(config: TreeConfig) -> list[Path]:
    """Return the files of ``--tree`` for the provenance; for a tree of folders the list is empty."""
    place = config.tree
    names = ("", FILE, "data.noun", "index.noun")
    return [file for name in names if (file := place / name).is_file()] if place else []


def classes_in_tree(
    taxonomy: Taxonomy, items: Sequence[Item], *, group_of: Container[str] | None = None, rules: Mapping[str, Any] = {}
) -> NameClasses:
    """Find the classes of items in a taxonomy.

    Args:
        taxonomy: the taxonomy.
        items: the names.
        group_of: classes that have a group, if the tree gives the levels. Then items without such a class are dropped
            with a status.
        rules: rules for the tree's levels, for the stage's key.

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
    if taxonomy.by_usage:  # the taxonomy's order by usage matters more than whether the name is a class's first name
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
            f"{taxonomy.source}: none of the {len(items):,} names is a class of the taxonomy, for instance "
            f"{', '.join(repr(item.name[:60]) for item in items[:3])}; it has {len(taxonomy):,} classes, for instance "
            f"{', '.join(map(repr, taxonomy.names[:3]))}. Check the tree and its format ({taxonomy.format})."
        )
    found: dict[str, set[str]] = defaultdict(set)
    for item in items:
        if item.id in of:
            found[item.name].add(of[item.id])
    for item in items:  # a name has one group: items with the same name but different classes get no class
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
