"""hgld verify on what a dataset says about itself: labels, counts, groups, keys, and what splits share."""

import json

import polars as pl
import pytest

from hgld import Hierarchy
from hgld.data import format as files
from hgld.data import index as index_file
from hgld.pipelines.check.verify import verify
from hgld.pipelines.stage import silent
from tests.pipelines.tiny_shards import (
    TRAIN,
    TinyShards,
    findings,
    index_of,
    picture,
    rewrite_index,
    rewrite_tar,
    write_manifest,
)


@pytest.fixture
def root(tmp_path):
    return TinyShards().write(tmp_path / "tiny")


# -- labels -----------------------------------------------------------------------------------------------------------


def test_two_swapped_labels_in_the_index(root):
    index = index_of(root)
    place = index["split"].to_list().index("train")
    labels = index["species"].to_list()
    labels[place], labels[place + 4] = labels[place + 4], labels[place]
    rewrite_index(root, index.with_columns(species=pl.Series(labels, dtype=pl.Int32)))
    found = findings(root)
    swapped = found.filter(kind="labels")
    assert set(swapped["member"]) == {index["key"][place], index["key"][place + 4]}
    assert swapped["found"][0] == "labels 0, 0"
    assert swapped["expected"][0] == "labels 2, 0"
    assert set(found["kind"]) == {"labels", "class_run", "group-size"}


def test_two_swapped_labels_in_a_tar(root):
    first, second = index_of(root).filter(shard=TRAIN)["key"][0], index_of(root).filter(shard=TRAIN)["key"][2]

    def swap(members):
        facts = dict(members)
        one, two = (json.loads(facts[f"{key}.json"]) for key in (first, second))
        one["labels"], two["labels"] = two["labels"], one["labels"]
        facts |= {
            f"{key}.json": json.dumps(j, separators=(",", ":")).encode() for key, j in ((first, one), (second, two))
        }
        return list(facts.items())

    rewrite_tar(root / TRAIN, swap)
    found = findings(root)
    assert set(found["kind"]) == {"sha256", "labels", "names"}
    for kind in ("labels", "names"):
        assert set(found.filter(kind=kind)["member"]) == {first, second}


def test_labels_against_the_hierarchy(root):
    tree = Hierarchy.from_parquet(root / files.HIERARCHY)
    parents = tree.parents[0].copy()
    parents[2] = 1
    Hierarchy(tree.levels, tree.names, (parents,)).to_parquet(root / files.HIERARCHY)
    found = findings(root).filter(kind="hierarchy")
    assert set(found["member"]) == set(index_of(root).filter(species=2)["key"])
    assert found["found"][0] == "species 2 under family 0"
    assert found["expected"][0] == "under family 1"


def test_labels_beyond_the_hierarchy(root):
    tree = Hierarchy.from_parquet(root / files.HIERARCHY)
    smaller = Hierarchy(tree.levels, (tree.names[0][:3], tree.names[1]), (tree.parents[0][:3],))
    smaller.to_parquet(root / files.HIERARCHY)
    found = findings(root).filter(kind="hierarchy")
    assert set(found["member"]) == set(index_of(root).filter(pl.col("species") >= 3)["key"])
    assert set(found["expected"]) == {"species below 3"}


def test_names_against_the_hierarchy(root):
    tree = Hierarchy.from_parquet(root / files.HIERARCHY)
    Hierarchy(tree.levels, (("renamed", *tree.names[0][1:]), tree.names[1]), tree.parents).to_parquet(
        root / files.HIERARCHY
    )
    found = findings(root).filter(kind="names")
    assert set(found["member"]) == set(index_of(root).filter(species=0)["key"])
    assert found["expected"][0] == "called renamed"


def test_levels_that_differ(root):
    frame = index_of(root).rename({"family": "genus"})
    index_file.write_index(frame, root / files.INDEX, ("species", "genus"))
    write_manifest(root, index_of(root).rename({"genus": "family"}), 2, {})
    found = findings(root)
    assert found.select("kind", "shard").rows() == [("levels", files.INDEX)]


# -- counts, groups, keys ---------------------------------------------------------------------------------------------


def changed_manifest(root, change):
    facts = json.loads((root / files.MANIFEST).read_text())
    change(facts)
    (root / files.MANIFEST).write_text(json.dumps(facts))


def test_counts_that_differ(root):
    def change(facts):
        facts["splits"]["train"]["classes"]["species"] = 9
        facts["shards"][0]["items"] = 5

    changed_manifest(root, change)
    found = findings(root)
    assert set(found["kind"]) == {"counts"}
    assert set(found["expected"]) == {"9 classes of species", "5 items"}


def test_a_protocol_that_there_is_not(root):
    changed_manifest(root, lambda facts: facts.update(protocol="so"))
    found = findings(root)
    assert found.select("kind", "found").rows() == [("protocol", "so")]
    assert "sop" in found["expected"][0]


def test_a_shard_that_the_manifest_does_not_name(root):
    changed_manifest(root, lambda facts: facts["shards"].pop())
    found = findings(root)
    assert set(found["kind"]) == {"stray-file", "counts"}


def test_boxes_that_differ(tmp_path):
    root = TinyShards(boxes=True).write(tmp_path / "tiny")
    index = index_of(root)
    rewrite_index(root, index.with_columns(box_left=pl.col("box_left") + 1))
    found = findings(root)
    assert set(found["kind"]) == {"box"}
    assert found.height == index["box_left"].count()
    assert found.row(0, named=True)["found"] == "box 1, 2, 30, 20"


def test_groups_smaller_than_promised(root):
    changed_manifest(root, lambda facts: facts.update(group_size=3))
    found = findings(root)
    assert set(found["kind"]) == {"group-size"}
    assert found["found"][0] == "a group of 2"
    assert found.height == 6


def test_keys_of_tables(root):
    index = index_of(root)
    key = index["key"][0]
    pl.DataFrame({"list": ["small"] * 2, "key": [key, "gone"]}).write_parquet(root / files.LISTS)
    verdicts = {"query": [key, "lost"], "item": [key, "absent"], "verdict": ["easy", "hard"]}
    pl.DataFrame(verdicts).write_parquet(root / files.JUDGEMENTS)
    rejected = {"key": [key], "split": ["test"], "file": ["x"], "reason": ["truncated"], "detail": [""]}
    pl.DataFrame(rejected).write_parquet(root / files.REJECTED)
    write_manifest(root, index, 2, {"disjoint": True})
    found = findings(root)
    assert set(found.select("kind", "shard", "member").rows()) == {
        ("unknown-key", files.LISTS, "gone"),
        ("unknown-key", files.JUDGEMENTS, "lost"),
        ("unknown-key", files.JUDGEMENTS, "absent"),
        ("rejected-key", files.REJECTED, key),
    }


# -- between splits ---------------------------------------------------------------------------------------------------


def shared_class(tmp_path, **provenance):
    tiny = TinyShards()
    tiny.add("test", 0, 1, picture(60))
    return tiny.write(tmp_path / "tiny", **provenance)


def test_shared_classes_are_a_note_where_none_promised_otherwise(tmp_path):
    found = verify(shared_class(tmp_path, disjoint=False), progress=silent)
    assert not len(found.findings)
    assert found.notes == ("1 classes of species are in train and in test.",)
