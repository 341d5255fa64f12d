"""Download GLDv2 over HTTP: several files at a time, tars resumed after interruptions and checked against checksums.

The download of a file with a published checksum resumes after its last byte. If the server has another version by then,
the checksum differs, and the file is fetched again. A list has no published checksum, so it is always fetched whole.
"""

import hashlib
import os
import re
import threading
from collections.abc import Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from urllib.parse import urlsplit

import urllib3

from hgld.addresses import is_http_address, without_secrets
from hgld.data.http_files import HttpClient, HttpLimits, RemoteFault, fault_of_status, retry
from hgld.errors import ConfigError, HgldError, ServiceError, StorageError, quoted, storage_errors
from hgld.files import file_lock, put_in_place

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

_CHUNK = 1 << 18
_PROGRESS = 1 << 16  # an attempt counts as progress if it receives this many bytes
_SLOWEST = 1 << 10  # minimum rate in bytes per second, averaged over one timeout; slower transfers are cut and resumed
_LONGEST_WAIT = 300.0
_FETCHES = 2  # number of complete downloads after which hgld concludes that the published checksum is wrong
_MAX_CHECKSUM_BYTES = 1 << 10
_CONTENT_RANGE = re.compile(r"bytes (?:(\d{1,18})-\d{1,18}|\*)/(\d{1,18}|\*)\Z")


@dataclass(frozen=True)
class RemoteFile:
    """A file to fetch.

    Attributes:
        url: http(s) URL of the file.
        path: path of the downloaded file.
        md5: the published checksum, 32 hex digits; None if no checksum is published.
        most_bytes: largest allowed size; a larger file is an error.
    """

    url: str
    path: Path
    md5: str | None = None
    most_bytes: int = 8 << 30

    @property
    def shown(self) -> str:
        """The URL for messages."""
        return without_secrets(self.url)

    @property
    def part(self) -> Path:
        """Path of the bytes received so far, over any number of runs."""
        return self.path.with_name(f"{self.path.name}.part")


@dataclass(frozen=True)
class FetchResult:
    """Outcome of fetching a file.

    Attributes:
        path: path of the file.
        bytes: size of the file.
        received: bytes received over the network in this run.
        outcome: result: ``fetched``, ``resumed`` (an earlier run had fetched part of it) or ``there`` (nothing to do).
        checked: whether the file matched a published checksum.
    """

    path: Path
    bytes: int
    received: int
    outcome: str
    checked: bool


class Downloader:
    """Downloader of several files at a time.

    Args:
        workers: number of files that are downloaded at a time.
        retries: number of consecutive attempts without progress after which the download of a file fails.
        timeout: seconds to wait for the next bytes.
        progress: function that receives the number of finished files and of received MiB.
        backoff: seconds of the first wait between attempts; it doubles up to a minute.
        allow_redirects_to: further hosts that a URL may redirect to.
        allow_private: hosts whose public name may resolve to a private IP address.
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
        self._workers, self._retries, self._backoff, self._progress = workers, retries, backoff, progress
        limits = HttpLimits(headers=timeout, silence=timeout, whole=timeout, slowest=_SLOWEST)
        self._client = HttpClient(limits, allow_redirects_to=allow_redirects_to, allow_private=allow_private)
        self._lock = threading.Lock()
        self._received = 0
        self._reached: set[str] = set()
        self._stop = threading.Event()

    def fetch(self, files: Sequence[RemoteFile]) -> list[FetchResult]:
        """Fetch all files; files that are complete and correct are left as they are.

        If a file cannot be fetched, the downloads of all other files go on.

        Returns:
            the outcome of every file, in the order of ``files``.

        Raises:
            ConfigError: an address is not http(s).
            ServiceError: files could not be fetched; the message names them. Received bytes are kept for the next run.
            StorageError: the disk is full or cannot be written.
        """
        for file in files:
            if not is_http_address(file.url):
                raise ConfigError(f"{quoted(file.shown)} is not a URL; expected http://... or https://...")
        self._stop.clear()
        results: list[FetchResult] = []
        failures: list[HgldError] = []
        with ThreadPoolExecutor(self._workers) as pool:
            futures = [pool.submit(self._fetch, file) for file in files]
            try:
                for number, future in enumerate(futures, start=1):
                    try:
                        results.append(future.result())
                    except StorageError:  # a disk error would also affect all other files
                        raise
                    except HgldError as error:
                        failures.append(error)
                    self._progress("files", number, len(files))
            except BaseException:
                self._stop.set()
                pool.shutdown(wait=False, cancel_futures=True)
                running = [future for future in futures if not future.cancelled()]
                # repeat it, because a worker may just have been about to send a request
                while wait(running, timeout=0.1).not_done:
                    self._client.interrupt()
                raise
        if failures:
            shown = "\n".join(f"  {error}" for error in failures[:10])
            raise ServiceError(
                f"{len(failures)} of {len(files)} files could not be fetched:\n{shown}\nRun the same command again: "
                "received bytes are kept, and only the rest is requested."
            ) from failures[0]
        return results

    def _fetch(self, file: RemoteFile) -> FetchResult:
        with storage_errors(f"write {file.path}", "Make room or choose another folder, then run the same command."):
            file.path.parent.mkdir(parents=True, exist_ok=True)
            if file.path.is_file() and file.md5 in (None, _md5(file.path)):
                return FetchResult(file.path, file.path.stat().st_size, 0, "there", file.md5 is not None)
            file.path.unlink(missing_ok=True)
            busy = f"{file.part} is being written by another process; wait for it or stop it."
            with file_lock(file.part, busy) as part:
                kept, received, found = _size(part) if file.md5 else 0, 0, None
                for _ in range(_FETCHES):
                    received += self._complete(file, part)
                    found = _md5(file.part) if file.md5 else None
                    if found == file.md5:
                        size, outcome = _size(part), "resumed" if kept else "fetched"
                        put_in_place(file.part, file.path)
                        return FetchResult(file.path, size, received, outcome, found is not None)
                    kept = 0
                    part.truncate(0)
        raise ServiceError(
            f"{file.shown}: the received bytes have the MD5 {found}, but the published MD5 is {file.md5}. The bytes "
            "were discarded."
        )

    def _complete(self, file: RemoteFile, part: FileIO) -> int:
        """Send requests until the part is complete; return the number of bytes received."""
        received = 0
        most = _size(part)  # size of the partial file at its last progress; starting again from zero is no progress

        def attempt() -> None:
            nonlocal received, most
            self._refuse_if_stopped(file)
            try:
                for count in self._transfer(file, part):
                    received += count
                    with self._lock:
                        self._received += count
                        if self._received >> 20 != self._received - count >> 20:
                            self._progress("MiB", self._received >> 20, None)
            except RemoteFault as fault:
                fault.progress = _size(part) >= most + _PROGRESS
                most = _size(part) if fault.progress else most
                if fault.kind == "unreachable" and urlsplit(file.url).netloc not in self._reached:
                    fault.passing, fault.hint = False, "Check the address and the network."
                raise

        def before_wait(seconds: float, fault: RemoteFault) -> None:
            if fault.wait > _LONGEST_WAIT:
                raise ServiceError(f"{file.shown}: {fault}; the server asks for a pause of {fault.wait:,.0f} s.")

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
            if fault.kind in ("address", "redirects"):
                raise ServiceError(f"{file.shown} does not lead to a file ({fault}). {fault.hint}".rstrip()) from fault
            after = "; given up after several attempts in a row without progress. Try again later." * fault.passing
            raise ServiceError(f"{file.shown}: {fault}{after or '.'} {fault.hint}".rstrip()) from fault
        return received

    def _transfer(self, file: RemoteFile, part: FileIO) -> Iterator[int]:
        """Make one request for the missing bytes; yield the number of bytes of every write."""
        if file.md5 is None:
            part.truncate(0)
        have = _size(part)
        with self._client.request(file.url, {"Range": f"bytes={have}-"} if have else {}) as response:
            self._reached.add(urlsplit(file.url).netloc)
            if response.status == 416 and _stated_range(response) == (None, have):
                return  # the file was complete, but not yet renamed
            total = _begin(response, file, part)
            most = min(file.most_bytes, total or file.most_bytes)
            while data := response.read1(_CHUNK):
                self._refuse_if_stopped(file)
                if _size(part) + len(data) > most:
                    raise ServiceError(f"{file.shown}: more bytes than the {most:,} expected.")
                left = memoryview(data)
                while left:
                    left = left[part.write(left) :]
                yield len(data)
        if total is not None and _size(part) != total:
            raise RemoteFault(f"the transfer ended at {_size(part):,} of {total:,} bytes", passing=True)

    def _pause(self, seconds: float) -> None:
        self._stop.wait(seconds)

    def _refuse_if_stopped(self, file: RemoteFile) -> None:
        if self._stop.is_set():
            raise ServiceError(f"{file.shown}: stopped; received bytes are kept.")


def _size(part: FileIO) -> int:
    return os.fstat(part.fileno()).st_size


def _md5(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "md5").hexdigest()


def _begin(response: urllib3.BaseHTTPResponse, file: RemoteFile, part: FileIO) -> int | None:
    """Prepare the part for the response's bytes; return the size of the whole file, None if it is not stated."""
    status, length, have = response.status, response.headers.get("Content-Length", ""), _size(part)
    if status not in (200, 206) and not (status == 416 and have):
        fault = fault_of_status(response)
        if not fault.passing:
            raise ServiceError(f"{file.shown} responded with HTTP {status}; expected a public file.")
        raise fault
    if response.headers.get("Content-Encoding", "identity") != "identity":
        raise ServiceError(
            f"{file.shown} was sent compressed, although hgld asked for uncompressed bytes, so hgld cannot check it."
        )
    total = int(length) if re.fullmatch(r"[0-9]{1,18}", length) else None
    if status == 200:
        part.truncate(0)
    else:
        first, total = _stated_range(response) or (None, None)
        if first != have:
            part.truncate(0)
            raise RemoteFault(
                f"the response has no Content-Range, or one that does not start at byte {have:,}", passing=True
            )
    if total is None and file.md5 is None and response.headers.get("Transfer-Encoding") != "chunked":
        raise ServiceError(
            f"{file.shown} was sent without its length and has no checksum, so hgld could not notice a truncated file."
        )
    if (total or 0) > file.most_bytes:
        raise ServiceError(f"{file.shown} has {total:,} bytes; expected at most {file.most_bytes:,}.")
    return total


def _stated_range(response: urllib3.BaseHTTPResponse) -> tuple[int | None, int | None] | None:
    """Parse the first byte and the file size in a Content-Range; ``*`` becomes None."""
    match = _CONTENT_RANGE.match(response.headers.get("Content-Range", ""))
    if match is None:
        return None
    return (None if match[1] is None else int(match[1])), (None if match[2] == "*" else int(match[2]))


# -- GLDv2 from its owners: tars with their published checksums, and the lists ----------------------------------------


def download_gldv2(
    out: Path,
    split: str,
    tars: Sequence[int],
    downloader: Downloader,
    *,
    has_lists: bool = False,
    base_url: str = BASE_URL,
) -> list[FetchResult]:
    """Fetch tars and lists of GLDv2 into a folder that ``hgld build-shards gldv2`` reads.

    Args:
        out: the folder; files get the relative paths of :mod:`hgld.pipelines.shards.sources.gldv2`.
        split: split of GLDv2: ``train``, ``index`` or ``test``.
        tars: numbers of the tars.
        downloader: downloader that fetches them.
        has_lists: True if the split's CSVs are fetched too.
        base_url: URL of the owners' server, or of a mirror.

    Returns:
        the outcome of every list and tar.

    Raises:
        ConfigError: the split does not have one of the tars.
        InputError: a published checksum cannot be read.
        ServiceError: a file could not be fetched, or has other bytes than published.
        StorageError: the disk is full or cannot be written.
    """

    def remote(name: str, most_bytes: int, md5: str | None = None) -> RemoteFile:
        return RemoteFile(f"{base_url.rstrip('/')}/{name}", out / name, md5, most_bytes)

    names = {tar_name(split, number): checksum_name(split, number) for number in sorted(set(tars))}
    lists = [remote(name, MAX_CSV_BYTES) for name in (metadata_names([split]) if has_lists else ())]
    sums = [remote(name, _MAX_CHECKSUM_BYTES) for name in names.values()]
    fetched, wanted = downloader.fetch([*lists, *sums])[: len(lists)], []
    for tar, name in names.items():
        told = (out / name).read_text(encoding="utf-8", errors="replace")
        wanted.append(remote(tar, MAX_TAR_BYTES, parse_checksum(told, Path(tar).name, str(out / name))))
    return fetched + downloader.fetch(wanted)
