"""Labels that are proposed: for a group which a person makes or renames, and for groups whose own says little."""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence

from ...groups.group_names import LEAST_SHARE, Member, propose_labels, supported_labels
from ...names.clean import NameRules
from ..decisions.grouping import Grouping, Subject
from ..tables import BuildTables
from .screens import Proposal

_MOST = 5


def propose(names: Sequence[str], tables: BuildTables, taken: Collection[str]) -> list[dict[str, str]]:
    """Return labels for a group of ``names``, the best first, each with its reason; none that is taken.

    First comes what the build itself would call the group, then the words that most of the names share, then the names
    with most items.
    """
    sizes, members, rules = tables.sizes, _members(names, tables), NameRules.read(domain=tables.domain)
    found = {one.label: one.evidence for one in propose_labels([members], tables.graph, rules, tables.domain)}
    for word, count in _shared_words(names):
        found.setdefault(word, f"in {count} of {len(names)} names")
    for name in sorted(names, key=lambda name: (-sizes[name], name))[:_MOST]:
        found.setdefault(name, f"a name of {sizes[name]:,} {tables.item}{'s' * (sizes[name] != 1)}")
    return [{"label": label, "why": why} for label, why in found.items() if label not in taken][:_MOST]


def new_label(names: Sequence[str], tables: BuildTables, taken: Collection[str]) -> str:
    """Return a label for a group of ``names`` that is proposed, not one that is taken."""
    if found := propose(names, tables, taken):
        return found[0]["label"]
    return next(label for number in range(2, len(taken) + 3) if (label := f"{names[0]} ({number})") not in taken)


class Renames:
    """Proposals of other labels for groups of the clustering that people made into something else.

    A group is asked about once all of its names are decided, so that it is asked about what it is in the end; if no
    person named it, and its label is none of those that are said of half of its items. What is proposed is the one said
    of most; the items that it puts right are those of which it is said, less those of which the present label is.

    Args:
        tables: the build.
    """

    def __init__(self, tables: BuildTables) -> None:
        self._tables = tables
        self._known: dict[frozenset[str], tuple[tuple[str, float], ...]] = {}

    def of(self, placed: Grouping, decided: Collection[str], wrong: Mapping[str, float]) -> list[Proposal]:
        """Return the proposals, the most useful first.

        Args:
            placed: names in groups, as the page shows them.
            decided: names that somebody decided about.
            wrong: every name's probability of standing wrong.
        """
        tables, found = self._tables, list[Proposal]()
        if tables.are_given:
            return found
        members: dict[int, set[str]] = {}
        for name in decided:
            if isinstance(group := placed.place[name], int):
                members.setdefault(group, set()).add(name)
        labels = {placed.labels[group] for group in placed.live()}
        for group, names in sorted(members.items()):
            own = placed.labels[group]
            if Subject("group", group) in placed.claims or len(names) < len(placed.members[group]):
                continue
            better = self._supported(frozenset(names))
            free = [(label, share) for label, share in better if label not in labels]
            if not free or own in (label for label, _ in better):
                continue
            label, share = max(free, key=lambda one: one[1])
            items = sum(tables.sizes[name] for name in names) * (share - self._said_of(own, names))
            listed = sorted(names, key=lambda name: (-tables.sizes[name], name))
            found.append(Proposal("rename", own, tuple(listed), tuple(wrong[n] for n in listed), items, other=label))
        return sorted(found, key=lambda one: -one.items)

    def _supported(self, names: frozenset[str]) -> tuple[tuple[str, float], ...]:
        if names not in self._known:
            tables = self._tables
            rules = NameRules.read(domain=tables.domain)
            labels = supported_labels(_members(sorted(names), tables), tables.graph, rules, tables.domain)
            self._known[names] = tuple((one.label, one.share) for one in labels if one.share > LEAST_SHARE)
        return self._known[names]

    def _said_of(self, label: str, names: Collection[str]) -> float:
        """Return the share of the items in whose names all words of a label stand."""
        words, sizes = set(label.casefold().split()), self._tables.sizes
        said = sum(sizes[name] for name in names if words <= set(name.casefold().split()))
        return said / max(sum(sizes[name] for name in names), 1)


def _members(names: Sequence[str], tables: BuildTables) -> list[Member]:
    sizes = tables.sizes
    return [Member(n, sizes[n], tables.class_ids(n), 0.0, tables.is_english(n)) for n in sorted(names)]


def _shared_words(names: Sequence[str]) -> list[tuple[str, int]]:
    """Return the words that at least half of several names have, the most frequent and then the longest first."""
    words = Counter(word for name in names for word in dict.fromkeys(name.split()) if len(word) > 2)
    often = [(word, count) for word, count in words.items() if count > 1 and 2 * count >= len(names)]
    return sorted(often, key=lambda found: (-found[1], -len(found[0]), found[0]))[:2]
