"""Server of the review page, for one person on this machine only.

It listens on 127.0.0.1 alone. The page itself holds no data; every request for data carries a token that stands in
the address which the command prints (behind ``#``, which browsers never send), in a header that no other site can
set. So neither a form of another site nor a site that points its own name at this machine can reach the data.

A program can decide as the page does. Every request carries ``X-Hgld-Token``; bodies and answers are JSON. What is long
comes in pieces: ask again with ``start``.

``GET /api/state``
    who, role, file, levels (those above the groups, each with its classes), revision, decisions (the person's own),
    history, progress: names, names_done, items, items_done, still_wrong, seconds_left.
``GET /api/names?start=N``
    rows of (name, items, confidence, the clustering's group, the next group, label of its group now or null, the
    probability that this is wrong, who decided), 5,000 at a time, and total.
``GET /api/groups?start=N``
    rows of (label, top, who decided), 5,000 at a time, and total.
``GET /api/queue?start=N&count=N``
    total; proposals, the most useful first: id, kind (``sort``, ``accept``, ``place``, ``merge``, ``new``, ``split``,
    ``rename``), group, other, items (expected to be put right), size; of each of the first 200 names names, groups
    (where it stands now) and wrong; blocks; still_wrong: names and items, each (mean, low, high) at 80%; moved:
    undecided names that the last action put elsewhere.
``GET /api/proposal?id=ID&start=N``
    the same of one proposal, 5,000 names at a time.
``POST /api/decide``
    one action ``{"revision": R, "decisions": [{"action": "move", "names": [...], "to": "pass"}, ...]}``, several
    ``{"revision": R, "actions": [[...], ...]}``, or an answer to a proposal ``{"revision": R, "proposal": ID,
    "verdict": "accept" | "refuse", "except": [names that do not belong there], "also": [decisions about some of these],
    "to": label, "why": text}``. All is written or nothing (422 with error); 409 if R is not the revision of now. The
    answer: revision, names (label, wrong, who; of those that changed), more (if not all of them: ask
    ``/api/changes``), groups (top, who; null if gone), queue (as above, the first 10), decisions, progress, history.
``GET /api/changes?revision=R&start=N``
    the names that the last action changed, 5,000 at a time.
``POST /api/undo``
    ``{"revision": R}`` takes the last action back; answers as above, with undone.
``POST /api/skip``
    ``{"proposal": ID}`` puts a proposal off until the estimates of most of its names change; answers with the queue.
    Nothing is written.
``POST /api/labels``
    ``{"names": [...]}``: proposed labels for a group of them.
``GET /api/name?name=T&start=N``, ``/api/group?label=T``, ``/api/team``, ``/api/thumbnail?split=T&id=N&number=N``
    the items, classes and spellings of a name; evidence and examples of a group; annotators side by side; an image.
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

from .decisions.journal import StaleError
from .state import QUEUED, Review

HOST = "127.0.0.1"
TOKEN_HEADER = "x-hgld-token"  # noqa: S105  # a header's name
_PAGE = Path(__file__).with_name("page")
_FILES = {"/": "index.html"} | {f"/{path.name}": path.name for path in _PAGE.glob("*.[jc]s*")}
_LARGEST_BODY = 2**23  # 50,000 names of an action
_MOST_QUEUED = 100
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
        Route("/api/names", api.names),
        Route("/api/groups", api.groups),
        Route("/api/changes", api.changes),
        Route("/api/queue", api.queue),
        Route("/api/proposal", api.proposal),
        Route("/api/team", api.team),
        Route("/api/name", api.name),
        Route("/api/group", api.group),
        Route("/api/thumbnail", api.thumbnail),
        Route("/api/decide", api.decide, methods=["POST"]),
        Route("/api/undo", api.undo, methods=["POST"]),
        Route("/api/skip", api.skip, methods=["POST"]),
        Route("/api/labels", api.labels, methods=["POST"]),
    ]
    handlers: dict[Any, Any] = {HgldError: _refused, StaleError: _stale}
    return Guard(Starlette(routes=routes, exception_handlers=handlers), token)


def _file(path: Path) -> Callable[[Request], Any]:
    async def serve(_request: Request) -> Response:
        return FileResponse(path)

    return serve


async def _refused(_request: Request, error: Exception) -> Response:
    said = str(error).encode("utf-8", "backslashreplace").decode()  # half a letter may be quoted
    return JSONResponse({"error": said}, status_code=422)


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

    async def names(self, request: Request) -> Response:
        return JSONResponse(self._review.names(_number(request, "start")))

    async def groups(self, request: Request) -> Response:
        return JSONResponse(self._review.groups(_number(request, "start")))

    async def changes(self, request: Request) -> Response:
        if _number(request, "revision") != self._review.revision:
            raise StaleError
        return JSONResponse(self._review.changes(_number(request, "start")))

    async def queue(self, request: Request) -> Response:
        most = min(_number(request, "count", QUEUED), _MOST_QUEUED)
        return JSONResponse(self._review.queue(_number(request, "start"), most))

    async def proposal(self, request: Request) -> Response:
        return JSONResponse(self._review.proposal(_text(request, "id"), _number(request, "start")))

    async def group(self, request: Request) -> Response:
        return JSONResponse(self._review.group_details(_text(request, "label")))

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
        actions = [self._answer(given)] if "proposal" in given else _actions(given)
        return JSONResponse(self._review.decide(actions, _revision(given)))

    def _answer(self, given: dict[str, Any]) -> list[dict[str, Any]]:
        verdict = given.get("verdict")
        if verdict not in ("accept", "refuse"):
            raise HTTPException(400, "expected accept or refuse as verdict")
        said = {key: _said(given, key) for key in ("to", "why") if key in given}
        return self._review.answer(
            _said(given, "proposal"), verdict, _list(given, "except", str), _list(given, "also", dict), **said
        )

    async def undo(self, request: Request) -> Response:
        return JSONResponse(self._review.undo(_revision(await _body(request))))

    async def skip(self, request: Request) -> Response:
        return JSONResponse(self._review.put_off(_said(await _body(request), "proposal")))

    async def labels(self, request: Request) -> Response:
        return JSONResponse({"labels": self._review.labels(_list(await _body(request), "names", str))})


async def _body(request: Request) -> dict[str, Any]:
    data = b""
    async for chunk in request.stream():
        data += chunk
        if len(data) > _LARGEST_BODY:
            raise HTTPException(413, "the request is too large")
    try:
        given = json.loads(data)
    except (ValueError, RecursionError) as error:  # RecursionError: brackets nested too deep
        raise HTTPException(400, "expected JSON") from error
    if not isinstance(given, dict):
        raise HTTPException(400, "expected a JSON object")
    return given


def _actions(given: dict[str, Any]) -> list[list[dict[str, Any]]]:
    actions: Any = given["actions"] if "actions" in given else [given.get("decisions")]
    if not (isinstance(actions, list) and actions and all(map(_is_action, actions))):
        raise HTTPException(400, "expected decisions, or actions: a list of them")
    return actions


def _is_action(action: object) -> bool:
    return isinstance(action, list) and bool(action) and all(isinstance(one, dict) for one in action)


def _revision(given: dict[str, Any]) -> int:
    revision = given.get("revision")
    if not isinstance(revision, int) or isinstance(revision, bool):
        raise HTTPException(400, "expected a revision")
    return revision


def _said(given: dict[str, Any], field: str) -> str:
    value = given.get(field)
    if not isinstance(value, str):
        raise HTTPException(400, f"expected a text as {field}")
    return value


def _list(given: dict[str, Any], field: str, of: type) -> list[Any]:
    value = given.get(field, [])
    if not (isinstance(value, list) and all(isinstance(one, of) for one in value)):
        raise HTTPException(400, f"expected a list as {field}")
    return value


def _text(request: Request, field: str) -> str:
    value = request.query_params.get(field)
    if value is None:
        raise HTTPException(400, f"expected {field}")
    return value


def _number(request: Request, field: str, default: int = 0) -> int:
    value = request.query_params.get(field, str(default))
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
