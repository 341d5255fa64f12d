"""A small dataset, options that train on it within a second, and the final weights of a run."""

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hgld import Hierarchy
from hgld.data.index import read_index
from hgld.training.checkpoint import find_checkpoint, read_checkpoint
from hgld.training.config import TrainConfig, with_fields
from hgld.training.progress import ProgressReporter
from tests.fake_releases.pictures import jpeg
from tests.hgld.small_dataset import Item, write_dataset
from tests.hgld.streamed_dataset import damage, no_image

STEPS = 6  # steps per epoch of QUICK on the small dataset, which has 48 training images in batches of 8

QUICK: dict[str, Any] = {
    "backbone": "small",
    "pretrained": "none",
    "dim": 8,
    "size": 16,
    "resize": 18,
    "workers": 1,
    "batch_size": 8,
    "images_per_class": 2,
    "num_streams": 2,
    "lr": 1e-3,
    "lr_head": 1e-3,
    "warmup_steps": 0,  # recipes for small datasets have a warm-up longer than these runs
    "epochs": 2,
    "log_every": 2,
    "loggers": (),  # TensorBoard would take a tenth of a second of each run
    "metrics": ("R@1", "AP", "H-AP"),
    "device": "cpu",
}


# A tree, and the labels of a training split that lacks some of its classes.
TREE = Hierarchy(
    ("fine", "mid", "top"),
    (tuple("abcdefghijkl"), tuple("mnop"), ("x", "y")),
    (np.arange(12) // 3, np.arange(4) // 2),
)
LABELS = torch.as_tensor(TREE.expand(np.repeat([1, 2, 4, 5, 7, 11], [2, 2, 4, 4, 6, 6]))).long()


def options(**fields: Any) -> TrainConfig:
    """``QUICK`` with some fields changed."""
    return with_fields(TrainConfig(), QUICK | fields)


def write_small(folder: Path, held_out: Sequence[int] = range(12, 18), order: int = 0, val: Sequence[int] = ()) -> Path:
    """Write 18 classes of 4 images, 4 classes per coarse class; training images come in groups of 2, in 4 shards.

    Args:
        folder: folder to write.
        held_out: the classes for testing.
        order: seed of the order of the groups.
        val: classes of ``held_out`` that form the split ``val``.
    """
    rng = np.random.default_rng(0)
    trained = [c for c in range(18) if c not in held_out]
    groups = [[Item((c, c // 4), "train", jpeg(rng)) for _ in range(2)] for c in trained for _ in range(2)]
    random.Random(order).shuffle(groups)
    test = [Item((c, c // 4), "val" if c in val else "test", jpeg(rng)) for c in held_out for _ in range(4)]
    write_dataset(folder, [item for group in groups for item in group] + test, per_shard=12)
    return folder


def write_half_damaged(folder: Path) -> Path:
    """Write the small dataset with every second training image damaged."""
    write_small(folder)
    damage(folder, read_index(folder / "index.parquet")[0].filter(split="train"), range(0, 48, 2), no_image)
    return folder


def weights(run: Path) -> dict[str, Tensor]:
    """Return all tensors of the last checkpoint, by file and name."""
    tensors = read_checkpoint(find_checkpoint(run, "last")).tensors
    return {f"{file}/{name}": tensor for file, named in tensors.items() for name, tensor in named.items()}


def same(some: dict[str, Tensor], others: dict[str, Tensor]) -> bool:
    """Tell whether the weights of two runs are bit-identical."""
    return some.keys() == others.keys() and all(torch.equal(some[name], others[name]) for name in some)


class Notes(ProgressReporter):
    """Reporter that keeps the notes of a run."""

    def __init__(self) -> None:
        self.notes: list[str] = []

    def note(self, text: str) -> None:
        self.notes.append(text)
