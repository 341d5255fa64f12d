"""The scrape stage and its store of responses, tested with a local Commons and Wikidata."""

import shutil
import sqlite3

import polars as pl
import pytest

from hgld.errors import ConfigError, SchemaError, ServiceError, StorageError
from hgld.pipelines.hierarchy.config import ScrapeConfig
from hgld.pipelines.hierarchy.names.landmark_tables import SCRAPED
from hgld.pipelines.hierarchy.scrape.infobox import Infobox
from hgld.pipelines.hierarchy.scrape.scrape import polite_client, run
from hgld.pipelines.hierarchy.scrape.store import ScrapeStore
from hgld.pipelines.hierarchy.scrape.wiki_api import CategoryPage, Entity
from hgld.pipelines.stage import silent
from tests.pipelines.wikimedia_server import (
    Wiki,
    WikimediaServer,
    answer_entities,
    statement,
    status,
)

COMMONS = "https://commons.wikimedia.org/wiki/"
BUILDING = "Q41176"  # its id on Wikidata, so that the top level knows this class


def world():
    """Return wikis with one category per way of finding names and per way of failing."""
    wiki = Wiki()
    wiki.item("Q1", "castle", P279=[BUILDING])
    wiki.item("Q2", "church building (1172-1954)", P279=[BUILDING, "Q8"])
    wiki.item("Q8", {"de": "Sakralbau"}, P279=[BUILDING])
    wiki.item(BUILDING, "building", P279=["Q2"])  # a cycle of classes, as in Wikidata
    wiki.item("Q4167836", "Wikimedia category")
    wiki.item("Q7", "<script>alert(1)</script>")
    wiki.item("Q100", "Windsor Castle", P31=["Q1"])
    wiki.item("Q101", "Cathedral", P31=["Q1", "Q2"])
    wiki.item("Q102", "no class", P31=[statement("Q1", "deprecated"), statement("Q1", snaktype="novalue")])
    wiki.item("Q103", "Category:Old town", P31=["Q4167836"], P301=["Q100"])
    wiki.item("Q104", "ranks", P31=["Q1", statement("Q2", "preferred")])
    wiki.item("Q105", "hostile", P31=["Q7"])
    wiki.item("Q106", "abroad", P31=["Q8"])
    wiki.item("Q107", "merged class", P31=["Q11"])
    wiki.item("Q108", "deleted class", P31=["Q404"])
    wiki.entities["Q11"] = {"redirect": "Q1"}
    linked = ("Windsor Castle", "Cathedral", "No class", "Old town", "Ranks", "Hostile", "Abroad", "Merged class")
    for number, name in enumerate((*linked, "Deleted class"), 100):
        wiki.category(name, f"Q{number}")
    wiki.category("Deleted item", "Q109", linked=False)
    wiki.category("Unlinked", "Q100", linked=False)
    wiki.category("Plain")
    wiki.category("Renamed", text="{{Category redirect|Category:Renamed again}}")
    wiki.category("Renamed again", text="{{cat-redirect|1=Windsor Castle}}")
    wiki.category("Lost", text="{{Category redirect|Nowhere}}")
    wiki.category("Loop", text="{{Category redirect|Pool}}")
    wiki.category("Pool", text="{{Category redirect|Loop}}")
    wiki.pages["Category:Moved"] = {"text": "", "redirect": "Category:Windsor Castle"}
    wiki.pages["Category:Moved to renamed"] = {"text": "", "redirect": "Category:Renamed"}
    wiki.category("Renamed to moved", text="{{Category redirect|Moved}}")
    wiki.category('What? & "寺院", O\'Hara/1', "Q100", linked=False)
    wiki.pages["Category:Spin"] = {"text": "", "redirect": "Category:Nips"}
    wiki.pages["Category:Nips"] = {"text": "", "redirect": "Category:Spin"}
    return wiki


EXPECTED = {
    "Windsor_Castle": ("found", None, ["castle"]),
    "Cathedral": ("found", None, ["castle", "church building (1172-1954)"]),
    "No_class": ("no-instance-of", None, []),
    "Old_town": ("found", None, ["castle"]),
    "Ranks": ("found", None, ["church building (1172-1954)"]),
    "Hostile": ("found", None, ["<script>alert(1)</script>"]),
    "Abroad": ("found", None, ["Sakralbau"]),
    "Merged_class": ("found", None, ["castle"]),
    "Deleted_class": ("no-instance-of", None, []),
    "Deleted_item": ("no-item", None, []),
    "Unlinked": ("found", None, ["castle"]),
    "Plain": ("no-item", None, []),
    "Renamed": ("found", "Category:Windsor Castle", ["castle"]),
    "Lost": ("missing", "Category:Nowhere", []),
    "Loop": ("error(redirect-loop)", "Category:Pool", []),
    "Moved": ("found", "Category:Windsor Castle", ["castle"]),
    "Moved_to_renamed": ("found", "Category:Windsor Castle", ["castle"]),
    "Renamed_to_moved": ("found", "Category:Windsor Castle", ["castle"]),
    "What%3F_%26_%22寺院%22,_O%27Hara%2F1": ("found", None, ["castle"]),
    "Spin": ("error(redirect-loop)", None, []),
    "Never_was": ("missing", None, []),
}


def write_table(path, categories):
    rows = "".join(f'{i},"{c}"\n' for i, c in enumerate(categories))
    path.write_text("landmark_id,category\n" + rows)
    return path


class Scraper:
    """Runs a scrape stage whose client does not wait."""

    def __init__(self, tmp_path, server, *, patient=True):
        self.root, self.server, self.patient = tmp_path / "stages", server, patient
        self.table = write_table(tmp_path / "train.csv", [COMMONS + f"Category:{name}" for name in EXPECTED])

    def run(self, **options):
        url = self.server.url
        config = ScrapeConfig(**{"commons_url": url, "wikidata_url": url, "rate": 10_000, "timeout": 5, **options})
        client = polite_client(config)
        client._sleep = lambda seconds: None if self.patient else pytest.fail(f"slept {seconds} s")
        return run(self.root, {"train": self.table}, config, silent, client)


@pytest.fixture
def server():
    with WikimediaServer(world()) as running:
        yield running


@pytest.fixture
def scraper(tmp_path, server):
    return Scraper(tmp_path, server)


def by_name(done):
    frame = pl.read_parquet(done.path("landmarks.parquet"))
    return {
        row["category"].rpartition(":")[2]: (row["status"], row["redirected_to"], row["names"])
        for row in frame.iter_rows(named=True)
    }


def test_every_landmark_gets_its_status_and_nothing_is_requested_twice(scraper):
    done = scraper.run()
    assert by_name(done) == EXPECTED
    frame = pl.read_parquet(done.path("landmarks.parquet"))
    assert frame.schema == SCRAPED
    assert dict(zip(frame["title"], frame["item"], strict=True))["Category:Old town"] == "Q100"
    assert frame.filter(pl.col("title") == "Category:Merged class")["classes"].to_list() == [["Q1"]]
    assert done.result.counts["found"] == 13
    assert pl.read_parquet(done.path("classes.parquet")).rows() == [
        ("Q1", "castle", "en", [BUILDING]),
        ("Q2", "church building (1172-1954)", "en", [BUILDING, "Q8"]),
        (BUILDING, "building", "en", ["Q2"]),
        ("Q7", "<script>alert(1)</script>", "en", []),
        ("Q8", "Sakralbau", "de", [BUILDING]),
    ]
    for kind in ("titles", "ids", "query"):
        keys = scraper.server.asked(kind)
        assert len(keys) == len(set(keys)), kind
    linked = set(scraper.server.wiki.sitelinks.values())
    assert not linked & set(scraper.server.asked("ids")), "the response for a title already has the item"
    asked = len(scraper.server.log)
    again = scraper.run()
    assert len(scraper.server.log) == asked
    assert not again.was_run
    assert again.record["outputs"] == done.record["outputs"]


@pytest.mark.parametrize(
    ("route", "names"), [("api", EXPECTED), ("html", ["Cathedral", "Plain", "Hostile", "Never_was"])]
)
def test_run_killed_during_any_request_resumes_with_this_request(scraper, tmp_path, route, names):
    """What is on the disk during a request is what a killed run leaves."""
    faults, log, left = scraper.server.faults, scraper.server.log, []
    scraper.table = write_table(scraper.table, [f"{COMMONS}Category:{name}" for name in names])

    def copy(handler):
        left.append(shutil.copytree(scraper.root, tmp_path / str(len(left))))
        faults.append(copy)
        handler.respond()

    faults.append(copy)
    whole = scraper.run(route=route).record["outputs"]
    faults.clear()
    asked = [request.keys for request in log]
    assert len(left) == len(asked)
    for number, scraper.root in enumerate(left):
        log.clear()
        assert scraper.run(route=route).record["outputs"] == whole
        assert [request.keys for request in log] == asked[number:], number


def test_html_route_finds_names_and_a_second_run_does_nothing(scraper):
    scraper.server.wiki.pages["Category:Unwritten"] = {"text": "", "unwritten": "yes"}
    names = [*EXPECTED, "Unwritten"]
    scraper.table = write_table(scraper.table, [f"{COMMONS}Category:{name}" for name in names])
    done = scraper.run(route="html")
    found = by_name(done)
    for name in ("Windsor_Castle", "Cathedral", "Hostile", "Plain", "Never_was"):
        assert found[name] == EXPECTED[name]
    assert found["Unwritten"] == ("missing", None, [])
    assert {request.kind for request in scraper.server.log} == {"html"}
    assert pl.read_parquet(done.path("classes.parquet")).height == 0
    asked = len(scraper.server.log)
    assert not scraper.run(route="html").was_run
    assert len(scraper.server.log) == asked


def test_title_that_makes_its_batch_fail_does_not_affect_other_titles(scraper):
    """The server fails if a request contains one particular title."""
    poison = "Category:Ranks"

    def answer(handler):
        scraper.server.faults.append(answer)
        asked = scraper.server.log[-1]
        if poison in asked.keys:
            status(503)(handler)
        else:
            handler.respond()

    scraper.server.faults.append(answer)
    done = scraper.run(retries=2)
    assert by_name(done) == EXPECTED | {"Ranks": ("error(http-503)", None, [])}
    assert any("--retry-errors" in note for note in done.result.notes)
    scraper.server.faults.clear()
    scraper.server.log.clear()
    assert by_name(scraper.run()) == by_name(done)
    assert not scraper.server.log
    assert by_name(scraper.run(retry_errors=True)) == EXPECTED
    assert set(scraper.server.asked("titles")) == {poison}


def test_scrape_stops_and_records_no_failures_if_the_server_stays_down(scraper):
    scraper.server.faults += [status(503)] * 100
    with pytest.raises(ServiceError, match="in a row"):
        scraper.run(retries=1)
    scraper.server.faults.clear()
    assert by_name(scraper.run()) == EXPECTED


def test_unreachable_server_is_reported_without_retries(tmp_path):
    with WikimediaServer(Wiki()) as gone:
        pass
    with pytest.raises(ServiceError, match=r"cannot be reached .*refused\)\. Check the address") as caught:
        Scraper(tmp_path, gone, patient=False).run()
    assert len(str(caught.value)) < 300


def test_items_missing_in_a_response_are_requested_again(scraper):
    """MediaWiki truncates large results and reports it only as a warning."""

    def truncated(handler):
        answer = answer_entities(scraper.server.wiki, scraper.server.log[-1].params)
        answer["entities"] = dict(list(answer["entities"].items())[:5])
        handler.send_json(answer)

    scraper.server.faults.append(truncated)
    assert by_name(scraper.run()) == EXPECTED


SOURCE = {"language": "en"}
CASTLE = Entity("Q1", "castle", "en", (), ("Q9",), ())


@pytest.fixture
def path(tmp_path):
    return tmp_path / "stages" / "scrape.sqlite"


def fill(store):
    store.record("entity", {"Q5": Entity("Q5", "A", "en", ("Q1", "Q2")), "Q1": CASTLE, "Q7": Entity(None)})
    store.record("sitelink", {"Category:A": "Q5", "Category:B": None})
    store.record("page", {"Category:B": CategoryPage("exists", "Category:C", "Q6", "Category:D")})
    store.record("infobox", {"Category:E": Infobox(("<b>", "ü"), "Q1", None, present=True)})
    store.record_failures({("page", "Category:F"): ("http-503", "sorry")})


def test_full_disk_keeps_earlier_responses_in_the_store(path):
    with ScrapeStore(path, SOURCE) as store:
        fill(store)
        before = {question: dict(answers) for question, answers in store.answers.items()}
        pages = store._db.execute("PRAGMA page_count").fetchone()[0]
        store._db.execute(f"PRAGMA max_page_count = {pages}")
        with pytest.raises(StorageError, match=r"full.*same command again"):
            store.record("entity", {f"Q{i}": Entity(f"Q{i}", "x" * 500) for i in range(100, 1000)})
        assert store.answers == before, "memory has responses that the disk lacks"
    with ScrapeStore(path, SOURCE) as store:
        assert store.answers == before
        store.record("entity", {"Q100": CASTLE})


def test_store_refuses_a_second_process_a_changed_source_and_a_changed_schema(path):
    with ScrapeStore(path, SOURCE), pytest.raises(ConfigError, match="in use by another hgld"):
        ScrapeStore(path, SOURCE)
    with pytest.raises(ConfigError, match=r"language 'en'.*'de'.*new folder"):
        ScrapeStore(path, {"language": "de"})
    with sqlite3.connect(path) as db:
        db.execute("PRAGMA user_version = 7")
    db.close()
    with pytest.raises(SchemaError, match="version is 7; this hgld reads version 2"):
        ScrapeStore(path, SOURCE)
