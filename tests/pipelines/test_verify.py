"""``hgld verify`` reports damage and contradictions, and follows no link."""

import json
import os
import tarfile

import polars as pl
import pytest

from hgld import Hierarchy
from hgld.data import format as files
from hgld.data import index as index_file
from hgld.data.tar import END_OF_ARCHIVE
from hgld.errors import InputError, SchemaError
from hgld.pipelines.check.verify import verify
from hgld.pipelines.stage import silent
from tests.pipelines.tiny_shards import (
    LEVELS,
    TRAIN,
    TinyShards,
    findings,
    flip,
    index_of,
    picture,
    rewrite_index,
    rewrite_tar,
    write_manifest,
)
from tests.pipelines.toy_release import bytes_of
from tests.rows import each_row


@pytest.mark.parametrize(("boxes", "workers"), [(False, 1), pytest.param(True, 2, marks=pytest.mark.slow)])
def test_verify_of_an_intact_dataset_finds_and_changes_nothing(tmp_path, boxes, workers):
    root = TinyShards(boxes=boxes).write(tmp_path / "tiny")
    before = bytes_of(root)
    found = verify(root, decode=True, workers=workers, progress=silent)
    assert found.findings.to_dicts() == []
    assert (found.items, found.shards, found.notes) == (16, 3, ())
    assert bytes_of(root) == before


# -- the tars ---------------------------------------------------------------------------------------------------------


def test_truncated_tar_is_reported_with_its_lost_members(root):
    shard = root / TRAIN
    row = index_of(root).filter(shard=TRAIN).row(3, named=True)
    shard.write_bytes(shard.read_bytes()[: row["offset"] + 100])
    found = findings(root)
    assert dict(found["kind"].value_counts().iter_rows()) == {
        "size": 1,
        "sha256": 1,
        "damaged-tar": 1,
        "missing-member": 3,
    }
    damaged = found.filter(kind="damaged-tar").row(0, named=True)
    assert damaged["shard"] == TRAIN
    assert damaged["member"] == f"{row['key']}.jpg"
    assert "cut off" in damaged["found"]
    assert found.filter(kind="missing-member")["member"].to_list() == index_of(root)["key"][7:10].to_list()


def without(name):
    return lambda root, key: rewrite_tar(root / TRAIN, lambda members: [m for m in members if m[0] != f"{key}.{name}"])


def with_more(root, _):
    json_of = files.item_json([0, 0], ["species 0", "cat"], "train", "", LEVELS)
    more = [("s0/new.jpg", picture(90)), ("s0/new.json", json_of)]
    rewrite_tar(root / TRAIN, lambda members: [*members, *more])


def flipped(where):
    """Return a function that flips the byte at this offset in the image."""

    def damage(root, key):
        flip(root / TRAIN, index_of(root).filter(key=key)["offset"][0] + where)

    return damage


TABLES = (files.INDEX, files.HIERARCHY, files.REJECTED)
DAMAGE = {  # function that damages a dataset or one item: expected types of findings
    "a byte of an image": (flipped(640), {"sha256", "item-sha256"}),
    "a byte of a header": (flipped(-512), {"sha256", "damaged-tar", "no-image", "missing-member"}),
    "no image": (without("jpg"), {"size", "sha256", "no-image", "missing-member", "place"}),
    "no JSON": (without("json"), {"size", "sha256", "no-json", "place"}),
    "one item more": (with_more, {"size", "sha256", "unindexed-member"}),
    "a card by hand": (lambda root, _: (root / files.CARD).write_text("by another hand"), {"size", "sha256"}),
    "no tables": (lambda root, _: [(root / name).write_bytes(b"torn") for name in TABLES], {"size", "sha256"}),
    **{
        f"no {name}": (lambda root, _, name=name: (root / name).unlink(), {"missing-file"})
        for name in (TRAIN, files.HIERARCHY)
    },
}


@pytest.mark.parametrize("what", DAMAGE)
def test_damaged_files_are_reported(root, what):
    damage, expected = DAMAGE[what]
    key = index_of(root).filter(shard=TRAIN)["key"][2]
    damage(root, key)
    found = findings(root)
    unreadable = found.filter(kind="unreadable-file")["shard"].to_list()
    assert set(found["kind"]) - {"unreadable-file"} == expected
    assert unreadable == (list(TABLES) if what == "no tables" else [])
    named = found.filter(pl.col("member").is_not_null() & (pl.col("kind") != "place"))["member"]
    assert {name.removesuffix(".jpg") for name in named} <= {"s0/new" if what == "one item more" else key, ""}


@each_row(
    ("data", "changes", "expected"),
    [
        (picture(4)[:-200], {}, "truncated"),
        (picture(4, form="PNG"), {"suffix": "jpg"}, "wrong-suffix"),
    ],
)
def test_undecodable_images_are_found_only_with_decode(tmp_path, data, changes, expected):
    tiny = TinyShards()
    tiny.items[4] |= {"data": data, **changes}
    root, key = tiny.write(tmp_path / "tiny"), tiny.items[4]["key"]
    assert findings(root)["kind"].to_list() == ["wrong-suffix"] * bool(changes)
    found = findings(root, decode=True)
    assert found["kind"].to_list() == [expected]
    assert found["member"][0].startswith(f"{key}.")


@pytest.mark.parametrize(
    ("name", "kind", "stated"),
    [
        ("../../evil.jpg", tarfile.REGTYPE, "leads out of the folder"),
        ("s0/evil.jpg", tarfile.SYMTYPE, "symbolic link"),
    ],
)
def test_hostile_tar_members_are_reported_and_not_followed(root, name, kind, stated):
    secret = root.parent / "secret.jpg"
    secret.write_bytes(picture(99))
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, str(secret)
    path = root / TRAIN
    path.write_bytes(path.read_bytes()[:-1024] + info.tobuf() + END_OF_ARCHIVE)
    before = sorted(root.parent.rglob("*"))
    found = findings(root, decode=True)
    assert set(found["kind"]) == {"size", "sha256", "unsafe-path"}
    named = found.filter(kind="unsafe-path").row(0, named=True)
    assert (named["shard"], named["member"]) == (TRAIN, name)
    assert stated in named["found"]
    assert sorted(root.parent.rglob("*")) == before


def with_link(root, name):
    (root / name).rename(root.parent / "elsewhere")
    (root / name).symlink_to(root.parent / "elsewhere")


def with_pipe(root, name):
    (root / name).unlink()
    os.mkfifo(root / name)


@pytest.mark.parametrize(
    ("name", "change", "said"), [(TRAIN, with_link, "symbolic link"), (files.CARD, with_pipe, "not a regular file")]
)
def test_links_and_pipes_in_place_of_files_are_reported_and_not_followed(root, name, change, said):
    change(root, name)
    found = findings(root)
    assert found.select("kind", "shard").rows() == [("unreadable-file", name)]
    assert said in found["found"][0]


def test_unknown_files_are_reported(root):
    (root / "train-000002.tar").write_bytes(END_OF_ARCHIVE)
    (root / "notes").mkdir()
    (root / "link").symlink_to(root.parent)
    found = findings(root)
    assert found["kind"].to_list() == ["stray-file"] * 3
    assert found["shard"].to_list() == ["link", "notes", "train-000002.tar"]
    assert [text.split(" that")[0] for text in found["found"]] == ["a symbolic link", "a folder", "a file"]


# -- contradictions between index, hierarchy, manifest and tars, and between splits -----------------------------------


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


@each_row("split", ["gallery", "val"])
def test_training_classes_and_images_in_other_splits_are_reported(tmp_path, split):
    tiny = TinyShards(with_png=False)
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
    write_manifest(root, index_of(root), disjoint=False)
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
    write_manifest(root, index)
    assert set(findings(root).select("kind", "shard", "member").rows()) == {
        ("unknown-key", files.LISTS, "gone"),
        ("unknown-key", files.JUDGEMENTS, "lost"),
        ("unknown-key", files.JUDGEMENTS, "absent"),
        ("rejected-key", files.REJECTED, key),
    }


# -- folders without a dataset, and the command -----------------------------------------------------------------------


def test_folder_without_a_readable_manifest_is_refused(tmp_path):
    with pytest.raises(InputError, match=r"no dataset\.json"):
        verify(tmp_path, progress=silent)
    (tmp_path / files.MANIFEST).write_text("{}")
    with pytest.raises(SchemaError, match="schema version is None"):
        verify(tmp_path, progress=silent)
    (tmp_path / files.MANIFEST).unlink()
    (tmp_path / files.MANIFEST).symlink_to(__file__)
    with pytest.raises(InputError, match="symbolic link"):
        verify(tmp_path, progress=silent)


def test_verify_command_prints_findings_and_sets_the_exit_code(hgld, output, refusal, root, tmp_path):
    assert "No errors found." in output("verify", root, said="")
    (root / "[red]evil\x1b.txt").write_text("")
    flip(root / TRAIN, 1000)
    code, out, _ = hgld("verify", root, "--decode")
    assert code == 1
    assert "[red]evil\\x1b.txt" in out
    assert "\x1b" not in out
    assert TRAIN in out
    code, out, _ = hgld("verify", root, "--json")
    assert code == 1
    assert {finding["kind"] for finding in json.loads(out)["findings"]} >= {"stray-file", "sha256"}
    assert "hgld index" in refusal("verify", tmp_path)
