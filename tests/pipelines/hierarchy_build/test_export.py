import csv

import numpy as np
import polars as pl

from hgld import Hierarchy
from hgld.pipelines.hierarchy import export
from hgld.pipelines.hierarchy.groups.levels import LANDMARKS, LevelPlan
from hgld.pipelines.stage import silent

HEADER = ["landmark_id", "category", "supercategory", "hierarchical_label", "natural_or_human_made"]


def build(root, stages, plan=LANDMARKS):
    return export.run(root, stages, silent, plan=plan)


def rows_of(file):
    with open(file, encoding="utf-8", newline="") as opened:
        return list(csv.reader(opened))


def test_label_csvs_have_gldv2s_columns_and_every_labelled_landmark(tmp_path, tiny_stages):
    stages = tiny_stages(tmp_path)
    exported = build(tmp_path, stages)
    labelled = pl.read_parquet(exported.path("landmarks.parquet"))
    for split in ("train", "index"):
        header, *rows = rows_of(exported.path(f"{split}_label_to_hierarchical.csv"))
        assert header == HEADER
        expected = labelled.filter(pl.col("split") == split).sort("landmark_id").select(HEADER)
        assert rows == [["" if v is None else str(v) for v in row] for row in expected.iter_rows()]
        assert rows


def test_another_top_level_is_not_told_as_natural_or_human_made(tmp_path, tiny_stages):
    exported = build(tmp_path, tiny_stages(tmp_path), LevelPlan(("place", "kind", "realm"), (2,), ()))
    rows = rows_of(exported.path("train_label_to_hierarchical.csv"))
    assert {row[4] for row in rows[1:]} == {""}
    header, *rows = rows_of(exported.path("labels.csv"))
    assert header == ["id", "name", "kind", "realm"]
    assert ["index/1", "lake", "lake", "natural"] in rows


def test_names_and_categories_are_kept_as_given(tmp_path, tiny_stages):
    stages = tiny_stages(tmp_path)
    exported = build(tmp_path, stages)
    scraped = pl.read_parquet(stages["scrape"].path("landmarks.parquet")).filter(pl.col("split") == "train")
    given = dict(scraped.select("landmark_id", "category").iter_rows())
    rows = rows_of(exported.path("train_label_to_hierarchical.csv"))[1:]
    assert {int(r[0]): r[1] for r in rows} == {int(r[0]): given[int(r[0])] for r in rows}
    assert {r[2] for r in rows} >= {"cathedral", "Cathedral"}  # the scraped spelling, not the canonical one
    assert rows[0][3] == "Cathedral"


def test_raw_names_hold_every_landmark_and_can_be_read_back(tmp_path, tiny_stages):
    stages = tiny_stages(tmp_path)
    exported = build(tmp_path, stages)
    header, *rows = rows_of(exported.path("raw_names.csv"))
    table = [dict(zip(header, row, strict=True)) for row in rows]
    scraped = pl.read_parquet(stages["scrape"].path("landmarks.parquet"))
    assert len(table) == len(scraped)
    for row, truth in zip(table, scraped.sort("split", "landmark_id").iter_rows(named=True), strict=True):
        assert unbarred(row["names"]) == truth["names"]
        assert row["status"] == truth["status"]
        assert row["redirected_to"] == (truth["redirected_to"] or "")


def unbarred(text):
    names, current, escaped = [], "", False
    for letter in text:
        if escaped or letter not in "|\\":
            current, escaped = current + letter, False
        elif letter == "\\":
            escaped = True
        else:
            names, current = [*names, current], ""
    return [*names, current] if text else []


def test_hierarchy_is_the_tree_of_the_csvs(tmp_path, tiny_stages):
    exported = build(tmp_path, tiny_stages(tmp_path))
    tree = Hierarchy.from_parquet(exported.path("hierarchy.parquet"))
    assert tree.levels == ("landmark", "hierarchical_label", "natural_or_human_made")
    assert tree.num_classes == (6, 5, 2)
    assert "train/1 Chartres Cathedral" in tree.names[0]
    assert "index/1 Lake Como" in tree.names[0]
    undecided = np.flatnonzero(tree.parents[1] == -1)
    assert [tree.names[1][i] for i in undecided] == ['<script>alert(1)</script> "quoted", $x$ | =cmd()']


def test_every_scraped_landmark_is_labelled_or_dropped_once(tmp_path, tiny_stages):
    stages = tiny_stages(tmp_path, without="bridge")
    exported = build(tmp_path, stages)
    key = ["split", "landmark_id"]
    labelled = pl.read_parquet(exported.path("landmarks.parquet")).select(key)
    dropped = pl.read_parquet(exported.path("dropped.parquet"))
    asked = pl.read_parquet(stages["scrape"].path("landmarks.parquet")).select(key)
    assert pl.concat([labelled, dropped.select(key)]).sort(key).equals(asked.sort(key))
    reasons = {(s, i): (stage, reason) for s, i, _, stage, reason, _ in dropped.iter_rows()}
    assert reasons == {
        ("index", 2): ("clean", "missing"),
        ("train", 3): ("review", "name-dropped"),
        ("train", 4): ("clean", "no-item"),
        ("train", 7): ("clean", "several-names"),
    }


def test_single_landmarks_stand_where_decisions_put_them(tmp_path, tiny_stages):
    stages = tiny_stages(tmp_path)
    before = pl.read_parquet(build(tmp_path, stages).path("landmarks.parquet"))
    first = before.row(0, named=True)
    label = before.filter(pl.col("hierarchical_label") != first["hierarchical_label"])["hierarchical_label"][0]
    items = stages["review"].path("items.parquet")
    told = [(first["split"], number, None, label, "ada", None) for number in (str(first["landmark_id"]), "999")]
    pl.DataFrame(told, schema=pl.read_parquet_schema(items), orient="row").write_parquet(items)
    after = build(tmp_path, stages)
    now = pl.read_parquet(after.path("landmarks.parquet"))
    assert now[1:].equals(before[1:])
    assert (now["name"][0], now["hierarchical_label"][0]) == (first["name"], label)
    assert after.result.counts["put elsewhere by decision"] == 1
    assert after.result.notes[0].endswith(f"is gone: {first['split']}/999 (by ada).")
