"""``hgld calibrate`` and the predictions of ``hgld search``: files, confidence, known classes, texts, and errors."""

import html
import io
import json
import re
import shlex
import shutil
from contextlib import redirect_stderr, redirect_stdout
from typing import Any

import numpy as np
import pytest

from hgld import open_dataset
from hgld.cli import main
from hgld.prediction import Calibration
from tests.hgld.small_dataset import items_of_classes, write_dataset
from tests.rows import each_row
from tests.training.untrained_run import write_run

SEARCH = ("search", "one.jpg", "--checkpoint", "run", "--data", "data", "--device", "cpu")
CALIBRATE = ("calibrate", "--checkpoint", "run", "--data", "data", "--device", "cpu")


@pytest.fixture(scope="module")
def world(module_path):
    """A dataset of 30 classes in three splits, a run, and its calibration."""
    write_dataset(module_path / "data", items_of_classes([2] * 30, ["train", "val", "test"], per_coarse=5))
    write_run(module_path / "run")
    (module_path / "one.jpg").write_bytes(open_dataset(module_path / "data").read(2))
    said = io.StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(said), redirect_stderr(said):
        patch.chdir(module_path)
        for command in (SEARCH, CALIBRATE):
            with pytest.raises(SystemExit) as stop:
                main(command)
            assert stop.value.code == 0
    follows = [line for line in said.getvalue().splitlines() if line.startswith("next: ")]
    of_run = "--checkpoint run --data data"
    assert follows == [f"next: hgld calibrate {of_run}", f"next: hgld search PHOTO.jpg {of_run}"]
    return module_path


@pytest.fixture(autouse=True)
def in_world(world, monkeypatch):
    monkeypatch.chdir(world)
    monkeypatch.setenv("XDG_CACHE_HOME", str(world / "cache"))


def test_calibrate_writes_its_result_and_settings_into_the_run(world):
    made = Calibration.load(world / "run" / "calibration.json")
    assert made.levels == ("fine", "coarse")
    assert {name: risks[0].queries for name, risks in made.risks.items()} == {"val": 3 * 20, "test": 3 * 20}
    facts = {"split": "val", "items": 20, "gallery_items": 60, "checkpoint": "step-00000001"}
    assert facts.items() <= made.facts.items()


def test_prediction_level_depends_on_minimum_confidence(output, json_of):
    (found,) = json_of(*SEARCH, "--min-confidence", "0", said="")["queries"]
    answer = found["answer"]
    assert (answer["level"], list(answer["path"])) == ("fine", ["fine", "coarse"])
    first = found["matches"][0]
    assert first["key"] in answer["support"] or first["classes"]["fine"] != answer["path"]["fine"]
    path = f"{answer['path']['coarse']} › {answer['path']['fine']}"
    assert f"{path} (fine, confidence" in output(*SEARCH, "--min-confidence", "0")
    (coarse,) = json_of(*SEARCH, "--min-confidence", "0", "--level", "coarse")["queries"]
    assert (coarse["answer"]["level"], list(coarse["answer"]["path"])) == ("coarse", ["coarse"])
    assert coarse["answer"]["confidence"] >= answer["confidence"]
    assert f"not sure; best guess: {path} (confidence: coarse 0." in output(*SEARCH, "--min-confidence", "1.1")
    (indexed,) = json_of(*SEARCH, "--min-confidence", "0", "--index", "ivf")["queries"]
    assert indexed["answer"] == answer


def test_search_restricted_to_a_class_returns_only_images_of_that_class(json_of):
    (found,) = json_of(*SEARCH, "--within", "coarse=2", "--min-confidence", "0")["queries"]
    assert {match["classes"]["coarse"] for match in found["matches"]} == {"2"}
    assert found["answer"]["path"]["coarse"] == "2"
    (found,) = json_of(*SEARCH, "--within", "coarse=2", "--level", "coarse")["queries"]
    assert found["answer"]["confidence"] == 1


def test_search_ignores_a_calibration_made_with_other_weights_and_prints_a_note(json_of, refusal, world):
    said = "run/calibration.json: it was made with other weights, so no class is predicted. Calibrate again: "
    told = json_of(*SEARCH, "--checkpoint-choice", "last", said=f"{said}hgld calibrate\n")
    assert "answer" not in told["queries"][0]
    for words, said in (
        (("--calibration", "run/calibration.json"), "it was made with other weights. Calibrate again"),
        (("--min-confidence", "0.5"), "--min-confidence and --level affect only predictions"),
    ):
        assert said in refusal(*SEARCH, "--checkpoint-choice", "last", *words)


@pytest.mark.slow
def test_damaged_calibration_stops_only_commands_that_require_it(hgld, refusal, world, tmp_path):
    run = shutil.copytree(world / "run", tmp_path / "run")
    (run / "calibration.json").write_text("[")
    search = [str(run) if word == "run" else word for word in SEARCH]
    code, out, err = hgld(*search, "--json")
    assert (code, "answer" in json.loads(out)["queries"][0]) == (0, False)
    assert err.startswith(f"{run}/calibration.json: not valid JSON")
    for asked in (("--min-confidence", "0.5"), ("--calibration", str(run / "calibration.json"))):
        assert f"{run}/calibration.json: not valid JSON" in refusal(*search, *asked)


@pytest.fixture(scope="module")
def tiny_clip(tmp_path_factory):
    """Name of a tiny CLIP model that runs fast."""
    import open_clip

    config = {
        "embed_dim": 8,
        "vision_cfg": {"image_size": 32, "layers": 1, "width": 16, "head_width": 8, "patch_size": 16},
        "text_cfg": {"context_length": 77, "vocab_size": 49408, "width": 8, "heads": 1, "layers": 1},
    }
    path = tmp_path_factory.mktemp("clip") / "tiny-for-tests.json"
    path.write_text(json.dumps(config))
    open_clip.add_model_config(path)
    return path.stem


@pytest.mark.slow
def test_text_queries_use_the_text_tower_of_the_model(output, refusal, tiny_clip, world, tmp_path):
    import open_clip
    import torch

    clip: Any = open_clip.create_model(tiny_clip)
    torch.save(clip.state_dict(), tmp_path / "clip.pt")
    words = ("search", "--model", f"open_clip:{tiny_clip}", "--weights", str(tmp_path / "clip.pt"), "--data", "data")
    words += ("--device", "cpu", "--json")
    out = output(*words, "one.jpg", "--text", "a stone bridge", "--text", "a lake", said="")
    image, *texts = json.loads(out)["queries"]
    assert image["image"] == "one.jpg"
    assert [text["text"] for text in texts] == ["a stone bridge", "a lake"]
    with torch.inference_mode():
        tokenize: Any = open_clip.get_tokenizer("ViT-B-32")
        tokens = tokenize(["a stone bridge", "a lake"])
        vectors = clip.eval().encode_text(tokens, normalize=True).numpy()
    output("embed", *words[1:-1], "--out", str(tmp_path / "e.npy"))
    scores = vectors @ np.load(tmp_path / "e.npy").T
    for text, row in zip(texts, scores, strict=True):
        assert [match["score"] for match in text["matches"]] == pytest.approx(sorted(row, reverse=True)[:10], abs=1e-5)
    torch.save({n.removeprefix("visual."): t for n, t in clip.visual.state_dict().items()}, tmp_path / "tower.pt")
    err = refusal(*words[:4], str(tmp_path / "tower.pt"), *words[5:], "--text", "a lake")
    assert "only the weights of an image tower" in err


def test_search_page_frames_images_by_the_finest_level_shared_with_the_prediction(json_of, tmp_path):
    [query] = json_of(*SEARCH, "--k", "40", "--html", str(tmp_path / "found.html"))["queries"]
    text = (tmp_path / "found.html").read_text()
    guess = query["answer"]["guess"]
    shared = [[match["classes"][level] == guess[level] for level in ("fine", "coarse")] for match in query["matches"]]
    expected = ["g7" if fine else "g1" if coarse else "g0" for fine, coarse in shared]
    frames = re.findall(r'class="tile".*? style="--mark:var\(--(\w+)\)"(?: title="rank (\d+), )?', text)
    assert frames[0] == ("ink", "")
    assert frames[1:] == [(frame, str(rank)) for rank, frame in enumerate(expected, 1)]
    assert set(expected) == {"g7", "g1", "g0"}
    assert text.count("data:image/jpeg") == 41
    within = shlex.quote(f"coarse={guess['coarse']}")
    assert f'title="hgld search --within {within}"' in html.unescape(text)


@each_row(
    ("words", "said"),
    [
        ("search --text lake --checkpoint run", "Use --model open_clip:MODEL/PRETRAINED for texts."),
        ("search --text lake --model pixels", "--text: pixels has no text tower."),
        ("search --checkpoint run", "missing a query: give an IMAGE or a --text."),
        ("calibrate --checkpoint run --split nowhere --out c.json", "no split 'nowhere' with images; it has"),
        ("calibrate --checkpoint run --gallery-split nowhere --out c.json", "nowhere"),
        ("calibrate --model pixels", "Give a file to write: --out FILE.json"),
        ("search one.jpg --checkpoint run --within kind=2", "unknown level; the levels are fine, coarse."),
        ("search one.jpg --checkpoint run --within coarse=church", "unknown class; classes of coarse have names, such"),
        ("search one.jpg --checkpoint run --within coarse", "expected a level and one of its class names"),
        ("search one.jpg --checkpoint run --within coarse=2 --index ivf", "use --index exact"),
        ("search one.jpg --checkpoint run --within coarse=2 --within coarse=3", "--within names a level twice"),
        ("search one.jpg --checkpoint run --level kind", "--level kind is unknown; the dataset's levels are fine"),
    ],
)
def test_invalid_queries_and_calibrations_give_an_error(refusal, words, said):
    assert said in refusal(*words.split(), "--data", "data", "--device", "cpu")
