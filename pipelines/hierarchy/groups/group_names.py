"""Labels for groups, proposed from the common parts of their names, with the evidence.

There are three methods; the first that applies is taken:

1. ``head-noun``: the head noun of English names that carry at least half of the group's landmarks. In the domain
   ``general`` ``shared-word`` too: the word that such names share in any language, or their last signs in Chinese,
   Japanese or Korean. There at least two names must share it, so that a name alone in its group is not cut. There a
   singular is taken only if it is a common English word or occurs in a name.
2. ``p279``: the Wikidata class that says best which names are in the group. Candidates are the classes above names
   that carry at least half of its landmarks; the highest F1 wins if it is at least 0.25. F1 is the harmonic mean of
   the share of the group's landmarks below the class, and the share of the class's landmarks that are in the group.
3. ``medoid``: the name nearest to the group's centre; of those within 0.02 of its cosine the one with the most
   landmarks. It always exists.

Labels are unique, regardless of the case of their letters. A group does not take another group's name as its label. If
two groups want the same label, the one that has it among its own names gets it, then the one with more landmarks; the
other takes its next proposal.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from itertools import count
from typing import Literal

import numpy as np
import polars as pl

from ..encoders.head_noun import head_noun, plain_words
from ..names.class_graph import ClassGraph
from ..names.clean import NameRules
from ..names.languages import common_words, script_of

LEAST_SHARE = 0.5
NEAR = 0.02
LEAST_F1 = 0.25  # below it a class is too general to say what the group is: entity, fixed construction


@dataclass(frozen=True)
class Member:
    """A name of a group: its landmarks, Wikidata classes, cosine with the group's centre, and whether it is English."""

    name: str
    landmarks: int
    classes: tuple[str, ...]
    centrality: float
    english: bool = True


@dataclass(frozen=True)
class Proposal:
    """A proposed label, the method that found it, and the evidence for it."""

    label: str
    method: Literal["head-noun", "shared-word", "p279", "medoid"]
    evidence: str


def propose_labels(
    groups: Sequence[Sequence[Member]], graph: ClassGraph, rules: NameRules, domain: str = "landmarks"
) -> list[Proposal]:
    """Return one label for each group, in their order; no two are alike.

    Args:
        groups: members of every group, none of them empty; names are unique over all groups.
        graph: the P279 graph; may be empty.
        rules: the rules by which a class's label, raw text of Wikidata, becomes a name; if nothing is left of it, the
            class is not proposed.
        domain: domain of the names.
    """
    owners: dict[str, set[int]] = defaultdict(set)
    for place, members in enumerate(groups):
        for member in members:
            owners[member.name.casefold()].add(place)
    below = _landmarks_below(groups, graph)
    words = _words(groups, domain)
    ways = [_proposals(members, graph, rules, below, own) for members, own in zip(groups, words, strict=True)]
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


def label_groups(
    names: pl.DataFrame, groups: np.ndarray, centrality: np.ndarray, graph: ClassGraph, domain: str
) -> list[Proposal]:
    """Return a label for each group of a build's names.

    Args:
        names: name, landmarks, class_ids, english.
        groups: (N,) their groups 0..G-1, none of them empty.
        centrality: (N,) cosines with the centres of their groups.
        graph: the P279 graph.
        domain: domain of the names.
    """
    members: list[list[Member]] = [[] for _ in range(int(groups.max()) + 1)]
    rows = names.select("name", "landmarks", "class_ids", "english").iter_rows()
    for group, near, (name, landmarks, ids, english) in zip(groups.tolist(), centrality.tolist(), rows, strict=True):
        members[group].append(Member(name, landmarks, tuple(ids or ()), near, english))
    return propose_labels(members, graph, NameRules.read(domain=domain), domain)


def _words(groups: Sequence[Sequence[Member]], domain: str) -> list[list[Proposal]]:
    """Return the words that could be each group's label."""
    if domain == "landmarks":
        return [_head_nouns(members) for members in groups]
    known = {word for members in groups for member in members for word in plain_words(member.name)} | common_words()
    return [_shared_words(members, known) for members in groups]


def _proposals(
    members: Sequence[Member],
    graph: ClassGraph,
    rules: NameRules,
    below: Mapping[str, int],
    words: Sequence[Proposal],
) -> Iterator[Proposal]:
    yield from words
    yield from _class_proposals(members, graph, rules, below)
    near = max(member.centrality for member in members) - NEAR
    central = sorted(members, key=lambda m: (m.centrality < near, -m.landmarks, -round(m.centrality, 5), m.name))
    for member in central:
        yield Proposal(member.name, "medoid", f"nearest to the group's centre (cosine {member.centrality:.2f})")
    for number in count(2):  # names of two groups may differ in the case of letters only
        label = f"{central[0].name} ({number})"
        yield Proposal(label, "medoid", f"nearest to the group's centre; {central[0].name!r} is taken")


def _head_nouns(members: Sequence[Member]) -> list[Proposal]:
    heads: dict[str, list[Member]] = defaultdict(list)
    for member in members:
        heads[head_noun(member.name)].append(member)
    return [
        Proposal(head, "head-noun", f"head noun of {_share(heads[head], members)}")
        for head in sorted(heads, key=lambda h: (-_landmarks(heads[h]), h))
        if _landmarks(heads[head]) >= LEAST_SHARE * _landmarks(members)
    ]


# -- words of names in any language --------------------------------------------------------------------------------

_LEAST_NAMES = 2
_LEAST_LETTERS = 3  # shorter words are mostly articles and prepositions
_NOT_LETTERS = re.compile(r"[^\w'’-]+|_")
_LONGEST_ENDING = 4
_Found = tuple[str, str, str]  # of a name: the key that it shares with others, the text that it has for it, and how


def _shared_words(members: Sequence[Member], known: Set[str]) -> list[Proposal]:
    """Return heads, words or last signs that at least two names share, if these names carry half of the group.

    Heads come first, then what more landmarks carry, what stands later in the names, and what is longer.
    """
    carriers: dict[str, list[Member]] = defaultdict(list)
    texts: dict[str, Counter[str]] = defaultdict(Counter)
    methods: dict[str, str] = {}
    places: Counter[str] = Counter()
    for member in members:
        for place, (key, text, method) in enumerate(_words_of(member, known)):
            carriers[key].append(member)
            texts[key][text] += max(member.landmarks, 1)
            places[key] += place
            if methods.get(key) != "head-noun":
                methods[key] = method
    least = LEAST_SHARE * _landmarks(members)
    shared = [key for key, of in carriers.items() if len(of) >= _LEAST_NAMES and _landmarks(of) >= least]
    order = {
        key: (
            methods[key] != "head-noun",
            -_landmarks(carriers[key]),
            -places[key] / len(carriers[key]),
            -len(key),
            key,
        )
        for key in shared
    }
    return [
        Proposal(
            min(texts[key], key=lambda text: (-texts[key][text], text)),
            "head-noun" if methods[key] == "head-noun" else "shared-word",
            f"{'head noun' if methods[key] == 'head-noun' else 'shared'} of {_share(carriers[key], members)}",
        )
        for key in sorted(shared, key=order.__getitem__)
    ]


def _words_of(member: Member, known: Set[str]) -> list[_Found]:
    """Return what a name can share with others, each once, in the order in which it stands there."""
    if member.english:
        head = head_noun(member.name)
        spelt = plain_words(member.name)
        if all(word in known or word in spelt for word in head.split()):
            return [(head, head, "head-noun")]
    found: dict[str, _Found] = {}
    for word in _NOT_LETTERS.split(member.name):
        if script_of(word) == "cjk":
            endings = [word[-length:] for length in range(1, min(len(word), _LONGEST_ENDING) + 1)]
            found |= {ending: (ending, ending, "shared-word") for ending in endings}
        elif len(word) >= _LEAST_LETTERS:
            found[word.casefold()] = (word.casefold(), word, "shared-word")
    return list(found.values())


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
        evidence = f"{share} are {label} ({class_id}) or below it; F1 {-f1:.2f}"
        yield Proposal(label, "p279", evidence)


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
