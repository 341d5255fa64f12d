"""Pipelines of webdataset over tars that hgld's own reader opens: images of an index, and groups of bare shards.

webdataset expands and groups the tars and composes the stages. It never opens anything: its ``gopen`` runs ``pipe:``
URLs in a shell, asks curl for the others, and rewrites them as the environment says. Nor does it see foreign bytes:
:class:`BoundedTar` writes it a tar of those members that :mod:`hgld.data.tar` has checked, one in memory at a time.
"""

import hashlib
import tarfile
from collections import deque
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from io import BufferedReader
from typing import Any, NamedTuple

import numpy as np

from hgld.data.batch import Fault
from hgld.data.dataset import ShardDataset
from hgld.data.format import IMAGE_SUFFIXES, MAX_IMAGE_BYTES, key_and_suffix
from hgld.data.images import EncodedImage, fits_batch, read_header, turn_of, upright_size
from hgld.data.index import MAX_ITEM_JSON_BYTES, is_safe_key, parse_item_json
from hgld.data.storage import Tar
from hgld.data.tar import BLOCK, END_OF_ARCHIVE, member_header, padding, stream_members
from hgld.errors import HgldError, InputError, quoted
from hgld.samplers.batch_sampler import Short

_MOST_SKIPPED = 4 << 20  # bytes read in vain rather than opening the shard again further on
_MOST_BAD = 10_000  # damaged members without one sound group between them: this is no dataset
_COMPRESSED = {b"\x1f\x8b": "gzip", b"BZh": "bzip2", b"\xfd7zXZ\0": "xz", b"\x28\xb5\x2f\xfd": "zstd"}

Sample = dict[str, Any]  # of webdataset
_PURPOSE = "a stream of shards"


# -- tars as webdataset sees them --------------------------------------------------------------------------------------


class BoundedTar:
    """A tar, written while it is read, of members that were checked: plain files of safe size and name.

    tarfile, by which webdataset expands, would decompress a bomb, and take as much memory as a pax header, a long name
    or a sparse file asks for.

    Args:
        members: name and bytes of each.
    """

    def __init__(self, members: Iterator[tuple[str, bytes]]) -> None:
        self._blocks = self._written(members)
        self._block: bytes | memoryview = b""
        self._at = 0
        self._error: Exception | None = None
        self._ended = False

    def _written(self, members: Iterator[tuple[str, bytes]]) -> Iterator[bytes | memoryview]:
        for name, data in members:
            yield member_header(f"./{name}", len(data))  # webdataset would leave out what begins with __
            yield memoryview(data)
            yield padding(len(data))
        self._ended = True
        yield END_OF_ARCHIVE

    def read(self, size: int) -> bytes | memoryview:
        """Read at most ``size`` bytes, none at the end; an error ends the tar here and is raised by :meth:`check`."""
        while self._at >= len(self._block):
            try:
                block = next(self._blocks, None)
            except (HgldError, OSError) as error:  # webdataset would put its own words into it
                self._error = error
                return b""
            if block is None:
                return b""
            self._block, self._at = block, 0
        data = self._block[self._at : self._at + size]
        self._at += size
        return data  # of an image a view, which tarfile copies once

    def check(self) -> None:
        """Raise the error that ended the tar early."""
        if self._error is not None:
            raise self._error
        if not self._ended:
            raise RuntimeError("webdataset did not read a tar to its end")


class _Part:
    """The next ``size`` bytes of a file."""

    def __init__(self, file: "BufferedReader[Any]", size: int) -> None:
        self._file, self._left = file, size

    def read(self, size: int, /) -> bytes:
        data = self._file.read(min(size, self._left))
        self._left -= len(data)
        return data


def _source(file: "BufferedReader[Any]", where: str, members: Iterator[tuple[str, bytes]]) -> Iterator[Sample]:
    """Yield the tar of these members, as a stage of webdataset hands it to the next; the file is closed afterwards."""
    with closing(file):
        first = file.peek(BLOCK)
        for magic, name in _COMPRESSED.items():
            if first.startswith(magic) and first[257:262] != b"ustar":
                raise InputError(
                    f"{where}: compressed by {name}; expected a plain tar, which images need no compression in. "
                    "Decompress it first."
                )
        bounded = BoundedTar(members)
        yield {"url": where, "stream": bounded}
        bounded.check()


def _stages() -> list[Any]:
    """Return webdataset's stages from opened tars to samples, one a key."""
    from webdataset.tariterators import group_by_keys, tar_file_expander

    return [partial(tar_file_expander, handler=_go_on), partial(group_by_keys, keys=_written_key, lcase=False)]


def _go_on(error: Exception) -> bool:
    """Take the next tar after one that ended early: :meth:`BoundedTar.check` says why."""
    if isinstance(error, tarfile.TarError):
        return True
    raise error


def _written_key(name: str) -> tuple[str, str]:
    key, _, kind = name.removeprefix("./").rpartition(".")
    return key, kind


# -- with an index ----------------------------------------------------------------------------------------------------


def indexed_files(dataset: ShardDataset, positions: np.ndarray) -> Generator[bytes | str, None, None]:
    """Read the files of a dataset's images from front to end.

    Every run of neighbours is one slice of a shard: from the end of the image before, where a member begins, to the end
    of its last image. Only members that lie where the index says, under its key and with its size, go on; of a dataset
    that verifies what it reads, only those with the bytes of the index.

    Args:
        dataset: with its index.
        positions: of the images, ascending within a shard as long as it is read without going back.

    Yields:
        for every position the bytes, or the reason why they cannot be had.

    Raises:
        InputError, ServiceError, StorageError: a shard cannot be had at all.
    """
    from webdataset.pipeline import DataPipeline

    faults: dict[int, str] = {}
    keys = dataset.keys.gather(positions).to_list()
    slices = partial(_slices, dataset, positions, keys, faults)
    return iter(DataPipeline(slices, *_stages(), partial(_matched, dataset, positions, keys, faults)))  # type: ignore[return-value]


def check_order(dataset: ShardDataset) -> None:
    """Refuse an index that does not name a shard's images in their order.

    Raises:
        InputError: names the first.
    """
    names, shard, offset, size = dataset.places
    wrong = np.flatnonzero((shard[1:] == shard[:-1]) & (offset[1:] < offset[:-1] + size[:-1]))
    if wrong.size:
        at = int(wrong[0]) + 1
        raise InputError(
            f"{names[shard[at]]}: the index has key {quoted(dataset.keys[at])} at offset {offset[at]}, behind one that "
            f"ends at {offset[at - 1] + size[at - 1]}; a stream needs the order of the tar. Write it again with `hgld "
            "index --force`."
        )


def _slices(
    dataset: ShardDataset, positions: np.ndarray, keys: Sequence[str], faults: dict[int, str]
) -> Iterator[Sample]:
    names, shard, offset, size = dataset.places
    before = np.maximum(positions - 1, 0)
    follows = (positions > 0) & (shard[before] == shard[positions])
    begin = np.where(follows, -(-(offset[before] + size[before]) // BLOCK) * BLOCK, 0)
    end = offset[positions] + size[positions]
    ahead = begin[1:] - end[:-1]
    cuts = np.flatnonzero((np.diff(shard[positions]) != 0) | (ahead < 0) | (ahead > _MOST_SKIPPED)) + 1
    for part in np.split(np.arange(len(positions)), cuts) if len(positions) else ():
        its, start = positions[part], int(begin[part[0]])
        name, length = names[int(shard[its[0]])], int(end[part[-1]]) - start
        its_keys = keys[int(part[0]) : int(part[-1]) + 1]
        places = zip((offset[its] - start).tolist(), size[its].tolist(), its_keys, its.tolist(), strict=True)
        wanted = deque(_Wanted(*place) for place in places)
        file = dataset.storage.open_stream(name, start)
        yield from _source(file, name, _wanted_members(_Part(file, length), name, wanted, faults))


class _Wanted(NamedTuple):
    """An image and its place in a slice, as the index states them."""

    offset: int
    size: int
    key: str
    position: int


def _wanted_members(
    part: _Part, where: str, wanted: deque[_Wanted], faults: dict[int, str]
) -> Iterator[tuple[str, bytes]]:
    """Yield the members that are wanted; the reasons why others are missing go to ``faults``."""
    reason = "no member begins there: the shard is not the one of the index"
    for member, data in stream_members(part, where=where, max_member_bytes=MAX_IMAGE_BYTES, recover=True):
        while wanted and wanted[0].offset < member.offset:
            faults[wanted.popleft().position] = reason
        if member.kind == "damage" and member.fault is not None:
            reason = member.fault
        if wanted and wanted[0].offset == member.offset:
            _, size, key, position = wanted.popleft()
            if member.fault is not None:
                faults[position] = member.fault
            elif key_and_suffix(member.name)[0] != key or member.size != size:
                faults[position] = (
                    f"{quoted(member.name)} of {member.size} bytes is there, by the index {quoted(key)} of {size}"
                )
            else:
                yield f"{key}.image", data
        if not wanted:  # nothing is read beyond
            return
    faults.update((one.position, reason) for one in wanted)


def _matched(
    dataset: ShardDataset,
    positions: np.ndarray,
    keys: Sequence[str],
    faults: dict[int, str],
    samples: Iterable[Sample],
) -> Iterator[bytes | str]:
    """Yield for every position the image of its sample, or the reason why there is none."""
    coming = iter(samples)
    sample = next(coming, None)
    for position, key in zip(positions.tolist(), keys, strict=True):
        if sample is None or sample["__key__"] != key:
            yield faults[position]
            continue
        data, sample = sample["image"], next(coming, None)
        if not dataset.is_as_indexed(position, data):
            yield "its bytes are not those of the index (SHA-256)"
        else:
            yield data


# -- without an index -------------------------------------------------------------------------------------------------


class Item(NamedTuple):
    """An image of a bare shard: a number made from its key, its size upright and cut to its box, its classes."""

    number: int
    image: EncodedImage
    size: tuple[int, int]
    labels: Sequence[int]


@dataclass(slots=True)
class Run:
    """Items of one class that stand together, and what was met since the run before.

    Attributes:
        items: of one finest class, at most 2k - 1 of them, fewer than k only at the end of a class.
        faults: damaged items.
        unlabelled: number of items without a class.
        dropped: number of items in runs that are too short.
    """

    items: list[Item]
    faults: list[Fault]
    unlabelled: int = 0
    dropped: int = 0


class BareShards:
    """Every ``lanes``-th of some tars, from number ``lane`` on, read from front to end, round after round.

    Args:
        tars: in the order of the epoch.
        lane: of ``lanes``.
        lanes: over all processes.
        k: items that a run shall have.
        short: what becomes of shorter ones.
        batch: images of a batch, of whose bytes a run has its share.
    """

    def __init__(self, tars: Sequence[Tar], lane: int, lanes: int, k: int, short: Short, *, batch: int) -> None:
        self._tars, self._lane, self._lanes, self._k, self._batch = tars, lane, lanes, k, batch
        self._short: Short = short
        self._since = Run([], [])

    def runs(self) -> Generator[Run, None, None]:
        """Read the tars without end, as runs of items of a class.

        Raises:
            InputError: a tar cannot be had or is compressed, a run is too short under ``refuse``, or all tars together
                give no run.
        """
        from webdataset.filters import slice as take_slice
        from webdataset.pipeline import DataPipeline

        own = take_slice(self._lane, None, self._lanes)
        shards = partial(map, lambda tar: {"tar": tar}, self._tars)
        yield from DataPipeline(shards, own, self._sources, *_stages(), self._items, self._same_class).repeat()
        raise self._no_runs()

    def _sources(self, shards: Iterable[Sample]) -> Iterator[Sample]:
        for shard in shards:
            tar: Tar = shard["tar"]
            file = tar.storage.open_stream(tar.name)
            yield from _source(file, tar.where, self._members(file, tar.where))

    def _members(self, file: "BufferedReader[Any]", where: str) -> Iterator[tuple[str, bytes]]:
        """Yield images and JSONs; of a key with several of them, note the second as a fault."""
        key, seen = "", set[str]()
        for member, data in stream_members(file, where=where, max_member_bytes=MAX_IMAGE_BYTES, recover=True):
            if member.fault is not None:
                self._note(-1, f"{where}: {member.name or 'a member'} at offset {member.offset}", member.fault)
            its_key, suffix = key_and_suffix(member.name)
            kind = "JSON" if suffix == "json" else "image" if suffix in IMAGE_SUFFIXES else ""
            if member.kind != "file" or member.fault is not None or not kind:
                continue
            if its_key != key:
                key, seen = its_key, set()
            if kind not in seen:
                yield f"{key}.{kind}", data[: MAX_ITEM_JSON_BYTES + 1] if kind == "JSON" else data
            elif f"second {kind}" not in seen:
                kind = f"second {kind}"
                yield f"{key}.{kind}", b""
            seen.add(kind)

    def _items(self, samples: Iterable[Sample]) -> Iterator[Item]:
        for sample in samples:
            key, where = sample["__key__"], f"{sample['__url__']}: key {quoted(sample['__key__'])}"
            try:
                yield _item(sample, key, where)
            except InputError as error:
                self._note(item_number(key), where, str(error).removeprefix(f"{where}: "))

    def _note(self, number: int, where: str, reason: str) -> None:
        self._since.faults.append(Fault(number, where, reason))
        if len(self._since.faults) > _MOST_BAD:
            raise InputError(
                f"{where}: {reason}; the {len(self._since.faults)}th damaged item with no sound group between them. "
                "Expected shards as hgld build-shards writes them: {key}.jpg followed by {key}.json."
            )

    def _same_class(self, items: Iterable[Item]) -> Iterator[Run]:
        """Join neighbours of one class to runs of k to 2k - 1 items."""
        held: list[Item] = []
        for item in items:
            if item.labels[0] < 0:
                self._since.unlabelled += 1
                continue
            if held and item.labels[0] != held[0].labels[0]:
                yield from self._closed(held)
                held = []
            elif len(held) == 2 * self._k:
                yield from self._closed(held[: self._k])
                held = held[self._k :]
            size = sum(len(one.image.data) for one in (*held, item))
            if not fits_batch(size, max(self._k, len(held) + 1) / self._batch):
                reason = f"{len(item.image.data)} bytes, more than a batch has room for beside the others of its group"
                self._note(item.number, item.image.where, reason)
                continue
            held.append(item)
        if held:
            yield from self._closed(held)

    def _closed(self, items: list[Item]) -> Iterator[Run]:
        if len(items) >= self._k or self._short == "repeat":
            run, self._since = self._since, Run([], [])
            run.items = items
            yield run
        elif self._short == "drop":
            self._since.dropped += len(items)
        else:
            raise InputError(
                f"{items[0].image.where}: a run of {len(items)} items of class {items[0].labels[0]}; "
                f"expected at least {self._k}. Take short='repeat' or short='drop', or a smaller k."
            )

    def _no_runs(self) -> InputError:
        own, since = self._tars[self._lane :: self._lanes], self._since
        first = f"; the first of these: {since.faults[0].where}: {since.faults[0].reason}" if since.faults else ""
        return InputError(
            f"{own[0].where} and the {len(own) - 1} shards after it in its lane have no group of a known class: "
            f"{since.unlabelled} items without a class, {since.dropped} in short groups, {len(since.faults)} "
            f"damaged{first}. Expected {{key}}.jpg followed by {{key}}.json, as hgld build-shards writes them."
        )


def item_number(key: str) -> int:
    """Return the number that stands for an item where no index gives it a position: 63 bits made from its key."""
    return int.from_bytes(hashlib.blake2b(key.encode(), digest_size=8).digest(), "big") >> 1


def _item(sample: Sample, key: str, where: str) -> Item:
    for kind in ("image", "JSON"):
        if kind not in sample or f"second {kind}" in sample:
            raise InputError(f"{where}: has {'a second' if kind in sample else 'no'} {kind}")
    if not is_safe_key(key):
        raise InputError(f"{where}: has a key that is not safe as the name of a file")
    facts = parse_item_json(sample["JSON"], "its JSON")
    header = read_header(sample["image"])
    width, height = upright_size(header.width, header.height, turn_of(header.orientation))
    if facts.box is not None:
        left, top, right, bottom = facts.box
        if right > width or bottom > height:
            raise InputError(f"{where}: has the box {facts.box} in an image of {width} x {height} pixels")
        width, height = right - left, bottom - top
    image = EncodedImage(sample["image"], header.orientation, facts.box, where)
    return Item(item_number(key), image, (width, height), facts.labels)
