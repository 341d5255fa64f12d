"""How the chunks that lanes hold are dealt to batches: no class twice in one where that can be avoided."""

from collections import deque
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

_TRIES = 8


@dataclass(frozen=True, slots=True)
class Step:
    """What one batch is made of.

    Attributes:
        chunks: for every lane the numbers of its chunks in the batch.
        entered: how many chunks of its sequence each lane's window has taken in so far.
    """

    chunks: list[list[int]]
    entered: int


def below(word: int, limit: int) -> int:
    """A number in [0, limit) from a random word of 64 bits."""
    return (word * limit) >> 64


def deal(
    lanes: Sequence[Sequence[int]], label: np.ndarray, per_step: int, window: int, bits: np.random.Philox
) -> Iterator[Step]:
    """Deal the chunks of all lanes into batches.

    A class with as many chunks left as there are batches left is taken first, which is what keeps the last batches free
    of repetitions; the rest is drawn at random from the windows among the classes that the batch does not have yet. A
    lane that holds no such class gets one from another lane's share, which takes a new one instead (an augmenting path
    between lanes and classes). Only where that cannot be done a class is repeated.

    Args:
        lanes: for every lane its chunks in reading order, all of one length, a multiple of ``per_step``.
        label: (C,) class of every chunk.
        per_step: chunks that a batch takes from every lane.
        window: chunks that a lane holds at most, at least ``per_step``.
        bits: draws.
    """
    steps = len(lanes[0]) // per_step
    classes, dense = np.unique(label, return_inverse=True)
    remaining = np.bincount(dense[np.asarray(lanes).ravel()], minlength=len(classes))
    labels: list[int] = dense.tolist()
    windows = [Window(labels) for _ in lanes]
    entered = 0
    for step in range(steps):
        while entered < min(len(lanes[0]), step * per_step + window):
            for held, lane in zip(windows, lanes, strict=True):
                held.add(lane[entered])
            entered += 1
        hand = _Hand(windows, labels, per_step)
        urgent = np.flatnonzero(remaining >= steps - step)
        for c in urgent[np.argsort(-remaining[urgent], kind="stable")].tolist():
            hand.take_class(c)
        words = iter(bits.random_raw(len(lanes) * per_step).tolist())
        for at in range(len(lanes)):
            lane = (at + step) % len(lanes)  # no lane is always the last to choose
            while len(hand.chunks[lane]) < per_step:
                hand.take_any(lane, next(words))
        np.subtract.at(remaining, dense[np.concatenate([np.asarray(chunks) for chunks in hand.chunks])], 1)
        yield Step(hand.chunks, entered)


class _Hand:
    """The batch that is being dealt: every lane's chunks, and which lane a class came from."""

    def __init__(self, windows: list["Window"], labels: Sequence[int], per_step: int) -> None:
        self._windows, self._labels, self._per_step = windows, labels, per_step
        self.chunks: list[list[int]] = [[] for _ in windows]
        self._lane_of: dict[int, int] = {}

    def take_class(self, c: int) -> None:
        """Take a chunk of class ``c``, of those lanes that still have room the one that holds most of it."""
        held = [
            len(w.by_class.get(c, ())) if len(self.chunks[v]) < self._per_step else 0
            for v, w in enumerate(self._windows)
        ]
        if max(held):
            self._take(c, held.index(max(held)))

    def take_any(self, lane: int, word: int) -> None:
        """Take a chunk from a lane: of a class that the batch does not have, where there is a way."""
        chunk = self._windows[lane].draw(word, self._lane_of)
        if chunk is None:
            if self._exchange(lane):
                return
            chunk = self._windows[lane].repeat()
        self.chunks[lane].append(chunk)
        self._lane_of.setdefault(self._labels[chunk], lane)

    def _take(self, c: int, lane: int) -> None:
        chunk = self._windows[lane].by_class[c][0]
        self._windows[lane].remove(chunk)
        self.chunks[lane].append(chunk)
        self._lane_of[c] = lane

    def _give_back(self, c: int, lane: int) -> None:
        chunk = next(chunk for chunk in self.chunks[lane] if self._labels[chunk] == c)
        self.chunks[lane].remove(chunk)
        self._windows[lane].add(chunk)

    def _exchange(self, lane: int) -> bool:
        """Let the lane take over a class of another, which takes over one of a third, until one takes a new class."""
        via: dict[int, tuple[int, int]] = {lane: (lane, -1)}  # for a lane, who asks it for which class
        asked = deque([lane])
        while asked:
            giver = asked.popleft()
            for c in self._windows[giver].by_class:
                owner = self._lane_of.get(c)
                if owner is None:
                    self._pass_on(giver, c, via)
                    return True
                if owner not in via:
                    via[owner] = (giver, c)
                    asked.append(owner)
        return False

    def _pass_on(self, giver: int, c: int, via: Mapping[int, tuple[int, int]]) -> None:
        """The giver takes ``c`` and gives what it was asked for to who asked, and so on."""
        self._take(c, giver)
        taker, wanted = via[giver]
        while taker != giver:
            self._give_back(wanted, giver)
            self._take(wanted, taker)
            giver = taker
            taker, wanted = via[giver]


class Window:
    """The chunks that a lane holds; drawing and removing take constant time.

    Args:
        labels: class of every chunk, by its number; may grow later.

    Attributes:
        chunks: numbers of those held.
        by_class: the same, class by class.
    """

    __slots__ = ("_labels", "_slot", "by_class", "chunks")

    def __init__(self, labels: Sequence[int] | Mapping[int, int]) -> None:
        self._labels = labels
        self.chunks: list[int] = []
        self._slot: dict[int, int] = {}
        self.by_class: dict[int, list[int]] = {}

    def add(self, chunk: int) -> None:
        self._slot[chunk] = len(self.chunks)
        self.chunks.append(chunk)
        self.by_class.setdefault(self._labels[chunk], []).append(chunk)

    def remove(self, chunk: int) -> None:
        slot, last = self._slot.pop(chunk), self.chunks.pop()
        if last != chunk:
            self.chunks[slot] = last
            self._slot[last] = slot
        c = self._labels[chunk]
        self.by_class[c].remove(chunk)
        if not self.by_class[c]:
            del self.by_class[c]

    def draw(self, word: int, taken: Container[int]) -> int | None:
        """A chunk of a class that is not ``taken``; a random word says which; None if there is no such chunk."""
        count = len(self.chunks)
        first = below(word, count)
        # The golden ratio's steps spread the first tries over the window; then all of it is looked through.
        for i in range(_TRIES + count):
            chunk = self.chunks[(first + (i * 0x9E3779B1 if i < _TRIES else i)) % count]
            if self._labels[chunk] not in taken:
                self.remove(chunk)
                return chunk
        return None

    def repeat(self) -> int:
        """A chunk of the class of which most are held."""
        chunk = max(self.by_class.values(), key=len)[0]
        self.remove(chunk)
        return chunk
