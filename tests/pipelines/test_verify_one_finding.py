"""hgld verify with exactly one thing off, of every kind, in every split: one finding, and the exit code says so."""

import polars as pl
import pytest

from hgld.data import format as files
from tests.pipelines.tiny_shards import TinyShards, findings, index_of, rewrite_index

SPLITS = ("train", "test", "query", "gallery", "val")
EVALUATED = ("test", "query", "gallery")  # whose classes must not be those of training


def tiny(split: str) -> TinyShards:
    """A sound dataset whose second split bears that name; ``train`` has a test split beside it."""
    shards = TinyShards(png=False)
    if split != "train":
        for item in shards.items[12:]:
            item |= {"split": split, "shard": files.shard_name(split, 0)}
    return shards


def only(root, **options) -> dict:
    [found] = findings(root, **options).to_dicts()
    return found


CHANGED = {  # a column of the index, a change of one row, and what that is called
    "place": ("size", pl.col("size") - 1),
    "item-sha256": ("sha256", pl.lit("0" * 64)),
    "header": ("width", pl.col("width") + 1),
    "suffix": ("suffix", pl.lit("jpeg")),
    "class_run": ("class_run", pl.col("class_run") + 50),
    "duplicate_of": ("duplicate_of", pl.lit("s0/img_000")),
    "source": ("source", pl.lit("elsewhere.jpg")),
}


@pytest.mark.parametrize("split", SPLITS)
@pytest.mark.parametrize("kind", CHANGED)
def test_one_row_that_says_something_else_of_an_image(tmp_path, hgld, kind, split):
    root = tiny(split).write(tmp_path / "tiny")
    assert hgld("verify", root)[0] == 0
    column, changed = CHANGED[kind]
    index = index_of(root)
    key = index.filter(split=split)["key"][-1]
    off = pl.when(pl.col("key") == key).then(changed).otherwise(pl.col(column)).cast(index.schema[column])
    rewrite_index(root, index.with_columns(off.alias(column)))
    found = only(root)
    assert (found["kind"], found["split"], found["member"]) == (kind, split, key)
    code, out, _ = hgld("verify", root)
    assert code == 1
    assert "1 finding" in out


@pytest.mark.parametrize("split", [split for split in SPLITS if split != "train"])
def test_one_image_of_training_in_another_split(tmp_path, hgld, split):
    shards = tiny(split)
    shards.items[14]["data"] = shards.items[5]["data"]
    root = shards.write(tmp_path / "tiny")
    found = only(root)
    assert (found["kind"], found["split"], found["member"]) == ("leakage", split, shards.items[14]["key"])
    assert shards.items[5]["key"] in found["found"]
    assert hgld("verify", root)[0] == 1


@pytest.mark.parametrize("split", [split for split in SPLITS if split != "train"])
def test_one_class_of_training_in_another_split(tmp_path, split):
    shards = tiny(split)
    shards.items[14] |= {"labels": [0, 0], "names": ["species 0", "cat"]}
    root = shards.write(tmp_path / "tiny")
    if split in EVALUATED:
        found = only(root)
        assert (found["kind"], found["split"]) == ("disjoint", split)
        assert "4 items in train, 1 here" in found["found"]
    else:
        assert findings(root).is_empty()
