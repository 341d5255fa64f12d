"""Servers of a rehearsal on 127.0.0.1: files with byte ranges, and fakes of Commons and Wikidata with failures."""

import itertools
import re
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, cast
from urllib.parse import unquote

import numpy as np

from rehearsed.world import CATEGORY_ITEM, ITEM, MERGED_ITEM, NOTHING, ROADS, SETS, World
from tests.pipelines.wikimedia_server import (
    Asked,
    Fault,
    Wiki,
    WikimediaServer,
    api_error,
    cut_off,
    statement,
    status,
)


class _QuietServer(ThreadingHTTPServer):
    request_queue_size = 128  # connections of one client that wait to be accepted

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Print no error for killed clients."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


class FileServer:
    """Server of the files in a folder, with ranges; the ETag is the file's size and time.

    Args:
        folder: folder of the served files.
        port: port to listen on; 0: a free port.
        delay: seconds before each response.
        failing: every response of this number fails: status 503, or a connection that ends early; 0: none fails.
    """

    def __init__(self, folder: Path, port: int = 0, delay: float = 0.0, failing: int = 0) -> None:
        handler = partial(_FileHandler, folder.resolve(), delay, failing, itertools.count(1))
        self._server = _QuietServer(("127.0.0.1", port), handler)
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> "FileServer":
        return self

    def __exit__(self, *exception: object) -> None:
        self._server.shutdown()
        self._server.server_close()


class _FileHandler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = 1 << 16

    def __init__(self, folder: Path, delay: float, failing: int, numbers: Iterator[int], *given: Any) -> None:
        self.folder, self.delay, self.failing, self.numbers = folder, delay, failing, numbers
        super().__init__(*given)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        """Log nothing, because a rehearsal makes thousands of requests."""

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        time.sleep(self.delay)
        number = next(self.numbers)
        turn, is_whole = divmod(number, self.failing) if self.failing else (0, 1)
        if not is_whole and turn % 2:
            self._begin(503, 0)
            return
        path = (self.folder / unquote(self.path.partition("?")[0]).lstrip("/")).resolve()
        if not (path.is_relative_to(self.folder) and path.is_file()):
            self._begin(404, 0)
            return
        facts = path.stat()
        etag, size = f'"{facts.st_size:x}-{facts.st_mtime_ns:x}"', facts.st_size
        asked = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        first, last = 0, size - 1
        headers = {"ETag": etag, "Accept-Ranges": "bytes"}
        if asked and self.headers.get("If-Range") in (None, etag):
            first, last = int(asked[1]), min(last, int(asked[2] or last))
            if first > last:
                self._begin(416, 0, **{"Content-Range": f"bytes */{size}"})
                return
            self._begin(206, last - first + 1, **headers, **{"Content-Range": f"bytes {first}-{last}/{size}"})
        else:
            self._begin(200, size, **headers)
        if self.command == "GET":
            self._send(path, first, last + 1 if is_whole else (first + last) // 2)
        self.close_connection |= not is_whole

    def _begin(self, code: int, length: int, **headers: str) -> None:
        self.send_response(code)
        for name, value in {**headers, "Content-Length": str(length)}.items():
            self.send_header(name, value)
        self.end_headers()

    def _send(self, path: Path, first: int, end: int) -> None:
        try:
            with open(path, "rb") as file:
                file.seek(first)
                while first < end and (data := file.read(min(1 << 18, end - first))):
                    self.wfile.write(data)
                    first += len(data)
        except ConnectionError:  # a killed client needs no response
            self.close_connection = True


# -- Commons and Wikidata ---------------------------------------------------------------------------------------------

_FAULTS: tuple[Fault, ...] = (
    status(429, Retry_After="1"),
    status(503),
    api_error("maxlag", "Waiting for a database server: 6.2 seconds lagged", Retry_After="1"),
    cut_off,
)
_ALL_ROADS = (*ROADS, *NOTHING)


class _SomeFaults(list[Fault]):
    """Queue of failures: one per hundred requests, beginning with the third, each type in turn."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = self.done = 0

    def __bool__(self) -> bool:
        self.asked += 1
        return self.asked % 100 == 3

    def pop(self, index: Any = -1) -> Fault:
        self.done += 1
        return _FAULTS[(self.done - 1) % len(_FAULTS)]


class _Looked(Mapping[str, Any]):
    """Mapping that computes each value at lookup."""

    def __init__(self, look: Callable[[str], Any]) -> None:
        self._look = look

    def __getitem__(self, key: str) -> Any:
        found = self._look(key)
        if found is None:
            raise KeyError(key)
        return found

    def __iter__(self) -> Iterator[str]:
        return iter(())

    def __len__(self) -> int:
        return 0


class Wikis(WikimediaServer):
    """Both wikis of a world at one address, with a count of requests."""

    def __init__(self, world: World, port: int = 0) -> None:
        lists = [world.landmarks[which] for which in SETS]
        self._world = world
        self._road, self._name, self._second = (
            np.concatenate([getattr(one, column) for one in lists]) for column in ("road", "name", "second")
        )
        looked = (self._page, self._sitelink, self._entity)
        pages, sitelinks, entities = (cast(dict[str, Any], _Looked(look)) for look in looked)
        super().__init__(Wiki(pages, sitelinks, entities), port=port)
        self.faults = _SomeFaults()
        self.log = _Counted()

    def _place(self, title: str) -> tuple[int, str] | None:
        """Return number and road of a title's place, or None for a missing page; ``moved`` pages have another title."""
        found = re.fullmatch(r"Category:(.+) (\d{1,7})( \(moved\))?", title)
        if found is None or int(found[2]) >= len(self._road):
            return None
        place = int(found[2])
        road = _ALL_ROADS[self._road[place]]
        if self._world.title(place) != f"{found[1]} {found[2]}" or road == "missing":
            return None
        if found[3]:
            return (place, "stated") if road in ("moved", "template") else None
        return place, road

    def _page(self, title: str) -> dict[str, str] | None:
        match self._place(title):
            case None:
                return None
            case place, "stated" | "no instance of":
                return {"text": "", "item": f"Q{ITEM + place}"}
            case _, "moved":
                return {"text": "", "redirect": f"{title} (moved)"}
            case _, "template":
                return {"text": f"{{{{Category redirect|{title.removeprefix('Category:')} (moved)}}}}"}
            case _:
                return {"text": "A place."}

    def _sitelink(self, title: str) -> str | None:
        match self._place(title):
            case place, "linked":
                return f"Q{ITEM + place}"
            case place, "main topic":
                return f"Q{CATEGORY_ITEM + place}"
            case place, "merged":
                return f"Q{MERGED_ITEM + place}"
            case _:
                return None

    def _entity(self, item: str) -> dict[str, Any] | None:
        if item in self._world.ancestors:
            label, parents = self._world.ancestors[item]
            return _item(item, label, P279=parents)
        if not item:  # the route html asks for the empty item if a page has none
            return None
        kind, place = divmod(int(item[1:]), ITEM)
        if place >= len(self._road):
            return None
        if kind * ITEM == MERGED_ITEM:
            return {"redirect": f"Q{ITEM + place}"}
        if kind * ITEM == CATEGORY_ITEM:
            return _item(item, f"Category {place}", P31=("Q4167836",), P301=(f"Q{ITEM + place}",))
        kinds = [kind for kind in (self._name[place], self._second[place]) if kind >= 0]
        return _item(item, self._world.title(place), P31=tuple(self._world.names[kind].item for kind in kinds))


class _Counted(list[Asked]):
    """A log that keeps only the number of requests."""

    def __init__(self) -> None:
        super().__init__()
        self.requests = 0

    def append(self, object: Asked) -> None:  # noqa: A002
        self.requests += 1


def _item(item: str, label: str, **claims: tuple[str, ...]) -> dict[str, Any]:
    return {
        "type": "item",
        "id": item,
        "labels": {"en": {"language": "en", "value": label}},
        "claims": {name: [statement(value) for value in values] for name, values in claims.items() if values},
    }
