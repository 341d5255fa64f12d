"""Batches of decoded images from a dataset with an index: threads read and decode them ahead of the consumer."""

import atexit
import os
import re
from collections import deque
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import replace
from inspect import GEN_RUNNING, getgeneratorstate
from itertools import chain, islice, pairwise
from typing import Any, Literal, NamedTuple, TypeVar, get_args
from weakref import WeakSet

import numpy as np
import torch
from torch import Tensor

from hgld.data.batch import Batch, BatchBuffers, Fault
from hgld.data.dataset import ShardDataset
from hgld.data.decode import decode_batch
from hgld.data.images import EncodedImage, Integers, fits_batch
from hgld.data.views import View, places
from hgld.errors import InputError, at_least, check_choice, quoted
from hgld.samplers import BatchSampler

OnFault = Literal["raise", "replace", "leave"]
T = TypeVar("T")

MOST_TRIED = 64  # maximum number of replacements to try for a damaged item; if all of them are damaged, reading fails


class _Failed(NamedTuple):
    """A row of a batch that could not be filled."""

    row: int
    where: str
    error: InputError

    @property
    def reason(self) -> str:
        return str(self.error).removeprefix(f"{self.where}: ")


class BatchItems:
    """The items of a batch before decoding, from a dataset with an index.

    The arguments ``items`` of the methods are (B,) item numbers.

    Attributes:
        first: position of this process's first item in the batch of all processes.
        items: (B,) item numbers.
        faults: damaged items found while these items were read.
    """

    faults: Sequence[Fault] = ()

    def __init__(self, dataset: ShardDataset, first: int, items: Integers) -> None:
        self.dataset, self.first, self.items = dataset, first, items

    def encoded(self, items: Integers) -> list[EncodedImage]:
        return self.dataset.encoded(items)

    def sizes(self, items: Integers) -> Integers:
        """Return (B, 2) width and height of the upright images after cropping to their boxes."""
        return self.dataset.sizes[items]

    def labels(self, items: Integers) -> Tensor:
        return self.dataset.labels[torch.from_numpy(items)]

    def indices(self, items: Integers) -> Integers:
        """Return the indices that the consumer gets for the items."""
        return items

    def name(self, item: int) -> str:
        """Return the text that begins an item's error messages (where it is stored)."""
        return f"item {item}, key {quoted(self.dataset.keys[item])}"

    def candidates(self, item: int, damaged: set[int]) -> Iterator[int]:
        """Yield replacements for an item: the next items of its class outside the batch, then items of the batch."""
        finest = self.dataset.labels[:, 0].numpy()
        same = np.flatnonzero(finest == finest[item]) if finest[item] >= 0 else np.empty(0, dtype=np.int64)
        same = np.roll(same, -int(np.searchsorted(same, item, side="right")))
        present = np.isin(same, self.items)
        outside = same[~present][:MOST_TRIED].tolist()
        others = chain(outside, same[present].tolist(), np.unique(self.items).tolist())
        return (other for other in others if other not in damaged)


# -- reading ahead ----------------------------------------------------------------------------------------------------

AHEAD = 2  # number of batches, or blocks of batches, that are read ahead of the decoded batch
_BLOCK_BATCHES = 8  # maximum number of batches that are read together
_BLOCK_BYTES = 64 << 20  # maximum total size of the images in batches that are read together
_END: Any = object()


@contextmanager
def read_ahead(values: Generator[T, None, None], ahead: int) -> Iterator[Iterator[T]]:
    """Run a generator in a thread, at most ``ahead`` values ahead of the consumer, until the ``with`` block ends.

    If the generator raises an error, the consumer gets this error in place of the next value.
    """
    pool = ThreadPoolExecutor(1, "hgld stream")
    coming = deque(pool.submit(next, values, _END) for _ in range(ahead))

    def taken() -> Iterator[T]:
        while (value := coming.popleft().result()) is not _END:
            coming.append(pool.submit(next, values, _END))
            yield value

    try:
        yield taken()
    finally:
        pool.shutdown(cancel_futures=True)
        values.close()


class _ReadItems(BatchItems):
    """Items of a dataset that were read ahead; replacements are read on demand."""

    images: Mapping[int, EncodedImage] = {}

    def encoded(self, items: Integers) -> list[EncodedImage]:
        if all(item in self.images for item in items.tolist()):
            return [self.images[item] for item in items.tolist()]
        return super().encoded(items)


def items_ahead(
    dataset: ShardDataset, sampler: BatchSampler, epoch: int, step: int
) -> Generator[BatchItems, None, None]:
    """Yield the batches of an epoch from ``step`` on, whose images a thread reads ahead of the decoding.

    Several batches are read together. Therefore neighbouring images share a request, and many requests to a server wait
    at the same time.
    """
    with read_ahead(_read_blocks(dataset, sampler, epoch, step), AHEAD) as blocks:
        for block in blocks:
            yield from block


def _read_blocks(
    dataset: ShardDataset, sampler: BatchSampler, epoch: int, step: int
) -> Generator[list[_ReadItems], None, None]:
    """Read blocks of batches; the first blocks have fewer batches."""
    sizes, most = dataset.places[3], 1
    block: list[_ReadItems] = []
    for now in range(step, len(sampler)):
        block.append(_ReadItems(dataset, *sampler.part(epoch, now)))
        if len(block) == most or sum(int(sizes[batch.items].sum()) for batch in block) > _BLOCK_BYTES:
            yield _read(dataset, block)
            block, most = [], min(2 * most, _BLOCK_BATCHES)
    if block:
        yield _read(dataset, block)


def _read(dataset: ShardDataset, block: list[_ReadItems]) -> list[_ReadItems]:
    """Read the images of some batches together; if one image fails, the decoder reads all of them on demand."""
    items = np.unique(np.concatenate([batch.items for batch in block]))
    try:
        if fits_batch(int(dataset.places[3][items].sum())):
            images = dict(zip(items.tolist(), dataset.encoded(items), strict=True))
            for batch in block:
                batch.images = images
    except InputError:
        names, shard, _, _ = dataset.places
        if not all(dataset.storage.exists(names[int(i)]) for i in np.unique(shard[items])):
            raise
    return block


# -- decoding ---------------------------------------------------------------------------------------------------------


class _Pending(NamedTuple):
    """A batch that threads are decoding.

    Attributes:
        wanted: the items of the batch.
        places: positions of these items in the epoch.
        images: the batch, which the threads fill.
        parts: per thread, the first row that the thread fills, and the thread's future.
    """

    wanted: BatchItems
    places: Integers
    images: Tensor
    parts: "list[tuple[int, Future[list[_Failed]]]]"


_MOST_WORKERS = 16  # maximum of the default number of threads


def cores_of_process() -> int:
    """Return this process's share of the available cores, at most 16.

    The processes that torchrun or Slurm started on a machine share its cores, unless Slurm assigned separate cores to
    every task.
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    sharers = os.environ.get("LOCAL_WORLD_SIZE" if "RANK" in os.environ else "SLURM_STEP_TASKS_PER_NODE", "1")
    if "RANK" not in os.environ and (own := os.environ.get("SLURM_CPUS_PER_TASK", "")).isdigit():
        cores, sharers = min(cores, int(own)), "1"
    count = re.match("[1-9][0-9]*", sharers)  # on two machines with 8 tasks each, Slurm writes 8(x2)
    return max(1, min(cores // int(count.group() if count else 1), _MOST_WORKERS))


class BatchDecoder:
    """Decoder of batches in threads, ahead of the consumer; it can replace damaged items.

    A decoder can be pickled. :class:`Loader` describes its arguments.
    """

    def __init__(self, view: View, workers: int, prefetch: int, seed: int, pin_memory: bool, on_fault: OnFault) -> None:
        at_least(0, workers=workers, prefetch=prefetch)
        check_choice("on_fault", on_fault, get_args(OnFault))
        self._view = view
        self._workers, self._prefetch, self._seed = workers or cores_of_process(), prefetch, seed
        self._on_fault = on_fault
        self._buffers = BatchBuffers(pin_memory)

    def batches(
        self, wanted: Generator[BatchItems, None, None], epoch: int, step: int, end: int
    ) -> Generator[Batch, None, None]:
        """Yield the decoded batches of an epoch; close ``wanted`` afterwards.

        Args:
            wanted: the items of every batch from ``step`` on.
            epoch: number of the epoch; the views depend on epoch and step.
            step: number of the first batch.
            end: number of the batch after the last one.
        """
        coming = zip(range(step, end), wanted, strict=False)
        ahead: deque[_Pending] = deque()
        pool = ThreadPoolExecutor(self._workers, "hgld loader")
        try:
            ahead.extend(self._begin(pool, epoch, *one) for one in islice(coming, self._prefetch + 1))
            while ahead:
                yield self._finish(ahead.popleft(), epoch)
                ahead.extend(self._begin(pool, epoch, *one) for one in islice(coming, 1))
        finally:
            pool.shutdown(cancel_futures=True)
            wanted.close()

    def _begin(self, pool: ThreadPoolExecutor, epoch: int, step: int, wanted: BatchItems) -> _Pending:
        """Let the threads start to decode a batch."""
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

    def _fill(self, wanted: BatchItems, items: Integers, where: Integers, epoch: int, images: Tensor) -> list[_Failed]:
        """Read and decode some rows of a batch; return the rows that failed."""
        try:
            encoded = wanted.encoded(items)
        except InputError as error:
            if len(items) == 1:
                return [_Failed(0, wanted.name(int(items[0])), error)]
            failed = []
            for row in range(len(items)):
                at = slice(row, row + 1)
                alone = self._fill(wanted, items[at], where[at], epoch, images[at])
                failed += [one._replace(row=row) for one in alone]
            return failed
        widths, heights = wanted.sizes(items).T
        parameters = self._view.parameters(widths, heights, seed=self._seed, epoch=epoch, positions=where)
        faults: list[tuple[int, InputError]] = []
        decode_batch(encoded, parameters, images, faults)
        return [_Failed(row, encoded[row].where, error) for row, error in faults]

    def _finish(self, pending: _Pending, epoch: int) -> Batch:
        """Wait for a batch, and apply the rule ``on_fault`` to the items that could not be decoded."""
        wanted = pending.wanted
        items, faults = wanted.items, list(wanted.faults)
        index_of = wanted.indices(items).tolist()
        failed = [one._replace(row=begin + one.row) for begin, part in pending.parts for one in part.result()]
        if failed and self._on_fault == "raise":
            raise InputError(f"{failed[0].where}: {failed[0].reason}")
        replacements: dict[int, int] = {}  # all views of one image get the same replacement
        damaged = {int(items[one.row]) for one in failed}
        for one in failed:
            fault = Fault(index_of[one.row], one.where, one.reason)
            if self._on_fault == "leave":
                pending.images[one.row] = 0
            else:
                items = items.copy()
                item = int(items[one.row])
                known = [replacements[item]] if item in replacements else wanted.candidates(item, damaged)
                items[one.row] = replacements[item] = self._replace(pending, one, known, damaged, epoch)
                fault = replace(fault, replacement=int(wanted.indices(items[one.row : one.row + 1])[0]))
            faults.append(fault)
        return Batch(pending.images, wanted.labels(items), torch.from_numpy(wanted.indices(items)), tuple(faults))

    def _replace(
        self, pending: _Pending, failed: _Failed, candidates: Iterable[int], damaged: set[int], epoch: int
    ) -> int:
        """Decode the first undamaged replacement into the row of a failed item, and return its number."""
        at = slice(failed.row, failed.row + 1)
        for candidate in candidates:
            chosen = np.array([candidate])
            if candidate not in damaged and not self._fill(
                pending.wanted, chosen, pending.places[at], epoch, pending.images[at]
            ):
                return candidate
            damaged.add(candidate)
        raise InputError(
            f"{failed.where}: {failed.reason.rstrip('.')}. The items of its class and batch that were tried as "
            "replacements are damaged too. List the damaged images with hgld verify --decode."
        )


class Loader:
    """Loader of a sampler's batches, which threads decode ahead.

    The batches depend only on the dataset, the sampler's seed, the view and ``seed``, not on the number of threads or
    ``prefetch``. The parts of all processes, joined in order, equal the batch of a single process. Iterating yields the
    rest of the sampler's current epoch and leaves the sampler at the next epoch. If the consumer stops in between, the
    next iteration resumes there. Threads suffice, because decoding, resizing and reading release Python's global lock.
    Images at a URL are read ahead of decoding, several batches at a time.

    The consumer may keep a batch: its memory is reused only after the last tensor that shares it is deleted.

    Args:
        dataset: dataset that :func:`hgld.open_dataset` opened.
        sampler: sampler that chooses the items of each batch, and this process's part of them.
        view: crops and augmentation of the images.
        workers: number of threads that read and decode; 0: :func:`cores_of_process`.
        prefetch: number of batches that are decoded ahead of the returned one; 0: no batch is decoded ahead.
        seed: seed of the views.
        pin_memory: whether to give page-locked batches, for asynchronous copies to a GPU.
        on_fault: rule for an item that cannot be read or decoded. ``raise``: raise the error at its batch. ``replace``:
            use another item of its finest class (if the class has no other item, use another item of the batch).
            ``Batch.faults`` then lists both items; labels and indices belong to the replacement. ``leave``: make its
            row black, and list the item in ``Batch.faults``.

    Raises:
        ConfigError: a number is too small, or ``on_fault`` is unknown.
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
        self._batches = BatchDecoder(view, workers, prefetch, seed, pin_memory, on_fault)

    def __len__(self) -> int:
        """Return the number of batches of an epoch, the same on every process."""
        return len(self.sampler)

    def set_epoch(self, epoch: int) -> None:
        """Go to the beginning of an epoch; within the current epoch, keep the position."""
        self.sampler.set_epoch(epoch)

    def state_dict(self) -> dict[str, int]:
        """Return the position after the last returned batch; batches decoded ahead do not count."""
        return self.sampler.state_dict()

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        """Go to a position that :meth:`state_dict` returned.

        Raises:
            ConfigError: the epoch has no such step.
        """
        self.sampler.load_state_dict(state)

    def __iter__(self) -> Iterator[Batch]:
        """Yield the batches from the current position to the end of its epoch.

        Raises:
            InputError: an item cannot be read or decoded and, with ``replace``, no item can replace it.
            ServiceError: a server kept failing.
            StorageError: the disk failed.
        """
        position = self.sampler.state_dict()
        epoch, first, end = position["epoch"], position["step"], len(self.sampler)
        if self.dataset.storage.is_local:
            wanted = (BatchItems(self.dataset, *self.sampler.part(epoch, step)) for step in range(first, end))
        else:
            wanted = items_ahead(self.dataset, self.sampler, epoch, first)
        with closed_at_exit(self._batches.batches(wanted, epoch, first, end)) as batches:
            for step, batch in enumerate(batches, first + 1):
                after = {"epoch": epoch, "step": step} if step < end else {"epoch": epoch + 1, "step": 0}
                self.sampler.load_state_dict(after)
                yield batch


_open: WeakSet[Generator[Any, None, None]] = WeakSet()


@contextmanager
def closed_at_exit(values: Generator[T, None, None]) -> Iterator[Generator[T, None, None]]:
    """Close a generator when the ``with`` block ends, or at exit before the interpreter stops its thread pool."""
    _open.add(values)
    with closing(values):
        yield values


@atexit.register
def _close_all() -> None:
    for values in list(_open):
        if getgeneratorstate(values) != GEN_RUNNING:
            values.close()
