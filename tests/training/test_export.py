"""Exported models run without hgld, give the same embeddings and have a record of the preprocessing."""

import json
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from hgld.errors import ConfigError, InputError, StorageError
from hgld.training.config import ImagesConfig, ModelConfig, TrainConfig
from hgld.training.inference import export
from hgld.training.inference.embedder import load_run
from hgld.training.inference.export import export_model
from tests.training.untrained_run import write_run


def a_run(folder, backbone="small", pooling="gem", size=32):
    model = ModelConfig(backbone=backbone, pretrained="none", pooling=pooling, dim=16)
    write_run(folder, config=replace(TrainConfig(), model=model, images=ImagesConfig(size=size, resize=size + 8)))
    return folder


def expected_embeddings(run, images):
    model, _ = load_run(run)
    pixels = images.float() / 255
    mean, std = torch.tensor(model.image_mean).view(3, 1, 1), torch.tensor(model.image_std).view(3, 1, 1)
    with torch.no_grad():
        return torch.nn.functional.normalize(model((pixels - mean) / std))


def export_somewhere(run, out, monkeypatch):
    """Write the record without the network, because the ONNX exporter takes seconds."""
    monkeypatch.setattr(export, "_write", lambda embedder, size, path: path.write_bytes(b"onnx"))
    monkeypatch.setattr(export, "_compare", lambda path, embedder, size: None)
    return export_model(run, out)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("backbone", "pooling", "size"),
    [("small", "gem", 32), ("timm:test_vit", "token", 64)],
)
def test_exported_onnx_reproduces_embeddings_without_hgld(tmp_path, backbone, pooling, size):
    onnxruntime = pytest.importorskip("onnxruntime")
    run = a_run(tmp_path / "run", backbone, pooling, size)
    about = json.loads(export_model(run, tmp_path / "model.onnx").read_text())
    session = onnxruntime.InferenceSession(tmp_path / "model.onnx", providers=["CPUExecutionProvider"])
    for count in (1, 5):
        generator = torch.Generator().manual_seed(9)
        images = torch.randint(0, 256, (count, *about["input"]["shape"][1:]), dtype=torch.uint8, generator=generator)
        (found,) = session.run(None, {"images": images.numpy()})
        np.testing.assert_allclose(found, expected_embeddings(run, images).numpy(), atol=1e-5)


def test_export_record_describes_the_preprocessing(tmp_path, monkeypatch):
    record = export_somewhere(a_run(tmp_path / "run"), tmp_path / "model.onnx", monkeypatch)
    assert record == tmp_path / "model.onnx.json"
    about = json.loads(record.read_text())
    assert about["input"]["shape"] == ["batch", 3, 32, 32]
    assert [t["name"] for t in about["transforms"]] == ["orient", "resize", "center_crop"]
    assert about["transforms"][1]["short_side"] == 40
    assert about["output"]["shape"] == ["batch", 16]
    assert about["inside"]["mean"] == [0.485, 0.456, 0.406]
    assert str(tmp_path) not in record.read_text()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["model.onnx", "model.onnx.json", "run"]


def test_exported_model_with_wrong_embeddings_is_deleted(tmp_path, monkeypatch):
    run = a_run(tmp_path / "run")
    onnxruntime = pytest.importorskip("onnxruntime")
    monkeypatch.setattr(export, "_write", lambda embedder, size, path: path.write_bytes(b"onnx"))
    session = SimpleNamespace(run=lambda _, fed: [np.zeros((len(fed["images"]), 16), np.float32)])
    monkeypatch.setattr(onnxruntime, "InferenceSession", lambda *_, **__: session)
    with pytest.raises(ConfigError, match="the embeddings of the ONNX file differ"):
        export_model(run, tmp_path / "model.onnx")
    assert [p.name for p in tmp_path.iterdir()] == ["run"]


def test_export_refuses_missing_runs_and_unsupported_models(tmp_path, monkeypatch):
    def refuse(*_, **__):
        raise RuntimeError("data-dependent\ncontrol flow")

    run = a_run(tmp_path / "run")
    with pytest.raises(InputError, match="no checkpoint"):
        export_model(tmp_path / "nowhere", tmp_path / "m.onnx")
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(StorageError, match="cannot write"):
        export_somewhere(run, tmp_path / "file" / "m.onnx", monkeypatch)
    monkeypatch.undo()
    monkeypatch.setattr("torch.onnx.export", refuse)
    with pytest.raises(ConfigError, match=r"cannot be written as ONNX .data-dependent control flow"):
        export_model(run, tmp_path / "m.onnx")
