"""Files below a URL: http(s) through :mod:`hgld.data.http_files`, other schemes through fsspec, with retries."""

import io
import os
import threading
from bisect import bisect_right
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import quote, urlsplit, urlunsplit

import fsspec
from fsspec.asyn import AsyncFileSystem, sync
from fsspec.utils import merge_offset_ranges

from hgld.addresses import HTTP, without_secrets
from hgld.data.http_files import MISSING, PASSING, TOGETHER, Deadline, HttpLimits, HttpRanges, RemoteFault, Spans, retry
from hgld.errors import InputError, MissingResourceError, ServiceError, excerpt

# maximum gap in bytes that is read to save a request: between neighbouring images there is an item's JSON
_GAP = 1 << 16
_MOST_SPAN = 8 << 20
_STREAM_BLOCK = 8 << 20
_FINAL = (FileNotFoundError, PermissionError, IsADirectoryError, NotADirectoryError)


class RemoteFiles:
    """Files below a URL, read by name.

    Args:
        root: the URL; its query, as in signed URLs, is appended to the URL of every file.
        options: options of the file system.
    """

    def __init__(self, root: str, options: Mapping[str, Any]) -> None:
        self._root, self._options = root, dict(options)
        self._parts = urlsplit(root)
        self._process, self._ranges = -1, None
        self._requests = self._retries = 0

    def __reduce__(self) -> tuple[type["RemoteFiles"], tuple[str, dict[str, Any]]]:
        return RemoteFiles, (self._root, self._options)

    def _served(self) -> "HttpRanges | FsspecRanges":
        """Return this process's own connections, because connections do not survive a fork."""
        if self._ranges is None or self._process != os.getpid():
            kind = HttpRanges if self._parts.scheme in HTTP else FsspecRanges
            self._ranges, self._process = kind(self._root, self._options), os.getpid()
            self._workers = ThreadPoolExecutor(TOGETHER, "hgld http")
        return self._ranges

    def _url(self, name: str) -> str:
        if self._parts.scheme not in HTTP:
            return f"{self._root.rstrip('/')}/{name}"
        path = f"{self._parts.path.rstrip('/')}/{quote(name)}"
        return urlunsplit((self._parts.scheme, self._parts.netloc, path, self._parts.query, ""))

    def exists(self, name: str) -> bool:
        (answer,) = self._ask([(name, 0, 1)])
        if isinstance(answer, RemoteFault) and not answer.missing:
            raise self._refusal(name, answer)
        return isinstance(answer, bytes)

    def read_many(self, ranges: Spans) -> list[bytes]:
        """Read ranges, adjacent ranges in one request; a range beyond the end of its file gives fewer bytes."""
        columns: Any = ([n for n, _, _ in ranges], [at for _, at, _ in ranges], [at + size for _, at, size in ranges])
        merged: Any = merge_offset_ranges(*columns, max_gap=_GAP, max_block=_MOST_SPAN)
        spans = list(zip(*merged, strict=True))
        answers = self._ask(spans)
        for (name, _, _), answer in zip(spans, answers, strict=True):
            if isinstance(answer, RemoteFault):
                raise self._refusal(name, answer) from None  # hide the cause: its text may hold secrets
        begins = [(name, start) for name, start, _ in spans]
        result = []
        for name, offset, size in ranges:
            number = bisect_right(begins, (name, offset)) - 1
            at = offset - begins[number][1]
            result.append(answers[number][at : at + size])
        return result

    def open_stream(self, name: str) -> "io.BufferedReader[Any]":
        """Open the file; the caller closes it."""
        self.read_many([(name, 0, 1)])  # raise the error for a missing file now
        return io.BufferedReader(_RemoteStream(self, name), _STREAM_BLOCK)

    def _ask(self, spans: Spans) -> list[Any]:
        """Return the bytes or the RemoteFault of every span (name, start, stop), with growing pauses between retries.

        If a connection breaks, the received bytes are kept, and the next request asks for the missing bytes.
        """
        served = self._served()
        deadline, failed = Deadline(served.limits), threading.Event()
        self._requests += len(spans)

        def give_up_in_time(seconds: float, fault: RemoteFault) -> None:
            if failed.is_set() or deadline.left() <= seconds:  # if one span fails, the whole reading fails
                raise fault
            self._retries += 1
            if self._retries > served.limits.retries + self._requests // 10:
                said = f"{fault}, after {self._retries:,} retries of {self._requests:,} requests"
                raise RemoteFault(said, hint="Try again later, or copy the dataset to a disk.")

        def read(span: tuple[str, int, int]) -> bytes | RemoteFault:
            name, start, stop = span
            came = bytearray()

            def attempt() -> bytes:
                if start + len(came) == stop:
                    return bytes(came)
                try:
                    rest = served.get(self._url(name), start + len(came), stop, deadline)
                    return bytes(came) + rest if came else rest
                except RemoteFault as fault:
                    came.extend(fault.received)
                    fault.progress = bool(fault.received)
                    raise

            try:
                return retry(attempt, attempts=served.limits.attempts, before_wait=give_up_in_time)
            except RemoteFault as fault:
                failed.set()
                return fault

        if len(spans) == 1:
            return [read(spans[0])]
        try:
            return list(self._workers.map(read, spans))
        except BaseException:  # after Ctrl-C too, nobody waits for these requests any more
            served.interrupt()
            raise

    def _refusal(self, name: str, fault: RemoteFault) -> InputError | ServiceError:
        """Return the error that users see, without the URL's secrets."""
        where = without_secrets(self._url(name))
        if fault.missing:
            return InputError(f"{where}: no such file. Check the URL, or upload the dataset again.")
        said = str(fault)
        for secret in (self._parts.query, self._parts.netloc.rpartition("@")[0]):
            said = said.replace(secret, "...") if secret else said
        if fault.wait:
            return ServiceError(f"{where}: {said}; the server asks for a pause of {fault.wait:,.0f} s.")
        if fault.passing:
            return ServiceError(f"{where}: {said}, after several attempts. Try again later.")
        return ServiceError(f"{where}: {said}. {fault.hint or 'Check the URL and the credentials (storage options).'}")


class _RemoteStream(io.RawIOBase):
    """A file read in blocks of one request each."""

    def __init__(self, files: RemoteFiles, name: str) -> None:
        self._files, self._name, self._position = files, name, 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any, /) -> int:
        (data,) = self._files.read_many([(self._name, self._position, min(len(buffer), _STREAM_BLOCK))])
        self._position += len(data)
        buffer[: len(data)] = data
        return len(data)


class FsspecRanges:
    """Reader of byte ranges from one fsspec file system, with the time limits of http(s).

    fsspec receives a whole response before it returns it, so hgld can check sizes only afterwards. Until then only the
    service and fsspec's client for it limit the memory.

    Args:
        root: URL of a folder in the file system.
        options: fsspec's options for the URL's scheme.

    Raises:
        MissingResourceError: the package for that scheme is not installed.
    """

    def __init__(self, root: str, options: Mapping[str, Any]) -> None:
        self.limits = HttpLimits()
        try:
            self._system = fsspec.filesystem(root.partition("://")[0], **options)
        except ImportError as error:
            raise MissingResourceError(f"{without_secrets(root)}: {error}.") from error

    def get(self, url: str, start: int, stop: int, deadline: Deadline) -> bytes:
        """Return a range of bytes of a file; fewer bytes if the file ends earlier.

        Raises:
            RemoteFault: the service reports an error, or sends more bytes than requested.
        """
        bounds = {"start": start, "end": stop}
        try:
            if isinstance(self._system, AsyncFileSystem):
                seconds = max(deadline.left(), 0.1)  # for fsspec, 0 means no limit
                data: Any = sync(self._system.loop, self._system._cat_file, url, timeout=seconds, **bounds)
            else:
                data = self._system.cat_file(url, **bounds)
        except Exception as error:  # the package of each URL scheme raises its own errors
            raise _fault_of(error) from error
        if len(data) > stop - start:
            raise RemoteFault(
                f"the service sent {len(data)} bytes instead of the {stop - start} requested: it ignores HTTP Range",
                hint="Use a service that supports HTTP Range, or copy the dataset to a disk.",
            )
        return data

    def interrupt(self) -> None:
        """Do nothing: fsspec's requests end by themselves."""


def _fault_of(error: Exception) -> RemoteFault:
    status = getattr(error, "status", None)
    missing = isinstance(error, FileNotFoundError) or status in MISSING
    if isinstance(status, int) and status:
        is_passing = status in PASSING or status >= 500
        return RemoteFault(f"status {status}", passing=is_passing, missing=missing)
    is_connection = isinstance(error, OSError) or type(error).__module__.startswith("aiohttp")
    said = f"{type(error).__name__}: {excerpt(error)}"
    return RemoteFault(said, passing=is_connection and not isinstance(error, _FINAL), missing=missing)
