"""The map of p* and resolution: what a network finds at every size of image and every exponent of GeM.

Berman et al., "MultiGrain: a unified image embedding for classes and instances", 2019, section 4.3 and its figure of
accuracies over p*. The backbone sees every image once a size; all exponents pool the same maps.
"""

import io
from collections.abc import Generator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import polars as pl
import torch

from hgld.data.batch import Batch
from hgld.data.dataset import ShardDataset, open_dataset
from hgld.data.loader import Loader
from hgld.data.views import TestView
from hgld.errors import InputError, StorageError
from hgld.evaluation.options import Progress
from hgld.files import write_atomic
from hgld.report_page.figures import Figures

from ..batches import evaluation_view
from ..checkpoint import find_checkpoint
from ..config import CONFIG, ImagesConfig, read_config
from ..models.embedding_model import GeM, prepare_images
from .embedder import Embedder, trained_embedder
from .resolution import EXPONENTS, ShapeBatches, gem_pools, pooled_by_each, score_gem_p

if TYPE_CHECKING:
    from matplotlib.axes import Axes

VIEWS_FOUND = "views found"
TABLE = "resolutions.csv"
_INK_ON = 0.55  # of the range of values; above it the squares are dark


@dataclass(frozen=True)
class ResolutionMap:
    """Values of a network at S sizes and P exponents.

    Attributes:
        sizes: of the images, pixels, ascending.
        exponents: of GeM, ascending.
        values: by name (``top-1``, ``top-5``, ``views found``: the share that the search of p* reads) (S, P) float64.
        trained: size and exponent of the training.
    """

    sizes: tuple[int, ...]
    exponents: tuple[float, ...]
    values: dict[str, np.ndarray]
    trained: tuple[int, float]

    def best(self, name: str) -> dict[int, float]:
        """Return for every size the exponent with the largest value, the smallest of equals."""
        return {
            size: self.exponents[int(row.argmax())] for size, row in zip(self.sizes, self.values[name], strict=True)
        }

    def to_frame(self) -> pl.DataFrame:
        """Return one row a size and exponent: size, p, and the values."""
        columns = {"size": np.repeat(self.sizes, len(self.exponents)), "p": np.tile(self.exponents, len(self.sizes))}
        return pl.DataFrame(columns | {name: table.reshape(-1) for name, table in self.values.items()})

    def save(self, folder: Path) -> tuple[str, ...]:
        """Write ``resolutions.csv`` and a picture a value (SVG and PNG) into a folder; return the files' names.

        Raises:
            StorageError: the folder cannot be written to.
        """
        try:
            folder.mkdir(parents=True, exist_ok=True)
            figures, table = Figures(folder), io.BytesIO()
            self.to_frame().write_csv(table, float_precision=6)
            write_atomic(folder / TABLE, table.getvalue())
            for name in self.values:
                title = f"{name} by size and p"
                figures.draw(
                    f"resolutions-{name}", title, lambda axes, name=name: _draw(axes, self, name), size=self._inches
                )
        except OSError as error:
            raise StorageError(f"cannot write {folder} ({error.strerror or error}); take another --out.") from error
        return (TABLE, *figures.files)

    @property
    def _inches(self) -> tuple[float, float]:
        return 1.4 + 0.52 * max(len(self.exponents), 5), 1.2 + 0.42 * max(len(self.sizes), 2)


def map_resolutions(
    embedder: Embedder,
    images: ImagesConfig,
    sizes: Sequence[int],
    exponents: Sequence[float] = EXPONENTS,
    *,
    training: ShardDataset | None = None,
    tested: ShardDataset | None = None,
    ks: Sequence[int] = (1, 5),
    seed: int = 0,
    progress: Progress | None = None,
) -> ResolutionMap:
    """Measure a network at every size of image and exponent.

    Args:
        embedder: the model, with GeM pooling; its view's geometry is that of the test.
        images: options of the run by which images are read and, in training, varied.
        sizes: of the images, pixels.
        exponents: of GeM, above 0.
        training: images on whose varied views p* is searched (:func:`score_gem_p`); None: no search.
        tested: images whose classes the embedder's classifier tells; None: no top-k.
        ks: of top-k.
        seed: of the training images and their views.
        progress: called with a task, the number of sizes done and their total.

    Raises:
        ConfigError: the model does not pool by GeM, a size or exponent is not above 0, or ``tested`` without a
            classifier.
        InputError: neither training nor tested images, or an image that cannot be read and none can replace it.
    """
    pools = gem_pools(embedder.model, exponents)
    ascending = tuple(sorted(set(sizes)))
    if not ascending or (training is None and tested is None):
        raise InputError("there are no sizes, or no images, to make a map of; give --sizes and --data.")
    rows: dict[str, list[list[float]]] = {}
    for done, size in enumerate(ascending):
        view = evaluation_view(images, size, geometry=embedder.view.geometry)
        if tested is not None:
            for name, shares in _top_k(embedder, images, tested, view, pools, ks).items():
                rows.setdefault(name, []).append(shares)
        if training is not None:
            options = {
                "batch_size": embedder.batch_size,
                "workers": embedder.workers,
                "seed": seed,
                "amp": embedder.amp,
            }
            _, scores = score_gem_p(embedder.model, images, training, size, exponents=tuple(pools), **options)
            rows.setdefault(VIEWS_FOUND, []).append(list(scores.values()))
        if progress is not None:
            progress("sizes", done + 1, len(ascending))
    pooled_by = float(cast("torch.Tensor", embedder.model.pooling.p).detach())
    values = {name: np.array(table, dtype=np.float64) for name, table in rows.items()}
    return ResolutionMap(ascending, tuple(pools), values, (images.size, pooled_by))


def map_of_run(
    checkpoint: Path,
    data: str,
    sizes: Sequence[int],
    exponents: Sequence[float] = EXPONENTS,
    *,
    split: str | None = None,
    search: bool = True,
    progress: Progress | None = None,
    **options: Any,
) -> ResolutionMap | None:
    """Make the map of a run's network on a dataset.

    Args:
        checkpoint: a run's folder, or that of one of its checkpoints.
        data: dataset directory, or its address, with the run's training split if p* is searched.
        sizes: of the images, pixels.
        exponents: of GeM.
        split: whose classes the run's classifier tells; None: no top-k.
        search: whether p* is searched by views of training images.
        progress: see :func:`map_resolutions`, as for the errors.
        **options: of :func:`hgld.training.inference.embedder.trained_embedder`.

    Returns:
        the map; None on other processes than the main one.
    """
    config = read_config(find_checkpoint(checkpoint).parent.parent / CONFIG)
    training = open_dataset(data, config.run.train_split) if search else None
    tested = None if split is None else open_dataset(data, split)
    with trained_embedder(checkpoint, data=data, **options) as embedder:
        if not embedder.processes.is_main:
            return None
        facts = {"training": training, "tested": tested, "seed": config.run.seed, "progress": progress}
        return map_resolutions(embedder, config.images, sizes, exponents, **facts)


def _top_k(
    embedder: Embedder,
    images: ImagesConfig,
    dataset: ShardDataset,
    view: TestView,
    pools: Mapping[float, GeM],
    ks: Sequence[int],
) -> dict[str, list[float]]:
    """Return by name the mean over the items of known class, for every pooling."""
    classifier, model = embedder.classifier_for(dataset), embedder.model
    targets, device = classifier.targets(dataset), embedder.processes.device
    sampler = ShapeBatches(view.shapes(*dataset.sizes.T), embedder.batch_size)
    loader = Loader(dataset, sampler, view, decoder=images.decoder, workers=embedder.workers, on_fault="leave")
    hits: dict[str, dict[float, list[np.ndarray]]] = {f"top-{k}": {p: [] for p in pools} for k in ks}
    model.eval()
    with closing(cast("Generator[Batch, None, None]", iter(loader))) as batches:
        for batch in batches:
            shown = prepare_images(batch.images, model, device, channels_last=False)
            known = targets[batch.indices].clone()
            known[torch.isin(batch.indices, torch.tensor([fault.index for fault in batch.faults]))] = -1
            for p, rows in pooled_by_each(model, shown, pools, embedder.amp).items():
                for name, found in classifier.top_k(rows, known, ks).items():
                    hits[name][p].append(found)
    return {name: [float(np.nanmean(np.concatenate(by_p[p]))) for p in pools] for name, by_p in hits.items()}


def _draw(axes: "Axes", found: ResolutionMap, name: str) -> None:
    """Draw a square a size and exponent with its value, in per cent; a mark at each size's best exponent."""
    table = 100 * found.values[name]
    low, high = float(table.min()), float(table.max())
    axes.pcolormesh(table, cmap="Blues", vmin=low, vmax=max(high, low + 1e-9), edgecolors="white", linewidth=1)
    for (y, x), value in np.ndenumerate(table):
        dark = value - low > _INK_ON * (high - low) and high > low
        axes.text(x + 0.5, y + 0.5, f"{value:.1f}", ha="center", va="center", fontsize=7, color="w" if dark else "k")
    for y, p in enumerate(found.best(name).values()):
        axes.plot(found.exponents.index(p) + 0.5, y + 0.82, marker="v", color="#e1690f", markersize=4)
    if (training := _place(found)) is not None:
        axes.plot(training[1] + 0.5, training[0] + 0.18, marker="s", color="#009e73", markersize=3)
    axes.set_xticks(np.arange(len(found.exponents)) + 0.5, [f"{p:g}" for p in found.exponents])
    axes.set_yticks(np.arange(len(found.sizes)) + 0.5, [str(size) for size in found.sizes])
    axes.set(xlabel="p of GeM", ylabel="size of the images, pixels")
    axes.set_title(f"{name}, per cent (▼ best p of a size, ■ as trained)", fontsize=9)
    axes.grid(visible=False)


def _place(found: ResolutionMap) -> tuple[int, int] | None:
    """Return row and column of the training's size and exponent, where the map has them."""
    size, p = found.trained
    if size not in found.sizes or p not in found.exponents:
        return None
    return found.sizes.index(size), found.exponents.index(p)
