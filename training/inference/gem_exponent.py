"""Choice of the GeM exponent p* for another resolution than in training, from images of the training set.

A network that is tested at a higher resolution than it was trained at needs a larger p, because an object then fills a
smaller share of the feature map. With the exponent p*, views of the same image find each other best; no class labels
are needed (Berman et al., "MultiGrain: a unified image embedding for classes and instances", 2019, section 4.3).
"""

from collections.abc import Generator, Iterable, Sequence
from contextlib import closing
from typing import cast

import numpy as np
import torch
from torch import Tensor

from hgld.data.batch import Batch
from hgld.data.dataset import ShardDataset
from hgld.data.loader import Loader
from hgld.errors import ConfigError, InputError
from hgld.evaluation.neighbors import nearest_neighbors
from hgld.samplers import RepeatedAugmentation

from ..batches import train_view
from ..config import ImagesConfig
from ..models.embedding_model import EmbeddingModel, GeM, prepare_images
from .embedding import Amp, autocast, evaluating

_IMAGES, _OF_CLASS, _VIEWS = 2000, 2, 5  # number of images, images per class and views, as in the paper
EXPONENTS = tuple(range(1, 11))  # candidates of p, as in the paper


def best_gem_p(
    model: EmbeddingModel,
    batches: Iterable[tuple[Tensor, Tensor]],
    candidates: Sequence[float] = EXPONENTS,
    *,
    amp: Amp = "off",
) -> tuple[float, dict[float, float]]:
    """Choose p for the resolution of the given images.

    The paper takes 5 random views of each of 2,000 training images, 2 per class, at the image size of the test. The
    model is not changed; :func:`set_gem_p` applies the choice.

    Args:
        model: model with GeM pooling; it is in evaluation mode during the call.
        batches: pairs of (B, 3, H, W) normalised views on the model's device, and (B,) integers, equal for views of one
            image. An image without another view is not a query.
        candidates: exponents above 0.
        amp: precision of the model's arithmetic.

    Returns:
        the best p (the smallest of equally good exponents), and the score of every candidate. A query with n other
        views of its image scores the share of these views among its n nearest items; a candidate's score is the mean
        over the queries.

    Raises:
        ConfigError: the model does not pool by GeM, or a candidate is not above 0.
        InputError: no image has two views.
    """
    if not isinstance(model.pooling, GeM):
        raise ConfigError(
            "the exponent p of GeM pooling is needed, but this model has a different pooling; use a model with "
            "pooling gem."
        )
    pools = {float(p): GeM(p, learned=False) for p in sorted(candidates)}
    embedded: dict[float, list[Tensor]] = {p: [] for p in pools}
    instances: list[Tensor] = []
    with evaluating(model):
        for images, views_of in batches:
            with autocast(images.device, amp):
                maps = model.backbone(images)
                for p, pool in pools.items():
                    embedded[p].append(model.projection(model.norm(pool.to(maps.device)(maps))).float().cpu())
            instances.append(views_of.cpu())
    if not instances:
        raise InputError("there are no images from which p could be chosen.")
    numbers = torch.cat(instances)
    scores = {p: _share_of_views_found(torch.cat(rows), numbers) for p, rows in embedded.items()}
    return max(scores, key=scores.__getitem__), scores


def _share_of_views_found(embeddings: Tensor, instances: Tensor) -> float:
    """Return the mean over queries of the share of the n other views that are among the n nearest items."""
    number, counts = np.unique(instances.numpy(), return_inverse=True, return_counts=True)[1:]
    num_others = counts[number] - 1
    most = int(num_others.max())
    if most == 0:
        raise InputError("no image has two views; give several views of each, for instance 5.")
    items, _ = nearest_neighbors(embeddings, embeddings, most, self_index=np.arange(len(number)))
    hits = (number[items] == number[:, None]) & (np.arange(most) < num_others[:, None])
    queries = num_others > 0
    return float((hits.sum(axis=1)[queries] / num_others[queries]).mean())


def set_gem_p(model: EmbeddingModel, p: float) -> None:
    """Give a model with GeM pooling another exponent, which is not learned.

    Raises:
        ConfigError: the model does not pool by GeM, or p is not above 0.
    """
    if not isinstance(model.pooling, GeM):
        raise ConfigError(f"gem_p is {p:g}, but this model does not have GeM pooling; omit the option.")
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
    """Choose the exponent with which augmented views of the same image find each other best at a given resolution.

    As in the paper, there are 5 views of each of 2,000 images, 2 per class, augmented as in training.

    Args:
        model: model with GeM pooling, on its device.
        images: options of the run for augmenting images.
        dataset: the training images; if there are fewer than 1,000 classes, there are fewer images.
        size: side of the square that the model will see, pixels.
        batch_size: number of views at a time.
        workers: number of threads that read and decode.
        seed: seed of the images and their views.
        amp: precision of the model's arithmetic.

    Returns:
        p*, one of 1, 2, ..., 10.

    Raises:
        ConfigError: the model does not pool by GeM.
        InputError: the dataset is empty, or an image cannot be read and none can replace it.
    """
    random = np.random.default_rng(seed)
    order = random.permutation(len(dataset))
    classes = dataset.labels[:, 0].numpy()[order]
    order, classes = order[by_class := np.argsort(classes, kind="stable")], classes[by_class]
    first = np.searchsorted(classes, classes)  # position of the class's first image
    drawn = random.permutation(order[np.arange(len(order)) - first < _OF_CLASS])[:_IMAGES]
    chosen = dataset.select(np.sort(drawn))
    at_once = min(max(batch_size // _VIEWS, 1), max(len(chosen), 1)) * _VIEWS
    sampler = RepeatedAugmentation(len(chosen), at_once, _VIEWS, seed=seed)
    view = train_view(images, size)
    loader = Loader(chosen, sampler, view, workers=workers, seed=seed, on_fault="replace")

    device = next(model.parameters()).device
    with closing(cast("Generator[Batch, None, None]", iter(loader))) as batches:
        views = ((prepare_images(batch.images, model, device), batch.indices) for batch in batches)
        return best_gem_p(model, views, amp=amp)[0]
