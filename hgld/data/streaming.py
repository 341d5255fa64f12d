"""P x K batches from shards that are read from front to end, on a disk or at URLs."""

import hashlib
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from itertools import count
from os import fspath
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import IterableDataset, get_worker_info

from hgld.data.batch import Batch, Fault
from hgld.data.dataset import ShardDataset, open_dataset, read_rows
from hgld.data.decode import Decoder
from hgld.data.images import EncodedImage, fits_batch
from hgld.data.loader import MOST_TRIED, BatchDecoder, BatchItems, DatasetItems
from hgld.data.prefetch import Prefetcher
from hgld.data.storage import Tar, expand_braces, is_shard, open_tars
from hgld.data.tar_pipelines import BareShards, Item, Run, check_order, indexed_files
from hgld.data.views import TrainView, View
from hgld.errors import ConfigError, InputError
from hgld.samplers.batch_sampler import Short, shuffled, word_source
from hgld.samplers.shard_order import ReadingOrder, ShardOrderSampler, check_options, draw

AHEAD = 2  # batches that a lane reads beyond those it must have
_MOST_KEPT = 1000  # faults by name
_SHARDS, _LANE = range(2)  # uses of random numbers for bare shards


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
    lanes: int = 8,
    window: int = 8,
    short: Short = "repeat",
    batches_per_epoch: int | None = None,
    verify_reads: bool | None = None,
    decoder: Decoder = "fast",
    workers: int = 1,
    prefetch: int = 2,
    pin_memory: bool = False,
    storage_options: Mapping[str, Any] | None = None,
) -> "ShardStream":
    """Stream P x K batches from shards whose items of a class stand together, as ``hgld build-shards`` writes them.

    The shards are read in ``lanes``, each from front to end; every batch takes P / lanes groups from every lane, out of
    the ``window`` of those that the lane has read and not yet given. The processes share the lanes, so that the union
    of their parts, in order, is the batch of a single process, whatever their number.

    From a dataset directory everything is planned from its index, by a sampler
    (:class:`hgld.samplers.shard_order.ShardOrderSampler`) that gives a :class:`hgld.data.loader.Loader` the same
    batches by random access: an epoch gives every labelled item at least once (groups that k does not divide are
    filled with their own items, the last batch with groups that the epoch began with); no class comes twice in a
    batch where the windows allow that; going on in the middle of an epoch reads only what is still needed. From
    bare tars the groups are found while reading: the shards of a lane come round without end, so
    ``batches_per_epoch`` says how long an epoch is; classes are kept apart within a lane, not between lanes; going
    on reads the epoch's shards again, without decoding. What cannot be read or decoded is replaced by another item
    of its class, and named: ``Batch.faults``.

    The images of a batch take at most 4 GiB as bytes, and so do those of each batch that the lanes hold: groups with
    more than their share are read where they lie, one image at a time if need be; of bare shards, images without room
    are replaced and named.

    Args:
        root_or_urls: a dataset directory or its URL; or the shards, as a list or as one string that ends in ``.tar``,
            braces expanded: ``https://host/train-{000000..000012}.tar``.
        p: P, classes of a batch, over all processes.
        k: K, items of a class.
        split: the split of a dataset directory; bare shards are read whatever split they are of.
        levels: levels to keep, finest first, of a dataset directory; all if None.
        view: how images are cropped and varied; ``TrainView()`` if None.
        seed: of everything random.
        process_index: which part of every batch to give.
        process_count: number of parts; divides ``lanes``.
        lanes: sequences of shards read side by side, over all processes; divides P. Other lanes make other batches.
        window: batches' worth of groups that the lanes hold, as bytes: the more, the better they are mixed.
        short: what becomes of groups of fewer than k items: ``repeat`` gives their items more than once in a batch,
            ``drop`` leaves them out, ``refuse`` raises.
        batches_per_epoch: batches of an epoch; None: all that there are.
        verify_reads: hold every image to its checksum in the index of a dataset directory, for damage that decoders do
            not see (20 microseconds an image of 27 KB); None: where it comes from a URL.
        decoder: ``fast`` (simplejpeg, OpenCV) or ``torchvision`` (the reference).
        workers: threads that decode; 0: as many as this process has cores for itself.
        prefetch: batches decoded ahead.
        pin_memory: give batches in page-locked memory, for copies to a GPU.
        storage_options: of http(s) headers, hosts and limits (docs/shards.md); of other schemes what fsspec takes:
            credentials, endpoints.

    Raises:
        ConfigError: numbers that do not fit together, with those that do.
        InputError: no dataset is there, or it has no such split or level.
        ServiceError: the server kept failing.
    """
    check_options(p, k, lanes, window, short, seed, process_index, process_count)
    if workers < 0 or prefetch < 1 or (batches_per_epoch is not None and batches_per_epoch < 1):
        raise ConfigError(
            f"workers is {workers}, prefetch {prefetch}, batches_per_epoch {batches_per_epoch}; expected at least 1, "
            "of the workers also 0."
        )
    options = {"workers": workers, "prefetch": 1, "pin_memory": pin_memory, "on_fault": "replace"}
    decoding = BatchDecoder(view or TrainView(), decoder=decoder, seed=seed, **options)  # type: ignore[arg-type]
    grouping = _Grouping(p, k, lanes, window, short, seed, process_index, process_count)
    if isinstance(root_or_urls, str | Path) and not is_shard(fspath(root_or_urls)):
        dataset = open_dataset(
            root_or_urls, split, levels=levels, storage_options=storage_options, verify_reads=verify_reads
        )
        source = _IndexedSource(dataset, grouping, batches_per_epoch)
        return ShardStream(source, len(source.sampler), decoding, prefetch, dataset)
    if levels is not None or verify_reads:
        raise ConfigError("levels and verify_reads need the index of a dataset directory; these are bare shards.")
    if batches_per_epoch is None:
        raise ConfigError(
            "bare shards do not say how many batches they hold: give batches_per_epoch, or a dataset directory "
            "(`hgld index` makes one of shards)."
        )
    urls = [fspath(root_or_urls)] if isinstance(root_or_urls, str | Path) else root_or_urls
    tars = open_tars(expand_braces(urls), storage_options)
    if len(tars) < lanes:
        raise ConfigError(
            f"{len(tars)} shards for {lanes} lanes, each of which reads its own; take fewer lanes, more shards, or "
            "a dataset directory, whose lanes may share a shard."
        )
    return ShardStream(_BareSource(tars, grouping), batches_per_epoch, decoding, prefetch, None)


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


class ShardStream(IterableDataset[Batch]):
    """Batches from shards read from front to end; :func:`stream` makes it.

    Iterating gives the rest of the current epoch and then stands at the beginning of the next. Whoever stops in between
    goes on there. Also a torch ``IterableDataset`` of whole batches: for ``DataLoader(stream, batch_size=None)`` with
    at most one worker process (it has threads of its own), for webdataset's ``WebLoader``, and as the first stage of
    its ``DataPipeline``. The position is counted where the batches are taken: with a worker process, in that process.

    Attributes:
        dataset: the dataset directory; None for bare shards.
        epoch: the epoch that the next batch belongs to.
        step: the number of the next batch in its epoch.
        faults: damaged items met so far.
        wait_seconds: how long takers have waited for batches.
    """

    def __init__(
        self,
        source: "_IndexedSource | _BareSource",
        batches: int,
        decoding: BatchDecoder,
        prefetch: int,
        dataset: ShardDataset | None,
    ) -> None:
        super().__init__()
        self.dataset = dataset
        self.epoch, self.step = 0, 0
        self.faults = FaultLog()
        self.wait_seconds = 0.0
        self._source, self._batches, self._decoding, self._prefetch = source, batches, decoding, prefetch
        self._fingerprint = source.fingerprint

    def __len__(self) -> int:
        """Batches of an epoch, the same on every process."""
        return self._batches

    @property
    def sampler(self) -> ShardOrderSampler | None:
        """Batches as positions in the dataset; None for bare shards, which are known only once they were read."""
        return self._source.sampler if isinstance(self._source, _IndexedSource) else None

    @property
    def unlabelled(self) -> int:
        """Items that no batch holds because their class is unknown; of bare shards, those met so far."""
        return self._source.unlabelled

    @property
    def dropped(self) -> int:
        """Items that no batch holds because their group is too short; of bare shards, those met so far."""
        return self._source.dropped

    def set_epoch(self, epoch: int) -> None:
        """Go to the beginning of an epoch; nothing happens if the stream is within it already.

        Raises:
            ConfigError: it is negative.
        """
        if epoch < 0:
            raise ConfigError(f"epoch is {epoch}; expected 0 or more.")
        if epoch != self.epoch:
            self.epoch, self.step = epoch, 0

    def state_dict(self) -> dict[str, Any]:
        """Return the position by the batches handed out, ``epoch`` and ``step``, and a fingerprint of the stream."""
        return {"epoch": self.epoch, "step": self.step, "fingerprint": self._fingerprint}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go where another stream of the same batches stood; the number of processes may be another.

        Raises:
            ConfigError: the state is of a stream that gives other batches, or no position.
        """
        epoch, step = state.get("epoch"), state.get("step")
        if not (type(epoch) is int and type(step) is int and epoch >= 0 and 0 <= step <= len(self)):
            raise ConfigError(f"epoch {epoch!r}, step {step!r}; expected a position in epochs of {len(self)} batches.")
        if state.get("fingerprint", self._fingerprint) != self._fingerprint:
            raise ConfigError(
                "the state is of a stream that gives other batches: of other shards, or with another p, k, seed, "
                "lanes, window or short. Give it the same, or begin an epoch with set_epoch."
            )
        self.epoch, self.step = (epoch, step) if step < len(self) else (epoch + 1, 0)

    def __iter__(self) -> Iterator[Batch]:
        """Yield the batches from the current position to the end of its epoch.

        Raises:
            ConfigError: in one of several worker processes, each of which would give all batches.
            InputError: a shard cannot be had, or so much is damaged that nothing can stand in for it.
            ServiceError: a server kept failing.
        """
        worker = get_worker_info()
        if worker is not None and worker.num_workers > 1:
            raise ConfigError(
                f"{worker.num_workers} worker processes would each give every batch; take num_workers=0 (or 1), and "
                "`workers`, threads, for more speed."
            )
        with Prefetcher(self._decoded(self.epoch, self.step), self._prefetch, "hgld stream") as batches:
            for batch in batches:
                self.wait_seconds += batches.waited
                self.faults.add(batch.faults)
                self.load_state_dict({"epoch": self.epoch, "step": self.step + 1})
                yield batch

    def _decoded(self, epoch: int, step: int) -> Generator[Batch, None, None]:
        with (
            closing(self._source.batches(epoch, step)) as wanted,
            closing(self._decoding.batches(wanted, epoch, step)) as batches,
        ):
            for _ in range(step, len(self)):
                yield next(batches)


class _Grouping(NamedTuple):
    """Arguments of :func:`stream` that decide which items meet in a batch."""

    p: int
    k: int
    lanes: int
    window: int
    short: Short
    seed: int
    process_index: int
    process_count: int

    @property
    def own_lanes(self) -> range:
        """The lanes of this process."""
        share = self.lanes // self.process_count
        return range(self.process_index * share, (self.process_index + 1) * share)

    @property
    def own_groups(self) -> int:
        """Number of groups of a batch that are of this process."""
        return self.p // self.process_count


# -- with an index ----------------------------------------------------------------------------------------------------


class _IndexedSource:
    """Batches of a dataset directory, as its sampler orders them."""

    def __init__(self, dataset: ShardDataset, how: _Grouping, batches: int | None) -> None:
        if how.k > dataset.manifest.group_size:
            name, least = dataset.manifest.name, dataset.manifest.group_size
            raise ConfigError(
                f"k is {how.k}, but in {name} only {least} items of a class stand together, which a batch would hold "
                f"twice. Take k={least}, or build the shards with --group-size {how.k}."
            )
        check_order(dataset)
        leave_out = ("suffix", "duplicate_of", "width", "height", "orientation", "sha256")
        rows = read_rows(dataset.storage, dataset.manifest, dataset.split, leave_out=leave_out)
        place = (dataset.places[1], rows["class_run"].to_numpy(), dataset.labels[:, 0].numpy())
        self.sampler = ShardOrderSampler(*place, **how._asdict(), batches_per_epoch=batches)
        self.dataset, self._how = dataset, how
        self.groups = how.own_groups
        self.unlabelled, self.dropped = self.sampler.left_out, self.sampler.dropped
        self.fingerprint = self.sampler.fingerprint()

    def batches(self, epoch: int, step: int) -> Generator[BatchItems, None, None]:
        order, per_lane = self.sampler.order(epoch), self._how.p // self._how.lanes
        dealt = [chunk for past in range(step) for chunk in self.sampler.chunks(epoch, past)]
        needed = np.ones(len(order.run), dtype=bool)
        needed[dealt] = False
        with ExitStack() as stack:
            lanes = [_IndexedLane(self, order, n, needed, per_lane, stack) for n in self._how.own_lanes]
            for now in range(step, len(self.sampler)):
                first, items = self.sampler.part(epoch, now)
                chunks = self.sampler.chunks(epoch, now)
                found: dict[int, EncodedImage | str] = {}
                for lane, number in zip(lanes, self._how.own_lanes, strict=True):
                    lane.take(chunks[number * per_lane : (number + 1) * per_lane], found)
                yield _ReadItems(self.dataset, first, items, found)


class _IndexedLane:
    """One lane of an epoch: reads its groups in order and holds each until its last chunk was taken."""

    def __init__(
        self,
        source: _IndexedSource,
        order: ReadingOrder,
        number: int,
        needed: np.ndarray,
        per_lane: int,
        stack: ExitStack,
    ) -> None:
        self._source = source
        length, total = len(order.run) // source.sampler.lanes, len(source.dataset)
        chunks = number * length + np.flatnonzero(needed[number * length : (number + 1) * length])
        place = np.cumsum(np.diff(order.run[chunks], prepend=-1) != 0) - 1  # of every chunk's group in the lane
        wanted = np.unique(place[:, None] * total + order.items[chunks])  # group after group, ascending in each
        counts, positions = np.bincount(wanted // total), wanted % total
        self._place = dict(zip(chunks.tolist(), place.tolist(), strict=True))
        self._left = np.bincount(place).tolist()  # chunks to come of every group
        sizes = np.bincount(wanted // total, weights=source.dataset.places[3][positions])
        held = fits_batch(sizes, np.bincount(place) / source.groups)  # the others are read where they lie
        positions, counts = positions[np.repeat(held, counts)], np.where(held, counts, 0)
        self._held: dict[int, dict[int, EncodedImage | str]] = {}
        self._read = 0
        groups = self._read_groups(positions, counts)
        self._groups = stack.enter_context(Prefetcher(groups, AHEAD * per_lane, f"hgld lane {number}"))

    def _read_groups(
        self, positions: np.ndarray, counts: np.ndarray
    ) -> Generator[dict[int, EncodedImage | str], None, None]:
        dataset = self._source.dataset
        with closing(indexed_files(dataset, positions)) as files:
            for group in np.split(positions, np.cumsum(counts)[:-1]):
                found: dict[int, bytes | str] = {position: next(files) for position in group.tolist()}
                sound = [position for position, data in found.items() if isinstance(data, bytes)]
                images = dataset.encoded_from(np.array(sound, np.int64), [found[i] for i in sound])  # type: ignore[misc]
                missing = {position: reason for position, reason in found.items() if isinstance(reason, str)}
                yield {**missing, **dict(zip(sound, images, strict=True))}

    def take(self, chunks: Sequence[int], found: dict[int, EncodedImage | str]) -> None:
        """Put the groups of some chunks into ``found``, once they have been read."""
        for chunk in chunks:
            place = self._place[chunk]
            while self._read <= place:
                self._held[self._read] = next(self._groups)
                self._read += 1
            found.update(self._held[place])
            self._left[place] -= 1
            if not self._left[place]:
                del self._held[place]


class _ReadItems(DatasetItems):
    """Items of a dataset that were read already; replacements and groups too large to hold are read where they lie."""

    def __init__(
        self, dataset: ShardDataset, first: int, items: NDArray[np.int64], found: Mapping[int, EncodedImage | str]
    ) -> None:
        super().__init__(dataset, first, items)
        self._found = found

    def encoded(self, items: NDArray[np.int64]) -> list[EncodedImage]:
        images: dict[int, EncodedImage] = {}
        for item in items.tolist():
            image = self._found.get(item)
            if isinstance(image, str):
                where = "" if self.dataset.storage.is_local else f"{self.dataset.storage.where}: "
                raise InputError(f"{self.name(item)}: {where}{image}")
            if image is not None:
                images[item] = image
        if absent := [item for item in dict.fromkeys(items.tolist()) if item not in images]:
            images |= zip(absent, self.dataset.encoded(absent), strict=True)
        return [images[item] for item in items.tolist()]


# -- without an index -------------------------------------------------------------------------------------------------


class _BareSource:
    """Batches of bare shards, made of the groups as they are found."""

    def __init__(self, tars: Sequence[Tar], how: _Grouping) -> None:
        self.unlabelled, self.dropped = 0, 0
        self._tars, self._how = tars, how
        text = repr((2, how[:6], [tar.name for tar in tars]))
        self.fingerprint = hashlib.blake2b(text.encode(), digest_size=16).hexdigest()

    def batches(self, epoch: int, step: int) -> Generator[BatchItems, None, None]:
        """Read the shards from their beginning: what a batch holds is known only once those before it were found."""
        how = self._how
        tars = [self._tars[i] for i in shuffled(len(self._tars), how.seed, epoch, _SHARDS)]
        with ExitStack() as stack:
            lanes = [_BareLane(self, tars, n, epoch, how, stack) for n in how.own_lanes]
            for now in count():
                chunks = [chunk for lane in lanes for chunk in lane.take()]
                if now >= step:
                    yield _FoundItems(how.own_lanes.start * how.p // how.lanes * how.k, chunks)


class _Chunk(NamedTuple):
    """The k items of a group that a batch takes, and those that can replace them."""

    label: int
    picks: Sequence[Item]
    others: Sequence[Item]
    faults: Sequence[Fault]
    window: "Sequence[_Chunk]" = ()


class _BareLane:
    """One lane of bare shards: a window of the chunks read last, from which every batch draws."""

    def __init__(
        self, source: _BareSource, tars: Sequence[Tar], number: int, epoch: int, how: _Grouping, stack: ExitStack
    ) -> None:
        self._source, self._k, self._per_batch = source, how.k, how.p // how.lanes
        self._size = how.window * self._per_batch
        self._words = word_source(how.seed, epoch, number, _LANE)
        self._held: list[_Chunk] = []
        runs = BareShards(tars, number, how.lanes, how.k, how.short, batch=how.own_groups * how.k).runs()
        self._runs = stack.enter_context(Prefetcher(runs, AHEAD * self._per_batch, f"hgld lane {number}"))

    def take(self) -> list[_Chunk]:
        """Return the lane's chunks of the next batch, of different classes where the window allows that."""
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
        self._source.unlabelled += run.unlabelled
        self._source.dropped += run.dropped
        order = np.argsort(self._words.random_raw(len(run.items)), kind="stable")
        items = [run.items[i] for i in order.tolist()]
        for begin in range(0, len(items), self._k):
            end = begin + self._k
            picks = [items[i % len(items)] for i in range(begin, end)]
            others = [*items[max(0, end - len(items)) : begin], *items[end:]]
            self._held.append(_Chunk(items[0].labels[0], picks, others, () if begin else run.faults))


class _FoundItems:
    """Items of bare shards, numbered by their place in the batch (:class:`hgld.data.loader.BatchItems`)."""

    def __init__(self, first: int, chunks: Sequence[_Chunk]) -> None:
        self.first, self._chunks, self._k = first, chunks, len(chunks[0].picks)
        self._found: list[Item] = []
        self._number: dict[int, int] = {}  # of an item that comes twice, the same
        self.items = np.array([self._add(item) for chunk in chunks for item in chunk.picks])
        self._chunk_of = {number: row // self._k for row, number in enumerate(self.items.tolist())}
        self.faults = [fault for chunk in chunks for fault in chunk.faults]

    def _add(self, item: Item) -> int:
        if id(item) not in self._number:
            self._number[id(item)] = len(self._found)
            self._found.append(item)
        return self._number[id(item)]

    def _at(self, items: NDArray[np.int64]) -> list[Item]:
        return [self._found[item] for item in items.tolist()]

    def encoded(self, items: NDArray[np.int64]) -> list[EncodedImage]:
        return [item.image for item in self._at(items)]

    def sizes(self, items: NDArray[np.int64]) -> NDArray[np.int64]:
        return np.array([item.size for item in self._at(items)])

    def labels(self, items: NDArray[np.int64]) -> Tensor:
        found = self._at(items)
        for item in found:
            if len(item.labels) != len(found[0].labels):
                raise InputError(
                    f"{item.image.where}: {len(item.labels)} labels; {found[0].image.where} has "
                    f"{len(found[0].labels)}. All items of a stream need the same levels: stream one dataset at a time."
                )
        return torch.tensor([list(item.labels) for item in found])

    def indices(self, items: NDArray[np.int64]) -> NDArray[np.int64]:
        return np.array([item.number for item in self._at(items)])

    def name(self, item: int) -> str:
        return self._found[item].image.where

    def candidates(self, item: int, damaged: set[int]) -> Iterator[int]:
        """Yield the others of its group, those outside the batch first; then whole groups in the lane's window."""
        chunk = self._chunks[self._chunk_of[item]]
        row = [id(one) for one in chunk.picks].index(id(self._found[item]))
        others = [*chunk.others, *chunk.picks]
        for group in chunk.window[:MOST_TRIED]:  # row for row, so that it has k items in the batch
            others += [*group.picks[row:], *group.picks[:row]]
        for other in others:
            number = self._add(other)
            if number not in damaged:
                yield number
