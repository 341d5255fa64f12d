"""A model of ``hgld.load_model`` encodes every image type, searches, predicts, evaluates and can be saved."""

import io
import json

import numpy as np
import pytest
import torch
from PIL import Image

import hgld
from hgld.errors import ConfigError, HgldError, InputError, StorageError
from hgld.training.inference.embedder import Embedder
from tests.hgld.small_dataset import items_of_classes, write_dataset
from tests.rows import refused
from tests.training.untrained_run import write_run

SIZE = 24


def square(color: tuple[int, int, int], seed: int) -> Image.Image:
    noise = np.random.default_rng(seed).integers(-9, 10, (32, 40, 3))
    return Image.fromarray((np.array(color) + noise).clip(0, 255).astype(np.uint8))


COLORS = {"rot": (200, 30, 30), "grün": (30, 180, 40), "blau": (20, 40, 190)}


@pytest.fixture(scope="module")
def photos(module_path):
    """A folder with one subfolder per class, a broken image and a text file."""
    folder = module_path / "photos"
    for name, color in COLORS.items():
        (folder / name).mkdir(parents=True)
        for seed in range(4):
            square(color, seed).save(folder / name / f"{seed}.png")
    (folder / "rot/broken.jpg").write_bytes(b"\xff\xd8\xff no image")
    (folder / "notes.txt").write_text("text")
    return folder


@pytest.fixture(scope="module")
def model():
    return hgld.load_model("small", weights="none", size=SIZE, device="cpu")


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


# -- encode -----------------------------------------------------------------------------------------------------------


def test_encode_gives_equal_embeddings_for_every_input_type(model, photos):
    path = photos / "rot/0.png"
    picture = Image.open(path)
    array = np.array(picture)
    expected = model.encode(path)
    assert (expected.shape, expected.dtype) == ((1, model.dim), np.float32)
    np.testing.assert_allclose(np.linalg.norm(expected, axis=1), 1, atol=1e-6)
    chw = torch.from_numpy(array).permute(2, 0, 1)
    for one in (str(path), [path], picture, [picture], array, array[None], [array], chw, chw[None], [chw]):
        np.testing.assert_array_equal(model.encode(one), expected)


def test_encode_keeps_the_order_of_folders_and_datasets(model, photos, tmp_path):
    whole = model.encode(photos / "blau", batch_size=3)
    np.testing.assert_allclose(whole, model.encode(sorted((photos / "blau").iterdir())), atol=1e-6)
    np.testing.assert_allclose(whole, model.encode(hgld.open_dataset(photos / "blau")), atol=1e-6)
    write_dataset(tmp_path / "data", items_of_classes([3, 2], ["test"]))
    assert model.encode(tmp_path / "data", progress=True).shape == (5, model.dim)


def test_encode_applies_exif_orientation(model):
    stored = square(COLORS["rot"], 0)
    file = io.BytesIO()
    exif = Image.Exif()
    exif[0x0112] = 6
    stored.save(file, "PNG", exif=exif)
    np.testing.assert_array_equal(
        model.encode(Image.open(file)), model.encode(stored.transpose(Image.Transpose.ROTATE_270))
    )


test_encode_refuses_inputs_that_are_not_images = refused(
    lambda images, *, model: model.encode(images),
    [
        (np.zeros((8, 8, 3)), "array of float64; expected uint8 RGB .*255 \\* image"),
        (torch.zeros(2, 3, 8, 8), "array of float32.*model.module"),
        (np.zeros((8, 8, 5), np.uint8), r"shape \(8, 8, 5\); expected \(H, W, 3\)"),
        ([3], "an image is int; expected a path, a PIL image or a uint8 array"),
        ([], "there are no images"),
        ("nowhere.jpg", "nowhere.jpg: cannot be read"),
        ("nowhere", "found no dataset.json"),
    ],
    InputError,
)


# -- search, predict, evaluate ----------------------------------------------------------------------------------------


def test_search_finds_the_class_and_caches_gallery_embeddings(model, photos, monkeypatch):
    query = square(COLORS["grün"], 9)
    found = hgld.search(query, photos, k=4, model=model)
    assert found.left_out == 1
    assert [match.classes for match in found[0]] == [{"level0": "grün"}] * 4
    assert {match.key for match in found[0]} == {f"grün/{seed}.png" for seed in range(4)}
    vectors = model.encode([photos / name / f"{seed}.png" for name in COLORS for seed in range(4)])
    expected = np.sort(vectors @ model.encode(query)[0])[::-1][:4]
    np.testing.assert_allclose([match.score for match in found[0]], expected, atol=1e-5)
    monkeypatch.setattr(Embedder, "embed_readable", None)  # fails if the second search embeds the gallery again
    again = model.search([query, square(COLORS["rot"], 9)], photos, k=4)
    assert again[0] == found[0]
    assert [[match.classes["level0"] for match in matches] for matches in again] == [["grün"] * 4, ["rot"] * 4]


def test_search_of_embedding_arrays_needs_no_model(model, photos):
    gallery, query = model.encode(photos / "rot/0.png"), model.encode(photos / "blau")
    assert hgld.search(query, np.concatenate([query, gallery]), k=1).indices[:, 0].tolist() == [0, 1, 2, 3]
    for sides, words in (
        (("photo.jpg", query), "query is str; expected embeddings.*model=hgld.load_model"),
        ((query, "photos"), "gallery is str"),
    ):
        with pytest.raises(InputError, match=words):
            hgld.search(*sides)
    with pytest.raises(ConfigError, match=r"model is str; expected what hgld\.load_model returns"):
        hgld.search("photo.jpg", "photos", model="small")


def test_uncertain_prediction_contains_a_best_guess(model, photos):
    queries = [square(COLORS["rot"], 7), square(COLORS["blau"], 7)]
    found = model.predict(queries, photos)
    assert [one.guess for one in found] == [{"level0": "rot"}, {"level0": "blau"}]
    assert found.levels == ("level0",)
    unsure = model.predict(queries, photos, min_confidence=1.1)[0]
    assert (unsure.level, dict(unsure.path), unsure.guess) == (None, {}, {"level0": "rot"})
    assert 0 < unsure.confidences["level0"] <= 1


def test_evaluating_a_model_equals_evaluating_its_embeddings(model, photos):
    report = hgld.evaluate(model, photos, metrics=("R@1", "AP"))
    assert next(iter(report.settings["unreadable"].values())) == 1
    good = hgld.open_dataset(photos)
    good = good.select([i for i, key in enumerate(good.keys) if "broken" not in key])
    expected = hgld.evaluate(model.encode(good), good, metrics=("R@1", "AP")).values
    assert report.values == pytest.approx(expected)
    assert hgld.evaluate(model, hgld.open_dataset(photos), metrics=("R@1", "AP")).values == pytest.approx(expected)


# -- load and save ----------------------------------------------------------------------------------------------------


def test_saved_network_gives_equal_embeddings_after_loading(model, photos, tmp_path):
    folder = model.save(tmp_path / "net")
    again = hgld.load_model(folder, device="cpu")
    np.testing.assert_array_equal(again.encode(photos / "rot/0.png"), model.encode(photos / "rot/0.png"))
    assert again.embedder.view == model.embedder.view
    twice = hgld.load_model(again.save(tmp_path / "twice"), device="cpu")
    np.testing.assert_array_equal(twice.encode(photos / "rot/0.png"), model.encode(photos / "rot/0.png"))
    with pytest.raises(StorageError, match="exists already"):
        model.save(folder)


def test_saved_run_contains_its_best_checkpoint(photos, tmp_path):
    write_run(tmp_path / "run", averaged=True)
    trained = hgld.load_model(tmp_path / "run", device="cpu")
    again = hgld.load_model(trained.save(tmp_path / "copy"), device="cpu")
    for other, same in ((again, True), (hgld.load_model(tmp_path / "run", "last", device="cpu"), False)):
        alike = np.array_equal(other.encode(photos / "rot/0.png"), trained.encode(photos / "rot/0.png"))
        assert alike == same


class Colors(torch.nn.Module):
    """A user's torch module that returns the mean colours."""

    def forward(self, images):
        return images.mean(dim=(2, 3))


def to_tensor(picture):
    return torch.from_numpy(np.array(picture.resize((8, 8)))).permute(2, 0, 1) / 255


def test_torch_module_embeds_with_the_given_transform(photos, tmp_path):
    own = hgld.load_model(Colors(), transform=to_tensor, batch_size=2, device="cpu")
    with Image.open(photos / "rot/1.png") as picture:
        expected = to_tensor(picture).mean((1, 2)).numpy()
    np.testing.assert_allclose(own.encode(photos / "rot/1.png")[0], expected / np.linalg.norm(expected), atol=1e-6)
    found = own.search(square(COLORS["blau"], 3), photos, k=1)
    assert (found.left_out, found[0][0].classes) == (1, {"level0": "blau"})
    assert hgld.evaluate(own, photos, metrics=("R@1",)).values["R@1/level0"] == 1
    with pytest.raises(InputError, match=r"rot/broken\.jpg"):
        own.encode(photos)
    with pytest.raises(ConfigError, match=r"torch\.save"):
        own.save(tmp_path / "own")


test_load_model_refuses_invalid_paths_and_names = refused(
    lambda source, options: hgld.load_model(source, device="cpu", **options),
    [
        (Colors(), {}, "a torch module needs transform="),
        ("small", {"transform": to_tensor}, "transform= is only for torch modules"),
        (Colors(), {"transform": lambda picture: picture}, "transform returns Image"),
        (torch.nn.Identity(), {"transform": to_tensor}, "the module returns"),
        ("tim:resnet18", {}, "'tim:resnet18' is not a model; expected a run's folder"),
        ("small", {"which": "last"}, "a network has no checkpoints"),
        (".", {"pooling": "max"}, "is a run, which has its own weights and pooling"),
        ("hf:", {}, "expected hf:USER/NAME"),
    ],
    HgldError,
)


def load_changed(change, *, model, tmp_path):
    folder = model.save(tmp_path / "net")
    record = json.loads((folder / "model.json").read_text()) | change
    (folder / "model.json").write_text(json.dumps(record))
    hgld.load_model(folder, device="cpu")


test_damaged_saved_model_is_refused = refused(
    load_changed,
    [
        ({"schema_version": 9}, "schema version is 9"),
        ({"name": 3}, "not the record of a saved model"),
        ({"view": {"size": 0}}, "not the record of a saved model"),
        ({"name": "small-resnet"}, "not the weights that model.json describes"),
    ],
    InputError,
)
