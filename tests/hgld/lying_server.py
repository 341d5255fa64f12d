"""A server of one folder on 127.0.0.1 that lies about some of its files: one lie a server, told to every request."""

import re
import select
import socket
import struct
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler
from pathlib import Path

from tests.local_server import LocalServer, SilentHandler

CHUNK = b"10000\r\n" + bytes(0x10000) + b"\r\n"


class Asked:
    """One request for some bytes of a file, and ways to answer it."""

    def __init__(self, handler: BaseHTTPRequestHandler, whole: bytes, count: int) -> None:
        self.handler, self.whole, self.count = handler, whole, count
        found = re.fullmatch(r"bytes=(\d+)-(\d*)", handler.headers.get("Range", ""))
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
        """Answer with some bytes and honest headers, but for those given."""
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


def endless(asked: Asked) -> None:
    asked.head("Transfer-Encoding: chunked", f"Content-Range: {asked.range}")
    asked.until_gone(CHUNK, 0)


def endless_trailer(asked: Asked) -> None:
    asked.head("Transfer-Encoding: chunked", f"Content-Range: {asked.range}")
    asked.send(b"%x\r\n" % len(asked.data) + asked.data + b"\r\n0\r\n")
    asked.until_gone(b"X: y\r\n" * 10_000, 0)


def endless_whole(asked: Asked) -> None:
    asked.head("Transfer-Encoding: chunked", status="200 OK")
    asked.until_gone(CHUNK, 0)


def short(asked: Asked) -> None:
    asked.partial(asked.data[:-1], Content_Length=str(len(asked.data)))


def long(asked: Asked) -> None:
    asked.partial(asked.data + bytes(1000))


def ranges_ignored(asked: Asked) -> None:
    asked.head("Content-Length: 100000000000", status="200 OK")
    asked.until_gone(bytes(0x10000), 0)


def wrong_range(asked: Asked) -> None:
    asked.partial(asked.data, Content_Range=f"bytes {asked.start + 1}-{asked.stop}/{len(asked.whole) + 1}")


def no_range(asked: Asked) -> None:
    asked.partial(asked.data, Content_Range="")


def gzip(asked: Asked) -> None:
    asked.partial(asked.data, Content_Encoding="gzip")


def brotli(asked: Asked) -> None:
    asked.partial(asked.data, Content_Encoding="br")


def other_bytes(asked: Asked) -> None:
    asked.partial(bytes(byte ^ 1 for byte in asked.data))


def redirect_loop(asked: Asked) -> None:
    asked.head("Content-Length: 0", f"Location: {asked.handler.path}", status="302 Found")


def redirect_to_a_file(asked: Asked) -> None:
    asked.head("Content-Length: 0", "Location: file:///etc/passwd", status="302 Found")


def redirect_to_metadata(asked: Asked) -> None:
    asked.head(
        "Content-Length: 0", "Location: http://169.254.169.254/latest/meta-data/?token=s3cret", status="302 Found"
    )


def redirect_elsewhere(asked: Asked) -> None:
    asked.head("Content-Length: 0", "Location: http://example.org/train-000000.tar", status="302 Found")


def redirect_in_disguise(asked: Asked) -> None:
    """Redirect to an address whose host is one thing to urllib, and another to urllib3."""
    own = asked.handler.headers["Host"]
    asked.head("Content-Length: 0", f"Location: http://169.254.169.254\\@{own}/latest", status="302 Found")


def endless_redirect_body(asked: Asked) -> None:
    asked.head("Transfer-Encoding: chunked", "Location: http://example.org/x", status="302 Found")
    asked.until_gone(CHUNK, 0)


def huge_headers(asked: Asked) -> None:
    asked.send(b"HTTP/1.1 206 Partial Content\r\n")
    for number in range(800):
        asked.send(b"X-%d: " % number + bytes(60_000).replace(b"\0", b"x") + b"\r\n")


def endless_header(asked: Asked) -> None:
    asked.send(b"HTTP/1.1 206 Partial Content\r\nX: ")
    asked.until_gone(b"x" * 0x10000, 0)


def trickled_headers(asked: Asked) -> None:
    asked.send(b"HTTP/1.1 206 Partial Content\r\nX: ")
    asked.until_gone(b"x", 0.02)


def trickle(asked: Asked) -> None:
    asked.head(f"Content-Length: {len(asked.data)}", f"Content-Range: {asked.range}")
    asked.until_gone(b"x", 0.02)


def silence(asked: Asked) -> None:
    asked.head(f"Content-Length: {len(asked.data)}", f"Content-Range: {asked.range}")
    asked.handler.connection.recv(1)


def reset(asked: Asked) -> None:
    """Reset the connection, each time one byte later."""
    asked.head(f"Content-Length: {len(asked.data)}", f"Content-Range: {asked.range}")
    asked.send(asked.data[: min(asked.count, len(asked.data) - 1)])
    asked.handler.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    asked.handler.connection.close()


def busy_for_ages(asked: Asked) -> None:
    asked.head("Content-Length: 0", "Retry-After: 99999999999", status="503 Busy")


Lie = Callable[[Asked], None]
LIES: dict[str, Lie] = {
    lie.__name__: lie
    for lie in (
        *(
            endless,
            endless_trailer,
            endless_whole,
            short,
            long,
            ranges_ignored,
            wrong_range,
            no_range,
            gzip,
            brotli,
            other_bytes,
        ),
        *(redirect_loop, redirect_to_a_file, redirect_to_metadata, redirect_elsewhere),
        *(
            redirect_in_disguise,
            endless_redirect_body,
            huge_headers,
            endless_header,
            trickled_headers,
            trickle,
            silence,
            reset,
            busy_for_ages,
        ),
    )
}


class LyingServer(LocalServer):
    """What the server is and does.

    Args:
        folder: whose files it serves.
        certificate: with its key, to serve over TLS.

    Attributes:
        url: of the folder.
        lie: told about files whose name has ``about``; None: none.
        about: part of a file's name.
        count: requests answered with the lie.
    """

    def __init__(self, folder: Path, certificate: Path | None = None) -> None:
        self.folder, self.about, self.count = folder, ".tar", 0
        self.lie: Lie | None = None
        self.lock = threading.Lock()
        super().__init__(_Handler, certificate=certificate)


serve_lies = LyingServer


class _Handler(SilentHandler):
    site: LyingServer

    def do_GET(self) -> None:
        site = self.site
        path = site.folder / self.path.lstrip("/").partition("?")[0]
        if not path.is_file():
            self.send_error(404)
            return
        lie = site.lie if site.lie is not None and site.about in path.name else Asked.honest
        with site.lock:
            site.count += lie is site.lie
            count = site.count
        if lie is not Asked.honest:
            self.close_connection = True
        lie(Asked(self, path.read_bytes(), count))
