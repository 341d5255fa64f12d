import sqlite3
from pathlib import Path

import pytest

from hgld.errors import ConfigError, SchemaError, StorageError
from hgld.pipelines.hierarchy.scrape.infobox import Infobox
from hgld.pipelines.hierarchy.scrape.store import ScrapeStore
from hgld.pipelines.hierarchy.scrape.wiki_api import CategoryPage, Entity

SOURCE = {"language": "en"}
CASTLE = Entity("Q1", "castle", "en", (), ("Q9",), ())


@pytest.fixture
def path(tmp_path) -> Path:
    return tmp_path / "stages" / "scrape.sqlite"


def fill(store: ScrapeStore) -> None:
    store.record("entity", {"Q5": Entity("Q5", "A", "en", ("Q1", "Q2")), "Q1": CASTLE, "Q7": Entity(None)})
    store.record("sitelink", {"Category:A": "Q5", "Category:B": None})
    store.record("page", {"Category:B": CategoryPage("exists", "Category:C", "Q6", "Category:D")})
    store.record("infobox", {"Category:E": Infobox(("<b>", "ü"), "Q1", None, present=True)})
    store.record_failures({("page", "Category:F"): ("http-503", "sorry")})


def everything(store: ScrapeStore) -> tuple:
    return store.answers, store.failures


def test_what_was_recorded_is_there_after_opening_again(path):
    with ScrapeStore(path, SOURCE) as store:
        fill(store)
        before = everything(store)
    with ScrapeStore(path, SOURCE) as again:
        assert everything(again) == before
        assert again.entities["Q5"].instance_of == ("Q1", "Q2")
        assert again.failures == {("page", "Category:F"): "http-503"}


def test_a_full_disk_is_said_and_loses_nothing_before_it(path):
    with ScrapeStore(path, SOURCE) as store:
        fill(store)
        before = {question: dict(answers) for question, answers in store.answers.items()}
        pages = store._db.execute("PRAGMA page_count").fetchone()[0]
        store._db.execute(f"PRAGMA max_page_count = {pages}")
        with pytest.raises(StorageError, match=r"full.*same command again"):
            store.record("entity", {f"Q{i}": Entity(f"Q{i}", "x" * 500) for i in range(100, 1000)})
        assert store.answers == before, "memory knows no more than the disk"
    with ScrapeStore(path, SOURCE) as store:
        assert store.answers == before
        store.record("entity", {"Q100": CASTLE})


def test_a_second_process_is_refused(path):
    with ScrapeStore(path, SOURCE), pytest.raises(ConfigError, match="in use by another hgld"):
        ScrapeStore(path, SOURCE)


def test_answers_of_another_source_are_refused(path):
    ScrapeStore(path, SOURCE).__exit__()
    with pytest.raises(ConfigError, match=r"language 'en'.*'de'.*new folder"):
        ScrapeStore(path, {"language": "de"})


def test_another_schema_version_is_named(path):
    ScrapeStore(path, SOURCE).__exit__()
    with sqlite3.connect(path) as db:
        db.execute("PRAGMA user_version = 7")
    db.close()
    with pytest.raises(SchemaError, match="version is 7; this hgld reads version 2"):
        ScrapeStore(path, SOURCE)
