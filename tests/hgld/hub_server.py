"""A server that speaks those parts of the Hugging Face Hub's interface that hgld's hub verbs use."""

import base64
import hashlib
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit

LARGE = 10_000  # bytes from which a file goes to large file storage


@dataclass
class Hub:
    """Repositories by kind and name, each with its files; and what was asked."""

    repositories: dict[str, dict[str, bytes]] = field(default_factory=dict)
    stored: dict[str, bytes] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)
    refuse_after: int | None = None  # commits that are still taken
    refusal: tuple[int, dict[str, str]] | None = None  # status and headers of every answer about repositories
    vanished: set[str] = field(default_factory=set)  # files that are listed and not there
    url: str = ""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    hub: Hub

    def log_message(self, format, *args):  # noqa: A002
        pass

    def answer(self, content: object = b"", status=200, **headers):
        body = content if isinstance(content, bytes) else json.dumps(content).encode()
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def route(self):
        path = unquote(urlsplit(self.path).path)
        self.hub.asked.append(f"{self.command} {path}")
        size = int(self.headers.get("Content-Length") or 0)
        body = self.rfile.read(size)
        if self.hub.refusal is not None and path.startswith("/api/"):
            return self.answer({"error": "refused"}, self.hub.refusal[0], **self.hub.refusal[1])
        if path == "/api/repos/create":
            asked = json.loads(body)
            kind, name = asked.get("type") or "model", f"{asked['organization']}/{asked['name']}"
            self.hub.repositories.setdefault(f"{kind}s/{name}", {})
            return self.answer({"url": f"{self.hub.url}/{'datasets/' if kind == 'dataset' else ''}{name}"})
        if path == "/api/validate-yaml":
            return self.answer({"errors": [], "warnings": []})
        if match := re.fullmatch(r"/lfs/(\w+)", path):
            self.hub.stored[match[1]] = body
            return self.answer()
        if path.endswith("/info/lfs/objects/batch"):
            return self.batch(json.loads(body))
        if match := re.fullmatch(r"/(datasets/)?([\w.-]+/[\w.-]+)/resolve/(\w+)/(.+)", path):
            return self.file(f"{match[1] or 'models/'}{match[2]}", match[4])
        match = re.fullmatch(r"/api/((?:datasets|models)/[\w.-]+/[\w.-]+)(/.*)?", path)
        if match is None or match[1] not in self.hub.repositories:
            return self.answer({"error": "Repository not found"}, 404, X_Error_Code="RepoNotFound")
        return self.api(match[1], match[2] or "", body)

    do_GET = do_POST = do_PUT = do_HEAD = route

    def api(self, name, rest, body):
        files = self.hub.repositories[name]
        if rest.startswith("/tree"):
            return self.answer([described(path, content) for path, content in sorted(files.items())])
        if rest.startswith("/preupload"):
            modes = [
                {"path": f["path"], "uploadMode": "lfs" if f["size"] >= LARGE else "regular", "shouldIgnore": False}
                for f in json.loads(body)["files"]
            ]
            return self.answer({"files": modes})
        if rest.startswith("/commit"):
            return self.commit(files, body)
        facts = {"id": name.partition("/")[2], "sha": revision(files), "private": False, "tags": [], "downloads": 0}
        return self.answer({**facts, "siblings": [{"rfilename": path} for path in sorted(files)]})

    def commit(self, files, body):
        if self.hub.refuse_after is not None:
            self.hub.refuse_after -= 1
            if self.hub.refuse_after < 0:
                return self.answer({"error": "out of order"}, 422)
        for line in body.decode().splitlines():
            entry = json.loads(line)
            value = entry["value"]
            if entry["key"] == "file":
                files[value["path"]] = base64.b64decode(value["content"])
            elif entry["key"] == "lfsFile":
                files[value["path"]] = self.hub.stored[value["oid"]]
        url = f"{self.hub.url}/somebody/something/commit/1"
        return self.answer({"commitUrl": url, "commitOid": revision(files)})

    def batch(self, asked):
        objects = [
            {
                **one,
                "actions": {"upload": {"href": f"{self.hub.url}/lfs/{one['oid']}"}}
                if one["oid"] not in self.hub.stored
                else None,
            }
            for one in asked["objects"]
        ]
        objects = [{k: v for k, v in one.items() if v is not None} for one in objects]
        return self.answer({"transfer": "basic", "objects": objects})

    def file(self, name, path):
        files = self.hub.repositories.get(name, {})
        if path not in files or path in self.hub.vanished:
            return self.answer(b"", 404, X_Error_Code="EntryNotFound")
        content = files[path]
        start = int((re.match(r"bytes=(\d+)-", self.headers.get("Range") or "") or [0, 0])[1])
        tag = {"ETag": f'"{hashlib.sha256(content).hexdigest()}"', "X_Repo_Commit": revision(files)}
        return self.answer(content[start:], 206 if start else 200, **tag)


def revision(files: dict[str, bytes]) -> str:
    digest = hashlib.sha1(usedforsecurity=False)
    for path, content in sorted(files.items()):
        digest.update(path.encode() + hashlib.sha256(content).digest())
    return digest.hexdigest()


def described(path: str, content: bytes) -> dict:
    sha1 = hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()
    facts = {"type": "file", "path": path, "size": len(content), "oid": sha1}
    if len(content) >= LARGE:
        facts["lfs"] = {"oid": hashlib.sha256(content).hexdigest(), "size": len(content), "pointerSize": 100}
    return facts


@contextmanager
def serve_hub() -> Iterator[Hub]:
    hub = Hub()
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"hub": hub}))
    server.daemon_threads = True
    hub.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
