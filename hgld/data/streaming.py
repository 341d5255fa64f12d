"""P x K batches from shards that are read from front to end, on a disk or at URLs."""

from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from os import fspath
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from torch.utils.data import IterableDataset, get_worker_info

from hgld.data.batch import Batch, BatchBuffers
from hgld.data.dataset import ShardDataset, open_dataset
from hgld.data.decode import Path as Decoder
from hgld.data.decode import decoder_of
from hgld.data.index import INDEX, read_index
from hgld.data.prefetch import ReadAhead
from hgld.data.storage import expand_braces, is_shard, open_tars
from hgld.data.stream_batches import BatchDecoder, FaultLog
from hgld.data.stream_lanes import Chunk, IndexedItems, PlannedChunks
from hgld.data.stream_plan import Groups, Short, StreamPlan, check_options
from hgld.data.stream_runs import RunChunks
from hgld.data.views import TrainView, View
from hgld.errors import ConfigError


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
    check_sha256: bool = False,
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

    From a dataset directory everything is planned from its index: an epoch gives every item at least once (groups that
    k does not divide are filled with their own items), fewer than P groups apart, which differ from epoch to epoch; no
    class comes twice in a batch where the windows allow that; going on in the middle of an epoch reads only what is
    still needed. From bare tars the groups are found while reading: the shards of a lane come round without end, so
    ``batches_per_epoch`` says how long an epoch is; classes are kept apart within a lane, not between lanes; going on
    reads the epoch's shards again, without decoding.

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
        check_sha256: hold every image to its checksum in the index of a dataset directory, for damage that decoders do
            not see (20 microseconds an image of 27 KB).
        decoder: ``fast`` (simplejpeg, OpenCV) or ``torchvision`` (the reference).
        workers: threads that decode.
        prefetch: batches decoded ahead.
        pin_memory: give batches in page-locked memory, for copies to a GPU.
        storage_options: what fsspec takes for the URLs: credentials, headers, endpoints.

    Raises:
        ConfigError: numbers that do not fit together, with those that do.
        InputError: no dataset is there, or it has no such split or level.
        ServiceError: the server kept failing.
    """
    _check_processes(p, lanes, process_index, process_count)
    check_options(p, k, lanes, window, short, seed)
    if min(workers, prefetch) < 1 or (batches_per_epoch is not None and batches_per_epoch < 1):
        raise ConfigError(
            f"workers is {workers}, prefetch {prefetch}, batches_per_epoch {batches_per_epoch}; expected at least 1."
        )
    decoder_of(decoder)
    how = _Grouping(p, k, lanes, window, short, seed, process_index, process_count)
    decoding = _Decoding(view or TrainView(), decoder, seed, process_index, workers, prefetch, pin_memory)
    if isinstance(root_or_urls, str | Path) and not is_shard(fspath(root_or_urls)):
        dataset = open_dataset(root_or_urls, split, levels=levels, storage_options=storage_options)
        source, most = _planned(dataset, how, check_sha256)
        if (batches_per_epoch or 0) > most:
            raise ConfigError(f"batches_per_epoch is {batches_per_epoch}; an epoch of this stream has {most}.")
        return ShardStream(source, batches_per_epoch or most, decoding, dataset)
    if levels is not None or check_sha256:
        raise ConfigError("levels and check_sha256 need the index of a dataset directory; these are bare shards.")
    if batches_per_epoch is None:
        raise ConfigError(
            "bare shards do not say how many batches they hold: give batches_per_epoch, or a dataset directory "
            "(`hgld index` makes one of shards)."
        )
    urls = [fspath(root_or_urls)] if isinstance(root_or_urls, str | Path) else root_or_urls
    return ShardStream(_bare(urls, how, storage_options), batches_per_epoch, decoding, None)


class _Grouping(NamedTuple):
    """Which items meet in a batch: as the arguments of :func:`stream`."""

    p: int
    k: int
    lanes: int
    window: int
    short: Short
    seed: int
    process_index: int
    process_count: int


def _planned(dataset: ShardDataset, how: _Grouping, check_sha256: bool) -> tuple[PlannedChunks, int]:
    """The chunks of a dataset directory, and the batches of an epoch."""
    if how.k > dataset.manifest.group_size:
        name, least = dataset.manifest.name, dataset.manifest.group_size
        raise ConfigError(
            f"k is {how.k}, but in {name} only {least} items of a class stand together, which a batch would hold "
            f"twice. Take k={least}, or build the shards with --group-size {how.k}."
        )
    where = f"{dataset.storage.where}/{INDEX}"
    not_needed = ("suffix", "duplicate_of") if check_sha256 else ("suffix", "duplicate_of", "sha256")
    frame, _ = read_index(dataset.storage.table(INDEX), where, leave_out=not_needed)
    labels = dataset.labels.numpy().copy()  # torch moves a tensor's memory when it hands it to another process
    items = IndexedItems(frame.filter(split=dataset.split), labels, dataset.sizes, dataset.storage)
    groups = Groups.from_index(items.shard, items.group, labels[:, 0])
    options = {"lanes": how.lanes, "window": how.window, "short": how.short, "seed": how.seed}
    plan = StreamPlan(groups, how.p, how.k, **options)
    return PlannedChunks(items, plan, how.process_index, how.process_count), len(plan)


def _bare(urls: Sequence[str], how: _Grouping, options: Mapping[str, Any] | None) -> RunChunks:
    tars = open_tars(expand_braces(urls), options)
    if len(tars) < how.lanes:
        raise ConfigError(
            f"{len(tars)} shards for {how.lanes} lanes, each of which reads its own; take fewer lanes, more shards, or "
            "a dataset directory, whose lanes may share a shard."
        )
    return RunChunks(tars, **how._asdict())


def _check_processes(p: int, lanes: int, index: int, count: int) -> None:
    if not 0 <= index < count:
        raise ConfigError(f"process_index is {index} of process_count {count}; expected 0 to {count - 1}.")
    if lanes % count:
        fitting = [n for n in range(count, p + 1, count) if p % n == 0]
        way_out = (
            f"take lanes={min(fitting, key=lambda n: abs(n - lanes))}"
            if fitting
            else f"take a multiple of {count} as p"
        )
        raise ConfigError(f"{count} processes cannot share {lanes} lanes equally; {way_out}, or other processes.")


class _Source(Protocol):
    """Where a stream's chunks come from: a plan, or runs found while reading."""

    @property
    def unlabelled(self) -> int: ...

    @property
    def dropped(self) -> int: ...

    def fingerprint(self) -> str: ...

    def batches(self, epoch: int, step: int) -> Generator[list[Chunk], None, None]: ...


@dataclass(frozen=True)
class _Decoding:
    """How a stream decodes: as the arguments of :func:`stream`."""

    view: View
    path: Decoder
    seed: int
    process_index: int
    workers: int
    prefetch: int
    pin_memory: bool


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

    def __init__(self, source: _Source, batches: int, decoding: _Decoding, dataset: ShardDataset | None) -> None:
        super().__init__()
        self.dataset = dataset
        self.epoch, self.step = 0, 0
        self.faults = FaultLog()
        self.wait_seconds = 0.0
        self._source, self._batches, self._decoding = source, batches, decoding
        self._fingerprint = source.fingerprint()
        self._buffers = BatchBuffers(decoding.pin_memory)

    def __len__(self) -> int:
        """Batches of an epoch, the same on every process."""
        return self._batches

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
        """Where the stream stands, by the batches handed out: ``epoch``, ``step``, and what it is a stream of."""
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
        """The batches from the current position to the end of its epoch.

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
        with ReadAhead(self._decoded(self.epoch, self.step), self._decoding.prefetch, "hgld stream") as batches:
            for batch in batches:
                self.wait_seconds += batches.waited
                self.faults.add(batch.faults)
                self.load_state_dict({"epoch": self.epoch, "step": self.step + 1})
                yield batch

    def _decoded(self, epoch: int, step: int) -> Generator[Batch, None, None]:
        how = self._decoding
        decoder = BatchDecoder(
            how.view,
            how.path,
            seed=how.seed,
            process_index=how.process_index,
            threads=how.workers,
            buffers=self._buffers,
        )
        with closing(decoder), closing(self._source.batches(epoch, step)) as found:
            for number in range(step, len(self)):
                yield decoder.decode(next(found), epoch, number)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_buffers": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _buffers=BatchBuffers(state["_decoding"].pin_memory))
