"""``hgld build-hierarchy --landmarks`` from categories to label files, against a local Commons and Wikidata."""

import csv
import json
import re
import sys

import polars as pl
import pytest

from hgld.pipelines.hierarchy.encoders.lexical import LexicalEncoder
from tests.pipelines.wikimedia_server import Wiki, WikimediaServer

KINDS = {
    "Q23413": ("castle", "Q811979"),
    "Q16970": ("church building", "Q811979"),
    "Q12280": ("bridge", "Q811979"),
    "Q23397": ("lake", "Q271669"),
    "Q8502": ("mountain", "Q271669"),
}
LANDMARKS = 20


def world():
    """Return wikis with twenty landmarks of five kinds, and one landmark per reason for a missing label."""
    wiki = Wiki()
    wiki.item("Q811979", "architectural structure")
    wiki.item("Q271669", "landform")
    wiki.item("Q4167836", "Wikimedia category")
    for class_id, (label, parent) in KINDS.items():
        wiki.item(class_id, label, P279=[parent])
    for number in range(LANDMARKS):
        item = wiki.item(f"Q{9000 + number}", f"Landmark {number}", P31=[list(KINDS)[number % len(KINDS)]])
        wiki.category(f"Landmark {number}", item, linked=number % 4 > 0)
    wiki.item("Q9100", "Category:Bridges", P31=["Q4167836"], P301=["Q9002"])
    wiki.category("Bridges", "Q9100")
    wiki.category("Old name, of a lake", text="{{Category redirect|Landmark 3}}")
    wiki.item("Q9101", "no class")
    wiki.category("No class", "Q9101")
    wiki.item("Q9102", "two", P31=["Q23413", "Q16970"])
    wiki.category("Castle church", "Q9102")
    wiki.item("Q9103", "list", P31=["Q4167836"])
    wiki.category("Castles", "Q9103")
    wiki.category("No item")
    return wiki


FURTHER = {  # landmark id: (category, expected name with the route ``api``, or the reason that there is none)
    100: ("http://commons.wikimedia.org/wiki/Category:Bridges", "bridge"),
    101: ("https://commons.m.wikimedia.org/wiki/Category:Old_name,_of_a_lake", "lake"),
    102: ("https://commons.wikimedia.org/wiki/Category:No_class", "no-instance-of"),
    103: ("https://commons.wikimedia.org/wiki/Category:Castle_church", "several-names"),
    104: ("https://commons.wikimedia.org/wiki/Category:Castles", "irrelevant"),
    105: ("https://commons.wikimedia.org/wiki/Category:No_item", "no-item"),
    106: ("https://commons.wikimedia.org/wiki/Category:Never_was", "missing"),
    107: ("https://example.org/wiki/Category:Castles", "error(not-commons)"),
}
NAMED, UNNAMED = {100, 101}, set(FURTHER) - {100, 101}


@pytest.fixture
def server():
    with WikimediaServer(world()) as running:
        yield running


@pytest.fixture
def arguments(tmp_path, server):
    """Return the command line of a build of two splits with equal ids of different landmarks."""
    train = {i: f"http://commons.wikimedia.org/wiki/Category:Landmark_{i}" for i in range(LANDMARKS)}
    train |= {i: category for i, (category, _) in FURTHER.items()}
    index = {i: f"http://commons.wikimedia.org/wiki/Category:Landmark_{LANDMARKS - 1 - i}" for i in range(LANDMARKS)}
    given = ["build-hierarchy", "--out", tmp_path / "out", "--encoder", "lexical"]
    for split, categories in {"train": train, "index": index}.items():
        with open(tmp_path / f"{split}.csv", "w", encoding="utf-8", newline="") as file:
            csv.writer(file).writerows([("landmark_id", "category"), *categories.items()])
        given += ["--landmarks", f"{split}={tmp_path / split}.csv"]
    given += ["--commons-url", server.url, "--wikidata-url", server.url, "--rate", "1000"]
    return [str(argument) for argument in given]


def labels(out, split):
    with open(out / f"{split}_label_to_hierarchical.csv", encoding="utf-8", newline="") as file:
        return {int(row["landmark_id"]): row for row in csv.DictReader(file)}


def test_scraped_categories_become_label_files(arguments, hgld, tmp_path):
    out = tmp_path / "out"
    assert hgld(*arguments)[0] == 0
    train, index = labels(out, "train"), labels(out, "index")
    assert set(train) == {*range(LANDMARKS), *NAMED}
    assert set(index) == set(range(LANDMARKS))
    kinds = [label for label, _ in KINDS.values()]
    for number in range(LANDMARKS):
        assert train[number]["supercategory"] == kinds[number % len(kinds)]
        assert index[number]["supercategory"] == kinds[(LANDMARKS - 1 - number) % len(kinds)]
    for landmark in NAMED:
        category, name = FURTHER[landmark]
        assert (train[landmark]["category"], train[landmark]["supercategory"]) == (category, name)
    for row in (*train.values(), *index.values()):
        natural = row["supercategory"] in {"lake", "mountain"}
        assert row["natural_or_human_made"] == ("natural" if natural else "human-made")
    dropped = pl.read_parquet(out / "dropped.parquet")
    reasons = dict(dropped.select("landmark_id", "reason").iter_rows())
    assert reasons == {landmark: FURTHER[landmark][1] for landmark in UNNAMED}
    evidence = pl.read_parquet(out / "stages" / "toplevel" / "groups.parquet")["evidence"]
    assert evidence.str.ends_with("of 25; bridge: bridge (Q12280)").sum() == 1
    provenance = json.loads((out / "provenance.json").read_text())
    assert {entry["role"] for entry in provenance["inputs"]} == {"landmarks/train", "landmarks/index"}


def test_unusable_encoder_is_reported_before_the_first_request(arguments, server, tmp_path, hgld, monkeypatch):
    monkeypatch.setitem(sys.modules, "sentence_transformers", None)
    (tmp_path / "modules.json").write_text("[]")
    sbert = [*arguments, "--encoder", f"sbert:{tmp_path}"]
    code, _, err = hgld(*sbert)
    assert code == 2
    assert "pip install 'hgld[sbert]'" in err
    assert not server.log
    assert hgld(*arguments)[0] == 0
    asked = len(server.log)
    tried = []
    monkeypatch.setattr(LexicalEncoder, "encode", lambda *given: tried.append(given))
    assert hgld(*arguments)[0] == 0, "a finished build needs no weights"
    assert (tried, len(server.log)) == ([], asked)


def test_build_as_published_reads_the_pages_of_the_categories(arguments, server, hgld, tmp_path):
    code, out, err = hgld(*arguments, "--as-published", "--groups", "3")
    assert (code, err) == (0, "")
    assert {asked.kind for asked in server.log} == {"html"}
    assert re.search(r"\d+ landmarks \(train\) \(203,094 published\)", out)
    assert "groups (78 published)" in out
    build = json.loads((tmp_path / "out" / "provenance.json").read_text())["config"]
    assert (build["scrape"]["route"], build["cluster"]["method"], build["cluster"]["groups"]) == ("html", "kmeans", 3)
    assert any(
        one.startswith("groups (section on H-GLDv2): the paper says 78; we do")
        for one in build["build"]["as_published"]
    )
