"""Lanes of a stream without an index: groups are found while the tars are read, as runs of items of one class."""

import hashlib
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from itertools import count
from typing import BinaryIO, NamedTuple

import numpy as np

from hgld.data.batch import Fault
from hgld.data.format import IMAGE_SUFFIXES
from hgld.data.images import EncodedImage, read_header
from hgld.data.index import MAX_ITEM_JSON_BYTES, is_safe_key, parse_item_json
from hgld.data.prefetch import ReadAhead
from hgld.data.storage import Tar
from hgld.data.stream_dealing import Window
from hgld.data.stream_lanes import AHEAD, MOST_STAND_INS, BadItem, Chunk, Group, Item
from hgld.data.stream_plan import Short, random_bits, shuffled
from hgld.data.tar import stream_members
from hgld.errors import ImageError, InputError

MAX_IMAGE_BYTES = 1 << 28  # of one encoded image, so that no planted size fills the memory
_MOST_BAD = 10_000  # damaged members without one sound group between them: this is no dataset


@dataclass(slots=True)
class Run:
    """Items of one class that stand together, and what was met since the run before.

    Attributes:
        items: of one finest class.
        bad: damaged items.
        unlabelled: number of items without a class.
        dropped: number of items in runs that are too short.
    """

    items: list[Item] = field(default_factory=list)
    bad: list[BadItem] = field(default_factory=list)
    unlabelled: int = 0
    dropped: int = 0

    def close(self, items: list[Item]) -> "Run":
        """A run of ``items`` with what was met before it; the count then begins anew."""
        closed = Run(items, self.bad, self.unlabelled, self.dropped)
        self.bad, self.unlabelled, self.dropped = [], 0, 0
        return closed


def item_number(key: str) -> int:
    """The number that stands for an item where no index gives it a position: 63 bits made from its key."""
    return int.from_bytes(hashlib.blake2b(key.encode(), digest_size=8).digest(), "big") >> 1


def read_items(file: BinaryIO, where: str) -> Generator[Item | BadItem, None, None]:
    """Items of a tar: neighbours that share a key, an image and its JSON; what is damaged comes with the reason.

    Other members are passed over, and of a key with several images or JSONs no more than the first is held.
    """
    key, parts = "", dict[str, bytes]()
    for member, data in stream_members(file, where=where, max_member_bytes=MAX_IMAGE_BYTES, recover=True):
        if member.fault is not None:
            yield BadItem(-1, f"{where}: {member.name or 'a member'} at offset {member.offset}", member.fault)
        folder, slash, name = member.name.rpartition("/")
        stem, _, suffix = name.partition(".")
        suffix = suffix.lower()
        kind = "JSON" if suffix == "json" else "image" if suffix in IMAGE_SUFFIXES else ""
        if member.kind != "file" or not kind:
            continue
        if folder + slash + stem != key and parts:
            yield _item(key, parts, where)
            parts = {}
        key = folder + slash + stem
        if member.fault is not None:
            continue
        if kind in parts:
            parts[f"second {kind}"] = b""
        else:
            parts[kind] = data[: MAX_ITEM_JSON_BYTES + 1] if kind == "JSON" else data
    if parts:
        yield _item(key, parts, where)


def _item(key: str, parts: Mapping[str, bytes], where: str) -> Item | BadItem:
    number, where = item_number(key), f"{where}: key {key!r}"
    for kind in ("image", "JSON"):
        if kind not in parts or f"second {kind}" in parts:
            return BadItem(number, where, f"has a second {kind}" if kind in parts else f"has no {kind}")
    if not is_safe_key(key):
        return BadItem(number, where, "has a key that is not safe as the name of a file")
    try:
        facts = parse_item_json(parts["JSON"], "its JSON")
        header = read_header(parts["image"])
    except ImageError as error:
        return BadItem(number, where, f"cannot be read as an image ({error}).")
    except InputError as error:
        return BadItem(number, where, str(error))
    width, height = header.upright
    if facts.box is not None:
        left, top, right, bottom = facts.box
        if right > width or bottom > height:
            return BadItem(number, where, f"has the box {facts.box} in an image of {width} x {height} pixels")
        width, height = right - left, bottom - top
    return Item(
        number, EncodedImage(parts["image"], header.orientation, facts.box, where), (width, height), facts.labels
    )


def read_runs(tars: Sequence[Tar], k: int, short: Short) -> Generator[Run, None, None]:
    """Tars one after another, and the first again after the last, as runs of k to 2k items of a class.

    Raises:
        InputError: a tar cannot be had, a run is too short under ``refuse``, or all tars together give no run.
    """
    run = Run()
    while True:
        given = 0
        for tar in tars:
            with closing(tar.storage.open_stream(tar.name)) as file:
                for items in _same_class(read_items(file, tar.where), run, k):
                    if len(items) >= k or short == "repeat":
                        given += 1
                        yield run.close(items)
                    elif short == "drop":
                        run.dropped += len(items)
                    else:
                        raise InputError(
                            f"{items[0].image.where}: a run of {len(items)} items of class {items[0].labels[0]}; "
                            f"expected at least {k}. Take short='repeat' or short='drop', or a smaller k."
                        )
        if not given:
            raise _no_runs(tars, run)


def _same_class(items: Iterable[Item | BadItem], run: Run, k: int) -> Generator[list[Item], None, None]:
    """Neighbours of one class, at most 2k of them; what is in no class goes to ``run``."""
    held: list[Item] = []
    for item in items:
        if isinstance(item, BadItem):
            run.bad.append(item)
            if len(run.bad) > _MOST_BAD:
                raise InputError(
                    f"{item.where}: {item.reason}; the {len(run.bad)}th damaged item with no sound one between them. "
                    "Expected shards as hgld build-shards writes them: {key}.jpg followed by {key}.json."
                )
        elif item.labels[0] < 0:
            run.unlabelled += 1
        else:
            if held and item.labels[0] != held[0].labels[0]:
                yield held
                held = []
            elif len(held) == 2 * k:
                yield held[:k]
                held = held[k:]
            held.append(item)
    if held:
        yield held


def _no_runs(tars: Sequence[Tar], run: Run) -> InputError:
    first = f"; the first of these: {run.bad[0].where}: {run.bad[0].reason}" if run.bad else ""
    return InputError(
        f"{tars[0].where} and the {len(tars) - 1} shards after it in its lane have no group of a known class: "
        f"{run.unlabelled} items without a class, {run.dropped} in short groups, {len(run.bad)} damaged{first}. "
        "Expected {key}.jpg followed by {key}.json, as hgld build-shards writes them."
    )


class RunChunks:
    """The chunks of a stream without an index: a process's part of the batches.

    Args:
        tars: all shards, in the order of their list.
        p: P, classes of a batch.
        k: K, items of a class.
        lanes: over all processes; divides P.
        window: how many batches' chunks the lanes hold together.
        short: what becomes of runs of fewer than k items.
        seed: of everything random.
        process_index: of ``process_count`` processes, which share the lanes.
        process_count: divides the number of lanes.

    Attributes:
        unlabelled: items without a class that were met so far.
        dropped: items in short runs that were met and left out so far.
    """

    def __init__(
        self,
        tars: Sequence[Tar],
        p: int,
        k: int,
        *,
        lanes: int,
        window: int,
        short: Short,
        seed: int,
        process_index: int,
        process_count: int,
    ) -> None:
        self.unlabelled, self.dropped = 0, 0
        self._tars, self._k, self._seed = tars, k, seed
        self._short: Short = short
        self._all_lanes, self._per_step, self._window = lanes, p // lanes, window * (p // lanes)
        share = lanes // process_count
        self._lanes = range(process_index * share, (process_index + 1) * share)

    def batches(self, epoch: int, step: int) -> Generator[list[Chunk], None, None]:
        """The process's chunks of every batch of an epoch from ``step`` on, without end.

        The shards are read from their beginning all the same: what a batch holds is known only once they were read.
        """
        order = shuffled(len(self._tars), random_bits(self._seed, epoch)).tolist()
        with ExitStack() as stack:
            lanes = []
            for number in self._lanes:
                tars = [self._tars[i] for i in order[number :: self._all_lanes]]
                found = read_runs(tars, self._k, self._short)
                runs = stack.enter_context(ReadAhead(found, AHEAD * self._per_step, f"hgld lane {number}"))
                bits = random_bits(self._seed, epoch, number, 2)
                lanes.append(RunLane(self._counted(runs), self._k, self._per_step, self._window, bits))
            for now in count():
                chunks = [chunk for lane in lanes for chunk in lane.take()]
                if now >= step:
                    yield chunks

    def _counted(self, runs: Iterable[Run]) -> Iterator[Run]:
        for run in runs:
            self.unlabelled += run.unlabelled
            self.dropped += run.dropped
            yield run

    def fingerprint(self) -> str:
        """32 hex digits that differ when the batches do."""
        options = (self._all_lanes, self._per_step, self._window, self._k, self._short, self._seed)
        text = repr((1, options, [tar.name for tar in self._tars]))
        return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


class _Held(NamedTuple):
    """A chunk in a window: the items of its group, the k that are meant, and what was found damaged on the way."""

    group: Group
    picks: list[int]
    bad: Sequence[BadItem]


class RunLane:
    """One lane: a window of the chunks read last, from which every batch draws."""

    def __init__(self, runs: Iterator[Run], k: int, per_step: int, window: int, bits: np.random.Philox) -> None:
        self._runs, self._k, self._per_step, self._size, self._bits = runs, k, per_step, window, bits
        self._labels: dict[int, int] = {}
        self._window = Window(self._labels)
        self._held: dict[int, _Held] = {}
        self._entered = 0
        self._taken: set[int] = set()
        self._stood_in = 0

    def take(self) -> list[Chunk]:
        """The lane's chunks of the next batch, of different classes where the window allows that."""
        while len(self._held) < self._size:
            self._enter(next(self._runs))
        self._taken, self._stood_in = set(), 0
        return [self._draw(word) for word in self._bits.random_raw(self._per_step).tolist()]

    def _enter(self, run: Run) -> None:
        group = {item.index: item for item in run.items}
        indices = list(group)
        order = shuffled(len(indices), self._bits).tolist()
        for begin in range(0, len(indices), self._k):
            picks = [indices[order[(begin + i) % len(indices)]] for i in range(self._k)]
            self._labels[self._entered] = run.items[0].labels[0]
            self._held[self._entered] = _Held(group, picks, () if begin else run.bad)
            self._window.add(self._entered)
            self._entered += 1

    def _draw(self, word: int) -> Chunk:
        number = self._window.draw(word, self._taken)
        if number is None:
            number = self._window.repeat()
        self._taken.add(self._labels[number])
        held = self._held.pop(number)
        del self._labels[number]
        chunk = Chunk(self, held.group, held.picks)
        chunk.faults += [Fault(bad.index, bad.where, bad.reason) for bad in held.bad]
        return chunk

    def stand_in(self, chunk: Chunk) -> Chunk | None:
        """One that the window holds, which keeps its own turn."""
        self._stood_in += 1
        for number in self._window.chunks:
            if self._labels[number] not in self._taken and self._stood_in <= MOST_STAND_INS:
                self._taken.add(self._labels[number])
                return Chunk(self, self._held[number].group, self._held[number].picks)
        return None
