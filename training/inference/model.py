"""One object for every model that embeds images: a run, a network of a library, an ONNX file, a torch module."""

import io
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from PIL import Image, ImageOps
from torch import Tensor, nn

from hgld.data.dataset import ShardDataset, dataset_of_images, open_dataset
from hgld.data.format import IMAGE_SUFFIXES
from hgld.data.views import TestView
from hgld.distributed import Processes
from hgld.errors import ConfigError, InputError
from hgld.evaluation.evaluate import evaluate
from hgld.evaluation.neighbors import nearest_neighbors
from hgld.evaluation.options import EvaluationOptions, Progress
from hgld.evaluation.protocols.benchmark import filled_splits, open_searched
from hgld.evaluation.report import RetrievalReport
from hgld.hub import fetched, is_address
from hgld.prediction.calibration import Calibration
from hgld.prediction.predict import MIN_CONFIDENCE, Answers, predict
from hgld.prediction.search import Matches
from hgld.terminal import progress_bars

from ..checkpoint import find_checkpoint
from ..evaluation import PROTOCOL, RetrievalTask, SplitEmbedder, evaluate_task
from ..models.embedding_model import EmbeddingModel
from ..models.networks import Network, save_network, source_of
from .embedder import Embedded, Embedder, make_embedder
from .export import write_run
from .kept import embed_once
from .search import calibration_of

_OWN_AT_ONCE, _OWN_WORKERS = 64, 2  # batch size and decoding threads for a user's torch module


@dataclass(frozen=True, eq=False)
class Model:
    """A model that embeds images, with its own image preprocessing; :func:`load_model` returns such a model.

    Attributes:
        embedder: network, view of images, and device.
        source: the run's folder or the network's name; None: the model was made from a torch module.
        name: name of the model in messages and tables.
    """

    embedder: Embedder
    source: Path | Network | None
    name: str

    @property
    def dim(self) -> int:
        """D, the dimension of the embeddings."""
        return self.embedder.model.dim

    @property
    def module(self) -> EmbeddingModel:
        """The torch module: (B, 3, H, W) normalised images -> (B, D)."""
        return self.embedder.model

    def __repr__(self) -> str:
        return f"Model({self.name}, {self.dim} dimensions, on {self.embedder.processes.device})"

    def encode(self, images: Any, *, batch_size: int | None = None, progress: bool = False) -> np.ndarray:
        """Embed images.

        Args:
            images: one image or several: paths, PIL images, or uint8 RGB arrays or tensors, (H, W, 3) or (3, H, W); or
                a folder, a dataset's directory or URL, or a dataset. A folder's images come in the order of
                ``hgld.open_dataset(folder).keys``.
            batch_size: number of images at a time; None: the value with which the model was loaded.
            progress: whether to show a bar on stderr, if that is a terminal.

        Returns:
            (N, D) float32, rows of norm 1; N is 1 for one image.

        Raises:
            InputError: an image cannot be read (the message names it), or an array does not hold uint8 RGB values.
        """
        dataset = images_of(images)
        embedder = self.embedder if batch_size is None else replace(self.embedder, batch_size=batch_size)
        with _bars(progress) as show:
            return embedder.embed_dataset(dataset, show).numpy()

    def search(self, query: Any, gallery: Any, k: int = 5, *, progress: bool = False) -> Matches:
        """Find the k nearest images of a gallery to each query image.

        Args:
            query: query images, in any form that :meth:`encode` takes.
            gallery: a folder, a dataset's directory or URL, or a dataset. Its embeddings are kept in the user's cache,
                so that only the first search embeds it. Unreadable images are not searched; the result counts them.
            k: number of images per query.
            progress: whether to show a bar.
        """
        rows, (embedded, dataset) = self.encode(query), self._gallery(gallery, progress=progress)
        places, scores = nearest_neighbors(rows, embedded.vectors, min(k, len(embedded.vectors)))
        return Matches(embedded.positions(len(dataset))[places], scores, dataset, len(embedded.faults))

    def predict(
        self,
        images: Any,
        gallery: Any,
        *,
        calibration: Calibration | str | Path | None = None,
        min_confidence: float = MIN_CONFIDENCE,
        level: str | None = None,
        progress: bool = False,
    ) -> Answers:
        """Predict the class of each image at every level, by its nearest images in a gallery.

        Args:
            images: images to predict, in any form that :meth:`encode` takes.
            gallery: a folder of class folders, or a dataset, in any form that :meth:`search` takes.
            calibration: calibration made by ``hgld calibrate``, or its file; None: the run's calibration if it has one,
                else confidences are shares of the votes.
            min_confidence: minimum confidence of a prediction; below it, only the best guess is returned.
            level: finest level to predict; None: the finest.
            progress: whether to show a bar.

        Returns:
            one :class:`~hgld.prediction.predict.Answer` per image, with class names; neighbours are indices among the
            gallery's readable images.

        Raises:
            InputError: no image of the gallery has a class, or the calibration has other levels than the gallery.
        """
        rows, (embedded, _) = self.encode(images), self._gallery(gallery, progress=progress)
        found = embedded.dataset
        if calibration is None:
            run = find_checkpoint(self.source).parent.parent if isinstance(self.source, Path) else None
            calibration = calibration_of(self.embedder, run, None, found)[0]
        columns = zip(found.levels, found.hierarchy.names, found.labels.T.tolist(), strict=True)
        names = {level: [known[one] if one >= 0 else None for one in labels] for level, known, labels in columns}
        options: dict[str, Any] = {"calibration": calibration, "min_confidence": min_confidence, "level": level}
        return predict(rows, embedded.vectors, names, **options)

    def evaluate(
        self,
        data: Any,
        split: str | None = None,
        *,
        levels: Sequence[str] | None = None,
        options: EvaluationOptions | None = None,
        progress: bool = False,
    ) -> RetrievalReport:
        """Evaluate the model on a dataset: by its own protocol, or every image against all other images.

        Args:
            data: a dataset's directory or URL, or a folder of class folders; or an open dataset, whose images query
                each other.
            split: the split to evaluate leave-one-out; None: the dataset's protocol if it has one, else ``test``, else
                all splits.
            levels: levels of the dataset, finest first; None: all levels.
            options: metrics and ranking options.
            progress: whether to show bars.

        Raises:
            InputError: the dataset cannot be read, or no two images have the same class.
            ConfigError: a metric, level or option is unknown.
        """
        asked = options or EvaluationOptions()
        with _bars(progress) as show:
            if isinstance(data, ShardDataset):
                embedded = embed_once(self.embedder, data, show)
                return evaluate(embedded.vectors, embedded.dataset, levels=levels, options=asked)
            task = RetrievalTask(str(data), split or default_split(str(data)) or PROTOCOL)
            return evaluate_task(SplitEmbedder(self.embedder, show or asked.progress, levels), task, options=asked)

    def save(self, path: str | Path) -> Path:
        """Write the model to a folder that :func:`load_model` and ``--model`` read; returns the folder.

        Raises:
            ConfigError: the model is a torch module, or a network that is one file already.
            StorageError: the folder is not empty, or cannot be written.
        """
        folder = Path(path)
        if self.source is None:
            raise ConfigError("a module of your own cannot be loaded by a name; save it with torch.save.")
        if isinstance(self.source, Path):
            write_run(self.source, folder)
        else:
            save_network(self.embedder.model, self.source, self.embedder.view, folder)
        return folder

    def _gallery(self, gallery: Any, *, progress: bool) -> tuple[Embedded, ShardDataset]:
        is_place = isinstance(gallery, str | Path) and not _is_image_file(gallery)
        dataset = open_searched(str(gallery)) if is_place else images_of(gallery)
        with _bars(progress) as show:
            return embed_once(self.embedder, dataset, show), dataset


def load_model(
    source: str | Path | nn.Module,
    which: Literal["best", "last"] = "best",
    *,
    transform: Callable[[Any], Tensor] | None = None,
    weights: str = "default",
    pooling: str = "",
    device: str = "",
    **options: Any,
) -> Model:
    """Load a model of any kind that embeds images, with its own image preprocessing.

    Args:
        source: folder of a run or of one of its checkpoints. Or a folder of :meth:`Model.save`. Or ``timm:NAME``,
            ``torchvision:NAME``, ``open_clip:MODEL/PRETRAINED``, ``open_clip:hf-hub:USER/NAME``, ``onnx:FILE`` or
            ``small``. Or ``hf:USER/NAME``, a run that ``hgld push`` uploaded to the Hub. Or a torch module,
            (B, 3, H, W) -> (B, D).
        which: checkpoint of a run: ``best`` (if the run has none yet, the last checkpoint) or ``last``.
        transform: function that turns a PIL image into the (3, H, W) tensor that a torch module takes; only with a
            torch module.
        weights: weights of a network: ``default`` (the library's weights), a tag, a file, or ``none`` (random).
        pooling: pooling of a network: ``avg``, ``gem``, ``max``, ``crow``, ``rmac`` or ``token``; empty: the network's
            own vector if it has one, else the average.
        device: ``cpu``, ``cuda``, ...; default: a GPU if there is one.
        **options: keywords of :func:`hgld.training.inference.embedder.make_embedder`: ``size``, ``resize``,
            ``resize_mode``, ``scales``, ``batch_size``, ``workers``, ``amp``, ...

    Raises:
        InputError: the run does not exist, or a file is damaged or belongs to another network.
        ConfigError: the network does not exist, or does not support an option.
        MissingExtraError: the network's library is not installed.
        MissingResourceError: the network's weights are not available on this machine.
    """
    place = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    processes = Processes(0, 1, place)
    if isinstance(source, nn.Module):
        if transform is None:
            raise ConfigError(
                "a torch module needs transform=, a function that turns a PIL image into the module's (3, H, W) "
                "input, for instance torchvision's weights.transforms()."
            )
        return Model(_own_embedder(source, transform, processes, **options), None, type(source).__name__)
    if transform is not None:
        raise ConfigError("transform= is only for torch modules; other models have their own preprocessing. Omit it.")
    found = fetched(source, "model") if isinstance(source, str) and is_address(source) else source
    opened = source_of(str(found), weights, pooling)
    if isinstance(opened, Network) and which != "best":
        raise ConfigError("which= chooses a checkpoint of a run, but a network has no checkpoints. Omit it.")
    return Model(make_embedder(opened, processes, which=which, **options), opened, str(source))


def default_split(place: str) -> str | None:
    """Return the split that a dataset without a protocol is evaluated on, leave-one-out: ``test``, or its only split.

    Args:
        place: directory of the dataset, or its URL.

    Returns:
        the split; None if the dataset names a protocol, or has several splits and none is called test.
    """
    dataset = open_dataset(place)
    named = filled_splits(dataset)
    if dataset.manifest.protocol:
        return None
    return "test" if "test" in named else named[0] if len(named) == 1 else None


def _own_embedder(
    module: nn.Module,
    transform: Callable[[Any], Tensor],
    processes: Processes,
    *,
    batch_size: int = _OWN_AT_ONCE,
    workers: int = _OWN_WORKERS,
) -> Embedder:
    module = module.to(processes.device).eval()
    image = transform(Image.new("RGB", (256, 256)))
    if not isinstance(image, Tensor) or image.ndim != 3:
        raise ConfigError(f"transform returns {type(image).__name__}; expected a (3, H, W) tensor of one PIL image.")
    with torch.no_grad():
        made = module(image[None].to(processes.device))
    if not isinstance(made, Tensor) or made.ndim != 2:
        shape = tuple(made.shape) if isinstance(made, Tensor) else type(made).__name__
        raise ConfigError(f"the module returns {shape} for one image; expected embeddings, (1, D).")
    model = EmbeddingModel(module, made.shape[1], None, dim=0, layer_norm=False).eval()
    view = TestView(image.shape[-1], image.shape[-1])
    return Embedder(model, view, processes, batch_size, workers=workers, transform=transform)


def _bars(progress: bool) -> AbstractContextManager[Progress | None]:
    return progress_bars() if progress else nullcontext()


# -- images of any type --


def images_of(images: Any) -> ShardDataset:
    """Return images as a dataset, given in any form that :meth:`Model.encode` takes.

    Raises:
        InputError: the argument holds something other than images, or no image.
    """
    if isinstance(images, ShardDataset):
        return images
    if isinstance(images, str | Path) and not _is_image_file(images):
        return open_dataset(images)
    if isinstance(images, Image.Image | str | Path) or getattr(images, "ndim", 4) < 4:
        images = [images]
    items = list(images)
    if items and all(isinstance(item, str | Path) for item in items):
        return dataset_of_images([Path(item) for item in items])
    return dataset_of_images([_encode_png(item) for item in items])


def _is_image_file(path: str | Path) -> bool:
    return Path(path).suffix.lower()[1:] in IMAGE_SUFFIXES and not Path(path).is_dir()


def _encode_png(image: Any) -> bytes:
    """Return an image in memory as the bytes of a PNG, which decode to the same pixels."""
    if not isinstance(image, Image.Image):
        array = image.cpu().numpy() if isinstance(image, Tensor) else image
        if not isinstance(array, np.ndarray):
            raise InputError(f"an image is {type(image).__name__}; expected a path, a PIL image or a uint8 array.")
        if array.dtype != np.uint8:
            raise InputError(
                f"an image is an array of {array.dtype}; expected uint8 RGB values of 0..255. Convert values of 0..1 "
                "with (255 * image).round().astype('uint8'). Pass normalised tensors to model.module."
            )
        if array.ndim == 3 and array.shape[0] == 3 and array.shape[2] != 3:
            array = np.ascontiguousarray(array.transpose(1, 2, 0))
        if array.ndim != 2 and array.shape[2:] != (3,):
            raise InputError(f"an image is an array of shape {array.shape}; expected (H, W, 3), (3, H, W) or (H, W).")
        image = Image.fromarray(array)
    file = io.BytesIO()
    ImageOps.exif_transpose(image).convert("RGB").save(file, "PNG", compress_level=1)
    return file.getvalue()
