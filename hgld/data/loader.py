"""Batches of decoded images from a dataset with an index: threads read and decode them ahead of the consumer."""

import atexit
import os
import re
from collections import deque
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager
from inspect import GEN_RUNNING, getgeneratorstate
from itertools import chain, islice, pairwise
from typing import Any, Literal, NamedTuple, Protocol, TypeVar
from weakref import WeakSet

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hgld.data.batch import Batch, BatchBuffers, Fault
from hgld.data.dataset import ShardDataset
from hgld.data.decode import decode_batch
from hgld.data.images import EncodedImage
from hgld.data.views import View, places
from hgld.errors import ConfigError, InputError, quoted
from hgld.samplers import BatchSampler

OnFault = Literal["raise", "replace", "leave"]
T = TypeVar("T")

MOST_TRIED = 64  # items of a class that are tried in place of one; so many damaged ones in a row are no accident


class _Failed(NamedTuple):
    """A row of a batch that could not be filled."""

    row: int
    where: str
    error: InputError

    @property
    def reason(self) -> str:
        return str(self.error).removeprefix(f"{self.where}: ")


class BatchItems(Protocol):
    """Protocol for the items of a batch before decoding, from any source; arguments are (B,) item numbers.

    ``first`` is the slot of the first in the batch of all processes, ``faults`` what was found damaged while they were
    sought. ``encoded`` raises an InputError that begins with the item's ``name``. ``sizes`` are those of the upright
    images, cut to their boxes; ``labels`` (B, L); ``indices`` the numbers by which the taker knows the items;
    ``candidates`` may replace a damaged item, the best first.
    """

    @property
    def first(self) -> int: ...
    @property
    def items(self) -> NDArray[np.int64]: ...
    @property
    def faults(self) -> Sequence[Fault]: ...
    def encoded(self, items: NDArray[np.int64]) -> list[EncodedImage]: ...
    def sizes(self, items: NDArray[np.int64]) -> NDArray[np.int64]: ...
    def labels(self, items: NDArray[np.int64]) -> Tensor: ...
    def indices(self, items: NDArray[np.int64]) -> NDArray[np.int64]: ...
    def name(self, item: int) -> str: ...
    def candidates(self, item: int, damaged: set[int]) -> Iterator[int]: ...


class DatasetItems:
    """Items of a dataset, read at the places that its index states (:class:`BatchItems`)."""

    faults: Sequence[Fault] = ()

    def __init__(self, dataset: ShardDataset, first: int, items: NDArray[np.int64]) -> None:
        self.dataset, self.first, self.items = dataset, first, items

    def encoded(self, items: NDArray[np.int64]) -> list[EncodedImage]:
        return self.dataset.encoded(items)

    def sizes(self, items: NDArray[np.int64]) -> NDArray[np.int64]:
        return self.dataset.sizes[items]

    def labels(self, items: NDArray[np.int64]) -> Tensor:
        return self.dataset.labels[torch.from_numpy(items)]

    def indices(self, items: NDArray[np.int64]) -> NDArray[np.int64]:
        return items

    def name(self, item: int) -> str:
        return f"item {item}, key {quoted(self.dataset.keys[item])}"

    def candidates(self, item: int, damaged: set[int]) -> Iterator[int]:
        """Yield the next items of its class, first items outside the batch, then items of the batch."""
        finest = self.dataset.labels[:, 0].numpy()
        same = np.flatnonzero(finest == finest[item]) if finest[item] >= 0 else np.empty(0, dtype=np.int64)
        same = np.roll(same, -int(np.searchsorted(same, item, side="right")))
        present = np.isin(same, self.items)
        outside = same[~present][:MOST_TRIED].tolist()
        others = chain(outside, same[present].tolist(), np.unique(self.items).tolist())
        return (other for other in others if other not in damaged)


class _Pending(NamedTuple):
    """A batch that threads are working on: items, positions in the epoch, and the rows of each thread's part."""

    wanted: BatchItems
    places: NDArray[np.int64]
    images: Tensor
    parts: "list[tuple[int, Future[list[_Failed]]]]"


_MOST_WORKERS = 16  # of those that are not asked for


def cores_of_process() -> int:
    """Return this process's share of the cores that it may run on, at most 16.

    They are shared with the other processes that torchrun or Slurm started on the machine, unless Slurm has given every
    task its own.
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    sharers = os.environ.get("LOCAL_WORLD_SIZE" if "RANK" in os.environ else "SLURM_STEP_TASKS_PER_NODE", "1")
    if "RANK" not in os.environ and (own := os.environ.get("SLURM_CPUS_PER_TASK", "")).isdigit():
        cores, sharers = min(cores, int(own)), "1"
    count = re.match("[1-9][0-9]*", sharers)  # Slurm writes 8(x2) for two machines
    return max(1, min(cores // int(count.group() if count else 1), _MOST_WORKERS))


class BatchDecoder:
    """Decoder of batches in threads, ahead of the consumer; it replaces damaged items by others.

    Can be pickled; its arguments are those of a :class:`Loader`.
    """

    def __init__(
        self,
        view: View,
        *,
        workers: int = 1,
        prefetch: int = 2,
        seed: int = 0,
        pin_memory: bool = False,
        on_fault: OnFault = "raise",
    ) -> None:
        if workers < 0 or prefetch < 0 or on_fault not in ("raise", "replace", "leave"):
            raise ConfigError(
                f"workers {workers}, prefetch {prefetch}, on_fault {quoted(on_fault)}: expected at least 0, at "
                "least 0, and raise, replace or leave."
            )
        self._view = view
        self._workers, self._prefetch, self._seed = workers or cores_of_process(), prefetch, seed
        self._on_fault = on_fault
        self._buffers = BatchBuffers(pin_memory)

    def batches(self, wanted: Iterable[BatchItems], epoch: int, step: int) -> Generator[Batch, None, None]:
        """Yield the decoded batches of an epoch.

        Args:
            wanted: the items of every batch from ``step`` on.
            epoch: epoch; the views depend on epoch and step.
            step: number of the first batch.
        """
        coming = enumerate(wanted, step)
        ahead: deque[_Pending] = deque()
        pool = ThreadPoolExecutor(self._workers, "hgld loader")
        try:
            ahead.extend(self._begin(pool, epoch, *one) for one in islice(coming, self._prefetch + 1))
            while ahead:
                yield self._finish(ahead.popleft(), epoch)
                ahead.extend(self._begin(pool, epoch, *one) for one in islice(coming, 1))
        finally:
            pool.shutdown(cancel_futures=True)

    def _begin(self, pool: ThreadPoolExecutor, epoch: int, step: int, wanted: BatchItems) -> _Pending:
        """Start the threads on a batch."""
        items = wanted.items
        where = places(step, len(items), wanted.first)
        images = self._buffers.take(len(items), self._view.shape(*wanted.sizes(items).T))
        edges = np.linspace(0, len(items), self._workers + 1).astype(int).tolist()
        parts = [
            (begin, pool.submit(self._fill, wanted, items[begin:end], where[begin:end], epoch, images[begin:end]))
            for begin, end in pairwise(edges)
            if end > begin
        ]
        return _Pending(wanted, where, images, parts)

    def _fill(
        self, wanted: BatchItems, items: NDArray[np.int64], where: NDArray[np.int64], epoch: int, images: Tensor
    ) -> list[_Failed]:
        """Read and decode some rows of a batch."""
        try:
            encoded = wanted.encoded(items)
        except InputError as error:
            if len(items) == 1:
                return [_Failed(0, wanted.name(int(items[0])), error)]
            rows = range(len(items))
            alone = ((row, slice(row, row + 1)) for row in rows)
            tried = ((row, self._fill(wanted, items[at], where[at], epoch, images[at])) for row, at in alone)
            return [one._replace(row=row) for row, failed in tried for one in failed]
        widths, heights = wanted.sizes(items).T
        parameters = self._view.parameters(widths, heights, seed=self._seed, epoch=epoch, positions=where)
        faults: list[tuple[int, InputError]] = []
        decode_batch(encoded, parameters, images, faults)
        return [_Failed(row, encoded[row].where, error) for row, error in faults]

    def _finish(self, pending: _Pending, epoch: int) -> Batch:
        """Wait for a batch, and replace the items that could not be decoded."""
        wanted = pending.wanted
        failed = [one._replace(row=begin + one.row) for begin, part in pending.parts for one in part.result()]
        items, faults = self._with_replacements(pending, failed, epoch) if failed else (wanted.items, [])
        indices = torch.from_numpy(wanted.indices(items))
        return Batch(pending.images, wanted.labels(items), indices, (*wanted.faults, *faults))

    def _with_replacements(
        self, pending: _Pending, failed: list[_Failed], epoch: int
    ) -> tuple[NDArray[np.int64], list[Fault]]:
        """Decode replacements for the items that failed; return the batch's items and errors."""
        wanted, first = pending.wanted, failed[0]
        if self._on_fault == "raise":
            raise InputError(f"{first.where}: {first.reason}")
        index_of = wanted.indices(wanted.items).tolist()
        if self._on_fault == "leave":
            pending.images[[one.row for one in failed]] = 0
            return wanted.items, [Fault(index_of[one.row], one.where, one.reason) for one in failed]
        items, faults = wanted.items.copy(), []
        damaged = {int(items[one.row]) for one in failed}
        stand_ins: dict[int, int] = {}  # views of one image stay views of one image
        for one in failed:
            item, at = int(items[one.row]), slice(one.row, one.row + 1)
            known = [stand_ins[item]] if item in stand_ins else wanted.candidates(item, damaged)
            for candidate in known:
                chosen = np.array([candidate])
                place, image = pending.places[at], pending.images[at]
                if candidate not in damaged and not self._fill(wanted, chosen, place, epoch, image):
                    break
                damaged.add(candidate)
            else:
                raise InputError(
                    f"{one.where}: {one.reason.rstrip('.')}. No other item of its class and batch that was tried can "
                    "replace it. List the damaged images with hgld verify --decode."
                )
            items[one.row] = stand_ins[item] = candidate
            replacement = int(wanted.indices(np.array([candidate]))[0])
            faults.append(Fault(index_of[one.row], one.where, one.reason, replacement))
        return items, faults


class Loader:
    """Loader of a sampler's batches, decoded ahead by threads.

    The batches depend on the dataset, the sampler's seed, the view and ``seed`` alone: not on the number of threads,
    and not on how far they are ahead. The parts of several processes, in order, are the batch of a single one.
    Iterating gives the rest of the sampler's current epoch and leaves it at the next. If the consumer stops in between,
    the next iteration resumes there. Threads suffice: decoding, resizing and reading all run outside of Python's global
    lock.

    A batch is the taker's to keep: its memory is used again only when no tensor shares it any more.

    Args:
        dataset: dataset that :func:`hgld.open_dataset` opened.
        sampler: sampler that chooses the items of each batch, and this process's part of them.
        view: crops and variations of the images.
        workers: threads that read and decode; 0: :func:`cores_of_process`.
        prefetch: batches in the making beyond the one that is taken; 0: none.
        seed: seed of the views.
        pin_memory: page-locked batches, for copies to a GPU that need not be waited for.
        on_fault: rule for an item that cannot be read or decoded. ``raise``: the error, at its batch.
            ``replace``: another item of its finest class replaces it (if there is none, another one of the
            batch), and ``Batch.faults`` names it; labels and indices are those of the item that is shown.
            ``leave``: its row is black, and ``Batch.faults`` names it.

    Raises:
        ConfigError: a number below its least value.
    """

    def __init__(
        self,
        dataset: ShardDataset,
        sampler: BatchSampler,
        view: View,
        *,
        workers: int = 1,
        prefetch: int = 2,
        seed: int = 0,
        pin_memory: bool = False,
        on_fault: OnFault = "raise",
    ) -> None:
        self.dataset, self.sampler, self.view = dataset, sampler, view
        self._batches = BatchDecoder(
            view, workers=workers, prefetch=prefetch, seed=seed, pin_memory=pin_memory, on_fault=on_fault
        )

    def __len__(self) -> int:
        """Return the number of batches of an epoch, the same on every process."""
        return len(self.sampler)

    def set_epoch(self, epoch: int) -> None:
        """Go to the beginning of an epoch; the position within the current one stays."""
        self.sampler.set_epoch(epoch)

    def state_dict(self) -> dict[str, int]:
        """Return the position after the last batch handed out; batches decoded ahead do not count."""
        return self.sampler.state_dict()

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        """Go to a position.

        Raises:
            ConfigError: there is no such step.
        """
        self.sampler.load_state_dict(state)

    def __iter__(self) -> Iterator[Batch]:
        """Yield the batches from the current position to the end of its epoch.

        Raises:
            InputError: an item cannot be read or decoded; with ``replace``, only if nothing can replace it.
            ServiceError: a server kept failing.
            StorageError: the disk failed.
        """
        position = self.sampler.state_dict()
        epoch, first, last = position["epoch"], position["step"], len(self.sampler) - 1
        wanted = (DatasetItems(self.dataset, *self.sampler.part(epoch, step)) for step in range(first, last + 1))
        with closed_at_exit(self._batches.batches(wanted, epoch, first)) as batches:
            for step, batch in enumerate(batches, first):
                after = {"epoch": epoch, "step": step + 1} if step < last else {"epoch": epoch + 1, "step": 0}
                self.sampler.load_state_dict(after)
                yield batch


_open: WeakSet[Generator[Any, None, None]] = WeakSet()


@contextmanager
def closed_at_exit(values: Generator[T, None, None]) -> Iterator[Generator[T, None, None]]:
    """Close a generator when the body ends, or before the interpreter's exit stops its thread pool."""
    _open.add(values)
    with closing(values):
        yield values


@atexit.register
def _close_all() -> None:
    for values in list(_open):
        if getgeneratorstate(values) != GEN_RUNNING:
            values.close()
