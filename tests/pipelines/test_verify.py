"""``hgld verify`` on files and tars reports damage and follows no link."""

import json
import os
import tarfile
from pathlib import Path

import polars as pl
import pytest

from hgld.data import format as files
from hgld.data.tar import END_OF_ARCHIVE
from hgld.errors import InputError, SchemaError
from hgld.pipelines.check.verify import verify
from hgld.pipelines.stage import silent
from tests.pipelines.tiny_shards import (
    LEVELS,
    TRAIN,
    TinyShards,
    dataset_with,
    findings,
    flip,
    index_of,
    kinds,
    picture,
    rewrite_tar,
)


@pytest.mark.parametrize(("boxes", "workers"), [(False, 1), (True, 2)])
def test_verify_of_an_intact_dataset_finds_and_changes_nothing(tmp_path, boxes, workers):
    root = TinyShards(boxes=boxes).write(tmp_path / "tiny")
    before = {path.name: path.read_bytes() for path in root.iterdir()}
    found = verify(root, decode=True, workers=workers, progress=silent)
    assert found.findings.to_dicts() == []
    assert (found.items, found.shards, found.notes) == (16, 3, ())
    assert {path.name: path.read_bytes() for path in root.iterdir()} == before


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


def without(name: str):
    return lambda root, key: rewrite_tar(root / TRAIN, lambda members: [m for m in members if m[0] != f"{key}.{name}"])


def with_more(root: Path, _: str) -> None:
    json_of = files.item_json([0, 0], ["species 0", "cat"], "train", "", LEVELS)
    more = [("s0/new.jpg", picture(90)), ("s0/new.json", json_of)]
    rewrite_tar(root / TRAIN, lambda members: [*members, *more])


def flipped(where: int):
    """Return a function that flips the byte at this offset in the image."""

    def damage(root: Path, key: str) -> None:
        flip(root / TRAIN, index_of(root).filter(key=key)["offset"][0] + where)

    return damage


TABLES = (files.INDEX, files.HIERARCHY, files.REJECTED)
DAMAGE = {  # function that damages a dataset or one item: expected types of findings
    "a byte of an image": (flipped(700), {"sha256", "item-sha256"}),
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


@pytest.mark.parametrize(
    ("data", "changes", "expected"),
    [
        (picture(4)[:-200], {}, "truncated"),
        (picture(4, form="PNG"), {"suffix": "jpg"}, "wrong-suffix"),
    ],
)
def test_undecodable_images_are_found_only_with_decode(tmp_path, data, changes, expected):
    root, key = dataset_with(tmp_path, data, **changes)
    assert kinds(root) == ({"wrong-suffix": 1} if changes else {})
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


def with_link(root: Path, name: str) -> None:
    (root / name).rename(root.parent / "elsewhere")
    (root / name).symlink_to(root.parent / "elsewhere")


def with_pipe(root: Path, name: str) -> None:
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


def test_verify_command_prints_findings_and_sets_the_exit_code(hgld, root, tmp_path):
    code, out, err = hgld("verify", root)
    assert (code, err) == (0, "")
    assert "No errors found." in out
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
    code, out, err = hgld("verify", tmp_path)
    assert (code, out) == (2, "")
    assert "hgld index" in err
