"""A model that embeds datasets and image files, with its view of images, from a run or a pretrained network."""

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from PIL.Image import Image
from torch import Tensor
from torch.nn.functional import normalize

from hgld import distributed
from hgld.data.batch import Fault
from hgld.data.dataset import ShardDataset, open_dataset
from hgld.data.views import ResizeMode, TestView
from hgld.distributed import Processes
from hgld.errors import ConfigError, InputError, quoted
from hgld.evaluation.options import Progress
from hgld.evaluation.row_table import RowTable, change_rows, shared_folder

from ..batches import evaluation_view
from ..checkpoint import find_checkpoint, read_state, read_tensors, selection_of
from ..config import CONFIG, TrainConfig, read_config
from ..models.backbone import load_all
from ..models.backbones import build_model
from ..models.embedding_model import EmbeddingModel
from ..models.networks import Network, RawPixels, build_network, embed_texts
from .classification import Classifier, check_synsets, library_head, read_classifier
from .embedding import Amp, embed, evaluating
from .gem_exponent import choose_gem_p, set_gem_p

_MOST_AT_ONCE = 256
_NETWORK_AT_ONCE = 64  # default batch size for a network that is not from a run
_CENTRED_ON = 2000  # number of images from which the mean of raw pixels is computed


def load_run(run: Path, which: Literal["best", "last"] = "best") -> tuple[EmbeddingModel, TrainConfig]:
    """Load the model of a run, with its averaged weights if the run kept an average.

    Args:
        run: folder of a run or of one of its checkpoints (``RUN/checkpoints/step-N``).
        which: checkpoint of a run: ``best`` (if the run has none yet, the last checkpoint) or ``last``.

    Returns:
        the model, on the CPU in evaluation mode, and the run's config.

    Raises:
        InputError: there is no checkpoint, or the checkpoint cannot be read or does not fit the run's config.
        SchemaError: this hgld does not read the config's schema version.
    """
    checkpoint = find_checkpoint(run, which)
    config = read_config(checkpoint.parent.parent / CONFIG)
    state = read_state(checkpoint)
    file = "ema" if "ema" in state["files"] else "model"
    tensors = read_tensors(checkpoint, state, file)
    eager = replace(config.model, compile=False)  # do not compile: this takes longer than embedding most datasets
    model = build_model(eager, image_size=config.images.size, load_weights=False)
    problem = f"{checkpoint}: {file}.safetensors does not hold the model that the run's {CONFIG} describes"
    load_all(model, tensors, f"{problem} (was {CONFIG} changed?)")
    return model.eval(), config


@dataclass(frozen=True, eq=False)
class Embedded:
    """Embeddings of the readable items of a dataset.

    Attributes:
        dataset: the N items that could be read.
        vectors: (N, D) float32 on the CPU, in the order of the dataset; rows have norm 1 unless computed with
            ``unit=False``.
        faults: the items that could not be read.
        file: file that ``vectors`` is mapped from; None: they are in memory.
    """

    dataset: ShardDataset
    vectors: Tensor
    faults: tuple[Fault, ...] = ()
    file: Path | None = None

    def positions(self, count: int) -> NDArray[np.int64]:
        """Return (N,) positions of these items among all ``count`` items."""
        return np.setdiff1d(np.arange(count), [fault.index for fault in self.faults])


@dataclass
class Spent:
    """Time that embedding took on this process: reading, decoding and the model.

    Attributes:
        images: number of images, over all processes.
        seconds: wall time, seconds.
        dimensions: dimension of the embeddings.
        parameters: number of the model's parameters.
    """

    images: int = 0
    seconds: float = 0.0
    dimensions: int = 0
    parameters: int = 0


@dataclass(frozen=True)
class Embedder:
    """A model with its view of images in evaluation, and the processes that embed together.

    Attributes:
        model: model on the processes' device.
        view: view that resizes and crops images, at scale 1.
        processes: processes that share the work.
        batch_size: number of images per forward pass and process.
        scales: factors of the view's size; an image's embedding is the mean over these sizes.
        scale_p: exponent of the mean over scales.
        workers: number of threads per process that read and decode.
        amp: precision of the model's arithmetic.
        checkpoint: name of the checkpoint with the model's weights; empty during training and for a pretrained network.
        selection: how that checkpoint was chosen (:func:`hgld.training.checkpoint.selection_of`).
        network: the pretrained network; None: the model is from a run.
        gem_p: exponent that GeM pooling uses with this view; None: the model's own exponent.
        classifier: classifier of the network; None: the network has no classifier.
        recipe: name of the recipe that the model was trained by; empty if no recipe is known.
        spent: counter of the images and seconds of embedding; None: nothing is counted.
        transform: function that turns an RGB image into the model's input; None: ``view`` prepares images.
        folder: folder for the embeddings of several processes (:func:`hgld.evaluation.row_table.shared_folder`).
    """

    model: EmbeddingModel
    view: TestView
    processes: Processes
    batch_size: int
    scales: tuple[float, ...] = (1.0,)
    scale_p: float = 1.0
    workers: int = 2
    amp: Amp = "off"
    checkpoint: str = ""
    selection: str = ""
    network: Network | None = None
    gem_p: float | None = None
    classifier: Classifier | None = None
    recipe: str = ""
    spent: Spent | None = None
    transform: Callable[[Image], Tensor] | None = None
    folder: Path | None = None

    @classmethod
    def as_trained(cls, model: EmbeddingModel, config: TrainConfig, processes: Processes) -> "Embedder":
        """Return the embedder with which a run evaluates its splits."""
        # A batch that fits into memory with gradients fits without them too.
        fitting = config.batch.micro_batch_size or config.batch.batch_size // processes.count
        return cls(
            model=model,
            view=evaluation_view(config.images),
            processes=processes,
            batch_size=max(1, min(fitting, _MOST_AT_ONCE)),
            recipe=config.recipe,
            workers=config.images.workers,
            amp=config.optimizer.amp,
        )

    def classifier_for(self, dataset: ShardDataset) -> Classifier:
        """Return the run's or the pretrained network's classifier, whose classes must occur in a dataset.

        Raises:
            ConfigError: there is no classifier; or the network's classifier is not one linear layer, or the dataset has
                other classes.
            MissingResourceError: the network's weights are not available on this machine.
        """
        if self.classifier is not None:
            return self.classifier
        if self.network is None:
            raise ConfigError(
                "there is no classifier: the loss of the run has no proxies or classifier, or the run's classes.json "
                "is missing. Use a run of MultiGrain or of a loss with proxies."
            )
        name, weights = self.network.name, self.network.weights
        weight, bias = library_head(name, weights, self.model, image_size=self.view.size)
        level, names = dataset.levels[0], dataset.hierarchy.names[0]
        check_synsets(names, len(bias), level)
        return Classifier(weight, bias, None, level, names)

    def view_facts(self, datasets: Sequence[ShardDataset]) -> dict[str, object]:
        """Return the facts of the view for a report: size, resize mode, scales, and the number of shrunk images."""
        facts: dict[str, object] = {"resize_mode": self.view.resize_mode, "image_size": self.view.size}
        if self.view.resize_mode == "original":
            reduced = sum(self.view.count_reduced(*dataset.sizes.T) for dataset in datasets)
            facts = {"resize_mode": "original", "max_pixels": self.view.max_pixels, "reduced": reduced}
        facts["scales"] = list(self.scales)
        return facts if self.scale_p == 1 else facts | {"scale_p": self.scale_p}

    def embed_readable(self, dataset: ShardDataset, progress: Progress | None = None, *, unit: bool = True) -> Embedded:
        """Embed the readable items, on every process; the result also names the unreadable items.

        Args:
            dataset: dataset of N items.
            progress: function called with a task, the number of batches done and the total number.
            unit: whether the rows are normalised.

        Raises:
            InputError: the dataset is empty, or none of its items can be read.
            ServiceError: a server kept failing.
            StorageError: the disk failed.
        """
        faults: list[Fault] = []
        table = RowTable((len(dataset), self.model.dim), self.processes, self.folder)
        vectors = self.embed_dataset(dataset, progress, faults, unit=unit, out=table)
        if not faults:
            return Embedded(dataset, vectors, file=table.file)
        if len(faults) == len(dataset):
            first = f"{faults[0].where}: {faults[0].reason}"
            raise InputError(f"{quoted(dataset)}: no item can be read; the first: {first}")
        kept = Embedded(dataset, vectors, tuple(faults)).positions(len(dataset))
        vectors, file = change_rows(vectors, self.processes, self.folder, lambda rows: rows, kept)
        return Embedded(dataset.select(kept), vectors, tuple(faults), file)

    def unit(self, embedded: Embedded) -> Embedded:
        """Return embeddings with rows of norm 1; every process must call this."""
        vectors, file = change_rows(embedded.vectors, self.processes, self.folder, lambda rows: normalize(rows, dim=1))
        return replace(embedded, vectors=vectors, file=file)

    def embed_dataset(
        self,
        dataset: ShardDataset,
        progress: Progress | None = None,
        faults: list[Fault] | None = None,
        *,
        unit: bool = True,
        out: RowTable | None = None,
    ) -> Tensor:
        """Compute (N, D) unit embeddings of a dataset's items, in its order, on every process, with :func:`embed`."""
        if self.transform is not None:
            return self._embed_transformed(dataset, self.transform, progress, faults, unit=unit)
        began = time.perf_counter()
        rows = embed(
            self.model,
            dataset,
            view=self.view,
            batch_size=self.batch_size,
            scales=self.scales,
            scale_p=self.scale_p,
            workers=self.workers,
            amp=self.amp,
            processes=self.processes,
            faults=faults,
            progress=progress,
            unit=unit,
            out=out or RowTable((len(dataset), self.model.dim), self.processes, self.folder),
        )
        if self.spent is not None:
            self.spent.images += len(dataset)
            self.spent.seconds += time.perf_counter() - began
        return rows

    def _embed_transformed(
        self,
        dataset: ShardDataset,
        transform: Callable[[Image], Tensor],
        progress: Progress | None,
        faults: list[Fault] | None,
        *,
        unit: bool,
    ) -> Tensor:
        """Embed images that a transform prepares; ``faults`` lists unreadable images, and their rows are NaN."""

        def prepare(item: int) -> Tensor | None:
            try:
                return transform(dataset.image(item))
            except InputError as error:
                if faults is None:
                    raise
                faults.append(Fault(item, str(dataset.keys[item]), str(error)))
                return None

        rows = torch.full((len(dataset), self.model.dim), torch.nan)
        with ThreadPoolExecutor(self.workers) as pool, evaluating(self.model):
            for begin in range(0, len(dataset), self.batch_size):
                items = range(begin, min(begin + self.batch_size, len(dataset)))
                images = {
                    item: image
                    for item, image in zip(items, pool.map(prepare, items), strict=True)
                    if image is not None
                }
                if images:
                    embeddings = self.model(torch.stack([*images.values()]).to(self.processes.device)).float().cpu()
                    rows[[*images]] = normalize(embeddings, dim=1) if unit else embeddings
                if progress is not None:
                    progress("embed", items.stop, len(dataset))
        if faults is not None:
            faults.sort(key=lambda fault: fault.index)  # sorted, because threads append them in any order
        return rows

    def embed_texts(self, texts: Sequence[str]) -> Tensor:
        """Compute (N, D) unit embeddings of texts, in the space of the images.

        Raises:
            ConfigError: the model has no text tower that shares the space of its images.
            MissingResourceError: the model's weights or tokenizer are not available on this machine.
        """
        if self.network is None:
            raise ConfigError(
                "--text: a trained run has no text tower, and the text tower of its backbone no longer fits its image "
                "embeddings. Use --model open_clip:MODEL/PRETRAINED for texts."
            )
        return embed_texts(self.network, texts).to(self.processes.device)


@contextmanager
def trained_embedder(
    source: Path | Network, *, device: str = "", rows: Path | None = None, **options: Any
) -> Iterator[Embedder]:
    """Load a model, ready to embed; torchrun's processes share the work.

    Args:
        source: folder of a run or of one of its checkpoints, or a network.
        device: ``cpu``, ``cuda``, ...; default: a GPU if there is one.
        rows: temporary folder for the embeddings of several processes; None: a new folder in TMPDIR.
        **options: keyword arguments of :func:`make_embedder`; this function raises the errors of that function too.

    Raises:
        HgldError: another process died.
    """
    group = distributed.process_group(device, lambda: "Start the same command again.")
    with group as processes, shared_folder(processes, rows) as folder:
        yield make_embedder(source, processes, folder=folder, **options)


def make_embedder(
    source: Path | Network,
    processes: Processes,
    *,
    which: Literal["best", "last"] = "best",
    size: int | None = None,
    resize: int | None = None,
    resize_mode: ResizeMode | None = None,
    max_pixels: int | None = None,
    scales: tuple[float, ...] | None = None,
    scale_p: float | None = None,
    batch_size: int | None = None,
    workers: int | None = None,
    amp: Amp | None = None,
    gem_p: float | Literal["auto"] | None = None,
    data: str = "",
    folder: Path | None = None,
) -> Embedder:
    """Load a model, ready to embed.

    Args:
        source: folder of a run or of one of its checkpoints, or a network.
        processes: processes that embed together.
        which: checkpoint of a run, ``best`` or ``last``.
        size: side of the square, or the longest side, pixels. None, here and below: the value that the run's
            evaluations use, or with which the network's library tests the network.
        resize: short side of the image before the square is cut out; None: in proportion to ``size``.
        resize_mode: how images are resized and cropped (:class:`hgld.data.views.TestView`).
        max_pixels: maximum number of pixels of an image that is not resized.
        scales: factors of the sizes; an image's embedding is the mean over these sizes.
        scale_p: exponent of that mean.
        batch_size: number of images per forward pass and process; None: the batch size of the training, at most 256;
            for a network 64.
        workers: number of threads that read and decode; None: the number in training.
        amp: precision of the model's arithmetic: ``off``, ``bf16`` or ``fp16``; None: the precision in training.
        gem_p: exponent of GeM pooling; ``auto``: the best exponent for ``size`` on training images
            (:func:`hgld.training.inference.gem_exponent.choose_gem_p`); None: the model's own exponent.
        data: dataset directory or its URL. For ``gem_p="auto"``, images of its training split are drawn; the network
            ``pixels`` subtracts the mean of its images.
        folder: folder for the embeddings of several processes.

    Raises:
        InputError: there is no checkpoint, or it cannot be read; or there are no training images for ``auto``.
        ConfigError: the device does not exist, ``resize`` is below ``size``, ``gem_p`` is given for a model without
            GeM, or the network does not support the pooling or the image size.
        MissingResourceError: a network's weights or library are not available.
    """
    config = TrainConfig()
    if isinstance(source, Network):
        whole = resize_mode in ("longest", "original")  # in these modes, the size is not the side of a square
        model, own_view = build_network(source, None if whole else size)
        if own_view is None:
            if size is None or resize_mode is None:
                raise ConfigError(
                    f"{source.name}: its library prepares images in a way that hgld does not offer. Set --resize-mode "
                    "and --size."
                )
            own_view = TestView(size, size, resize_mode)
        usual = Embedder(model.to(processes.device), own_view, processes, _NETWORK_AT_ONCE, network=source)
    else:
        checkpoint = find_checkpoint(source, which)
        model, config = load_run(checkpoint)
        usual = replace(
            Embedder.as_trained(model.to(processes.device), config, processes),
            checkpoint=checkpoint.name,
            selection=selection_of(checkpoint),
            classifier=read_classifier(checkpoint, config),
        )
    embedder = replace(
        usual,
        view=usual.view.changed(size, resize, resize_mode, max_pixels),
        batch_size=batch_size or usual.batch_size,
        scales=scales or usual.scales,
        scale_p=scale_p or usual.scale_p,
        workers=workers or usual.workers,
        amp=amp or usual.amp,
        gem_p=None if gem_p == "auto" else gem_p,
        folder=folder,
    )
    if isinstance(model.backbone, RawPixels) and data:
        dataset = open_dataset(data)
        drawn = np.sort(np.random.default_rng(0).permutation(len(dataset))[:_CENTRED_ON])
        rows = replace(embedder, scales=(1.0,)).embed_readable(dataset.select(drawn), unit=False).vectors
        model.backbone.centre.copy_(rows.double().mean(dim=0))
    if gem_p == "auto":
        dataset = open_dataset(data, config.run.train_split)
        options: dict[str, Any] = {"workers": embedder.workers, "seed": config.run.seed, "amp": embedder.amp}
        options["batch_size"] = embedder.batch_size
        best = choose_gem_p(model, config.images, dataset, embedder.view.size, **options)
        # Processes may round differently, so all use the exponent of the main process.
        embedder = replace(embedder, gem_p=float(distributed.from_main(best, processes)))
    if embedder.gem_p is not None:
        set_gem_p(model, embedder.gem_p)
    return embedder
