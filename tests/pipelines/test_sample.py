from collections import Counter

import polars as pl
import pytest

from hgld.pipelines.hierarchy import sample
from hgld.pipelines.hierarchy.config import CleanConfig
from hgld.pipelines.hierarchy.names import clean
from hgld.pipelines.hierarchy.names.class_graph import ClassGraph
from hgld.pipelines.hierarchy.names.clean import NameRules, name_key
from hgld.pipelines.hierarchy.names.landmark_tables import CLASSES, SCRAPED
from hgld.pipelines.stage import silent

FIXED_CONSTRUCTION, NATURAL = "Q811430", "Q27096220"


@pytest.fixture(scope="module")
def scraped(tmp_path_factory):
    return sample.run(tmp_path_factory.mktemp("sample"), silent)


@pytest.fixture(scope="module")
def landmarks(scraped):
    return pl.read_parquet(scraped.path("landmarks.parquet"))


@pytest.fixture(scope="module")
def graph(scraped):
    return ClassGraph.read(scraped.path("classes.parquet"))


@pytest.fixture(scope="module")
def expected():
    return pl.read_csv(sample.EXPECTED_GROUPS)


def test_the_tables_are_those_of_a_scrape(scraped, landmarks):
    assert landmarks.schema == SCRAPED
    assert landmarks.equals(landmarks.sort("split", "landmark_id"))
    assert landmarks.select("split", "landmark_id").is_duplicated().sum() == 0
    assert landmarks.filter(pl.col("names").list.len() != pl.col("classes").list.len()).is_empty()
    assert (landmarks.filter(pl.col("status") == "found")["names"].list.len() > 0).all()
    assert (landmarks.filter(pl.col("status") != "found")["names"].list.len() == 0).all()
    classes = pl.read_parquet(scraped.path("classes.parquet"))
    assert classes.schema == CLASSES
    assert classes.equals(classes.sort("class_id"))
    assert pl.read_parquet(scraped.path("dropped.parquet")).is_empty()


def test_classes_are_closed_upwards_and_agree_with_the_names(landmarks, graph):
    table = pl.read_csv(sample.GRAPH, infer_schema=False)
    assert set(graph.ids) == set(table["class_id"])  # every parent has a row of its own
    assert table["label"].is_unique().all()
    for class_id in graph.ids:
        assert class_id not in {up for parent in graph.parents(class_id) for up in graph.ancestors(parent)}
    rules = NameRules.read()
    pairs = landmarks.select("names", "classes").explode("names", "classes").drop_nulls().unique()
    for name, class_id in pairs.iter_rows():
        label = graph.label(class_id)
        assert label is not None
        assert name_key(rules.canonical(name)) == name_key(label)


def test_expected_groups_cover_every_name(scraped, tmp_path, expected):
    stage = clean.run(tmp_path, scraped, CleanConfig("most-common"), silent)
    names = set(pl.read_parquet(stage.path("names.parquet"))["name"])
    assert names <= set(expected["name"])
    assert set(stage.result.dropped) == {"irrelevant", "missing", "no-item", "no-instance-of"}


def test_expected_groups_are_a_tree_that_the_class_graph_supports(expected, graph):
    assert expected["name"].is_unique().all()
    assert set(expected["natural_or_human_made"]) == {"natural", "human-made"}
    tops = expected.group_by("group").agg(pl.col("natural_or_human_made").unique())
    assert (tops["natural_or_human_made"].list.len() == 1).all()
    assert len(expected) >= 60
    known = {name_key(graph.label(class_id)): class_id for class_id in graph.ids}
    seen = Counter()
    for name, _, top in expected.iter_rows():
        above = graph.ancestors(known.get(name_key(name), ""))
        if FIXED_CONSTRUCTION in above:
            assert top == "human-made", name
        elif NATURAL in above:
            assert top == "natural", name
        seen[top] += bool(above)
    assert seen["human-made"] >= 60
    assert seen["natural"] >= 20
