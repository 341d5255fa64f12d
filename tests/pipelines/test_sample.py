import polars as pl
import pytest

from hgld.pipelines.hierarchy import sample
from hgld.pipelines.hierarchy.config import BuildConfig, CleanConfig
from hgld.pipelines.hierarchy.names import clean
from hgld.pipelines.hierarchy.names.class_graph import ClassGraph
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


def test_expected_groups_cover_every_name(scraped, tmp_path, expected):
    stage = clean.run(tmp_path, {"scrape": scraped}, BuildConfig("sample", clean=CleanConfig("most-common")), silent)
    names = set(pl.read_parquet(stage.path("names.parquet"))["name"])
    assert names <= set(expected["name"])
    assert set(stage.result.dropped) == {"irrelevant", "missing", "no-item", "no-instance-of"}
