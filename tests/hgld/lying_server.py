"""Invalid responses of a malicious file server (:class:`tests.hgld.range_server.RangeServer`): a function each."""

import socket
import struct
import time

from tests.hgld.range_server import Asked, Lie

CHUNK = b"10000\r\n" + bytes(0x10000) + b"\r\n"


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
    """Redirect to an address in which urllib and urllib3 see different hosts."""
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
    for byte in asked.data:
        asked.send(bytes([byte]))
        time.sleep(0.02)


def silence(asked: Asked) -> None:
    asked.head(f"Content-Length: {len(asked.data)}", f"Content-Range: {asked.range}")
    asked.handler.connection.recv(1)


def reset(asked: Asked) -> None:
    """Reset the connection, one byte later on each request."""
    asked.head(f"Content-Length: {len(asked.data)}", f"Content-Range: {asked.range}")
    asked.send(asked.data[: min(asked.count, len(asked.data) - 1)])
    asked.handler.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    asked.handler.connection.close()


def cut_after(count: int) -> Lie:
    """Close the connection after this number of bytes of the body."""
    return lambda asked: asked.partial(asked.data[:count], Content_Length=str(len(asked.data)))


def status(code: int, *headers: str) -> Lie:
    return lambda asked: asked.head("Content-Length: 0", *headers, status=f"{code} Refused")


def whole(asked: Asked) -> None:
    asked.head(f"Content-Length: {len(asked.whole)}", status="200 OK")
    asked.send(asked.whole)


def without_length(asked: Asked) -> None:
    asked.head()
    asked.send(asked.data)


def busy_for_ages(asked: Asked) -> None:
    asked.head("Content-Length: 0", "Retry-After: 99999999999", status="503 Busy")


LIES: dict[str, Lie] = {
    lie.__name__: lie
    for lie in (
        *(endless, endless_trailer, endless_whole, short, long, ranges_ignored, wrong_range, no_range, gzip),
        *(other_bytes, redirect_loop, redirect_to_a_file, redirect_to_metadata, redirect_elsewhere),
        *(redirect_in_disguise, endless_redirect_body, huge_headers, endless_header, trickled_headers),
        *(trickle, silence, reset, busy_for_ages),
    )
}
