"""The stage ``scrape``: ask Wikimedia what each landmark is an instance of; answers are kept in ``scrape.sqlite``."""

import hashlib
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

import polars as pl

from hgld.settings import key_fields

from ...stage import Progress, StageResult, StageRun, run_stage, silent
from ...web import API_RATE, PAGE_RATE, Client, PoliteClient
from ..config import ScrapeConfig
from ..names.landmark_tables import (
    CLASSES,
    VERSION,
    Landmark,
    facts_of,
    read_landmarks,
    scraped_table,
    write_scraped,
)
from .questions import Resolution, answer_all, unanswered_classes
from .store import ScrapeStore
from .titles import category_title

STORE = "scrape.sqlite"


def run(
    root: Path,
    tables: Mapping[str, Path],
    config: ScrapeConfig,
    progress: Progress = silent,
    client: Client | None = None,
    before_asking: Callable[[], object] = lambda: None,
) -> StageRun:
    """Scrape the landmarks of ``tables`` and write the stage's tables (docs/reference/build-files.md).

    Answers in ``root/scrape.sqlite`` are not asked for again, so that a stopped run resumes where it was.

    Args:
        root: the build's directory of stages.
        tables: CSVs with landmark_id and category by split.
        config: route, addresses, language and limits.
        progress: told the task and how far it is.
        client: asks the servers; by default a :class:`PoliteClient` under ``config``.
        before_asking: called once before the first request, if there is any to make; may refuse by raising.

    Raises:
        TableError: a table cannot be used.
        ConfigError: contact or rate do not suit the servers, the store has answers of another source, or the request
            budget is spent.
        ServiceError: the servers kept refusing; the answers so far are kept.
        StorageError: the disk is full; the answers so far are kept.
    """
    began = time.time()
    landmarks, dropped = read_landmarks(tables)
    known = _titles(landmarks)
    titles = _distinct(known)
    with ScrapeStore(root / STORE, source_of(config)) as store:
        if config.retry_errors:
            store.forget_failures()

        def connect() -> Client:
            connected = client or polite_client(config, progress)
            before_asking()
            return connected

        resolved = answer_all(titles, store, connect, config, progress)
        scraped = _scraped(landmarks, known, resolved)
        classes = _class_table(scraped["classes"].explode().drop_nulls().unique().to_list(), store)
        notes = _notes(scraped, classes)

    def work(directory: Path) -> StageResult:
        return write_scraped(directory, scraped, classes, dropped, notes)

    answers = hashlib.sha256(scraped.write_ndjson().encode() + classes.write_ndjson().encode()).hexdigest()
    inputs = {f"landmarks {split}": Path(path) for split, path in tables.items()}
    stated = {**key_fields(config), "answers": answers}
    return run_stage("scrape", root, version=VERSION, config=stated, inputs=inputs, work=work, began=began)


def polite_client(config: ScrapeConfig, progress: Progress = silent) -> PoliteClient:
    """Return the client that ``config`` describes; raise ConfigError if Wikimedia's rules do not allow it."""
    waited = 0.0

    def on_wait(seconds: float, reason: str) -> None:
        nonlocal waited
        waited += seconds
        progress("scrape: seconds waited for the servers", round(waited), None)

    return PoliteClient(
        (config.commons_url,) if config.route == "html" else (config.wikidata_url, config.commons_url),
        contact=config.contact,
        rate=config.rate,
        documented_rate=PAGE_RATE if config.route == "html" else API_RATE,
        timeout=config.timeout,
        retries=config.retries,
        max_total_retries=config.max_total_retries,
        maxlag=config.maxlag,
        request_budget=config.request_budget,
        on_wait=on_wait,
    )


def source_of(config: ScrapeConfig) -> dict[str, str]:
    """Return the settings that the answers depend on, by which a store is known."""
    return {
        "commons_url": config.commons_url,
        "wikidata_url": config.wikidata_url,
        "language": config.language,
        "infobox_rows": "|".join(config.infobox_rows),
    }


def _titles(landmarks: Iterable[Landmark]) -> dict[str, str | None]:
    """Return the title of each category by the category as given."""
    return {mark.category: category_title(mark.category) for mark in landmarks}


def _distinct(known: Mapping[str, str | None]) -> list[str]:
    return list(dict.fromkeys(title for title in known.values() if title is not None))


def _scraped(
    landmarks: Sequence[Landmark], titles: Mapping[str, str | None], resolved: Mapping[str, Resolution]
) -> pl.DataFrame:
    title_of = [titles[mark.category] for mark in landmarks]
    found = [resolved[title] if title else Resolution("error(not-commons)") for title in title_of]
    columns = {
        **facts_of(landmarks),
        "title": title_of,
        "redirected_to": [f.redirected_to for f in found],
        "item": [f.item for f in found],
        "status": [f.status for f in found],
        "names": [f.names for f in found],
        "classes": [f.classes for f in found],
    }
    return scraped_table(columns)


def _class_table(met: Sequence[str], store: ScrapeStore) -> pl.DataFrame:
    """Return the classes of these ids and all their ancestors, merged ones under their new ids."""
    rows = {}
    for asked in unanswered_classes(met, store)[0]:
        entity = store.entities[asked]
        if entity.item is not None:
            parents = (known.item if (known := store.entities.get(above)) else above for above in entity.subclass_of)
            rows[entity.item] = (entity.item, entity.label, entity.language, list(dict.fromkeys(filter(None, parents))))
    return pl.DataFrame([rows[class_id] for class_id in sorted(rows)], schema=CLASSES, orient="row")


def _notes(scraped: pl.DataFrame, classes: pl.DataFrame) -> tuple[str, ...]:
    failed = scraped.filter(pl.col("status").str.starts_with("error(") & pl.col("title").is_not_null()).height
    lost = len(set(classes["parents"].explode().drop_nulls()) - set(classes["class_id"]))
    found = {
        f"{failed:,} landmarks ended in an error; --retry-errors asks for them again.": failed,
        f"{lost:,} ancestors of classes could not be fetched; --retry-errors asks for them again.": lost,
    }
    return tuple(note for note, count in found.items() if count)
