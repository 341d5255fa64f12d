"""Chunks of encoded images to decoded batches; what cannot be decoded is replaced, counted and named."""

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import groupby

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hgld.data.batch import Batch, BatchBuffers, Fault
from hgld.data.decode import Path, decode_batch
from hgld.data.stream_lanes import Chunk, Item
from hgld.data.views import View, places
from hgld.errors import InputError

_MOST_KEPT = 1000
_PARTS = 4  # of a batch, a thread: so that none waits long for the last


class FaultLog:
    """The damaged items of a stream so far: all counted, the first thousand kept by name.

    Attributes:
        count: items that others stood in for; one that is met in several batches counts in each.
        first: the first thousand of them.
    """

    def __init__(self) -> None:
        self.count = 0
        self.first: list[Fault] = []

    def add(self, faults: Sequence[Fault]) -> None:
        """Count the faults of a batch."""
        self.count += len(faults)
        self.first.extend(faults[: _MOST_KEPT - len(self.first)])

    def __len__(self) -> int:
        return self.count


class BatchDecoder:
    """Decodes the chunks of one process.

    Args:
        view: decides crops, flips and colours.
        path: ``fast`` or ``torchvision``.
        seed: of the views.
        process_index: which part of every batch this is.
        threads: that decode.
        buffers: for the pixels.
    """

    def __init__(
        self, view: View, path: Path, *, seed: int, process_index: int, threads: int, buffers: BatchBuffers
    ) -> None:
        self._view, self._seed, self._process_index = view, seed, process_index
        self._path: Path = path
        self._threads, self._buffers = threads, buffers
        self._pool = ThreadPoolExecutor(threads, "hgld decoder") if threads > 1 else None

    def decode(self, chunks: Sequence[Chunk], epoch: int, step: int) -> Batch:
        """One batch.

        Raises:
            InputError: so many groups in a row have no sound item that none is left to stand in, or labels of
                different numbers of levels.
        """
        faults: list[Fault] = []
        parts = [_sound(chunk, faults) for chunk in chunks]
        k = len(parts[0].items)
        place = places(step, k * len(parts), self._process_index)
        images = self._buffers.take(len(place), self._view.size)
        rows = range(len(place))
        while rows:
            items = _items(parts)
            errors = self._decode_rows(items, rows, epoch, place, images)
            rows = _replace(parts, errors, faults)
        faults += [fault for part in parts for fault in part.faults]
        items = _items(parts)
        return Batch(images, _labels(items), torch.tensor([item.index for item in items]), tuple(faults))

    def _decode_rows(
        self, items: Sequence[Item], rows: Sequence[int], epoch: int, place: NDArray[np.int64], images: Tensor
    ) -> dict[int, str]:
        """Decode some of a batch's items; the rows that failed, with the reason."""
        widths, heights = np.array([item.size for item in items]).T
        parameters = self._view.parameters(widths, heights, seed=self._seed, epoch=epoch, positions=place)
        encoded = [item.image for item in items]
        failed: dict[int, str] = {}

        def decode(begin: int, end: int) -> None:
            errors: list[tuple[int, InputError]] = []
            part = slice(begin, end)
            decode_batch(encoded[part], parameters.part(part), images[part], self._path, errors)
            failed.update(
                (begin + row, str(error).removeprefix(f"{encoded[begin + row].where}: ")) for row, error in errors
            )

        if len(rows) < len(items) or self._pool is None:
            spans = [(row, row + 1) for row in rows] if len(rows) < len(items) else [(0, len(items))]
            for span in spans:
                decode(*span)
        else:
            edges = np.linspace(0, len(items), min(_PARTS * self._threads, len(items)) + 1).astype(int).tolist()
            list(self._pool.map(decode, edges[:-1], edges[1:]))
        return failed

    def close(self) -> None:
        """End the threads."""
        if self._pool is not None:
            self._pool.shutdown()


def _items(parts: Sequence[Chunk]) -> list[Item]:
    return [item for part in parts for item in part.items if item is not None]


def _replace(parts: list[Chunk], errors: Mapping[int, str], faults: list[Fault]) -> list[int]:
    """Put other items in the place of those that failed; the rows to decode again."""
    again: list[int] = []
    k = len(parts[0].items)
    for number, rows in groupby(sorted(errors), lambda row: row // k):
        begin = number * k
        failed = list(rows)
        if all(parts[number].replace(row - begin, errors[row]) is not None for row in failed):
            again += failed
        else:
            parts[number] = _sound(parts[number], faults)
            again += range(begin, begin + k)
    return again


def _sound(chunk: Chunk, faults: list[Fault]) -> Chunk:
    """The chunk, or one that stands in for it if none of its items can be used."""
    while chunk.items[0] is None:
        faults += chunk.faults
        other = chunk.lane.stand_in(chunk)
        if other is None:
            raise InputError(
                f"{chunk.faults[-1].where}: {chunk.faults[-1].reason}; no item of its group can be used, nor of any "
                "that could stand in. The shards are damaged, or belong to another index: hgld verify tells which."
            )
        chunk = other
    return chunk


def _labels(items: Sequence[Item]) -> Tensor:
    for item in items:
        if len(item.labels) != len(items[0].labels):
            raise InputError(
                f"{item.image.where}: {len(item.labels)} labels; {items[0].image.where} has {len(items[0].labels)}. "
                "All items of a stream need the same levels: stream one dataset at a time."
            )
    return torch.tensor([list(item.labels) for item in items])
