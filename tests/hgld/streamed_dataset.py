"""Datasets for the tests of streams: groups of two or more items of a class, shuffled over shards as in a build."""

import random
import re
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import torch

import hgld
from hgld.data.batch import Batch, Fault
from hgld.data.storage import is_shard
from hgld.data.streaming import ShardStream
from hgld.data.views import TrainView
from tests.fake_releases.pictures import jpeg
from tests.hgld.small_dataset import Item, write_dataset

VIEW = TrainView(size=16)
P, K = 8, 2


def grouped_items(sizes: Sequence[int]) -> list[Item]:
    """Return ``sizes[c]`` items of class c in shuffled groups of K to 2K - 1; four classes share a coarse class."""
    rng = np.random.default_rng(0)
    groups = []
    for c, size in enumerate(sizes):
        items = [Item((c, c // 4) if c >= 0 else (-1, -1), "train", jpeg(rng)) for _ in range(size)]
        begins = [K * i for i in range(max(size // K, 1))]
        groups += [items[begin:end] for begin, end in zip(begins, [*begins[1:], size], strict=True)]
    random.Random(0).shuffle(groups)
    return [item for group in groups for item in group]


def typical(folder: Path) -> pl.DataFrame:
    """Write a dataset of 24 classes with 2 to 13 items in 5 shards."""
    sizes = np.random.default_rng(1).integers(2, 14, size=24)
    return write_dataset(folder, grouped_items(sizes.tolist()), per_shard=40)


def damage(folder: Path, index: pl.DataFrame, rows: Sequence[int], how: Callable[[bytes], bytes]) -> list[str]:
    """Change the stored bytes of some items without changing their number; return the items' keys."""
    for row in index[list(rows)].iter_rows(named=True):
        path, begin, end = folder / row["shard"], row["offset"], row["offset"] + row["size"]
        data = bytearray(path.read_bytes())
        data[begin:end] = how(bytes(data[begin:end])).ljust(row["size"], b"\0")[: row["size"]]
        path.write_bytes(data)
    return index[list(rows)]["key"].to_list()


def no_image(data: bytes) -> bytes:
    return b"\xff" * len(data)


def same_batches(some: Sequence[Batch], others: Sequence[Batch]) -> bool:
    return len(some) == len(others) and all(
        torch.equal(a.images, b.images) and torch.equal(a.labels, b.labels) and torch.equal(a.indices, b.indices)
        for a, b in zip(some, others, strict=True)
    )


def joined(parts: Sequence[Sequence[Batch]]) -> list[Batch]:
    """Join the batches of all processes into the batches of a single process."""

    def cat(name: str, batch: Sequence[Batch]) -> torch.Tensor:
        return torch.cat([getattr(part, name) for part in batch])

    return [Batch(cat("images", b), cat("labels", b), cat("indices", b)) for b in zip(*parts, strict=True)]


def all_faults(batches: Sequence[Batch]) -> list[Fault]:
    return [fault for batch in batches for fault in batch.faults]


def tars(folder: Path) -> list[str]:
    return sorted(str(path) for path in folder.glob("*.tar"))


def key_in(where: str) -> str:
    """Return the item key in the location of an error."""
    found = re.search(r"train/\d{4}", where)
    assert found is not None, where
    return found[0]


def stream(root: str | Path | list[str], **options: Any) -> ShardStream:
    """Return a stream of P x K batches from a dataset directory, or from bare shards with six batches per epoch."""
    length = {"batches_per_epoch": 6} if isinstance(root, list) or is_shard(str(root)) else {}
    return hgld.stream(root, P, K, **{"view": VIEW, "num_streams": 4, **length, **options})


def is_pk(batch: Batch) -> bool:
    """Return True if a batch has P x K items, and the number of items of every class is a multiple of K."""
    counts = Counter(batch.labels[:, 0].tolist())
    return len(batch.labels) == P * K and all(count % K == 0 for count in counts.values())
