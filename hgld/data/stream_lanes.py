"""Lanes of a planned stream: shards read from front to end, their items handed on as the chunks of batches."""

from collections import deque
from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from hashlib import sha256
from itertools import chain, islice
from typing import TYPE_CHECKING, BinaryIO, Protocol

import numpy as np
import polars as pl

from hgld.data.batch import Fault
from hgld.data.format import BOX
from hgld.data.images import EncodedImage
from hgld.data.prefetch import ReadAhead
from hgld.data.stream_dealing import Step
from hgld.data.stream_plan import EpochPlan, StreamPlan

if TYPE_CHECKING:
    from hgld.data.storage import ShardStorage

_MOST_SKIPPED = 4 << 20  # bytes read in vain rather than opening the shard again further on
MOST_STAND_INS = 64  # classes tried in a batch for those without a sound item
AHEAD = 2  # batches that a lane reads beyond those it must have


@dataclass(frozen=True, slots=True)
class Item:
    """An image of a batch before decoding.

    Attributes:
        index: its position in the split, or the number made from its key where there is no index.
        image: its bytes and how to read them.
        size: width and height of the upright image, cut to its box.
        labels: (L,) its classes, finest first.
    """

    index: int
    image: EncodedImage
    size: tuple[int, int]
    labels: Sequence[int]


@dataclass(frozen=True, slots=True)
class BadItem:
    """An item that cannot be used: where it is, and why; its index is -1 where that cannot be known."""

    index: int
    where: str
    reason: str


Group = Mapping[int, Item | BadItem]  # the items of a group by their index


class Lane(Protocol):
    """Gives chunks in the place of those that have no sound item."""

    def stand_in(self, chunk: "Chunk") -> "Chunk | None":
        """A chunk of a class that the batch does not have; None if none can be found."""
        ...


class Chunk:
    """K items of one class for a batch, and the others of their group, which stand in for those that are damaged.

    Args:
        lane: that it comes from.
        group: the items of its group.
        picks: the K that are meant.

    Attributes:
        items: the K places; all are None once the group has no sound item left.
        faults: what was found damaged so far, and what stands in its place.
        first: index of the first item meant.
        lane: that it comes from.
    """

    __slots__ = ("_bad", "_others", "faults", "first", "items", "lane")

    def __init__(self, lane: Lane, group: Group, picks: Sequence[int]) -> None:
        self.lane, self.first = lane, picks[0]
        self.faults: list[Fault] = []
        self._bad: set[int] = set()
        picked = set(picks)
        self._others = deque(item for index, item in group.items() if index not in picked)
        self.items: list[Item | None] = [item if isinstance(item := group[index], Item) else None for index in picks]
        for place, index in enumerate(picks):
            if isinstance(item := group[index], BadItem):
                self._refill(place, item)

    def replace(self, place: int, reason: str) -> Item | None:
        """Put another item of the group in the place of one that turned out damaged.

        Returns:
            what stands there now; None if the group has no sound item.
        """
        item = self.items[place]
        assert item is not None
        return self._refill(place, BadItem(item.index, item.image.where, reason))

    def _refill(self, place: int, bad: BadItem) -> Item | None:
        is_news = bad.index not in self._bad
        self._bad.add(bad.index)
        found = self._other(place)
        if found is None:
            self.items = [None] * len(self.items)
        else:
            self.items[place] = found
        if is_news:
            self.faults.append(Fault(bad.index, bad.where, bad.reason, -1 if found is None else found.index))
        return found

    def _other(self, place: int) -> Item | None:
        """An item of the group that the batch does not have, or one that then comes twice."""
        while self._others:
            candidate = self._others.popleft()
            if isinstance(candidate, Item) and candidate.index not in self._bad:
                return candidate
        sound = [item for item in self.items if item is not None and item.index not in self._bad]
        return sound[place % len(sound)] if sound else None


class IndexedItems:
    """What the index says about the items of a split, as arrays: where their bytes lie and how to read them.

    Args:
        frame: the split's rows of the index; where they have a ``sha256``, the items' bytes are held to it.
        labels: (N, L) class ids.
        sizes: (N, 2) width and height of the upright images, cut to their boxes.
        storage: holds the shards.
    """

    def __init__(self, frame: pl.DataFrame, labels: np.ndarray, sizes: np.ndarray, storage: "ShardStorage") -> None:
        self.labels, self.sizes, self.storage = labels, sizes, storage
        self.shards: list[str] = frame["shard"].unique(maintain_order=True).to_list()
        numbers = dict(zip(self.shards, range(len(self.shards)), strict=True))
        self.shard = frame["shard"].replace_strict(numbers, return_dtype=pl.Int32).to_numpy()
        self.group = frame["run"].to_numpy()
        self.offset, self.size = frame["offset"].to_numpy(), frame["size"].to_numpy()
        self.orientation = frame["orientation"].to_numpy()
        self.keys = frame["key"]
        self._sha256 = frame["sha256"] if "sha256" in frame.columns else None
        self._boxes = frame.select(BOX) if BOX[0] in frame.columns else None

    def item(self, index: int, data: bytes) -> Item | BadItem:
        """An item from the bytes that were found where the index says."""
        where = f"{self.shards[self.shard[index]]}: {self.keys[index]} at offset {self.offset[index]}"
        if len(data) != self.size[index]:
            return BadItem(index, where, f"{len(data)} bytes of {self.size[index]}: the shard is cut off")
        if self._sha256 is not None and sha256(data).hexdigest() != self._sha256[index]:
            return BadItem(index, where, "its bytes are not those of the index (SHA-256)")
        box = None if self._boxes is None else self._boxes.row(index)
        whole = box is None or None in box
        image = EncodedImage(data, int(self.orientation[index]), None if whole else box, where)
        width, height = self.sizes[index].tolist()
        return Item(index, image, (width, height), self.labels[index].tolist())


class _ForwardShard:
    """The shard that a lane stands in; opened again only to go back or far ahead."""

    def __init__(self, storage: "ShardStorage") -> None:
        self._storage = storage
        self._file: BinaryIO | None = None
        self._name, self._position = "", 0

    def read(self, name: str, offset: int, size: int) -> bytes:
        """Bytes of a shard, fewer where it ends."""
        ahead = offset - self._position
        if self._file is None or name != self._name or not 0 <= ahead <= _MOST_SKIPPED:
            self.close()
            self._file, self._name = self._storage.open_stream(name, offset), name
        elif ahead:
            self._file.read(ahead)
        data = self._file.read(size)
        self._position = offset + len(data)
        return data

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


def read_groups(items: IndexedItems, groups: Iterable[tuple[int, int]]) -> Generator[Group, None, None]:
    """Groups (first position, number of items) one after another, each item by its position.

    Raises:
        InputError, ServiceError, StorageError: a shard cannot be had at all. One that is cut off gives bad items.
    """
    shard = _ForwardShard(items.storage)
    try:
        for start, count in groups:
            found: dict[int, Item | BadItem] = {}
            for index in range(start, start + count):
                name = items.shards[items.shard[index]]
                found[index] = items.item(index, shard.read(name, int(items.offset[index]), int(items.size[index])))
            yield found
    finally:
        shard.close()


class PlannedChunks:
    """The chunks of a stream with an index: a process's part of every batch of the plan.

    Args:
        items: of the split.
        plan: of the batches.
        process_index: of ``process_count`` processes, which share the lanes.
        process_count: divides the number of lanes.

    Attributes:
        unlabelled: items without a class.
        dropped: items in groups that are too short.
    """

    def __init__(self, items: IndexedItems, plan: StreamPlan, process_index: int, process_count: int) -> None:
        self._items, self._plan = items, plan
        share = plan.lanes // process_count
        self._lanes = range(process_index * share, (process_index + 1) * share)
        self.unlabelled, self.dropped = plan.groups.unlabelled, plan.dropped

    def fingerprint(self) -> str:
        """32 hex digits that differ when the batches do."""
        return self._plan.fingerprint()

    def batches(self, epoch: int, step: int) -> Generator[list[Chunk], None, None]:
        """The process's chunks of every batch of an epoch from ``step`` on; only bytes still needed are read."""
        at = self._plan.epoch(epoch)
        steps = at.steps()
        dealt = {chunk for past in islice(steps, step) for lane in self._lanes for chunk in past.chunks[lane]}
        with ExitStack() as stack:
            lanes = [stack.enter_context(PlannedLane(self._items, self._plan, at, n, dealt)) for n in self._lanes]
            for now in steps:
                yield [chunk for lane in lanes for chunk in lane.take(now)]


class PlannedLane:
    """One lane of an epoch: reads its groups in order and holds each until its last chunk was taken."""

    def __init__(self, items: IndexedItems, plan: StreamPlan, at: EpochPlan, number: int, dealt: set[int]) -> None:
        self._items, self._groups, self._at, self._number = items, plan.groups, at, number
        needed = [chunk for chunk in at.lanes[number].tolist() if chunk not in dealt]
        self._pending: dict[int, int] = {}  # chunks to come of every group, in reading order
        for group in at.group[needed].tolist():
            self._pending[group] = self._pending.get(group, 0) + 1
        order = list(self._pending)
        self._order = iter(order)
        self._held: dict[int, Group] = {}
        self._avoid: set[int] = set()
        self._stood_in = 0
        self._read = ReadAhead(
            read_groups(items, (self._span(group) for group in order)), AHEAD * at.per_step, f"hgld lane {number}"
        )

    def _span(self, group: int) -> tuple[int, int]:
        return int(self._groups.start[group]), int(self._groups.count[group])

    def take(self, step: Step) -> list[Chunk]:
        """The lane's chunks of a batch, once their groups have been read."""
        self._avoid = set(self._at.label[list(chain(*step.chunks))].tolist())
        self._stood_in = 0
        return [self._chunk(chunk) for chunk in step.chunks[self._number]]

    def _chunk(self, chunk: int) -> Chunk:
        group = int(self._at.group[chunk])
        while group not in self._held:
            self._held[next(self._order)] = next(self._read)
        found = self._held[group]
        self._pending[group] -= 1
        if not self._pending[group]:
            del self._held[group]
        return Chunk(self, found, self._at.items[chunk].tolist())

    def stand_in(self, chunk: Chunk) -> Chunk | None:
        """The next group in the index of a class that the batch lacks: it does not depend on what was read so far."""
        groups = self._groups
        after = int(np.searchsorted(groups.start, chunk.first, side="right"))
        order = (np.arange(len(groups)) + after) % len(groups)
        fitting = order[~np.isin(groups.label[order], list(self._avoid))]
        self._stood_in += 1
        if not len(fitting) or self._stood_in > MOST_STAND_INS:
            return None
        group = int(fitting[0])
        self._avoid.add(int(groups.label[group]))
        start, count = self._span(group)
        with closing(read_groups(self._items, [(start, count)])) as found:
            return Chunk(self, next(found), [start + i % count for i in range(len(chunk.items))])

    def __enter__(self) -> "PlannedLane":
        return self

    def __exit__(self, *_: object) -> None:
        self._read.close()
