"""Servers of local pages, for one person on this machine: they listen only on 127.0.0.1, and a token guards all data.

The page itself contains no data. Every request below ``/api/`` carries the token in the header ``X-Hgld-Token``, which
other sites cannot set. The token is in the printed address after ``#``, which browsers never send. So other sites
cannot reach the data, neither with forms nor with a host name that resolves to this machine.
"""

import atexit
import secrets
import shutil
import tempfile
import webbrowser
from collections.abc import Callable
from pathlib import Path
from typing import Any

import uvicorn
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from hgld.errors import ConfigError

HOST = "127.0.0.1"
TOKEN_HEADER = "x-hgld-token"  # noqa: S105  # the name of an HTTP header, not a secret
_HEADERS = {
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cache-control": "no-store",
}


class Guard:
    """Middleware that rejects requests from other pages, and adds the headers that restrict the browser.

    Args:
        app: the application.
        token: the secret that every request for data must carry.
        policy: content security policy of the page.
    """

    def __init__(self, app: ASGIApp, token: str, policy: str) -> None:
        self._app, self._token, self._headers = app, token.encode(), {"content-security-policy": policy, **_HEADERS}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(self._headers)
            await send(message)

        refusal = self._refusal(scope)
        app = PlainTextResponse(refusal, status_code=403) if refusal else self._app
        await app(scope, receive, send_guarded)

    def _refusal(self, scope: Scope) -> str | None:
        headers, port = Headers(scope=scope), (scope.get("server") or ("", None))[1]
        here = {f"{name}:{port}" for name in (HOST, "localhost")}
        if headers.get("host") not in here:
            return "This server answers under its own address only."
        if "origin" in headers and headers["origin"].removeprefix("http://") not in here:
            return "This server answers its own page only."
        if scope["path"].startswith("/api/"):
            given = headers.get(TOKEN_HEADER, "").encode()
            if not secrets.compare_digest(given, self._token):
                return "The token is missing or old. Open the address that the command printed."
        return None


async def read_body(request: Request, most_bytes: int) -> bytes:
    """Return the body of a request; a larger body is refused as soon as it is too large."""
    data = bytearray()
    async for chunk in request.stream():
        data += chunk
        if len(data) > most_bytes:
            raise HTTPException(413, f"the request is too large; the limit is {most_bytes >> 20} MiB")
    return bytes(data)


async def answer_error(_request: Request, error: Exception) -> Response:
    """Return an error of hgld as JSON."""
    said = str(error).encode("utf-8", "backslashreplace").decode()  # the error may quote half of a surrogate pair
    return JSONResponse({"error": said}, status_code=422)


def serving(application: Callable[[str], ASGIApp], port: int, announce: Callable[[str], None]) -> uvicorn.Server:
    """Return a server of a page on 127.0.0.1, ready to run.

    Args:
        application: returns the guarded application, given the token.
        port: the port to listen on; 0: any free one.
        announce: function called with the page's address, which includes the token, when the server listens.
    """
    token = secrets.token_urlsafe(32)
    config = uvicorn.Config(
        application(token),
        host=HOST,
        port=port,
        lifespan="off",
        access_log=False,
        log_level="critical",
        log_config=None,  # a log configuration would close all log handlers of the process
        server_header=False,
        timeout_graceful_shutdown=3,
    )
    return _Announcing(config, lambda bound: announce(f"http://{HOST}:{bound}/#{token}"))


def serve(application: Callable[[str], ASGIApp], port: int, announce: Callable[[str], None]) -> None:
    """Serve a page until the process is stopped. :func:`serving` describes the arguments.

    Raises:
        ConfigError: the port is taken.
        KeyboardInterrupt: Ctrl-C, after the last response.
    """
    server = serving(application, port, announce)
    try:
        server.run()
    except SystemExit as stop:  # raised by uvicorn when it cannot listen
        if server.started:
            raise
        raise ConfigError(f"--port {port} is in use; choose another port, or 0 for any free port.") from stop


def show_page(address: str) -> None:
    """Open the page in the person's browser.

    The address contains the token, and other users of the machine can read a browser's command line. So the browser
    opens a file that only this user can read, and the file leads to the address. The process removes the file when it
    ends.
    """
    folder = Path(tempfile.mkdtemp(prefix="hgld-page-"))  # mkdtemp makes it accessible only to this user
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    file = folder / "page.html"
    file.touch(mode=0o600)
    file.write_text(f'<!doctype html><meta http-equiv="refresh" content="0;url={address}">', encoding="utf-8")
    webbrowser.open(file.as_uri())


class _Announcing(uvicorn.Server):
    def __init__(self, config: uvicorn.Config, announce: Callable[[int], None]) -> None:
        super().__init__(config)
        self._announce = announce

    async def startup(self, sockets: list[Any] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            self._announce(self.servers[0].sockets[0].getsockname()[1])
