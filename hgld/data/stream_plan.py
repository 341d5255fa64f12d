"""Which groups of a dataset meet in which batch, when its shards are read one after another.

The groups of all shards, the shards shuffled, form one sequence, which begins at a random place and is cut into *lanes*
of equal length. A lane is read strictly from front to end, and every batch takes the same number of chunks (k items of
a group) from every lane. What a lane has read and not yet given away is its *window*; out of the windows the chunks of
a batch are drawn, so that no class comes twice in it where the windows allow that. All of this is decided from the
index alone, before any image is read: it is a pure function of the index, the options, the seed and the epoch.
"""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np

from hgld.data.stream_dealing import Step, below, deal
from hgld.errors import ConfigError, InputError

Short = Literal["repeat", "drop", "refuse"]

_PURPOSE = 0x5F1A  # sets these random words apart from others of the same seed and epoch
_MOST_NAMED = 5


def random_bits(seed: int, *key: int) -> np.random.Philox:
    """Random words that are a function of the key alone, on every platform and under every numpy.

    numpy keeps the words of a bit generator stable, but not what its distributions and shuffles make of them (NEP 19).
    """
    return np.random.Philox(np.random.SeedSequence(seed, spawn_key=(_PURPOSE, *key)))


def shuffled(count: int, bits: np.random.Philox) -> np.ndarray:
    """A random order of ``range(count)``."""
    return np.argsort(bits.random_raw(count), kind="stable")


@dataclass(frozen=True, eq=False)
class Groups:
    """Runs of items of one class that stand together in a shard, in the order of the index.

    Attributes:
        start: (G,) position of a group's first item.
        count: (G,) its number of items.
        label: (G,) its class.
        shard: (G,) number of its shard.
        unlabelled: items without a class, which are in no group.
    """

    start: np.ndarray
    count: np.ndarray
    label: np.ndarray
    shard: np.ndarray
    unlabelled: int

    @classmethod
    def from_index(cls, shard: np.ndarray, group: np.ndarray, label: np.ndarray) -> "Groups":
        """Groups of an index.

        Args:
            shard: (N,) number of every item's shard.
            group: (N,) its group within the shard.
            label: (N,) its class; -1 is unknown.

        Raises:
            InputError: a group holds items of two classes.
        """
        if not len(label):
            empty = np.empty(0, np.int64)
            return cls(empty, empty, empty, empty, 0)
        begins = np.flatnonzero((np.diff(shard) != 0) | (np.diff(group) != 0)) + 1
        start = np.concatenate([[0], begins]).astype(np.int64)
        count = np.diff(np.append(start, len(label)))
        mixed = np.flatnonzero(label != np.repeat(label[start], count))
        if mixed.size:
            at = int(mixed[0])
            first = int(start[np.searchsorted(start, at, side="right") - 1])
            raise InputError(
                f"group {int(group[at])} of shard {int(shard[at])} (counted from 0) holds items of the classes "
                f"{int(label[first])} and {int(label[at])}; expected one class a group. "
                "Write the index again with `hgld index`."
            )
        known = label[start] >= 0
        return cls(
            start[known],
            count[known],
            label[start][known].astype(np.int64),
            shard[start][known].astype(np.int64),
            int(count[~known].sum()),
        )

    def __len__(self) -> int:
        return len(self.start)

    def select(self, keep: np.ndarray) -> "Groups":
        """The groups where ``keep`` (G,) is True."""
        return Groups(self.start[keep], self.count[keep], self.label[keep], self.shard[keep], self.unlabelled)


@dataclass(frozen=True, eq=False)
class EpochPlan:
    """One epoch: its chunks, the lanes they are read in, and the batches they are dealt to.

    Attributes:
        items: (C, k) positions of every chunk's items.
        group: (C,) the group that a chunk belongs to, a number into the plan's groups.
        label: (C,) its class.
        lanes: (V, m) numbers of the chunks that each lane reads, in reading order.
        left_out: (R,) numbers of the chunks that do not fill a batch.
        per_step: chunks that a batch takes from every lane.
        window: chunks that a lane holds at most.
        key: of the random words.
    """

    items: np.ndarray
    group: np.ndarray
    label: np.ndarray
    lanes: np.ndarray
    left_out: np.ndarray
    per_step: int
    window: int
    key: tuple[int, ...]

    def steps(self) -> Iterator[Step]:
        """The batches, in order."""
        return deal(self.lanes.tolist(), self.label, self.per_step, self.window, random_bits(*self.key, 1))


class StreamPlan:
    """The batches of every epoch, from the index alone.

    Every group of g items is shuffled and cut into ceil(g / k) chunks of k; the last one is filled with the group's
    first items. So every item comes at least once in an epoch, apart from the fewer than ``p`` chunks that do not
    fill a batch; which ones these are changes from epoch to epoch.

    Args:
        groups: the runs of items of a class.
        p: P, classes of a batch.
        k: K, items of a class in a batch.
        lanes: sequences that are read side by side, over all processes.
        window: how many batches' chunks the lanes hold together: the room in which classes are kept apart.
        short: what becomes of groups of fewer than k items: ``repeat`` gives their items more than once in a batch,
            ``drop`` leaves them out, ``refuse`` raises.
        seed: of everything random.

    Attributes:
        groups: those in use.
        dropped: items in short groups that were left out.

    Raises:
        ConfigError: sizes below 1, lanes that do not divide P, short groups under ``refuse``, or not enough groups for
            one batch.
    """

    def __init__(
        self, groups: Groups, p: int, k: int, *, lanes: int = 8, window: int = 8, short: Short = "repeat", seed: int = 0
    ) -> None:
        check_options(p, k, lanes, window, short, seed)
        self.groups, self.dropped = _without_short(groups, k, short)
        self.p, self.k, self.lanes, self.window, self.short, self.seed = p, k, lanes, window, short, seed
        self._chunks = -(-self.groups.count // k)  # of every group
        self.total_chunks = int(self._chunks.sum())
        if self.total_chunks < p:
            raise ConfigError(
                f"there are {self.total_chunks} groups of {k} items with a known class; a batch takes {p}. "
                "Ask for fewer classes a batch, or for fewer images of each."
            )

    def __len__(self) -> int:
        """Batches of an epoch."""
        return self.total_chunks // self.p

    def fingerprint(self) -> str:
        """32 hex digits that differ when the plan differs."""
        digest = hashlib.blake2b(digest_size=16)
        digest.update(repr((1, self.p, self.k, self.lanes, self.window, self.short, self.seed)).encode())
        for array in (self.groups.start, self.groups.count, self.groups.label, self.groups.shard):
            digest.update(np.ascontiguousarray(array, dtype="<i8").tobytes())
        return digest.hexdigest()

    def epoch(self, epoch: int) -> EpochPlan:
        """The plan of one epoch."""
        bits = random_bits(self.seed, epoch)
        groups, k = self.groups, self.k
        rank = shuffled(int(groups.shard.max()) + 1, bits)  # place of every shard in the epoch
        order = np.argsort(rank[groups.shard], kind="stable")
        chunks = self._chunks[order]
        group = np.repeat(order, chunks)
        number = np.arange(self.total_chunks) - np.repeat(np.cumsum(chunks) - chunks, chunks)  # within its group
        items = self._shuffled_items(bits)
        first = np.cumsum(groups.count) - groups.count  # of every group in `items`
        place = (number[:, None] * k + np.arange(k)) % groups.count[group][:, None]
        sequence = np.roll(np.arange(self.total_chunks), -below(int(bits.random_raw()), self.total_chunks))
        dealt = len(self) * self.p
        return EpochPlan(
            items=items[first[group][:, None] + place],
            group=group,
            label=groups.label[group],
            lanes=sequence[:dealt].reshape(self.lanes, -1),
            left_out=sequence[dealt:],
            per_step=self.p // self.lanes,
            window=self.window * (self.p // self.lanes),
            key=(self.seed, epoch),
        )

    def _shuffled_items(self, bits: np.random.Philox) -> np.ndarray:
        """Positions of all items in use, group after group, shuffled within each."""
        count = self.groups.count
        total = int(count.sum())
        owner = np.repeat(np.arange(len(count)), count)
        within = np.arange(total) - np.repeat(np.cumsum(count) - count, count)
        return (np.repeat(self.groups.start, count) + within)[np.lexsort((bits.random_raw(total), owner))]


def check_options(p: int, k: int, lanes: int, window: int, short: str, seed: int) -> None:
    """Refuse options that make no batches.

    Raises:
        ConfigError: with the way out.
    """
    if min(p, k, lanes, window) < 1:
        raise ConfigError(f"p is {p}, k {k}, lanes {lanes} and window {window}; expected at least 1 of each.")
    if short not in ("repeat", "drop", "refuse"):
        raise ConfigError(f"short is {short!r}; expected 'repeat', 'drop' or 'refuse'.")
    if not 0 <= seed < 1 << 64:
        raise ConfigError(f"seed is {seed}; expected 0 to 2**64 - 1.")
    if p % lanes:
        fitting = [d for d in range(1, p + 1) if p % d == 0]
        raise ConfigError(
            f"{lanes} lanes cannot share {p} classes a batch equally; take lanes="
            f"{max(d for d in fitting if d <= lanes)} (or any of {', '.join(map(str, fitting))}), or another p."
        )


def _without_short(groups: Groups, k: int, short: Short) -> tuple[Groups, int]:
    lacking = groups.count < k
    if short == "repeat" or not lacking.any():
        return groups, 0
    if short == "drop":
        return groups.select(~lacking), int(groups.count[lacking].sum())
    classes = np.unique(groups.label[lacking])
    raise ConfigError(
        f"{int(lacking.sum())} groups have fewer than {k} items (classes {', '.join(map(str, classes[:_MOST_NAMED]))}"
        f"{' and more' if len(classes) > _MOST_NAMED else ''}). Take short='repeat' or short='drop', or a smaller k."
    )
