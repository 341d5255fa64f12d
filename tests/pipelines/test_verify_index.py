"""``hgld verify`` reports contradictions between index, hierarchy, manifest and tars, and between splits."""

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
    rewrite_index,
    rewrite_tar,
    write_manifest,
)

# -- single changes -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "split", "column", "changed"),
    [
        ("place", "train", "size", pl.col("size") - 1),
        ("item-sha256", "test", "sha256", pl.lit("0" * 64)),
        ("header", "train", "width", pl.col("width") + 1),
        ("suffix", "test", "suffix", pl.lit("jpeg")),
        ("class_run", "train", "class_run", pl.col("class_run") + 50),
        ("duplicate_of", "test", "duplicate_of", pl.lit("s0/img_000")),
        ("source", "train", "source", pl.lit("elsewhere.jpg")),
    ],
)
def test_changed_cell_of_the_index_is_reported_as_one_finding(root, kind, split, column, changed):
    index = index_of(root)
    key = index.filter(split=split, suffix="jpg")["key"][-1]
    cell = pl.when(pl.col("key") == key).then(changed).otherwise(pl.col(column)).cast(index.schema[column])
    rewrite_index(root, index.with_columns(cell.alias(column)))
    assert findings(root).select("kind", "split", "member").rows() == [(kind, split, key)]


@pytest.mark.parametrize("split", ["gallery", "val"])
def test_training_classes_and_images_in_other_splits_are_reported(tmp_path, split):
    tiny = TinyShards(png=False)
    for item in tiny.items[12:]:
        item |= {"split": split, "shard": files.shard_name(split, 0)}
    shared = tiny.items[14]
    shared["data"] = tiny.items[5]["data"]
    found = findings(tiny.write(tmp_path / "image"))
    assert found.select("kind", "split", "member").rows() == [("leakage", split, shared["key"])]
    assert tiny.items[5]["key"] in found["found"][0]
    shared |= {"data": tiny.items[13]["data"], "labels": [0, 0], "names": ["species 0", "cat"]}
    root = tiny.write(tmp_path / "class")
    if split == "val":  # train and val may share classes
        assert findings(root).is_empty()
        return
    found = findings(root)
    assert found.select("kind", "split").rows() == [("disjoint", split)]
    assert "4 items in train, 1 here" in found["found"][0]
    write_manifest(root, index_of(root), 2, {"disjoint": False})
    found = verify(root, progress=silent)
    assert (found.findings.height, found.notes) == (0, (f"1 classes of species are in train and in {split}.",))


def tree_with(root, names=None, parents=None):
    """Replace the names or the parents of the finest level in the hierarchy file."""
    tree = Hierarchy.from_parquet(root / files.HIERARCHY)
    finest = (names or (lambda own: own))(tree.names[0])
    above = (parents or (lambda own: own))(tree.parents[0][: len(finest)].copy())
    Hierarchy(tree.levels, (finest, tree.names[1]), (above,)).to_parquet(root / files.HIERARCHY)


def with_other_parent(parents):
    parents[2] = 1
    return parents


def manifest_with(change):
    """Return a function that applies ``change`` to ``dataset.json``."""

    def rewrite(root):
        facts = json.loads((root / files.MANIFEST).read_text())
        change(facts)
        (root / files.MANIFEST).write_text(json.dumps(facts))

    return rewrite


def with_wrong_counts(facts):
    facts["splits"]["train"]["classes"]["species"] = 9


def with_other_level(root):
    frame = index_of(root).rename({"family": "genus"})
    index_file.write_index(frame, root / files.INDEX, ("species", "genus"))


CHANGED = [  # (function that changes a dataset, type of finding, found, expected, affected items or None)
    (
        lambda root: tree_with(root, parents=with_other_parent),
        *("hierarchy", "species 2 under family 0", "under family 1", pl.col("species") == 2),
    ),
    (
        lambda root: tree_with(root, lambda names: names[:3]),
        *("hierarchy", "species 4", "species below 3", pl.col("species") >= 3),
    ),
    (
        lambda root: tree_with(root, lambda names: ("renamed", *names[1:])),
        *("names", "species 0 is called species 0", "called renamed", pl.col("species") == 0),
    ),
    (manifest_with(with_wrong_counts), "counts", "3 classes of species in the index", "9 classes of species", None),
    (manifest_with(lambda facts: facts.update(protocol="so")), "protocol", "so", "sop", None),
    (manifest_with(lambda facts: facts["shards"].pop()), "counts", "6 items in the index", "a shard of", None),
    (
        manifest_with(lambda facts: facts.update(group_size=3)),
        "group-size",
        "a group of 2",
        "at least 3 adjacent items",
        None,
    ),
    (with_other_level, "levels", "levels species, genus", "levels species, family, as dataset.json says", None),
]


@pytest.mark.parametrize(("change", "kind", "found", "expected", "items"), CHANGED)
def test_hierarchy_and_manifest_that_contradict_the_index_are_reported(root, change, kind, found, expected, items):
    index = index_of(root)
    change(root)
    said = findings(root).filter(kind=kind)
    assert found in said["found"].to_list()
    assert any(expected in text for text in said["expected"])
    if items is not None:
        assert set(said["member"]) == set(index.filter(items)["key"])


def test_labels_swapped_in_the_index_or_in_a_tar_are_reported(root):
    index = index_of(root)
    first, second = index.filter(shard=TRAIN)["key"][0], index.filter(shard=TRAIN)["key"][2]
    swapped = pl.col("key").replace_strict({first: 1, second: 0}, default=pl.col("species"), return_dtype=pl.Int32)
    rewrite_index(root, index.with_columns(species=swapped))
    found = findings(root).filter(kind="labels").sort("member")
    assert set(found["member"]) == {first, second}
    assert found.select("found", "expected").row(0) == ("labels 0, 0", "labels 1, 0")
    rewrite_index(root, index)

    def swap(members):
        facts = dict(members)
        one, two = (json.loads(facts[f"{key}.json"]) for key in (first, second))
        one["labels"], two["labels"] = two["labels"], one["labels"]
        both = ((first, one), (second, two))
        return list((facts | {f"{key}.json": json.dumps(j, separators=(",", ":")).encode() for key, j in both}).items())

    rewrite_tar(root / TRAIN, swap)
    found = findings(root)
    assert set(found["kind"]) == {"sha256", "labels", "names"}
    for kind in ("labels", "names"):
        assert set(found.filter(kind=kind)["member"]) == {first, second}


def test_boxes_that_differ_from_the_tars_are_reported(tmp_path):
    root = TinyShards(boxes=True).write(tmp_path / "tiny")
    index = index_of(root)
    rewrite_index(root, index.with_columns(box_left=pl.col("box_left") + 1))
    found = findings(root)
    assert set(found["kind"]) == {"box"}
    assert found.height == index["box_left"].count()
    assert found.row(0, named=True)["found"] == "box 1, 2, 30, 20"


def test_keys_of_tables_that_the_index_lacks_are_reported(root):
    index = index_of(root)
    key = index["key"][0]
    pl.DataFrame({"list": ["small"] * 2, "key": [key, "gone"]}).write_parquet(root / files.LISTS)
    verdicts = {"query": [key, "lost"], "item": [key, "absent"], "verdict": ["easy", "hard"]}
    pl.DataFrame(verdicts).write_parquet(root / files.JUDGEMENTS)
    rejected = {"key": [key], "split": ["test"], "file": ["x"], "reason": ["truncated"], "detail": [""]}
    pl.DataFrame(rejected).write_parquet(root / files.REJECTED)
    write_manifest(root, index, 2, {"disjoint": True})
    assert set(findings(root).select("kind", "shard", "member").rows()) == {
        ("unknown-key", files.LISTS, "gone"),
        ("unknown-key", files.JUDGEMENTS, "lost"),
        ("unknown-key", files.JUDGEMENTS, "absent"),
        ("rejected-key", files.REJECTED, key),
    }
