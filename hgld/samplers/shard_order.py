"""P x K batches of items that are read shard after shard; a class repeats within a batch only if unavoidable.

The shards are shuffled, and their groups form one sequence, which begins at a random position and is cut into *streams*
of equal length. Every batch takes the same number of chunks (k items of a group) from each stream. It chooses them from
a *window* of the stream's next chunks.
"""

import hashlib
from collections import Counter
from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass
from typing import get_args

import numpy as np

from hgld.errors import ConfigError, InputError, at_least, check_choice
from hgld.samplers.batch_sampler import (
    BatchSampler,
    ClassItems,
    Short,
    below,
    check_place,
    random_words,
    shuffled,
)
from hgld.samplers.pk import chunk_items, chunks_of, shuffled_within

_SHARDS, _BEGIN, _DEAL = range(6, 9)  # keys of independent random streams; hgld.samplers.pk uses the smaller keys


@dataclass(frozen=True, eq=False)
class ReadingOrder:
    """The chunks of an epoch in reading order; each stream has an equal, contiguous part of the chunks.

    ``items`` (C, k) holds the items of every chunk, ``run`` (C,) the group and ``label`` (C,) the class.
    """

    items: np.ndarray
    run: np.ndarray
    label: np.ndarray


class ShardOrderSampler(BatchSampler):
    """P x K batches for shards that are read one after another; the batches depend only on the index.

    Every group is shuffled and cut into chunks of k; the last chunk is filled with the group's first items. An epoch
    has every chunk once. Its last batch is filled with the first chunks of the epoch, which differ from epoch to epoch.
    So every labelled item is sampled at least once.

    Args:
        shard: (N,) number of every item's shard, in the order of the index.
        group: (N,) number of every item's group within its shard.
        label: (N,) class of every item; -1 is unknown.
        p: number of classes per batch.
        k: number of items per class.
        num_streams: number of streams that are read in parallel, over all processes; must divide p.
        window: number of batches whose items the streams hold in memory. The sampler chooses among these items so that
            a class repeats within a batch only if this cannot be avoided.
        short: rule for groups of fewer than k items: ``repeat`` uses items more than once in a batch, ``drop`` drops
            the group, ``refuse`` raises an error.
        seed: seed of all random choices.
        batches_per_epoch: number of batches per epoch; further batches are skipped. None: all batches.
        process_index: index of this process, from 0.
        process_count: number of processes; must divide ``num_streams``.

    Attributes:
        left_out: number of items without a label.
        dropped: number of items in groups that are too short.

    Raises:
        ConfigError: no batch can be made with these options.
        InputError: a group holds items of two classes.
    """

    def __init__(
        self,
        shard: np.ndarray,
        group: np.ndarray,
        label: np.ndarray,
        p: int,
        k: int,
        *,
        num_streams: int = 8,
        window: int = 8,
        short: Short = "repeat",
        seed: int = 0,
        batches_per_epoch: int | None = None,
        process_index: int = 0,
        process_count: int = 1,
    ) -> None:
        check_options(p, k, num_streams, window, short, seed, process_index, process_count)
        self.p, self.k, self.num_streams, self.window = p, k, num_streams, window
        runs = _runs(shard, group, label)
        self._runs = ClassItems.from_labels(runs, k=k, short=short, what="groups")
        self.left_out, self.dropped = self._runs.left_out, self._runs.dropped
        first = self._runs.items[self._runs.start]
        self._shard, self._label = shard[first].astype(np.int64), label[first].astype(np.int64)
        chunks = int(chunks_of(self._runs, k).sum())
        if chunks < p:
            raise ConfigError(
                f"there are {chunks} groups of {k} items with a known class; a batch needs {p}. "
                "Choose fewer classes per batch, or fewer images per class."
            )
        self._all_batches = -(-chunks // p)
        if batches_per_epoch is not None and batches_per_epoch > self._all_batches:
            raise ConfigError(
                f"batches_per_epoch is {batches_per_epoch}; an epoch of this stream has {self._all_batches}."
            )
        super().__init__(
            batch_size=p * k,
            batches=self._all_batches,
            parts=num_streams,
            seed=seed,
            batches_per_epoch=batches_per_epoch,
            process_index=process_index,
            process_count=process_count,
        )

    def fingerprint(self) -> str:
        """Return a hash of 32 hex digits that differs if the batches differ."""
        runs = (self._runs.items[self._runs.start], self._runs.count, self._label, self._shard)
        options = (self.p, self.k, self.num_streams, self.window, self.seed)
        digest = hashlib.blake2b(repr((2, options)).encode(), digest_size=16)
        for array in runs:
            digest.update(np.ascontiguousarray(array, dtype="<i8").tobytes())
        return digest.hexdigest()

    def order(self, epoch: int) -> ReadingOrder:
        """Return the chunks of an epoch in reading order."""
        return self._plan_of(epoch)[0]

    def chunks(self, epoch: int, step: int) -> list[int]:
        """Return the P chunks of a batch, stream after stream, as indices into the epoch's reading order."""
        _, coming, dealt = self._plan_of(epoch)
        while len(dealt) <= step:
            dealt.append(next(coming))
        return dealt[step]

    def _whole_batch(self, epoch: int, step: int) -> np.ndarray:
        chunks = self.chunks(epoch, step)
        return self.order(epoch).items[chunks].reshape(-1)

    def _plan(self, epoch: int) -> tuple[ReadingOrder, Iterator[list[int]], list[list[int]]]:
        """Return the reading order of an epoch, the generator of its batches, and the batches made so far."""
        order, key = self._order(epoch), (self.seed, epoch, _DEAL)
        return order, deal(order.label, self.num_streams, self.p // self.num_streams, self.window, *key), []

    def _order(self, epoch: int) -> ReadingOrder:
        runs, key = self._runs, (self.seed, epoch)
        rank = shuffled(int(self._shard.max()) + 1, *key, _SHARDS)  # position of every shard in the epoch
        order = np.argsort(rank[self._shard], kind="stable")
        chunks = chunks_of(runs, self.k)[order]
        run = np.repeat(order, chunks)
        # number of the chunk within its group
        number = np.arange(len(run)) - np.repeat(np.cumsum(chunks) - chunks, chunks)
        begin = int(below(random_words(1, *key, _BEGIN), len(run))[0])
        sequence = np.resize(np.roll(np.arange(len(run)), -begin), self._all_batches * self.p)
        run, number = run[sequence], number[sequence]
        items = chunk_items(runs, shuffled_within(runs, *key), run, number, self.k)
        return ReadingOrder(items, run, self._label[run])

    def __getstate__(self) -> dict[str, object]:
        # A generator cannot be pickled, so the copy makes the epoch again.
        return {**self.__dict__, "_planned": (-1, None)}


def _runs(shard: np.ndarray, group: np.ndarray, label: np.ndarray) -> np.ndarray:
    """Return (N,) the number of the group that an item belongs to, over all shards; -1 if its class is unknown."""
    begins = np.ones(len(label), dtype=bool)
    begins[1:] = (np.diff(shard) != 0) | (np.diff(group) != 0)
    run = np.cumsum(begins) - 1
    first = np.flatnonzero(begins)
    mixed = np.flatnonzero(label != label[first][run]) if len(label) else first
    if mixed.size:
        at = int(mixed[0])
        raise InputError(
            f"group {int(group[at])} of shard {int(shard[at])} (counted from 0) holds items of the classes "
            f"{int(label[first[run[at]]])} and {int(label[at])}; expected one class per group. "
            "Write the index again with `hgld index --force`."
        )
    return np.where(label >= 0, run, -1)


def check_options(
    p: int, k: int, num_streams: int, window: int, short: str, seed: int, process_index: int, process_count: int
) -> None:
    """Raise an error if the options allow no batches, or if streams or processes cannot share a batch equally.

    Raises:
        ConfigError: an option is invalid; the message states the fix.
    """
    at_least(1, p=p, k=k, num_streams=num_streams, window=window)
    check_choice("short", short, get_args(Short))
    check_place(seed, process_index, process_count)
    fitting = fitting_streams(p, process_count)
    if num_streams not in fitting:
        hint = f"num_streams={' or '.join(map(str, fitting))}" if fitting else f"a multiple of {process_count} as p"
        raise ConfigError(
            f"{num_streams} streams of {process_count} processes cannot share {p} classes per batch; choose {hint}."
        )


def fitting_streams(p: int, process_count: int) -> list[int]:
    """Return the numbers of streams that divide ``p`` classes per batch and that the processes can share equally."""
    return [n for n in range(1, p + 1) if p % n == 0 and n % max(process_count, 1) == 0]


def deal(label: np.ndarray, num_streams: int, per_stream: int, window: int, *key: int) -> Iterator[list[int]]:
    """Distribute the chunks of all streams to batches.

    A class with as many chunks left as there are batches left is taken first, which keeps the last batches free of
    repetitions. The other chunks are drawn at random from the windows, among the classes that the batch does not have
    yet. If a stream holds no such class, it takes over a class from another stream, and that stream takes a new class.
    Such a chain of takeovers is an augmenting path between streams and classes. A class is repeated only if there is no
    such path.

    Args:
        label: (C,) class of every chunk in reading order; stream v has the v-th part, of C / num_streams chunks.
        num_streams: number of streams.
        per_stream: number of chunks that a batch takes from every stream.
        window: maximum number of batches whose chunks a stream holds.
        key: key of the random numbers.

    Yields:
        num_streams * per_stream indices of chunks, stream after stream.
    """
    length = len(label) // num_streams
    batches = length // per_stream
    classes, dense = np.unique(label, return_inverse=True)
    remaining = np.bincount(dense, minlength=len(classes))
    labels: list[int] = dense.tolist()
    held: list[list[int]] = [[] for _ in range(num_streams)]
    entered = 0
    for step in range(batches):
        until = min(length, (step + window) * per_stream)
        for number, chunks in enumerate(held):
            chunks += range(number * length + entered, number * length + until)
        entered = until
        hand = _Hand(held, labels, per_stream)
        urgent = np.flatnonzero(remaining >= batches - step)
        for c in urgent[np.argsort(-remaining[urgent], kind="stable")].tolist():
            hand.take_class(c)
        words = iter(random_words(num_streams * per_stream, *key, step).tolist())
        for at in range(num_streams):
            stream = (at + step) % num_streams  # the stream that chooses last changes from batch to batch
            while len(hand.chunks[stream]) < per_stream:
                hand.take_any(stream, next(words))
        dealt = [chunk for chunks in hand.chunks for chunk in chunks]
        np.subtract.at(remaining, dense[dealt], 1)
        yield dealt


def draw(labels: Sequence[int], taken: Container[int], word: int) -> int:
    """Return the index of a random class that is not ``taken``; if all are taken, of a class that occurs most often."""
    free = [place for place, c in enumerate(labels) if c not in taken]
    return free[(word * len(free)) >> 64] if free else labels.index(Counter(labels).most_common(1)[0][0])


class _Hand:
    """A batch that is being filled: the chunks of every stream, and the stream that each class comes from."""

    def __init__(self, held: list[list[int]], labels: Sequence[int], per_stream: int) -> None:
        self._held, self._labels, self._per_stream = held, labels, per_stream
        self.chunks: list[list[int]] = [[] for _ in held]
        self._stream_of: dict[int, int] = {}

    def take_class(self, c: int) -> None:
        """Take a chunk of a class from the stream with most chunks of the class; skip streams that are full."""
        fitting = [[chunk for chunk in chunks if self._labels[chunk] == c] for chunks in self._held]
        roomy = [stream for stream, chunks in enumerate(self.chunks) if len(chunks) < self._per_stream]
        most = max(roomy, key=lambda stream: len(fitting[stream]), default=None)
        if most is not None and fitting[most]:
            self._take(most, fitting[most][0])

    def take_any(self, stream: int, word: int) -> None:
        """Take a chunk from a stream; if possible, of a class that the batch does not have yet."""
        held = self._held[stream]
        labels = [self._labels[chunk] for chunk in held]
        if all(c in self._stream_of for c in labels) and self._take_over(stream, {stream}):
            return
        self._take(stream, held[draw(labels, self._stream_of, word)])

    def _take(self, stream: int, chunk: int) -> None:
        self._held[stream].remove(chunk)
        self.chunks[stream].append(chunk)
        self._stream_of.setdefault(self._labels[chunk], stream)

    def _take_over(self, stream: int, asked: set[int]) -> bool:
        """Give a stream a new class, if necessary by an exchange with other streams; return whether this worked."""
        for chunk in self._held[stream]:
            c = self._labels[chunk]
            owner = self._stream_of.get(c)
            if owner in asked:
                continue
            if owner is not None:
                asked.add(owner)
                if not self._take_over(owner, asked):
                    continue
                given = next(one for one in self.chunks[owner] if self._labels[one] == c)
                self.chunks[owner].remove(given)
                self._held[owner].append(given)
                del self._stream_of[c]
            self._take(stream, chunk)
            return True
        return False
