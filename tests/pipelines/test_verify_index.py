"""hgld verify on what a dataset says about itself: labels, counts, groups, keys, and what splits share."""

import io
import json
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from hgld import Hierarchy
from hgld.cli import main
from hgld.data import format as files
from hgld.data import index as index_file
from hgld.data.images import read_header
from hgld.errors import ConfigError, TableError
from hgld.pipelines.check.near_duplicates import next_nearest, perceptual_hash
from hgld.pipelines.check.verify import verify
from hgld.pipelines.stage import silent
from tests.pipelines.tiny_shards import (
    TRAIN,
    TinyShards,
    dataset_with,
    findings,
    index_of,
    kinds,
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


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("class_run", 7),
        ("duplicate_of", "s0/img_000"),
        ("width", 9),
        ("orientation", 8),
        ("suffix", "gif"),
        ("split", "val"),
    ],
)
def test_columns_that_are_not_so(root, column, value):
    index = index_of(root)
    values = index[column].to_list()
    place = index["split"].to_list().index("train") + 1
    values[place] = value
    rewrite_index(root, index.with_columns(pl.Series(column, values, dtype=index.schema[column])), seal=False)
    kind = {"width": "header", "orientation": "header"}.get(column, column)
    assert kind in kinds(root)
    assert findings(root).filter(kind=kind)["member"].to_list() == [index["key"][place]]


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


def test_classes_that_training_and_test_share(tmp_path):
    found = findings(shared_class(tmp_path))
    assert found.select("kind", "split", "member").rows() == [("disjoint", "test", "species 1")]


def test_shared_classes_are_a_note_where_none_promised_otherwise(tmp_path):
    found = verify(shared_class(tmp_path, disjoint=False), progress=silent)
    assert not len(found.findings)
    assert found.notes == ("1 classes of species are in train and in test.",)


def leaking(tmp_path, data):
    tiny = TinyShards()
    key = tiny.add("test", 0, 5, data)["key"]
    return tiny.write(tmp_path / "tiny"), key, tiny.items[0]["key"]


def test_images_that_training_and_test_share(tmp_path):
    root, key, trained = leaking(tmp_path, picture(0))
    found = findings(root, near=True)
    assert found.select("kind", "split", "member", "found").rows() == [
        ("leakage", "test", key, f"the bytes of {trained} of train")
    ]


def test_images_that_look_like_one_of_training(tmp_path):
    buffer = io.BytesIO()
    with Image.open(io.BytesIO(picture(0))) as image:
        image.resize((70, 58), Image.Resampling.BICUBIC).save(buffer, "JPEG", quality=60)
    root, key, trained = leaking(tmp_path, buffer.getvalue())
    assert kinds(root) == {}
    found = findings(root, near=True)
    assert found.select("kind", "member").rows() == [("near-duplicate", key)]
    assert found["found"][0].endswith(f"of 64 bits from {trained} of train")


def look_alikes(tmp_path) -> tuple[Path, str, str, int]:
    """A dataset whose test image looks like a training image; its key, that one's, and the distance of their hashes."""
    for quality in range(60, 5, -5):
        buffer = io.BytesIO()
        with Image.open(io.BytesIO(picture(0))) as image:
            image.resize((70, 58), Image.Resampling.BICUBIC).save(buffer, "JPEG", quality=quality)
        hashes = [perceptual_hash(data, read_header(data)) or 0 for data in (picture(0), buffer.getvalue())]
        distance = (hashes[0] ^ hashes[1]).bit_count()
        if 1 <= distance <= 5:
            return (*leaking(tmp_path, buffer.getvalue()), distance)
    raise AssertionError("no quality changes a few bits")


def test_look_alikes_by_their_distance(tmp_path):
    root, _, trained, distance = look_alikes(tmp_path)
    found = findings(root, near=True, near_distance=distance)
    assert found["found"].to_list() == [f"differs in {distance} of 64 bits from {trained} of train"]
    assert findings(root, near=True, near_distance=distance - 1).is_empty()
    with pytest.raises(ConfigError, match="--near-distance is 6; expected 0 to 5"):
        findings(root, near=True, near_distance=6)


def test_look_alikes_that_are_meant(tmp_path):
    root, key, trained, _ = look_alikes(tmp_path)
    allowed = tmp_path / "allowed.csv"
    for pair in ((key, trained), (trained, key)):
        allowed.write_text("key,looks_like\n" + ",".join(pair) + "\n")
        assert findings(root, near=True, near_allow=allowed).is_empty()
    other = findings(root, near=True)["found"][0].split(" from ")[0]
    index, _ = index_file.read_index(root / files.INDEX)
    stranger = next(k for k in index["key"] if k not in (key, trained))
    allowed.write_text(f"key,looks_like\n{key},{stranger}\n")
    assert findings(root, near=True, near_allow=allowed)["found"][0].startswith(other)
    allowed.write_text(f"key,looks_like\n{key},{trained}\n{key},nobody\n")
    with pytest.raises(TableError, match=r"allowed\.csv, line 3: the dataset has no item 'nobody'"):
        findings(root, near=True, near_allow=allowed)


@given(st.lists(st.integers(0, 255), min_size=1, max_size=20), st.integers(0, 255), st.integers(0, 5), st.data())
def test_the_nearest_that_is_not_left_out(references, query, most, data):
    left_out = data.draw(st.lists(st.booleans(), min_size=len(references), max_size=len(references)))
    found = next_nearest(np.uint64(query), np.array(references, np.uint64), np.array(left_out), most)
    near = [
        ((query ^ reference).bit_count(), place)
        for place, (reference, out) in enumerate(zip(references, left_out, strict=True))
        if not out and (query ^ reference).bit_count() <= most
    ]
    assert found == (min(near)[::-1] if near else (-1, -1))


def test_exit_codes_tell_look_alikes_from_faults(tmp_path, capsys):
    root, key, trained, _ = look_alikes(tmp_path)
    allowed = tmp_path / "allowed.csv"
    allowed.write_text(f"key,looks_like\n{trained},{key}\n")
    for arguments, expected in (
        ([], 0),
        (["--near"], 3),
        (["--near-distance", "0"], 0),
        (["--near-distance", "5"], 3),
        (["--near-allow", str(allowed)], 0),
    ):
        assert exit_code("verify", root, *arguments) == expected, arguments
    (root / "stray.txt").write_text("")
    assert exit_code("verify", root, "--near") == exit_code("verify", root) == 1
    capsys.readouterr()


def exit_code(*arguments: object) -> int:
    with pytest.raises(SystemExit) as left:
        main([str(argument) for argument in arguments])
    return int(left.value.code or 0)


def test_plain_images_are_not_compared_by_looks(tmp_path):
    buffer = io.BytesIO()
    Image.new("RGB", (40, 40), (9, 9, 9)).save(buffer, "PNG")
    root, _ = dataset_with(tmp_path, buffer.getvalue())
    found = verify(root, near=True, progress=silent)
    assert not len(found.findings)
    assert found.notes == ("1 images are too plain to be compared by their looks.",)
