"""Labels for groups, proposed from the common parts of their names, with the evidence.

The first method that applies gives the label:

1. ``head-noun``: the head noun of English names with at least half of the group's landmarks. In the domain ``general``
   also ``shared-word``: a word that such names share in any language, or their last characters in Chinese, Japanese or
   Korean. At least two names must share such a word, so that the only name of a group keeps all its words. A singular
   form must be a common English word or occur in a name.
2. ``p279``: the Wikidata class that best describes the group. Candidates are classes above names with at least half of
   the group's landmarks. The class with the highest F1 wins if F1 is at least 0.25. F1 is the harmonic mean of two
   shares: the group's landmarks below the class, and the class's landmarks in the group.
3. ``medoid``: among the names whose cosine with the group's centre is within 0.02 of the highest cosine, the name with
   the most landmarks. There is always such a name.

Labels are unique, regardless of letter case. A group never takes a name of another group as its label. If two groups
want the same label, a group that has it among its names gets it, else the group with more landmarks. The other group
takes its next proposal.
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
LEAST_F1 = 0.25  # classes with a lower F1 are too general to describe a group: entity, fixed construction


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
    """Return one label for each group, in their order; all labels differ.

    Args:
        groups: members of every group, at least one each; names are unique over all groups.
        graph: the P279 graph; may be empty.
        rules: rules that clean a class's label, which is raw text of Wikidata. A class is not proposed if nothing is
            left of its label.
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
        groups: (N,) group 0..G-1 of each name; every group has at least one name.
        centrality: (N,) cosine of each name with the centre of its group.
        graph: the P279 graph.
        domain: domain of the names.
    """
    members: list[list[Member]] = [[] for _ in range(int(groups.max()) + 1)]
    rows = names.select("name", "landmarks", "class_ids", "english").iter_rows()
    for group, near, (name, landmarks, ids, english) in zip(groups.tolist(), centrality.tolist(), rows, strict=True):
        members[group].append(Member(name, landmarks, tuple(ids or ()), near, english))
    return propose_labels(members, graph, NameRules.read(domain=domain), domain)


def _words(groups: Sequence[Sequence[Member]], domain: str) -> list[list[Proposal]]:
    """Return for each group the words that could be its label."""
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
    for number in count(2):  # names of two groups may differ only in letter case
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


# -- group names from the words of names, in any language -------------------------------------------------------------

_LEAST_NAMES = 2
_LEAST_LETTERS = 3  # minimum number of letters: most shorter words are articles and prepositions
_NOT_LETTERS = re.compile(r"[^\w'’-]+|_")
_LONGEST_ENDING = 4
# a key that several names may share, its spelling in this name, and the method that found it
_Found = tuple[str, str, str]


def _shared_words(members: Sequence[Member], known: Set[str]) -> list[Proposal]:
    """Return heads, words or last characters that at least two names share, if these names have half of the landmarks.

    The order is: heads first, then by number of landmarks, by later position in the names, and by length.
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
    found = []
    for key, of in carriers.items():
        if len(of) >= _LEAST_NAMES and _landmarks(of) >= least:
            is_head = methods[key] == "head-noun"
            label = min(texts[key], key=lambda text, key=key: (-texts[key][text], text))
            said = f"{'head noun' if is_head else 'shared'} of {_share(of, members)}"
            order = (not is_head, -_landmarks(of), -places[key] / len(of), -len(key), key)
            found.append((order, Proposal(label, "head-noun" if is_head else "shared-word", said)))
    return [proposal for _, proposal in sorted(found, key=lambda pair: pair[0])]


def _words_of(member: Member, known: Set[str]) -> list[_Found]:
    """Return the parts of a name that other names may share, each once, in their order in the name."""
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
    """Return for every class the number of landmarks of all names at or below the class."""
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
    return f"{len(found)} of {len(members)} names, {_landmarks(found)} of {_landmarks(members)} items"
