"""The order of items in shards: groups of a class stand together, spread over the shards.

Within a split, the items of a finest class are cut into groups of k (the last one takes the rest), the groups are
shuffled by the seed, and the row of groups is cut into shards of about equal size. So a reader of one shard meets many
classes, each with several items at once, and every part of the dataset is like the whole.
"""

import hashlib

import numpy as np
import polars as pl

from hgld.data.format import shard_name
from hgld.data.index import with_runs
from hgld.data.tar import BLOCK, END_OF_ARCHIVE

_JSON_BYTES = 2 * BLOCK  # rough size of an item's JSON with its header


def plan_shards(
    items: pl.DataFrame, finest: str, *, group_size: int, shard_bytes: int, shard_items: int, seed: int
) -> pl.DataFrame:
    """Put items into the order of their shards.

    Args:
        items: at least key, split, size (bytes), sha256 and the finest level's labels (-1: unknown), in any order.
        finest: the finest level.
        group_size: k, the least number of items of a class that stand together.
        shard_bytes: approximate size of a shard.
        shard_items: most items of a shard; one group more where it does not fit.
        seed: of the order.

    Returns:
        the rows in the order of the index, with the columns shard (file name), class_run (the run of items of one class
        within the shard) and duplicate_of (key of the first item with the same bytes).
    """
    ordered = items.sort("split", "key")
    parts = []
    for (split,), part in ordered.group_by("split", maintain_order=True):
        random = _generator(seed, str(split))
        order, starts = _order(part[finest].to_numpy(), group_size, random)
        lengths = np.diff(starts, append=len(order))
        stored = _tar_bytes(part["size"].to_numpy()[order])
        weight = np.maximum(np.add.reduceat(stored, starts) / shard_bytes, lengths / shard_items)
        shard = np.repeat(_cut(weight), lengths)
        names = pl.Series([shard_name(str(split), number) for number in range(int(shard.max(initial=-1)) + 1)])
        parts.append(part[order].with_columns(names.gather(shard).alias("shard")))
    return with_runs(pl.concat(parts or [ordered.with_columns(shard=pl.lit("", pl.String))]), finest)


def _order(labels: np.ndarray, k: int, random: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Return the order of a split's items, and where in it each group begins."""
    by_class = np.lexsort((random.random(len(labels)), labels))  # items of a class stand together, shuffled
    group = _groups(labels[by_class], k)
    number = int(group[-1]) + 1
    place = np.empty(number, np.int64)
    place[random.permutation(number)] = np.arange(number)
    in_order = np.argsort(place[group], kind="stable")
    return by_class[in_order], np.flatnonzero(np.diff(group[in_order], prepend=-1))


def _groups(labels: np.ndarray, k: int) -> np.ndarray:
    """Number the groups of items sorted by class; the last group of a class takes the rest."""
    starts = np.flatnonzero(np.diff(labels, prepend=labels[0] - 1))
    counts = np.diff(starts, append=len(labels))
    groups = np.maximum(counts // k, 1)
    within = (np.arange(len(labels)) - np.repeat(starts, counts)) // k
    first = np.cumsum(groups) - groups
    return np.repeat(first, counts) + np.minimum(within, np.repeat(groups, counts) - 1)


def _cut(weight: np.ndarray) -> np.ndarray:
    """Assign groups to shards in order, so that shards have about equal weight, near 1 and hardly above it."""
    before = np.cumsum(weight) - weight
    total = float(before[-1] + weight[-1])
    shards = max(1, int(np.ceil(total - 1e-9)))
    number = np.minimum((before + weight / 2) * (shards / total), shards - 1).astype(np.int64)
    _, dense = np.unique(number, return_inverse=True)  # a group larger than a shard may leave numbers unused
    return dense.astype(np.int64)


def _tar_bytes(sizes: np.ndarray) -> np.ndarray:
    """Estimate the bytes of items in a tar, header, padding and JSON included."""
    return BLOCK + -(-sizes // BLOCK) * BLOCK + _JSON_BYTES


def tar_size(sizes: np.ndarray, shards: int) -> int:
    """Estimate the total bytes of ``shards`` tars with images of these sizes."""
    return int(_tar_bytes(np.asarray(sizes, dtype=np.int64)).sum()) + shards * len(END_OF_ARCHIVE)


def _generator(seed: int, split: str) -> np.random.Generator:
    """Return the generator of a split; it does not depend on the other splits that are built."""
    words = np.frombuffer(hashlib.sha256(split.encode()).digest(), dtype=np.uint32)
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence([seed, *words.tolist()])))
