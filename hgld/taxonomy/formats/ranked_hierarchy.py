"""Hierarchies as taxonomies: classes with their level as rank, for the formats of others."""

from collections import Counter

from hgld.hierarchy import Hierarchy
from hgld.taxonomy.formats.document import Document
from hgld.taxonomy.graph import Taxonomy, distinct_names

PARQUET, JSON = "hgld", "hgld-json"
FILE = "hierarchy.parquet"


def is_hierarchy_parquet(document: Document) -> bool:
    """Tell whether the document is hgld's own parquet, or the folder of a build or dataset that holds it."""
    return (document.path / FILE).is_file() if document.is_folder else document.head.startswith(b"PAR1")


def is_hierarchy_json(document: Document) -> bool:
    """Tell whether the document is hgld's own JSON."""
    data = document.json if document.looks_like_json else None
    return isinstance(data, dict) and {"levels", "names", "parents"} <= data.keys()


def read_hierarchy_parquet(document: Document) -> Hierarchy:
    """Read hgld's own parquet, as :meth:`Hierarchy.from_parquet` does."""
    return Hierarchy.from_parquet(document.path / FILE if document.is_folder else document.path)


def read_hierarchy_json(document: Document) -> Hierarchy:
    """Read hgld's own JSON, as :meth:`Hierarchy.from_json` does."""
    return Hierarchy.from_json(document.path)


def taxonomy_of(hierarchy: Hierarchy, source: str = "hierarchy") -> Taxonomy:
    """Return a hierarchy's classes, finest level first, with their level as rank.

    An id is the name; where classes of several levels share it, the level stands behind it.
    """
    places = [
        (level, c) for level, named in zip(hierarchy.levels, hierarchy.names, strict=True) for c in range(len(named))
    ]
    names = [name for level in hierarchy.names for name in level]
    ranks = [level for level, _ in places]
    shared = {name for name, times in Counter(names).items() if times > 1}
    ids = [f"{name} [{rank}]" if name in shared else name for name, rank in zip(names, ranks, strict=True)]
    if len(set(ids)) < len(ids):  # a class is named as if it were another one's id
        ids, _ = distinct_names(names, [f"{level} {c}" for level, c in places])
    first = [0]
    for named in hierarchy.names:
        first.append(first[-1] + len(named))
    parents = [
        (int(parent) + first[c + 1],) if parent >= 0 else ()
        for c, column in enumerate(hierarchy.parents)
        for parent in column
    ]
    parents += [()] * len(hierarchy.names[-1])
    return Taxonomy(tuple(ids), tuple(names), tuple(parents), tuple(ranks), source=source, format=PARQUET)
