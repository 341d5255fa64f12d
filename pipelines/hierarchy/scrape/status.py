"""Resolution of categories from answers: a status and the classes of its subject, or the question to ask next.

Pure functions of a store: the same answers give the same statuses, in whatever order and over however many runs they
came in.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from .store import Question, ScrapeStore
from .wikidata import WIKIMEDIA_CATEGORY, Entity

MAX_REDIRECTS = 8
_MAX_TOPICS = 3


@dataclass(frozen=True, slots=True)
class Resolution:
    """The resolution of a title: its status and, where found, the names and the ids of their classes."""

    status: str
    redirected_to: str | None = None
    item: str | None = None
    names: tuple[str, ...] = ()
    classes: tuple[str | None, ...] = ()


@dataclass(frozen=True, slots=True)
class Unanswered:
    """The questions to ask before a title can be resolved."""

    question: Question
    keys: tuple[str, ...]


class _UnansweredError(Exception):
    pass


class _FailedError(Exception):
    pass


class _Reader:
    """A reader of the store for one title."""

    def __init__(self, store: ScrapeStore):
        self._store = store

    def answer(self, question: Question, key: str) -> Any:
        known = self._store.answers[question]
        if key in known:
            return known[key]
        if kind := self._store.failures.get((question, key)):
            raise _FailedError(kind)
        raise _UnansweredError(Unanswered(question, (key,)))

    def answers(self, question: Question, keys: tuple[str, ...]) -> list[Any]:
        """Return the answers to several keys; missing ones are asked for together."""
        lacking = [key for key in keys if key not in self._store.answers[question]]
        if len(lacking) > 1 and not any((question, key) in self._store.failures for key in lacking):
            raise _UnansweredError(Unanswered(question, tuple(lacking)))
        return [self.answer(question, key) for key in keys]


def resolve(title: str, store: ScrapeStore, route: str) -> Resolution | Unanswered:
    """Return the status of a category, or the open question."""
    trail, reader = [title], _Reader(store)
    try:
        return _by_infobox(trail, reader) if route == "html" else _by_item(trail, reader)
    except _UnansweredError as error:
        return error.args[0]
    except _FailedError as error:
        return Resolution(f"error({error})", _end(trail))


def unanswered_classes(classes: Iterable[str], store: ScrapeStore) -> tuple[list[str], list[str]]:
    """Walk from classes to all their ancestors (P279), each once, so that cycles end.

    Returns:
        The ids that were answered, and those to ask next; failed ones are in neither.
    """
    met = dict.fromkeys(classes)
    queue, answered, lacking = list(met), [], []
    while queue:
        class_id = queue.pop()
        if entity := store.entities.get(class_id):
            answered.append(class_id)
            fresh = [parent for parent in entity.subclass_of if parent not in met]
            met.update(dict.fromkeys(fresh))
            queue += fresh
        elif ("entity", class_id) not in store.failures:
            lacking.append(class_id)
    return answered, lacking


def _by_infobox(trail: list[str], reader: _Reader) -> Resolution:
    while True:
        page = reader.answer("infobox", trail[-1])
        if not page.exists:
            return Resolution("missing", _end(trail))
        if page.redirected_to is None:
            break
        _follow(trail, page.redirected_to)
        if page.names:  # the server showed the other category's page in this one's place
            break
    if not page.present:
        return Resolution("no-item", _end(trail))
    status = "found" if page.names else "no-instance-of"
    return Resolution(status, _end(trail), page.item, page.names, (None,) * len(page.names))


def _by_item(trail: list[str], reader: _Reader) -> Resolution:
    item = reader.answer("sitelink", trail[-1])
    while item is None:
        page = reader.answer("page", trail[-1])
        if page.title != trail[-1]:
            _follow(trail, page.title)
        if page.state == "missing":
            return Resolution("missing", _end(trail))
        if page.state != "exists":
            raise _FailedError("redirect-loop" if page.state == "loop" else "invalid-title")
        if page.item is not None:
            item = page.item
        elif page.moved_to is not None:
            _follow(trail, page.moved_to)
            item = reader.answer("sitelink", trail[-1])
        else:
            return Resolution("no-item", _end(trail))
    subject = _subject(item, reader)
    if subject is None:
        return Resolution("no-item", _end(trail))
    classes = [c for c in reader.answers("entity", subject.instance_of) if c.item is not None]
    named = dict.fromkeys((c.item, c.label or c.item) for c in classes)
    status = "found" if named else "no-instance-of"
    return Resolution(status, _end(trail), subject.item, tuple(n for _, n in named), tuple(i for i, _ in named))


def _subject(item: str, reader: _Reader) -> Entity | None:
    """Return the item itself or, of a category's item, its main topic; None where the item was deleted."""
    subject, seen = None, set[str]()
    while item not in seen and len(seen) <= _MAX_TOPICS:
        seen.add(item)
        entity: Entity = reader.answer("entity", item)
        if entity.item is None:
            break
        subject = entity
        if WIKIMEDIA_CATEGORY not in entity.instance_of or not entity.main_topic:
            break
        item = entity.main_topic[0]
    return subject


def _follow(trail: list[str], title: str) -> None:
    if title in trail:
        raise _FailedError("redirect-loop")
    if len(trail) > MAX_REDIRECTS:
        raise _FailedError("redirect-chain")
    trail.append(title)


def _end(trail: list[str]) -> str | None:
    return trail[-1] if len(trail) > 1 else None
