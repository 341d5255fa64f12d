import json
import re
from html.parser import HTMLParser
from typing import Literal, get_args, get_type_hints

import polars as pl
import pytest
import yaml

from hgld.pipelines.hierarchy import export
from hgld.pipelines.hierarchy.config import BuildConfig, EmbedConfig
from hgld.pipelines.hierarchy.groups.group_names import Proposal
from hgld.pipelines.hierarchy.provenance import provenance
from hgld.pipelines.hierarchy.report import report as build_report
from hgld.pipelines.hierarchy.report.report import _tops, group_color
from hgld.pipelines.stage import silent

HOSTILE = '<script>alert(1)</script> "quoted", $x$ | =cmd()'
Source = Literal["sample", "landmarks", "names", "classes"]
VOID = {"meta", "br", "link", "img", "input", "hr"}


class Page(HTMLParser):
    """The page's elements, their text, and whether every element is closed."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.attributes, self.texts, self.open = [], [], [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.texts.append(data)


def write_report(root, tiny_stages, change=None, source: Source = "sample", levels=None):
    stages = tiny_stages(root)
    stages["export"] = export.run(root, stages, silent)
    if change:
        change(stages)
    encoder = json.loads(stages["embed"].path("encoder.json").read_text())
    facts = provenance(list(stages.values()), [], BuildConfig(source, embed=EmbedConfig("lexical")), encoder)
    if levels:
        facts["stages"]["export"] = {"details": {"levels": levels}, "dropped": {}, "notes": []}
    return build_report.run(root, stages, facts, silent)


@pytest.fixture(scope="module")
def report(tmp_path_factory, tiny_stages):
    return write_report(tmp_path_factory.mktemp("report"), tiny_stages)


@pytest.fixture
def page(report):
    return report.path("report.html").read_text(encoding="utf-8")


def test_scraped_text_is_text_and_nothing_runs(page):
    parsed = Page(page)
    assert parsed.open == []
    assert not {"script", "iframe", "object", "embed", "i", "link"} & set(parsed.tags)
    assert HOSTILE in "".join(parsed.texts)
    assert "<i>x</i>" in "".join(parsed.texts)  # a decision's text
    assert not [name for name, _ in parsed.attributes if name.startswith("on")]
    assert "default-src 'none'" in page


def test_nothing_comes_from_outside(page):
    for name, value in Page(page).attributes:
        if name in {"src", "href", "xlink:href", "action"}:
            assert value.startswith("#"), (name, value)
    assert "url(" not in re.sub(r"url\(#", "", page)
    assert "@import" not in page


def text_of(page):
    return " ".join(" ".join(Page(page).texts).split())


def test_classes_of_the_top_level_are_by_size_and_undecided_groups_come_last():
    groups = [{"top": top, "labelled": size} for size, top in ((5, "natural"), (90, None), (7, "human-made"))]
    assert [top["name"] for top in _tops(groups)] == ["human-made", "natural", "undecided"]


def test_the_page_shows_the_figures(page):
    text = text_of(page)
    assert "6 landmarks in 5 groups" in text
    assert "train: landmarks 7 train: with" in text
    assert "groups (hierarchical label) 5" in text
    assert "several-names 1" in text
    assert "undecided" in text
    assert "cathedral > church building > architectural structure" in text
    assert "head-noun : <b>1 of 1</b> names" in text.replace("head-noun: ", "head-noun : ")
    assert "chosen by the silhouette : 0.200 with 2, 0.400 with 3." in text


def test_published_figures_stand_beside_the_lists_that_they_are_about(tmp_path, tiny_stages, page):
    assert "203,094" not in page
    assert ">published<" not in page
    scraped = write_report(tmp_path, tiny_stages, source="landmarks").path("report.html").read_text(encoding="utf-8")
    assert "train: landmarks 7 203,094" in text_of(scraped)
    assert "groups (hierarchical label) 5 78" in text_of(scraped)


def test_a_build_of_other_things_is_told_in_its_own_words(tmp_path, tiny_stages):
    def of_things(stages):
        file = stages["export"].path("groups.parquet")
        groups = pl.read_parquet(file).select(
            "label", group="label", kind=pl.lit("a <kind>"), realm="natural_or_human_made"
        )
        groups.write_parquet(file)

    built = write_report(tmp_path, tiny_stages, of_things, "classes", ["item", "group", "kind", "realm"])
    page = built.path("report.html").read_text(encoding="utf-8")
    text = text_of(page)
    assert Page(page).open == []
    assert "6 items in 5 groups" in text
    assert "Levels, finest first: item, group, kind, realm." in text
    assert "groups (group) 5 classes of kind 1 classes of realm 2" in text
    assert "a <kind> › natural" in text
    assert 'at the level "realm"' in text
    for foreign in ("landmarks", "natural or human-made", "CC BY", "H-GLDv2"):
        assert foreign not in text


def test_words_lead_to_their_explanation(page):
    linked = set(re.findall(r'href="#word-([^"]+)"', page))
    explained = re.findall(r'<dt id="word-([^"]+)">', page)
    assert {"head-noun", "doubtful", "silhouette", "several-names", "left-out"} <= linked
    assert linked < set(explained)


def test_what_stages_say_has_an_explanation():
    known = set(yaml.safe_load(build_report.WORDS.read_text(encoding="utf-8")))
    methods = set(get_args(get_type_hints(Proposal)["method"])) | {"decision"}
    assert methods | {"missing", "no-item", "no-instance-of", "error"} <= known
    stages = "scrape clean embed evidence cluster toplevel review export"
    assert set(stages.split()) <= known
    assert {"applied", "unmatched", "conflicts", "withheld", "overruled", "kappa"} <= known


def test_the_page_says_how_many_names_are_still_wrong(page):
    text = " ".join(" ".join(Page(page).texts).split())
    said = "About 2 of 5 names are still wrong (80% interval: 1 to 4), and with them about 3 of the landmarks (2 to 5)."
    assert said in text


def test_a_page_of_5700_names_is_under_3_mb(tmp_path, tiny_stages):
    def many(stages):
        names = [f"Gothic church building of some monastery in the state {i}" for i in range(5_700)]
        columns = {
            "landmarks": [3] * 5_700,
            "confidence": [0.05] * 5_700,
            "wrong": [0.75] * 5_700,
            "doubtful": [True] * 5_700,
        }
        reviewed = pl.read_parquet(stages["review"].path("names.parquet"))
        more = pl.DataFrame({"name": names, "label": ["lake"] * 5_700, "decided_by": [None] * 5_700, **columns})
        pl.concat([reviewed, more.select(reviewed.columns).cast(reviewed.schema)]).write_parquet(
            stages["review"].path("names.parquet")
        )

    report = write_report(tmp_path, tiny_stages, many)
    text = report.path("report.html").read_text()
    assert len(text.encode()) < 3 * 2**20
    assert "The 300 most likely wrong of 5,702" in text


def test_colours_are_distinct():
    assert len({group_color(i) for i in range(78)}) == 78
