"""A file that grows beside its place until it is whole, over as many runs as that takes."""

import hashlib
import json
import os
import re
import shutil
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from urllib.parse import urlsplit

import requests
import urllib3
import urllib3.exceptions
from tenacity import RetryCallState, Retrying, retry_if_exception_type, wait_exponential, wait_random

from hgld import __version__
from hgld.errors import ConfigError, HgldError, ServiceError, StorageError
from hgld.files import file_lock, put_in_place
from hgld.pipelines.shards.sources.gldv2 import (
    BASE_URL,
    MAX_CSV_BYTES,
    MAX_TAR_BYTES,
    checksum_name,
    metadata_names,
    parse_checksum,
    tar_name,
)
from hgld.pipelines.stage import Progress, silent
from hgld.pipelines.web import is_http_address, noting


class PartialFile:
    """``NAME.part``, and in ``NAME.part.json`` the version of the remote file that its bytes belong to.

    Used as a context; meanwhile no other process writes the same file.

    Args:
        final: where the whole file goes.
        url: where its bytes come from; bytes of another address are thrown away.

    Attributes:
        validator: the server's name for the version (an ETag or date); empty where nothing can be resumed.

    Raises:
        StorageError: another process is writing it.
    """

    def __init__(self, final: Path, url: str) -> None:
        self.validator = ""
        self._final, self._url = final, url
        self._path = final.with_name(f"{final.name}.part")
        self._facts = final.with_name(f"{final.name}.part.json")
        self._lock = file_lock(self._path, f"{self._path} is being written by another process; wait for it or stop it.")
        self._handle: FileIO

    def __enter__(self) -> "PartialFile":
        self._handle = self._lock.__enter__()
        self.validator = self._read_validator()
        if not self.validator:
            self.restart("")
        return self

    def __exit__(self, *exception: object) -> None:
        self._lock.__exit__(None, None, None)

    @property
    def size(self) -> int:
        """Bytes that are there."""
        return os.fstat(self._handle.fileno()).st_size

    def restart(self, validator: str) -> None:
        """Throw the bytes away and begin with those of another version."""
        self._handle.truncate(0)
        self.validator = validator
        self._facts.write_text(json.dumps({"url": self._url, "validator": validator}), encoding="utf-8")

    def write(self, data: bytes) -> None:
        """Append."""
        left = memoryview(data)
        while left:
            left = left[self._handle.write(left) :]

    def md5(self) -> str:
        """The MD5 of the bytes that are there, 32 hex digits."""
        with open(self._path, "rb") as file:
            return hashlib.file_digest(file, "md5").hexdigest()

    def finish(self) -> int:
        """Put the whole file in its place; its size in bytes."""
        size = self.size
        put_in_place(self._path, self._final)
        self._facts.unlink(missing_ok=True)
        return size

    def _read_validator(self) -> str:
        """The validator of an earlier run's bytes; empty where it cannot be read or is of another address."""
        try:
            facts = json.loads(self._facts.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return ""
        known = isinstance(facts, dict) and facts.get("url") == self._url
        return str(facts.get("validator", "")) if known else ""


# Large files over HTTP: several at a time, resumed where they broke off, checked against published checksums.
#
# What makes resuming safe is the server's validator (a strong ETag, or Last-Modified): the rest of a file is asked for
# only if the server still has the same version (``If-Range``); otherwise it is fetched anew.

_CHUNK = 1 << 18
_PROGRESS = 1 << 16  # bytes that make an attempt count as one that came further
_SLOWEST = 1 << 10  # bytes a second, over one timeout; a slower transfer is cut and resumed
_LONGEST_WAIT = 300.0
_FETCHES = 2  # times that a file is fetched whole before wrong bytes are the publisher's fault
_REFUSALS = {400, 401, 403, 404, 405, 410, 451}
_CONTENT_RANGE = re.compile(r"bytes (?:(\d{1,18})-\d{1,18}|\*)/(\d{1,18}|\*)\Z")


@dataclass(frozen=True)
class RemoteFile:
    """A file to fetch.

    Attributes:
        url: its http(s) address.
        path: where it goes.
        md5: the published checksum, 32 hex digits; None where there is none.
        most_bytes: a larger file is refused.
    """

    url: str
    path: Path
    md5: str | None = None
    most_bytes: int = 8 << 30


@dataclass(frozen=True)
class Fetched:
    """What became of a file.

    Attributes:
        path: where it lies.
        bytes: its size.
        received: bytes that came over the network in this run.
        outcome: ``fetched``, ``resumed`` (part of it was there) or ``there`` (nothing was to do).
        checked: whether it was compared with a published checksum.
    """

    path: Path
    bytes: int
    received: int
    outcome: str
    checked: bool


class _PassingError(Exception):
    """A transfer failed in a way that may well pass; ``wait`` are the seconds that the server asked for."""

    def __init__(self, message: str, wait: float = 0.0):
        super().__init__(message)
        self.wait = wait


class Downloader:
    """Fetches files, several at a time.

    Args:
        workers: files at a time.
        retries: attempts in a row that bring a file no further before it is given up.
        timeout: seconds to wait for the next bytes.
        progress: told how many files are done, and the MiB that came.
        backoff: seconds of the first wait between attempts; it doubles up to a minute.

    Raises:
        ConfigError: a number that is not positive.
    """

    def __init__(
        self,
        *,
        workers: int = 4,
        retries: int = 8,
        timeout: float = 60.0,
        progress: Progress = silent,
        backoff: float = 1.0,
    ):
        for name, value in {"--workers": workers, "--retries": retries, "--timeout": timeout}.items():
            if value <= 0:
                raise ConfigError(f"{name} is {value}; expected a positive number.")
        self._workers, self._retries, self._timeout = workers, retries, timeout
        self._backoff = wait_exponential(multiplier=backoff, max=60) + wait_random(0, backoff)
        self._progress = progress
        self._lock = threading.Lock()
        self._received = 0
        self._reached: set[str] = set()
        self._stop = threading.Event()
        self._bodies: set[urllib3.BaseHTTPResponse] = set()

    def fetch(self, files: Sequence[RemoteFile]) -> list[Fetched]:
        """Fetch all files; those that are there and right are left as they are.

        A file that cannot be had does not keep the others from being fetched.

        Returns:
            what became of each, in the order given.

        Raises:
            ConfigError: an address is not http(s), or two files go to one place.
            ServiceError: files could not be had; the message names each. What came is kept and gone on with.
            StorageError: the disk is full or cannot be written.
        """
        _check(files)
        self._stop.clear()
        with ThreadPoolExecutor(self._workers) as pool:
            futures = [pool.submit(self._fetch, file) for file in files]
            try:
                results = [self._result(future, number, len(files)) for number, future in enumerate(futures, start=1)]
            except BaseException:
                self._interrupt()
                pool.shutdown(wait=True, cancel_futures=True)
                raise
        failures = [result for result in results if isinstance(result, HgldError)]
        if failures:
            shown = "\n".join(f"  {error}" for error in failures[:10])
            raise ServiceError(
                f"{len(failures)} of {len(files)} files could not be fetched:\n{shown}\nRun the same command again: "
                "what came is kept, and only the rest is asked for."
            ) from failures[0]
        return [result for result in results if isinstance(result, Fetched)]

    def _interrupt(self) -> None:
        """Let no transfer begin another read, and end those that wait for a server that sends nothing."""
        self._stop.set()
        with self._lock:
            for body in self._bodies:
                with suppress(ValueError, RuntimeError, OSError):  # it has come to its end by itself
                    body.shutdown()

    def _result(self, future: Future[Fetched], number: int, total: int) -> Fetched | HgldError:
        """What became of a file; trouble with the disk ends the run, since it would befall the others too."""
        try:
            return future.result()
        except StorageError:
            raise
        except HgldError as error:
            return error
        finally:
            self._progress("files", number, total)

    def _fetch(self, file: RemoteFile) -> Fetched:
        try:
            file.path.parent.mkdir(parents=True, exist_ok=True)
            if (there := _what_is_there(file)) is not None:
                return there
            with PartialFile(file.path, file.url) as part, requests.Session() as session:
                session.max_redirects = 5
                session.headers.update({"User-Agent": f"hgld/{__version__}", "Accept-Encoding": "identity"})
                return self._fill(file, part, session)
        except OSError as error:
            if isinstance(error, HgldError):
                raise
            raise StorageError(
                f"{file.path} cannot be written ({error.strerror or error}). Make room or choose another folder, then "
                "run the same command."
            ) from error

    def _fill(self, file: RemoteFile, part: PartialFile, session: requests.Session) -> Fetched:
        resumed, received, found = part.size, 0, None
        for _ in range(_FETCHES):
            received += self._complete(file, part, session)
            found = None if file.md5 is None else part.md5()
            if found == file.md5:
                outcome = "resumed" if resumed else "fetched"
                return Fetched(file.path, part.finish(), received, outcome, found is not None)
            resumed = 0
            part.restart("")
        raise ServiceError(f"{file.url}: the bytes have the MD5 {found}; published is {file.md5}. They were not kept.")

    def _complete(self, file: RemoteFile, part: PartialFile, session: requests.Session) -> int:
        """Ask until the part is whole; the number of bytes that came."""
        received = idle = 0

        def attempt() -> None:
            nonlocal received, idle
            self._refuse_if_stopped(file)
            idle, came = idle + 1, 0
            for count in self._transfer(session, file, part):
                received, came = received + count, came + count
                self._count(count)
                if came >= _PROGRESS:
                    idle = 0

        def wait(state: RetryCallState) -> float:
            error = state.outcome.exception() if state.outcome else None
            asked = error.wait if isinstance(error, _PassingError) else 0.0
            return max(asked, self._backoff(state) if idle else 0.0)

        retrying = Retrying(
            retry=retry_if_exception_type(_PassingError),
            stop=lambda state: idle >= self._retries,
            wait=wait,
            sleep=self._sleep,
            reraise=True,
        )
        try:
            retrying(attempt)
        except _PassingError as error:
            raise ServiceError(f"{file.url}: {error}; given up after {idle} attempts in a row.") from error
        return received

    def _transfer(self, session: requests.Session, file: RemoteFile, part: PartialFile) -> Iterator[int]:
        """One request for what is missing; the number of bytes of every write."""
        have = part.size if part.validator else 0
        headers = {"Range": f"bytes={have}-", "If-Range": part.validator} if have else {}
        came: list[requests.Response] = []
        try:
            hooks = noting(came)
            with session.get(file.url, headers=headers, stream=True, timeout=self._timeout, hooks=hooks) as response:
                self._reached.add(urlsplit(file.url).netloc)
                if response.status_code == 416 and _stated_range(response) == (None, have):
                    return  # it was whole, and not yet renamed
                total = _begin(response, file, part, have)
                with self._interruptible(response.raw, file):
                    for data in self._chunks(response, file):
                        if part.size + len(data) > min(file.most_bytes, total or file.most_bytes):
                            most = total or file.most_bytes
                            raise ServiceError(f"{file.url}: more bytes than the {most:,} expected.")
                        part.write(data)
                        yield len(data)
        except (ValueError, requests.TooManyRedirects) as error:  # of addresses: requests', urllib3's and idna's own
            for response in came:
                response.close()
            raise ServiceError(f"{file.url} leads to no file ({error}).") from error
        except (requests.RequestException, urllib3.exceptions.HTTPError) as error:
            raise self._broken(file, error) from error
        if total is not None and part.size != total:
            raise _PassingError(f"the transfer ended at {part.size:,} of {total:,} bytes")

    @contextmanager
    def _interruptible(self, body: urllib3.BaseHTTPResponse, file: RemoteFile) -> Iterator[None]:
        with self._lock:
            self._bodies.add(body)
        try:
            self._refuse_if_stopped(file)
            yield
        finally:
            with self._lock:
                self._bodies.remove(body)

    def _chunks(self, response: requests.Response, file: RemoteFile) -> Iterator[bytes]:
        """The body as it comes; read1 returns what one read gave, so that a trickle cannot hide from the clock."""
        began, came = time.monotonic(), 0
        while data := response.raw.read1(_CHUNK, decode_content=False):
            self._refuse_if_stopped(file)
            yield data
            came += len(data)
            if (spent := time.monotonic() - began) > self._timeout:
                if came < _SLOWEST * spent:
                    raise _PassingError(f"slower than {_SLOWEST:,} bytes a second")
                began, came = time.monotonic(), 0

    def _sleep(self, seconds: float) -> None:
        self._stop.wait(seconds)

    def _refuse_if_stopped(self, file: RemoteFile) -> None:
        if self._stop.is_set():
            raise ServiceError(f"{file.url}: stopped; what came is kept.")

    def _broken(self, file: RemoteFile, error: Exception) -> Exception:
        """A cut connection passes; a server that nobody has answered at yet is a wrong address or no network."""
        reason = getattr(error.args[0] if error.args else None, "reason", error)
        if isinstance(reason, urllib3.exceptions.NewConnectionError):
            if urlsplit(file.url).netloc not in self._reached:
                return ServiceError(f"{file.url} cannot be reached ({reason}). Check the address and the network.")
            return _PassingError("the server cannot be reached")
        return _PassingError(f"the transfer broke off ({type(error).__name__})")

    def _count(self, count: int) -> None:
        with self._lock:
            before, self._received = self._received >> 20, self._received + count
            if self._received >> 20 != before:
                self._progress("MiB", self._received >> 20, None)


def _check(files: Sequence[RemoteFile]) -> None:
    for file in files:
        if not is_http_address(file.url):
            raise ConfigError(f"{file.url!r} is no address to fetch from; expected http://... or https://...")
    if len({file.path for file in files}) != len(files):
        raise ConfigError("two of the files to fetch go to the same place; name each of them once.")


def _what_is_there(file: RemoteFile) -> Fetched | None:
    """The file if it was fetched before; one that has not the published checksum is removed."""
    if not file.path.is_file():
        return None
    if file.md5 is not None:
        with open(file.path, "rb") as handle:
            found = hashlib.file_digest(handle, "md5").hexdigest()
        if found != file.md5:
            file.path.unlink()
            return None
    return Fetched(file.path, file.path.stat().st_size, 0, "there", file.md5 is not None)


def _begin(response: requests.Response, file: RemoteFile, part: PartialFile, have: int) -> int | None:
    """Make the part ready for the bytes of this answer; the size of the whole file, None where it is not told."""
    status, length = response.status_code, response.headers.get("Content-Length", "")
    if status == 416 and have:
        part.restart("")
        raise _PassingError("the server's file is shorter than what was kept; begun anew")
    if status in _REFUSALS or 300 <= status < 400:
        raise ServiceError(f"{file.url} answered HTTP {status}; expected a file that everybody may read.")
    if status not in {200, 206}:
        raise _PassingError(f"HTTP {status}", _retry_after(response))
    if response.headers.get("Content-Encoding", "identity") != "identity":
        raise ServiceError(f"{file.url} came compressed though it was asked not to; its bytes cannot be checked.")
    rest = int(length) if re.fullmatch(r"[0-9]{1,18}", length) else None
    if status == 206:
        total = _resume(response, part, have)
    else:
        total = rest
        part.restart(_validator(response))
    if total is None and file.md5 is None and response.headers.get("Transfer-Encoding") != "chunked":
        raise ServiceError(f"{file.url} came without its length and has no checksum; nobody could tell it is whole.")
    if (total or 0) > file.most_bytes:
        raise ServiceError(f"{file.url} has {total:,} bytes; expected at most {file.most_bytes:,}.")
    free = shutil.disk_usage(file.path.parent).free
    if (rest or 0) > free:
        raise StorageError(f"{file.path} needs {rest:,} more bytes; {free:,} are free. Make room, then go on.")
    return total


def _resume(response: requests.Response, part: PartialFile, have: int) -> int | None:
    """The whole size that a partial answer states; an answer with other bytes than asked for is not taken."""
    stated = _stated_range(response)
    if stated is None or stated[0] != have or _validator(response) not in ("", part.validator):
        part.restart("")
        raise _PassingError(f"the server answered with other bytes than those from {have:,}; begun anew")
    return stated[1]


def _stated_range(response: requests.Response) -> tuple[int | None, int | None] | None:
    """First byte and whole size of a Content-Range, each None where it says ``*``."""
    match = _CONTENT_RANGE.match(response.headers.get("Content-Range", ""))
    if match is None:
        return None
    return (None if match[1] is None else int(match[1])), (None if match[2] == "*" else int(match[2]))


def _validator(response: requests.Response) -> str:
    """What tells this version of the file from another; weak ETags do not (RFC 9110, 13.1.5)."""
    etag = response.headers.get("ETag", "")
    return etag if etag.startswith('"') else response.headers.get("Last-Modified", "")


def _retry_after(response: requests.Response) -> float:
    value = response.headers.get("Retry-After", "")
    return min(float(value), _LONGEST_WAIT) if re.fullmatch(r"[0-9]{1,9}", value) else 0.0


# Fetching GLDv2 from its owners: tars with their published checksums, and the lists.

_MAX_CHECKSUM_BYTES = 1 << 10


def download_gldv2(
    out: Path,
    split: str,
    tars: Sequence[int],
    *,
    metadata: bool,
    downloader: Downloader,
    base_url: str = BASE_URL,
) -> list[Fetched]:
    """Fetch tars of a split, and its lists, into a folder that ``hgld build-shards gldv2`` reads.

    Args:
        out: the folder; files get the relative paths of :mod:`hgld.pipelines.shards.sources.gldv2`.
        split: ``train``, ``index`` or ``test``.
        tars: their numbers.
        metadata: whether to fetch the split's CSVs too.
        downloader: fetches the files.
        base_url: the owners' address, or a mirror's.

    Returns:
        what became of every CSV and tar.

    Raises:
        ConfigError: a tar that the split does not have.
        InputError: a published checksum cannot be read.
        ServiceError: a file could not be had, or came with other bytes than published.
        StorageError: the disk is full or cannot be written.
    """

    def remote(name: str, most_bytes: int, md5: str | None = None) -> RemoteFile:
        return RemoteFile(f"{base_url.rstrip('/')}/{name}", out / name, md5, most_bytes)

    names = {tar_name(split, number): checksum_name(split, number) for number in sorted(set(tars))}
    small = [remote(name, MAX_CSV_BYTES) for name in (metadata_names([split]) if metadata else ())]
    sums = [remote(name, _MAX_CHECKSUM_BYTES) for name in names.values()]
    fetched = downloader.fetch([*small, *sums])[: len(small)]
    published = {
        tar: parse_checksum(
            (out / name).read_text(encoding="utf-8", errors="replace"), tar.rpartition("/")[2], str(out / name)
        )
        for tar, name in names.items()
    }
    return fetched + downloader.fetch([remote(tar, MAX_TAR_BYTES, md5) for tar, md5 in published.items()])
