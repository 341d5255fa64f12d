"""HTTP server of one folder on 127.0.0.1 that supports ranges, and can send errors and invalid responses."""

import re
import select
import threading
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from urllib.parse import unquote, urlsplit

from tests.local_server import LocalServer, SilentHandler


class Asked:
    """A request for some bytes of a file, with methods that send responses."""

    def __init__(self, handler: BaseHTTPRequestHandler, whole: bytes, count: int, range_: str) -> None:
        self.handler, self.whole, self.count = handler, whole, count
        found = re.fullmatch(r"bytes=(\d+)-(\d*)", range_)
        self.start = int(found[1]) if found else 0
        self.stop = min(int(found[2]) + 1, len(whole)) if found and found[2] else len(whole)
        self.has_range = found is not None
        self.data = whole[self.start : self.stop]

    @property
    def range(self) -> str:
        return f"bytes {self.start}-{self.stop - 1}/{len(self.whole)}"

    def head(self, *lines: str, status: str = "") -> None:
        first = status or ("206 Partial Content" if self.has_range else "200 OK")
        self.send("".join(f"{line}\r\n" for line in (f"HTTP/1.1 {first}", *lines, "")).encode())

    def partial(self, data: bytes, **other: str) -> None:
        """Send some bytes with valid headers; ``other`` replaces some of these headers."""
        headers = {"Content-Length": str(len(data)), "Content-Range": self.range}
        headers |= {name.replace("_", "-"): value for name, value in other.items()}
        self.head(*(f"{name}: {value}" for name, value in headers.items() if value))
        self.send(data)

    def honest(self) -> None:
        if self.start >= len(self.whole):
            self.head("Content-Length: 0", f"Content-Range: bytes */{len(self.whole)}", status="416 Beyond")
        else:
            self.partial(self.data)

    def send(self, data: bytes) -> None:
        self.handler.wfile.write(data)

    def until_gone(self, data: bytes, pause: float) -> None:
        """Send the same bytes again and again until the client hangs up."""
        while True:
            self.send(data)
            if pause and select.select([self.handler.connection], [], [], pause)[0]:
                return


Lie = Callable[[Asked], None]


class RangeServer(LocalServer):
    """HTTP server of a folder, with planned failures and a record of its requests.

    Args:
        folder: folder of the served files.
        certificate: PEM file with certificate and key, to serve over TLS; None: plain HTTP.

    Attributes:
        url: URL of the folder.
        requests: "METHOD path range" of every request.
        headers: headers of the last request.
        failures: error status codes of the next responses; each is used once.
        cut_after: number of body bytes after which the server closes the connection; None: never.
        planned: functions that respond to the next requests, keyed by path; each is used once.
        lie: function that sends an invalid response for files whose name contains ``about``; None: no lies.
        about: part of the names of the files with invalid responses.
        count: number of invalid responses so far.
    """

    def __init__(self, folder: Path, certificate: Path | None = None) -> None:
        self.folder, self.about, self.count = folder, ".tar", 0
        self.requests: list[str] = []
        self.headers: Mapping[str, str] = {}
        self.failures: list[int] = []
        self.cut_after: int | None = None
        self.planned: dict[str, list[Lie]] = {}
        self.lie: Lie | None = None
        self.lock = threading.Lock()
        super().__init__(_Handler, certificate=certificate)


serve = RangeServer


class _Handler(SilentHandler):
    site: RangeServer

    def do_GET(self) -> None:
        site, wanted = self.site, self.headers.get("Range", "")
        site.headers = dict(self.headers)
        site.requests.append(f"{self.command} {self.path} {wanted or 'all'}")
        path = site.folder / unquote(urlsplit(self.path).path).lstrip("/")
        status = site.failures.pop(0) if site.failures else 200 if path.is_file() else 404
        asked = Asked(self, path.read_bytes() if status == 200 else b"", 0, wanted)
        if status != 200:
            asked.head("Content-Length: 0", status=f"{status} Refused")
        elif plan := site.planned.get(self.path.lstrip("/")):
            self.close_connection = True
            plan.pop(0)(asked)
        elif site.lie is not None and site.about in path.name:
            with site.lock:
                site.count += 1
                asked.count = site.count
            self.close_connection = True
            site.lie(asked)
        elif site.cut_after is not None and len(asked.data) > site.cut_after:
            self.close_connection = True
            asked.partial(asked.data[: site.cut_after], Content_Length=str(len(asked.data)))
        else:
            asked.honest()
