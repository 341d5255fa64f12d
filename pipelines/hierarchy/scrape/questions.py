"""The loop that asks open questions batch by batch, until every title has a status and every class its ancestors."""

from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from typing import Any

from hgld.errors import ConfigError, InputError, ServiceError, quoted

from ...stage import Progress
from ...web import AnswerError, BudgetSpentError, Client
from ..config import ScrapeConfig
from .commons import category_pages
from .infobox import Infobox, instance_of
from .status import Resolution, Unanswered, resolve, unanswered_classes
from .store import Question, ScrapeStore
from .titles import page_url
from .wikidata import BATCH, entities_by_ids, entities_by_titles

BATCHES: dict[Question, int] = {"sitelink": BATCH, "page": BATCH, "entity": BATCH, "infobox": 1}
MAX_CLASSES = 1_000_000
_MAX_FAILED_IN_A_ROW = 20
_LEFT_OUT = "the server's answer leaves out what was asked for"
_TASKS: dict[Question, str] = {
    "sitelink": "scrape: categories' items",
    "page": "scrape: categories without a linked item",
    "entity": "scrape: items and classes",
    "infobox": "scrape: category pages",
}


def answer_all(
    titles: Sequence[str],
    store: ScrapeStore,
    connect: Callable[[], Client],
    config: ScrapeConfig,
    progress: Progress,
) -> dict[str, Resolution]:
    """Ask until the store has answers for every title and every class above it; known answers are not asked again.

    An answer that cannot be had, after the client's retries and alone in its request, is kept as a failure of its
    kind.

    Args:
        titles: the categories.
        store: the answers so far; new ones are added.
        connect: makes the client; called when there is something to ask.
        config: route, addresses and language.
        progress: told what is asked.

    Returns:
        The resolution of each title.

    Raises:
        ConfigError: the request budget is spent; what was answered is kept.
        ServiceError: the servers cannot be reached, or answer nothing usable many times in a row.
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
        while lacking := unanswered_classes(class_ids(resolved.values()), store)[1]:
            if len(store.entities) + len(lacking) > MAX_CLASSES + len(titles):
                raise ServiceError(f"{config.wikidata_url} has over {MAX_CLASSES:,} classes; this cannot be Wikidata.")
            asking.ask_batches("entity", lacking, progress)
    except BudgetSpentError:
        left = len(titles) - len(open_questions(titles, store, config.route)[1])
        raise ConfigError(
            f"the budget of {config.request_budget:,} requests is spent; {left:,} of {len(titles):,} categories (and "
            f"the classes above them) are not answered yet. {store.path} keeps the answers so far: run the same "
            "command again to go on, or raise --request-budget."
        ) from None
    return resolved


def open_questions(
    titles: Iterable[str], store: ScrapeStore, route: str
) -> tuple[dict[Question, list[str]], dict[str, Resolution]]:
    """Return the keys to ask next by question, each key once, and the titles that need nothing more."""
    wanted: dict[Question, dict[str, None]] = {}
    resolved = {}
    for title in titles:
        found = resolve(title, store, route)
        if isinstance(found, Unanswered):
            wanted.setdefault(found.question, {}).update(dict.fromkeys(found.keys))
        else:
            resolved[title] = found
    return {question: list(keys) for question, keys in wanted.items()}, resolved


def class_ids(resolutions: Iterable[Resolution]) -> list[str]:
    """Return the classes that landmarks are instances of, each once; the html route gives them no ids."""
    return list(dict.fromkeys(c for found in resolutions for c in found.classes if c is not None))


class Asking:
    """A run of questions: fetches and records answers, and isolates the key that makes a batch fail."""

    def __init__(self, store: ScrapeStore, connect: Callable[[], Client], config: ScrapeConfig):
        self._store, self._connect, self._config = store, connect, config
        self._answered = False
        self._failed_in_a_row = 0
        # Failures wait for the next good answer: a failure while a server is down says nothing about a landmark.
        self._failures: dict[tuple[Question, str], tuple[str, str]] = {}

    @cached_property
    def _client(self) -> Client:
        return self._connect()

    def ask_batches(self, question: Question, keys: Sequence[str], progress: Progress) -> None:
        """Ask for keys batch by batch, each answer kept at once."""
        size = BATCHES[question]
        for start in range(0, len(keys), size):
            progress(_TASKS[question], start, len(keys))
            self._ask(question, keys[start : start + size])
        self._keep_failures()
        progress(_TASKS[question], len(keys), len(keys))

    def _ask(self, question: Question, keys: Sequence[str]) -> None:
        """Ask one batch; keys that fail or are left out of the answer are asked again in halves, down to one."""
        error = None
        try:
            answered = self._fetch(question, keys)
        except AnswerError as failure:
            error, answered = failure, set[str]()
            self._count_failure(failure)
        else:
            self._count_answer(question, keys, answered)
        lacking = [key for key in keys if key not in answered]
        if len(keys) == 1 and lacking:
            self._failures[question, keys[0]] = (error.kind, str(error)) if error else ("unanswered", _LEFT_OUT)
        elif lacking:
            middle = (len(lacking) + 1) // 2
            for half in (lacking[:middle], lacking[middle:]):
                if half:
                    self._ask(question, half)

    def _fetch(self, question: Question, keys: Sequence[str]) -> set[str]:
        """Ask once, record the answer, and return the keys that it accounts for."""
        config, client, answers = self._config, self._client, dict[str, Any]()
        if question == "sitelink":
            links = entities_by_titles(client, config.wikidata_url, keys, config.language)
            self._store.record("entity", dict(filter(None, links.values())))
            answers = {title: link and link[0] for title, link in links.items()}
        elif question == "page":
            answers = category_pages(client, config.commons_url, keys)
        elif question == "entity":
            found = entities_by_ids(client, config.wikidata_url, keys, config.language)
            answers = {e.item: e for e in found.values() if e.item} | found  # merged items by their new id too
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

    def _count_answer(self, question: Question, keys: Sequence[str], answered: set[str]) -> None:
        """Count an answer; one that leaves out all that it was asked for counts as a failure."""
        if answered:
            self._answered, self._failed_in_a_row = True, 0
            self._keep_failures()
        else:
            self._count_failure(AnswerError("unanswered", f"{_LEFT_OUT} ({question} of {quoted(keys[0])}, ...)"))

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
