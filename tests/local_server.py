"""HTTP server on 127.0.0.1 in a thread: the base of all fake servers, which differ only in their responses."""

import ssl
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Any, Self


class _QuietServer(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Print errors except those of clients that disconnect, which some tests cause on purpose."""
        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        try:
            super().shutdown_request(request)
        except OSError:  # the client has reset the connection
            request.close()


class SilentHandler(BaseHTTPRequestHandler):
    """A request handler that prints no log; tests read the record of the server instead."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # otherwise a body waits 40 ms for the acknowledgement of its headers

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002  # http.server calls it by this name
        pass


class LocalServer:
    """Serve from a thread until it is closed.

    Args:
        handler: request handler class; its attribute ``site`` is this object.
        path: path of the URL, after the port.
        port: port number; 0 chooses a free port.
        certificate: PEM file with certificate and key, to serve over TLS; None: plain HTTP.
    """

    def __init__(
        self, handler: type[SilentHandler], path: str = "", port: int = 0, certificate: Path | None = None
    ) -> None:
        self._server = _QuietServer(("127.0.0.1", port), type("BoundHandler", (handler,), {"site": self}))
        if certificate is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(certificate)
            self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        self.url = f"http{'s' if certificate else ''}://127.0.0.1:{self._server.server_port}{path}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
