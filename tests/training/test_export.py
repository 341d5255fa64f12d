"""Exported models: run without hgld, the same embeddings, transforms beside them."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from hgld.errors import ConfigError, InputError, MissingExtraError, StorageError
from hgld.training.checkpoint import Checkpoint, write_checkpoint
from hgld.training.config import CONFIG, ImagesConfig, ModelConfig, TrainConfig, save_config
from hgld.training.inference import export
from hgld.training.inference.embedder import load_model
from hgld.training.inference.export import export_model
from hgld.training.models.backbones import build_model


def a_run(folder: Path, backbone: str = "small", pooling: Any = "gem", size: int = 32) -> Path:
    torch.manual_seed(0)
    model_config = ModelConfig(backbone=backbone, pretrained="none", pooling=pooling, dim=16)
    config = replace(TrainConfig(), model=model_config, images=ImagesConfig(size=size, resize=size + 8))
    model = build_model(config.model, image_size=size)
    write_checkpoint(folder, Checkpoint(1, {"model": model.state_dict()}, {}))
    save_config(config, folder / CONFIG)
    return folder


def some_images(count, size=32):
    return torch.randint(0, 256, (count, 3, size, size), dtype=torch.uint8, generator=torch.Generator().manual_seed(9))


def expected_embeddings(run, images):
    model, _ = load_model(run)
    pixels = images.float() / 255
    mean, std = torch.tensor(model.image_mean).view(3, 1, 1), torch.tensor(model.image_std).view(3, 1, 1)
    with torch.no_grad():
        return torch.nn.functional.normalize(model((pixels - mean) / std))


CASES = [
    ("small", "gem", 32),
    pytest.param("torchvision:resnet18", "avg", 64, marks=pytest.mark.slow),
    ("timm:test_vit", "token", 64),
]


@pytest.mark.filterwarnings("ignore:.torch.jit.load. is:FutureWarning")
@pytest.mark.parametrize(("backbone", "pooling", "size"), CASES)
def test_torchscript_gives_the_models_embeddings(tmp_path, monkeypatch, backbone, pooling, size):
    run = a_run(tmp_path / "run", backbone, pooling, size)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)  # a GPU is not asked
    export_model(run, tmp_path / "model.pt", "torchscript")
    monkeypatch.undo()
    loaded = torch.jit.load(tmp_path / "model.pt")
    assert "Device" not in str(loaded.inlined_graph)  # none of the trace's: it goes to a GPU whole
    for images in (some_images(1, size), some_images(5, size)):
        found = loaded(images)
        torch.testing.assert_close(found, expected_embeddings(run, images), rtol=0, atol=1e-5)
        torch.testing.assert_close(loaded(images.float()), found)
        torch.testing.assert_close(found.norm(dim=1), torch.ones(len(images)))


@pytest.mark.slow
@pytest.mark.parametrize(("backbone", "pooling", "size"), CASES)
def test_onnx_gives_the_models_embeddings(tmp_path, backbone, pooling, size):
    onnxruntime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    run = a_run(tmp_path / "run", backbone, pooling, size)
    export_model(run, tmp_path / "model.onnx", "onnx")
    session = onnxruntime.InferenceSession(tmp_path / "model.onnx", providers=["CPUExecutionProvider"])
    for images in (some_images(1, size), some_images(5, size)):
        (found,) = session.run(None, {"images": images.numpy()})
        np.testing.assert_allclose(found, expected_embeddings(run, images).numpy(), atol=1e-5)


@pytest.mark.slow
def test_others_use_it_without_hgld(tmp_path):
    run = a_run(tmp_path / "run")
    record = export_model(run, tmp_path / "model.pt", "torchscript")
    picture = Image.fromarray(np.random.default_rng(0).integers(0, 256, (50, 70, 3), dtype=np.uint8))
    picture.save(tmp_path / "picture.png")
    code = """
import json, sys, warnings
import torch
from torchvision.transforms.v2 import functional
from torchvision.io import decode_image
warnings.simplefilter("ignore")
about = json.load(open(sys.argv[1]))
resize, crop = about["transforms"][1:]
image = decode_image(sys.argv[3])
image = functional.resize(image, resize["short_side"], antialias=resize["antialias"])
image = functional.center_crop(image, crop["size"])
print(json.dumps(torch.jit.load(sys.argv[2])(image[None])[0].tolist()))
assert "hgld" not in sys.modules and "training" not in sys.modules
"""
    command = [sys.executable, "-c", code, str(record), str(tmp_path / "model.pt"), str(tmp_path / "picture.png")]
    result = subprocess.run(command, capture_output=True, text=True, check=True, cwd=tmp_path)
    values = torch.tensor(json.loads(result.stdout))
    from torchvision.transforms.v2 import functional

    pixels = functional.center_crop(functional.resize(functional.pil_to_tensor(picture), [40], antialias=True), [32])
    torch.testing.assert_close(values, expected_embeddings(run, pixels[None])[0], rtol=0, atol=1e-5)


def test_the_json_beside_says_how_to_prepare_images(tmp_path):
    record = export_model(a_run(tmp_path / "run"), tmp_path / "model.pt", "torchscript")
    assert record == tmp_path / "model.pt.json"
    about = json.loads(record.read_text())
    assert about["input"]["shape"] == ["batch", 3, 32, 32]
    assert [t["name"] for t in about["transforms"]] == ["orient", "resize", "center_crop"]
    assert about["transforms"][1]["short_side"] == 40
    assert about["output"]["shape"] == ["batch", 16]
    assert about["inside"]["mean"] == [0.485, 0.456, 0.406]
    assert str(tmp_path) not in record.read_text()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["model.pt", "model.pt.json", "run"]


def test_a_file_that_gives_other_embeddings_is_not_kept(tmp_path, monkeypatch):
    run = a_run(tmp_path / "run")
    monkeypatch.setattr(export, "_run_torchscript", lambda _: lambda images: torch.zeros(len(images), 16))
    with pytest.raises(ConfigError, match="other embeddings than the model"):
        export_model(run, tmp_path / "model.pt", "torchscript")
    assert [p.name for p in tmp_path.iterdir()] == ["run"]


def test_a_model_that_cannot_be_traced_is_said(tmp_path, monkeypatch):
    def refuse(*_, **__):
        raise RuntimeError("data-dependent\ncontrol flow")

    monkeypatch.setattr("torch.jit.trace", refuse)
    with pytest.raises(ConfigError, match=r"cannot be written as torchscript .data-dependent control flow"):
        export_model(a_run(tmp_path / "run"), tmp_path / "model.pt", "torchscript")


def test_refusals(tmp_path, monkeypatch):
    run = a_run(tmp_path / "run")
    with pytest.raises(ConfigError, match="torchscript or onnx"):
        export_model(run, tmp_path / "m", "coreml")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="no checkpoint"):
        export_model(tmp_path / "nowhere", tmp_path / "m.pt", "torchscript")
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(StorageError, match="cannot write"):
        export_model(run, tmp_path / "file" / "m.pt", "torchscript")
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    with pytest.raises(MissingExtraError, match=r"takes the package onnxscript, .* pip install 'hgld\[onnx\]'"):
        export_model(run, tmp_path / "m.onnx", "onnx")
