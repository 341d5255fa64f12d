"""Ranges of files at http(s) URLs, from untrusted servers.

The headers of a response are compared with the request before its body is read. The body's bytes are counted while they
arrive, and deadlines limit the time. Redirects stay on the host in the user's URL, and https never becomes http. A
public host name that resolves to a private address raises an error. Credentials are sent only to the host in the user's
URL.
"""

import http.client
import io
import math
import random
import re
import socket
import threading
import time
from base64 import b64encode
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import unquote, urlsplit, urlunsplit
from urllib.request import getproxies, proxy_bypass

import urllib3
import urllib3.exceptions
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.connectionpool import HTTPConnectionPool, HTTPSConnectionPool

from hgld.addresses import HTTP, RedirectError, is_private, names_private, redirect_target, retry_after
from hgld.errors import ConfigError, excerpt, quoted
from hgld.version import __version__

_Guarded = HTTPConnection if TYPE_CHECKING else object  # at run time, the mixin has no base class

_CHUNK = 1 << 20
TOGETHER = 128  # maximum number of simultaneous requests of a process; 128 hide 100 ms of latency of 1,280 images/s
_MOST_TRAILERS = 100  # maximum number of lines after the last chunk of a body; http.client accepts as many header lines
_MOST_REDIRECTS = 5
_LONGEST_TIMEOUT = 1e6  # maximum timeout in seconds; sockets accept at most about 10^9
_REDIRECTS = (301, 302, 303, 307, 308)
PASSING = (408, 425, 429)  # after one of these statuses, or 500 to 599, a later request may succeed
MISSING = (404, 410)
_BEYOND = 416  # HTTP status if the range begins beyond the end of the file
_CONTENT_RANGE = re.compile(r"bytes (\d{1,18})-(\d{1,18})/(\d{1,18}|\*)")
_HEADER = re.compile(r"[\t\x20-\x7e\xa0-\xff]*")


@dataclass(frozen=True)
class HttpLimits:
    """Limits for one reading of bytes, retries included.

    Attributes:
        connect: seconds until the connection is made.
        headers: seconds from the request to the last header line of the response.
        silence: maximum number of seconds between two arrivals of bytes.
        whole: seconds for the whole reading, plus the time that the bytes take at the ``slowest`` speed.
        slowest: lowest speed for which ``whole`` allows, in bytes per second.
        attempts: number of attempts at a request with temporary failures.
        retries: maximum number of retries of a process, in addition to a tenth of its requests.

    Raises:
        ConfigError: a value is not a number, or is out of bounds.
    """

    connect: float = 20.0
    headers: float = 60.0
    silence: float = 60.0
    whole: float = 180.0
    slowest: float = 1 << 14
    attempts: int = 6
    retries: int = 1000

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            is_count, most = (
                name in ("attempts", "retries"),
                math.inf if name in ("whole", "slowest") else _LONGEST_TIMEOUT,
            )
            if not isinstance(value, int if is_count else (int, float)) or not 0 < value <= most:
                expected = f"a {'whole ' * is_count}number above 0, up to {most:g}"
                raise ConfigError(f"limits of http(s): {name} is {quoted(value)}; expected {expected}.")


@dataclass(eq=False)
class RemoteFault(Exception):  # noqa: N818  # the reader turns it into an error with the file's name
    """A failure of one request.

    Attributes:
        said: description of the error, for the message.
        passing: whether the failure may pass, so that the same request succeeds later.
        missing: whether the server has no such file.
        hint: fix for the user; empty: the usual fix.
        wait: seconds that the server asked for.
        kind: short, stable category for counts: ``timeout``, ``connection``, ``unreachable``, ``http-503``, ...
        received: bytes that arrived before the failure.
        progress: whether the attempt received bytes, so that the next attempt requests fewer.
    """

    said: str
    _: KW_ONLY
    passing: bool = False
    missing: bool = False
    hint: str = ""
    wait: float = 0.0
    kind: str = "connection"
    received: bytes = b""
    progress: bool = False

    def __str__(self) -> str:
        return self.said


class Deadline:
    """The time at which a reading must end; only received bytes postpone it.

    Args:
        limits: limits of time and size.
    """

    def __init__(self, limits: HttpLimits) -> None:
        self._limits = limits
        self._ends = time.monotonic() + limits.whole

    def left(self) -> float:
        """Return the seconds until the deadline."""
        return self._ends - time.monotonic()

    def count(self, received: float) -> None:
        """Extend the deadline by the time that the received bytes may take."""
        self._ends += received / self._limits.slowest


# -- connections with deadlines and checked addresses -----------------------------------------------------------------


class _Watch:
    """The deadlines of one request, and its socket.

    Args:
        limits: limits of time and size.
        deadline: end of the reading that the request belongs to.
        asked: number of requested bytes. Only these bytes extend the deadline; other bytes, such as chunk sizes, do
            not.
    """

    def __init__(self, limits: HttpLimits, deadline: Deadline, asked: float = math.inf) -> None:
        self._limits, self._deadline, self._asked = limits, deadline, asked
        self._headers_end = time.monotonic() + min(limits.headers, max(deadline.left(), 0))
        self.in_headers = True
        self.socket: socket.socket | None = None

    def seconds(self) -> float:
        """Return the seconds to wait for the next bytes.

        Raises:
            RemoteFault: the time limit has passed.
        """
        left = self._deadline.left()
        if self.in_headers:
            left = min(left, self._headers_end - time.monotonic())
        if left <= 0:
            raise self.too_slow()
        return left if self.in_headers else min(left, self._limits.silence)

    def too_slow(self) -> RemoteFault:
        if self._deadline.left() <= 0:
            slowest = self._limits.slowest / 1024
            said = f"not answered in {self._limits.whole:g} s and at {slowest:g} KiB per second"
        elif self.in_headers:
            said = f"no response headers in {self._limits.headers:g} s"
        else:
            said = f"no byte in {self._limits.silence:g} s"
        return RemoteFault(said, passing=True, kind="timeout")

    def came(self, count: int) -> None:
        if not self.in_headers:
            counted = min(count, self._asked)
            self._asked -= counted
            self._deadline.count(counted)


class _Current(threading.local):
    watch: _Watch | None = None


_CURRENT = _Current()  # each thread has its own current request


class _WatchedReader(io.RawIOBase):
    """The bytes of a response, read within the deadlines of its request."""

    def __init__(self, raw: io.RawIOBase, sock: socket.socket, watch: _Watch) -> None:
        self._raw, self._socket, self._watch = raw, sock, watch
        watch.socket = sock

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any, /) -> int | None:
        self._socket.settimeout(self._watch.seconds())
        try:
            count = self._raw.readinto(buffer)  # type: ignore[attr-defined]  # typeshed does not know ``readinto``
        except TimeoutError:
            raise self._watch.too_slow() from None
        self._watch.came(count or 0)
        return count

    def close(self) -> None:
        self._raw.close()
        super().close()


class _WatchedResponse(http.client.HTTPResponse):
    """A response whose headers are read within the deadlines of this thread's request."""

    def __init__(self, sock: socket.socket, *args: Any, **kwargs: Any) -> None:
        super().__init__(sock, *args, **kwargs)
        watch = _CURRENT.watch
        if watch is not None:
            raw = self.fp.detach()  # type: ignore[attr-defined]
            self.fp = io.BufferedReader(_WatchedReader(raw, sock, watch), 1 << 16)

    def _read_and_discard_trailer(self) -> None:
        """Read the lines after a chunked body, up to a limit; http.client's own method has no limit."""
        for _ in range(_MOST_TRAILERS):
            line = self.fp.readline((1 << 16) + 1)
            if len(line) > 1 << 16:
                raise http.client.LineTooLong("trailer line")
            if line in (b"\r\n", b"\n", b""):
                return
        raise http.client.HTTPException(f"got more than {_MOST_TRAILERS} trailers")


class _Watched(_Guarded):
    """Mixin for connections: it refuses public host names that resolve to a private address, and sets deadlines."""

    response_class = _WatchedResponse
    allowed: Collection[str] | None = ()  # hosts whose public name may resolve to a private address; None: all

    def _new_conn(self) -> socket.socket:
        made = super()._new_conn()
        try:
            reached = made.getpeername()[0]
            if self.allowed is not None and is_private(reached) and not names_private(self.host, self.allowed):
                raise RemoteFault(
                    f"{self.host} resolves to the private address {reached}",
                    hint=f"If you trust this host, pass --allow-private {self.host} (allow_private).",
                )
        except BaseException:
            made.close()
            raise
        return made


def _guarded_pools(allowed: Collection[str] | None) -> dict[str, type[HTTPConnectionPool]]:
    """Return urllib3's connection pools with :class:`_Watched` connections."""
    pools = {}
    for kind, connection in ((HTTPConnectionPool, HTTPConnection), (HTTPSConnectionPool, HTTPSConnection)):
        watched = type("_WatchedConnection", (_Watched, connection), {"allowed": allowed})
        pools[kind.scheme] = type("_WatchedPool", (kind,), {"ConnectionCls": watched})
    return pools


# -- one client -------------------------------------------------------------------------------------------------------


class HttpClient:
    """Thread-safe client for http(s) servers that limits the time and the hosts of every request.

    Args:
        limits: limits of every request.
        headers: headers of every request.
        allow_redirects_to: further hosts that a URL may redirect to.
        allow_private: hosts whose public name may resolve to a private address; None: all hosts.
        ca_file: certificates to trust instead of the system's.
    """

    def __init__(
        self,
        limits: HttpLimits,
        headers: Mapping[str, str] | None = None,
        *,
        allow_redirects_to: Collection[str] = (),
        allow_private: Collection[str] | None = (),
        ca_file: str | None = None,
    ) -> None:
        self.limits, self._redirects_to = limits, allow_redirects_to
        self._headers = {"User-Agent": f"hgld/{__version__}", "Accept-Encoding": "identity", **(headers or {})}
        options: dict[str, Any] = {"num_pools": 4, "maxsize": TOGETHER, "ca_certs": ca_file}
        self._pool = urllib3.PoolManager(**options)
        self._pool.pool_classes_by_scheme = _guarded_pools(allow_private)
        # Environment variables such as ``https_proxy`` set the proxies.
        proxies = {scheme: url for scheme, url in getproxies().items() if scheme in HTTP}
        self._proxies = {scheme: urllib3.ProxyManager(url, **options) for scheme, url in proxies.items()}
        for proxy in self._proxies.values():  # the user chose the proxy, so its address may be private
            proxy.pool_classes_by_scheme = _guarded_pools(None)
        self._watches: set[_Watch] = set()

    @contextmanager
    def request(
        self,
        url: str,
        headers: Mapping[str, str] | None = None,
        *,
        method: str = "GET",
        body: bytes | None = None,
        own: Mapping[str, str] | None = None,
        deadline: Deadline | None = None,
        asked: float = math.inf,
        before_each: Callable[[str], None] = lambda place: None,
    ) -> Iterator[urllib3.BaseHTTPResponse]:
        """Send a request, follow its redirects and yield the response; close the connection afterwards.

        Args:
            url: the URL; its user and password are removed.
            headers: headers of this request.
            method: HTTP method; only GET and HEAD are redirected.
            body: bytes to send.
            own: headers that are sent only to the host of ``url``.
            deadline: end of the reading that the request belongs to; None: only the limits of this request apply.
            asked: number of requested bytes, which extend the deadline.
            before_each: function called with the URL before the request and before each redirect.

        Raises:
            RemoteFault: there is no response, the connection is unsafe, or a redirect is refused.
        """
        parts = urlsplit(url)
        host = parts.netloc.rpartition("@")[2]
        place = urlunsplit(parts._replace(netloc=host, fragment=""))
        for _ in range(_MOST_REDIRECTS + 1):
            before_each(place)
            whose = (own or {}) if urlsplit(place).netloc.lower() == host.lower() else {}
            sent = {**self._headers, **whose, **(headers or {})}
            with self._answer(method, place, sent, body, deadline or Deadline(self.limits), asked) as response:
                target = response.headers.get("location", "") if response.status in _REDIRECTS else ""
                if not target or method not in ("GET", "HEAD"):
                    yield response
                    return
                try:
                    place = redirect_target(place, target, self._redirects_to)
                except RedirectError as error:
                    hint = "If you trust that host, pass --allow-redirects-to HOST (allow_redirects_to)."
                    raise RemoteFault(str(error), kind="redirects", hint=hint) from None
        said = f"it redirects in a loop, or more than {_MOST_REDIRECTS} times"
        raise RemoteFault(said, kind="redirects")

    @contextmanager
    def _answer(
        self, method: str, place: str, headers: Mapping[str, str], body: bytes | None, deadline: Deadline, asked: float
    ) -> Iterator[urllib3.BaseHTTPResponse]:
        watch = _CURRENT.watch = _Watch(self.limits, deadline, asked)
        self._watches.add(watch)
        response = None
        try:
            seconds, parts = watch.seconds(), urlsplit(place)
            proxy = self._proxies.get(parts.scheme)
            if proxy is not None and proxy_bypass(parts.hostname or ""):  # slow: it reads all environment variables
                proxy = None
            response = (proxy or self._pool).urlopen(
                method,
                place,
                body=body,
                headers=headers,
                timeout=urllib3.Timeout(connect=min(self.limits.connect, seconds), read=seconds),
                retries=False,
                redirect=False,
                preload_content=False,
                decode_content=False,
            )
            watch.in_headers = False
            yield response
        except (urllib3.exceptions.HTTPError, UnicodeError) as error:  # idna raises UnicodeError for bad host names
            raise _broken(error) from None  # hide the cause: its text may contain the URL's query
        finally:
            _CURRENT.watch = None
            self._watches.discard(watch)
            if response is not None:
                response.close()  # if the body was read to its end, urllib3 still reuses the connection

    def interrupt(self) -> None:
        """End all requests at once, including requests that wait for a silent server."""
        for watch in list(self._watches):
            if watch.socket is not None:
                with suppress(OSError):
                    watch.socket.shutdown(socket.SHUT_RDWR)


T = TypeVar("T")
Spans = Sequence[tuple[str, int, int]]  # (URL or name of a file, first byte, byte after the last)


def retry(
    attempt: Callable[[], T],
    *,
    attempts: int,
    first_wait: float = 0.2,
    longest_wait: float = 20.0,
    sleep: Callable[[float], None] | None = None,
    before_wait: Callable[[float, RemoteFault], None] = lambda seconds, fault: None,
) -> T:
    """Return the result of an attempt; repeat it with growing, random pauses while its failures are temporary.

    Args:
        attempt: function that raises a RemoteFault if it fails.
        attempts: maximum number of attempts in a row without progress.
        first_wait: seconds of the first pause, on average; the server may ask for a longer pause.
        longest_wait: seconds of the longest pause.
        sleep: function that waits for some seconds; None: time.sleep.
        before_wait: function called with the length of a pause in seconds and the failure; may raise an error to give
            up.

    Raises:
        RemoteFault: the failure is permanent, or no attempt is left.
    """
    idle = 0
    while True:
        try:
            return attempt()
        except RemoteFault as fault:
            idle = 0 if fault.progress else idle + 1
            if not fault.passing or idle >= attempts:
                raise
            jitter = random.uniform(0, first_wait)  # noqa: S311  # a pause needs no cryptographic random number
            growing = min(first_wait * 2.0 ** (idle - 1) + jitter, longest_wait) if idle else 0.0
            pause = max(fault.wait, growing)
            before_wait(pause, fault)
        (sleep or time.sleep)(pause)


# -- ranges -----------------------------------------------------------------------------------------------------------


def _stated_length(response: urllib3.BaseHTTPResponse, start: int, stop: int) -> int | None:
    """Return the length in bytes that the response to a range request states; None if it states no length.

    Raises:
        RemoteFault: the response is for a different range, or is compressed.
    """
    encoding = response.headers.get("Content-Encoding", "").strip().lower()
    if encoding not in ("", "identity"):
        raise RemoteFault(f"the response is compressed ({excerpt(encoding)}), though uncompressed bytes were requested")
    length = response.length_remaining
    if response.status != http.HTTPStatus.PARTIAL_CONTENT:
        if start == 0 and (length is None or length <= stop):
            return length  # the request was for the whole file, so the status 200 is right
        sent = "a response without a length" if length is None else f"{length} bytes"
        raise RemoteFault(
            f"the server sent {sent} instead of the {stop - start} requested: it ignores HTTP Range requests",
            hint="Use a server that supports them, or copy the dataset to a disk.",
        )
    stated = response.headers.get("Content-Range", "").strip()
    found = _CONTENT_RANGE.fullmatch(stated)
    end = min(stop, int(found[3])) if found and found[3] != "*" else stop
    if found is None or end <= start or (int(found[1]), int(found[2]) + 1) != (start, end):
        raise RemoteFault(
            f"the server sent {excerpt(stated)} instead of the requested bytes {start}-{stop - 1}",
            hint="The server handles HTTP Range requests wrongly: use another one, or copy the dataset to a disk.",
        )
    return end - start


class HttpRanges:
    """Thread-safe reader of byte ranges of the files below one URL.

    Args:
        root: the URL; its user and password are sent to its host as basic authentication.
        options: ``headers`` are sent to that host. ``allow_redirects_to`` are further hosts that this host may redirect
            to. ``allow_private`` are hosts whose public name may resolve to a private address. ``ca_file`` holds
            certificates to trust instead of the system's. ``limits`` holds fields of :class:`HttpLimits`.

    Raises:
        ConfigError: an option is unknown, or a header has a line break or a character outside Latin-1.
    """

    def __init__(self, root: str, options: Mapping[str, Any]) -> None:
        known = ("headers", "allow_redirects_to", "allow_private", "ca_file", "limits")
        if unknown := [name for name in options if name not in known]:
            raise ConfigError(f"storage options of http(s): {', '.join(unknown)}; expected only {', '.join(known)}.")
        try:
            self.limits = HttpLimits(**options.get("limits", {}))
        except TypeError as error:
            expected = ", ".join(HttpLimits.__dataclass_fields__)
            raise ConfigError(f"storage_options['limits']: {excerpt(error)}; expected keywords {expected}.") from error
        parts = urlsplit(root)
        own = {str(name): str(value) for name, value in options.get("headers", {}).items()}
        if wrong := [name for name, value in own.items() if not _HEADER.fullmatch(name + value)]:
            # checked here, because an error of http.client would show the value, which may be secret
            raise ConfigError(
                f"header {excerpt(wrong[0])} of http(s) holds a line break or a character outside Latin-1; expected "
                "one line of Latin-1."
            )
        if parts.username is not None:
            login = f"{unquote(parts.username)}:{unquote(parts.password or '')}".encode()
            own = {"Authorization": f"Basic {b64encode(login).decode()}", **own}
        self._own = own
        hosts = {name: options.get(name, ()) for name in ("allow_redirects_to", "allow_private")}
        lists: dict[str, Any] = {name: [some] if isinstance(some, str) else some for name, some in hosts.items()}
        self._client = HttpClient(self.limits, ca_file=options.get("ca_file"), **lists)
        self.interrupt = self._client.interrupt

    def get(self, url: str, start: int, stop: int, deadline: Deadline) -> bytes:
        """Return a range of bytes of a file; fewer bytes if the file ends earlier.

        Raises:
            RemoteFault: the request failed; the error holds the bytes that arrived before.
        """
        headers = {"Range": f"bytes={start}-{stop - 1}"}
        with self._client.request(url, headers, own=self._own, deadline=deadline, asked=stop - start) as response:
            status = response.status
            if status == _BEYOND:
                return b""
            if status not in (200, 206):
                raise fault_of_status(response)
            length = _stated_length(response, start, stop)
            most = stop - start if length is None else length
            body = io.BytesIO()  # its value is not copied
            try:
                while body.tell() <= most and (chunk := response.read1(min(_CHUNK, most + 1 - body.tell()))):
                    body.write(chunk)
            except (RemoteFault, urllib3.exceptions.HTTPError) as error:
                fault = error if isinstance(error, RemoteFault) else _broken(error)
                fault.received = body.getvalue()
                raise fault from None
            if body.tell() > most:
                raise RemoteFault(f"the response has more than the {most} requested bytes")
            if length is not None and body.tell() < length:
                said = f"the response ended after {body.tell()} of {length} bytes"
                raise RemoteFault(said, passing=True, received=body.getvalue())
            return body.getvalue()


def fault_of_status(response: urllib3.BaseHTTPResponse) -> RemoteFault:
    """Return the error for the status of a response, with the wait that the server asks for."""
    status = response.status
    passing, wait = status in PASSING or status >= 500, retry_after(response.headers.get("Retry-After", ""))
    return RemoteFault(f"status {status}", passing=passing, missing=status in MISSING, wait=wait, kind=f"http-{status}")


def _broken(error: Exception) -> RemoteFault:
    """Return the error for a failed connection, without the request's URL."""
    if isinstance(error, urllib3.exceptions.NewConnectionError | urllib3.exceptions.ConnectTimeoutError):
        cause = error.__cause__ or error.__context__
        said = getattr(cause, "strerror", None) or "no connection in time"
        return RemoteFault(f"the server cannot be reached ({excerpt(said)})", passing=True, kind="unreachable")
    if isinstance(error, urllib3.exceptions.SSLError):
        said = f"the connection is not safe ({excerpt(error.args[0] if error.args else error)})"
        return RemoteFault(said, hint="Check the address and the certificate.")
    if isinstance(error, urllib3.exceptions.TimeoutError):
        return RemoteFault("the server sent no response in time", passing=True, kind="timeout")
    if isinstance(error, urllib3.exceptions.LocationValueError | urllib3.exceptions.LocationParseError | UnicodeError):
        return RemoteFault("the URL is invalid", kind="address")
    if isinstance(error, urllib3.exceptions.DecodeError):
        return RemoteFault("the response cannot be decompressed", passing=True)
    cause = error.args[1] if len(error.args) > 1 else error.__cause__
    kind = type(cause).__name__ if isinstance(cause, BaseException) else type(error).__name__
    return RemoteFault(f"the connection broke off ({kind})", passing=True, kind="cut-off")
