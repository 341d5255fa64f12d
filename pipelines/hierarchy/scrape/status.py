"""Resolution of categories from answers: a status and the classes of its subject, or the question to ask next.

Pure functions of a store: the same answers give the same statuses, in whatever order and over however many runs they
came in.
"""

from collections.abc import Generator, Iterable
from dataclasses import dataclass
from typing import Any

from .store import Question, ScrapeStore
from .wikidata import WIKIMEDIA_CATEGORY

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


Steps = Generator[tuple[Question, tuple[str, ...]], list[Any], Resolution]
"""A way to a resolution: yields what it needs to know, is sent the answers, returns the resolution."""


def resolve(title: str, store: ScrapeStore, route: str) -> Resolution | Unanswered:
    """Return the status of a category, or the open question."""
    trail = [title]
    steps = _by_infobox(trail) if route == "html" else _by_item(trail)
    try:
        question, keys = next(steps)
        while True:
            known = store.answers[question]
            lacking = tuple(key for key in keys if key not in known)
            for key in lacking:
                if kind := store.failures.get((question, key)):
                    return _error(kind, trail)
            if lacking:
                return Unanswered(question, lacking)
            question, keys = steps.send([known[key] for key in keys])
    except StopIteration as done:
        return done.value


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


def _by_infobox(trail: list[str]) -> Steps:
    while True:
        (page,) = yield "infobox", (trail[-1],)
        if not page.exists:
            return Resolution("missing", _end(trail))
        if page.redirected_to is None:
            break
        if problem := _follow(trail, page.redirected_to):
            return _error(problem, trail)
        if page.names:  # the server showed the other category's page in this one's place
            break
    if not page.present:
        return Resolution("no-item", _end(trail))
    status = "found" if page.names else "no-instance-of"
    return Resolution(status, _end(trail), page.item, page.names, (None,) * len(page.names))


def _by_item(trail: list[str]) -> Steps:
    (item,) = yield "sitelink", (trail[-1],)
    while item is None:
        (page,) = yield "page", (trail[-1],)
        problem = _follow(trail, page.title) if page.title != trail[-1] else None
        if page.state == "missing" and not problem:
            return Resolution("missing", _end(trail))
        if page.state != "exists":
            problem = problem or ("redirect-loop" if page.state == "loop" else "invalid-title")
        elif page.item is None and page.moved_to is None:
            return Resolution("no-item", _end(trail))
        elif page.item is None:
            problem = problem or _follow(trail, page.moved_to)
        if problem:
            return _error(problem, trail)
        item = page.item
        if item is None:
            (item,) = yield "sitelink", (trail[-1],)
    subject, seen = None, set[str]()  # the item itself or, for a category's item, its main topic
    while item not in seen and len(seen) <= _MAX_TOPICS:
        seen.add(item)
        (entity,) = yield "entity", (item,)
        if entity.item is None:
            break
        subject = entity
        if WIKIMEDIA_CATEGORY not in entity.instance_of or not entity.main_topic:
            break
        item = entity.main_topic[0]
    if subject is None:  # it was deleted
        return Resolution("no-item", _end(trail))
    classes = yield "entity", subject.instance_of
    named = dict.fromkeys((c.item, c.label or c.item) for c in classes if c.item is not None)
    status = "found" if named else "no-instance-of"
    return Resolution(status, _end(trail), subject.item, tuple(n for _, n in named), tuple(i for i, _ in named))


def _follow(trail: list[str], title: str) -> str | None:
    """Add a title to the trail of redirects; return the problem if that cannot be."""
    if title in trail:
        return "redirect-loop"
    if len(trail) > MAX_REDIRECTS:
        return "redirect-chain"
    trail.append(title)
    return None


def _end(trail: list[str]) -> str | None:
    return trail[-1] if len(trail) > 1 else None


def _error(kind: str, trail: list[str]) -> Resolution:
    return Resolution(f"error({kind})", _end(trail))
