"""The tables of a build: labels, raw names, the tree, and dropped landmarks."""

import csv

import numpy as np
import polars as pl
import pytest

from hgld import Hierarchy
from hgld.pipelines.hierarchy import export
from hgld.pipelines.hierarchy.groups.levels import LevelPlan
from hgld.pipelines.stage import silent
from tests.pipelines.hierarchy_build.conftest import HOSTILE, write_decisions

HEADER = ["landmark_id", "category", "supercategory", "hierarchical_label", "natural_or_human_made"]
KEY = ["split", "landmark_id"]


@pytest.fixture(scope="module")
def exported(module_path, tiny_stages):
    return export.run(module_path, tiny_stages(module_path), silent)


def rows_of(file):
    with open(file, encoding="utf-8", newline="") as opened:
        return list(csv.reader(opened))


def test_label_csvs_have_gldv2_columns_and_scraped_spellings(exported):
    url = "http://commons.wikimedia.org/wiki/Category:L"
    header, *rows = rows_of(exported.path("train_label_to_hierarchical.csv"))
    assert header == HEADER
    assert rows == [
        ["1", f"{url}1", "cathedral", "cathedral", "human-made"],
        ["2", f"{url}2", "Cathedral", "cathedral", "human-made"],
        ["3", f"{url}3", "bridge", "bridge", "human-made"],
        ["5", f"{url}5", HOSTILE, "alert", ""],
        ["6", f"{url}6", "mountain", "mountain", "natural"],
    ]
    assert [row[0] for row in rows_of(exported.path("index_label_to_hierarchical.csv"))] == ["landmark_id", "1"]


def test_landmarks_with_other_top_classes_get_a_separate_table_and_an_empty_gldv2_top(tmp_path, tiny_stages):
    exported = export.run(tmp_path, tiny_stages(tmp_path), silent, plan=LevelPlan(("place", "kind", "realm"), (2,), ()))
    rows = rows_of(exported.path("train_label_to_hierarchical.csv"))
    assert {row[4] for row in rows[1:]} == {""}
    header, *rows = rows_of(exported.path("labels.csv"))
    assert header == ["id", "name", "kind", "realm"]
    assert ["index/1", "lake", "lake", "natural"] in rows


def test_raw_names_table_lists_every_landmark_and_escapes_bars_in_names(exported):
    header, *rows = rows_of(exported.path("raw_names.csv"))
    table = {(row["split"], row["landmark_id"]): row for row in (dict(zip(header, r, strict=True)) for r in rows)}
    assert len(table) == 9
    assert (table["train", "7"]["names"], table["train", "7"]["class_ids"]) == (r"a\|b\\c|lake", "|")
    assert table["train", "2"]["class_ids"] == "Q2977|"
    assert table["index", "2"]["status"] == "missing"


def test_hierarchy_file_holds_the_same_tree_as_the_label_csvs(exported):
    tree = Hierarchy.from_parquet(exported.path("hierarchy.parquet"))
    assert tree.levels == ("landmark", "hierarchical_label", "natural_or_human_made")
    assert tree.num_classes == (6, 5, 2)
    assert {"train/1 Category:L1".replace("Category:", ""), "index/1 L1"} <= set(tree.names[0])
    undecided = np.flatnonzero(tree.parents[1] == -1)
    assert [tree.names[1][i] for i in undecided] == ["alert"]


def test_every_landmark_is_labelled_or_dropped_once_with_a_reason(tmp_path, tiny_stages):
    file = write_decisions(tmp_path / "ann.yaml", "action: drop, names: [bridge]")
    stages = tiny_stages(tmp_path, file)
    exported = export.run(tmp_path, stages, silent)
    labelled = pl.read_parquet(exported.path("landmarks.parquet")).select(KEY)
    dropped = pl.read_parquet(exported.path("dropped.parquet"))
    asked = pl.read_parquet(stages["scrape"].path("landmarks.parquet")).select(KEY)
    assert pl.concat([labelled, dropped.select(KEY)]).sort(KEY).equals(asked.sort(KEY))
    reasons = {(s, i): (stage, reason) for s, i, _, stage, reason, _ in dropped.iter_rows()}
    assert reasons == {
        ("index", 2): ("clean", "missing"),
        ("train", 3): ("review", "name-dropped"),
        ("train", 4): ("clean", "no-item"),
        ("train", 7): ("clean", "several-names"),
    }


def test_decisions_move_single_landmarks(tmp_path, tiny_stages):
    stages = tiny_stages(tmp_path)
    before = pl.read_parquet(export.run(tmp_path, stages, silent).path("landmarks.parquet"))
    items = stages["review"].path("items.parquet")
    told = [("train", number, None, "bridge", "ada", None) for number in ("1", "999")]
    pl.DataFrame(told, schema=pl.read_parquet_schema(items), orient="row").write_parquet(items)
    after = export.run(tmp_path, stages, silent)
    now = pl.read_parquet(after.path("landmarks.parquet"))
    moved = (pl.col("split") == "train") & (pl.col("landmark_id") == 1)
    assert now.filter(~moved).equals(before.filter(~moved))
    assert now.filter(moved).select("name", "hierarchical_label").row(0) == ("cathedral", "bridge")
    assert after.result.counts["put elsewhere by decision"] == 1
    assert after.result.notes[0].endswith("is gone: train/999 (by ada).")
