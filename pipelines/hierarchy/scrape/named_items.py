"""Names of anything in Wikidata (``--wikidata``): the item that a name means, and the classes above it.

A name means the item whose label it is in its language, letters' case aside; where no item has that label, the one that
has it as an alias. Items about pages of a wiki do not count. Items that are classes (they have a P279) come before
others: names of classes are mostly meant as such. If several are left, the name has no class, and is listed with them.

The parents of an item are the classes above it (P279), of one that is no class those that it is an instance of (P31).
"""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import polars as pl

from hgld.errors import ConfigError

from ...stage import Progress
from ...web import BudgetSpentError, Client
from ..config import ScrapeConfig
from ..names.classes import Item
from ..names.landmark_tables import CLASSES
from ..names.name_classes import SEVERAL, NameClasses, notes_on_matches, one_class_per_name
from .questions import BATCHES, Asking
from .scrape import STORE, Plan, connecting, source_of
from .status import unanswered_classes
from .store import ScrapeStore
from .wikidata import WIKIMEDIA_CATEGORY, Entity

NO_ITEM = "no-item"
_LONGEST_NAME = 250  # of a label, and so of what is searched
WIKI_PAGES = {  # instances of these are pages of a wiki, not what a name means
    WIKIMEDIA_CATEGORY,
    "Q4167410",  # disambiguation page
    "Q11266439",  # template
    "Q13406463",  # list article
    "Q17362920",  # duplicated page
}


@dataclass(frozen=True)
class Meaning:
    """The item that a name means and how that was found; without an item, the reason and the items it may mean."""

    item: str | None
    how: str
    candidates: tuple[str, ...] = ()


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
    connect = connecting(config, progress, client, before_asking)
    keys = {item.id: label_key(item, language or config.language) for item in items}
    with ScrapeStore(root / STORE, source_of(config)) as store:
        if config.retry_errors:
            store.forget_failures()
        _ask(list(dict.fromkeys(keys.values())), store, Asking(store, connect, config), config, progress)
        return _found(items, keys, store)


def plan_names(root: Path, config: ScrapeConfig, items: Sequence[Item], language: str = "") -> Plan:
    """Count the requests that :func:`find_classes` would make, without making one."""
    keys = list(dict.fromkeys(label_key(item, language or config.language) for item in items))
    known: set[str] = set()
    if (root / STORE).exists():
        with ScrapeStore(root / STORE, source_of(config)) as store:
            if config.retry_errors:
                store.failures.clear()  # in memory: a plan changes nothing
            known = {key for key in keys if not _is_open(key, store)}
    unanswered = len(keys) - len(known)
    requests = {
        "names": unanswered,
        "items that they may mean": -(-3 * unanswered // BATCHES["entity"]),
        "classes above them": -(-2 * unanswered // BATCHES["entity"]),
    }
    return Plan(len(items), len(keys), unanswered, requests, sum(requests.values()) / config.rate, of_names=True)


def meaning(key: str, store: ScrapeStore) -> Meaning:
    """Return what a name means by the answers in the store, all of which are there."""
    if kind := store.failures.get(("label", key)):
        return Meaning(None, f"error({kind})")
    called = store.labels.get(key, ())
    for kind in ("label", "alias"):
        ids = [match.item for match in called if match.kind == kind]
        if failed := [item for item in ids if ("entity", item) in store.failures]:
            return Meaning(None, f"error({store.failures['entity', failed[0]]})")
        entities = [store.entities.get(item) for item in ids]
        known = list({e.item: e for e in entities if e is not None and e.item and not _is_page(e)}.values())
        if left := [entity for entity in known if entity.subclass_of] or known:
            found = tuple(str(entity.item) for entity in left)
            return Meaning(found[0], kind) if len(found) == 1 else Meaning(None, SEVERAL, found)
    return Meaning(None, NO_ITEM)


def _is_page(entity: Entity) -> bool:
    return bool(WIKI_PAGES & set(entity.instance_of))


def _is_open(key: str, store: ScrapeStore) -> bool:
    return key not in store.labels and ("label", key) not in store.failures


def _ask(keys: list[str], store: ScrapeStore, asking: Asking, config: ScrapeConfig, progress: Progress) -> None:
    """Ask for names, for the items that they may mean, and for all classes above those that they mean."""
    try:
        searched = [key for key in keys if len(key.partition(":")[2]) <= _LONGEST_NAME]
        asking.ask_batches("label", [key for key in searched if _is_open(key, store)], progress)
        called = dict.fromkeys(match.item for key in keys for match in store.labels.get(key, ()))
        unknown = [i for i in called if i not in store.entities and ("entity", i) not in store.failures]
        asking.ask_batches("entity", unknown, progress)
        asking.ask_ancestors(_begins(keys, store), len(called), progress)
    except BudgetSpentError:
        left = sum(_is_open(key, store) for key in keys)
        raise ConfigError(
            f"the budget of {config.request_budget:,} requests is spent; {left:,} of {len(keys):,} names (and the "
            f"classes above them) are not answered yet. {store.path} keeps the answers so far: run the same command "
            "again to go on, or raise --request-budget."
        ) from None


def _begins(keys: Sequence[str], store: ScrapeStore) -> list[str]:
    """Return the items that names mean, and the classes of those that are no classes themselves."""
    meant = dict.fromkeys(item for key in keys if (item := meaning(key, store).item))
    return [*meant, *dict.fromkeys(c for item in meant for c in _parents(store.entities[item]))]


def _parents(entity: Entity) -> tuple[str, ...]:
    return entity.subclass_of or entity.instance_of


def _found(items: Sequence[Item], keys: dict[str, str], store: ScrapeStore) -> NameClasses:
    meanings = {key: meaning(key, store) for key in dict.fromkeys(keys.values())}
    of = {item.id: found for item in items if (found := meanings[keys[item.id]].item)}
    how = {item.id: meanings[keys[item.id]].how for item in items}
    details = {item.id: " ".join(meanings[keys[item.id]].candidates) for item in items}
    of, how = one_class_per_name(items, of, how)
    graph = _graph(list(dict.fromkeys(of.values())), store)
    reasons = {NO_ITEM: "names without an item", SEVERAL: "names that may mean several items, and so have none"}
    notes = notes_on_matches("Wikidata has items", items, of, how, reasons)
    if any(reason.startswith("error(") for reason in how.values()):
        notes = (*notes, "some names ended in an error; --retry-errors asks for them again.")
    answers = hashlib.sha256(repr(sorted(of.items())).encode() + graph.write_ndjson().encode()).hexdigest()
    key = {"wikidata": answers, "how": hashlib.sha256(repr(sorted(how.items())).encode()).hexdigest()}
    return NameClasses(of, how, graph, key=key, details=details, notes=notes)


def _graph(meant: list[str], store: ScrapeStore) -> pl.DataFrame:
    """Return the items that names mean and all classes above them, merged ones under their new ids."""
    begins = [*meant, *(c for item in meant for c in _parents(store.entities[item]))]
    rows = {}
    for asked in unanswered_classes(dict.fromkeys(begins), store)[0]:
        entity = store.entities[asked]
        if entity.item is not None:
            above = _parents(entity) if entity.item in meant else entity.subclass_of
            known = ((p.item if (p := store.entities.get(parent)) else parent) for parent in above)
            parents = tuple(dict.fromkeys(filter(None, known)))
            rows[entity.item] = (entity.item, entity.label, entity.language, parents)
    return pl.DataFrame([rows[class_id] for class_id in sorted(rows)], schema=CLASSES, orient="row")
