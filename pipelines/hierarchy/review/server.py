"""Server of the review page, for one person on this machine.

:mod:`hgld.local_server` says how the data is guarded.

Programs can use the same interface. Every request has the header ``X-Hgld-Token``; bodies and responses are JSON.

``GET /api/state``
    - who, role, file; levels: the levels above the groups, each with its classes, and whether a decision may add a
      class; predefined: labels of groups without names in the build;
    - names: rows of (name, items, confidence, the clustering's group, the next group, label of its group now or null,
      error probability, who decided);
    - groups: by label (top, who decided, classes per level above, who decided them);

    and the fields of every response below:

    - revision, decisions (number of the person's own), history;
    - progress: names, names_done, items, items_done; still_wrong: numbers of names and items that are probably wrong,
      decided names included, each (mean, low, high) at 80%, the same per level above (levels) and for all levels
      together (tree), and unread (true: perhaps accepted without looking);
    - queue: screens of similar names, the most useful first: items (expected to be corrected), names, blocks
      (ranges of the most similar names), targets (the most probable groups of the names), near (the most probable
      groups of each name, as indices of targets), again (true: the person accepted them before), level (not null: the
      names are groups, and their class at this level is asked).
``POST /api/decide``
    One action ``{"revision": R, "decisions": [{"action": "move", "names": [...], "to": "pass"}, ...]}``, or several
    ``{"revision": R, "actions": [[...], ...]}``. All decisions are written or none (422 with error). 409 if R is not
    the current revision. The response has the names (by name: label, wrong, who) and groups that changed; null if a
    group no longer exists.
``POST /api/undo``
    ``{"revision": R}`` undoes the last action. The response is as for decide, with the field undone.
``POST /api/skip``
    ``{"names": [...]}`` skips names until their estimates change. Nothing is written.
``POST /api/labels``
    ``{"names": [...]}``: proposed labels for a group of these names.
``GET /api/name?name=T&start=N``, ``/api/group?label=T``, ``/api/team``, ``/api/thumbnail?split=T&id=N&number=N``
    The items, classes and spellings of a name; evidence and examples of a group; annotators side by side; an image.
"""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, Response
from starlette.routing import Route

from hgld.errors import HgldError, ImageError, InputError
from hgld.files import parse_json
from hgld.html_page import PAGES
from hgld.local_server import Guard, answer_error, read_body
from hgld.local_server import serve as serve_page

from .journal import StaleError
from .state import Review

_PAGE = Path(__file__).with_name("page")
_FILES = {"/": _PAGE / "index.html", "/theme.css": PAGES / "theme.css"}
_FILES |= {f"/{path.name}": path for path in _PAGE.glob("*.[jc]s*")}
_LARGEST_BODY = 2**23  # maximum bytes of a request, enough for 50,000 names
_MOST_LANDMARKS = 60
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob: data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


def application(review: Review, token: str) -> Guard:
    """Return the application that serves the page, its files and its data, wrapped in a :class:`Guard`.

    Args:
        review: the state that the page shows and changes.
        token: the secret that every request for data must carry.
    """
    get: dict[str, Callable[[Request], Any]] = {
        "state": lambda r: review.snapshot(),
        "team": lambda r: review.team(),
        "name": lambda r: review.name_details(_text(r, "name"), _number(r, "start"), _MOST_LANDMARKS),
        "group": lambda r: review.group_details(_text(r, "label")),
    }
    post: dict[str, Callable[[dict[str, Any]], Any]] = {
        "decide": lambda given: review.decide(_actions(given), _revision(given)),
        "undo": lambda given: review.undo(_revision(given)),
        "skip": lambda given: review.put_off(_list(given.get("names"), str, "names")),
        "labels": lambda given: review.labels(_list(given.get("names"), str, "names")),
    }

    # All handlers but the thumbnails' run in the server's one event loop, so the state serves one request at a time.
    async def read(request: Request) -> Response:
        return JSONResponse(get[request.url.path.removeprefix("/api/")](request))

    async def write(request: Request) -> Response:
        return JSONResponse(post[request.url.path.removeprefix("/api/")](await _body(request)))

    async def thumbnail(request: Request) -> Response:
        landmark = _text(request, "split"), _number(request, "id")
        try:
            data = await run_in_threadpool(review.thumbnails.jpeg, landmark, _number(request, "number"))
        except ImageError as error:
            return JSONResponse({"error": f"the image: {error}"}, status_code=422)
        if data is None:
            raise HTTPException(404)
        return Response(data, media_type="image/jpeg")

    async def file(request: Request) -> Response:
        return FileResponse(_FILES[request.url.path])

    routes = [Route(path, file) for path in _FILES]
    routes += [Route(f"/api/{what}", read) for what in get]
    routes += [Route(f"/api/{what}", write, methods=["POST"]) for what in post]
    routes.append(Route("/api/thumbnail", thumbnail))
    handlers: dict[Any, Any] = {HgldError: answer_error, StaleError: _on_stale}
    return Guard(Starlette(routes=routes, exception_handlers=handlers), token, _POLICY)


async def _on_stale(_request: Request, _error: Exception) -> Response:
    said = "The decisions changed in another window or in the file itself; the page shows them now. Decide again."
    return JSONResponse({"error": said, "stale": True}, status_code=409)


async def _body(request: Request) -> dict[str, Any]:
    data = await read_body(request, _LARGEST_BODY)
    try:
        return parse_json(data, "the request", kind=dict)
    except InputError as error:
        raise HTTPException(400, str(error)) from error


def _actions(given: dict[str, Any]) -> list[list[dict[str, Any]]]:
    actions = _list(given.get("actions", [given.get("decisions")]), list, "actions")
    return [_list(action, dict, "decisions") for action in actions]


def _list(value: Any, of: type, field: str) -> list[Any]:
    is_right = isinstance(value, list) and bool(value) and all(isinstance(one, of) for one in value)
    return _checked(value, is_right, f"a list as {field}")


def _revision(given: dict[str, Any]) -> int:
    value = given.get("revision")
    return _checked(value, type(value) is int, "a number as revision")


def _text(request: Request, field: str) -> str:
    return _checked(request.query_params.get(field), field in request.query_params, field)


def _number(request: Request, field: str) -> int:
    value = request.query_params.get(field, "0")
    return int(_checked(value, value.isascii() and value.isdigit() and len(value) < 19, f"a number as {field}"))


def _checked(value: Any, is_right: bool, expected: str) -> Any:
    if not is_right:
        raise HTTPException(400, f"expected {expected}")
    return value


def serve(review: Review, port: int, announce: Callable[[str], None]) -> None:
    """Serve the page of a review until the process is stopped (:func:`hgld.local_server.serve`)."""
    serve_page(partial(application, review), port, announce)
