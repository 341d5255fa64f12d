"""Reading of a dataset's files, on a disk or at a URL: whole files, ranges and streams, for any number of threads."""

import hashlib
import io
import os
import re
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote, urlsplit, urlunsplit

from braceexpand import braceexpand

from hgld.addresses import without_secrets
from hgld.data.format import MANIFEST, MAX_MANIFEST_BYTES, FileFacts, Manifest
from hgld.errors import ConfigError, InputError, ServiceError, StorageError, quoted

if TYPE_CHECKING:
    from hgld.data.fsspec_files import FsspecRanges
    from hgld.data.http_files import HttpRanges, RemoteFault


MOST_OPEN_FILES = 128  # a process may usually have 1,024
_STREAM_BUFFER = 1 << 20


def advise(descriptor: int, offset: int, size: int, *, sequential: bool = False) -> None:
    """Tell the system which bytes of a file will be read; does nothing on systems without this call (macOS).

    Args:
        descriptor: descriptor of the open file.
        offset: first byte.
        size: bytes; 0: to the end.
        sequential: whether the file is read from front to back; otherwise the range is read soon.
    """
    if hasattr(os, "posix_fadvise"):
        os.posix_fadvise(descriptor, offset, size, os.POSIX_FADV_SEQUENTIAL if sequential else os.POSIX_FADV_WILLNEED)


class _OpenFile:
    """A file descriptor that closes with its last user, so that a thread may drop it while another still reads."""

    __slots__ = ("descriptor",)
    _close = staticmethod(os.close)  # module names may be gone when the last one closes at exit

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor

    def __del__(self) -> None:
        self._close(self.descriptor)


def _path_in(folder: Path, name: str) -> Path:
    path = folder / name
    if path.resolve().parent != folder.resolve():
        raise InputError(f"{path}: a link that leads out of the folder is not followed. Put the file itself there.")
    if not path.is_file():
        found = "this is a folder, pipe or device" if path.exists() else "no such file"
        raise InputError(f"{path}: {found}. Copy the file there, or build the dataset again.")
    return path


def _opened(folder: Path, name: str) -> _OpenFile:
    path = _path_in(folder, name)
    try:
        return _OpenFile(os.open(path, os.O_RDONLY | os.O_CLOEXEC))
    except OSError as error:
        raise StorageError(f"{path}: cannot be opened ({error.strerror or error}).") from error


class LocalFiles:
    """Files of a folder, read by name; recently used files stay open, even in forked processes.

    Args:
        folder: folder of the files.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._file = lru_cache(MOST_OPEN_FILES)(partial(_opened, folder))

    def __getstate__(self) -> Path:
        return self._folder

    def __setstate__(self, folder: Path) -> None:
        self.__init__(folder)

    def path(self, name: str) -> Path:
        """Return the path of a file that exists.

        Raises:
            InputError: there is none, or it is a link that leads out of the folder.
        """
        return _path_in(self._folder, name)

    def exists(self, name: str) -> bool:
        return (self._folder / name).is_file()

    def read_at(self, name: str, offset: int, size: int) -> bytes:
        """Read ``size`` bytes from ``offset``, fewer where the file ends."""
        return self._read(self._file(name), name, offset, size)

    def read_many(self, requests: Sequence[tuple[str, int, int]]) -> list[bytes]:
        """Read ranges (name, offset, size), each shorter where its file ends.

        The system is told of all before the first is waited for, which makes a cold disk three times as fast.
        """
        files = {name: self._file(name) for name in {name for name, _, _ in requests}}
        descriptors = {name: file.descriptor for name, file in files.items()}
        for name, offset, size in requests:
            advise(descriptors[name], offset, size)
        try:
            result = [os.pread(descriptors[name], size, offset) for name, offset, size in requests]
        except OSError:
            return [self._read(files[name], name, offset, size) for name, offset, size in requests]  # says which
        for position, (name, offset, size) in enumerate(requests):
            if len(result[position]) < size:
                result[position] = self._read(files[name], name, offset, size)
        return result

    def _read(self, file: _OpenFile, name: str, offset: int, size: int) -> bytes:
        try:
            data = os.pread(file.descriptor, size, offset)
            while len(data) < size and (more := os.pread(file.descriptor, size - len(data), offset + len(data))):
                data += more
        except OSError as error:
            raise StorageError(
                f"{self._folder / name}: {size} bytes at offset {offset} cannot be read ({error.strerror or error})."
            ) from error
        return data

    def open_stream(self, name: str) -> "io.BufferedReader[Any]":
        """Open the file, to be closed by the caller."""
        file = io.BufferedReader(io.FileIO(self.path(name)), _STREAM_BUFFER)
        advise(file.fileno(), 0, 0, sequential=True)
        return file


# -- one folder, on a disk or at a URL --------------------------------------------------------------------------------

SCHEMES = ("http", "https", "s3", "s3a", "gs", "gcs", "az", "abfs", "abfss", "hf", "hdfs", "webhdfs", "memory")

_HTTP = ("http", "https")
_GAP = 1 << 16  # bytes fetched in vain to save a request: an item's JSON lies between two images of a group
_MOST_SPAN = 8 << 20
_MOST_TABLE_BYTES = 1 << 29  # of a file that the manifest does not name
_MOST_STATED_BYTES = 1 << 33  # of one that it names: a table is held in memory, and a manifest can say anything
_STREAM_BLOCK = 8 << 20
_UNSAFE_NAME = re.compile(r"[/\\\x00-\x1f\x7f]")


@dataclass(frozen=True, slots=True)
class ReadingPolicy:
    """Default options for reading files at URLs in this context.

    Attributes:
        verify_reads: hold images to the index's SHA-256; None: those at URLs.
        allow_redirects_to: hosts that http(s) may lead to beside the one that was named.
        allow_private: hosts with a public name that may have a private address.
    """

    verify_reads: bool | None = None
    allow_redirects_to: tuple[str, ...] = ()
    allow_private: tuple[str, ...] = ()


READING: ContextVar[ReadingPolicy] = ContextVar("READING", default=ReadingPolicy())  # noqa: B039  # it is immutable


class ShardStorage:
    """One folder of files, on a disk or at a URL.

    Can be pickled, and used after a fork: every process opens its own files and connections. Names of files never lead
    out of the folder, links included.

    Args:
        root: a folder, or a URL of one of the schemes in :data:`SCHEMES`.
        options: for http(s) those of :class:`hgld.data.http_files.HttpRanges`; else what fsspec takes for that scheme:
            credentials, endpoints.

    Raises:
        ConfigError: another scheme, a chain of them, or options for a folder.
    """

    def __init__(self, root: str | Path, options: Mapping[str, Any] | None = None) -> None:
        text = os.fspath(root)
        scheme = urlsplit(text).scheme if "://" in text else ""
        if "::" in text or (scheme and scheme not in (*SCHEMES, "file")):
            raise ConfigError(
                f"{quoted(without_secrets(text))} cannot be read from; expected a folder, or a URL that begins with "
                f"{', '.join(SCHEMES)}."
            )
        self.is_local = scheme in ("", "file")
        if self.is_local:
            if options:
                raise ConfigError(f"{text}: storage options ({', '.join(options)}) with a folder; only URLs take them.")
            folder = Path(unquote(urlsplit(text).path) if scheme else text).absolute()
            self._files: LocalFiles | RemoteFiles = LocalFiles(folder)
            self.where = str(folder)
        else:
            policy = READING.get()
            hosts = {name: getattr(policy, name) for name in ("allow_redirects_to", "allow_private")}
            self._files = RemoteFiles(text, {**(hosts if scheme in _HTTP else {}), **(options or {})})
            self.where = without_secrets(text)

    def read_file(self, name: str, max_bytes: int) -> bytes:
        """Read a whole file.

        Raises:
            InputError: the file does not exist, or has more than ``max_bytes``.
        """
        data = self._files.read_at(_checked(name), 0, max_bytes + 1)
        if len(data) > max_bytes:
            raise InputError(f"{self.where}/{name}: more than {max_bytes} bytes, the most that this file may have.")
        return data

    def table(self, name: str, stated: FileFacts | None = None) -> Path | bytes:
        """Return a table for its reader: the path of a local file, else its bytes.

        Args:
            name: name of the file.
            stated: its expected size and SHA-256; bytes from a URL must match them.

        Raises:
            InputError: there is no such file, it is another one than stated, or too large to be read from a URL.
        """
        if isinstance(self._files, LocalFiles):
            return self._files.path(_checked(name))
        most = _MOST_TABLE_BYTES if stated is None else stated["bytes"]
        if most > _MOST_STATED_BYTES:
            raise InputError(
                f"{self.where}/{name}: {most} bytes, as {MANIFEST} says; a table at a URL may have "
                f"{_MOST_STATED_BYTES}. Copy the dataset to a disk."
            )
        data = self.read_file(name, most)
        if stated is not None and hashlib.sha256(data).hexdigest() != stated["sha256"]:
            raise InputError(
                f"{self.where}/{name}: {len(data)} bytes with another SHA-256 than {MANIFEST} says: changed later, or "
                "damaged on the way. Upload the dataset again, or run hgld index --force where it lies."
            )
        return data

    def read_at(self, name: str, offset: int, size: int) -> bytes:
        """Read a range of a file.

        Raises:
            InputError: the file does not exist, or ends before the range.
            ServiceError: the server kept failing.
            StorageError: the disk failed.
        """
        data = self._files.read_at(_checked(name), offset, size)
        if len(data) != size:
            raise self._cut_off(name, offset, size, len(data))
        return data

    def read_many(self, requests: Sequence[tuple[str, int, int]]) -> list[bytes]:
        """Read ranges (name, offset, size) of any files, in the order given.

        A disk is told of all of them before the first is waited for; from a server they come at the same time, and
        neighbours in one request.

        Raises:
            InputError, ServiceError, StorageError: as :meth:`read_at`, for the first range that cannot be read.
        """
        for name in {name for name, _, _ in requests}:
            _checked(name)
        result = self._files.read_many(requests)
        for (name, offset, size), data in zip(requests, result, strict=True):
            if len(data) != size:
                raise self._cut_off(name, offset, size, len(data))
        return result

    def open_stream(self, name: str) -> "io.BufferedReader[Any]":
        """Open a file to be read from front to end; cut connections are opened again where they broke.

        Raises:
            InputError: there is no such file.
        """
        return self._files.open_stream(_checked(name))

    def exists(self, name: str) -> bool:
        """Tell whether there is a file of that name."""
        return self._files.exists(_checked(name))

    def _cut_off(self, name: str, offset: int, size: int, found: int) -> InputError:
        return InputError(
            f"{self.where}/{name}: {found} bytes at offset {offset}; expected {size}. The file is cut off, or the "
            "index belongs to other shards: hgld verify tells which."
        )

    def __repr__(self) -> str:
        return f"ShardStorage({quoted(self.where)})"


def _checked(name: str) -> str:
    if not name or name in (".", "..") or _UNSAFE_NAME.search(name):
        raise InputError(f"{quoted(name)} is not the name of a file in a dataset; expected one without / and \\.")
    return name


class RemoteFiles:
    """Files below a URL: http(s) by :class:`hgld.data.http_files.HttpRanges`, the other schemes by fsspec.

    Args:
        root: the URL; a query, as signed URLs have it, is kept behind every file's name.
        options: options of the file system.
    """

    def __init__(self, root: str, options: Mapping[str, Any]) -> None:
        self._root, self._options = root, dict(options)
        self._parts = urlsplit(root)
        self._process, self._ranges = -1, None

    def __getstate__(self) -> tuple[str, dict[str, Any]]:
        return self._root, self._options

    def __setstate__(self, state: tuple[str, dict[str, Any]]) -> None:
        self.__init__(*state)

    def _served(self) -> "HttpRanges | FsspecRanges":
        """Return this process's own connections: they do not survive a fork."""
        if self._ranges is None or self._process != os.getpid():
            if self._parts.scheme in _HTTP:
                from hgld.data.http_files import HttpRanges

                self._ranges = HttpRanges(self._root, self._options)
            else:
                from hgld.data.fsspec_files import FsspecRanges

                self._ranges = FsspecRanges(self._root, self._options)
            self._process = os.getpid()
        return self._ranges

    def _url(self, name: str) -> str:
        if self._parts.scheme not in _HTTP:
            return f"{self._root.rstrip('/')}/{name}"
        path = f"{self._parts.path.rstrip('/')}/{quote(name)}"
        return urlunsplit((self._parts.scheme, self._parts.netloc, path, self._parts.query, ""))

    def exists(self, name: str) -> bool:
        found = self._ask([(name, 0, 1)])[0]
        if isinstance(found, bytes):  # none of an empty file
            return True
        if found.missing:
            return False
        raise self._refusal(name, found)

    def read_at(self, name: str, offset: int, size: int) -> bytes:
        """Read ``size`` bytes from ``offset``, fewer where the file ends."""
        span = (name, offset, offset + size)
        return self._accept(span, self._ask([span])[0])

    def read_many(self, requests: Sequence[tuple[str, int, int]]) -> list[bytes]:
        """Read ranges (name, offset, size), each shorter where its file ends."""
        from fsspec.utils import merge_offset_ranges

        columns: Any = (
            [name for name, _, _ in requests],
            [at for _, at, _ in requests],
            [at + n for _, at, n in requests],
        )
        merged: Any = merge_offset_ranges(*columns, max_gap=_GAP, max_block=_MOST_SPAN)
        spans = list(zip(*merged, strict=True))
        data = {span: self._accept(span, answer) for span, answer in zip(spans, self._ask(spans), strict=True)}
        begins = [(name, start) for name, start, _ in spans]
        result = []
        for name, offset, size in requests:
            span = spans[bisect_right(begins, (name, offset)) - 1]
            result.append(data[span][offset - span[1] : offset - span[1] + size])
        return result

    def open_stream(self, name: str) -> "io.BufferedReader[Any]":
        """Open the file, to be closed by the caller."""
        self.read_at(name, 0, 1)  # a missing file is told at once
        return io.BufferedReader(_RemoteStream(self, name), _STREAM_BLOCK)

    def _ask(self, spans: Sequence[tuple[str, int, int]]) -> "list[bytes | RemoteFault]":
        """Return the bytes or the error of every span; temporary failures are retried with growing pauses.

        What came of a span before its connection broke is kept, and only the rest is asked for again.
        """
        served = self._served()  # first: it names the extra where this lacks it
        from hgld.data.http_files import Deadline, RemoteFault, retry

        came = [b""] * len(spans)
        answers: list[bytes | RemoteFault] = list(came)
        pending, deadline = list(range(len(spans))), Deadline(served.limits)

        def ask_pending() -> None:
            asked = [(self._url(spans[i][0]), spans[i][1] + len(came[i]), spans[i][2]) for i in pending]
            progress = False
            for i, answer in zip(pending, served.fetch(asked, deadline), strict=True):
                data = answer if isinstance(answer, bytes) else answer.received
                progress |= not isinstance(answer, bytes) and bool(data)
                came[i] += data
                answers[i] = came[i] if isinstance(answer, bytes) else answer
            faults = {i: fault for i in pending if isinstance(fault := answers[i], RemoteFault) and fault.passing}
            pending[:] = faults
            if faults:
                worst = max(faults.values(), key=lambda fault: fault.wait)
                raise RemoteFault(str(worst), passing=True, wait=worst.wait, progress=progress)

        def give_up_in_time(seconds: float, fault: RemoteFault) -> None:
            if deadline.left() <= seconds:
                raise fault

        if spans:
            with suppress(RemoteFault):
                retry(ask_pending, attempts=served.limits.attempts, before_wait=give_up_in_time)
        return answers

    def _accept(self, span: tuple[str, int, int], answer: "bytes | RemoteFault") -> bytes:
        """Return the bytes of an answer, or raise its error for people."""
        if isinstance(answer, bytes):
            return answer
        raise self._refusal(span[0], answer) from None  # its text may hold what the error's hides

    def _where(self, name: str) -> str:
        return without_secrets(self._url(name))

    def _refusal(self, name: str, fault: "RemoteFault") -> InputError | ServiceError:
        where = self._where(name)
        if fault.missing:
            return InputError(f"{where}: no such file. Check the URL, or upload the dataset again.")
        said = str(fault)
        for secret in (self._parts.query, self._parts.netloc.rpartition("@")[0]):
            said = said.replace(secret, "...") if secret else said
        if fault.wait:
            return ServiceError(f"{where}: {said}; the server asks to be left alone for {fault.wait:,.0f} s.")
        if fault.passing:
            return ServiceError(f"{where}: {said}, asked several times. Try again later.")
        hint = fault.hint or "Check the URL and the credentials (storage options)."
        return ServiceError(f"{where}: {said}. {hint}")


class _RemoteStream(io.RawIOBase):
    """A file read in blocks of one request each."""

    def __init__(self, files: RemoteFiles, name: str) -> None:
        self._files, self._name, self._position = files, name, 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any, /) -> int:
        data = self._files.read_at(self._name, self._position, min(len(buffer), _STREAM_BLOCK))
        self._position += len(data)
        buffer[: len(data)] = data
        return len(data)


# -- lists of shards --------------------------------------------------------------------------------------------------

_MOST_SHARDS = 100_000


@dataclass(frozen=True, slots=True)
class Tar:
    """A shard: the storage of its folder, and its name there."""

    storage: ShardStorage
    name: str

    @property
    def where(self) -> str:
        """Path or URL, for messages."""
        return f"{self.storage.where}/{self.name}"


def is_shard(url: str) -> bool:
    """Tell whether a path or URL is that of a shard, not of a folder of them.

    >>> is_shard("s3://bucket/train-{000000..000012}.tar"), is_shard("https://host/data?key=x.tar")
    (True, False)
    """
    return (urlsplit(url).path if "://" in url else url).endswith(".tar")


def expand_braces(urls: Iterable[str]) -> list[str]:
    """Expand the braces of patterns into URLs, like bash and webdataset.

    Raises:
        ConfigError: braces that do not close, or more than 100,000 shards.

    >>> expand_braces(["train-{000009..000011}.tar", "more.tar"])
    ['train-000009.tar', 'train-000010.tar', 'train-000011.tar', 'more.tar']
    """
    found: list[str] = []
    for url in urls:
        try:
            found += islice(braceexpand(url), _MOST_SHARDS + 1 - len(found))
        except ValueError as error:  # its UnbalancedBracesError
            raise ConfigError(
                f"{quoted(url)}: a brace that does not close; expected train-{{000000..000012}}.tar."
            ) from error
        if len(found) > _MOST_SHARDS:
            raise ConfigError(
                f"{quoted(url)}: more than {_MOST_SHARDS} shards. Give fewer, or a directory with an index."
            )
    return found


def open_tars(urls: Sequence[str], options: Mapping[str, Any] | None) -> list[Tar]:
    """Return the shards at the URLs or paths, in order; none is opened yet.

    Args:
        urls: braces are taken as they are.
        options: options of :class:`hgld.data.storage.ShardStorage`.

    Raises:
        ConfigError: one is not of a shard, or has a scheme that hgld does not read from.
    """
    storages: dict[str, ShardStorage] = {}
    tars = []
    for url in urls:
        if not is_shard(url):
            raise ConfigError(f"{quoted(url)}: expected the path or URL of a shard, which ends in .tar.")
        folder, name = _folder_and_name(url)
        if folder not in storages:
            storages[folder] = ShardStorage(folder, options)
        tars.append(Tar(storages[folder], name))
    return tars


def _folder_and_name(url: str) -> tuple[str, str]:
    """Split a URL into folder and name; a signed URL's query stays with the folder and is appended to every name."""
    if "://" not in url:
        folder, _, name = url.rpartition("/")
        return folder or ("/" if url.startswith("/") else "."), name
    parts = urlsplit(url)
    folder, _, name = parts.path.rpartition("/")
    return urlunsplit((parts.scheme, parts.netloc, folder, parts.query, "")), unquote(name)


def read_manifest(storage: ShardStorage) -> Manifest:
    """Read ``dataset.json``.

    Raises:
        InputError: there is none, or it is damaged.
        SchemaError: it was written under another schema version.
    """
    if not storage.exists(MANIFEST):
        raise InputError(
            f"{storage.where}: no dataset is here, for there is no {MANIFEST}. `hgld build-shards` makes a dataset; "
            "`hgld index` writes the missing files of shards that have lost them."
        )
    return Manifest.from_json(storage.read_file(MANIFEST, MAX_MANIFEST_BYTES), f"{storage.where}/{MANIFEST}")
