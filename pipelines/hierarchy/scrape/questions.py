"""Resolution of categories: find each category's next open question, and ask all open questions batch by batch.

Pure functions resolve a category from the answers in the store. So the same answers give the same statuses, whatever
the order of the answers and the number of runs.
"""

from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from hgld.errors import ConfigError, InputError, ServiceError, quoted

from ...stage import Progress
from ...web import AnswerError, BudgetSpentError, PoliteClient
from ..config import ScrapeConfig
from .infobox import Infobox, instance_of
from .store import Question, ScrapeStore
from .titles import page_url
from .wiki_api import BATCH, WIKIMEDIA_CATEGORY, category_pages, entities_by_ids, entities_by_titles

BATCHES: dict[Question, int] = {"sitelink": BATCH, "page": BATCH, "entity": BATCH, "infobox": 1}
MAX_CLASSES = 1_000_000
_MAX_FAILED_IN_A_ROW = 20
_LEFT_OUT = "the server's answer lacks a requested title or id"
_TASKS: dict[Question, str] = {
    "sitelink": "scrape: categories' items",
    "page": "scrape: categories without a linked item",
    "entity": "scrape: items and classes",
    "infobox": "scrape: category pages",
}
MAX_REDIRECTS = 8
_MAX_TOPICS = 3


@dataclass(frozen=True, slots=True)
class Resolution:
    """The resolution of a title: its status and, if it has names, the names and the ids of their classes."""

    status: str
    redirected_to: str | None = None
    item: str | None = None
    names: tuple[str, ...] = ()
    classes: tuple[str | None, ...] = ()


@dataclass(frozen=True, slots=True)
class Unanswered:
    """The questions that block the resolution of a title."""

    question: Question
    keys: tuple[str, ...]


def answer_all(
    titles: Sequence[str],
    store: ScrapeStore,
    connect: Callable[[], PoliteClient],
    config: ScrapeConfig,
    progress: Progress,
) -> dict[str, Resolution]:
    """Ask until the store has answers for every title and every class above it; answered questions are not asked again.

    A key that fails even alone in its request, after the client's retries, is recorded as a failure.

    Args:
        titles: titles of the categories.
        store: store with the answers so far; it receives the new answers.
        connect: function that makes the client; called before the first request.
        config: route, addresses and language.
        progress: receives the current task.

    Returns:
        The resolution of each title.

    Raises:
        ConfigError: all requests of the budget are used; earlier answers are kept.
        ServiceError: the servers cannot be reached, or give no usable answer many times in a row.
        StorageError: the disk is full.
    """
    asking = Asking(store, connect, config)
    resolved: dict[str, Resolution] = {}
    try:
        while len(resolved) < len(titles):
            wanted, fresh = open_questions((t for t in titles if t not in resolved), store, config.route)
            resolved |= fresh
            for question, keys in wanted.items():
                asking.ask_batches(question, keys, progress)
        classes = [class_id for found in resolved.values() for class_id in found.classes if class_id is not None]
        while lacking := unanswered_classes(classes, store)[1]:
            if len(store.entities) + len(lacking) > MAX_CLASSES + len(titles):
                raise ServiceError(f"{config.wikidata_url} has over {MAX_CLASSES:,} classes; this cannot be Wikidata.")
            asking.ask_batches("entity", lacking, progress)
    except BudgetSpentError:
        left = len(titles) - len(open_questions(titles, store, config.route)[1])
        raise ConfigError(
            f"the budget of {config.request_budget:,} requests is used up; {left:,} of {len(titles):,} categories (and "
            f"the classes above them) are not answered yet. {store.path} keeps the answers so far: run the same "
            "command again to resume, or raise --request-budget."
        ) from None
    return resolved


def open_questions(
    titles: Iterable[str], store: ScrapeStore, route: str
) -> tuple[dict[Question, list[str]], dict[str, Resolution]]:
    """Return the keys to ask next by question, each key once, and the resolved titles."""
    wanted: dict[Question, dict[str, None]] = {}
    resolved = {}
    for title in titles:
        found = resolve(title, store, route)
        if isinstance(found, Unanswered):
            wanted.setdefault(found.question, {}).update(dict.fromkeys(found.keys))
        else:
            resolved[title] = found
    return {question: list(keys) for question, keys in wanted.items()}, resolved


class Asking:
    """A run of questions, which records answers and isolates the key that makes a batch fail."""

    def __init__(self, store: ScrapeStore, connect: Callable[[], PoliteClient], config: ScrapeConfig):
        self._store, self._connect, self._config = store, connect, config
        self._answered = False
        self._failed_in_a_row = 0
        # Failures are recorded after the next good answer: a server that is down says nothing about a landmark.
        self._failures: dict[tuple[Question, str], tuple[str, str]] = {}

    @cached_property
    def _client(self) -> PoliteClient:
        return self._connect()

    def ask_batches(self, question: Question, keys: Sequence[str], progress: Progress) -> None:
        """Ask for keys batch by batch, and record each answer at once."""
        size = BATCHES[question]
        for start in range(0, len(keys), size):
            progress(_TASKS[question], start, len(keys))
            self._ask(question, keys[start : start + size])
        self._keep_failures()
        progress(_TASKS[question], len(keys), len(keys))

    def _ask(self, question: Question, keys: Sequence[str]) -> None:
        """Ask one batch; keys that fail or are missing in the answer are asked again in halves, down to one."""
        error, answered = None, set[str]()
        try:
            answered = self._fetch(question, keys)
        except AnswerError as failure:
            error = failure
        if answered:
            self._answered, self._failed_in_a_row = True, 0
            self._keep_failures()
        else:
            empty = AnswerError("unanswered", f"{_LEFT_OUT} ({question} of {quoted(keys[0])}, ...)")
            self._count_failure(error or empty)
        lacking = [key for key in keys if key not in answered]
        if len(keys) == 1 and lacking:
            self._failures[question, keys[0]] = (error.kind, str(error)) if error else ("unanswered", _LEFT_OUT)
        elif lacking:
            middle = (len(lacking) + 1) // 2
            for half in (lacking[:middle], lacking[middle:]):
                if half:
                    self._ask(question, half)

    def _fetch(self, question: Question, keys: Sequence[str]) -> set[str]:
        """Ask once, record the answer, and return the answered keys."""
        config, client, answers = self._config, self._client, dict[str, Any]()
        if question == "sitelink":
            links = entities_by_titles(client, config.wikidata_url, keys, config.language)
            self._store.record("entity", dict(filter(None, links.values())))
            answers = {title: link and link[0] for title, link in links.items()}
        elif question == "page":
            answers = category_pages(client, config.commons_url, keys)
        elif question == "entity":
            found = entities_by_ids(client, config.wikidata_url, keys, config.language)
            # a merged item has its answer under both ids
            answers = {e.item: e for e in found.values() if e.item} | found
        else:
            for title in keys:
                html = client.page(page_url(config.commons_url, title, config.language))
                try:
                    answers[title] = (
                        Infobox(exists=False) if html is None else instance_of(html, rows=config.infobox_rows)
                    )
                except InputError as error:
                    raise AnswerError("too-large", str(error)) from error
        self._store.record(question, answers)
        return set(answers)

    def _count_failure(self, failure: AnswerError) -> None:
        self._failed_in_a_row += 1
        unreachable = failure.kind == "connection" and not self._answered
        if unreachable or self._failed_in_a_row >= _MAX_FAILED_IN_A_ROW:
            row = "" if unreachable else f" That was failure {self._failed_in_a_row} in a row."
            raise ServiceError(
                f"{failure}.{row} Check the address, and try the same command again later: the answers so far are kept."
            ) from failure

    def _keep_failures(self) -> None:
        if self._failures:
            self._store.record_failures(self._failures)
            self._failures.clear()


# -- the status of a category ----------------------------------------------------------------------------------------


Steps = Generator[tuple[Question, tuple[str, ...]], list[Any], Resolution]
"""Steps to a resolution: the generator yields questions, is sent the answers, and returns the resolution."""


def resolve(title: str, store: ScrapeStore, route: str) -> Resolution | Unanswered:
    """Return the resolution of a category, or its open questions."""
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
        The answered ids, and the ids to ask next; failed ids are in neither of the two.
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
        if page.names:  # the server already showed the page of the redirect's target
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
    subject, seen = None, set[str]()  # subject: the item itself, or the main topic of a category's item
    while item not in seen and len(seen) <= _MAX_TOPICS:
        seen.add(item)
        (entity,) = yield "entity", (item,)
        if entity.item is None:
            break
        subject = entity
        if WIKIMEDIA_CATEGORY not in entity.instance_of or not entity.main_topic:
            break
        item = entity.main_topic[0]
    if subject is None:  # the item was deleted
        return Resolution("no-item", _end(trail))
    classes = yield "entity", subject.instance_of
    named = dict.fromkeys((c.item, c.label or c.item) for c in classes if c.item is not None)
    status = "found" if named else "no-instance-of"
    return Resolution(status, _end(trail), subject.item, tuple(n for _, n in named), tuple(i for i, _ in named))


def _follow(trail: list[str], title: str) -> str | None:
    """Add a title to the trail of redirects; return the problem if it cannot be added."""
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
