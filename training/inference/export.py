"""A trained model as one ONNX file that runs without hgld, with its transforms as JSON beside it."""

import json
import os
import shutil
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from importlib import import_module
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from hgld.errors import ConfigError, StorageError, optional_dependency
from hgld.evaluation.postprocess import Whitening
from hgld.files import aside_of, file_lock, lock_of, put_in_place

from ..batches import square_view
from ..checkpoint import find_checkpoint, selection_of
from ..config import TrainConfig
from ..models.embedding_model import EmbeddingModel
from .classification import WhitenedHead, read_classifier, require_classifier
from .embedder import load_model

SCHEMA_VERSION = 1
_ONNX_PACKAGES = ("onnx", "onnxscript", "onnxruntime")
_COUNTS = (1, 3)  # images in the batches that are compared
_TOLERANCE = 1e-4  # of the entries of unit vectors


class ImageEmbedder(nn.Module):
    """An embedding model from raw RGB values to unit vectors: with normalisation before and after it.

    Args:
        model: the model.
    """

    pixel_mean: Tensor
    pixel_std: Tensor

    def __init__(self, model: EmbeddingModel) -> None:
        super().__init__()
        self.model = model
        # Not "mean": onnxscript gives that name to a mean inside the model that it folds, and then finds it twice.
        self.register_buffer("pixel_mean", torch.tensor(model.image_mean).view(1, 3, 1, 1) * 255)
        self.register_buffer("pixel_std", torch.tensor(model.image_std).view(1, 3, 1, 1) * 255)

    def forward(self, images: Tensor) -> Tensor:
        """Embed (B, 3, S, S) RGB values 0..255, uint8 or floating -> (B, D) float32 unit vectors."""
        return nn.functional.normalize(self.unnormalised(images), dim=1)

    def unnormalised(self, images: Tensor) -> Tensor:
        """Embed the same images -> (B, D) float32 vectors as the model gives them."""
        return self.model((images.to(torch.float32) - self.pixel_mean) / self.pixel_std)


class ImageClassifier(nn.Module):
    """An embedding model whose vectors are whitened, with the classifier folded behind the whitening.

    Args:
        embedder: the model.
        head: whitening and classifier.
    """

    def __init__(self, embedder: ImageEmbedder, head: WhitenedHead) -> None:
        super().__init__()
        self.embedder, self.head = embedder, head

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Embed and classify (B, 3, S, S) RGB values -> (B, D) float32 unit whitened vectors, (B, C) scores."""
        return self.head(self.embedder.unnormalised(images))


def export_model(
    place: Path,
    out: Path,
    which: Literal["best", "last"] = "best",
    whitening: Path | None = None,
) -> Path:
    """Write a trained model as one file, and ``OUT.json`` beside it, which describes how to prepare images.

    The written file is run on random images, and its embeddings are compared with the model's.

    Args:
        place: a run's folder or that of a checkpoint.
        out: the file to write; its images are uint8.
        which: checkpoint of a run.
        whitening: a whitening of its embeddings (:class:`hgld.evaluation.postprocess.Whitening`), learned at the size
            that is exported: the file gives whitened vectors and, beside them, the scores of the run's classifier, into
            which the whitening is folded.

    Returns:
        the path of the JSON file.

    Raises:
        InputError: no checkpoint is there, or it cannot be read.
        ConfigError: a model that ONNX cannot hold, or a whitening that cannot be folded.
        SchemaError: a file of a whitening that hgld did not write.
        MissingExtraError: a package that ONNX needs is not installed.
        StorageError: the files cannot be written.
    """
    with optional_dependency("onnx", "an export"):
        for name in _ONNX_PACKAGES:
            import_module(name)
    found = find_checkpoint(place, which)
    model, config = load_model(found)
    size, classes = square_view(config.images).size, ()
    embedder: nn.Module = ImageEmbedder(model).eval()
    if whitening is not None:
        classifier = require_classifier(read_classifier(found, config))
        head, classes = WhitenedHead(classifier, Whitening.load(whitening)), classifier.names
        embedder = ImageClassifier(ImageEmbedder(model), head).eval()
    record = out.with_name(out.name + ".json")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        with file_lock(lock_of(out), keep=False), _empty_folder(aside_of(out)) as folder:
            aside = folder / out.name
            _write(embedder, size, aside)
            _compare(_run(aside), embedder, size)
            described = _description(config, model, out.name, classes)
            text = json.dumps(described | {"checkpoint": found.name, "selection": selection_of(found)}, indent=2)
            (folder / record.name).write_text(text + "\n", encoding="utf-8")
            put_in_place(aside, out)
            put_in_place(folder / record.name, record)
    except OSError as error:
        raise StorageError(f"cannot write {out} ({os.strerror(error.errno or 0)}).") from error
    return record


@contextmanager
def _empty_folder(folder: Path) -> Iterator[Path]:
    """Make a folder, empty whatever a stopped run left of it, and remove it in the end."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _write(embedder: nn.Module, size: int, path: Path) -> None:
    try:
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about tracing in general; wrong traces show in the comparison
            torch.onnx.export(
                embedder,
                (_images(2, size),),
                path,
                dynamo=True,
                verbose=False,
                external_data=False,
                input_names=["images"],
                output_names=["embeddings", "scores"][: 1 + isinstance(embedder, ImageClassifier)],
                dynamic_shapes=({0: torch.export.Dim("batch")},),
            )
    except (RuntimeError, TypeError, AttributeError) as error:
        reason = " ".join(str(error).split())[:300]
        raise ConfigError(f"this model cannot be written as ONNX ({reason}).") from error


def _run(path: Path) -> Callable[[Tensor], tuple[Tensor, ...]]:
    import onnxruntime

    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    return lambda images: tuple(map(torch.from_numpy, session.run(None, {"images": images.numpy()})))


def _images(count: int, size: int) -> Tensor:
    generator = torch.Generator().manual_seed(count)
    return torch.randint(0, 256, (count, 3, size, size), dtype=torch.uint8, generator=generator)


def _compare(run: Callable[[Tensor], tuple[Tensor, ...]], embedder: nn.Module, size: int) -> None:
    """Refuse a file whose outputs are further from the model's than rounding, relative to the largest above 1."""
    for count in _COUNTS:
        images = _images(count, size)
        with torch.no_grad():
            made: Tensor | tuple[Tensor, ...] = embedder(images)
        expected, found = made if isinstance(made, tuple) else (made,), run(images)
        apart = max(
            float((a - b).abs().max() / a.abs().max().clamp(min=1)) if a.shape == b.shape else float("inf")
            for a, b in zip(expected, found, strict=True)
        )
        if not apart <= _TOLERANCE:
            raise ConfigError(
                f"the ONNX file gives other embeddings than the model ({count} images, entries up to {apart:.2g} "
                f"apart, at most {_TOLERANCE:g} expected); nothing was written."
            )


def _description(config: TrainConfig, model: EmbeddingModel, file: str, classes: Sequence[str]) -> dict[str, Any]:
    view = square_view(config.images)
    size, whole = view.size, {"interpolation": "bilinear", "antialias": True}
    squashed = {"name": "resize", "width": size, "height": size, **whole}
    cropped = [{"name": "resize", "short_side": view.resize, **whole}, {"name": "center_crop", "size": size}]
    return {
        "schema_version": SCHEMA_VERSION,
        "file": file,
        "format": "onnx",
        "input": {
            "name": "images",
            "shape": ["batch", 3, size, size],
            "dtype": ["uint8"],
            "colors": "RGB",
            "range": [0, 255],
        },
        "transforms": [
            {"name": "orient", "by": "EXIF"},
            *([squashed] if view.resize_mode == "squash" else cropped),
        ],
        "inside": {"mean": model.image_mean, "std": model.image_std, "l2_normalised": True},
        "output": {"name": "embeddings", "shape": ["batch", model.dim], "dtype": "float32"},
        **({"scores": {"name": "scores", "shape": ["batch", len(classes)], "classes": classes}} if classes else {}),
        "model": {**asdict(config.model), "pretrained": "none"},
    }
