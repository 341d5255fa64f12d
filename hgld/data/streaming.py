"""P x K batches from shards on a disk or at URLs, with or without an index; files are read ahead of decoding.

With an index, a sampler orders the batches. The images of the batches are read at the offsets in the index, several
batches per request.

Without an index, webdataset's pipeline reads the tars from front to end. Functions of this module are its stages. They
open the tars, read their members within limits (:mod:`hgld.data.tar`) and group adjacent items of one class. hgld opens
the files itself, because webdataset's opener runs ``pipe:`` URLs in a shell.
"""

import hashlib
from collections import Counter
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from functools import partial
from itertools import count
from os import fspath
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import IterableDataset, get_worker_info

from hgld.data.batch import Batch, Fault
from hgld.data.dataset import ShardDataset, open_dataset, read_rows
from hgld.data.format import (
    IMAGE_SUFFIXES,
    MAX_IMAGE_BYTES,
    MAX_ITEM_JSON_BYTES,
    is_safe_key,
    key_and_suffix,
    parse_item_json,
)
from hgld.data.images import EncodedImage, Integers, Size, fits_batch, read_header
from hgld.data.loader import AHEAD, MOST_TRIED, BatchDecoder, BatchItems, closed_at_exit, items_ahead, read_ahead
from hgld.data.storage import Tar, expand_braces, is_shard, open_tars
from hgld.data.tar import stream_members
from hgld.data.views import TrainView, View
from hgld.errors import ConfigError, InputError, at_least, quoted
from hgld.samplers.batch_sampler import Short, shuffled, word_source
from hgld.samplers.shard_order import ShardOrderSampler, check_options, draw, fitting_streams

_MOST_STREAMS = 8  # maximum of the default num_streams
_MOST_BAD = 10_000  # a tar with more damaged items in a row than this is not a shard
_SHARDS, _STREAM = range(2)  # keys of the independent random streams of shards without an index

Sample = dict[str, Any]  # form in which webdataset returns an item
T = TypeVar("T")


def stream(
    root_or_urls: str | Path | Sequence[str],
    p: int,
    k: int,
    *,
    split: str = "train",
    levels: Sequence[str] | None = None,
    view: View | None = None,
    seed: int = 0,
    process_index: int = 0,
    process_count: int = 1,
    num_streams: int | None = None,
    window: int = 8,
    short: Short = "repeat",
    batches_per_epoch: int | None = None,
    verify_reads: bool | None = None,
    workers: int = 1,
    prefetch: int = 2,
    pin_memory: bool = False,
    storage_options: Mapping[str, Any] | None = None,
) -> "ShardStream":
    """Stream P x K batches from shards in which items of a class are adjacent, as ``hgld build-shards`` writes them.

    The shards form ``num_streams`` sequences of groups (adjacent items of a class). Every batch takes P / num_streams
    groups from each sequence, drawn from a window of its next groups. The processes share the sequences: their parts,
    joined in order, equal the batch of a single process, regardless of the number of processes.

    For a dataset directory, a sampler (:class:`hgld.samplers.shard_order.ShardOrderSampler`) plans the batches from the
    index. A :class:`hgld.data.loader.Loader` with that sampler gives the same batches. An epoch contains every labelled
    item at least once. If the size of a group is not a multiple of k, some of its items are repeated. The last batch
    repeats the first groups of the epoch. A batch contains a class only once if the windows allow that. Resuming within
    an epoch reads only the images that are still needed.

    For tars without an index, hgld finds the groups while it reads the tars from front to end. The shards of a sequence
    repeat without end, so ``batches_per_epoch`` sets the length of an epoch. If that is the number of images in the
    shards, an epoch misses the images that are in the windows at its end, and more if the sequences differ in length.
    If a class is in several sequences, it may be in a batch several times. Resuming reads the epoch's shards again,
    without decoding.

    If an item cannot be read or decoded, another item of its class replaces it, and ``Batch.faults`` lists both items.
    The encoded images of a batch may have at most 4 GiB in total. In shards without an index, an image that exceeds its
    share of this limit is replaced and listed too.

    Args:
        root_or_urls: a dataset directory or its URL; or the shards, as a list or as one string that ends in ``.tar``,
            with braces expanded: ``https://host/train-{000000..000012}.tar``.
        p: P, number of classes in a batch, over all processes.
        k: K, number of items per class.
        split: the split of a dataset directory; ignored for a list of shards.
        levels: levels of a dataset directory to keep, finest first; None: all levels.
        view: crops and augmentation of the images; None: ``TrainView()``.
        seed: seed of all random numbers.
        process_index: rank of this process, which chooses its part of every batch.
        process_count: number of processes; it must divide ``num_streams``.
        num_streams: number of shard sequences that are read in parallel by all processes together; it must divide P.
            The number changes the batches. Default: the largest number up to 8 that ``p`` and ``process_count`` allow;
            without an index, at most the number of shards.
        window: number of batches whose groups a sequence mixes; larger windows mix better.
        short: rule for groups of fewer than k items: ``repeat`` uses their items more than once in a batch, ``drop``
            excludes the groups, ``refuse`` raises an error.
        batches_per_epoch: number of batches in an epoch; None: all batches.
        verify_reads: whether to check every image against its SHA-256 in the index of a dataset directory; None: only
            images from a URL. The check finds damage that decoders miss, and takes 20 microseconds per image of 27 KB.
        workers: number of threads that decode; 0: this process's share of the cores.
        prefetch: number of batches decoded ahead.
        pin_memory: whether to give batches in page-locked memory, for copies to a GPU.
        storage_options: options for URLs. http(s): headers, hosts and limits (docs/reference/dataset-files.md). Other
            schemes: options of fsspec, such as credentials and endpoints.

    Raises:
        ConfigError: the numbers are inconsistent; the message states valid numbers.
        InputError: there is no dataset, or the split or a level does not exist.
        ServiceError: the server kept failing.
    """
    place = fspath(root_or_urls) if isinstance(root_or_urls, str | Path) else None
    root = None if place is None or is_shard(place) else place
    urls = root_or_urls if not isinstance(root_or_urls, str | Path) else [place or ""]
    tars = [] if root is not None else open_tars(expand_braces(urls), storage_options)
    if num_streams is None:
        most = min(_MOST_STREAMS, len(tars)) if root is None else _MOST_STREAMS
        fitting = fitting_streams(p, process_count)
        num_streams = max((n for n in fitting if n <= most), default=min(fitting, default=1))
    grouping = _Grouping(p, k, num_streams, window, short, seed, process_index, process_count)
    check_options(**grouping._asdict())
    if batches_per_epoch is not None:
        at_least(1, batches_per_epoch=batches_per_epoch)
    decoding = BatchDecoder(view or TrainView(), workers, prefetch, seed, pin_memory, "replace")
    if root is not None:
        dataset = open_dataset(root, split, levels=levels, storage_options=storage_options, verify_reads=verify_reads)
        source = _IndexedSource(dataset, grouping, batches_per_epoch)
        return ShardStream(source, len(source.sampler), decoding)
    if levels is not None or verify_reads:
        raise ConfigError("levels and verify_reads need the index of a dataset directory; these shards have no index.")
    if batches_per_epoch is None:
        raise ConfigError(
            "shards without an index do not state how many batches they hold: pass batches_per_epoch, or a dataset "
            "directory (`hgld index` makes one from shards)."
        )
    if len(tars) < num_streams:
        raise ConfigError(
            f"{len(tars)} shards for num_streams={num_streams}; each stream needs its own shard. Use fewer streams, "
            "more shards, or a dataset directory, whose streams may share a shard."
        )
    return ShardStream(_BareSource(tars, grouping), batches_per_epoch, decoding)


class ShardStream(IterableDataset[Batch]):
    """Batches from shards that are read from front to end; :func:`stream` returns this object.

    Iterating yields the rest of the current epoch; afterwards the stream is at the beginning of the next epoch. If the
    consumer stops in between, the next iteration resumes there. The stream is also a torch ``IterableDataset`` of whole
    batches, for ``DataLoader(stream, batch_size=None)``, webdataset's ``WebLoader`` and the first stage of its
    ``DataPipeline``. The stream allows at most one worker process, because it starts threads. With a worker process,
    only that process knows the position.

    Attributes:
        dataset: the dataset directory; None for shards without an index.
        sampler: sampler of the batches, with the number of items without a class (``left_out``) and in short groups
            (``dropped``); None for shards without an index.
        epoch: the epoch that the next batch belongs to.
        step: the number of the next batch in its epoch.
    """

    def __init__(self, source: "_IndexedSource | _BareSource", batches: int, decoding: BatchDecoder) -> None:
        super().__init__()
        self.dataset: ShardDataset | None = source.dataset
        self.sampler: ShardOrderSampler | None = source.sampler
        self.epoch, self.step = 0, 0
        self._source, self._batches, self._decoding = source, batches, decoding
        self._fingerprint = source.fingerprint

    def __len__(self) -> int:
        """Return the number of batches in an epoch, the same on every process."""
        return self._batches

    def set_epoch(self, epoch: int) -> None:
        """Go to the beginning of an epoch; do nothing if the stream is within that epoch.

        Raises:
            ConfigError: the epoch is negative.
        """
        if epoch < 0:
            raise ConfigError(f"epoch is {epoch}; expected 0 or more.")
        if epoch != self.epoch:
            self.epoch, self.step = epoch, 0

    def state_dict(self) -> dict[str, Any]:
        """Return the position after the last returned batch (``epoch``, ``step``), and a fingerprint of the stream."""
        return {"epoch": self.epoch, "step": self.step, "fingerprint": self._fingerprint}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go to the position of another stream with the same batches; the number of processes may differ.

        Raises:
            ConfigError: the state belongs to a stream with different batches, or is not a position.
        """
        epoch, step = state.get("epoch"), state.get("step")
        if not (type(epoch) is int and type(step) is int and epoch >= 0 and 0 <= step <= len(self)):
            raise ConfigError(
                f"state: epoch {epoch!r}, step {step!r}; expected whole numbers >= 0, step <= {len(self)}."
            )
        if state.get("fingerprint", self._fingerprint) != self._fingerprint:
            raise ConfigError(
                "the state belongs to a stream with different batches: it has other shards, or a different p, k, seed, "
                "num_streams, window or short. Use the same values, or begin an epoch with set_epoch."
            )
        self.epoch, self.step = (epoch, step) if step < len(self) else (epoch + 1, 0)

    def __iter__(self) -> Iterator[Batch]:
        """Yield the batches from the current position to the end of its epoch.

        Raises:
            ConfigError: there are several worker processes; each would give all batches.
            InputError: a shard cannot be read, or so much is damaged that no item can replace it.
            ServiceError: a server kept failing.
        """
        worker = get_worker_info()
        if worker is not None and worker.num_workers > 1:
            raise ConfigError(
                f"{worker.num_workers} worker processes would each give every batch; use num_workers=0 (or 1). For "
                "more speed, raise `workers` (threads)."
            )
        wanted = self._source.batches(self.epoch, self.step)
        with closed_at_exit(self._decoding.batches(wanted, self.epoch, self.step, len(self))) as batches:
            for batch in batches:
                self.load_state_dict({"epoch": self.epoch, "step": self.step + 1})
                yield batch


class _Grouping(NamedTuple):
    """Arguments of :func:`stream` that determine which items form a batch."""

    p: int
    k: int
    num_streams: int
    window: int
    short: Short
    seed: int
    process_index: int
    process_count: int

    @property
    def own_streams(self) -> range:
        """Numbers of the sequences that this process reads."""
        share = self.num_streams // self.process_count
        return range(self.process_index * share, (self.process_index + 1) * share)


# -- with an index ----------------------------------------------------------------------------------------------------


class _IndexedSource:
    """Batches of a dataset directory, in the order of its sampler."""

    def __init__(self, dataset: ShardDataset, how: _Grouping, batches: int | None) -> None:
        if how.k > dataset.manifest.group_size:
            name, least = dataset.manifest.name, dataset.manifest.group_size
            raise ConfigError(
                f"k is {how.k}, but in {name} only {least} items of a class are adjacent, so a batch would hold them "
                f"twice. Use k={least}, or build the shards with --group-size {how.k}."
            )
        leave_out = ("suffix", "duplicate_of", "width", "height", "orientation", "sha256", "source")
        rows = read_rows(dataset.storage, dataset.manifest, dataset.split, leave_out=leave_out)
        place = (dataset.places[1], rows["class_run"].to_numpy(), dataset.labels[:, 0].numpy())
        self.sampler = ShardOrderSampler(*place, **how._asdict(), batches_per_epoch=batches)
        self.dataset = dataset
        self.fingerprint = self.sampler.fingerprint()

    def batches(self, epoch: int, step: int) -> Generator[BatchItems, None, None]:
        return items_ahead(self.dataset, self.sampler, epoch, step)


# -- without an index -------------------------------------------------------------------------------------------------


class Item(NamedTuple):
    """An image of a shard without an index: a number made from its key, its upright size after cropping, its labels."""

    number: int
    image: EncodedImage
    size: Size
    labels: Sequence[int]


class Run(NamedTuple):
    """Adjacent items of one finest class, and the damaged items since the previous run.

    A run has at most 2k - 1 items. It has fewer than k items only at the end of a class.
    """

    items: list[Item]
    faults: list[Fault]


class BareShards:
    """Reader of class runs from tars without an index, each read from front to end; after the last tar it starts again.

    Args:
        tars: tars in the order of the epoch.
        k: requested number of items in a run.
        short: rule for runs of fewer than k items.
        batch: number of images in a batch. It determines how many bytes the images of a run may have in total.
    """

    def __init__(self, tars: Sequence[Tar], k: int, short: Short, *, batch: int) -> None:
        self._tars, self._k, self._batch = tars, k, batch
        self._short: Short = short
        self._faults: list[Fault] = []
        self._passed: Counter[str] = Counter()

    def runs(self) -> Generator[Run, None, None]:
        """Read the tars again and again, and yield runs of items of one class.

        Raises:
            InputError: a tar cannot be read, a run is too short with ``refuse``, or all tars together contain no run.
        """
        from webdataset.pipeline import DataPipeline
        from webdataset.tariterators import group_by_keys

        def keys(name: str) -> tuple[str, str]:
            key, _, kind = name.rpartition(".")
            return key, kind

        grouped = partial(group_by_keys, keys=keys, lcase=False)
        yield from DataPipeline(self._files, grouped, self._items, self._same_class).repeat()
        passed, faults = self._passed, self._faults
        first = f"; the first damaged item: {faults[0].where}: {faults[0].reason}" if faults else ""
        raise InputError(
            f"{self._tars[0].where} and the next {len(self._tars) - 1} shards of its stream have no usable images. "
            f"Without a class: {passed['unlabelled']}; fewer than {self._k} adjacent images of a class: "
            f"{passed['dropped']}; damaged: {len(faults)}{first}. Expected uncompressed tars of {{key}}.jpg followed "
            "by {key}.json, as hgld build-shards writes them."
        )

    def _files(self) -> Iterator[Sample]:
        """Yield images and JSONs in webdataset's form; for a second image or JSON of an item, yield no bytes."""
        for tar in self._tars:
            where, key, seen = tar.where, "", set[str]()
            with closing(tar.storage.open_stream(tar.name)) as file:
                for member, data in stream_members(file, where=where, max_member_bytes=MAX_IMAGE_BYTES, recover=True):
                    if member.fault is not None:
                        name = member.name or "a member"
                        self._note(-1, f"{where}: {name} at offset {member.offset}", member.fault)
                    its_key, suffix = key_and_suffix(member.name)
                    kind = "JSON" if suffix == "json" else "image" if suffix in IMAGE_SUFFIXES else ""
                    if member.kind != "file" or member.fault is not None or not kind:
                        continue
                    if its_key != key:
                        key, seen = its_key, set()
                    if kind in seen:
                        kind, data = f"second {kind}", b""
                    if kind not in seen:
                        content = data[: MAX_ITEM_JSON_BYTES + 1] if kind == "JSON" else data
                        yield {"fname": f"{key}.{kind}", "data": content, "__url__": where}
                    seen.add(kind)

    def _items(self, samples: Iterable[Sample]) -> Iterator[Item]:
        for sample in samples:
            key, where = sample["__key__"], f"{sample['__url__']}: key {quoted(sample['__key__'])}"
            try:
                yield _item(sample, key, where)
            except InputError as error:
                self._note(item_number(key), where, str(error).removeprefix(f"{where}: "))

    def _note(self, number: int, where: str, reason: str) -> None:
        self._faults.append(Fault(number, where, reason))
        if len(self._faults) > _MOST_BAD:
            raise InputError(
                f"{where}: {reason}; {len(self._faults)} damaged items without an undamaged group between them. "
                "Expected shards as hgld build-shards writes them: {key}.jpg followed by {key}.json."
            )

    def _same_class(self, items: Iterable[Item]) -> Iterator[Run]:
        """Join adjacent items of one class into runs of k to 2k - 1 items."""
        held: list[Item] = []
        for item in items:
            if item.labels[0] < 0:
                self._passed["unlabelled"] += 1
                continue
            if held and item.labels[0] != held[0].labels[0]:
                yield from self._closed(held)
                held = []
            elif len(held) == 2 * self._k:
                yield from self._closed(held[: self._k])
                held = held[self._k :]
            size = sum(len(one.image.data) for one in (*held, item))
            if not fits_batch(size, max(self._k, len(held) + 1) / self._batch):
                reason = f"{len(item.image.data)} bytes, too many for a batch with the rest of its group"
                self._note(item.number, item.image.where, reason)
                continue
            held.append(item)
        if held:
            yield from self._closed(held)

    def _closed(self, items: list[Item]) -> Iterator[Run]:
        if len(items) >= self._k or self._short == "repeat":
            faults, self._faults = self._faults, []
            yield Run(items, faults)
        elif self._short == "drop":
            self._passed["dropped"] += len(items)
        else:
            raise InputError(
                f"{items[0].image.where}: only {len(items)} items of class {items[0].labels[0]} are adjacent; "
                f"expected at least {self._k}. Use short='repeat' or short='drop', or a smaller k."
            )


def item_number(key: str) -> int:
    """Return a number of 63 bits made from an item's key, because items without an index have no position."""
    return int.from_bytes(hashlib.blake2b(key.encode(), digest_size=8).digest(), "big") >> 1


def _item(sample: Sample, key: str, where: str) -> Item:
    for kind in ("image", "JSON"):
        if kind not in sample or f"second {kind}" in sample:
            raise InputError(f"{where}: has {'a second' if kind in sample else 'no'} {kind}")
    if not is_safe_key(key):
        raise InputError(f"{where}: has a key that is unsafe as a file name")
    facts = parse_item_json(sample["JSON"], "its JSON")
    header = read_header(sample["image"])
    width, height = header.upright
    if facts.box is not None:
        left, top, right, bottom = facts.box
        if right > width or bottom > height:
            raise InputError(f"{where}: has the box {facts.box} in an image of {width} x {height} pixels")
        width, height = right - left, bottom - top
    image = EncodedImage(sample["image"], header.orientation, facts.box, where)
    return Item(item_number(key), image, (width, height), facts.labels)


class _BareSource:
    """Batches of shards without an index, made from class runs in the order of the tars."""

    dataset = sampler = None

    def __init__(self, tars: Sequence[Tar], how: _Grouping) -> None:
        self._tars, self._how = tars, how
        text = repr((3, how[:6], [tar.name for tar in tars]))
        self.fingerprint = hashlib.blake2b(text.encode(), digest_size=16).hexdigest()

    def batches(self, epoch: int, step: int) -> Generator[BatchItems, None, None]:
        """Yield batches; read the shards from their beginning, because every batch depends on the earlier batches."""
        how = self._how
        tars = [self._tars[i] for i in shuffled(len(self._tars), how.seed, epoch, _SHARDS)]
        with ExitStack() as stack:
            streams = [_BareStream(tars, n, epoch, how, stack) for n in how.own_streams]
            for now in count():
                chunks = [chunk for one in streams for chunk in one.take()]
                if now >= step:
                    yield _FoundItems(how.own_streams.start * how.p // how.num_streams * how.k, chunks)


class _Chunk(NamedTuple):
    """The k items that a group contributes to a batch, and their possible replacements."""

    label: int
    picks: Sequence[Item]
    others: Sequence[Item]
    faults: Sequence[Fault]
    window: "Sequence[_Chunk]" = ()


class _BareStream:
    """One sequence of shards without an index: every batch draws chunks from a window of chunks."""

    def __init__(self, tars: Sequence[Tar], number: int, epoch: int, how: _Grouping, stack: ExitStack) -> None:
        self._k, self._per_batch = how.k, how.p // how.num_streams
        self._size = how.window * self._per_batch
        self._words = word_source(how.seed, epoch, number, _STREAM)
        self._held: list[_Chunk] = []
        own, batch = tars[number :: how.num_streams], how.p // how.process_count * how.k
        runs = BareShards(own, how.k, how.short, batch=batch).runs()
        self._runs = stack.enter_context(read_ahead(runs, AHEAD * self._per_batch))

    def take(self) -> list[_Chunk]:
        """Return this sequence's chunks for the next batch, of different classes if the window has enough."""
        while len(self._held) < self._size:
            self._enter(next(self._runs))
        taken: set[int] = set()
        drawn: list[_Chunk] = []
        for word in self._words.random_raw(self._per_batch).tolist():
            drawn.append(self._held.pop(draw([chunk.label for chunk in self._held], taken, word)))
            taken.add(drawn[-1].label)
        others = [chunk for chunk in self._held if chunk.label not in taken]
        return [chunk._replace(window=others) for chunk in drawn]

    def _enter(self, run: Run) -> None:
        order = np.argsort(self._words.random_raw(len(run.items)), kind="stable")
        items = [run.items[i] for i in order.tolist()]
        for begin in range(0, len(items), self._k):
            end = begin + self._k
            picks = [items[i % len(items)] for i in range(begin, end)]
            others = [*items[max(0, end - len(items)) : begin], *items[end:]]
            self._held.append(_Chunk(items[0].labels[0], picks, others, () if begin else run.faults))


class _FoundItems(BatchItems):
    """Items of shards without an index, numbered in the order of the batch."""

    def __init__(self, first: int, chunks: Sequence[_Chunk]) -> None:
        self.first, self._chunks, self._k = first, chunks, len(chunks[0].picks)
        self._found: list[Item] = []
        self._number: dict[int, int] = {}  # number of each item, keyed by id(item): a repeated item keeps its number
        self.items = np.array([self._add(item) for chunk in chunks for item in chunk.picks])
        self._chunk_of = {number: row // self._k for row, number in enumerate(self.items.tolist())}
        self.faults = [fault for chunk in chunks for fault in chunk.faults]

    def _add(self, item: Item) -> int:
        if id(item) not in self._number:
            self._number[id(item)] = len(self._found)
            self._found.append(item)
        return self._number[id(item)]

    def _at(self, items: Integers) -> list[Item]:
        return [self._found[item] for item in items.tolist()]

    def encoded(self, items: Integers) -> list[EncodedImage]:
        return [item.image for item in self._at(items)]

    def sizes(self, items: Integers) -> Integers:
        return np.array([item.size for item in self._at(items)])

    def labels(self, items: Integers) -> Tensor:
        found = self._at(items)
        for item in found:
            if len(item.labels) != len(found[0].labels):
                raise InputError(
                    f"{item.image.where}: {len(item.labels)} labels; {found[0].image.where} has "
                    f"{len(found[0].labels)}. All items of a stream need the same levels: stream one dataset at a time."
                )
        return torch.tensor([list(item.labels) for item in found])

    def indices(self, items: Integers) -> Integers:
        return np.array([item.number for item in self._at(items)])

    def name(self, item: int) -> str:
        return self._found[item].image.where

    def candidates(self, item: int, damaged: set[int]) -> Iterator[int]:
        """Yield an item's replacements: from its group outside the batch, then the batch, then the window's groups."""
        chunk = self._chunks[self._chunk_of[item]]
        row = [id(one) for one in chunk.picks].index(id(self._found[item]))
        others = [*chunk.others, *chunk.picks]
        # start at the item's row: if a whole group is damaged, its k rows then get k different items of one group
        for group in chunk.window[:MOST_TRIED]:
            others += [*group.picks[row:], *group.picks[:row]]
        return (number for number in map(self._add, others) if number not in damaged)
