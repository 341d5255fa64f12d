"""``hgld embed`` and ``evaluate`` with models: files and reports that agree, and the leaderboard of several models."""

import json
from dataclasses import replace

import numpy as np
import polars as pl
import pytest
import torch

from hgld import open_dataset
from hgld.data.views import TestView
from hgld.training.inference import kept
from hgld.training.inference.embedding import embed
from hgld.training.models.small_net import SmallNet
from tests.hgld.small_dataset import items_of_classes, write_dataset
from tests.rows import each_row
from tests.training.untrained_run import write_run


@pytest.fixture(scope="module")
def places(module_path):
    write_dataset(module_path / "data", items_of_classes([4, 4, 3, 5], ["test", "gallery"], per_coarse=4))
    models = write_run(module_path / "run")
    return module_path, *models


def of_run(folder, *others):
    return ["--checkpoint", folder / "run", "--data", folder / "data", "--device", "cpu", *others]


def test_stopped_embed_resumes_and_equals_a_single_pass(places, tmp_path, hgld, output, refusal, monkeypatch):
    folder = places[0]
    whole, out = tmp_path / "whole.npy", tmp_path / "parts.npy"
    output("embed", *of_run(folder, "--out", whole))
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
    assert "made by another model" in refusal("embed", *asked, "--checkpoint-choice", "last")
    printed = output("embed", *asked)
    assert [f"part {n} of 3, kept from before" in printed for n in (1, 2, 3)] == [True, False, False]
    np.testing.assert_allclose(np.load(out), np.load(whole), atol=1e-6)
    tables = [pl.read_parquet(file.with_suffix(".labels.parquet")) for file in (out, whole)]
    assert tables[0].equals(tables[1])
    assert {path.name for path in tmp_path.iterdir() if path.name.startswith("parts")} == {
        "parts.npy",
        "parts.labels.parquet",
    }


def test_embed_uses_the_chosen_checkpoint(places, tmp_path, output):
    folder, best, last = places
    dataset = open_dataset(folder / "data", "test")
    for which, model in (("best", best), ("last", last)):
        out = tmp_path / f"{which}.npy"
        printed = output(
            "embed", *of_run(folder, "--split", "test", "--out", out, "--checkpoint-choice", which, "--json")
        )
        labels = str(tmp_path / f"{which}.labels.parquet")
        selection = {"best": "chosen by H-AP on val", "last": "the last of its run"}[which]
        told = {"embeddings": str(out), "labels": labels, "faults": None, "selection": selection}
        told |= {"items": 7, "unreadable": 0, "dimensions": 6, "levels": ["fine", "coarse"]}
        assert told.items() <= json.loads(printed).items()
        expected = embed(model, dataset, view=TestView(24, 28)).numpy()
        np.testing.assert_allclose(np.load(out), expected, atol=1e-5)
        assert pl.read_parquet(labels)["key"].to_list() == dataset.keys.to_list()


def test_resize_mode_and_scale_flags_change_the_preprocessing(places, tmp_path, output, json_of):
    folder, best, _ = places
    resize_mode = ["--resize-mode", "original", "--max-pixels", 1000, "--scales", "1,0.5", "--scale-p", 3]
    of = of_run(folder, "--split", "test", *resize_mode)
    said = "images of more than 1,000 pixels, which were reduced (--max-pixels): 7\n"
    output("embed", *of, "--out", tmp_path / "e.npy", said=said)
    view = TestView(24, 28, "original", max_pixels=1000)
    expected = embed(best, open_dataset(folder / "data", "test"), view=view, scales=(1, 0.5), scale_p=3)
    np.testing.assert_allclose(np.load(tmp_path / "e.npy"), expected.numpy(), atol=1e-5)
    settings = json_of("evaluate", *of)["settings"]
    facts = {"resize_mode": "original", "max_pixels": 1000, "reduced": 7, "scales": [1.0, 0.5], "scale_p": 3.0}
    assert {name: settings[name] for name in facts} == facts


def test_evaluating_a_checkpoint_equals_evaluating_its_saved_embeddings(places, tmp_path, hgld, output):
    folder, sides, files = places[0], [], []
    for split, side, prefix in (("test", "--query-split", "--"), ("gallery", "--gallery-split", "--gallery-")):
        out, labels = tmp_path / f"{split}.npy", tmp_path / f"{split}.labels.parquet"
        hgld("embed", *of_run(folder, "--split", split, "--out", out))
        files += [f"{prefix}embeddings", out, f"{prefix}labels", labels]
        sides += [side, split]
    options = ["--metrics", "AP/coarse,H-AP,R@2/coarse", "--query-expansion", "2,2", "--json"]
    of_files = output("evaluate", *files, "--levels", "fine,coarse", *options)
    of_model = output("evaluate", *of_run(folder, *sides, *options, "--out", tmp_path / "r.json"))
    values = json.loads(of_files)["values"]
    assert list(values) == ["AP/coarse", "H-AP", "R@2/coarse"]
    assert json.loads(of_model)["values"] == pytest.approx(values, abs=1e-6)
    assert json.loads((tmp_path / "r.json").read_text())["settings"]["dataset"] == "small"


RUN, DATA = "--checkpoint {0}/run --device cpu", "--data {0}/data"


@each_row(
    ("words", "said"),
    [
        (f"embed --out e.npy --split tset {RUN} {DATA}", "'test'"),
        (f"embed --out e.pt {RUN} {DATA}", "written as .npy"),
        (f"embed --out e.npy --scales 1,1e9 {RUN} {DATA}", "a view is 24000000000; expected 1 to 16384 pixels."),
        (
            f"embed --out e.npy --resize 1 {RUN} {DATA}",
            "resize of a view is 1; expected 24 (the size) to 16384 pixels.",
        ),
        (f"embed --out e.npy {RUN} {DATA} --device meta", "device 'meta' cannot be used here"),
        (f"evaluate --split test --gallery-split gallery {RUN} {DATA}", "--split S"),
        (f"evaluate --query-split test {RUN} {DATA}", "--gallery-split G"),
        (f"embed --out e.npy {DATA}", "expected one model, as --checkpoint RUN or --model NETWORK; neither is given."),
        (f"embed --out e.npy {DATA} --model small {RUN}", "--model NETWORK; both are given."),
        (f"embed --out e.npy {DATA} {RUN} --weights none", "--weights needs --model"),
        (f"embed --out e.npy {DATA} --model small --checkpoint-choice last", "chooses a checkpoint of a run"),
        (f"evaluate --model small --model pixels --weights none {DATA} --split test", "give one value per --model"),
        (f"evaluate --model small --model small {DATA} --split test", "'small, default' is given twice"),
        (f"evaluate --model small --model pixels {DATA} --split test --out b.tex", "can be a .html"),
        (f"evaluate --model small --model pixels {DATA} --split test --quantize int8", "needs a single model"),
        ("evaluate --model small --split test", "a model needs --data DIR"),
        (f"evaluate --model small {DATA} --split test --embeddings e.npy", "--embeddings cannot be combined"),
        ("evaluate --resize-mode squash", "--resize-mode needs --checkpoint or --model; neither is given."),
        (f"evaluate --model none:such {DATA} --split test", "is not a model; expected a run's folder"),
    ],
)
def test_invalid_models_views_and_splits_give_one_line_errors(places, tmp_path, refusal, monkeypatch, words, said):
    monkeypatch.chdir(tmp_path)
    err = refusal(*words.format(places[0]).split())
    assert list(tmp_path.iterdir()) == []
    assert said in err
    assert err.count("\n") == 1


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


@pytest.mark.slow
def test_leaderboard_of_several_models_includes_raw_pixels(places, no_figures, tmp_path, hgld, output):
    places, *_ = places
    torch.save(SmallNet().state_dict(), places / "weights.pt")
    models = ["--checkpoint", places / "run", "--model", "small", "--model", "onnx:none.onnx", "--size", 24]
    weights = ["--weights", places / "weights.pt", "--weights", "default"]
    of = ["--data", places / "data", "--split", "test", "--device", "cpu", "--metrics", "R@1,H-AP"]
    code, printed, err = hgld("evaluate", *models, *weights, *of, "--json")
    assert code == 2, err
    assert err == "onnx:none.onnx: not evaluated: onnx:none.onnx: there is no such file.\n"
    board = json.loads(printed)
    dimensions = {model["model"]: model["dimensions"] for model in board["models"]}
    assert dimensions == {"raw pixels, 32 px": 3072, "run": 6, "small": 144}
    metric = [row for row in board["scores"] if row["metric"] == board["scores"][0]["metric"]]
    assert metric == sorted(metric, key=lambda row: -row["value"]), "the best model is listed first"
    assert [row["p_value"] is None for row in metric] == [True, False, False]
    for form in ("board", "board.html"):
        output("evaluate", *models[:4], "--size", 24, *weights[:2], *of, "--out", tmp_path / form)
    assert {path.stem for path in (tmp_path / "board").glob("*.json")} == dimensions.keys()
    costs = (tmp_path / "board.html").read_text().partition("<h3>Size and cost</h3>")[2].partition("</table>")[0]
    parameters = max(model["parameters"] for model in board["models"])
    assert all(name in costs for name in ("raw pixels, 32 px", ">3,072<", ">run<", f">{parameters:,}<"))
    output("report", tmp_path / "board", "--latex", tmp_path / "t.tex", "--json")
    assert "    small & " in (tmp_path / "t.tex").read_text()
