"""The scrape stage, which asks Wikimedia for the classes of each landmark and keeps all answers in one store."""

import hashlib
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import polars as pl

from hgld.settings import key_fields

from ...stage import Progress, StageResult, StageRun, run_stage, silent
from ...web import API_RATE, PAGE_RATE, PoliteClient
from ..config import ScrapeConfig
from ..names.landmark_tables import (
    CLASSES,
    VERSION,
    read_landmarks,
    scraped_table,
    write_scraped,
)
from .questions import Resolution, answer_all, unanswered_classes
from .store import ScrapeStore
from .titles import category_title

STORE = "scrape.sqlite"
_FACTS = ("redirected_to", "item", "status", "names", "classes")


def run(
    root: Path,
    tables: Mapping[str, Path],
    config: ScrapeConfig,
    progress: Progress = silent,
    client: PoliteClient | None = None,
    before_asking: Callable[[], object] = lambda: None,
) -> StageRun:
    """Scrape the landmarks of ``tables`` and write the stage's tables (docs/reference/build-files.md).

    A stopped run resumes: answers in ``root/scrape.sqlite`` are not requested again.

    Args:
        root: the build's directory of stages.
        tables: CSVs with landmark_id and category by split.
        config: route, addresses, language and limits.
        progress: function that receives the task and its progress.
        client: HTTP client; default: a :class:`PoliteClient` with the options of ``config``.
        before_asking: function called once before the first request, if there is one; it may raise to stop the run.

    Raises:
        TableError: a table cannot be used.
        ConfigError: the servers' rules do not allow the contact or rate, the store has answers from another source, or
            all requests of the budget are used.
        ServiceError: the servers kept rejecting requests; earlier answers are kept.
        StorageError: the disk is full; earlier answers are kept.
    """
    began = time.time()
    landmarks, dropped = read_landmarks(tables)
    titles = {category: category_title(category) for category in landmarks["category"]}
    source = {name: getattr(config, name) for name in ("commons_url", "wikidata_url", "language")}
    source["infobox_rows"] = "|".join(config.infobox_rows)
    with ScrapeStore(root / STORE, source) as store:
        if config.retry_errors:
            store.forget_failures()

        def connect() -> PoliteClient:
            connected = client or polite_client(config, progress)
            before_asking()
            return connected

        resolved = answer_all(list(dict.fromkeys(filter(None, titles.values()))), store, connect, config, progress)
        title_of = [titles[category] for category in landmarks["category"]]
        found = [resolved[title] if title else Resolution("error(not-commons)") for title in title_of]
        facts = {name: [getattr(one, name) for one in found] for name in _FACTS}
        scraped = scraped_table({**landmarks.drop("names").to_dict(), "title": title_of, **facts})
        classes = _class_table(scraped["classes"].explode().drop_nulls().unique().to_list(), store)
        notes = _notes(scraped, classes)

    def work(directory: Path) -> StageResult:
        return write_scraped(directory, scraped, classes, dropped, notes)

    answers = hashlib.sha256(scraped.write_ndjson().encode() + classes.write_ndjson().encode()).hexdigest()
    inputs = {f"landmarks {split}": Path(path) for split, path in tables.items()}
    stated = {**key_fields(config), "answers": answers}
    return run_stage("scrape", root, version=VERSION, config=stated, inputs=inputs, work=work, began=began)


def polite_client(config: ScrapeConfig, progress: Progress = silent) -> PoliteClient:
    """Return a client with the options of ``config``; raise ConfigError if Wikimedia's rules forbid them."""
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
        request_budget=config.request_budget,
        on_wait=on_wait,
    )


def _class_table(met: Sequence[str], store: ScrapeStore) -> pl.DataFrame:
    """Return the classes ``met`` and all their ancestors; a merged class has the id of the class that replaced it."""
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
