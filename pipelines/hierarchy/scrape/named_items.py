"""Names of anything in Wikidata (``--wikidata``): the item that a name means, and the classes above it.

A name means the item whose label it is in its language, letters' case aside; where no item has that label, the one that
has it as an alias. Items about pages of a wiki do not count. Items that are classes (they have a P279) come before
others: names of classes are mostly meant as such. If several are left, the name has no class, and is listed with them.

The parents of an item are the classes above it (P279), of one that is no class those that it is an instance of (P31).
"""

import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path

from hgld.errors import ConfigError

from ...stage import Progress
from ...web import BudgetSpentError, Client
from ..config import ScrapeConfig
from ..names.classes import Item
from ..names.name_classes import SEVERAL, NameClasses, notes_on_matches, one_class_per_name
from .questions import BATCHES, Asking
from .scrape import STORE, Plan, class_table, connecting, source_of
from .store import ScrapeStore
from .wikidata import WIKIMEDIA_CATEGORY, Called, Entity

NO_ITEM = "no-item"
_LONGEST_NAME = 250  # of a label, and so of what is searched
WIKI_PAGES = {  # instances of these are pages of a wiki, not what a name means
    WIKIMEDIA_CATEGORY,
    "Q4167410",  # disambiguation page
    "Q11266439",  # template
    "Q13406463",  # list article
    "Q17362920",  # duplicated page
}


def label_key(item: Item, language: str) -> str:
    """Return the key of the question for an item's name: its language, and the name as it is searched.

    >>> label_key(Item(1, "a", "Container_ship"), "en"), label_key(Item(2, "b", "Brücke", language="de"), "en")
    ('en:Container ship', 'de:Brücke')
    """
    return f"{item.language or language}:{' '.join(item.name.replace('_', ' ').split())}"


def find_classes(
    root: Path,
    config: ScrapeConfig,
    progress: Progress,
    items: Sequence[Item],
    *,
    language: str = "",
    client: Client | None = None,
    before_asking: Callable[[], object] = lambda: None,
) -> NameClasses:
    """Ask Wikidata what the names of items mean; answers in ``root/scrape.sqlite`` are not asked for again.

    Args:
        root: the build's directory of stages.
        config: address, language and limits.
        progress: told what is asked.
        items: the names.
        language: of the names that do not say theirs; empty: that of ``config``.
        client: asks the server; by default a polite one under ``config``.
        before_asking: called once before the first request, if there is any to make; may refuse by raising.

    Raises:
        ConfigError: contact or rate do not suit the servers, the store has answers of another source, or the request
            budget is spent.
        ServiceError: the servers kept refusing; the answers so far are kept.
        StorageError: the disk is full; the answers so far are kept.
    """
    keys = {item.id: label_key(item, language or config.language) for item in items}
    distinct = list(dict.fromkeys(keys.values()))
    searched = [key for key in distinct if len(key.partition(":")[2]) <= _LONGEST_NAME]
    with ScrapeStore(root / STORE, source_of(config)) as store:
        if config.retry_errors:
            store.forget_failures()
        asking = Asking(store, connecting(config, progress, client, before_asking), config)
        called = store.answers["label"]
        try:
            asking.ask_batches("label", store.is_open("label", searched), progress)
            matches = (called[key] for key in distinct if key in called)
            candidates = dict.fromkeys(item for match in matches for item in (*match.label, *match.alias))
            asking.ask_batches("entity", store.is_open("entity", candidates), progress)
            meanings = {key: _meaning(key, store) for key in distinct}
            meant = list(dict.fromkeys(item for item, _, _ in meanings.values() if item))
            begins = [*meant, *(c for item in meant for c in _parents(store.entities[item]))]
            asking.ask_ancestors(begins, len(candidates), progress)
        except BudgetSpentError:
            left = len(store.is_open("label", distinct))
            raise ConfigError(
                f"the budget of {config.request_budget:,} requests is spent; {left:,} of {len(distinct):,} names (and "
                f"the classes above them) are not answered yet. {store.path} keeps the answers so far: run the same "
                "command again to resume, or raise --request-budget."
            ) from None
        of = {item.id: found for item in items if (found := meanings[keys[item.id]][0])}
        how = {item.id: meanings[keys[item.id]][1] for item in items}
        details = {item.id: " ".join(meanings[keys[item.id]][2]) for item in items}
        of, how = one_class_per_name(items, of, how)
        graph = class_table(list(dict.fromkeys(of.values())), store, _parents)
    reasons = {NO_ITEM: "names without an item", SEVERAL: "names that may mean several items, and so have none"}
    notes = notes_on_matches("Wikidata has items", items, of, how, reasons)
    if any(reason.startswith("error(") for reason in how.values()):
        notes = (*notes, "some names ended in an error; --retry-errors asks for them again.")
    answers = repr(sorted(of.items())) + repr(sorted(how.items())) + graph.write_ndjson()
    key = {"wikidata": hashlib.sha256(answers.encode()).hexdigest()}
    return NameClasses(of, how, graph, key=key, details=details, notes=notes)


def plan_names(root: Path, config: ScrapeConfig, items: Sequence[Item], language: str = "") -> Plan:
    """Count the requests that :func:`find_classes` would make, without making one."""
    keys = list(dict.fromkeys(label_key(item, language or config.language) for item in items))
    unanswered = len(keys)
    if (root / STORE).exists():
        with ScrapeStore(root / STORE, source_of(config)) as store:
            if config.retry_errors:
                store.failures.clear()  # in memory: a plan changes nothing
            unanswered = len(store.is_open("label", keys))
    requests = {
        "names": unanswered,
        "items that they may mean": -(-3 * unanswered // BATCHES["entity"]),
        "classes above them": -(-2 * unanswered // BATCHES["entity"]),
    }
    return Plan(len(items), len(keys), unanswered, requests, sum(requests.values()) / config.rate, of_names=True)


def _meaning(key: str, store: ScrapeStore) -> tuple[str | None, str, tuple[str, ...]]:
    """Return the item that a name means and how that was found; without one, the reason and the items it may mean."""
    if kind := store.failures.get(("label", key)):
        return None, f"error({kind})", ()
    called = store.answers["label"].get(key, Called())
    for kind, ids in (("label", called.label), ("alias", called.alias)):
        if failed := [item for item in ids if ("entity", item) in store.failures]:
            return None, f"error({store.failures['entity', failed[0]]})", ()
        entities = {e.item: e for item in ids if (e := store.entities.get(item)) and e.item}
        known = {item: entity for item, entity in entities.items() if not WIKI_PAGES & set(entity.instance_of)}
        if left := [item for item, entity in known.items() if entity.subclass_of] or list(known):
            return (left[0], kind, ()) if len(left) == 1 else (None, SEVERAL, tuple(left))
    return None, NO_ITEM, ()


def _parents(entity: Entity) -> tuple[str, ...]:
    return entity.subclass_of or entity.instance_of
