"""Images per second of 1 to 16 threads or processes whose decoding is replaced by sleeps, so that two cores suffice.

Run with: python benchmarks/workers.py --work DIR [--ms 20] [--seconds 6]

DIR is a folder of benchmarks/streaming.py. Decoding an image takes ``--ms`` in all. During ``held`` % of it the thread
holds the interpreter's lock (a sleep in C that does not release it); during the rest it does not (``time.sleep``).
Threads are hgld's Loader; processes are torch's DataLoader with one dataset item per image. Finally the program
measures which share of hgld's own work can hold the lock: at most what an image of 16 x 16 pixels takes.
"""

import argparse
import ctypes
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import cv2
import made_shards
import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

import hgld.data.loader
from hgld import open_dataset
from hgld.data.loader import Loader
from hgld.data.views import TrainView
from hgld.samplers import PKSampler

HELD = (0, 2, 10, 100)  # per cent of an image's time during which the lock is held
WORKERS = (1, 2, 4, 8, 16)
P, K, SIZE = 16, 4, 64
_C = ctypes.PyDLL(None)  # calls through PyDLL keep the interpreter's lock


def work(milliseconds: float, held: int) -> None:
    """Sleep with the lock, then without it."""
    if held:
        _C.usleep(int(10 * milliseconds * held))
    time.sleep(milliseconds * (100 - held) / 1e5)


class Items(Dataset[torch.Tensor]):
    """Images of the size of the loader's, each after the same work."""

    def __init__(self, milliseconds: float, held: int) -> None:
        self.work = milliseconds, held

    def __len__(self) -> int:
        return 1 << 20

    def __getitem__(self, index: int) -> torch.Tensor:
        work(*self.work)
        return torch.zeros(3, SIZE, SIZE, dtype=torch.uint8)


def rate(batches: Iterable[Any], seconds: float) -> float:
    """Return images per second after the first two batches."""
    coming: Iterator[Any] = iter(batches)
    for _ in islice(coming, 2):
        pass
    began, images = time.monotonic(), 0
    for _ in coming:
        images += P * K
        if time.monotonic() - began > seconds:
            break
    return images / (time.monotonic() - began)


def with_threads(place: Path, workers: int, milliseconds: float, held: int, seconds: float) -> float:
    def decode(encoded: Sequence[Any], *_: Any) -> None:
        for _ in encoded:
            work(milliseconds, held)

    dataset = open_dataset(place, "train")
    own, hgld.data.loader.decode_batch = hgld.data.loader.decode_batch, decode
    try:
        loader = Loader(dataset, PKSampler(dataset.labels, P, K), TrainView(SIZE), workers=workers)
        return rate(loader, seconds)
    finally:
        hgld.data.loader.decode_batch = own


def with_processes(workers: int, milliseconds: float, held: int, seconds: float) -> float:
    return rate(DataLoader(Items(milliseconds, held), batch_size=P * K, num_workers=workers), seconds)


def cpu_per_image(folder: Path, width: int, height: int, quality: int) -> tuple[float, float]:
    """Return milliseconds of CPU time per image of the loader with one thread, and the mean kilobytes of an image."""
    rng, images = np.random.default_rng(0), []
    for _ in range(128):
        picture = cv2.resize(rng.integers(0, 256, (height // 8, width // 8, 3), dtype=np.uint8), (width, height))
        grain = rng.normal(0, 12, picture.shape)
        _, data = cv2.imencode(".jpg", (picture + grain).clip(0, 255), [cv2.IMWRITE_JPEG_QUALITY, quality])
        images.append(data.tobytes())
    made_shards.write_hgld(folder, images, (width, height))
    dataset = open_dataset(folder, "train")
    times = []
    for _ in range(5):
        began = time.process_time()
        count = sum(len(batch.images) for batch in Loader(dataset, PKSampler(dataset.labels, P, K), TrainView(224)))
        times.append((time.process_time() - began) / count)
    return 1000 * min(times), sum(map(len, images)) / len(images) / 1000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--ms", type=float, default=20)
    parser.add_argument("--seconds", type=float, default=6)
    told = parser.parse_args()
    cv2.setNumThreads(1)
    torch.set_num_threads(1)
    print("workers", *(f'"{side}, lock held {held} %"' for held in HELD for side in ("threads", "processes")), sep=",")
    for workers in WORKERS:
        cells = []
        for held in HELD:
            words = (workers, told.ms, held, told.seconds)
            cells += [with_threads(told.work / "data", *words), with_processes(*words)]
        print(workers, *(f"{cell:.0f}" for cell in cells), sep=",", flush=True)
    for size in ((16, 16), (640, 480)):
        cpu, size_kb = cpu_per_image(told.work / f"made-{size[0]}", *size, 90)
        print(f"{size[0]} x {size[1]}, {size_kb:.0f} kB: {cpu:.3f} ms of CPU time per image", file=sys.stderr)


if __name__ == "__main__":
    main()
