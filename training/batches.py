"""The batches of a run, which depend only on (seed, step), not on how images are read or the number of processes."""

import hashlib
import json
from collections.abc import Generator
from contextlib import closing
from functools import cached_property
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from hgld.data.batch import Batch
from hgld.data.dataset import ShardDataset, open_dataset
from hgld.data.loader import Loader
from hgld.data.storage import is_shard
from hgld.data.streaming import ShardStream, stream
from hgld.data.views import ResizeMode, TestView, TrainView
from hgld.distributed import Processes
from hgld.errors import ConfigError, InputError
from hgld.hierarchy import Hierarchy
from hgld.samplers import (
    BatchSampler,
    ClassBalanced,
    EpochSampler,
    HierarchicalPKSampler,
    PKSampler,
    RepeatedAugmentation,
)

from .config import ImagesConfig, TrainConfig

_IMAGES_PER_DIMENSION = 32  # number of training images per kept dimension to fit a PCA


class TrainingData:
    """The training set of a run, read by random access with its index or, with ``stream``, shard after shard.

    The batch of a step is the same for any number of processes, which take equal parts in order of rank. If
    ``steps_per_epoch`` differs from the length of the sampler's own epoch, the run's next epoch continues where the
    sampler stopped.

    Args:
        config: the run's options.
        place: dataset directory or its URL.
        processes: processes of the run.

    Attributes:
        place: dataset directory or its URL, as given.
        dataset: the training split.
        steps_per_epoch: number of steps per epoch of the run.

    Raises:
        ConfigError: the dataset cannot fill a batch, or a batch cannot be split over the processes.
        InputError: there is no dataset, or it does not have the split.
    """

    def __init__(self, config: TrainConfig, place: str, processes: Processes) -> None:
        self.place = place
        self._config = config
        self._processes = processes
        if is_shard(place):
            raise InputError(
                f"{place}: training needs the classes and the tree of a dataset directory, not single shards. Give the "
                "directory (`hgld index` makes one from shards)."
            )
        if config.batch.batch_size % processes.count:
            raise ConfigError(
                f"--batch-size {config.batch.batch_size} cannot be split equally over {processes.count} processes; use "
                "a multiple of their number."
            )
        self._reader, self.dataset = self._open()
        self._length = len(self._reader)
        self.steps_per_epoch = config.batch.steps_per_epoch or self._length

    @property
    def hierarchy(self) -> Hierarchy:
        """The class tree of the whole dataset, with all its splits."""
        return self.dataset.hierarchy

    @property
    def levels(self) -> tuple[str, ...]:
        """Names of the L levels, finest first."""
        return self.dataset.levels

    @property
    def labels(self) -> Tensor:
        """(N, L) int64 class ids of the training split."""
        return self.dataset.labels

    @cached_property
    def facts(self) -> dict[str, object]:
        """Facts that identify the dataset: a run resumes only on data with the same facts.

        The checksum covers the labels of the training split, and the shards in their order, which determines the
        batches.
        """
        shards = [(shard.split, shard.sha256) for shard in self.dataset.manifest.shards]
        checksum = hashlib.sha256(json.dumps(shards).encode())
        checksum.update(self.labels.numpy().tobytes())
        return {
            "name": self.dataset.manifest.name,
            "items": len(self.dataset),
            "classes": dict(zip(self.levels, self.hierarchy.num_classes, strict=True)),
            "steps_per_epoch": self.steps_per_epoch,
            "checksum": checksum.hexdigest()[:16],
        }

    def batches(self, epoch: int, start_step: int = 0) -> Generator[Batch, None, None]:
        """Yield this process's parts of an epoch's batches; close the generator if you stop early, to end its threads.

        Args:
            epoch: epoch of the run, from 0.
            start_step: first step of the epoch to yield.

        Raises:
            InputError: an image cannot be read, and no other image of its class can replace it.
            ServiceError: a server kept failing.
            StorageError: the disk failed.
        """
        step, end = epoch * self.steps_per_epoch + start_step, (epoch + 1) * self.steps_per_epoch
        while step < end:
            round_, position = divmod(step, self._length)
            self._reader.load_state_dict({"epoch": round_, "step": position})
            with closing(cast("Generator[Batch, None, None]", iter(self._reader))) as rest:
                for batch in rest:
                    step += 1
                    yield batch
                    if step == end:
                        break

    def sample(self) -> Generator[Batch, None, None]:
        """Yield square views of random images, enough for a PCA; every process gets an equal part of the views."""
        images, count = self._config.images, self._processes.count
        wanted = min(len(self.dataset), _IMAGES_PER_DIMENSION * max(self._config.model.dim, 1)) // count * count
        if not wanted:
            raise ConfigError(f"there are {len(self.dataset)} images for {count} processes; use fewer processes.")
        drawn = EpochSampler(len(self.dataset), wanted, seed=self._config.run.seed).batch(0, 0)
        at_once = min(max(256 // count, 1) * count, wanted)
        index = self._processes.index
        sampler = EpochSampler(wanted, at_once, shuffle=False, process_index=index, process_count=count)
        loader = Loader(
            self.dataset.select(drawn), sampler, square_view(images), workers=images.workers, on_fault="replace"
        )
        with closing(cast("Generator[Batch, None, None]", iter(loader))) as batches:
            yield from batches

    def _open(self) -> tuple[Loader | ShardStream, ShardDataset]:
        config, images, batch = self._config, self._config.images, self._config.batch
        view = train_view(images, images.size)
        pin = self._processes.device.type == "cuda" and torch.cuda.is_available()
        if batch.stream:
            reader = stream(
                self.place,
                batch.batch_size // batch.images_per_class,
                batch.images_per_class,
                split=config.run.train_split,
                view=view,
                seed=config.run.seed,
                process_index=self._processes.index,
                process_count=self._processes.count,
                num_streams=batch.num_streams,
                workers=images.workers,
                pin_memory=pin,
            )
            assert reader.dataset is not None  # it is None only for single shards, which __init__ refuses
            return reader, reader.dataset
        dataset = open_dataset(self.place, config.run.train_split)
        if batch.merge_classes > 1:
            dataset = dataset.relabelled(merged_labels(dataset.labels, batch.merge_classes, config.run.seed))
        loader = Loader(
            dataset,
            _sampler(config, dataset, self._processes),
            view,
            workers=images.workers,
            seed=config.run.seed,
            pin_memory=pin,
            on_fault="replace",
        )
        return loader, dataset


def merged_labels(labels: Tensor, count: int, seed: int) -> Tensor:
    """Merge random groups of ``count`` finest classes into one class each, with the smallest id of the group.

    PNP's test of robustness (Li et al., "Rethinking the Optimization of Average Precision", AAAI 2022) trains on such
    classes, whose images vary more, and evaluates on the true classes.

    Args:
        labels: (N, L) class ids, finest level first, -1 if unknown.
        count: number of classes that become one class; the last group may be smaller.
        seed: seed of the random choice.

    Returns:
        (N, L) labels; at a coarser level -1 if the merged classes have different parents.
    """
    table = labels.numpy().copy()
    known = table[:, 0] >= 0
    classes, member = np.unique(table[known, 0], return_inverse=True)
    lot = np.random.default_rng(seed).permutation(len(classes))
    group = np.empty(len(classes), np.int64)
    group[lot] = np.arange(len(lot)) // count
    of_item, above_all = group[member], np.iinfo(np.int64).max
    for level, column in enumerate(table.T):
        values = column[known]
        least, largest = np.full(len(classes), above_all), np.full(len(classes), -1)
        np.minimum.at(least, of_item, np.where(values < 0, above_all, values))
        np.maximum.at(largest, of_item, values)
        column[known] = least[of_item] if level == 0 else np.where((least < largest)[of_item], -1, values)
    return torch.from_numpy(table)


def train_view(images: ImagesConfig, size: int) -> TrainView:
    """Return the view that augments training images, for a size in pixels."""
    return TrainView(
        size=size,
        resize=round(images.resize * size / images.size) if images.train_crop == "squared" else 0,
        scale=(images.crop_min, 1.0),
        flip=images.flip,
        jitter=images.jitter,
        lighting=images.lighting,
        autoaugment=images.autoaugment,
        erasing=images.erasing,
    )


def evaluation_view(
    images: ImagesConfig,
    size: int | None = None,
    resize: int | None = None,
    resize_mode: ResizeMode | None = None,
    max_pixels: int | None = None,
) -> TestView:
    """Return the view of images in evaluation.

    Args:
        images: options of the run's images; if ``resize`` is below ``size``, it is raised to ``size``, so that the
            square fits.
        size: side of the square, or the longest side, pixels; None: the run's ``test_size`` or ``size``.
        resize: short side of the image before the square is cut out; None: in proportion to ``size``.
        resize_mode: how images are resized; None: the run's ``test_resize_mode``.
        max_pixels: maximum number of pixels of an image that is not resized; None: the view's default.

    Raises:
        ConfigError: ``resize`` is below ``size``, or ``max_pixels`` is out of range.
    """
    resize_to = max(images.resize, images.size)
    view = TestView(images.size, resize_to, images.test_resize_mode, interpolation=images.interpolation)
    return view.changed(images.test_size or None).changed(size, resize, resize_mode, max_pixels)


def square_view(images: ImagesConfig) -> TestView:
    """Return the evaluation view as a square, for uses that need squares; whole images become central squares."""
    view = evaluation_view(images)
    return view if view.is_square else evaluation_view(images, images.size, resize_mode="crop")


def _sampler(config: TrainConfig, dataset: ShardDataset, processes: Processes) -> BatchSampler:
    batch, size = config.batch, config.batch.batch_size
    p, k = size // batch.images_per_class, batch.images_per_class
    finest = dataset.labels[:, 0]
    classes = len(finest[finest >= 0].unique())
    if batch.sampler == "pk" and classes < p:
        fitting = classes // processes.count * processes.count * k  # the same number of classes per process
        fewer = f"--batch-size {fitting} or less, or more images per class" if fitting else "fewer processes"
        raise ConfigError(
            f"--batch-size {size} with --images-per-class {k} needs {p} classes per batch, but split "
            f"{config.run.train_split!r} of {dataset.manifest.name} has {classes}. Use {fewer}."
        )
    common: dict[str, Any] = {
        "seed": config.run.seed,
        "process_index": processes.index,
        "process_count": processes.count,
    }
    match batch.sampler:
        case "pk":
            return PKSampler(dataset, p, k, coverage=batch.coverage, **common)
        case "hierarchical-pk":
            level = batch.super_level or -1
            return HierarchicalPKSampler(dataset, p, k, super_level=level, super_classes=batch.super_classes, **common)
        case "repeated-augmentation":
            return RepeatedAugmentation(len(dataset), size, batch.repeats, **common)
        case "class-balanced":
            return ClassBalanced(dataset, size, **common)
        case "shuffled":
            return EpochSampler(len(dataset), size, drop_last=True, **common)
