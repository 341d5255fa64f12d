"""Given classes of the top level, decided by the class graph: the class of a name lies below one of them, or does not.

A given class is every class of the graph that is called so. A name has the nearest one at or above its classes, none
where two different ones are equally near. A group has the one of most of what its names stand for, if that leads the
next one by a third of all of it, names without evidence included. A group of which the graph knows more than half to
lie below none of them has none, whatever its names sound like.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ..names.class_graph import ClassGraph
from ..names.name_classes import match_key

LEAST_LEAD = 1 / 3


@dataclass(frozen=True)
class TopByClasses:
    """A group's class of the top level by the class graph.

    Attributes:
        top: the class; None: not decided.
        lead: over the next class, as a share of the group.
        evidence: for people.
        is_outside: whether the graph knows most of the group to lie below none of the given classes.
    """

    top: str | None
    lead: float
    evidence: str
    is_outside: bool = False


def named_tops(graph: ClassGraph, tops: Sequence[str]) -> dict[str, str]:
    """Return the given class that each class of the graph is, by its id; empty where none is called so.

    >>> named_tops(ClassGraph({"Q1": "Animal", "Q2": "dog"}, {"Q2": ["Q1"]}), ("animal", "plant"))
    {'Q1': 'animal'}
    """
    wanted = {match_key(top): top for top in tops}
    labels = ((class_id, match_key(graph.label(class_id) or "")) for class_id in graph.ids)
    return {class_id: wanted[label] for class_id, label in labels if label in wanted}


def decide_by_classes(
    names: Sequence[str],
    counts: Sequence[int],
    classes: Sequence[Sequence[str]],
    graph: ClassGraph,
    anchors: Mapping[str, str],
) -> TopByClasses:
    """Decide a group's class of the top level.

    Args:
        names: the group's names.
        counts: of what every name stands for; at least one is counted.
        classes: ids of every name's classes.
        graph: the class graph.
        anchors: as of :func:`named_tops`.
    """
    counted = [max(count, 1) for count in counts]
    votes: Counter[str] = Counter()
    paths: dict[str, str] = {}
    outside = 0
    for name, ids, count in sorted(zip(names, classes, counted, strict=True), key=lambda row: (-row[2], row[0])):
        path = _path_to_nearest(ids, graph, anchors)
        if path:
            votes[anchors[path[-1]]] += count
            paths.setdefault(anchors[path[-1]], f"{name}: {' → '.join(graph.label(step) or step for step in path)}")
        elif any(class_id in graph and not _anchors_above(class_id, graph, anchors) for class_id in ids):
            outside += count
    if 2 * outside > sum(counted):
        return TopByClasses(None, 0.0, f"class graph: {outside} of {sum(counted)} lie below none of them", True)
    if not votes:
        return TopByClasses(None, 0.0, "")
    ranked = sorted(votes.items(), key=lambda vote: (-vote[1], vote[0]))
    lead = (ranked[0][1] - (ranked[1][1] if len(ranked) > 1 else 0)) / sum(counted)
    said = f"class graph: {', '.join(f'{top} {number}' for top, number in ranked)} of {sum(counted)}"
    if lead < LEAST_LEAD:
        return TopByClasses(None, lead, said)
    return TopByClasses(ranked[0][0], lead, f"{said}; {paths[ranked[0][0]]}")


def _path_to_nearest(class_ids: Sequence[str], graph: ClassGraph, anchors: Mapping[str, str]) -> tuple[str, ...]:
    """Return the path from a name's classes to the nearest given class; () if none is nearest."""
    found = []
    for class_id in class_ids:
        found += [(far, anchor, class_id) for anchor, far in _anchors_above(class_id, graph, anchors).items()]
    nearest = sorted(found)[:1]
    tied = {anchors[anchor] for distance, anchor, _ in found if distance == nearest[0][0]}
    return graph.path(nearest[0][2], nearest[0][1]) if len(tied) == 1 else ()


def _anchors_above(class_id: str, graph: ClassGraph, anchors: Mapping[str, str]) -> dict[str, int]:
    """Return the given classes at or above a class, with their distance."""
    above = {class_id: 0, **graph.ancestors(class_id)}
    return {anchor: above[anchor] for anchor in above.keys() & anchors.keys()}
