"""Export of a trained model: an ONNX file that runs without hgld, or the files of a run for the Hub."""

import json
import warnings
from dataclasses import asdict
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

import torch
from torch import Tensor, nn

from hgld.errors import ConfigError, excerpt, optional_dependency, storage_errors
from hgld.files import write_atomic
from hgld.hub import Contents, model_card, repository
from hgld.prediction.calibration import CALIBRATION

from ..batches import square_view
from ..checkpoint import STATE, find_checkpoint, read_state, selection_of, state_text
from ..config import CONFIG, read_config
from ..log import EVALUATIONS, iter_rows
from ..models.embedding_model import EmbeddingModel
from ..models.networks import write_new_folder
from .classification import CLASSES
from .embedder import load_run

SCHEMA_VERSION = 1
_TOLERANCE = 1e-4  # maximum difference between entries of unit vectors


class ImageEmbedder(nn.Module):
    """An embedding model that takes raw RGB values and returns unit vectors: it normalises images and embeddings.

    Args:
        model: the model.
    """

    pixel_mean: Tensor
    pixel_std: Tensor

    def __init__(self, model: EmbeddingModel) -> None:
        super().__init__()
        self.model = model
        # Not "mean": onnxscript gives this name to a folded mean inside the model, and fails if the name exists.
        self.register_buffer("pixel_mean", torch.tensor(model.image_mean).view(1, 3, 1, 1) * 255)
        self.register_buffer("pixel_std", torch.tensor(model.image_std).view(1, 3, 1, 1) * 255)

    def forward(self, images: Tensor) -> Tensor:
        """Embed (B, 3, S, S) RGB values 0..255, uint8 or floating -> (B, D) float32 unit vectors."""
        return nn.functional.normalize(self.model((images.to(torch.float32) - self.pixel_mean) / self.pixel_std), dim=1)


def export_model(path: Path, out: Path, which: Literal["best", "last"] = "best") -> Path:
    """Write a trained model as one file, and ``OUT.json`` next to it, which describes how to prepare images.

    The written file is run on random images, and its embeddings are compared with the model's embeddings.

    Args:
        path: folder of a run or of a checkpoint.
        out: the ONNX file to write; its network takes uint8 images.
        which: checkpoint of a run.

    Returns:
        the path of the JSON file.

    Raises:
        InputError: there is no checkpoint, or it cannot be read.
        ConfigError: the model cannot be exported to ONNX.
        MissingExtraError: a package that ONNX needs is not installed.
        StorageError: the files cannot be written.
    """
    with optional_dependency("onnx", "an export"):
        for name in ("onnx", "onnxscript", "onnxruntime"):
            import_module(name)
    checkpoint = find_checkpoint(path, which)
    model, config = load_run(checkpoint)
    view, embedder = square_view(config.images), ImageEmbedder(model).eval()
    size, record = view.size, out.with_name(out.name + ".json")
    whole = {"interpolation": "bilinear", "antialias": True}
    resized: list[dict[str, Any]] = [{"name": "resize", "width": size, "height": size, **whole}]
    if view.resize_mode != "squash":
        resized = [{"name": "resize", "short_side": view.resize, **whole}, {"name": "center_crop", "size": size}]
    described = {
        "schema_version": SCHEMA_VERSION,
        "file": out.name,
        "format": "onnx",
        "input": {"name": "images", "shape": ["batch", 3, size, size], "dtype": "uint8", "colors": "RGB"},
        "transforms": [{"name": "orient", "by": "EXIF"}, *resized],
        "view": {"size": size, "resize": view.resize, "resize_mode": view.resize_mode},
        "inside": {"mean": model.image_mean, "std": model.image_std, "l2_normalised": True},
        "output": {"name": "embeddings", "shape": ["batch", model.dim], "dtype": "float32"},
        "model": {**asdict(config.model), "pretrained": "none"},
        "checkpoint": checkpoint.name,
        "selection": selection_of(checkpoint),
    }
    with storage_errors(f"write {out}", "Free space, or choose another --out."):
        with TemporaryDirectory(prefix="hgld-") as folder:
            file = Path(folder, "model.onnx")
            _write(embedder, size, file)
            _compare(file, embedder, size)
            data = file.read_bytes()
        out.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(out, data)
        write_atomic(record, json.dumps(described, indent=2) + "\n")
    return record


def _write(embedder: nn.Module, size: int, path: Path) -> None:
    try:
        with torch.no_grad(), warnings.catch_warnings():
            # ignore general warnings about tracing: the comparison below finds wrong traces
            warnings.simplefilter("ignore")
            torch.onnx.export(
                embedder,
                (_images(2, size),),
                path,
                dynamo=True,
                verbose=False,
                external_data=False,
                input_names=["images"],
                output_names=["embeddings"],
                dynamic_shapes=({0: torch.export.Dim("batch")},),
            )
    except (RuntimeError, TypeError, AttributeError) as error:
        raise ConfigError(f"this model cannot be written as ONNX ({excerpt(error)}).") from error


def _images(count: int, size: int) -> Tensor:
    generator = torch.Generator().manual_seed(count)
    return torch.randint(0, 256, (count, 3, size, size), dtype=torch.uint8, generator=generator)


def _compare(path: Path, embedder: nn.Module, size: int) -> None:
    """Raise an error if the file's embeddings of noise images differ from the model's embeddings."""
    import onnxruntime

    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    for count in (1, 3):
        images = _images(count, size)
        found = torch.from_numpy(session.run(None, {"images": images.numpy()})[0])
        with torch.no_grad():
            expected = embedder(images)
        apart = float((expected - found).abs().max()) if found.shape == expected.shape else float("inf")
        if not apart <= _TOLERANCE:
            raise ConfigError(
                f"the embeddings of the ONNX file differ from the model's ({count} images, entries up to {apart:.2g} "
                f"apart, at most {_TOLERANCE:g} expected); nothing was written."
            )


# -- copies of a run for the Hub and for a new folder --


def run_contents(run: Path, address: str) -> Contents:
    """Return the files of a run to push: the files that :func:`hgld.load_model` reads, and a card.

    Args:
        run: folder of a run or of one of its checkpoints.
        address: address of the run on the Hub, ``hf:USER/NAME``, for the card.

    Raises:
        InputError: there is no checkpoint, or it cannot be read.
    """
    checkpoint = find_checkpoint(run)
    folder = checkpoint.parent.parent
    state, config = read_state(checkpoint), read_config(folder / CONFIG)
    rows = [row for row in iter_rows(folder / EVALUATIONS) if row["step"] == str(state["step"])]
    # columns of other splits' levels are empty
    last = {name: text for name, text in rows[-1].items() if text} if rows else {}
    values = {name: float(text) for name, text in last.items() if name not in ("step", "epoch", "split")}
    facts = {
        "recipe": config.recipe or "none",
        "backbone": config.model.backbone,
        "loss": config.loss.loss,
        "image size": config.images.size,
        "checkpoint": f"step {state['step']}, {selection_of(checkpoint)}",
    }
    card = model_card(repository(address), facts, values, last.get("split", ""))
    return Contents("model", {"README.md": card.encode(), **_files(checkpoint)})


def write_run(run: Path, folder: Path) -> None:
    """Write the files of a run that :func:`hgld.load_model` reads to a new folder, with classes and calibration.

    Raises:
        InputError: there is no checkpoint, or it cannot be read.
        StorageError: the folder is not empty, or cannot be written.
    """
    checkpoint = find_checkpoint(run)
    further = [checkpoint.parent.parent / name for name in (CLASSES, CALIBRATION)]
    files = _files(checkpoint) | {path.name: path for path in further if path.is_file()}

    def fill(made: Path) -> None:
        for name, content in files.items():
            (made / name).parent.mkdir(parents=True, exist_ok=True)
            (made / name).write_bytes(content if isinstance(content, bytes) else content.read_bytes())

    write_new_folder(folder, fill)


def _files(checkpoint: Path) -> dict[str, Path | bytes]:
    state, folder = read_state(checkpoint), checkpoint.parent.parent
    weights = "ema" if "ema" in state["files"] else "model"
    kept = {"step": state["step"], "files": {weights: state["files"][weights]}}
    place = f"{checkpoint.parent.name}/{checkpoint.name}"
    return {
        CONFIG: folder / CONFIG,
        f"{place}/{STATE}": state_text(kept).encode(),
        f"{place}/{weights}.safetensors": checkpoint / f"{weights}.safetensors",
    }
