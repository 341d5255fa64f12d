"""``hgld index``: the rebuilt index equals the original; damaged items are excluded and listed."""

import json
import re
import shutil
from typing import Any

import polars as pl
import pytest

from hgld import Hierarchy
from hgld.data import format as files
from hgld.data import index as index_file
from hgld.errors import ConfigError, HierarchyError, InputError, StorageError
from hgld.pipelines.check.index import rebuild_index
from hgld.pipelines.stage import silent
from tests.faults.disk import counted_changes, failing_disk
from tests.pipelines.tiny_shards import FAMILIES, LEVELS, TinyShards, findings, index_of, picture, write_tar
from tests.pipelines.toy_release import bytes_of
from tests.rows import each_row


def rebuilt(root, **options):
    return rebuild_index(root, progress=silent, **options)


def test_rebuilt_index_equals_the_original_index(tmp_path):
    root = TinyShards(boxes=True).write(tmp_path / "tiny")
    before = bytes_of(root)
    for name in (files.INDEX, files.HIERARCHY):
        (root / name).unlink()
    result = rebuilt(root)
    after = bytes_of(root)
    assert after.keys() == before.keys()
    assert {name for name in before if after[name] != before[name]} == {files.MANIFEST}
    old = json.loads(before[files.MANIFEST])
    new = json.loads(after[files.MANIFEST])
    assert new["provenance"].pop("rebuilt")["from"] == "tars"
    assert new == old
    assert not len(result.rejected)
    assert result.notes == ()


def test_index_is_built_from_tars_without_a_manifest(tmp_path):
    index = TinyShards().write_tars(tmp_path)
    result = rebuilt(tmp_path)
    schema = index_file.index_schema(LEVELS, sources=True)
    assert index_of(tmp_path).equals(index.select(schema.names()).cast(schema))
    assert result.manifest.group_size == 2
    assert result.manifest.name == tmp_path.name
    tree = Hierarchy.from_parquet(tmp_path / files.HIERARCHY)
    assert tree.names == (tuple(f"species {i}" for i in range(5)), FAMILIES)
    assert tree.parents[0].tolist() == [0, 1, 0, 1, 0]


def test_readable_index_is_replaced_only_with_force(root):
    before = bytes_of(root)
    with pytest.raises(ConfigError, match="--force"):
        rebuilt(root)
    assert bytes_of(root) == before
    rebuilt(root, force=True)
    (root / files.INDEX).write_bytes(b"torn")
    rebuilt(root)
    assert len(index_of(root)) == 16


# -- tars of other programs -------------------------------------------------------------------------------------------


def foreign_json(label=0, name="cat", **changes):
    return json.dumps({"labels": [label, 0], "names": [name, "animal"], "split": "train"} | changes).encode()


def foreign_tar(path, **changes):
    write_tar(path, [("a.jpeg", picture(0)), ("a.txt", b"a cat"), ("a.json", foreign_json(**changes))])


@each_row(
    ("in_json", "given", "expected"),
    [
        ({}, None, ("level0", "level1")),
        ({}, ("fine", "coarse"), ("fine", "coarse")),
        ({"levels": ["x", "y"]}, ("x", "y"), ("x", "y")),
    ],
)
def test_level_names_come_from_items_then_options_then_numbers(tmp_path, in_json, given, expected):
    foreign_tar(tmp_path / "pets-0001.tar", **in_json)
    result = rebuilt(tmp_path, levels=given)
    assert result.manifest.levels == expected
    assert index_of(tmp_path).row(0, named=True)["suffix"] == "jpeg"
    assert result.notes == ("1 members that are neither image nor JSON were ignored.",)


def test_classes_without_names_get_their_number_as_name(tmp_path):
    members = [("a.jpg", picture(0)), ("a.json", foreign_json(2, "", names=["", ""]))]
    write_tar(tmp_path / "x.tar", members)
    rebuilt(tmp_path)
    assert Hierarchy.from_parquet(tmp_path / files.HIERARCHY).names == (("0", "1", "2"), ("0",))


# -- excluded items -----------------------------------------------------------------------------------------


JPG, JSON = picture(50), foreign_json()
BAD = {  # reason of exclusion: the excluded members
    "no-json": [("x.jpg", JPG)],
    "no-image": [("x.json", JSON)],
    "bad-json": [("x.jpg", JPG), ("x.json", b"{")],
    "undecodable": [("x.jpg", b"no image"), ("x.json", JSON)],
    "empty": [("x.jpg", b""), ("x.json", JSON)],
    "unsafe-path": [("../../x.jpg", JPG), ("../../x.json", JSON)],
    "duplicate-member": [("x.jpg", JPG), ("x.png", JPG), ("x.json", JSON)],
    "duplicate-key": [("a.jpg", JPG), ("a.json", JSON)],
    "other-split": [("x.jpg", JPG), ("x.json", foreign_json(split="test"))],
}


@each_row("reason", BAD)
def test_damaged_items_are_excluded_with_a_reason(tmp_path, reason):
    sound = [[(f"{key}.jpg", picture(i)), (f"{key}.json", foreign_json())] for i, key in enumerate("abc")]
    write_tar(tmp_path / "x.tar", [*sound[0], *sound[1], *BAD[reason], *sound[2]])
    result = rebuilt(tmp_path)
    assert index_of(tmp_path)["key"].to_list() == ["a", "b", "c"]
    assert set(result.rejected["reason"]) == {reason}
    kept = index_file.read_table(files.REJECTED, tmp_path / files.REJECTED)
    assert kept.sort("file").equals(result.rejected.sort("file"))
    assert result.manifest.rejected == {reason: len(kept)}
    assert all(name.startswith("x.tar/") for name in kept["file"])
    if reason == "other-split":
        assert findings(tmp_path).is_empty()


def item(key, *, seed=0, image=None, **changes):
    """Return the members of one item."""
    return [(f"{key}.jpg", picture(seed) if image is None else image), (f"{key}.json", foreign_json(**changes))]


NO_NAMES: dict[str, Any] = {"names": ["", ""]}
CONTRADICTIONS = [  # (items of x.tar, items of y.tar, --levels, expected words of the error)
    (
        [item("a")],
        [item("x", labels=[0], names=["cat"])],
        None,
        "number of labels is 2 in item 'a' of x.tar and 1 in item",
    ),
    ([item("a")], [item("x", name="dog")], None, "name of class 0 of 'level0' is 'cat' in item 'a' of x.tar and 'dog'"),
    (
        *([item("a")], [item("x", labels=[0, 1], names=["cat", "plant"])], None),
        "the class of 'level1' above class 0 of 'level0' is 0 in item 'a' of x.tar and 1 in item 'x' of y.tar",
    ),
    (
        *([item("a", levels=["fine", "coarse"])], [item("x", levels=["fine", "top"])], None),
        "the list of levels is 'fine, coarse' in item 'a' of x.tar and 'fine, top' in item 'x'",
    ),
    (  # a label in a small tar must not make hgld allocate gigabytes
        *([item("a", **NO_NAMES)], [item("b", labels=[7, (1 << 24) - 1], **NO_NAMES)], None),
        "y.tar has 'b' with label 16777215 at 'level1'; for 2 items, all levels together may have 1048776 classes",
    ),
    (
        [item("a", labels=[0] * 65, names=[""] * 65)],
        [],
        None,
        "the items have 65 labels; expected at least 1 and at most 64 labels",
    ),
    ([item("a")], [item("b", label=1)], None, "same name: 'cat'"),
    ([item("a")], [], ("one",), "1 names, but the items of"),
    ([item("a", levels=["x", "y"])], [], ("a", "b"), "the tars name the levels x,y"),
    ([item("a", image=b"no image")], [], None, "no usable item"),
]


@each_row(("first", "second", "levels", "said"), CONTRADICTIONS)
def test_contradictory_tars_are_refused_and_nothing_is_written(tmp_path, first, second, levels, said):
    for name, items in (("x.tar", first), ("y.tar", second)):
        write_tar(tmp_path / name, [member for members in items for member in members])
    with pytest.raises((ConfigError, HierarchyError, InputError), match=re.escape(said)):
        rebuilt(tmp_path, levels=levels)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["x.tar", "y.tar"]


def test_items_with_unknown_labels_do_not_contradict_other_items(tmp_path):
    items = [item("a"), item("b", labels=[0, -1], names=["cat", ""]), item("c", labels=[-1, 0], names=["", "animal"])]
    write_tar(tmp_path / "x.tar", [member for members in items for member in members])
    assert len(rebuilt(tmp_path).rejected) == 0


def test_folders_without_tars_are_refused(tmp_path):
    (tmp_path / "link.tar").symlink_to(tmp_path / "elsewhere.tar")
    for root in (tmp_path, tmp_path / "absent"):
        with pytest.raises(InputError, match="holds the tars"):
            rebuilt(root)


def test_image_with_a_wrong_suffix_is_indexed_and_reported(tmp_path):
    write_tar(tmp_path / "x.tar", [("a.jpg", picture(0, form="PNG")), ("a.json", foreign_json())])
    result = rebuilt(tmp_path)
    assert index_of(tmp_path)["suffix"].to_list() == ["jpg"]
    assert not len(result.rejected)
    assert "1 images are of another format" in result.notes[0]
    assert findings(tmp_path)["kind"].to_list() == ["wrong-suffix"]


def test_group_size_is_reduced_to_the_shortest_run_of_a_class(tmp_path):
    # each class has three items: three adjacent ones, or two adjacent ones and one elsewhere
    for number, (labels, size) in enumerate((((0, 0, 0, 1, 1, 1), 3), ((0, 0, 1, 1, 1, 0), 1))):
        folder = tmp_path / str(number)
        folder.mkdir()
        items = [item(f"{place}", seed=place, label=label, name=f"{label}") for place, label in enumerate(labels)]
        write_tar(folder / "x.tar", [member for members in items for member in members])
        assert rebuilt(folder).manifest.group_size == size


def test_excluded_items_of_an_earlier_build_stay_listed(root):
    earlier = {"key": "k", "split": "train", "file": "release/k.jpg", "reason": "truncated", "detail": "at 3"}
    pl.DataFrame([earlier]).write_parquet(root / files.REJECTED)
    assert rebuilt(root, force=True).manifest.rejected == {"truncated": 1}
    assert index_file.read_table(files.REJECTED, root / files.REJECTED).to_dicts() == [earlier]
    (root / files.REJECTED).write_bytes(b"torn")
    before = bytes_of(root)
    with pytest.raises(InputError, match="Move it out of the folder"):
        rebuilt(root, force=True)
    assert bytes_of(root) == before


def test_full_disk_leaves_the_dataset_unchanged(root, tmp_path):
    """No file may change before the first rename, which moves the earlier manifest away."""
    before = bytes_of(root)
    copy = shutil.copytree(root, tmp_path / "copy")
    with counted_changes(copy) as changes:
        rebuilt(copy, force=True)
    writes = changes.index("os.rename")
    assert writes == 6  # writes of the lock, three tables, croissant.json and the manifest
    for first in (1, writes):
        with failing_disk(root, first, "full"), pytest.raises(StorageError, match="Free space"):
            rebuilt(root, force=True)
        assert bytes_of(root) == before, f"change {first}"


def test_complete_items_of_a_truncated_tar_are_indexed(root):
    shard = root / "train-000001.tar"
    shard.write_bytes(shard.read_bytes()[: shard.stat().st_size // 2])
    result = rebuilt(root, force=True)
    assert "damaged-tar" in set(result.rejected["reason"])
    left = index_of(root).filter(pl.col("shard") == shard.name)
    assert 0 < len(left) < 6
    assert len(index_of(root)) == 10 + len(left)
