"""The local page of a model: drop a photo, and see its predicted classes and the nearest images of a dataset."""

import shlex
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import Route

from hgld.data.dataset import ShardDataset, dataset_of_images
from hgld.errors import HgldError
from hgld.html_page import PAGES, Thumbnails, data_uri, render_page, render_part
from hgld.local_server import Guard, answer_error, read_body
from hgld.local_server import serve as serve_page
from hgld.prediction.calibration import Calibration
from hgld.report_page.figures import grade_index

from .embedder import Embedder
from .search import Gallery, search

MOST_BYTES = 1 << 25  # of a photo
_MOST_NAME = 200
_POLICY = "frame-ancestors 'none'"  # the page states the rest of its policy itself


@dataclass(frozen=True)
class Searcher:
    """A model and the dataset that its page searches.

    Attributes:
        embedder: the model.
        dataset: items to search.
        gallery: embeddings of these items.
        options: further arguments of :func:`hgld.training.inference.search.search`.
    """

    embedder: Embedder
    dataset: ShardDataset
    gallery: Gallery
    options: Mapping[str, Any]
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def page(self) -> str:
        """Return the page, which has no matches yet."""
        calibration: Calibration | None = self.options["calibration"]
        return render_page(
            PAGES / "serve.html",
            ["search.js", "serve.js"],
            title=f"What is it? Search in {self.dataset.manifest.name}",
            dataset=self.dataset.manifest.name,
            items=len(self.dataset),
            levels=self.dataset.levels,
            grade_index=grade_index,
            predicts=calibration is not None,
        )

    def matches(self, photo: bytes, name: str, within: Mapping[str, str]) -> str:
        """Return the matches of a photo as HTML, one photo at a time.

        Args:
            photo: the encoded image, which may be anybody's.
            name: name of the photo on the page.
            within: class names by level; only images of these classes are searched.

        Raises:
            InputError: the image cannot be decoded.
            ConfigError: a level or class of ``within`` is unknown.
        """
        with self._lock:
            image = data_uri(dataset_of_images([photo]).image(0))
            result = search(self.embedder, [photo], self.dataset, gallery=self.gallery, within=within, **self.options)
        found = replace(result.found[0], image=name)
        return render_part(
            "matches.html",
            found=found,
            image=image,
            levels=self.dataset.levels,
            within=within,
            thumbnails=Thumbnails(self.dataset.select([match.index for match in found.matches])),
            grade_index=grade_index,
            quote=shlex.quote,
        )


def application(searcher: Searcher, token: str) -> Guard:
    """Return the application of the page, wrapped in a guard.

    ``POST /api/search?name=T&level=T&class=T`` with a photo as body returns its matches as HTML, or an error as JSON.
    """

    async def page(_request: Request) -> Response:
        return HTMLResponse(searcher.page())

    async def matches(request: Request) -> Response:
        photo, asked = await read_body(request, MOST_BYTES), request.query_params
        within = {asked["level"]: asked["class"]} if {"level", "class"} <= set(asked) else {}
        name = asked.get("name", "")[:_MOST_NAME] or "photo"
        return HTMLResponse(await run_in_threadpool(searcher.matches, photo, name, within))

    routes = [Route("/", page), Route("/api/search", matches, methods=["POST"])]
    return Guard(Starlette(routes=routes, exception_handlers={HgldError: answer_error}), token, _POLICY)


def serve(searcher: Searcher, port: int, announce: Callable[[str], None]) -> None:
    """Serve the page until the process is stopped (:func:`hgld.local_server.serve`)."""
    serve_page(partial(application, searcher), port, announce)
