"""Builds from lists of class names, from the file to the label table."""

import json

import numpy as np
import polars as pl

from hgld import Hierarchy
from hgld.pipelines.hierarchy.build import build_table
from hgld.pipelines.hierarchy.config import (
    ClusterConfig,
    LevelsConfig,
    ReviewConfig,
)
from tests.pipelines.hierarchy_build.class_lists import THINGS, labels


def test_items_and_groups_are_the_levels_of_a_plain_list(build):
    made = build(THINGS, cluster=ClusterConfig(groups=3))
    rows = labels(made)
    assert list(rows[0]) == ["id", "name", "group"]
    assert [row["name"] for row in rows] == THINGS == [row["id"] for row in rows]
    assert {row["name"].split()[-1]: row["group"] for row in rows} == {k: k for k in ("apple", "oak", "whale")}
    assert len({row["group"] for row in rows}) == 3
    tree = Hierarchy.from_parquet(made.directory / "hierarchy.parquet")
    assert tree.levels == ("item", "group")
    assert set(tree.names[0]) == set(THINGS)
    assert not list(made.directory.glob("*_label_to_hierarchical.csv"))
    assert "undecided" not in (made.directory / "labels.csv").read_text()


def test_two_items_of_one_name_are_two_classes_and_counts_weigh(build):
    made = build("id,name,count\nb1,crane,5\nm1,crane,2\nx,oak,\n,,\n", cluster=ClusterConfig(groups=2))
    assert [(row["id"], row["name"]) for row in labels(made)] == [("b1", "crane"), ("m1", "crane"), ("x", "oak")]
    tree = Hierarchy.from_parquet(made.directory / "hierarchy.parquet")
    assert tree.names[0] == ("crane (b1)", "crane (m1)", "oak")
    names = pl.read_parquet(made.stages["review"].path("names.parquet"))
    assert dict(names.select("name", "landmarks").iter_rows()) == {"crane": 7, "oak": 1}
    dropped = pl.read_parquet(made.directory / "dropped.parquet")
    assert dropped.select("row", "stage", "reason").rows() == [(5, "scrape", "empty row")]


def test_levels_have_their_names_and_numbers(build):
    config = {"levels": LevelsConfig(("kind", "sort", "realm"), coarser=(2,)), "cluster": ClusterConfig(groups=4)}
    rows = labels(build(THINGS, **config))
    assert list(rows[0]) == ["id", "name", "sort", "realm"]
    assert [len({row[level] for row in rows}) for level in ("sort", "realm")] == [4, 2]
    above = {row["sort"]: row["realm"] for row in rows}
    assert all(above[row["sort"]] == row["realm"] for row in rows)


def test_classes_of_the_top_are_decided_by_their_text_or_left_open(build):
    words = [*THINGS, "café", "Straße"]
    made = build(words, levels=LevelsConfig(top=("apple", "whale")), cluster=ClusterConfig(groups=5))
    tops = {row["name"]: row["top"] for row in labels(made)}
    assert tops["red apple"] == "apple"
    assert tops["blue whale"] == "whale"
    assert tops["oak"] == tops["café"] == ""
    note = made.stages["toplevel"].result.notes[0]
    assert note.startswith("neither apple nor whale could be decided for:")
    assert "oak" in note
    table = pl.read_parquet(made.stages["toplevel"].path("levels.parquet"))
    assert table.columns == ["group", "level", "label", "method", "evidence", "margin"]


def test_general_names_are_not_cut_and_nothing_is_irrelevant(build):
    names = [
        "a_b",
        "person",
        "list",
        "Mercury (Planet)",
        "Mercury (Metal)",
        "747",
        "Q5",
        "taxon",
        "name",
        "Nike Air (2019)",
    ]
    assert [row["name"] for row in labels(build(["name", *names]))] == names
    cleaned = pl.read_parquet(build(["name", *names]).stages["clean"].path("names.parquet"))
    assert set(cleaned["name"]) == {"a b", *names[1:]}


def test_a_second_run_does_nothing_and_decisions_are_applied(build, tmp_path):
    first = build(THINGS, cluster=ClusterConfig(groups=3))
    again = build(THINGS, cluster=ClusterConfig(groups=3))
    assert not any(stage.was_run for stage in again.stages.values())
    shown = build_table(first)
    assert "9 items" in shown
    assert not any(word in shown for word in ("landmark", "undecided"))
    entry = '{action: move, names: [red oak], to: whale, who: ann, when: "2026-11-21T09:00:00Z", why: "no"}'
    file = tmp_path / "ann.yaml"
    file.write_text(f"schema_version: 1\nrole: annotator\ndecisions:\n- {entry}\n")
    decided = build(THINGS, cluster=ClusterConfig(groups=3), review=ReviewConfig((file,)))
    assert {row["name"]: row["group"] for row in labels(decided)}["red oak"] == "whale"


GROUPS = "name,parent,seeds,description\napple,plant,,\noak,plant,elm,\nwhale,animal,,a sea animal\nfern,plant,,\n"


def test_names_are_put_into_given_groups_and_their_parents(build, tmp_path):
    (tmp_path / "groups.csv").write_text(GROUPS)
    made = build([*THINGS, "elm", "carburettor"], levels=LevelsConfig(into=tmp_path / "groups.csv"))
    rows = {row["name"]: (row["group"], row["top"]) for row in labels(made)}
    assert rows == {
        **{name: ("apple", "plant") for name in THINGS if "apple" in name},
        **{name: ("oak", "plant") for name in (*THINGS, "elm") if "oak" in name or name == "elm"},
        **{name: ("whale", "animal") for name in THINGS if "whale" in name},
        "carburettor": ("", ""),
    }
    run = made.stages["cluster"]
    assert run.result.counts["none of these"] == 1
    assert any("none of these: carburettor" in note for note in run.result.notes)
    table = pl.read_parquet(run.path("groups.parquet"))
    assert table["label"].to_list() == ["apple", "oak", "whale", "fern", "none of these"]
    assert table["names"].to_list() == [3, 4, 3, 0, 1]
    assert len(np.load(run.path("group_rows.npy"))) == len(table)
    assert {"role": "groups", "file": "groups.csv"}.items() <= provenance(made)["inputs"][1].items()


def provenance(made):
    return json.loads((made.directory / "provenance.json").read_text())


def test_people_move_names_into_and_out_of_given_groups(build, tmp_path):
    (tmp_path / "groups.csv").write_text(GROUPS)
    entries = [
        '{action: move, names: [carburettor], to: fern, who: ann, when: "2026-11-21T09:00:00Z", why: "no"}',
        '{action: move, names: [red oak], to: none of these, who: ann, when: "2026-11-21T09:00:00Z", why: "no"}',
    ]
    file = tmp_path / "ann.yaml"
    file.write_text("schema_version: 1\nrole: annotator\ndecisions:\n" + "".join(f"- {entry}\n" for entry in entries))
    config = {"levels": LevelsConfig(into=tmp_path / "groups.csv"), "review": ReviewConfig((file,))}
    rows = {row["name"]: (row["group"], row["top"]) for row in labels(build([*THINGS, "carburettor"], **config))}
    assert rows["carburettor"] == ("fern", "plant")
    assert rows["red oak"] == ("", "")
