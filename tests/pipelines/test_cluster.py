"""The cluster stage on disk: its tables, their order, its bytes, and inputs that do not fit."""

import json
import shutil
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from hgld.errors import ConfigError, TableError
from hgld.pipelines.hierarchy.config import ClusterConfig
from hgld.pipelines.hierarchy.groups import cluster
from hgld.pipelines.stage import StageResult, StageRun, run_stage, silent

NAMES = ["arch bridge", "arena", "lake", "road bridge", "salt lake", "stadium", "toll bridge"]
KINDS = np.array([0, 1, 2, 0, 2, 1, 0])
CLASSES = [["Q5"], ["Q4"], None, ["Q5"], [], ["Q3"], ["Q5"]]
Runs = tuple[StageRun, StageRun, StageRun]
FILES = ("names.parquet", "groups.parquet", "k_curve.parquet", "map.parquet")


def stage(root, name, write):
    shutil.rmtree(root / name, ignore_errors=True)
    return run_stage(name, root, version=1, config={}, inputs={}, work=lambda out: write(out) or StageResult())


@pytest.fixture
def inputs(tmp_path):
    """Runs of clean, embed and scrape, with the tables that the cluster stage reads."""
    rows = np.eye(8, dtype=np.float32)[KINDS] + 0.05 * np.eye(7, 8, dtype=np.float32)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    names = pl.DataFrame(
        {"name": NAMES, "landmarks": [1, 5, 9, 2, 1, 4, 1], "class_ids": CLASSES, "raw": [[n] for n in NAMES]},
        schema_overrides={"landmarks": pl.Int64, "class_ids": pl.List(pl.String)},
    ).with_columns(english=pl.lit(value=True))
    classes = pl.DataFrame(
        {
            "class_id": ["Q2", "Q3", "Q4", "Q5"],
            "label": ["sports venue", "stadium", "arena", "bridge"],
            "language": ["en"] * 4,
            "parents": [[], ["Q2"], ["Q2"], []],
        },
        schema_overrides={"parents": pl.List(pl.String)},
    )
    return (
        stage(tmp_path, "clean", lambda out: names.write_parquet(out / "names.parquet")),
        stage(tmp_path, "evidence", lambda out: np.save(out / "rows.npy", rows)),
        stage(tmp_path, "scrape", lambda out: classes.write_parquet(out / "classes.parquet")),
    )


def test_the_tables(tmp_path: Path, inputs: Runs):
    ran = cluster.run(tmp_path, *inputs, ClusterConfig(groups=3, clusters=2), silent)
    names = pl.read_parquet(ran.path("names.parquet"))
    assert names.columns == ["name", "landmarks", "cluster", "group", "confidence", "next_group", "wrong", "doubtful"]
    assert names.schema["cluster"] == names.schema["group"] == names.schema["next_group"] == pl.Int32
    assert names.schema["confidence"] == pl.Float32
    assert names["name"].to_list() == NAMES
    assert names["group"].to_list() == KINDS.tolist()
    assert (names["wrong"].is_between(0, 1) & (names["doubtful"] == (names["wrong"] > 0.5))).all()
    groups = pl.read_parquet(ran.path("groups.parquet"))
    assert groups.rows() == [
        (0, "bridge", "head-noun", "head noun of 3 of 3 names, 4 of 4 landmarks", 3, 4),
        (1, "arena", "head-noun", "head noun of 1 of 2 names, 5 of 9 landmarks", 2, 9),
        (2, "lake", "head-noun", "head noun of 2 of 2 names, 10 of 10 landmarks", 2, 10),
    ]
    assert pl.read_parquet(ran.path("k_curve.parquet")).is_empty(), "k was given"
    places = pl.read_parquet(ran.path("map.parquet"))
    assert places.columns == ["name", "x", "y"]
    assert places["name"].to_list() == NAMES
    assert ran.result.counts == {"names": 7, "clusters": 2, "groups": 3}
    assert ran.result.details["criterion"] == "given"


def test_done_once_and_the_same_bytes_again(tmp_path: Path, inputs: Runs):
    config = ClusterConfig(structure=0.3, weighted=True, criterion="silhouette")
    first = cluster.run(tmp_path, *inputs, config, silent)
    assert first.result.counts["names_in_class_graph"] == 5
    assert not cluster.run(tmp_path, *inputs, config, silent).was_run
    again = cluster.run(tmp_path / "again", *inputs, config, silent)
    for file in FILES:
        assert first.path(file).read_bytes() == again.path(file).read_bytes()
    assert cluster.run(tmp_path, *inputs, ClusterConfig(seed=1), silent).was_run, "another seed is another result"
    curve = pl.read_parquet(again.path("k_curve.parquet"))
    assert again.result.details["k"] == curve.sort("score", "k", descending=[True, False])["k"][0]


def test_weights_reach_the_clustering(tmp_path: Path, inputs: Runs):
    def tables(place: str, **fields) -> tuple[pl.DataFrame, pl.DataFrame]:
        ran = cluster.run(tmp_path / place, *inputs, ClusterConfig(groups=3, clusters=2, **fields), silent)
        return pl.read_parquet(ran.path("names.parquet")), pl.read_parquet(ran.path("map.parquet"))

    plain, again, weighted = tables("a"), tables("b"), tables("c", weighted=True)
    assert plain[0].equals(again[0])
    assert plain[1].equals(again[1])
    assert plain[0]["group"].to_list() == weighted[0]["group"].to_list()
    assert plain[0]["confidence"].to_list() != weighted[0]["confidence"].to_list()


def test_one_group_has_no_next_one(tmp_path: Path, inputs: Runs):
    ran = cluster.run(tmp_path, *inputs, ClusterConfig(groups=1), silent)
    names = pl.read_parquet(ran.path("names.parquet"))
    assert names["next_group"].null_count() == len(NAMES)
    assert names["confidence"].to_list() == [1.0] * len(NAMES)


def test_structure_without_a_known_class_is_told(tmp_path: Path, inputs: Runs):
    cleaned, embedded, scraped = inputs
    empty = pl.read_parquet(scraped.path("classes.parquet")).clear()
    scraped = stage(tmp_path, "scrape", lambda out: empty.write_parquet(out / "classes.parquet"))
    ran = cluster.run(tmp_path, cleaned, embedded, scraped, ClusterConfig(structure=0.5), silent)
    assert ran.result.counts["names_in_class_graph"] == 0
    assert "--structure 0.5 changed nothing" in ran.result.notes[0]


def test_embeddings_of_other_names_are_refused(tmp_path: Path, inputs: Runs):
    cleaned, _, scraped = inputs
    embedded = stage(tmp_path, "evidence", lambda out: np.save(out / "rows.npy", np.eye(3, dtype=np.float32)))
    with pytest.raises(TableError, match=r"rows.npy: 3 rows for the 7 names"):
        cluster.run(tmp_path, cleaned, embedded, scraped, ClusterConfig(), silent)
    assert not (tmp_path / "cluster").exists()


def test_pickled_embeddings_are_not_opened(tmp_path: Path, inputs: Runs):
    cleaned, _, scraped = inputs
    embedded = stage(tmp_path, "evidence", lambda out: np.save(out / "rows.npy", np.array([{}]), allow_pickle=True))
    with pytest.raises(TableError, match="not an array"):
        cluster.run(tmp_path, cleaned, embedded, scraped, ClusterConfig(), silent)


def test_more_groups_than_names_are_refused(tmp_path: Path, inputs: Runs):
    with pytest.raises(ConfigError, match="--groups 8 is more than the 7 names"):
        cluster.run(tmp_path, *inputs, ClusterConfig(groups=8), silent)
    assert not (tmp_path / "cluster").exists()


def test_progress_is_told(tmp_path: Path, inputs: Runs):
    told = []
    cluster.run(
        tmp_path, *inputs, ClusterConfig(criterion="elbow"), lambda task, done, total: told.append((task, done, total))
    )
    tasks = {task for task, _, _ in told}
    assert {"try numbers of clusters", "k-means", "draw the map"} <= tasks
    assert all(total is None or done <= total for _, done, total in told)
    assert json.loads((tmp_path / "cluster" / "done.json").read_text())["stage"] == "cluster"
