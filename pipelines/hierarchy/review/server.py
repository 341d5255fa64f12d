"""Server of the review page, for one person on this machine only.

It listens on 127.0.0.1 alone. The page itself holds no data; every request for data carries a token that stands in
the address which the command prints (behind ``#``, which browsers never send), in a header that no other site can
set. So neither a form of another site nor a site that points its own name at this machine can reach the data.
"""

import json
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from hgld.errors import ConfigError, HgldError, ImageError
from hgld.pipelines.hierarchy.review.journal import StaleError
from hgld.pipelines.hierarchy.review.state import Review

HOST = "127.0.0.1"
TOKEN_HEADER = "x-hgld-token"  # noqa: S105  # a header's name
_PAGE = Path(__file__).with_name("page")
_FILES = {"/": "index.html"} | {f"/{path.name}": path.name for path in _PAGE.glob("*.[jc]s*")}
_LARGEST_BODY = 2**21  # 10,000 names of a decision
_MOST_LANDMARKS = 60
_HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob: data:; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cache-control": "no-store",
}


class Guard:
    """Middleware that refuses requests not sent by the page itself, and adds the headers that restrict the browser."""

    def __init__(self, app: ASGIApp, token: str) -> None:
        self._app, self._token = app, token.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(_HEADERS)
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
                return "The token is missing or old. Open the address that hgld review printed."
        return None


def application(review: Review, token: str) -> Guard:
    """Return the application: the page, its files and its data, behind the guard.

    Args:
        review: the model that is shown and changed.
        token: the secret that every request for data must carry.
    """
    routes = [Route(path, _file(_PAGE / name)) for path, name in _FILES.items()]
    api = _Api(review)
    routes += [
        Route("/api/state", api.state),
        Route("/api/team", api.team),
        Route("/api/name", api.name),
        Route("/api/examples", api.examples),
        Route("/api/thumbnail", api.thumbnail),
        Route("/api/decide", api.decide, methods=["POST"]),
        Route("/api/undo", api.undo, methods=["POST"]),
    ]
    handlers: dict[Any, Any] = {HgldError: _refused, StaleError: _stale}
    return Guard(Starlette(routes=routes, exception_handlers=handlers), token)


def _file(path: Path) -> Callable[[Request], Any]:
    async def serve(_request: Request) -> Response:
        return FileResponse(path)

    return serve


async def _refused(_request: Request, error: Exception) -> Response:
    return JSONResponse({"error": str(error)}, status_code=422)


async def _stale(_request: Request, _error: Exception) -> Response:
    said = "The decisions changed in another window or in the file itself; the page shows them now. Decide again."
    return JSONResponse({"error": said, "stale": True}, status_code=409)


class _Api:
    """Handlers of requests for data; they share the server's one loop, so the model serves one request at a time."""

    def __init__(self, review: Review) -> None:
        self._review = review

    async def state(self, _request: Request) -> Response:
        return JSONResponse(self._review.snapshot())

    async def team(self, _request: Request) -> Response:
        return JSONResponse(self._review.team())

    async def name(self, request: Request) -> Response:
        start = _number(request, "start")
        return JSONResponse(self._review.name_details(_text(request, "name"), start, _MOST_LANDMARKS))

    async def examples(self, request: Request) -> Response:
        return JSONResponse(self._review.examples(_text(request, "group")))

    async def thumbnail(self, request: Request) -> Response:
        landmark = _text(request, "split"), _number(request, "id")
        try:
            data = await run_in_threadpool(self._review.thumbnails.jpeg, landmark, _number(request, "number"))
        except ImageError as error:
            return JSONResponse({"error": f"the image: {error}"}, status_code=422)
        if data is None:
            raise HTTPException(404)
        return Response(data, media_type="image/jpeg")

    async def decide(self, request: Request) -> Response:
        given = await _body(request)
        decisions = given.get("decisions")
        if not (isinstance(decisions, list) and decisions and all(isinstance(one, dict) for one in decisions)):
            raise HTTPException(400, "expected decisions")
        return JSONResponse(self._review.decide(decisions, _revision(given)))

    async def undo(self, request: Request) -> Response:
        return JSONResponse(self._review.undo(_revision(await _body(request))))


async def _body(request: Request) -> dict[str, Any]:
    data = b""
    async for chunk in request.stream():
        data += chunk
        if len(data) > _LARGEST_BODY:
            raise HTTPException(413, "the request is too large")
    try:
        given = json.loads(data)
    except ValueError as error:
        raise HTTPException(400, "expected JSON") from error
    if not isinstance(given, dict):
        raise HTTPException(400, "expected a JSON object")
    return given


def _revision(given: dict[str, Any]) -> int:
    revision = given.get("revision")
    if not isinstance(revision, int):
        raise HTTPException(400, "expected a revision")
    return revision


def _text(request: Request, field: str) -> str:
    value = request.query_params.get(field)
    if value is None:
        raise HTTPException(400, f"expected {field}")
    return value


def _number(request: Request, field: str) -> int:
    value = request.query_params.get(field, "0")
    if not (value.isascii() and value.isdigit() and len(value) < 19):
        raise HTTPException(400, f"expected a number as {field}")
    return int(value)


def serving(review: Review, port: int, announce: Callable[[str], None]) -> uvicorn.Server:
    """Return a server of the page on 127.0.0.1, ready to run.

    Args:
        review: the model that is shown and changed.
        port: the port to listen on; 0: any free one.
        announce: told the page's address, token included, once the server listens.
    """
    token = secrets.token_urlsafe(32)
    config = uvicorn.Config(
        application(review, token),
        host=HOST,
        port=port,
        lifespan="off",
        access_log=False,
        log_level="critical",
        server_header=False,
        timeout_graceful_shutdown=3,
    )
    return _Announcing(config, lambda bound: announce(f"http://{HOST}:{bound}/#{token}"))


def serve(review: Review, port: int, announce: Callable[[str], None]) -> None:
    """Serve the page until the process is told to stop; arguments as of :func:`serving`.

    Raises:
        ConfigError: the port is taken.
        KeyboardInterrupt: Ctrl-C, after the last request was answered.
    """
    server = serving(review, port, announce)
    try:
        server.run()
    except SystemExit as stop:  # raised by uvicorn when it cannot listen
        if server.started:
            raise
        raise ConfigError(f"--port {port} is taken; name another one, or 0 for any that is free.") from stop


class _Announcing(uvicorn.Server):
    def __init__(self, config: uvicorn.Config, announce: Callable[[int], None]) -> None:
        super().__init__(config)
        self._announce = announce

    async def startup(self, sockets: list[Any] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            self._announce(self.servers[0].sockets[0].getsockname()[1])
