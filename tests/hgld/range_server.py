"""A server of one folder on 127.0.0.1 which serves ranges, and misbehaves on request."""

import re
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import unquote, urlsplit

from tests.local_server import LocalServer, SilentHandler


class RangeServer(LocalServer):
    """What the server is, does and saw.

    Attributes:
        url: of the folder.
        requests: "METHOD path range" of every request.
        headers: of the last request.
        failures: status of the next answers, taken from the front.
        cut_after: bytes of a body after which the connection is closed; None: never.
        ranges: whether Range is honoured.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.requests: list[str] = []
        self.headers: Mapping[str, str] = {}
        self.failures: list[int] = []
        self.cut_after: int | None = None
        self.ranges = True
        super().__init__(_Handler)


serve = RangeServer


class _Handler(SilentHandler):
    site: RangeServer

    def do_GET(self) -> None:
        self.answer(with_body=True)

    def do_HEAD(self) -> None:
        self.answer(with_body=False)

    def answer(self, with_body: bool) -> None:
        wanted = self.headers.get("Range")
        self.site.headers = dict(self.headers)
        self.site.requests.append(f"{self.command} {self.path} {wanted or 'all'}")
        path = self.site.folder / unquote(urlsplit(self.path).path).lstrip("/")
        status = self.site.failures.pop(0) if self.site.failures else 200 if path.is_file() else 404
        data = path.read_bytes() if status == 200 else b""
        size, content_range = len(data), None
        if status == 200 and wanted and self.site.ranges:
            begin, end = (int(n) for n in re.findall(r"\d+", wanted))
            status, data = (206, data[begin : end + 1]) if begin < size else (416, b"")
            content_range = f"bytes {begin}-{begin + len(data) - 1}/{size}"
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        if content_range:
            self.send_header("Content-Range", content_range)
        self.end_headers()
        if with_body and self.site.cut_after is not None and len(data) > self.site.cut_after:
            self.wfile.write(data[: self.site.cut_after])
            self.close_connection = True
        elif with_body:
            self.wfile.write(data)
