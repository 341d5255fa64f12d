"""``--model`` of embed, evaluate and search, and the leaderboard of several models."""

import json

import numpy as np
import pytest
import torch

from hgld import open_dataset
from hgld.training.inference.embedder import trained_embedder
from hgld.training.models.networks import Network
from hgld.training.models.small_net import SmallNet
from tests.hgld.small_dataset import items_of_classes, write_dataset
from tests.training.untrained_run import write_run


@pytest.fixture(scope="module")
def places(tmp_path_factory):
    folder = tmp_path_factory.mktemp("networks")
    write_dataset(folder / "data", items_of_classes([4, 4, 3, 5], ["test", "gallery"], per_coarse=4))
    write_run(folder / "run")
    torch.manual_seed(5)
    torch.save(SmallNet().state_dict(), folder / "weights.pt")
    (folder / "one.jpg").write_bytes(open_dataset(folder / "data", "test").read(2))
    return folder


def of_net(folder, *others):
    model = ["--model", "small", "--weights", folder / "weights.pt", "--size", 24]
    return [*model, "--data", folder / "data", "--split", "test", "--device", "cpu", *others]


def embeddings(folder):
    network = Network("small", str(folder / "weights.pt"))
    with trained_embedder(network, device="cpu", size=24) as embedder:
        return embedder.embed_dataset(open_dataset(folder / "data", "test")).numpy()


def test_pretrained_network_can_embed_evaluate_and_search(places, tmp_path, hgld):
    code, printed, err = hgld("embed", *of_net(places, "--out", tmp_path / "e.npy"))
    assert (code, err) == (0, "")
    assert "7 embeddings of 144 dimensions" in printed
    np.testing.assert_allclose(np.load(tmp_path / "e.npy"), embeddings(places), atol=1e-5)
    code, printed, _ = hgld("evaluate", *of_net(places, "--json", "--metrics", "R@1"))
    of_model = json.loads(printed)
    stated = {"model": "small", "model_weights": str(places / "weights.pt"), "image_size": 24}
    assert {name: of_model["settings"][name] for name in stated} == stated
    code, printed, _ = hgld("search", places / "one.jpg", *of_net(places, "--k", 1, "--json"))
    (found,) = json.loads(printed)["queries"]
    assert found["matches"][0]["key"] == open_dataset(places / "data", "test").keys[2]


@pytest.mark.slow
def test_leaderboard_of_several_models_includes_raw_pixels(places, no_figures, tmp_path, hgld):
    models = ["--checkpoint", places / "run", "--model", "small", "--model", "onnx:none.onnx", "--size", 24]
    weights = ["--weights", places / "weights.pt", "--weights", "default"]
    of = ["--data", places / "data", "--split", "test", "--device", "cpu", "--metrics", "R@1,H-AP"]
    code, printed, err = hgld("evaluate", *models, *weights, *of, "--json")
    assert code == 2, err
    assert err == "onnx:none.onnx: not evaluated: onnx:none.onnx: there is no such file.\n"
    board = json.loads(printed)
    dimensions = {model["model"]: model["dimensions"] for model in board["models"]}
    assert dimensions == {"raw pixels, 32 px": 3072, "run": 6, "small": 144}
    parameters = {model["model"]: model["parameters"] for model in board["models"]}
    assert parameters["raw pixels, 32 px"] == 0
    assert parameters["run"] > parameters["small"] > 1000, "the run has a projection"
    metric = [row for row in board["scores"] if row["metric"] == board["scores"][0]["metric"]]
    assert metric == sorted(metric, key=lambda row: -row["value"]), "the best model is listed first"
    assert [row["p_value"] is None for row in metric] == [True, False, False]
    for form in ("board", "board.html"):
        assert hgld("evaluate", *models[:4], "--size", 24, *weights[:2], *of, "--out", tmp_path / form)[0] == 0
    assert {path.name for path in (tmp_path / "board").glob("*.json")} == {
        "raw pixels, 32 px.json",
        "run.json",
        "small.json",
    }
    costs = (tmp_path / "board.html").read_text().partition("<h3>Size and cost</h3>")[2].partition("</table>")[0]
    assert all(name in costs for name in ("raw pixels, 32 px", ">3,072<", ">run<", f">{parameters['run']:,}<"))
    code, printed, err = hgld("report", tmp_path / "board", "--latex", tmp_path / "t.tex", "--json")
    assert code == 0, err
    assert "    small & " in (tmp_path / "t.tex").read_text()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            "embed --out e.npy --data DATA",
            "expected one model, as --checkpoint RUN or --model NETWORK; neither is given.",
        ),
        ("embed --out e.npy --data DATA --model small --checkpoint RUN", "--model NETWORK; both are given."),
        ("embed --out e.npy --data DATA --checkpoint RUN --weights none", "--weights needs --model"),
        (
            "embed --out e.npy --data DATA --model small --checkpoint-choice last",
            "--checkpoint-choice chooses a checkpoint of a run",
        ),
        (
            "evaluate --model small --model pixels --weights none --data DATA --split test",
            "--weights: give one value per --model",
        ),
        ("evaluate --model small --model small --data DATA --split test", "'small, default' is given twice"),
        ("evaluate --model small --model pixels --data DATA --split test --out b.tex", "can be a .html"),
        (
            "evaluate --model small --model pixels --data DATA --split test --quantize int8",
            "--quantize needs a single model",
        ),
        ("evaluate --model small --split test", "a model needs --data DIR"),
        ("evaluate --model small --data DATA --split test --embeddings e.npy", "--embeddings cannot be combined"),
        ("evaluate --resize-mode squash", "--resize-mode needs --checkpoint or --model; neither is given."),
        ("evaluate --model none:such --data DATA --split test", "'none:such' is not a model; expected a run's folder"),
    ],
)
def test_invalid_models_give_one_line_errors(places, tmp_path, hgld, monkeypatch, words, said):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "one.jpg").write_bytes((places / "one.jpg").read_bytes())
    arguments = [
        word.replace("DATA", str(places / "data")).replace("RUN", str(places / "run")) for word in words.split()
    ]
    code, out, err = hgld(*arguments)
    assert (code, out) == (2, "")
    assert said in err
    assert err.count("\n") == 1
