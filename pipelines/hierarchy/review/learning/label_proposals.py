"""Labels that are proposed for a group which a person makes or renames."""

from collections import Counter
from collections.abc import Collection, Sequence

from hgld.pipelines.hierarchy.groups.group_names import Member, propose_labels
from hgld.pipelines.hierarchy.names.clean import NameRules
from hgld.pipelines.hierarchy.review.tables import BuildTables

_MOST = 5


def propose(names: Sequence[str], tables: BuildTables, taken: Collection[str]) -> list[dict[str, str]]:
    """Return labels for a group of ``names``, the best first, each with its reason; none that is taken.

    First comes what the build itself would call the group, then the words that most of the names share, then the names
    with most items.
    """
    sizes = tables.sizes
    members = [Member(n, sizes[n], tables.class_ids(n), 0.0, tables.is_english(n)) for n in sorted(names)]
    rules = NameRules.read(domain=tables.domain)
    found = {one.label: one.evidence for one in propose_labels([members], tables.graph, rules, tables.domain)}
    for word, count in _shared_words(names):
        found.setdefault(word, f"in {count} of {len(names)} names")
    for name in sorted(names, key=lambda name: (-sizes[name], name))[:_MOST]:
        found.setdefault(name, f"a name of {sizes[name]:,} {tables.item}{'s' * (sizes[name] != 1)}")
    return [{"label": label, "why": why} for label, why in found.items() if label not in taken][:_MOST]


def _shared_words(names: Sequence[str]) -> list[tuple[str, int]]:
    """Return the words that at least half of several names have, the most frequent and then the longest first."""
    words = Counter(word for name in names for word in dict.fromkeys(name.split()) if len(word) > 2)
    often = [(word, count) for word, count in words.items() if count > 1 and 2 * count >= len(names)]
    return sorted(often, key=lambda found: (-found[1], -len(found[0]), found[0]))[:2]
