"""Builds from lists of class names, with predefined groups or a taxonomy, from the file to the label table."""

import json

import numpy as np
import polars as pl
import pytest

from hgld import Hierarchy
from hgld.pipelines.hierarchy.build import build_table
from hgld.pipelines.hierarchy.config import (
    ClusterConfig,
    EmbedConfig,
    EvidenceConfig,
    LevelsConfig,
    ReviewConfig,
    TreeConfig,
)
from hgld.pipelines.hierarchy.encoders import pretrained
from hgld.pipelines.hierarchy.groups.evidence import read_evidence
from hgld.pipelines.hierarchy.groups.given import has_given_levels
from tests.pipelines.hierarchy_build.conftest import THINGS, LengthEncoder, labels, write_decisions

THREE = ClusterConfig(groups=3)


def test_list_of_names_gives_items_and_groups(build):
    made = build(THINGS, cluster=THREE)
    rows = labels(made)
    assert list(rows[0]) == ["id", "name", "group"]
    assert not has_given_levels(made.directory)
    assert [row["name"] for row in rows] == THINGS == [row["id"] for row in rows]
    assert {row["name"].split()[-1]: row["group"] for row in rows} == {k: k for k in ("apple", "oak", "whale")}
    tree = Hierarchy.from_parquet(made.directory / "hierarchy.parquet")
    assert tree.levels == ("item", "group")
    assert set(tree.names[0]) == set(THINGS)
    shown = build_table(made)
    assert "9 items" in shown
    run = made.stages["cluster"]
    assert pl.read_parquet(run.path("groups.parquet")).drop("group").sort("label").rows() == [
        (kind, "head-noun", "head noun of 3 of 3 names, 3 of 3 items", 3, 3) for kind in ("apple", "oak", "whale")
    ]
    names = pl.read_parquet(run.path("names.parquet"))
    assert names.columns == ["name", "landmarks", "group", "confidence", "next_group", "wrong"]
    assert run.result.details["silhouettes"] == {}, "the user chose the number of groups"
    chosen = build(THINGS, out="chosen").stages["cluster"].result
    tried = chosen.details["silhouettes"]
    assert chosen.counts["groups"] == int(max(tried, key=lambda count: tried[count]))
    assert not any(word in shown for word in ("landmark", "undecided"))


def test_items_with_equal_names_are_two_classes_and_item_counts_are_weights(build):
    made = build("id,name,count\nb1,crane,5\nm1,crane,2\nx,oak,\n,,\n", cluster=ClusterConfig(groups=2))
    assert [(row["id"], row["name"]) for row in labels(made)] == [("b1", "crane"), ("m1", "crane"), ("x", "oak")]
    tree = Hierarchy.from_parquet(made.directory / "hierarchy.parquet")
    assert tree.names[0] == ("crane (b1)", "crane (m1)", "oak")
    names = pl.read_parquet(made.stages["review"].path("names.parquet"))
    assert dict(names.select("name", "landmarks").iter_rows()) == {"crane": 7, "oak": 1}
    dropped = pl.read_parquet(made.directory / "dropped.parquet")
    assert dropped.select("row", "stage", "reason").rows() == [(5, "scrape", "empty row")]


def test_levels_have_requested_names_and_class_counts_and_show_states_their_expected_errors(
    build, tmp_path, hgld, output, json_of
):
    config = {"levels": LevelsConfig(("kind", "sort", "realm"), coarser=(2,)), "cluster": ClusterConfig(groups=4)}
    made = build([*THINGS, "papaya"], **config)
    rows = labels(made)
    assert list(rows[0]) == ["id", "name", "sort", "realm"]
    assert [len({row[level] for row in rows}) for level in ("sort", "realm")] == [4, 2]
    above = {row["sort"]: row["realm"] for row in rows}
    assert all(above[row["sort"]] == row["realm"] for row in rows)
    note = made.stages["embed"].result.notes[0]
    assert note.startswith("lexical compares words and letters, and knows no meaning: 1 of 10 names share no word")
    found = json_of("show", made.directory, "--doubtful", 0)
    chances, expected = [row["wrong"] for row in found["names"]], found["still_wrong"]
    assert chances == sorted(chances, reverse=True)
    assert {row["name"] for row in found["names"]} == {*THINGS, "papaya"}
    first, level, _, _, *names = output("show", made.directory, "--doubtful", 2).splitlines()
    mean, low, high = expected["names"]
    assert first.startswith(f"About {mean:.0f} names are in a wrong group (80% interval {low:.0f} to {high:.0f})")
    mean, low, high = expected["levels"]["realm"]
    assert level == f"About {mean:.0f} names have a wrong realm ({low:.0f} to {high:.0f})."
    assert len(names) == 2
    assert "Give the folder of a finished" in hgld("show", tmp_path, "--doubtful", 2)[2]


def test_top_classes_are_decided_by_their_text_or_left_undecided(build):
    words = [*THINGS, "café", "Straße"]
    made = build(words, levels=LevelsConfig(top=("apple", "whale")), cluster=ClusterConfig(groups=5))
    tops = {row["name"]: row["top"] for row in labels(made)}
    assert (tops["red apple"], tops["blue whale"]) == ("apple", "whale")
    assert tops["oak"] == tops["café"] == ""
    note = made.stages["toplevel"].result.notes[0]
    assert note.startswith("neither apple nor whale could be decided for:")
    assert "oak" in note


def test_names_outside_the_landmark_domain_stay_unchanged_and_none_is_dropped(build):
    names = ["a_b", "person", "list", "Mercury (Planet)", "Mercury (Metal)", "747", "Q5", "taxon", "Nike Air (2019)"]
    made = build(["name", *names])
    assert [row["name"] for row in labels(made)] == names
    assert set(pl.read_parquet(made.stages["clean"].path("names.parquet"))["name"]) == {"a b", *names[1:]}


# -- predefined groups -------------------------------------------------------------------------------------------------

GROUPS = "name,parent,seeds,description\napple,plant,,\noak,plant,elm,\nwhale,animal,,a sea animal\nfern,plant,,\n"


def test_names_are_assigned_to_predefined_groups_and_decisions_move_them(build, tmp_path):
    (tmp_path / "groups.csv").write_text(GROUPS)
    levels = LevelsConfig(into=tmp_path / "groups.csv")
    made = build([*THINGS, "elm", "carburettor"], levels=levels)
    expected = {
        **{name: ("apple", "plant") for name in THINGS if "apple" in name},
        **{name: ("oak", "plant") for name in (*THINGS, "elm") if "oak" in name or name == "elm"},
        **{name: ("whale", "animal") for name in THINGS if "whale" in name},
        "carburettor": ("", ""),
    }
    assert {row["name"]: (row["group"], row["top"]) for row in labels(made)} == expected
    run = made.stages["cluster"]
    assert run.result.counts["none of these"] == 1
    assert any("none of these: carburettor" in note for note in run.result.notes)
    table = pl.read_parquet(run.path("groups.parquet"))
    assert table["label"].to_list() == ["apple", "oak", "whale", "fern", "none of these"]
    assert table["names"].to_list() == [3, 4, 3, 0, 1]
    inputs = json.loads((made.directory / "provenance.json").read_text())["inputs"]
    assert ("groups", "groups.csv") in [(one["role"], one["file"]) for one in inputs]
    moves = ("action: move, names: [carburettor], to: fern", "action: move, names: [red oak], to: none of these")
    review = ReviewConfig((write_decisions(tmp_path / "ann.yaml", *moves),))
    decided = build([*THINGS, "elm", "carburettor"], levels=levels, review=review)
    moved = {row["name"]: (row["group"], row["top"]) for row in labels(decided)}
    assert moved == expected | {"carburettor": ("fern", "plant"), "red oak": ("", "")}


# -- taxonomies --------------------------------------------------------------------------------------------------------

LINKS = """child,parent
red apple,fruit
green apple,fruit
old apple,fruit
fruit,food
oak,tree
red oak,tree
dry oak,tree
tree,plant
blue whale,whale
killer whale,whale
whale,animal
"""


@pytest.fixture
def links(tmp_path):
    (tmp_path / "links.csv").write_text(LINKS)
    return tmp_path / "links.csv"


def test_levels_of_a_taxonomy_are_used_unchanged_and_decisions_change_them(build, links, tmp_path):
    options = {
        "taxonomy": TreeConfig(links, tree_use="levels", cut="root:1,0"),
        "levels": LevelsConfig(("thing", "sort", "realm")),
    }
    made = build([*THINGS, "zebra"], **options)
    rows = {row["name"]: (row["sort"], row["realm"]) for row in labels(made)}
    assert rows["red apple"] == ("fruit", "food")
    assert rows["killer whale"] == rows["whale"] == ("whale", "animal")
    assert set(rows) == set(THINGS)
    assert Hierarchy.from_parquet(made.directory / "hierarchy.parquet").num_classes == (9, 3, 3)
    dropped = pl.read_parquet(made.directory / "dropped.parquet")
    assert dropped.select("id", "stage", "reason").rows() == [("zebra", "clean", "not-in-tree")]
    assert "note: not in the tree: zebra." in build_table(made)
    assert "The groups are classes of the given ta" in (made.directory / "report.html").read_text()
    assert has_given_levels(made.directory)
    links.write_text(LINKS.replace("oak,tree", "oak,fruit"))
    file = write_decisions(tmp_path / "ann.yaml", "action: move, names: [blue whale], to: fruit")
    changed = build([*THINGS, "zebra"], review=ReviewConfig((file,)), **options)
    moved = dict.fromkeys(("oak", "red oak", "dry oak", "blue whale"), ("fruit", "food"))
    assert {row["name"]: (row["sort"], row["realm"]) for row in labels(changed)} == rows | moved


# -- evidence ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def weigh(build, monkeypatch):
    """Return a function that builds names with descriptions and returns the evidence stage and its sources."""
    monkeypatch.setattr(pretrained, "SbertEncoder", LengthEncoder)
    kinds = {"oak": "a tree with leaves", "lake": "a body of water", "whale": "an animal of the sea"}
    names = [f"{what} {kind}" for kind in kinds for what in ("red", "old", "blue", "dry", "tiny", "wild")]
    rows = [f"{name},{kinds[name.split()[1]] if place % 5 else ''}" for place, name in enumerate(names)]

    def make(*asked, encoder="sbert:lengths"):
        options = {"embed": EmbedConfig(encoder), "evidence": EvidenceConfig(asked), "cluster": THREE}
        ran = build(["name,description", *rows], **options).stages["evidence"]
        return ran, [block["name"] for block in ran.result.details["blocks"]]

    return make


def test_evidence_stage_writes_features_per_source_and_reports_requested_sources_that_the_names_lack(weigh):
    ran, sources = weigh()
    evidence = read_evidence(ran.directory)
    assert sources == ["text", "wording", "descriptions"] == [block.name for block in evidence.blocks]
    assert (~evidence.blocks[2].known).sum() == 4, "every fifth name has no description"
    np.testing.assert_array_equal(np.load(ran.path("rows.npy")), evidence.joint())
    np.testing.assert_array_equal(np.load(ran.path("meaning.npy")), evidence.joint(form=0))
    assert weigh("none")[1] == ["text"]
    ran, sources = weigh("descriptions", "classes", encoder="lexical")
    assert sources == ["text", "descriptions"]
    assert ran.result.notes[0] == "--evidence classes: these names have no such evidence."
    assert weigh(encoder="lexical")[1] == ["text", "descriptions"], "the lexical encoder already uses the wording"
