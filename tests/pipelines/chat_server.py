"""Fake chat completions server on 127.0.0.1, which can fail in several ways."""

import json
import time
from collections.abc import Callable, Mapping
from typing import Any

from tests.local_server import LocalServer, SilentHandler

# takes the name of the requested list and the data; returns the content of the answer
Say = Callable[[str, Mapping[str, Any]], Any]
Fault = Callable[["Handler", Any], None]


def obedient(listed: str, data: Mapping[str, Any]) -> Any:
    """Answer as a model that keeps all labels, sees one class, and puts every name into the first group."""
    if listed == "groups":
        said = [{"group": g["number"], "name": g["label"], "description": f"a {g['label']}"} for g in data["groups"]]
        return {listed: said}
    if listed == "classes":
        return {listed: [{"group": g["number"], "class": "thing"} for g in data["groups"]]}
    return {listed: [{"name": n["number"], "group": 1} for n in data["names"]]}


class ChatServer(LocalServer):
    """Server that answers with the next of ``faults``, else with ``say``; ``log`` has request bodies and headers."""

    def __init__(self, say: Say = obedient):
        self.say = say
        self.faults: list[Fault] = []
        self.log: list[tuple[dict[str, Any], Mapping[str, str]]] = []
        super().__init__(Handler, "/v1")


class Handler(SilentHandler):
    site: ChatServer
    protocol_version = "HTTP/1.0"

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.site.log.append((body, dict(self.headers)))
        assert self.path == "/v1/chat/completions"
        data = json.loads(body["messages"][1]["content"])
        said = self.site.say(body["response_format"]["json_schema"]["name"], data)
        (self.site.faults.pop(0) if self.site.faults else answer)(self, said)

    def send(self, status: int, body: bytes, **headers: str) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(body)


def completion(text: str, reason: str = "stop") -> bytes:
    choice = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": reason}
    return json.dumps({"choices": [choice], "usage": {"total_tokens": 100}}).encode()


def answer(handler: Handler, said: Any) -> None:
    handler.send(200, completion(json.dumps(said)))


def status(number: int, body: bytes = b"no", **headers: str) -> Fault:
    """Return a handler that sends this response."""
    return lambda handler, said: handler.send(number, body, **headers)


def text(content: str, reason: str = "stop") -> Fault:
    """Return a handler that sends this text as the answer."""
    return status(200, completion(content, reason))


def cut_off(handler: Handler, said: Any) -> None:
    """End the connection in the middle of the answer."""
    handler.send(200, b'{"choices": [', Content_Length="1000")


def late(handler: Handler, said: Any) -> None:
    time.sleep(0.6)
    answer(handler, said)
