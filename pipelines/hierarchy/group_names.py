"""Labels for groups, proposed from what their names have in common, with the evidence.

There are three kinds of proposal; the first that applies is taken:

1. ``head-noun``: the head noun of names that carry at least half of the group's landmarks.
2. ``p279``: the Wikidata class that says best which names are in the group: of the classes above names that carry at
   least half of its landmarks, the one of highest F1 (harmonic mean of the share of the group's landmarks below the
   class and the share of the class's landmarks that are in the group), if that is at least 0.25.
3. ``medoid``: the name nearest to the group's centre; of those within 0.02 of its cosine the one with the most
   landmarks. Always there.

Labels are unique, whatever the case of their letters. A group does not take another group's name as its label, and
between two groups that want the same label the one that has it among its own names, then the one with more landmarks,
gets it; the other takes its next proposal.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Literal

from hgld.pipelines.hierarchy.class_graph import ClassGraph
from hgld.pipelines.hierarchy.clean import NameRules
from hgld.pipelines.hierarchy.encoders.head_noun import head_noun

LEAST_SHARE = 0.5
NEAR = 0.02
LEAST_F1 = 0.25  # below it a class is too general to say what the group is: entity, fixed construction


@dataclass(frozen=True)
class Member:
    """A name of a group: its landmarks, its Wikidata classes, and its cosine with the group's centre."""

    name: str
    landmarks: int
    classes: tuple[str, ...]
    centrality: float


@dataclass(frozen=True)
class Proposal:
    """A proposed label, the method that found it, and the evidence for it."""

    label: str
    method: Literal["head-noun", "p279", "medoid"]
    evidence: str


def propose_labels(groups: Sequence[Sequence[Member]], graph: ClassGraph, rules: NameRules) -> list[Proposal]:
    """Return one label for each group, in their order; no two are alike.

    Args:
        groups: members of every group, none of them empty; names are unique over all groups.
        graph: the P279 graph; may be empty.
        rules: the rules by which a class's label, raw text of Wikidata, becomes a name; if nothing is left of it, the
            class is not proposed.
    """
    owners: dict[str, set[int]] = defaultdict(set)
    for place, members in enumerate(groups):
        for member in members:
            owners[member.name.casefold()].add(place)
    below = _landmarks_below(groups, graph)
    ways = [_proposals(members, graph, rules, below) for members in groups]
    size = [_landmarks(members) for members in groups]
    current = [next(way) for way in ways]
    settled: dict[str, int] = {}
    waiting = list(range(len(groups)))
    while waiting:
        place = min(waiting, key=lambda g: (g not in owners.get(current[g].label.casefold(), ()), -size[g], g))
        waiting.remove(place)
        label = current[place].label.casefold()
        own = current[place].method == "medoid" or place in owners.get(label, ())
        if label in settled or (label in owners and not own):
            current[place] = next(ways[place])
            waiting.append(place)
        else:
            settled[label] = place
    return current


def _proposals(
    members: Sequence[Member], graph: ClassGraph, rules: NameRules, below: Mapping[str, int]
) -> Iterator[Proposal]:
    total = _landmarks(members)
    heads: dict[str, list[Member]] = defaultdict(list)
    for member in members:
        heads[head_noun(member.name)].append(member)
    for head in sorted(heads, key=lambda h: (-_landmarks(heads[h]), h)):
        if _landmarks(heads[head]) >= LEAST_SHARE * total:
            yield Proposal(head, "head-noun", f"head noun of {_share(heads[head], members)}")
    yield from _class_proposals(members, graph, rules, below)
    near = max(member.centrality for member in members) - NEAR
    central = sorted(members, key=lambda m: (m.centrality < near, -m.landmarks, -round(m.centrality, 5), m.name))
    common, of = Counter({head: len(found) for head, found in sorted(heads.items())}).most_common(1)[0]
    for member in central:
        evidence = (
            f"nearest to the group's centre (cosine {member.centrality:.2f}); "
            f"most common head noun: {common} ({of} of {len(members)} names)"
        )
        yield Proposal(member.name, "medoid", evidence)
    for number in count(2):  # names of two groups may differ in the case of letters only
        label = f"{central[0].name} ({number})"
        yield Proposal(label, "medoid", f"nearest to the group's centre; {central[0].name!r} is taken")


def _class_proposals(
    members: Sequence[Member], graph: ClassGraph, rules: NameRules, below: Mapping[str, int]
) -> Iterator[Proposal]:
    total = _landmarks(members)
    covered: dict[str, list[Member]] = defaultdict(list)
    for member in members:
        for class_id in _with_ancestors(member, graph):
            covered[class_id].append(member)
    scored = []
    for class_id, found in covered.items():
        inside = _landmarks(found)
        f1 = 2 * inside / (total + below[class_id])
        is_good = inside >= LEAST_SHARE * total and f1 >= LEAST_F1
        if is_good and (label := rules.canonical(graph.label(class_id) or "")):
            scored.append((-f1, -graph.information_content[class_id], class_id, label))
    for f1, _, class_id, label in sorted(scored):
        share = _share(covered[class_id], members)
        yield Proposal(label, "p279", f"{share} are {label} ({class_id}) or below it; F1 {-f1:.2f}")


def _landmarks_below(groups: Sequence[Sequence[Member]], graph: ClassGraph) -> dict[str, int]:
    """Return the number of landmarks of all names of a class or of one below it, by class."""
    below: Counter[str] = Counter()
    for members in groups:
        for member in members:
            below.update(dict.fromkeys(_with_ancestors(member, graph), max(member.landmarks, 1)))
    return dict(below)


def _with_ancestors(member: Member, graph: ClassGraph) -> set[str]:
    known = {class_id for class_id in member.classes if class_id in graph}
    return known.union(*(graph.ancestors(class_id) for class_id in known))


def _landmarks(members: Sequence[Member]) -> int:
    return sum(max(member.landmarks, 1) for member in members)


def _share(found: Sequence[Member], members: Sequence[Member]) -> str:
    return f"{len(found)} of {len(members)} names, {_landmarks(found)} of {_landmarks(members)} landmarks"
