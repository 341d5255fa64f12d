"""GeM's exponent p* for a resolution other than the training's, chosen by images of the training set.

A network trained at one resolution is tested at a higher one with a larger p, because what an image shows then fills
fewer of the places (Berman et al., "MultiGrain: a unified image embedding for classes and instances", 2019, section
4.3). p* is the exponent with which views of an image find each other best, without class labels; or it is learned
alone, by the cross-entropy of the network's classifier (appendix E).
"""

from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import closing
from typing import cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import cross_entropy, normalize

from hgld.data.batch import Batch
from hgld.data.dataset import ShardDataset
from hgld.data.loader import Loader
from hgld.data.views import TestView
from hgld.errors import ConfigError, DivergenceError, InputError
from hgld.samplers import BatchSampler, RepeatedAugmentation

from ..batches import train_view
from ..config import ImagesConfig
from ..models.embedding_model import EmbeddingModel, GeM, prepare_images
from .classification import Classifier
from .embedding import Amp, autocast, evaluating

_ROWS = 1024  # queries at a time
_IMAGES, _VIEWS = 2000, 5  # as the paper
EXPONENTS = tuple(range(1, 11))  # likewise
_RATE, _MOMENTUM, _POWER = 0.005, 0.9, 0.9  # of the authors' scripts/finetune_p.py, like the two that follow
_TUNING_BATCH, _TUNING_IMAGES = 4, 50


def best_gem_p(
    model: EmbeddingModel,
    batches: Iterable[tuple[Tensor, Tensor]],
    candidates: Sequence[float] = EXPONENTS,
    *,
    amp: Amp = "off",
) -> tuple[float, dict[float, float]]:
    """Choose p for the resolution of the given images.

    The paper takes 5 random views of each of 2,000 training images, at the size of the test. The model is not changed;
    :func:`set_gem_p` applies the choice.

    Args:
        model: with GeM pooling; put into evaluation mode meanwhile.
        batches: (B, 3, H, W) normalised images on the model's device, and the (B,) integers of the image that each is a
            view of. An image without another view is not a query.
        candidates: exponents above 0.
        amp: precision of the model's arithmetic.

    Returns:
        the best p, the smallest of equals; and for every candidate the mean over the queries of the share of the n
        other views of their image that are among the n nearest.

    Raises:
        ConfigError: the model does not pool by GeM, or a candidate is not above 0.
        InputError: no image has two views.
    """
    pools = gem_pools(model, candidates)
    embedded: dict[float, list[Tensor]] = {p: [] for p in pools}
    instances: list[Tensor] = []
    with evaluating(model):
        for images, views_of in batches:
            for p, rows in pooled_by_each(model, images, pools, amp).items():
                embedded[p].append(normalize(rows, dim=1).cpu())
            instances.append(views_of.cpu())
    if not instances:
        raise InputError("there are no images to choose p by.")
    numbers = torch.cat(instances)
    scores = {p: _views_found(torch.cat(rows), numbers) for p, rows in embedded.items()}
    return max(scores, key=scores.__getitem__), scores


def gem_pools(model: EmbeddingModel, exponents: Sequence[float]) -> dict[float, GeM]:
    """Return poolings by their exponents, ascending.

    Raises:
        ConfigError: the model does not pool by GeM, there is no exponent, or one is not above 0.
    """
    _gem_of(model)
    if not exponents:
        raise ConfigError("there are no candidates for p; expected numbers above 0.")
    return {float(p): GeM(p, learned=False) for p in sorted(exponents)}


def _gem_of(model: EmbeddingModel) -> GeM:
    if not isinstance(model.pooling, GeM):
        raise ConfigError("p* is the exponent of GeM, and this model pools otherwise; take pooling gem.")
    return model.pooling


@torch.no_grad()
def pooled_by_each(
    model: EmbeddingModel, images: Tensor, pools: Mapping[float, GeM], amp: Amp = "off"
) -> dict[float, Tensor]:
    """Return a model's (B, D) embeddings, as they come, of one pass of (B, 3, H, W) normalised images by each pooling.

    Args:
        model: in evaluation mode.
        images: on its device.
        pools: by their exponents.
        amp: precision of the model's arithmetic.
    """
    with autocast(images.device, amp):
        maps = model.backbone(images)
        return {p: _head(model, pool.to(maps.device)(maps)).float() for p, pool in pools.items()}


def _head(model: EmbeddingModel, pooled: Tensor) -> Tensor:
    return model.projection(model.norm(pooled))


def _views_found(embeddings: Tensor, instances: Tensor) -> float:
    """Return the mean over queries of the share of the n other views that are among the n nearest items."""
    number, counts = instances.unique(return_inverse=True, return_counts=True)[1:]
    num_others = counts[number] - 1
    most = int(num_others.max())
    if most == 0:
        raise InputError("no image has two views; give several views of each, for instance 5.")
    found = torch.zeros(len(instances), dtype=torch.float64)
    for start in range(0, len(instances), _ROWS):
        rows = torch.arange(start, min(start + _ROWS, len(instances)))
        scores = embeddings[rows] @ embeddings.T
        scores[torch.arange(len(rows)), rows] = -torch.inf
        nearest = number[scores.topk(most).indices] == number[rows, None]
        counted = torch.arange(most) < num_others[rows, None]
        found[rows] = (nearest & counted).sum(1).double() / num_others[rows].clamp(min=1)
    return float(found[num_others > 0].mean())


def set_gem_p(model: EmbeddingModel, p: float) -> None:
    """Give a model with GeM pooling another exponent, which is not learned.

    Raises:
        ConfigError: the model does not pool by GeM, or p is not above 0.
    """
    if not isinstance(model.pooling, GeM):
        raise ConfigError(f"gem_p is {p:g}, and this model does not pool by GeM; leave the option out.")
    model.pooling = GeM(p, learned=False).to(model.pooling.p.device)


def choose_gem_p(
    model: EmbeddingModel,
    images: ImagesConfig,
    dataset: ShardDataset,
    size: int,
    *,
    batch_size: int,
    workers: int,
    seed: int = 0,
    amp: Amp = "off",
) -> float:
    """Choose the exponent with which varied views of images find each other best at a resolution.

    As in the paper, there are 5 views of each of 2,000 images, varied as training varies them.

    Args:
        model: with GeM pooling, on its device.
        images: options of the run by which training varies images.
        dataset: the training images; if there are fewer than 2,000, all are taken.
        size: side of the square that the model will see, pixels.
        batch_size: views at a time.
        workers: threads that read and decode.
        seed: of the images and their views.
        amp: precision of the model's arithmetic.

    Returns:
        p*, one of 1, 2, ..., 10.

    Raises:
        ConfigError: the model does not pool by GeM.
        InputError: the dataset is empty, or an image cannot be read and none can replace it.
    """
    return score_gem_p(model, images, dataset, size, batch_size=batch_size, workers=workers, seed=seed, amp=amp)[0]


def score_gem_p(
    model: EmbeddingModel,
    images: ImagesConfig,
    dataset: ShardDataset,
    size: int,
    *,
    batch_size: int,
    workers: int,
    seed: int = 0,
    amp: Amp = "off",
    exponents: Sequence[float] = EXPONENTS,
) -> tuple[float, dict[float, float]]:
    """Do as :func:`choose_gem_p` and return what :func:`best_gem_p` returns, for these exponents."""
    drawn = np.random.default_rng(seed).permutation(len(dataset))[:_IMAGES]
    chosen = dataset.select(np.sort(drawn))
    at_once = min(max(batch_size // _VIEWS, 1), max(len(chosen), 1)) * _VIEWS
    sampler = RepeatedAugmentation(len(chosen), at_once, _VIEWS, seed=seed)
    view = train_view(images, size)
    loader = Loader(chosen, sampler, view, decoder=images.decoder, workers=workers, seed=seed, on_fault="replace")

    device = next(model.parameters()).device
    with closing(cast("Generator[Batch, None, None]", iter(loader))) as batches:
        views = ((prepare_images(batch.images, model, device, channels_last=False), batch.indices) for batch in batches)
        return best_gem_p(model, views, exponents, amp=amp)


# -- p alone learned from classes -------------------------------------------------------------------------------------


def learned_gem_p(
    model: EmbeddingModel,
    classifier: Classifier,
    batches: Iterable[tuple[Tensor, Tensor]],
    steps: int,
    *,
    rate: float = _RATE,
    momentum: float = _MOMENTUM,
    power: float = _POWER,
    amp: Amp = "off",
) -> float:
    """Learn the exponent alone by the cross-entropy of classes; nothing else of the model moves.

    SGD at rate x (1 - t / steps)^power at step t, as the authors' code has it (the paper states the rate).

    Args:
        model: with GeM pooling, from whose exponent p starts; in evaluation mode meanwhile.
        classifier: of its embeddings.
        batches: (B, 3, H, W) normalised images on the model's device, and their (B,) numbers among its classes.
        steps: number of batches.
        rate: at the beginning.
        momentum: of SGD.
        power: of the decay.
        amp: precision of the backbone's arithmetic. What stands behind it is float32, in which p's gradient needs no
            scale.

    Raises:
        ConfigError: the model does not pool by GeM.
        DivergenceError: p leaves the numbers above 0.
    """
    pool = GeM(float(_gem_of(model).p.detach()), learned=True)
    parameter = cast("torch.nn.Parameter", pool.p)
    optimizer = torch.optim.SGD([parameter], lr=rate, momentum=momentum)
    with evaluating(model), torch.enable_grad():
        for step, (images, targets) in enumerate(batches):
            with torch.no_grad(), autocast(images.device, amp):
                maps = model.backbone(images)
            maps = maps.float()
            pool.to(maps.device)
            loss = cross_entropy(classifier.logits(_head(model, pool(maps)).float()), targets.to(maps.device))
            optimizer.param_groups[0]["lr"] = rate * (1 - step / steps) ** power
            (parameter.grad,) = torch.autograd.grad(loss, [parameter])
            optimizer.step()
            found = float(parameter.detach())
            if not 0 < found < float("inf"):
                raise DivergenceError(
                    f"GeM's p became {found:g} after {step + 1} of {steps} steps (the loss is "
                    f"{float(loss.detach()):.4g}); take a number, or --gem-p auto."
                )
    return float(parameter.detach())


def tune_gem_p(
    model: EmbeddingModel,
    images: ImagesConfig,
    classifier: Classifier,
    dataset: ShardDataset,
    view: TestView,
    *,
    workers: int,
    seed: int = 0,
    amp: Amp = "off",
) -> float:
    """Learn the exponent for the view of a test, from training images seen as in the test.

    As in the authors' code, the first 50 images of every class pass once, four at a time, in random order.

    Args:
        model: with GeM pooling, on its device.
        images: options of the run by which images are read.
        classifier: of its embeddings.
        dataset: the training images.
        view: of the test.
        workers: threads that read and decode.
        seed: of the order.
        amp: precision of the backbone's arithmetic.

    Raises:
        ConfigError: the model does not pool by GeM, or the dataset lacks the classifier's level.
        InputError: no image is of a class of the classifier, or one cannot be read and none can replace it.
        DivergenceError: p leaves the numbers above 0.
    """
    targets = classifier.targets(dataset)
    chosen = dataset.select(_first_of_each(targets.numpy(), _TUNING_IMAGES))
    sampler = ShapeBatches(view.shapes(*chosen.sizes.T), _TUNING_BATCH, seed=seed)
    loader = Loader(chosen, sampler, view, decoder=images.decoder, workers=workers, on_fault="replace")
    numbers, device = classifier.targets(chosen), next(model.parameters()).device
    with closing(cast("Generator[Batch, None, None]", iter(loader))) as batches:
        shown = (
            (prepare_images(batch.images, model, device, channels_last=False), numbers[batch.indices])
            for batch in batches
        )
        return learned_gem_p(model, classifier, shown, len(sampler), amp=amp)


def _first_of_each(targets: NDArray[np.int64], count: int) -> NDArray[np.int64]:
    """Return the places of the first ``count`` items of every class, ascending; those below 0 are of none."""
    order = np.argsort(targets, kind="stable")
    ordered = targets[order]
    nth = np.arange(len(ordered)) - np.searchsorted(ordered, ordered)
    return np.sort(order[(ordered >= 0) & (nth < count)])


class ShapeBatches(BatchSampler):
    """Batches of images whose views have one shape, each image once.

    Args:
        shapes: (N, 2) of the views.
        batch_size: images of a batch, at most.
        seed: of a random order; None: that of the shapes and of the dataset.
    """

    def __init__(self, shapes: NDArray[np.int64], batch_size: int, *, seed: int | None = None) -> None:
        self.num_items = len(shapes)
        draw = None if seed is None else np.random.default_rng(seed)
        order = np.arange(len(shapes)) if draw is None else draw.permutation(len(shapes))
        kind = np.unique(shapes, axis=0, return_inverse=True)[1].reshape(-1)[order]
        alike = np.split(order[np.argsort(kind, kind="stable")], np.cumsum(np.bincount(kind))[:-1])
        self._items = [items[at : at + batch_size] for items in alike for at in range(0, len(items), batch_size)]
        if draw is not None:
            self._items = [self._items[number] for number in draw.permutation(len(self._items))]
        super().__init__(
            batch_size=batch_size, batches=len(self._items), parts=1, seed=0, process_index=0, process_count=1
        )

    def _whole_batch(self, epoch: int, step: int) -> NDArray[np.int64]:
        return self._items[step]
