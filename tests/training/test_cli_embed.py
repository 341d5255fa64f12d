"""``hgld embed``, ``search``, ``export`` and ``evaluate --checkpoint``: one model, files and reports that agree."""

import json
from dataclasses import replace

import numpy as np
import polars as pl
import pytest

from hgld import open_dataset
from hgld.data.views import TestView
from hgld.training.inference import kept
from hgld.training.inference.embedding import embed
from tests.hgld.small_dataset import items_of_classes, write_dataset
from tests.training.untrained_run import write_run


@pytest.fixture(scope="module")
def places(tmp_path_factory):
    folder = tmp_path_factory.mktemp("cli")
    write_dataset(folder / "data", items_of_classes([4, 4, 3, 5], ["test", "gallery"], per_coarse=4))
    models = write_run(folder / "run")
    (folder / "one.jpg").write_bytes(open_dataset(folder / "data", "test").read(2))
    return folder, *models


def of_run(folder, *others):
    return ["--checkpoint", folder / "run", "--data", folder / "data", "--device", "cpu", *others]


def test_stopped_embed_resumes_and_equals_a_single_pass(places, tmp_path, hgld, monkeypatch):
    folder = places[0]
    whole, out = tmp_path / "whole.npy", tmp_path / "parts.npy"
    assert hgld("embed", *of_run(folder, "--out", whole))[0] == 0
    asked = of_run(folder, "--out", out, "--parts", "3")
    write = kept.write_embeddings

    def stopped(file, *rest, **options):
        if file.name == "0002.npy":
            raise KeyboardInterrupt
        write(file, *rest, **options)

    monkeypatch.setattr(kept, "write_embeddings", stopped)
    assert hgld("embed", *asked)[0] == 130
    monkeypatch.undo()
    assert not out.exists()
    code, _, told = hgld("embed", *asked, "--checkpoint-choice", "last")
    assert code == 2
    assert "made by another model" in told
    code, printed, _ = hgld("embed", *asked)
    assert code == 0
    assert [f"part {n} of 3, kept from before" in printed for n in (1, 2, 3)] == [True, False, False]
    np.testing.assert_allclose(np.load(out), np.load(whole), atol=1e-6)
    tables = [pl.read_parquet(file.with_suffix(".labels.parquet")) for file in (out, whole)]
    assert tables[0].equals(tables[1])
    assert {path.name for path in tmp_path.iterdir() if path.name.startswith("parts")} == {
        "parts.npy",
        "parts.labels.parquet",
    }


def test_embed_uses_the_chosen_checkpoint(places, tmp_path, hgld):
    folder, best, last = places
    dataset = open_dataset(folder / "data", "test")
    for which, model in (("best", best), ("last", last)):
        out = tmp_path / f"{which}.npy"
        code, printed, _ = hgld(
            "embed", *of_run(folder, "--split", "test", "--out", out, "--checkpoint-choice", which, "--json")
        )
        assert code == 0
        labels = str(tmp_path / f"{which}.labels.parquet")
        told = {"embeddings": str(out), "labels": labels, "faults": None}
        told |= {"items": 7, "unreadable": 0, "dimensions": 6, "levels": ["fine", "coarse"]}
        found = json.loads(printed)
        assert found.pop("checkpoint").startswith("step-")
        assert found.pop("selection") == {"best": "chosen by H-AP on val", "last": "the last of its run"}[which]
        assert found == told
        expected = embed(model, dataset, view=TestView(24, 28)).numpy()
        np.testing.assert_allclose(np.load(out), expected, atol=1e-5)
        assert pl.read_parquet(labels)["key"].to_list() == dataset.keys.to_list()


def test_resize_mode_and_scale_flags_change_the_preprocessing(places, tmp_path, hgld):
    folder, best, _ = places
    resize_mode = ["--resize-mode", "original", "--max-pixels", 1000, "--scales", "1,0.5", "--scale-p", 3]
    of = of_run(folder, "--split", "test", *resize_mode)
    code, _, err = hgld("embed", *of, "--out", tmp_path / "e.npy")
    assert (code, err) == (0, "images of more than 1,000 pixels, which were reduced (--max-pixels): 7\n")
    view = TestView(24, 28, "original", max_pixels=1000)
    expected = embed(best, open_dataset(folder / "data", "test"), view=view, scales=(1, 0.5), scale_p=3)
    np.testing.assert_allclose(np.load(tmp_path / "e.npy"), expected.numpy(), atol=1e-5)
    settings = json.loads(hgld("evaluate", *of, "--json")[1])["settings"]
    facts = {"resize_mode": "original", "max_pixels": 1000, "reduced": 7, "scales": [1.0, 0.5], "scale_p": 3.0}
    assert {name: settings[name] for name in facts} == facts


@pytest.mark.parametrize("sides", [("--split", "test"), ("--query-split", "test", "--gallery-split", "gallery")])
def test_evaluating_a_checkpoint_equals_evaluating_its_saved_embeddings(places, tmp_path, hgld, sides):
    folder = places[0]
    for split in ("test", "gallery"):
        hgld("embed", *of_run(folder, "--split", split, "--out", tmp_path / f"{split}.npy"))
    files = ["--embeddings", tmp_path / "test.npy", "--labels", tmp_path / "test.labels.parquet"]
    if len(sides) > 2:
        labels = tmp_path / "gallery.labels.parquet"
        files += ["--gallery-embeddings", tmp_path / "gallery.npy", "--gallery-labels", labels]
    options = ["--metrics", "AP/coarse,H-AP,R@2/coarse", "--query-expansion", "2,2", "--json"]
    code, of_files, _ = hgld("evaluate", *files, "--levels", "fine,coarse", *options)
    assert code == 0
    code, of_model, _ = hgld("evaluate", *of_run(folder, *sides, *options, "--out", tmp_path / "r.json"))
    assert code == 0
    values = json.loads(of_files)["values"]
    assert list(values) == ["AP/coarse", "H-AP", "R@2/coarse"]
    assert json.loads(of_model)["values"] == pytest.approx(values, abs=1e-6)
    assert json.loads((tmp_path / "r.json").read_text())["settings"]["dataset"] == "small"


def test_search_prints_a_table_or_json(places, tmp_path, hgld):
    folder = places[0]
    arguments = [folder / "one.jpg", *of_run(folder, "--split", "test", "--k", 2)]
    answer = json.loads(hgld("search", *arguments, "--json")[1])
    (found,) = answer["queries"]
    assert (answer["left_out"], found["image"]) == (0, str(folder / "one.jpg"))
    code, table, err = hgld("search", *arguments)
    assert (code, err) == (0, "")
    assert table.splitlines()[2].split() == ["rank", "score", "fine", "coarse", "image"]
    assert table.splitlines()[3].split() == ["1", "1.0000", "0", "0", found["matches"][0]["key"]]
    hgld("embed", *of_run(folder, "--split", "test", "--out", tmp_path / "e.npy"))
    assert hgld("search", *arguments, "--embeddings", tmp_path / "e.npy") == (0, table, "")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("embed --out e.npy --split tset", "'test'"),
        ("embed --out e.pt", "written as .npy"),
        ("embed --out e.npy --scales 1,1e9", "size of a view is 24000000000; expected 1 to 16384 pixels."),
        ("embed --out e.npy --resize 1", "resize of a view is 1; expected 24 (the size) to 16384 pixels."),
        ("embed --out e.npy --device meta", "device 'meta' cannot be used here"),
        ("evaluate --split test --gallery-split gallery", "--split S"),
        ("evaluate --query-split test", "--gallery-split G"),
        ("evaluate --split test --embeddings e.npy", "--embeddings"),
    ],
)
def test_invalid_input_exits_with_code_2_and_writes_nothing(places, tmp_path, hgld, monkeypatch, words, said):
    monkeypatch.chdir(tmp_path)
    command, *others = words.split()
    code, out, err = hgld(command, *of_run(places[0]), *others)
    assert (code, out, list(tmp_path.iterdir())) == (2, "", [])
    assert said in err


def test_embed_reports_and_excludes_unreadable_images(places, tmp_path, hgld):
    folder, *_ = places
    items = items_of_classes([4, 4, 3, 5], ["test"])
    items[6] = replace(items[6], data=b"no image")
    write_dataset(tmp_path / "data", items)
    of = ["--checkpoint", folder / "run", "--data", tmp_path / "data", "--split", "test", "--device", "cpu"]
    code, printed, told = hgld("embed", *of, "--out", tmp_path / "e.npy", "--json")
    assert (code, json.loads(printed)["items"], json.loads(printed)["unreadable"]) == (0, 15, 1)
    assert f"excluded: 1; {tmp_path / 'e.faults.csv'} lists them" in told
    assert pl.read_csv(tmp_path / "e.faults.csv")["item"].to_list() == [6]
    code, printed, told = hgld("evaluate", *of, "--json")
    settings = json.loads(printed)["settings"]
    assert (code, settings["queries"], settings["unreadable"]["items"]) == (0, 15, 1)
    assert "excluded: 1; the first: test" in told
    assert "test/0006" in told
