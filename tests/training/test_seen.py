"""Training images of a run are refused as test images; with --seen, every output reports them."""

import json
import shutil

import numpy as np
import pytest

from hgld import open_dataset
from hgld.errors import ConfigError, InputError
from hgld.evaluation.trained_on import trained_on_text, was_trained_on
from hgld.training import seen as module
from hgld.training.seen import SEEN, Seen, check_seen, write_seen
from tests.fake_releases.pictures import jpeg
from tests.hgld.small_dataset import Item, write_dataset
from tests.training.untrained_run import write_run

SPLITS = ("train", "val", "test")


def items(shift=0, *, others=0):
    """Return 2 images of each of 30 classes; ``shift`` rotates the three splits, ``others`` seeds the images."""
    rng = np.random.default_rng(others)
    return [Item((c, c // 5), SPLITS[(c + shift) % 3], jpeg(rng)) for c in range(30) for _ in range(2)]


@pytest.fixture(scope="module")
def world(module_path):
    """A run on ``data``, the same images with other splits and as files, and a dataset of other images."""
    write_dataset(module_path / "data", items())
    write_dataset(module_path / "resplit", items(1))
    write_dataset(module_path / "closed", items(1, others=1))
    for number, item in enumerate(items()):
        if item.split == "train":
            (module_path / "photos" / str(item.labels[0])).mkdir(parents=True, exist_ok=True)
            (module_path / "photos" / str(item.labels[0]) / f"{number}.jpg").write_bytes(item.data)
    write_run(module_path / "run")
    write_seen(module_path / "run", open_dataset(module_path / "data", "train"))
    return module_path


# The run was trained on classes 0, 3, ...; in ``resplit``, these classes form the split val.
@pytest.mark.parametrize(
    "words",
    [
        "evaluate --data resplit --split val",
        "evaluate --data resplit --protocol landmarks-clean",
        "evaluate --data photos",
        "calibrate --data resplit --out c.json",
        "calibrate --data data --split train --out c.json",
        "calibrate --data resplit --split test --test-split val --out c.json",
        "audit --data resplit --out audited",
    ],
)
def test_evaluation_on_training_images_is_refused(world, tmp_path, monkeypatch, refusal, words):
    monkeypatch.chdir(world)
    err = refusal(*words.split(), "--checkpoint", "run")
    assert "run was trained on 20 of " in err
    assert "(as small, train)" in err
    assert "--seen" in err
    assert not (world / "c.json").exists()


@pytest.mark.slow
def test_seen_flag_allows_training_images_and_marks_every_output(
    world, no_figures, tmp_path, monkeypatch, hgld, json_of, refusal
):
    monkeypatch.chdir(tmp_path)
    asked = ["--checkpoint", world / "run", "--data", world / "resplit", "--seen"]
    said = "TRAINED ON: 20 of 20 images of the queries, as small, train."
    code, out, err = hgld("evaluate", *asked, "--split", "val", "--out", "x.md", "--json")
    assert code == 0
    assert json.loads(out)["settings"]["trained_on"]["images"] == 20
    assert said in err
    code, _, err = hgld("evaluate", *asked, "--split", "val", "--out", "x.json")
    assert (code, said in err) == (0, True)
    assert f"next: hgld report x.json --data {world / 'resplit'} --seen --out x.html" in err
    assert said in (tmp_path / "x.md").read_text()
    assert "with --seen" in refusal("report", "x.json")
    assert said in json_of("report", "x.json", "--seen", "--out", "p.html", "--latex", "t.tex")["warnings"][0]
    assert "TRAINED ON: 20 of 20" in (tmp_path / "t.tex").read_text()
    assert said in (tmp_path / "p.html").read_text()
    assert json_of("audit", *asked, "--out", "a")["trained_on"]["images"] == 20
    assert "TRAINED ON: 20 of 60" in (tmp_path / "a" / "audit.html").read_text()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("evaluate --data data --split test", ""),
        ("evaluate --data data --split val", ""),
        ("evaluate --data resplit --query-split test --gallery-split val", ""),  # the gallery may hold training images
        ("evaluate --data data --split train", "TRAINED ON: 20 of 20"),  # the user asks for the training split by name
        ("evaluate --data closed --split val", "closed set: the run was trained on 10 of 10 classes."),
        ("evaluate --data resplit --split val --model pixels", ""),
    ],
)
def test_unseen_splits_and_the_named_training_split_are_evaluated(world, monkeypatch, hgld, words, said):
    monkeypatch.chdir(world)
    model = () if "--model" in words else ("--checkpoint", "run")
    code, _, err = hgld(*words.split(), *model)
    assert code == 0
    assert said in err
    assert bool(said) == ("TRAINED ON" in err or "closed set" in err)


def test_run_on_a_large_training_set_records_a_sample_of_its_images(world, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "_MOST_DIGESTS", 10)
    trained = open_dataset(world / "data", "train")
    write_seen(tmp_path, trained)
    record = Seen.load(tmp_path)
    assert record is not None
    assert record.every == 2
    assert 0 < len(record.images) < 20
    facts = record.facts([open_dataset(world / "resplit", "val")])
    assert facts["images"] == facts["of_images"] == len(record.images)
    with pytest.raises(ConfigError, match="was trained on"):
        check_seen(tmp_path, [open_dataset(world / "resplit", "val")], allowed=False)


def test_overlap_of_1_percent_with_training_images_is_allowed_and_reported():
    facts = {"images": 1, "of_images": 100, "classes": 3, "of_classes": 5, "as": "x, train", "own_dataset": False}
    assert not was_trained_on(facts)
    assert trained_on_text({"trained_on": facts}).endswith("3 of 5 classes and 1 of 100 images.")
    assert was_trained_on(facts | {"images": 2})


def test_resumed_run_keeps_seen_json_and_a_damaged_one_is_refused(world, tmp_path):
    shutil.copy(world / "run" / SEEN, tmp_path / SEEN)
    before = (tmp_path / SEEN).read_bytes()
    write_seen(tmp_path, open_dataset(world / "resplit", "train"))
    assert (tmp_path / SEEN).read_bytes() == before
    for text in ("{}", '{"schema_version": 2}', before.decode().replace('"every": 1', '"every": 0')):
        (tmp_path / SEEN).write_text(text)
        with pytest.raises(InputError, match=r"seen\.json: .*Remove"):
            Seen.load(tmp_path)
    (tmp_path / SEEN).unlink()
    assert check_seen(tmp_path, [open_dataset(world / "data", "train")], allowed=False) == {}
