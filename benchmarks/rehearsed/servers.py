"""Servers of a rehearsal on 127.0.0.1: files with byte ranges, and fakes of Commons and Wikidata with failures."""

import asyncio
import itertools
import re
import socket
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, cast

import numpy as np
import uvicorn
from starlette.applications import Starlette
from starlette.responses import Response
from starlette.routing import Mount
from starlette.staticfiles import StaticFiles
from starlette.types import Receive, Scope, Send

from rehearsed.world import CATEGORY_ITEM, ITEM, MERGED_ITEM, NOTHING, ROADS, SETS, World
from tests.pipelines.wikimedia_server import (
    Fault,
    Wiki,
    WikimediaServer,
    api_error,
    cut_off,
    statement,
    status,
)


class FileServer:
    """Server of the files in a folder, with ranges and ETags.

    Args:
        folder: folder of the served files.
        port: port to listen on; 0: a free port.
        delay: seconds before each response.
        failing: every response of this number has the status 503; 0: none.
    """

    def __init__(self, folder: Path, port: int = 0, delay: float = 0.0, failing: int = 0) -> None:
        files, numbers = Starlette(routes=[Mount("/", StaticFiles(directory=folder))]), itertools.count(1)

        async def answer(scope: Scope, receive: Receive, send: Send) -> None:
            await asyncio.sleep(delay)
            is_failing = failing and next(numbers) % failing == 0
            await (Response(status_code=503) if is_failing else files)(scope, receive, send)

        listening = socket.create_server(("127.0.0.1", port))
        self.url = f"http://127.0.0.1:{listening.getsockname()[1]}"
        # A log configuration would close all log handlers of the process, and with them captured output.
        config = uvicorn.Config(
            answer, lifespan="off", log_level="critical", log_config=None, timeout_graceful_shutdown=1
        )
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._server.run, args=([listening],), daemon=True)
        self._thread.start()

    def __enter__(self) -> "FileServer":
        return self

    def __exit__(self, *exception: object) -> None:
        self._server.should_exit = True
        self._thread.join()


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
        self.log = cast(list[Any], deque(maxlen=0))  # a log would grow by thousands of requests

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


def _item(item: str, label: str, **claims: tuple[str, ...]) -> dict[str, Any]:
    return {
        "type": "item",
        "id": item,
        "labels": {"en": {"language": "en", "value": label}},
        "claims": {name: [statement(value) for value in values] for name, values in claims.items() if values},
    }
