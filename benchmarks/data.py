"""Speed of decoding and planning, compared with webdataset, plain PyTorch code and pytorch-metric-learning.

Run with: python benchmarks/data.py --work DIR [--images 20000] [--width 256] [--height 256] [--only batches plan]

Everything runs on one core. Times are CPU seconds, so that other load on the machine has little effect. Files are in
the page cache. All programs of a group take turns within every round; figures are medians over the rounds. The first
run makes the images and keeps them in DIR, which needs some 2 GB. The plan needs pytorch-metric-learning, a benchmark
extra.
"""

import argparse
import os
import statistics
import time
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from made_shards import PER_CLASS, make_dataset
from measured import head, in_its_own_process, make_parser, row
from PIL import Image
from torch.utils.data import DataLoader, Dataset
from torchvision import transforms
from webdataset.compat import WebDataset

from hgld import open_dataset
from hgld.data.batch import Batch, normalize
from hgld.data.loader import Loader
from hgld.data.views import TrainView
from hgld.samplers import PKSampler

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
BATCH, SIZE = 256, 224
PLANNED_ITEMS, PLANNED_CLASSES = 970_981, 46_593  # about the size of H-GLDv2's training set
Figures = Iterator[tuple[str, float, str]]  # name of an implementation, value, unit


# -- batches --------------------------------------------------------------------------------------------------------


class Files(Dataset[tuple[torch.Tensor, int]]):
    """Plain dataset: one file per image, Pillow, torchvision's transforms."""

    transform = transforms.Compose(
        [
            transforms.RandomResizedCrop(SIZE, scale=(0.16, 1.0)),
            transforms.RandomHorizontalFlip(),
            transforms.ToTensor(),
            transforms.Normalize(MEAN, STD),
        ]
    )

    def __init__(self, files: list[Path]) -> None:
        self.files = files

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, item: int) -> tuple[torch.Tensor, int]:
        image = self.transform(Image.open(self.files[item]).convert("RGB"))
        assert isinstance(image, torch.Tensor)
        return image, item // PER_CLASS


def batches(options: argparse.Namespace) -> Figures:
    """Measure images per second in batches of 256 at 224 pixels, as floats for the model or as bytes."""
    width, height = options.width, options.height
    shards, files = make_dataset(options.work / f"{options.images}-{width}x{height}", options.images, width, height)
    dataset = open_dataset(shards, "train")
    urls = [str(path) for path in sorted(shards.glob("*.tar"))]

    def pk_batches(labels: torch.Tensor) -> PKSampler:
        return PKSampler(labels, BATCH // 4, 4)

    def loader() -> Iterator[Batch]:
        return iter(Loader(dataset, pk_batches(dataset.labels[:, 0]), TrainView(SIZE)))

    def normalized() -> Iterator[torch.Tensor]:
        return (normalize(batch.images, MEAN, STD) for batch in loader())

    def by_webdataset() -> Iterator[object]:
        samples: Any = WebDataset(urls, shardshuffle=False).decode("pil").to_tuple("jpg", "json")
        return iter(samples.map_tuple(Files.transform, lambda facts: facts["labels"][0]).batched(BATCH))

    def plain() -> Iterator[object]:
        return iter(DataLoader(Files(files), batch_sampler=pk_batches(torch.arange(len(files)) // PER_CLASS)))

    def measured(start: Callable[[], Iterator[object]], count: int) -> float:
        found = start()
        next(found)  # warm up imports, plans and memory
        began = time.process_time()
        for _ in islice(found, count):
            pass
        return count * BATCH / (time.process_time() - began)

    sides = {
        "file an image, PIL, torchvision v1, floats": (plain, 3),
        "webdataset, PIL, torchvision v1, floats": (by_webdataset, 3),
        "hgld, bytes": (loader, 12),
        "hgld, floats normalised on the CPU": (normalized, 12),
    }
    rounds = [[measured(*side) for side in sides.values()] for _ in range(options.rounds)]
    for name, values in zip(sides, zip(*rounds, strict=True), strict=True):
        yield name, statistics.median(values), "images/s"


# -- planning -------------------------------------------------------------------------------------------------------


def long_tailed() -> np.ndarray:
    """Return class numbers of H-GLDv2's size, whose class sizes follow a power law."""
    sizes = 1 / np.arange(1, PLANNED_CLASSES + 1) ** 0.7
    sizes = np.maximum(2, np.floor(sizes / sizes.sum() * PLANNED_ITEMS).astype(int))
    sizes[np.arange(PLANNED_ITEMS - sizes.sum()) % PLANNED_CLASSES] += 1
    return np.random.default_rng(0).permutation(np.repeat(np.arange(PLANNED_CLASSES), sizes))


def plan_by_hgld() -> dict[str, float]:
    labels = torch.from_numpy(long_tailed())
    sampler = PKSampler(labels, BATCH // 4, 4)
    began = time.process_time()
    sampler.batch(0, 0)
    seconds = time.process_time() - began
    seen = np.concatenate([sampler.batch(0, step) for step in range(len(sampler))])
    classes = labels.numpy()[seen].reshape(len(sampler), -1, 4)[:, :, 0]
    twice = sum(len(np.unique(row)) < len(row) for row in classes)
    return {
        "seconds": seconds,
        "coverage, %": 100 * len(np.unique(seen)) / len(labels),
        "batches with a class twice": twice,
    }


def plan_by_metric_learning() -> dict[str, float]:
    from pytorch_metric_learning.samplers import MPerClassSampler  # pyright: ignore[reportMissingImports]

    labels = long_tailed()
    sampler = MPerClassSampler(labels, 4, BATCH, length_before_new_iter=len(labels))
    began = time.process_time()
    seen = np.array(list(sampler))
    seconds = time.process_time() - began
    return {"seconds": seconds, "coverage, %": 100 * len(np.unique(seen)) / len(labels)}


def plan(options: argparse.Namespace) -> Figures:
    """Measure planning an epoch of P x K batches at H-GLDv2's size."""
    sides = {"hgld PKSampler": [in_its_own_process(plan_by_hgld) for _ in range(options.rounds)]}
    if find_spec("pytorch_metric_learning"):
        sides["pytorch-metric-learning MPerClassSampler"] = [in_its_own_process(plan_by_metric_learning)]
    for name, found in sides.items():
        for unit in found[0]:
            yield name, statistics.median(one[unit] for one in found), unit


# -- running --------------------------------------------------------------------------------------------------------

GROUPS = {"batches": batches, "plan": plan}


def main() -> None:
    parser = make_parser(__doc__, work=Path, images=20_000, width=256, height=256, rounds=5)
    parser.add_argument("--only", nargs="+", choices=GROUPS, default=list(GROUPS))
    options = parser.parse_args()
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    torch.set_num_threads(1)
    print(head("what", "side", "figure", "unit"))
    for group in options.only:
        for side, value, unit in GROUPS[group](options):
            print(row([group, side, f"{value:,.{0 if value >= 100 else 2}f}", unit]), flush=True)


if __name__ == "__main__":
    main()
