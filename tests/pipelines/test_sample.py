from collections import Counter

import numpy as np
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


def test_it_is_large_and_messy_enough(landmarks):
    assert len(landmarks) >= 400
    assert set(landmarks["split"]) == {"train", "index"}
    assert set(landmarks["status"]) == {"found", "missing", "no-item", "no-instance-of"}
    assert (landmarks["names"].list.len() > 1).sum() >= 30
    raw = set(landmarks["names"].explode().drop_nulls())
    assert any("(" in name for name in raw)
    assert "county hall (" in raw
    assert any("  " in name for name in raw)
    assert len({name_key(name) for name in raw}) < len(raw)


def test_every_category_url_is_one_landmark(landmarks):
    assert landmarks["title"].null_count() == 0
    assert landmarks["title"].is_unique().all()
    urls = landmarks["category"].str
    for form in (
        "http://commons",
        "https://commons",
        "commons.m.wikimedia.org",
        "index.php?title=",
        "%C3",
        "'",
        ",",
        "#",
    ):
        assert urls.contains(form, literal=True).any(), form


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


def test_the_published_rule_keeps_enough(scraped, tmp_path, expected):
    stage = clean.run(tmp_path, scraped, CleanConfig(), silent)
    names = pl.read_parquet(stage.path("names.parquet"))
    assert set(names["name"]) <= set(expected["name"])
    assert len(names) >= 110
    assert stage.result.dropped["several-names"] >= 30
    assert names["landmarks"].sum() >= 400
    assert names.filter(pl.col("raw").list.len() > 1).height >= 20


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


def test_classes_of_one_expected_group_are_alike(expected, graph):
    known = {name_key(graph.label(class_id)): class_id for class_id in graph.ids}
    rows = [(group, known[name_key(name)]) for name, group, _ in expected.iter_rows() if name_key(name) in known]
    places = graph.rows([[class_id] for _, class_id in rows])
    alike = places @ places.T
    groups = np.array([group for group, _ in rows])
    same = groups[:, None] == groups[None, :]
    apart = ~np.eye(len(rows), dtype=bool)
    assert alike[same & apart].mean() > 3 * alike[~same].mean()


def test_a_second_run_does_nothing(scraped):
    assert not sample.run(scraped.directory.parent, silent).was_run
