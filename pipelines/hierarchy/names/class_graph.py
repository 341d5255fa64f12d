"""The graph of Wikidata's classes and their superclasses (P279).

The graph is built from ``classes.parquet`` of the scrape, which holds every class met and all its ancestors. Real
Wikidata has classes under several parents, and cycles; nothing here assumes a tree.
"""

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import networkx  # torch brings it
import numpy as np
from sklearn.decomposition import TruncatedSVD
from sklearn.feature_extraction import DictVectorizer

from hgld.tables import read_parquet

from ..unit_rows import unit

_AXES = 128


class ClassGraph:
    """Classes by id, with labels, parents and cached ancestors.

    Args:
        labels: label of every class of the table (None: it has none in any language).
        parents: ids of the direct superclasses by class. A parent without a row of its own is a class without label
            and parents; a class that names itself as its parent does not count as such.

    Attributes:
        ids: all classes of the graph, sorted, parents without a row of their own included.

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

    def parents(self, class_id: str) -> tuple[str, ...]:
        return tuple(self._graph[class_id]) if class_id in self else ()

    def ancestors(self, class_id: str) -> Mapping[str, int]:
        """Return every proper ancestor with its distance (least number of P279 steps), nearest first, then by id.

        A class is never its own ancestor, not even on a cycle; a class that the graph does not know has none.
        """
        far = {ancestor: len(path) - 1 for ancestor, path in self._ways(class_id).items() if ancestor != class_id}
        return dict(sorted(far.items(), key=lambda pair: (pair[1], pair[0])))

    def path(self, class_id: str, ancestor: str) -> tuple[str, ...]:
        """Return the shortest path up, both ends included; ``()`` if there is none. Ties go to the lesser id."""
        return tuple(self._ways(class_id).get(ancestor, ()))

    @cached_property
    def information_content(self) -> Mapping[str, float]:
        """Information content of each class, from 0 (every class is below it) to 1 (nothing does).

        It is ``1 - log(below + 1) / log(all)``, the intrinsic information content of Seco, Veale and Hayes (ECAI 2004),
        which needs no corpus: ``below`` is the number of descendants in this graph, ``all`` that of its classes.
        """
        below = dict.fromkeys(self.ids, 0)  # and itself
        for class_id in self.ids:
            for ancestor in self._ways(class_id):
                below[ancestor] += 1
        scale = np.log(max(len(self), 2))
        return {class_id: float(1 - np.log(count) / scale) for class_id, count in below.items()}

    def rows(self, members: Sequence[Sequence[str]]) -> np.ndarray:
        """Return rows of sets of classes: what they are kinds of, as evidence beside the text.

        A set's features are its classes and all their ancestors, each by the root of its information content. So the
        cosine of two sets compares the content of their common ancestors with the content of all. (simGIC is the
        Jaccard index of the same sets: Pesquita et al., BMC Bioinformatics 9, S4, 2008.) The 128 leading axes keep
        inner products best.

        Args:
            members: the ids of the classes of each name; those that the graph does not know are ignored.

        Returns:
            (N, D) float32 unit rows; zero if the graph knows none of the classes.
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
        """Return the shortest paths from a class to itself and its ancestors; no path for an unknown class."""
        if class_id not in self._paths:
            known = class_id in self
            self._paths[class_id] = networkx.single_source_shortest_path(self._graph, class_id) if known else {}
        return self._paths[class_id]
