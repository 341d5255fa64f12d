"""The report page, the dataset card and the provenance of a build."""

import hashlib
import json
import re

import polars as pl
import pytest
from bs4 import BeautifulSoup

from hgld.pipelines.card import read_card
from hgld.pipelines.hierarchy import export
from hgld.pipelines.hierarchy.config import BuildConfig, EmbedConfig, ReviewConfig, ScrapeConfig
from hgld.pipelines.hierarchy.provenance import complete_provenance, provenance, read_provenance
from hgld.pipelines.hierarchy.report import report as build_report
from hgld.pipelines.stage import silent
from tests.pipelines.hierarchy_build.conftest import HOSTILE, write_decisions
from tests.rows import each_row


def text_of(page):
    return " ".join(BeautifulSoup(page, "lxml").get_text(" ").split())


def write_report(root, tiny_stages, change=None, source="sample", levels=None):
    stages = tiny_stages(root, write_decisions(root / "ann.yaml", "action: set, group: lake, top: natural"))
    stages["export"] = export.run(root, stages, silent)
    if change:
        change(stages)
    encoder = json.loads(stages["embed"].path("encoder.json").read_text())
    facts = provenance(list(stages.values()), [], BuildConfig(source, embed=EmbedConfig("lexical")), encoder)
    facts["stages"]["cluster"]["details"]["silhouettes"] = {"2": 0.2, "3": 0.4}
    number = {"names": [1.9, 1.0, 3.8], "items": [2.6, 1.5, 5.0], "unread": False}
    number |= {"levels": {"natural_or_human_made": [2.2, 1.0, 4.0]}, "tree": [3.1, 2.0, 5.0]}
    facts["stages"]["review"]["details"]["still_wrong"] = number
    if levels:
        facts["stages"]["export"]["details"] = {"levels": levels}
    return build_report.run(root, stages, facts, silent)


@pytest.fixture(scope="module")
def report(module_path, tiny_stages):
    return write_report(module_path, tiny_stages)


@pytest.fixture
def page(report):
    return report.path("report.html").read_text(encoding="utf-8")


# -- the page ----------------------------------------------------------------------------------------------------------


def test_page_escapes_scraped_text_and_has_no_foreign_scripts_or_external_files(page):
    parsed = BeautifulSoup(page, "lxml")
    assert len(parsed.find_all("script")) == 2  # the tree's data, and the script that draws it
    assert not parsed.find_all(["iframe", "object", "embed", "i", "link"])
    assert HOSTILE in parsed.get_text()
    assert "<i>ann</i> says so" in parsed.get_text(), "the reason of a decision is missing"
    attributes = [pair for tag in parsed.find_all() for pair in tag.attrs.items()]
    assert not [name for name, _ in attributes if name.startswith("on")]
    assert "default-src 'none'" in page
    addresses = [value for name, value in attributes if name in {"src", "href", "xlink:href", "action"}]
    assert all(value.startswith("#") for value in addresses)
    assert "url(" not in re.sub(r"url\(#", "", page)
    assert "@import" not in page


def test_page_shows_the_counts_of_the_build(page):
    text = text_of(page)
    for shown in (
        "6 landmarks in 5 groups",
        "train: landmarks 7 train: with",
        "groups (hierarchical label) 5",
        "several-names 1",
        "undecided",
        "cathedral: cathedral (Q2977) → architectural structure (Q811979)",
        "chosen by the silhouette : 0.200 with 2, 0.400 with 3.",
        "About 2 of 5 names are still wrong (80% interval: 1 to 4), and with them about 3 of the landmarks (2 to 5).",
        "At any level, about 3 names are wrong (2 to 5).",
    ):
        assert shown in text
    assert "head-noun : head noun of 1 of 1 names, 1 of 1 items" in text.replace("head-noun: ", "head-noun : ")
    assert "203,094" not in page, "published counts describe other data"


def test_tree_has_the_share_of_decided_landmarks_and_the_classes_of_the_names_to_check():
    rows = [("Reims", 3, "church", 0.1, "ada"), ("Como", 1, "lake", 0.7, None), ("Chartres", 1, "church", 0.6, None)]
    names = pl.DataFrame(rows, ("name", "landmarks", "label", "wrong", "decided_by"), orient="row")
    levels = pl.DataFrame({"label": ["church", "lake"], "top": ["human-made", None]})
    tree = build_report._tree(
        {"names": names, "levels": levels}, ("name", "group", "top"), "items", ["Como", "Chartres"]
    )
    assert [level["names"] for level in tree["levels"]] == [
        ["Chartres", "Como", "Reims"],
        ["church", "lake"],
        ["human-made"],
    ]
    assert tree["measures"]["decided"] == [[0, 0, 1], [0.75, 0], [0.75]]
    assert tree["paths"] == ["1 1 -1", "0 0 0"]  # the top class of the lake is undecided


def test_page_of_gldv2_landmarks_also_shows_the_published_counts(tmp_path, tiny_stages):
    scraped = write_report(tmp_path, tiny_stages, source="landmarks")
    text = text_of(scraped.path("report.html").read_text(encoding="utf-8"))
    assert "train: landmarks 7 203,094" in text
    assert "groups (hierarchical label) 5 78" in text
    header, sections = read_card(scraped.path("README.md"))
    assert header["license"] == "cc-by-4.0"
    assert header["size_categories"] == ["n<1K"]
    files = {d["split"]: d["path"] for d in header["configs"][0]["data_files"]}
    assert files["train"] == "train_label_to_hierarchical.csv"
    assert {"Levels", "Files", "Licence", "Known problems"} == set(sections)


def test_page_and_card_of_a_class_list_show_its_levels_and_no_licence(tmp_path, tiny_stages):
    def rename_levels(stages):
        file = stages["export"].path("groups.parquet")
        groups = pl.read_parquet(file).select(
            "label", group="label", kind=pl.lit("a <kind>"), realm="natural_or_human_made"
        )
        groups.write_parquet(file)

    built = write_report(tmp_path, tiny_stages, rename_levels, "classes", ["item", "group", "kind", "realm"])
    page = built.path("report.html").read_text(encoding="utf-8")
    text = text_of(page)
    for shown in (
        "6 items in 5 groups",
        "Levels, finest first: item, group, kind, realm.",
        "groups (group) 5 classes of kind 1 classes of realm 2",
        "a <kind> › natural",
        'at the level "realm"',
    ):
        assert shown in text
    for foreign in ("landmarks", "natural or human-made", "CC BY", "H-GLDv2"):
        assert foreign not in text
    header, sections = read_card(built.path("README.md"))
    assert "license" not in header
    assert header["configs"] == [{"config_name": "labels", "data_files": "labels.csv"}]
    assert {"Levels", "Files"} == set(sections)
    assert "| realm | 2 |" in sections["Levels"].splitlines()
    assert "andmark" not in built.path("README.md").read_text()


# -- the provenance ----------------------------------------------------------------------------------------------------

ENCODER = {"name": "lexical", "key": "k", "dim": 5, "templates": []}


@pytest.fixture
def recorded(tmp_path, tiny_stages):
    """Return a function that writes a landmark table and returns the provenance of its build."""
    table = tmp_path / "somewhere" / "train.csv"
    table.parent.mkdir()
    table.write_text("landmark_id,category\n")

    def make(name, **options):
        config = BuildConfig("landmarks", (("train", table),), embed=EmbedConfig("lexical"), **options)
        stages = list(tiny_stages(tmp_path / name).values())
        facts = provenance(stages, [("landmarks/train", table)], config, ENCODER)
        return complete_provenance(facts, stages, {"x.csv": table})

    return make


def test_provenance_of_equal_builds_differs_only_in_times_and_has_no_contact_or_paths(recorded, tmp_path):
    private = {
        "scrape": ScrapeConfig(contact="me@example.org", rate=1.0),
        "review": ReviewConfig((tmp_path / "decisions.yaml",)),
    }
    one, two = recorded("a"), recorded("b", **private)
    stages = {"scrape", "clean", "embed", "evidence", "cluster", "toplevel", "review"}
    assert set(one.pop("times")) == set(two.pop("times")) == stages
    assert json.dumps(one) == json.dumps(two)
    assert str(tmp_path) not in json.dumps(two)
    assert "example.org" not in json.dumps(two)
    digest = hashlib.sha256(b"landmark_id,category\n").hexdigest()
    assert one["inputs"] == [{"role": "landmarks/train", "file": "train.csv", "bytes": 21, "sha256": digest}]
    assert one["outputs"]["x.csv"]["sha256"] == digest
    assert one["stages"]["clean"]["dropped"] == {"missing": 1, "no-item": 1, "several-names": 1}
    assert one["seeds"] == {"cluster": 0}


@each_row("text", ["{", "[]"])
def test_damaged_provenance_counts_as_missing(tmp_path, text):
    (tmp_path / "provenance.json").write_text(text)
    assert read_provenance(tmp_path) is None
    assert read_provenance(tmp_path / "nowhere") is None


@pytest.mark.slow
def test_page_opens_short_and_its_links_open_the_collapsed_sections(chromium, report):
    chromium.open(report.path("report.html").as_uri())
    chromium.until("performance.getEntriesByName('icicle drawn').length === 1")
    assert chromium.run("document.documentElement.scrollHeight") < 4_000
    for link in ("#doubtful", "#words"):
        chromium.run(f"document.querySelector('nav a[href=\"{link}\"]').click()")
        chromium.until(f"document.querySelector('{link}').closest('details').open")
