"""``hgld build-hierarchy --landmarks`` from categories to label files, against a local Commons and Wikidata."""

import csv
import json
import sys

import polars as pl
import pytest

from hgld.pipelines.hierarchy.encoders.lexical import LexicalEncoder
from tests.pipelines.test_scrape import BUILDING, COMMONS, EXPECTED, world, write_table
from tests.pipelines.wikimedia_server import WikimediaServer

CATEGORIES = [*(f"{COMMONS}Category:{name}" for name in EXPECTED), "https://example.org/wiki/Category:Castles"]
NAMES = [*(names for _, _, names in EXPECTED.values()), []]


@pytest.fixture
def server():
    with WikimediaServer(world()) as running:
        yield running


@pytest.fixture
def arguments(tmp_path, server):
    """Return the command line of a build of two splits with equal ids of different landmarks."""
    given = ["build-hierarchy", "--out", tmp_path / "out", "--encoder", "lexical"]
    for split, categories in {"train": CATEGORIES, "index": CATEGORIES[::-1]}.items():
        given += ["--landmarks", f"{split}={write_table(tmp_path / f'{split}.csv', categories)}"]
    given += ["--commons-url", server.url, "--wikidata-url", server.url, "--rate", "1000"]
    return [str(argument) for argument in given]


def test_scraped_categories_become_label_files(arguments, output, tmp_path):
    out = tmp_path / "out"
    output(*arguments)
    for split, order in (("train", 1), ("index", -1)):
        with open(out / f"{split}_label_to_hierarchical.csv", encoding="utf-8", newline="") as file:
            labels = {int(row["landmark_id"]): (row["category"], row["supercategory"]) for row in csv.DictReader(file)}
        landmarks = enumerate(list(zip(CATEGORIES, NAMES, strict=True))[::order])
        assert labels == {n: (category, names[0]) for n, (category, names) in landmarks if len(names) == 1}
    evidence = pl.read_parquet(out / "stages" / "toplevel" / "groups.parquet")["evidence"].str.join().item()
    assert f"castle: castle (Q1) → building ({BUILDING})" in evidence
    dropped = pl.read_parquet(out / "dropped.parquet").filter(reason="error(not-commons)")
    assert dropped.select("split", "landmark_id").rows() == [("index", 0), ("train", len(EXPECTED))]


def test_unusable_encoder_is_reported_before_the_first_request(
    arguments, server, tmp_path, output, refusal, monkeypatch
):
    monkeypatch.setitem(sys.modules, "sentence_transformers", None)
    (tmp_path / "modules.json").write_text("[]")
    sbert = [*arguments, "--encoder", f"sbert:{tmp_path}"]
    assert "pip install 'hgld[sbert]'" in refusal(*sbert)
    assert not server.log
    output(*arguments)
    asked = len(server.log)
    tried = []
    monkeypatch.setattr(LexicalEncoder, "encode", lambda *given: tried.append(given))
    output(*arguments)
    assert (tried, len(server.log)) == ([], asked)


def test_build_as_published_reads_the_pages_of_the_categories(arguments, server, output, tmp_path):
    out = output(*arguments, "--as-published", "--groups", "2", said="")
    assert {asked.kind for asked in server.log} == {"html"}
    assert "2 groups (78 published)" in out
    build = json.loads((tmp_path / "out" / "provenance.json").read_text())["config"]
    assert (build["scrape"]["route"], build["cluster"]["method"], build["cluster"]["groups"]) == ("html", "kmeans", 2)
