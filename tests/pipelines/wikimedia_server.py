"""A small Commons and Wikidata on 127.0.0.1 with realistic responses, a request log and planned failures.

The state is plain data, so that a test can set the content of the wikis and read the requests.
"""

import gzip
import json
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from html import escape
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from hgld.pipelines.web import PoliteClient
from tests.local_server import LocalServer, SilentHandler

NO_SUCH_PAGE = '<html><head><meta name="generator" content="MediaWiki 1.39.1"/></head><body>none</body></html>'


@dataclass
class Wiki:
    """The contents of both wikis.

    Attributes:
        pages: Commons pages by title: ``text``, and ``item`` (page property) or ``redirect`` (hard redirect) if any.
        sitelinks: item of each linked Commons title.
        entities: Wikidata entities by id, as :func:`item` makes them; a merged item is ``{"redirect": id}``.
        rows: name of the infobox row by language; other languages use "Instance of".
    """

    pages: dict[str, dict[str, str]] = field(default_factory=dict)
    sitelinks: dict[str, str] = field(default_factory=dict)
    entities: dict[str, dict[str, Any]] = field(default_factory=dict)
    rows: dict[str, str] = field(default_factory=dict)

    def category(self, name: str, item: str | None = None, text: str = "", linked: bool = True) -> str:
        """Add a category page; ``linked``: its item has the sitelink, else only the page states its item."""
        title = f"Category:{name}"
        self.pages[title] = {"text": text} | ({"item": item} if item else {})
        if item and linked:
            self.sitelinks[title] = item
        return title

    def item(self, item: str, label: str | dict[str, str] | None = None, **claims: Any) -> str:
        """Add an item; ``claims`` are P31, P279 or P301 with ids or statements."""
        labels = {"en": label} if isinstance(label, str) else (label or {})
        self.entities[item] = {
            "type": "item",
            "id": item,
            "labels": {code: {"language": code, "value": text} for code, text in labels.items()},
            "claims": {
                name: [value if isinstance(value, dict) else statement(value) for value in values]
                for name, values in claims.items()
            },
        }
        return item


def statement(item: str, rank: str = "normal", snaktype: str = "value") -> dict[str, Any]:
    """Return a statement in Wikibase's form; ``snaktype`` may be ``somevalue`` or ``novalue``."""
    snak: dict[str, Any] = {"snaktype": snaktype, "hash": "0" * 40, "datatype": "wikibase-item"}
    if snaktype == "value":
        value = {"entity-type": "item", "numeric-id": int(item[1:]), "id": item}
        snak["datavalue"] = {"value": value, "type": "wikibase-entityid"}
    return {"mainsnak": snak, "type": "statement", "id": f"{item}$0", "rank": rank}


def answer_entities(wiki: Wiki, params: dict[str, str]) -> dict[str, Any]:
    """Return the answer to ``action=wbgetentities``."""
    entities: dict[str, Any] = {}
    wanted = params["languages"].split("|")
    if "titles" in params:
        keys = params["titles"].split("|")
        found = [(title, wiki.sitelinks.get(title)) for title in keys]
    else:
        keys = params["ids"].split("|")
        found = [(item, item) for item in keys]
    if len(keys) > 50:
        return {"error": {"code": "toomanyvalues", "info": "Too many values supplied. The limit is 50."}}
    for position, (key, item) in enumerate(found, start=1):
        entity = wiki.entities.get(item) if item else None
        if item is None:
            entities[f"-{position}"] = {"site": "commonswiki", "title": key, "missing": ""}
            continue
        if entity is None:
            entities[item] = {"id": item, "missing": ""}
            continue
        merged = {}
        if "redirect" in entity:
            merged = {"redirects": {"from": item, "to": entity["redirect"]}}
            entity = wiki.entities[entity["redirect"]]
        labels = {code: label for code, label in entity["labels"].items() if code in wanted}
        entities[item] = {**merged, **entity, "labels": labels or [], "claims": entity["claims"] or []}
        if "sitelinks" in params["props"]:
            links = {"commonswiki": {"site": "commonswiki", "title": key, "badges": []}} if "titles" in params else {}
            entities[item]["sitelinks"] = links
    return {"entities": entities, "success": 1}


def answer_query(wiki: Wiki, params: dict[str, str]) -> dict[str, Any]:
    """Return the answer to ``action=query`` with ``formatversion=2``."""
    redirects, pages = [], []
    for position, asked in enumerate(params["titles"].split("|")):
        title, seen = asked, set()
        while (target := wiki.pages.get(title, {}).get("redirect")) and title not in seen:
            redirects.append({"from": title, "to": target})
            seen.add(title)
            title = target
        page = wiki.pages.get(title)
        if title in seen:
            continue
        if page is None:
            pages.append({"ns": 14, "title": title, "missing": True})
            continue
        content = {"contentmodel": "wikitext", "contentformat": "text/x-wiki", "content": page["text"]}
        raw = {"pageid": position + 1, "ns": 14, "title": title, "revisions": [{"slots": {"main": content}}]}
        pages.append(raw | ({"pageprops": {"wikibase_item": page["item"]}} if "item" in page else {}))
    return {"batchcomplete": True, "query": {"redirects": redirects, "pages": pages}}


def answer_page(wiki: Wiki, title: str, language: str = "en") -> str | None:
    """Return the HTML of a category page with its infobox; None if the page is missing."""
    page = wiki.pages.get(title)
    if page is None:
        return None
    if page.get("unwritten"):  # MediaWiki responds with HTTP 200 to a category that has members but no page
        return '<html><body><div class="noarticletext mw-content-ltr">There is no page.</div></body></html>'
    entity = wiki.entities.get(page.get("item", ""))
    if entity is None:
        return f"<html><body><p>{escape(page['text'])}</p></body></html>"
    classes = [
        s["mainsnak"]["datavalue"]["value"]["id"]
        for s in entity["claims"].get("P31", [])
        if "datavalue" in s["mainsnak"]
    ]
    labels = [wiki.entities[c].get("labels", {}) for c in classes if c in wiki.entities]
    names = [label["en"]["value"] for label in labels if "en" in label]
    items = "".join(f'<li><a href="/wiki/Category:{escape(n)}">{escape(n)}</a></li>' for n in names)
    heading = wiki.rows.get(language, "Instance of")
    row = f'<tr><th class="wikidatainfobox-lcell">{heading}</th><td><ul>{items}</ul></td></tr>' if names else ""
    return f'<html><body><table id="wdinfobox"><tbody>{row}</tbody></table></body></html>'


@dataclass(frozen=True)
class Asked:
    """A request in the server's log; ``kind`` is ``titles``, ``ids``, ``query`` or ``html``."""

    kind: str
    keys: tuple[str, ...]
    method: str
    params: dict[str, str]
    headers: dict[str, str]


Fault = Callable[["Handler"], None]


class WikimediaServer(LocalServer):
    """A server of a :class:`Wiki`; each request first uses up one of ``faults``, if any is left."""

    def __init__(self, wiki: Wiki, delay: float = 0.0, port: int = 0):
        self.wiki, self.delay = wiki, delay
        self.log: list[Asked] = []
        self.faults: list[Fault] = []
        self.released = threading.Event()
        super().__init__(Handler, "/w/api.php", port)

    def __exit__(self, *exception: Any) -> None:
        self.released.set()
        super().__exit__(*exception)

    def asked(self, kind: str) -> list[str]:
        """Return every key in the requests of one kind, in order."""
        return [key for request in self.log if request.kind == kind for key in request.keys]


class Handler(SilentHandler):
    """A handler that answers one request, or fails in the next planned way."""

    site: WikimediaServer
    asked: Asked
    # send headers and body in one packet, because a second packet waits for a delayed acknowledgement
    wbufsize = 1 << 16

    def do_GET(self) -> None:
        split = urlsplit(self.path)
        self._answer(split.path, {key: values[-1] for key, values in parse_qs(split.query).items()})

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"])).decode()
        self._answer(urlsplit(self.path).path, {key: values[-1] for key, values in parse_qs(body).items()})

    def _answer(self, path: str, params: dict[str, str]) -> None:
        if path.endswith("index.php"):
            kind, keys = "html", (params["title"].replace("_", " "),)
        elif not path.endswith("api.php"):
            kind, keys = "html", (unquote(path).removeprefix("/wiki/").replace("_", " "),)
        else:
            kind = "query" if params["action"] == "query" else "titles" if "titles" in params else "ids"
            keys = tuple(params.get("titles", params.get("ids", "")).split("|"))
        self.asked = Asked(kind, keys, self.command, params, dict(self.headers))
        self.site.log.append(self.asked)
        if self.site.delay:
            time.sleep(self.site.delay)
        if self.site.faults:
            self.site.faults.pop(0)(self)
        else:
            self.respond()

    def respond(self) -> None:
        """Answer the request."""
        asked = self.asked
        if asked.kind == "html":
            html = answer_page(self.site.wiki, asked.keys[0], asked.params.get("uselang", "en"))
            self.send(200 if html else 404, (html or NO_SUCH_PAGE).encode(), "text/html; charset=utf-8")
        else:
            answer = answer_query if asked.kind == "query" else answer_entities
            self.send_json(answer(self.site.wiki, asked.params))

    def send_json(self, data: Any) -> None:
        self.send(200, json.dumps(data).encode(), "application/json; charset=utf-8")

    def send(self, status: int, body: bytes, kind: str = "text/html", **headers: str) -> None:
        """Send an answer, compressed if the client accepts it; ``headers`` have underscores for hyphens."""
        if "gzip" in self.headers.get("Accept-Encoding", ""):
            body = gzip.compress(body, 1)
            headers["Content_Encoding"] = "gzip"
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(body)


def status(code: int, **headers: str) -> Fault:
    """Answer an HTTP status with a page of text."""
    return lambda handler: handler.send(code, b"<h1>Our servers are currently under maintenance</h1>", **headers)


def api_error(code: str, info: str = "", **headers: str) -> Fault:
    """Answer an API error object, with HTTP 200 as MediaWiki does."""
    body = json.dumps({"error": {"code": code, "info": info}}).encode()
    return lambda handler: handler.send(200, body, "application/json", **headers)


def raw_answer(body: bytes) -> Fault:
    """Answer HTTP 200 with these bytes."""
    return lambda handler: handler.send(200, body, "application/json")


def redirect_to_self(handler: Handler) -> None:
    """Redirect to the requested address itself."""
    handler.send(302, b"", Location=handler.path)


def cut_off(handler: Handler) -> None:
    """Announce more bytes than are sent, then close."""
    handler.send_response(200)
    handler.send_header("Content-Type", "application/json")
    handler.send_header("Content-Length", "1000")
    handler.end_headers()
    handler.wfile.write(b'{"entities": {"Q1":')
    handler.close_connection = True


def hang(handler: Handler) -> None:
    """Send nothing until the server is closed."""
    handler.site.released.wait(20)
    handler.close_connection = True


def trickle(handler: Handler) -> None:
    """Send single bytes slowly, so that no single read times out."""
    handler.send_response(200)
    handler.send_header("Content-Type", "application/json")
    handler.send_header("Content-Length", "100000")
    handler.end_headers()
    try:
        while not handler.site.released.wait(0.05):
            handler.wfile.write(b" ")
            handler.wfile.flush()
    except OSError:  # the client closed the connection
        pass
    handler.close_connection = True


class Canned(PoliteClient):
    """Fake client that returns prepared responses in order and repeats the last one."""

    def __init__(self, *answers: dict[str, Any]):
        self.answers = list(answers)
        self.asked: list[dict[str, str]] = []

    def api(self, url: str, params: Any) -> dict[str, Any]:
        self.asked.append(dict(params))
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
