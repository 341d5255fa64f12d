"""Reading of a dataset's files, on a disk or at a URL: whole files, ranges and streams, for any number of threads."""

import hashlib
import io
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit, urlunsplit

from braceexpand import braceexpand

from hgld.addresses import HTTP, without_secrets
from hgld.data.format import MANIFEST, MAX_MANIFEST_BYTES, FileFacts, Manifest
from hgld.errors import ConfigError, InputError, StorageError, quoted
from hgld.memory import VARIABLE, memory_limit

if TYPE_CHECKING:
    from hgld.data.remote_files import RemoteFiles

Ranges = Sequence[tuple[str, int, int]]  # name of a file, offset, size

MOST_OPEN_FILES = 128  # far fewer than the 1,024 files that a process may usually open
_STREAM_BUFFER = 1 << 20


def advise(descriptor: int, offset: int, size: int, *, sequential: bool = False) -> None:
    """Tell the system which bytes of a file will be read; does nothing on systems without this call (macOS).

    Args:
        descriptor: descriptor of the open file.
        offset: first byte.
        size: number of bytes; 0: to the end of the file.
        sequential: whether the file is read from front to back. False: only this range will be read, and soon.
    """
    if hasattr(os, "posix_fadvise"):
        os.posix_fadvise(descriptor, offset, size, os.POSIX_FADV_SEQUENTIAL if sequential else os.POSIX_FADV_WILLNEED)


class _OpenFile:
    """A file descriptor that closes when its last user releases it: a thread may drop it while another thread reads."""

    __slots__ = ("descriptor",)
    _close = staticmethod(os.close)  # the interpreter may have deleted the module os when the last file closes at exit

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


def _open_in(folder: Path, name: str) -> _OpenFile:
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
        self._file = lru_cache(MOST_OPEN_FILES)(partial(_open_in, folder))

    def __reduce__(self) -> tuple[type["LocalFiles"], tuple[Path]]:
        return LocalFiles, (self._folder,)

    def path(self, name: str) -> Path:
        """Return the path of a file that exists.

        Raises:
            InputError: the file does not exist, or it is a link that leads out of the folder.
        """
        return _path_in(self._folder, name)

    def exists(self, name: str) -> bool:
        return (self._folder / name).is_file()

    def read_many(self, ranges: Ranges) -> list[bytes]:
        """Read ranges. A range that extends beyond the end of its file gives fewer bytes.

        The system is told of all ranges before the first one is read, which makes a cold disk three times as fast.
        """
        files = {name: self._file(name) for name in {name for name, _, _ in ranges}}
        for name, offset, size in ranges:
            advise(files[name].descriptor, offset, size)
        return [self._read(files[name].descriptor, name, offset, size) for name, offset, size in ranges]

    def _read(self, descriptor: int, name: str, offset: int, size: int) -> bytes:
        try:
            data = os.pread(descriptor, size, offset)
            while len(data) < size and (more := os.pread(descriptor, size - len(data), offset + len(data))):
                data += more
        except OSError as error:
            raise StorageError(
                f"{self._folder / name}: {size} bytes at offset {offset} cannot be read ({error.strerror or error})."
            ) from error
        return data

    def open_stream(self, name: str) -> "io.BufferedReader[Any]":
        """Open the file; the caller closes it."""
        file = io.BufferedReader(io.FileIO(self.path(name)), _STREAM_BUFFER)
        advise(file.fileno(), 0, 0, sequential=True)
        return file


# -- one folder, on a disk or at a URL --------------------------------------------------------------------------------

SCHEMES = (*HTTP, "s3", "s3a", "gs", "gcs", "az", "abfs", "abfss", "hf", "hdfs", "webhdfs", "memory")

_UNSAFE_NAME = re.compile(r"[/\\\x00-\x1f\x7f]")


@dataclass(frozen=True, slots=True)
class ReadingPolicy:
    """Default options for reading files at URLs in this context.

    Attributes:
        verify_reads: whether to check images against the SHA-256 in the index; None: only images at URLs.
        allow_redirects_to: further hosts that an http(s) URL may redirect to.
        allow_private: hosts whose public name may resolve to a private IP address.
        cache: folder that keeps images from URLs; None: no cache.
        cache_size: maximum size of the cache, GB.
    """

    verify_reads: bool | None = None
    cache: Path | None = None
    cache_size: float = 100.0
    allow_redirects_to: tuple[str, ...] = ()
    allow_private: tuple[str, ...] = ()


# the default cannot be changed
READING: ContextVar[ReadingPolicy] = ContextVar("READING", default=ReadingPolicy())  # noqa: B039


class ShardStorage:
    """One folder of files, on a disk or at a URL.

    A storage can be pickled, and used after a fork: every process opens its own files and connections. A name or link
    that leads out of the folder raises an error.

    Args:
        root: a folder, or a URL of one of the schemes in :data:`SCHEMES`.
        options: options for a URL. http(s): options of :class:`hgld.data.http_files.HttpRanges`. Other schemes: options
            of fsspec, such as credentials and endpoints.

    Raises:
        ConfigError: the scheme is unknown or a chain of schemes, or options are given for a folder.
    """

    def __init__(self, root: str | Path, options: Mapping[str, Any] | None = None) -> None:
        text = os.fspath(root)
        scheme = urlsplit(text).scheme if "://" in text else ""
        if "::" in text or (scheme and scheme not in (*SCHEMES, "file")):
            raise ConfigError(
                f"{quoted(without_secrets(text))} cannot be read; expected a folder, or a URL that begins with "
                f"{', '.join(SCHEMES)}."
            )
        self.is_local = scheme in ("", "file")
        if self.is_local:
            if options:
                raise ConfigError(
                    f"{text} is a folder, so the storage options {', '.join(options)} have no effect. Omit them."
                )
            folder = Path(unquote(urlsplit(text).path) if scheme else text).absolute()
            self._files: LocalFiles | RemoteFiles = LocalFiles(folder)
            self.where = str(folder)
        else:
            from hgld.data import remote_files  # imported here, because its packages take 0.15 s to import

            policy = READING.get()
            hosts = {name: getattr(policy, name) for name in ("allow_redirects_to", "allow_private")}
            self._files = remote_files.RemoteFiles(text, {**(hosts if scheme in HTTP else {}), **(options or {})})
            self.where = without_secrets(text)

    def read_file(self, name: str, max_bytes: int) -> bytes:
        """Read a whole file.

        Raises:
            InputError: the file does not exist, or has more than ``max_bytes``.
        """
        (data,) = self._files.read_many([(_checked(name), 0, max_bytes + 1)])
        if len(data) > max_bytes:
            raise InputError(f"{self.where}/{name}: more than {max_bytes} bytes; expected at most that.")
        return data

    def table(self, name: str, stated: FileFacts | None = None) -> Path | bytes:
        """Return a table for its reader: the path of a local file, else its bytes.

        Args:
            name: name of the file.
            stated: expected size and SHA-256; bytes from a URL must match them.

        Raises:
            InputError: the file does not exist, differs from ``stated``, or is too large to be read from a URL.
        """
        if isinstance(self._files, LocalFiles):
            return self._files.path(_checked(name))
        limit = memory_limit()
        most = limit if stated is None else stated["bytes"]
        if most > limit:
            raise InputError(
                f"{self.where}/{name}: {most:,} bytes according to {MANIFEST}; a table at a URL may have at most "
                f"{limit:,}. Set {VARIABLE} to a larger amount, or copy the dataset to a disk."
            )
        data = self.read_file(name, most)
        if stated is not None and hashlib.sha256(data).hexdigest() != stated["sha256"]:
            raise InputError(
                f"{self.where}/{name}: the SHA-256 of its {len(data)} bytes is not the one in {MANIFEST}: the file "
                "changed later, or was damaged in transfer. Upload the dataset again, or run hgld index --force at "
                "its origin."
            )
        return data

    def read_at(self, name: str, offset: int, size: int) -> bytes:
        """Read a range of a file; raises the same errors as :meth:`read_many`."""
        return self.read_many([(name, offset, size)])[0]

    def read_many(self, ranges: Ranges) -> list[bytes]:
        """Read ranges (name, offset, size) of any files, in the given order.

        The system is told of all ranges on a disk before the first one is read. A server gets one request for adjacent
        ranges, and several requests at a time.

        Raises:
            InputError: a file does not exist, or ends before its range.
            ServiceError: the server kept failing.
            StorageError: the disk failed.
        """
        for name in {name for name, _, _ in ranges}:
            _checked(name)
        result = self._files.read_many(ranges)
        for (name, offset, size), data in zip(ranges, result, strict=True):
            if len(data) != size:
                raise InputError(
                    f"{self.where}/{name}: only {len(data)} bytes could be read at offset {offset}; expected {size}. "
                    "The file is truncated, "
                    "or the index belongs to other shards: hgld verify tells which."
                )
        return result

    def open_stream(self, name: str) -> "io.BufferedReader[Any]":
        """Open a file for reading from front to end; reading resumes after a cut connection.

        Raises:
            InputError: the file does not exist.
        """
        return self._files.open_stream(_checked(name))

    def exists(self, name: str) -> bool:
        """Tell whether a file of that name exists."""
        return self._files.exists(_checked(name))

    def __repr__(self) -> str:
        return f"ShardStorage({quoted(self.where)})"


def _checked(name: str) -> str:
    if not name or name in (".", "..") or _UNSAFE_NAME.search(name):
        raise InputError(f"{quoted(name)} is not the name of a file in a dataset; expected one without / and \\.")
    return name


# -- lists of shards --------------------------------------------------------------------------------------------------

_MOST_SHARDS = 100_000
_RANGE = re.compile(r"\{(-?[0-9]{1,100})\.\.(-?[0-9]{1,100})[.}]")


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
    """Tell whether a path or URL names a shard, not a folder of shards.

    >>> is_shard("s3://bucket/train-{000000..000012}.tar"), is_shard("https://host/data?key=x.tar")
    (True, False)
    """
    return (urlsplit(url).path if "://" in url else url).endswith(".tar")


def expand_braces(urls: Iterable[str]) -> list[str]:
    """Expand the braces of patterns into URLs, like bash and webdataset.

    Raises:
        ConfigError: a brace is not closed, or there are more than 100,000 shards.

    >>> expand_braces(["train-{000009..000011}.tar", "more.tar"])
    ['train-000009.tar', 'train-000010.tar', 'train-000011.tar', 'more.tar']
    """
    found: list[str] = []
    for url in urls:
        # Count before braceexpand makes a list of every range.
        if any(abs(int(last) - int(first)) >= _MOST_SHARDS for first, last in _RANGE.findall(url)):
            raise _too_many(url)
        try:
            found += islice(braceexpand(url), _MOST_SHARDS + 1 - len(found))
        except ValueError as error:  # braceexpand raises UnbalancedBracesError, which is a ValueError
            raise ConfigError(
                f"{quoted(url)}: a brace is not closed; expected train-{{000000..000012}}.tar."
            ) from error
        if len(found) > _MOST_SHARDS:
            raise _too_many(url)
    return found


def _too_many(url: str) -> ConfigError:
    return ConfigError(f"{quoted(url)}: more than {_MOST_SHARDS} shards. Give fewer, or a directory with an index.")


def open_tars(urls: Sequence[str], options: Mapping[str, Any] | None) -> list[Tar]:
    """Return the shards at the URLs or paths, in order, without opening them.

    Args:
        urls: URLs or paths of shards; braces are plain characters.
        options: options of :class:`hgld.data.storage.ShardStorage`.

    Raises:
        ConfigError: a URL is not the path of a shard, or hgld cannot read its scheme.
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
        InputError: the file is missing or damaged.
        SchemaError: the file has another schema version.
    """
    if not storage.exists(MANIFEST):
        raise InputError(
            f"{storage.where}: found no {MANIFEST}, so this is not a dataset. `hgld build-shards` makes a dataset; "
            "`hgld index` writes missing files from the shards."
        )
    return Manifest.from_json(storage.read_file(MANIFEST, MAX_MANIFEST_BYTES), f"{storage.where}/{MANIFEST}")
