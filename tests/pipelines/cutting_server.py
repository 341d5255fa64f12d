"""A file server on 127.0.0.1 that answers ranges as S3 does, logs what it was asked, and fails to order."""

import re
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from tests.local_server import LocalServer, SilentHandler


@dataclass(frozen=True)
class Asked:
    """One request: its path and its Range header ("" for none)."""

    path: str
    range: str


Fault = Callable[["Handler", bytes], None]


class CuttingServer(LocalServer):
    """Serves ``files`` (path without the first slash: bytes); ``faults`` of a path are used up by its next requests."""

    def __init__(self, files: dict[str, bytes]):
        self.files = files
        self.faults: dict[str, list[Fault]] = {}
        self.log: list[Asked] = []
        self.open: list[str] = []  # paths that are being answered
        self.has_company = threading.Event()  # two files were sent at once
        self.lock = threading.Lock()
        super().__init__(Handler)

    def asked(self, path: str) -> list[Asked]:
        return [request for request in self.log if request.path == path]


class Handler(SilentHandler):
    """Handler that answers one request, or fails in the next way planned for its path."""

    site: CuttingServer

    def do_GET(self) -> None:
        path = self.path.lstrip("/")
        site = self.site
        with site.lock:
            site.log.append(Asked(path, self.headers.get("Range", "")))
            site.open.append(path)
            if len(set(site.open)) > 1:
                site.has_company.set()
            fault = site.faults[path].pop(0) if site.faults.get(path) else None
        try:
            data = site.files.get(path)
            if data is None:
                self.send(404, b"<Error><Code>NoSuchKey</Code></Error>")
            elif fault is not None:
                fault(self, data)
            else:
                self.send_file(data)
        finally:
            with site.lock:
                site.open.remove(path)

    def send_file(self, data: bytes, cut: int | None = None) -> None:
        """The file, or the range asked for; with ``cut`` the connection ends after so many bytes of the body."""
        asked = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", ""))
        status, body, headers = 200, data, {}
        if asked:
            start = int(asked[1])
            if start >= len(data):
                self.send(416, b"", {"Content-Range": f"bytes */{len(data)}"})
                return
            status, body = 206, data[start:]
            headers["Content-Range"] = f"bytes {start}-{len(data) - 1}/{len(data)}"
        self.send(status, body, headers, cut)

    def send(self, status: int, body: bytes, headers: Mapping[str, str] | None = None, cut: int | None = None) -> None:
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body if cut is None else body[:cut])
        if cut is not None:
            self.close_connection = True


def cut_after(count: int) -> Fault:
    """Close the connection after so many bytes of the body."""
    return lambda handler, data: handler.send_file(data, cut=count)


def status(code: int, headers: Mapping[str, str] | None = None) -> Fault:
    """Answer this HTTP status instead."""
    return lambda handler, data: handler.send(code, b"<Error><Code>SlowDown</Code></Error>", headers)


def whole(handler: Handler, data: bytes) -> None:
    """Ignore the Range and send the whole file."""
    handler.send(200, data)


def other_range(handler: Handler, data: bytes) -> None:
    """Answer a range with one that begins elsewhere."""
    handler.send(206, data[1:], {"Content-Range": f"bytes 1-{len(data) - 1}/{len(data)}"})


def wrong_bytes(handler: Handler, data: bytes) -> None:
    """The right length and headers, one byte wrong."""
    handler.send(200, bytes([data[0] ^ 1]) + data[1:])


def endless(handler: Handler, data: bytes) -> None:
    """A chunked body without end."""
    handler.send_response(200)
    handler.send_header("Transfer-Encoding", "chunked")
    handler.end_headers()
    try:
        while True:
            handler.wfile.write(b"10000\r\n" + bytes(0x10000) + b"\r\n")
    except OSError:  # the client had enough
        handler.close_connection = True


def compressed(handler: Handler, data: bytes) -> None:
    """Compressed though nobody asked for it."""
    handler.send(200, data, {"Content-Encoding": "gzip"})


def without_length(handler: Handler, data: bytes) -> None:
    """As HTTP/1.0: no length, the end of the connection is the end of the file."""
    handler.send_response(200)
    handler.end_headers()
    handler.wfile.write(data)
    handler.close_connection = True


def trickle(handler: Handler, data: bytes) -> None:
    """A byte now and then, so that no single read ever times out."""
    handler.send_response(200)
    handler.send_header("Content-Length", str(len(data)))
    handler.end_headers()
    try:
        for byte in data:
            handler.wfile.write(bytes([byte]))
            time.sleep(0.05)
    except OSError:  # the client had enough
        pass
    handler.close_connection = True


def silent(handler: Handler, data: bytes) -> None:
    """A byte, and then nothing until the client goes away."""
    handler.send_response(200)
    handler.send_header("Content-Length", str(len(data)))
    handler.end_headers()
    handler.wfile.write(data[:1])
    handler.connection.recv(1)
    handler.close_connection = True
