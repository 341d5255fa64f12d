import json

import numpy as np
import open_clip
import polars as pl
import pytest
import torch
from PIL import Image

from hgld.errors import ConfigError
from hgld.pipelines.hierarchy import assign
from hgld.pipelines.hierarchy import assign as image_names
from hgld.pipelines.hierarchy.config import AssignConfig, EmbedConfig
from hgld.pipelines.stage import silent

CLIP = EmbedConfig("clip:fake/weights")
COLORS = {"Cathedral": (255, 0, 0), "bridge": (0, 255, 255), "lake": (0, 0, 255), "mountain": (255, 255, 0)}


class ColorEncoder:
    """Names and images in one space: the colour. Grey is as near to yellow as to cyan and magenta."""

    key = "colours"

    def __init__(self):
        self.batches = []

    def encode(self, names):
        rows = np.array([COLORS.get(name, (255, 0, 255)) for name in names], dtype=np.float32)
        return rows / np.linalg.norm(rows, axis=1, keepdims=True)

    def encode_images(self, images):
        self.batches.append(len(images))
        rows = np.array([np.asarray(image).reshape(-1, 3).mean(axis=0) for image in images], dtype=np.float32) + 1e-3
        return rows / np.linalg.norm(rows, axis=1, keepdims=True)


@pytest.fixture
def encoder(monkeypatch):
    made = ColorEncoder()
    monkeypatch.setattr(assign, "make_encoder", lambda spec, **options: made)
    monkeypatch.setattr(image_names, "IMAGES_AT_ONCE", 2)
    return made


def put(folder, split, number, *colors):
    for i, color in enumerate(colors):
        file = folder / split / str(number) / f"{i}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(color, bytes):
            file.write_bytes(color)
        else:
            Image.new("RGB", (8, 8), color).save(file)


@pytest.fixture
def images(tmp_path):
    """Images of the three landmarks without a name: a lake, a grey one, and one that cannot be read."""
    folder = tmp_path / "images"
    put(folder, "index", 2, (0, 0, 255), (0, 10, 240), b"<html>")
    put(folder, "train", 4, (90, 90, 90))
    put(folder, "train", 7, b"no image")
    return folder


def assigned(root, stages, config, embed=CLIP):
    return assign.run(root, stages["scrape"], stages["clean"], stages["review"], config, embed, silent)


def given_names(run):
    rows = pl.read_parquet(run.path("landmarks.parquet")).filter(pl.col("assigned").is_not_null())
    return {(r["split"], r["landmark_id"]): r for r in rows.iter_rows(named=True)}


def reasons(run):
    rows = pl.read_parquet(run.path("dropped.parquet"))
    return {(r["split"], r["landmark_id"]): r["reason"] for r in rows.iter_rows(named=True)}


def test_by_default_nothing_is_assigned(tmp_path, tiny_stages):
    run = assigned(tmp_path, tiny_stages(tmp_path), AssignConfig(), EmbedConfig("lexical"))
    table = pl.read_parquet(run.path("landmarks.parquet"))
    assert dict(table.schema) == assign.LANDMARKS
    assert table["assigned"].null_count() == table["score"].null_count() == len(table) == 6
    assert table.select("split", "landmark_id").rows() == sorted(table.select("split", "landmark_id").rows())
    tops = dict(table.select("name", "natural_or_human_made").iter_rows())
    assert tops["lake"] == "natural"
    assert None in tops.values()  # undecided


def test_images_give_the_sure_ones_a_name_and_the_others_a_reason(tmp_path, tiny_stages, images, encoder):
    run = assigned(tmp_path, tiny_stages(tmp_path), AssignConfig("images", images))
    given = given_names(run)
    assert set(given) == {("index", 2)}
    row = given["index", 2]
    assert (row["name"], row["hierarchical_label"], row["natural_or_human_made"]) == ("lake", "lake", "natural")
    assert (row["assigned"], row["supercategory"], row["title"]) == ("images", None, "Category:Nowhere")
    assert row["score"] > 0.5
    assert reasons(run) == {("train", 4): "low-score", ("train", 7): "unreadable-images"}
    unreadable = pl.read_parquet(run.path("unreadable_images.parquet"))
    assert unreadable["member"].to_list() == ["index/2/2.png", "train/7/0.png"]
    assert max(encoder.batches) <= 2


def test_a_landmark_without_images_is_said_to_have_none(tmp_path, tiny_stages, images, encoder):
    (images / "train" / "4" / "0.png").unlink()
    run = assigned(tmp_path, tiny_stages(tmp_path), AssignConfig("images", images))
    assert reasons(run)["train", 4] == "no-image"


def test_neighbours_vote(tmp_path, tiny_stages, images, encoder):
    put(images, "index", 1, (0, 0, 250))  # lake
    put(images, "train", 1, (250, 0, 0))  # Cathedral
    put(images, "train", 3, (0, 250, 250))  # bridge
    run = assigned(tmp_path, tiny_stages(tmp_path), AssignConfig("vote", images))
    given = given_names(run)
    assert set(given) == {("index", 2)}
    assert given["index", 2]["assigned"] == "vote"
    assert given["index", 2]["name"] == "lake"
    assert reasons(run)["train", 4] == "low-score"  # grey: nearest to the bridge, but not by much


def test_a_vote_without_voters_is_refused(tmp_path, tiny_stages, images, encoder):
    with pytest.raises(ConfigError, match="so there are no votes"):
        assigned(tmp_path, tiny_stages(tmp_path), AssignConfig("vote", images))


@pytest.mark.parametrize("how", ["images", "vote"])
def test_names_are_not_assigned_without_images_or_eyes(tmp_path, tiny_stages, images, how):
    stages = tiny_stages(tmp_path)
    with pytest.raises(ConfigError, match="say where they are with --images"):
        assigned(tmp_path, stages, AssignConfig(how))
    with pytest.raises(ConfigError, match="--encoder is 'lexical', expected clip"):
        assigned(tmp_path, stages, AssignConfig(how, images), EmbedConfig("lexical"))


def test_images_that_nothing_looks_at_are_refused(tmp_path, tiny_stages, images):
    with pytest.raises(ConfigError, match="Add --assign images or --assign vote, or leave --images out"):
        assigned(tmp_path, tiny_stages(tmp_path), AssignConfig("none", images))


def test_the_stage_is_done_again_only_when_images_or_the_way_change(tmp_path, tiny_stages, images, encoder):
    stages = tiny_stages(tmp_path)
    config = AssignConfig("images", images)
    assert assigned(tmp_path, stages, config).was_run
    assert not assigned(tmp_path, stages, config).was_run
    put(images, "train", 4, (0, 255, 255), (0, 255, 255))
    again = assigned(tmp_path, stages, config)
    assert again.was_run
    assert set(given_names(again)) == {("index", 2), ("train", 4)}


def test_a_name_dropped_in_review_is_not_assigned_again(tmp_path, tiny_stages, images, encoder):
    stages = tiny_stages(tmp_path, without="lake")
    run = assigned(tmp_path, stages, AssignConfig("images", images))
    assert "lake" not in {row["name"] for row in given_names(run).values()}
    assert reasons(run)["index", 1] == "name-dropped"


def test_same_input_same_bytes(tmp_path, tiny_stages, images, encoder):
    config = AssignConfig("images", images)
    one, two = (assigned(tmp_path / run, tiny_stages(tmp_path / run), config) for run in ("a", "b"))
    assert one.record["outputs"] == two.record["outputs"]


@pytest.fixture(scope="module")
def tiny_clip(tmp_path_factory):
    """A CLIP of open_clip's own kind with random weights, small enough for a test."""
    folder = tmp_path_factory.mktemp("clip")
    tower = {"layers": 1, "width": 32}
    model = {
        "embed_dim": 16,
        "vision_cfg": {**tower, "image_size": 32, "head_width": 16, "patch_size": 8},
        "text_cfg": {**tower, "heads": 2, "context_length": 16, "vocab_size": 49408},
    }
    (folder / "tiny-assign.json").write_text(json.dumps(model))
    open_clip.add_model_config(folder)
    torch.manual_seed(0)
    weights = folder / "weights.pt"
    torch.save(open_clip.create_model("tiny-assign").state_dict(), weights)
    return f"clip:tiny-assign/{weights}"


@pytest.mark.parametrize("how", ["images", "vote"])
def test_a_real_clip_looks_at_every_image(tmp_path, tiny_stages, images, tiny_clip, how):
    put(images, "train", 1, (250, 0, 0))
    put(images, "train", 3, (0, 250, 250))
    config, embed = AssignConfig(how, images), EmbedConfig(tiny_clip, device="cpu")
    one, two = (assigned(tmp_path / run, tiny_stages(tmp_path / run), config, embed) for run in ("a", "b"))
    assert one.record["outputs"] == two.record["outputs"]
    why = reasons(one)
    assert set(given_names(one)) | set(why) == {("index", 2), ("train", 4), ("train", 7)}
    assert why["train", 7] == "unreadable-images"
    assert all(0.5 <= row["score"] <= 1 for row in given_names(one).values())
    assert one.result.details["encoder"] == "clip:tiny-assign/weights.pt"


def test_single_landmarks_stand_where_decisions_put_them(tmp_path, tiny_stages):
    stages = tiny_stages(tmp_path)
    before = assigned(tmp_path, stages, AssignConfig())
    rows = {
        (r["split"], r["landmark_id"]): r for r in pl.read_parquet(before.path("landmarks.parquet")).rows(named=True)
    }
    (split, number), row = next(iter(rows.items()))
    label = next(r["hierarchical_label"] for r in rows.values() if r["hierarchical_label"] != row["hierarchical_label"])
    items = stages["review"].path("items.parquet")
    told = [(split, str(number), None, label, "ada", None), (split, "999", None, label, "ada", None)]
    pl.DataFrame(told, schema=pl.read_parquet_schema(items), orient="row").write_parquet(items)
    after = assigned(tmp_path, stages, AssignConfig())
    now = {(r["split"], r["landmark_id"]): r for r in pl.read_parquet(after.path("landmarks.parquet")).rows(named=True)}
    assert {key for key in rows if now[key] != rows[key]} == {(split, number)}
    assert (now[split, number]["name"], now[split, number]["hierarchical_label"]) == (row["name"], label)
    assert after.result.counts["put elsewhere by decision"] == 1
    assert after.result.notes == (
        f"A decision of ada about the item {split}/999 fits nothing: no item of this id has a name.",
    )
