"""GeM's exponent for the resolution of a test, chosen by images of the training set (MultiGrain's p*)."""

from collections.abc import Generator
from contextlib import closing
from typing import cast

import numpy as np

from hgld.dataset import ShardDataset
from hgld.decoding.batch import Batch
from hgld.errors import ConfigError
from hgld.loader import Loader
from hgld.samplers import RepeatedAugmentation
from training.config import ImagesConfig
from training.data import train_view
from training.models.embedding_model import EmbeddingModel, prepare_images
from training.models.gem_exponent import best_gem_p
from training.models.pooling import GeM

_IMAGES, _VIEWS = 2000, 5  # as the paper


def set_gem_p(model: EmbeddingModel, p: float) -> None:
    """Give a model with GeM pooling another exponent, which is not learned.

    Raises:
        ConfigError: the model pools otherwise, or p is not above 0.
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
) -> float:
    """The exponent by which augmented views of images find each other best at a resolution; no label is looked at.

    As in the paper, there are 5 views of each of 2,000 images, varied as training does (Berman et al., "MultiGrain: a
    unified image embedding for classes and instances", 2019, section 4.3).

    Args:
        model: with GeM pooling, on its device.
        images: of the run: how training varies images.
        dataset: of the training images; of fewer than 2,000 all are taken.
        size: side of the square that the model will see, pixels.
        batch_size: views at a time.
        workers: threads that read and decode.
        seed: of the images and their views.

    Returns:
        p*, of 1, 2, ..., 10.

    Raises:
        ConfigError: the model pools otherwise.
        InputError: the dataset is empty, or images that cannot be read have none to stand in for them.
    """
    drawn = np.random.default_rng(seed).permutation(len(dataset))[:_IMAGES]
    chosen = dataset.select(np.sort(drawn))
    at_once = min(max(batch_size // _VIEWS, 1), max(len(chosen), 1)) * _VIEWS
    sampler = RepeatedAugmentation(len(chosen), at_once, _VIEWS, seed=seed)
    view = train_view(images, size)
    loader = Loader(chosen, sampler, view, decoder=images.decoder, workers=workers, seed=seed, on_fault="replace")

    device = next(model.parameters()).device
    with closing(cast("Generator[Batch, None, None]", iter(loader))) as batches:
        views = ((prepare_images(batch.images, model, device, channels_last=False), batch.indices) for batch in batches)
        return best_gem_p(model, views)[0]
