import json

import polars as pl
import pytest

from hgld.data_cards import card_path
from hgld.pipelines import card
from hgld.pipelines.card import read_card
from hgld.pipelines.hierarchy.config import BuildConfig, EmbedConfig
from hgld.pipelines.hierarchy.provenance import provenance


@pytest.fixture
def written(tmp_path, tiny_stages):
    return write(tmp_path, tiny_stages, "landmarks")


def write(tmp_path, tiny_stages, source):
    stages = tiny_stages(tmp_path)
    encoder = json.loads(stages["embed"].path("encoder.json").read_text())
    facts = provenance(list(stages.values()), [], BuildConfig(source, embed=EmbedConfig("lexical")), encoder)
    groups = pl.read_parquet(stages["review"].path("groups.parquet"))
    names = pl.read_parquet(stages["review"].path("names.parquet")).select("name", hierarchical_label="label")
    landmarks = pl.read_parquet(stages["clean"].path("landmarks.parquet")).join(names, on="name")
    file = tmp_path / "README.md"
    levels = groups.select("label", realm="top")
    facts["stages"]["export"] = {"details": {"levels": ["item", "kind", "realm"]}, "dropped": {}}
    card.write_card(file, facts, groups, landmarks.with_columns(assigned=pl.lit(None, pl.String)), levels)
    return file


def test_published_card_has_the_published_figures():
    header, sections = read_card(card_path("h-gldv2"))
    assert header["license"] == "cc-by-4.0"
    for figure in ("203,094", "129.1k", "128.8k", "101k", "68.1k", "67.9k", "5.7k", "78"):
        assert figure in sections["Counts"]
    assert {"Source", "Levels", "Licence", "Known problems"} <= set(sections)


def test_card_of_landmark_build_is_a_dataset_card_with_the_published_licence(written):
    text = written.read_text()
    header, sections = read_card(written)
    assert header["license"] == "cc-by-4.0"
    assert header["size_categories"] == ["n<1K"]
    assert header["annotations_creators"] == ["machine-generated"]  # nobody decided anything
    files = {d["split"]: d["path"] for d in header["configs"][0]["data_files"]}
    assert files["train"] == "train_label_to_hierarchical.csv"
    assert {"Levels", "Files", "Licence", "Known problems"} == set(sections)
    assert text.count("\n---\n") == 1


def test_card_of_a_classes_build_states_levels_and_no_licence(tmp_path, tiny_stages):
    file = write(tmp_path, tiny_stages, "classes")
    header, sections = read_card(file)
    assert "license" not in header
    assert header["configs"] == [{"config_name": "labels", "data_files": "labels.csv"}]
    assert sections["Levels"].splitlines()[2:] == ["| item | 6 |", "| kind | 5 |", "| realm | 2 |"]
    assert {"Levels", "Files"} == set(sections)
    assert "andmark" not in file.read_text()
