"""Rows of names by a graph of classes: what they are kinds of, as evidence beside the text.

A name's features are its classes and all their ancestors, each by the root of its information content, so that the
cosine of two names is the content of the ancestors that they share against that of their own (compare
:meth:`ClassGraph.similarity`, which is the Jaccard index of the same sets, but no product of rows). The 128 leading
axes keep inner products best.
"""

from collections.abc import Sequence

import numpy as np
from scipy.sparse import csr_array
from sklearn.decomposition import TruncatedSVD

from ..groups.kmeans import unit
from ..names.class_graph import ClassGraph

AXES = 128


def class_rows(graph: ClassGraph, members: Sequence[Sequence[str]]) -> np.ndarray:
    """Return (N, D) float32 unit rows of sets of classes; zero where the graph knows none of them.

    Args:
        graph: the classes.
        members: the ids of the classes of each name.
    """
    columns: dict[str, int] = {}
    places: list[int] = []
    values: list[float] = []
    ends = [0]
    for ids in members:
        known = {class_id for class_id in ids if class_id in graph}
        for class_id in sorted(known.union(*(graph.ancestors(class_id) for class_id in known))):
            content = graph.information_content[class_id]
            if content > 0:
                places.append(columns.setdefault(class_id, len(columns)))
                values.append(content**0.5)
        ends.append(len(places))
    shape = (len(members), max(len(columns), 1))
    features = csr_array((np.array(values), np.array(places, np.int64), np.array(ends, np.int64)), shape=shape)
    if min(shape) <= AXES:
        return unit(features.toarray()).astype(np.float32)
    return unit(TruncatedSVD(AXES, algorithm="randomized", random_state=0).fit_transform(features)).astype(np.float32)
