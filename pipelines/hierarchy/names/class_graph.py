"""The graph of Wikidata's classes and their superclasses (P279).

The graph is built from ``classes.parquet`` of the scrape, which holds every class met and all its ancestors. Real
Wikidata has classes under several parents, and cycles; nothing here assumes a tree.
"""

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path

import numpy as np
from scipy.sparse import csr_array
from sklearn.decomposition import TruncatedSVD

from hgld.errors import TableError, quoted
from hgld.tables import read_parquet

from ..unit_rows import unit

_COLUMNS = ("class_id", "label", "parents")
_AXES = 128


class ClassGraph:
    """Classes by id, with labels, parents and cached ancestors.

    Args:
        labels: label of every class of the table (None: it has none in any language).
        parents: ids of the direct superclasses by class. A parent without a row of its own is a class without label
            and parents; a class that names itself as its parent does not count as such.

    >>> graph = ClassGraph(
    ...     {"Q2977": "cathedral", "Q16970": "church building", "Q41176": "building"},
    ...     {"Q2977": ["Q16970"], "Q16970": ["Q41176"]},
    ... )
    >>> graph.ancestors("Q2977")
    {'Q16970': 1, 'Q41176': 2}
    """

    def __init__(self, labels: Mapping[str, str | None], parents: Mapping[str, Iterable[str]]) -> None:
        self._labels = dict(labels)
        self._parents = {child: tuple(sorted(set(above) - {child})) for child, above in parents.items()}
        self._ancestors: dict[str, dict[str, int]] = {}

    @classmethod
    def read(cls, path: Path) -> "ClassGraph":
        """Read ``classes.parquet``; an empty table (html route, ``--names``) gives an empty graph.

        Raises:
            TableError: the file is not parquet, or lacks class_id, label or parents.
        """
        table = read_parquet(path, fix="Run the scrape again.")
        missing = [column for column in _COLUMNS if column not in table.columns]
        if missing:
            raise TableError(
                f"{path}: columns {missing} are missing; found {quoted(table.columns)}, expected {list(_COLUMNS)}. "
                "Run the scrape again."
            )
        ids = table["class_id"].to_list()
        parents = zip(ids, table["parents"].to_list(), strict=True)
        labels = dict(zip(ids, table["label"].to_list(), strict=True))
        return cls(labels, {child: above or () for child, above in parents})

    def __len__(self) -> int:
        return len(self.ids)

    def __contains__(self, class_id: object) -> bool:
        return class_id in self._positions

    @cached_property
    def ids(self) -> tuple[str, ...]:
        """All classes of the graph, sorted, parents without a row of their own included."""
        return tuple(sorted({*self._labels, *self._parents, *(p for above in self._parents.values() for p in above)}))

    def label(self, class_id: str) -> str | None:
        return self._labels.get(class_id)

    def parents(self, class_id: str) -> tuple[str, ...]:
        return self._parents.get(class_id, ())

    def ancestors(self, class_id: str) -> Mapping[str, int]:
        """Return every proper ancestor with its distance (least number of P279 steps), nearest first, then by id.

        A class is never its own ancestor, not even on a cycle; a class that the graph does not know has none.
        """
        known = self._ancestors.get(class_id)
        if known is None:
            known = self._ancestors[class_id] = self._climb(class_id)
        return known

    def path(self, class_id: str, ancestor: str) -> tuple[str, ...]:
        """Return the shortest path up, both ends included; ``()`` if there is none. Ties go to the lesser id."""
        if class_id == ancestor:
            return (class_id,)
        if ancestor not in self.ancestors(class_id):
            return ()
        steps = [class_id]
        while steps[-1] != ancestor:
            above = self.parents(steps[-1])
            steps.append(min(above, key=lambda parent: (self._distance(parent, ancestor), parent)))
        return tuple(steps)

    @cached_property
    def information_content(self) -> Mapping[str, float]:
        """Information content of each class, from 0 (everything lies below it) to 1 (nothing does).

        It is ``1 - log(below + 1) / log(all)``, the intrinsic information content of Seco, Veale and Hayes (ECAI 2004),
        which needs no corpus: ``below`` is the number of descendants in this graph, ``all`` that of its classes.
        """
        below = dict.fromkeys(self.ids, 0)
        for class_id in self.ids:
            for ancestor in self.ancestors(class_id):
                below[ancestor] += 1
        scale = np.log(max(len(self), 2))
        return {class_id: float(1 - np.log(count + 1) / scale) for class_id, count in below.items()}

    def rows(self, members: Sequence[Sequence[str]]) -> np.ndarray:
        """Return rows of sets of classes: what they are kinds of, as evidence beside the text.

        A set's features are its classes and all their ancestors, each by the root of its information content, so that
        the cosine of two sets is the content of the ancestors that they share against that of their own (compare
        simGIC, the Jaccard index of the same sets: Pesquita et al., BMC Bioinformatics 9, S4, 2008). The 128 leading
        axes keep inner products best.

        Args:
            members: the ids of the classes of each name; those that the graph does not know are ignored.

        Returns:
            (N, D) float32 unit rows; zero if the graph knows none of the classes.
        """
        columns: list[int] = []
        ends = [0]
        for ids in members:
            known = {class_id for class_id in ids if class_id in self}
            above = known.union(*(self.ancestors(class_id) for class_id in known))
            columns.extend(sorted(self._positions[class_id] for class_id in above))
            ends.append(len(columns))
        content = np.array([self.information_content[class_id] for class_id in self.ids]) ** 0.5
        values = content[columns] if columns else np.zeros(0)
        features = csr_array(
            (values, np.array(columns, np.int64), np.array(ends)), shape=(len(members), max(len(self), 1))
        )
        features = features[:, np.unique(np.array(columns, np.int64))] if columns else features
        if min(features.shape) <= _AXES:
            return unit(features.toarray()).astype(np.float32)
        return unit(TruncatedSVD(_AXES, random_state=0).fit_transform(features)).astype(np.float32)

    @cached_property
    def _positions(self) -> Mapping[str, int]:
        return {class_id: position for position, class_id in enumerate(self.ids)}

    def _climb(self, class_id: str) -> dict[str, int]:
        found = {class_id: 0}
        front, distance = [class_id], 0
        while front:
            distance += 1
            front = sorted({parent for child in front for parent in self.parents(child)} - found.keys())
            found.update(dict.fromkeys(front, distance))
        del found[class_id]
        return found

    def _distance(self, class_id: str, ancestor: str) -> float:
        return 0 if class_id == ancestor else self.ancestors(class_id).get(ancestor, float("inf"))
