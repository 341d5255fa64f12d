"""A server of one folder on 127.0.0.1 which serves ranges, and misbehaves on request."""

import re
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit


@dataclass
class RangeServer:
    """What the server is, does and saw.

    Attributes:
        url: of the folder.
        requests: "METHOD path range" of every request.
        headers: of the last request.
        failures: status of the next answers, taken from the front.
        cut_after: bytes of a body after which the connection is closed; None: never.
        ranges: whether Range is honoured.
    """

    url: str = ""
    requests: list[str] = field(default_factory=list)
    headers: Mapping[str, str] = field(default_factory=dict)
    failures: list[int] = field(default_factory=list)
    cut_after: int | None = None
    ranges: bool = True


class _QuietServer(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that refuses an answer hangs up; other errors are for people to see."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


@contextmanager
def serve(folder: Path) -> Iterator[RangeServer]:
    state = RangeServer()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self.answer(with_body=True)

        def do_HEAD(self) -> None:
            self.answer(with_body=False)

        def answer(self, with_body: bool) -> None:
            wanted = self.headers.get("Range")
            state.headers = dict(self.headers)
            state.requests.append(f"{self.command} {self.path} {wanted or 'all'}")
            path = folder / unquote(urlsplit(self.path).path).lstrip("/")
            status = state.failures.pop(0) if state.failures else 200 if path.is_file() else 404
            data = path.read_bytes() if status == 200 else b""
            size, content_range = len(data), None
            if status == 200 and wanted and state.ranges:
                begin, end = (int(n) for n in re.findall(r"\d+", wanted))
                status, data = (206, data[begin : end + 1]) if begin < size else (416, b"")
                content_range = f"bytes {begin}-{begin + len(data) - 1}/{size}"
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            if content_range:
                self.send_header("Content-Range", content_range)
            self.end_headers()
            if with_body and state.cut_after is not None and len(data) > state.cut_after:
                self.wfile.write(data[: state.cut_after])
                self.close_connection = True
            elif with_body:
                self.wfile.write(data)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002  # http.server's name
            pass

    server = _QuietServer(("127.0.0.1", 0), Handler)
    state.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield state
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
