"""Fake Hugging Face Hub with the parts of the interface that ``hgld push`` and ``hf:`` addresses use."""

import base64
import hashlib
import json
import math
import re
from urllib.parse import unquote, urlsplit

from tests.local_server import LocalServer, SilentHandler

LARGE = 10_000  # files of at least this many bytes go to large file storage


class Hub(LocalServer):
    """Fake Hub: repositories, keyed by type and name, with their files, and a record of the requests."""

    def __init__(self) -> None:
        self.repositories: dict[str, dict[str, bytes]] = {}
        self.stored: dict[str, bytes] = {}
        self.asked: list[str] = []
        self.accepted = math.inf  # number of commits that the Hub still accepts
        self.refusal: tuple[int, dict[str, str]] | None = (
            None  # status and headers of error responses about repositories
        )
        super().__init__(_Handler)


class _Handler(SilentHandler):
    site: Hub

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
        self.site.asked.append(f"{self.command} {path}")
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if self.site.refusal is not None and path.startswith("/api/"):
            return self.answer({"error": "refused"}, self.site.refusal[0], **self.site.refusal[1])
        if path == "/api/repos/create":
            asked = json.loads(body)
            kind, name = asked.get("type") or "model", f"{asked['organization']}/{asked['name']}"
            self.site.repositories.setdefault(f"{kind}s/{name}", {})
            return self.answer({"url": f"{self.site.url}/{'datasets/' if kind == 'dataset' else ''}{name}"})
        if path == "/api/validate-yaml":
            return self.answer({"errors": [], "warnings": []})
        if match := re.fullmatch(r"/lfs/(\w+)", path):
            self.site.stored[match[1]] = body
            return self.answer()
        if path.endswith("/info/lfs/objects/batch"):
            return self.batch(json.loads(body))
        if match := re.fullmatch(r"/(datasets/)?([\w.-]+/[\w.-]+)/resolve/(\w+)/(.+)", path):
            return self.file(f"{match[1] or 'models/'}{match[2]}", match[4])
        match = re.fullmatch(r"/api/((?:datasets|models)/[\w.-]+/[\w.-]+)(/.*)?", path)
        if match is None or match[1] not in self.site.repositories:
            return self.answer({"error": "Repository not found"}, 404, X_Error_Code="RepoNotFound")
        return self.api(match[1], match[2] or "", body)

    do_GET = do_POST = do_PUT = do_HEAD = route

    def api(self, name, rest, body):
        files = self.site.repositories[name]
        if rest.startswith("/tree"):
            return self.answer([described(path, content) for path, content in sorted(files.items())])
        if rest.startswith("/preupload"):
            modes = [
                {"path": f["path"], "uploadMode": "lfs" if f["size"] >= LARGE else "regular", "shouldIgnore": False}
                | ({"oid": object_id(files[f["path"]])} if f["path"] in files else {})
                for f in json.loads(body)["files"]
            ]
            return self.answer({"files": modes})
        if rest.startswith("/commit"):
            return self.commit(files, body)
        facts = {"id": name.partition("/")[2], "sha": revision(files)}
        return self.answer({**facts, "siblings": [{"rfilename": path} for path in sorted(files)]})

    def commit(self, files, body):
        self.site.accepted -= 1
        if self.site.accepted < 0:
            return self.answer({"error": "out of order"}, 422)
        for line in body.decode().splitlines():
            entry = json.loads(line)
            value = entry["value"]
            if entry["key"] == "file":
                files[value["path"]] = base64.b64decode(value["content"])
            elif entry["key"] == "lfsFile":
                files[value["path"]] = self.site.stored[value["oid"]]
        url = f"{self.site.url}/somebody/something/commit/1"
        return self.answer({"commitUrl": url, "commitOid": revision(files)})

    def batch(self, asked):
        objects = asked["objects"]
        for one in objects:
            if one["oid"] not in self.site.stored:
                one["actions"] = {"upload": {"href": f"{self.site.url}/lfs/{one['oid']}"}}
        return self.answer({"transfer": "basic", "objects": objects})

    def file(self, name, path):
        files = self.site.repositories.get(name, {})
        if path not in files:
            return self.answer(b"", 404, X_Error_Code="EntryNotFound")
        content = files[path]
        tag = {"ETag": f'"{hashlib.sha256(content).hexdigest()}"', "X_Repo_Commit": revision(files)}
        return self.answer(content, **tag)


def revision(files: dict[str, bytes]) -> str:
    return hashlib.sha1(repr(sorted(files.items())).encode(), usedforsecurity=False).hexdigest()


def object_id(content: bytes) -> str:
    """Return a file's object id: SHA-256 in large file storage, otherwise git's SHA-1."""
    if len(content) >= LARGE:
        return hashlib.sha256(content).hexdigest()
    return hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()


def described(path: str, content: bytes) -> dict:
    facts = {"type": "file", "path": path, "size": len(content), "oid": object_id(content)}
    if len(content) >= LARGE:
        facts["lfs"] = {"oid": object_id(content), "size": len(content), "pointerSize": 100}
    return facts
