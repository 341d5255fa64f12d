"""Builds from names with a taxonomy of these: as evidence, and as the levels themselves."""

import json

import polars as pl
import pytest

from hgld import Hierarchy
from hgld.pipelines.hierarchy.build import build_table
from hgld.pipelines.hierarchy.config import (
    ClusterConfig,
    EvidenceConfig,
    LevelsConfig,
    ReviewConfig,
    TreeConfig,
)
from hgld.pipelines.hierarchy.groups.given import has_given_levels
from tests.pipelines.hierarchy_build.class_lists import THINGS, labels

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


KINDS = {"tree": "oak", "fruit": "apple", "whale": "whale"}  # words of their names


@pytest.fixture
def links(tmp_path):
    (tmp_path / "links.csv").write_text(LINKS)
    return tmp_path / "links.csv"


def test_the_levels_of_a_tree_are_taken_as_they_are(build, links, tmp_path):
    tree = TreeConfig(links, tree_use="levels", cut="root:1,0")
    made = build([*THINGS, "zebra"], taxonomy=tree, levels=LevelsConfig(("thing", "sort", "realm")))
    rows = {row["name"]: (row["sort"], row["realm"]) for row in labels(made)}
    assert rows["red apple"] == ("fruit", "food")
    assert rows["killer whale"] == ("whale", "animal")
    assert rows["whale"] == ("whale", "animal")
    assert "zebra" not in rows
    assert len(rows) == len(THINGS)
    assert Hierarchy.from_parquet(made.directory / "hierarchy.parquet").num_classes == (9, 3, 3)
    dropped = pl.read_parquet(made.directory / "dropped.parquet")
    assert dropped.select("id", "stage", "reason").rows() == [("zebra", "clean", "not-in-tree")]
    assert "note: not in the tree: zebra." in build_table(made)
    page = (made.directory / "report.html").read_text()
    assert "They are classes of the tree that was given" in page
    again = build([*THINGS, "zebra"], taxonomy=tree, levels=LevelsConfig(("thing", "sort", "realm")))
    assert not any(stage.was_run for stage in again.stages.values())
    links.write_text(LINKS.replace("oak,tree", "oak,fruit"))
    changed = build([*THINGS, "zebra"], taxonomy=tree, levels=LevelsConfig(("thing", "sort", "realm")))
    assert {row["name"]: row["sort"] for row in labels(changed)}["oak"] == "fruit"


@pytest.mark.slow  # an end-to-end build; its parts have fast tests
def test_decisions_are_applied_to_the_levels_of_a_tree(build, links, tmp_path):
    entry = '{action: move, names: [red oak], to: fruit, who: ann, when: "2026-11-21T09:00:00Z", why: "no"}'
    file = tmp_path / "ann.yaml"
    file.write_text(f"schema_version: 1\nrole: annotator\ndecisions:\n- {entry}\n")
    made = build(THINGS, taxonomy=TreeConfig(links, tree_use="levels"), review=ReviewConfig((file,)))
    assert list(labels(made)[0]) == ["id", "name", "depth 1", "depth 0"]
    moved = {row["name"]: (row["depth 1"], row["depth 0"]) for row in labels(made)}["red oak"]
    assert moved == ("fruit", "food")
    others = {row["name"]: row["depth 1"] for row in labels(made) if row["name"] != "red oak"}
    assert others == {name: kind for kind in ("tree", "fruit", "whale") for name in others if KINDS[kind] in name}
    assert has_given_levels(made.directory)
    assert not has_given_levels(build(THINGS, out="found").directory)


@pytest.mark.slow  # an end-to-end build; its parts have fast tests
def test_taxonomy_as_evidence_sets_groups_and_their_names(build, tmp_path):
    words = ["ibis", "carp", "pine", "opal", "rook", "pike", "elm", "mica", "tern", "tench", "yew", "jade"]
    above = ["bird", "fish", "tree", "rock"] * 3
    file = tmp_path / "edges.csv"
    rows = [
        *zip(words, above, strict=True),
        ("bird", "animal"),
        ("fish", "animal"),
        ("tree", "plant"),
        ("rock", "thing"),
    ]
    rows += [("animal", "thing"), ("plant", "thing")]
    file.write_text("child,parent\n" + "".join(f"{a},{b}\n" for a, b in rows))
    config = {"levels": LevelsConfig(top=("animal", "plant")), "taxonomy": TreeConfig(file)}
    without = {row["name"]: row["group"] for row in labels(build(words, cluster=ClusterConfig(groups=4)))}
    made = build(words, cluster=ClusterConfig(groups=4), evidence=EvidenceConfig(("classes",)), **config)
    groups = {row["name"]: (row["group"], row["top"]) for row in labels(made)}
    tops = {"bird": "animal", "fish": "animal", "tree": "plant", "rock": ""}  # the tree says that it is neither
    assert groups == {word: (kind, tops[kind]) for word, kind in zip(words, above, strict=True)}
    assert without != {word: kind for word, (kind, _) in groups.items()}
    matches = pl.read_parquet(made.stages["scrape"].path("matches.parquet"))
    assert matches["how"].unique().to_list() == ["by name"]
    provenance = json.loads((made.directory / "provenance.json").read_text())
    assert [(source["role"], source["file"]) for source in provenance["inputs"]][1:] == [("tree", "edges.csv")]
