"""Download large files over HTTP: several at a time, resumed after interruptions, checked against checksums.

Resuming is safe because of the server's validator (a strong ETag, or Last-Modified): the rest of a file is requested
only if the server still has the same version (``If-Range``); otherwise the file is fetched anew.
"""

import hashlib
import json
import os
import re
import shutil
import threading
from collections.abc import Collection, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from urllib.parse import urlsplit

import urllib3

from hgld.addresses import is_http_address, without_secrets
from hgld.data.http_files import HttpClient, HttpLimits, RemoteFault, fault_of_status, retry
from hgld.errors import ConfigError, HgldError, ServiceError, StorageError, quoted
from hgld.files import file_lock, put_in_place, read_json

from .shards.sources.gldv2 import (
    BASE_URL,
    MAX_CSV_BYTES,
    MAX_TAR_BYTES,
    checksum_name,
    metadata_names,
    parse_checksum,
    tar_name,
)
from .stage import Progress, silent


class PartialFile:
    """A partial download ``NAME.part``, with the version of the remote file in ``NAME.part.json``.

    It grows over as many runs as needed. Used as a context, in which no other process writes the same file.

    Args:
        final: path of the complete file.
        url: address of the bytes; bytes of another address are thrown away.

    Attributes:
        validator: the server's name for the version (an ETag or date); empty where nothing can be resumed.

    Raises:
        StorageError: another process is writing it.
    """

    def __init__(self, final: Path, url: str) -> None:
        self.validator = ""
        shown = without_secrets(url)
        self._final = final
        self._url = url if url == shown else f"{shown} {hashlib.sha256(url.encode()).hexdigest()}"  # what may hold keys
        self._path = final.with_name(f"{final.name}.part")
        self._facts = _facts_of(final)
        self._lock = file_lock(self._path, f"{self._path} is being written by another process; wait for it or stop it.")
        self._handle: FileIO

    def __enter__(self) -> "PartialFile":
        self._handle = self._lock.__enter__()
        try:
            self.validator = self._read_validator()
            if not self.validator:
                self.restart("")
        except BaseException:
            self._lock.__exit__(None, None, None)
            raise
        return self

    def __exit__(self, *exception: object) -> None:
        self._lock.__exit__(None, None, None)

    @property
    def size(self) -> int:
        """Number of bytes received so far."""
        return os.fstat(self._handle.fileno()).st_size

    def restart(self, validator: str) -> None:
        """Throw the bytes away and begin with those of another version."""
        self._handle.truncate(0)
        self.validator = validator
        self._facts.write_text(json.dumps({"url": self._url, "validator": validator}), encoding="utf-8")

    def write(self, data: bytes) -> None:
        """Append bytes."""
        left = memoryview(data)
        while left:
            left = left[self._handle.write(left) :]

    def md5(self) -> str:
        """Return the MD5 of the bytes received so far, 32 hex digits."""
        with open(self._path, "rb") as file:
            return hashlib.file_digest(file, "md5").hexdigest()

    def finish(self) -> int:
        """Put the complete file in its place; return its size in bytes."""
        size = self.size
        put_in_place(self._path, self._final)
        self._facts.unlink(missing_ok=True)
        return size

    def _read_validator(self) -> str:
        """Return the validator of an earlier run's bytes; empty where it cannot be read or is of another address."""
        try:
            facts = read_json(self._facts, kind=dict)
        except (OSError, ValueError):
            return ""
        return str(facts.get("validator", "")) if facts.get("url") == self._url else ""


def _facts_of(final: Path) -> Path:
    """Return the file that says of which address and version the received part of a file is."""
    return final.with_name(f"{final.name}.part.json")


# -- the downloader ---------------------------------------------------------------------------------------------------

_CHUNK = 1 << 18
_PROGRESS = 1 << 16  # bytes after which an attempt counts as progress
_SLOWEST = 1 << 10  # bytes a second, over one timeout; a slower transfer is cut and resumed
_LONGEST_WAIT = 300.0
_FETCHES = 2  # times that a file is fetched whole before its published checksum is taken to be wrong
_CONTENT_RANGE = re.compile(r"bytes (?:(\d{1,18})-\d{1,18}|\*)/(\d{1,18}|\*)\Z")


@dataclass(frozen=True)
class RemoteFile:
    """A file to fetch.

    Attributes:
        url: its http(s) address.
        path: of the downloaded file.
        md5: the published checksum, 32 hex digits; None where there is none.
        most_bytes: a larger file is refused.
    """

    url: str
    path: Path
    md5: str | None = None
    most_bytes: int = 8 << 30

    @property
    def shown(self) -> str:
        """The address for messages."""
        return without_secrets(self.url)


@dataclass(frozen=True)
class FetchResult:
    """Outcome of fetching a file.

    Attributes:
        path: of the file.
        bytes: its size.
        received: bytes received over the network in this run.
        outcome: ``fetched``, ``resumed`` (an earlier run had fetched part of it) or ``there`` (nothing to do).
        checked: True if it matched a published checksum.
    """

    path: Path
    bytes: int
    received: int
    outcome: str
    checked: bool


class Downloader:
    """Downloader of several files at a time.

    Args:
        workers: files at a time.
        retries: attempts in a row without progress after which a file is given up.
        timeout: seconds to wait for the next bytes.
        progress: told of the finished files and the MiB received.
        backoff: seconds of the first wait between attempts; it doubles up to a minute.
        allow_redirects_to: hosts that an address may lead to, beside its own.
        allow_private: hosts with a public name that may have a private address.

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
        allow_redirects_to: Collection[str] = (),
        allow_private: Collection[str] = (),
    ):
        for name, value in {"--workers": workers, "--retries": retries, "--timeout": timeout}.items():
            if value <= 0:
                raise ConfigError(f"{name} is {value}; expected a positive number.")
        self._workers, self._retries, self._backoff, self._progress = workers, retries, backoff, progress
        limits = HttpLimits(headers=timeout, silence=timeout, whole=timeout, slowest=_SLOWEST)
        self._client = HttpClient(limits, allow_redirects_to=allow_redirects_to, allow_private=allow_private)
        self._lock = threading.Lock()
        self._received = 0
        self._reached: set[str] = set()
        self._stop = threading.Event()

    def fetch(self, files: Sequence[RemoteFile]) -> list[FetchResult]:
        """Fetch all files; complete and correct ones are left as they are.

        A file that cannot be fetched does not stop the others.

        Returns:
            the outcome of each, in the order given.

        Raises:
            ConfigError: an address is not http(s), or two files go to one place.
            ServiceError: files could not be fetched; the message names them. Received bytes are kept for the next run.
            StorageError: the disk is full or cannot be written.
        """
        _check(files)
        self._stop.clear()
        with ThreadPoolExecutor(self._workers) as pool:
            futures = [pool.submit(self._fetch, file) for file in files]
            try:
                results = [self._result(future, number, len(files)) for number, future in enumerate(futures, start=1)]
            except BaseException:
                self._stop.set()
                self._client.interrupt()
                pool.shutdown(wait=True, cancel_futures=True)
                raise
        failures = [result for result in results if isinstance(result, HgldError)]
        if failures:
            shown = "\n".join(f"  {error}" for error in failures[:10])
            raise ServiceError(
                f"{len(failures)} of {len(files)} files could not be fetched:\n{shown}\nRun the same command again: "
                "received bytes are kept, and only the rest is requested."
            ) from failures[0]
        return [result for result in results if isinstance(result, FetchResult)]

    def _result(self, future: Future[FetchResult], number: int, total: int) -> FetchResult | HgldError:
        """Return the outcome of a file; an error of the disk ends the run, as it would hit the other files too."""
        try:
            return future.result()
        except StorageError:
            raise
        except HgldError as error:
            return error
        finally:
            self._progress("files", number, total)

    def _fetch(self, file: RemoteFile) -> FetchResult:
        try:
            file.path.parent.mkdir(parents=True, exist_ok=True)
            if (there := _fetched_before(file)) is not None:
                return there
            with PartialFile(file.path, file.url) as part:
                return self._fill(file, part)
        except OSError as error:
            if isinstance(error, HgldError):
                raise
            raise StorageError(
                f"{file.path} cannot be written ({error.strerror or error}). Make room or choose another folder, then "
                "run the same command."
            ) from error

    def _fill(self, file: RemoteFile, part: PartialFile) -> FetchResult:
        resumed, received, found = part.size, 0, None
        for _ in range(_FETCHES):
            received += self._complete(file, part)
            found = None if file.md5 is None else part.md5()
            if found == file.md5:
                outcome = "resumed" if resumed else "fetched"
                return FetchResult(file.path, part.finish(), received, outcome, found is not None)
            resumed = 0
            part.restart("")
        raise ServiceError(
            f"{file.shown}: the bytes have the MD5 {found}; published is {file.md5}. They were not kept."
        )

    def _complete(self, file: RemoteFile, part: PartialFile) -> int:
        """Request until the part is complete; return the number of bytes received."""
        received = 0
        most = part.size  # a server that makes us begin anew again and again gets us no further

        def attempt() -> None:
            nonlocal received, most
            self._refuse_if_stopped(file)
            try:
                for count in self._transfer(file, part):
                    received += count
                    self._count(count)
            except RemoteFault as fault:
                fault.progress = part.size >= most + _PROGRESS
                most = part.size if fault.progress else most
                if fault.kind == "unreachable" and urlsplit(file.url).netloc not in self._reached:
                    fault.passing, fault.hint = False, "Check the address and the network."
                raise

        def before_wait(seconds: float, fault: RemoteFault) -> None:
            if fault.wait > _LONGEST_WAIT:
                raise ServiceError(f"{file.shown}: {fault}; it asks to be left alone for {fault.wait:,.0f} s.")

        try:
            retry(
                attempt,
                attempts=self._retries,
                first_wait=self._backoff,
                longest_wait=60.0,
                sleep=self._pause,
                before_wait=before_wait,
            )
        except RemoteFault as fault:
            raise _given_up(file, fault) from fault
        return received

    def _transfer(self, file: RemoteFile, part: PartialFile) -> Iterator[int]:
        """Make one request for the missing bytes; yield the number of bytes of every write."""
        have = part.size if part.validator else 0
        headers = {"Range": f"bytes={have}-", "If-Range": part.validator} if have else {}
        with self._client.request(file.url, headers) as response:
            self._reached.add(urlsplit(file.url).netloc)
            if response.status == 416 and _stated_range(response) == (None, have):
                return  # it was complete, but not yet renamed
            total = _begin(response, file, part, have)
            most = min(file.most_bytes, total or file.most_bytes)
            while data := response.read1(_CHUNK):
                self._refuse_if_stopped(file)
                if part.size + len(data) > most:
                    raise ServiceError(f"{file.shown}: more bytes than the {most:,} expected.")
                part.write(data)
                yield len(data)
        if total is not None and part.size != total:
            raise RemoteFault(f"the transfer ended at {part.size:,} of {total:,} bytes", passing=True)

    def _pause(self, seconds: float) -> None:
        self._stop.wait(seconds)

    def _refuse_if_stopped(self, file: RemoteFile) -> None:
        if self._stop.is_set():
            raise ServiceError(f"{file.shown}: stopped; received bytes are kept.")

    def _count(self, count: int) -> None:
        with self._lock:
            before, self._received = self._received >> 20, self._received + count
            if self._received >> 20 != before:
                self._progress("MiB", self._received >> 20, None)


def _given_up(file: RemoteFile, fault: RemoteFault) -> ServiceError:
    """Return the error of a file for people."""
    if fault.kind in ("address", "redirects"):
        return ServiceError(f"{file.shown} does not lead to a file ({fault}). {fault.hint}".rstrip())
    after = "; given up after several attempts in a row without progress. Try again later." if fault.passing else "."
    return ServiceError(f"{file.shown}: {fault}{after} {fault.hint}".rstrip())


def _check(files: Sequence[RemoteFile]) -> None:
    for file in files:
        if not is_http_address(file.url):
            raise ConfigError(
                f"{quoted(file.shown)} is not an address to fetch from; expected http://... or https://..."
            )
    if len({file.path for file in files}) != len(files):
        raise ConfigError("two of the files to fetch have the same path; name each file once.")


def _fetched_before(file: RemoteFile) -> FetchResult | None:
    """Return the outcome of a file that was fetched before, or None; a file with a wrong checksum is removed."""
    if not file.path.is_file():
        return None
    if file.md5 is not None:
        with open(file.path, "rb") as handle:
            found = hashlib.file_digest(handle, "md5").hexdigest()
        if found != file.md5:
            file.path.unlink()
            return None
    with suppress(OSError):  # a stop right behind the last rename leaves these
        _facts_of(file.path).unlink()
    return FetchResult(file.path, file.path.stat().st_size, 0, "there", file.md5 is not None)


def _begin(response: urllib3.BaseHTTPResponse, file: RemoteFile, part: PartialFile, have: int) -> int | None:
    """Prepare the part for the bytes of this answer; return the size of the whole file, None where it is not stated."""
    status, length = response.status, response.headers.get("Content-Length", "")
    if status == 416 and have:
        part.restart("")
        raise RemoteFault("the server's file is shorter than the kept part; started anew", passing=True)
    if status not in (200, 206):
        fault = fault_of_status(response)
        if not fault.passing:
            raise ServiceError(f"{file.shown} answered HTTP {status}; expected a public file.")
        raise fault
    if response.headers.get("Content-Encoding", "identity") != "identity":
        raise ServiceError(
            f"{file.shown} was sent compressed although that was not accepted; its bytes cannot be checked."
        )
    rest = int(length) if re.fullmatch(r"[0-9]{1,18}", length) else None
    if status == 206:
        total = _resume(response, part, have)
    else:
        total = rest
        part.restart(_validator(response))
    if total is None and file.md5 is None and response.headers.get("Transfer-Encoding") != "chunked":
        raise ServiceError(
            f"{file.shown} was sent without its length and has no checksum; a cut file could not be noticed."
        )
    if (total or 0) > file.most_bytes:
        raise ServiceError(f"{file.shown} has {total:,} bytes; expected at most {file.most_bytes:,}.")
    free = shutil.disk_usage(file.path.parent).free
    if (rest or 0) > free:
        raise StorageError(f"{file.path} needs {rest:,} more bytes; {free:,} are free. Make room, then go on.")
    return total


def _resume(response: urllib3.BaseHTTPResponse, part: PartialFile, have: int) -> int | None:
    """Return the whole size that a partial answer states; an answer with other bytes than requested is refused."""
    stated = _stated_range(response)
    if stated is None or stated[0] != have or _validator(response) not in ("", part.validator):
        part.restart("")
        raise RemoteFault(f"the server answered with other bytes than those from {have:,}; started anew", passing=True)
    return stated[1]


def _stated_range(response: urllib3.BaseHTTPResponse) -> tuple[int | None, int | None] | None:
    """Parse first byte and whole size of a Content-Range, each None where it says ``*``."""
    match = _CONTENT_RANGE.match(response.headers.get("Content-Range", ""))
    if match is None:
        return None
    return (None if match[1] is None else int(match[1])), (None if match[2] == "*" else int(match[2]))


def _validator(response: urllib3.BaseHTTPResponse) -> str:
    """Return the validator of this version of the file; weak ETags are none (RFC 9110, 13.1.5)."""
    etag = response.headers.get("ETag", "")
    return etag if etag.startswith('"') else response.headers.get("Last-Modified", "")


# -- GLDv2 from its owners: tars with their published checksums, and the lists ----------------------------------------

_MAX_CHECKSUM_BYTES = 1 << 10


@dataclass(frozen=True)
class Gldv2Request:
    """Tars of a split of GLDv2, and its lists, for a folder that ``hgld build-shards gldv2`` reads.

    Attributes:
        out: the folder; files get the relative paths of :mod:`hgld.pipelines.shards.sources.gldv2`.
        split: ``train``, ``index`` or ``test``.
        tars: their numbers.
        metadata: fetch the split's CSVs too.
        base_url: the owners' address, or a mirror's.
    """

    out: Path
    split: str
    tars: Sequence[int] = ()
    metadata: bool = False
    base_url: str = BASE_URL

    def lists(self) -> list[RemoteFile]:
        """Return the CSVs that are asked for."""
        names = metadata_names([self.split]) if self.metadata else ()
        return [self.file(name, MAX_CSV_BYTES) for name in names]

    def file(self, name: str, most_bytes: int, md5: str | None = None) -> RemoteFile:
        """Return a file of the release."""
        return RemoteFile(f"{self.base_url.rstrip('/')}/{name}", self.out / name, md5, most_bytes)


def download_gldv2(asked: Gldv2Request, downloader: Downloader) -> list[FetchResult]:
    """Fetch tars and lists of GLDv2, and return the outcome of every one of them.

    Raises:
        ConfigError: a tar that the split does not have.
        InputError: a published checksum cannot be read.
        ServiceError: a file could not be fetched, or has other bytes than published.
        StorageError: the disk is full or cannot be written.
    """
    names = {tar_name(asked.split, number): checksum_name(asked.split, number) for number in sorted(set(asked.tars))}
    lists = asked.lists()
    sums = [asked.file(name, _MAX_CHECKSUM_BYTES) for name in names.values()]
    fetched = downloader.fetch([*lists, *sums])[: len(lists)]
    tars = []
    for tar, name in names.items():
        told = (asked.out / name).read_text(encoding="utf-8", errors="replace")
        md5 = parse_checksum(told, tar.rpartition("/")[2], str(asked.out / name))
        tars.append(asked.file(tar, MAX_TAR_BYTES, md5))
    return fetched + downloader.fetch(tars)
