"""Fifty people at one review page: errors, decisions that were lost, and the server's memory.

    PYTHONPATH=. python benchmarks/review_load.py [--minutes 10] [--clients 50] [--names 500] [--pause 4]

The server is `hgld review` in a process of its own, on 127.0.0.1. Each client reads what the page reads, decides, and
takes back half of what it decided, with pauses as people make them. A decision on an outdated state is answered 409 and
decided again, as the page does. In the end the file must hold the decisions that were confirmed and not taken back, in
their order, and no others; it ends with 1 where it does not, or where an answer was none of 200 and 409.
"""

import argparse
import http.client
import json
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

from hgld.pipelines.hierarchy.review.decisions.decision_files import read_decisions
from tests.pipelines.reviewed_build import write_build

READS = ("/api/state", "/api/queue", "/api/team", "/api/names", "/api/groups", "/api/name", "/api/group")


@dataclass
class Found:
    """Observations of the clients: answers by status, seconds of each, confirmed changes by the revision they made."""

    statuses: Counter[int] = field(default_factory=Counter)
    seconds: list[float] = field(default_factory=list)
    changes: dict[int, str | None] = field(default_factory=dict)  # the decision's reason; None: the last was taken back
    faults: list[str] = field(default_factory=list)

    def left(self) -> list[str]:
        """Reasons of the decisions that were confirmed and not taken back."""
        stack: list[str] = []
        for _, why in sorted(self.changes.items()):
            stack.append(why) if why is not None else stack.pop()
        return stack


class Client:
    """One person's page."""

    def __init__(self, address: str, number: int, names: list[str], groups: list[str], found: Found) -> None:
        split = urlsplit(address)
        self._connection = http.client.HTTPConnection(split.hostname or "", split.port, timeout=120)
        self._token, self._found, self._number = split.fragment, found, number
        self._names, self._groups, self._draw, self._decided = names, groups, random.Random(number), 0

    def ask(self, path: str, body: Any = None) -> tuple[int, Any]:
        began = time.perf_counter()
        sent = json.dumps(body).encode() if body is not None else None
        headers = {"X-Hgld-Token": self._token}
        self._connection.request("POST" if sent else "GET", path, sent, headers)
        with self._connection.getresponse() as answer:
            data = answer.read()
        self._found.seconds.append(time.perf_counter() - began)
        self._found.statuses[answer.status] += 1
        if answer.status not in (200, 409):
            self._found.faults.append(f"{path}: {answer.status} {data[:300]!r}")
        return answer.status, json.loads(data)

    def leave(self) -> None:
        """Close the connection, as a browser does before the server does; the next turn opens another."""
        self._connection.close()

    def turn(self) -> None:
        """Read something, then decide or take back; again where another was faster."""
        path = self._draw.choice(READS)
        query = {"/api/name": f"?name={quote(self._names[0])}", "/api/group": f"?label={quote(self._groups[0])}"}
        self.ask(path + query.get(path, ""))
        undoes = self._draw.random() < 0.5
        for _ in range(100):
            _, state = self.ask("/api/state")
            revision = state["revision"]
            if undoes and state["decisions"]:
                why = None
                status, answer = self.ask("/api/undo", {"revision": revision})
            else:
                why = f"{self._number}-{self._decided}"
                move = {
                    "action": "move",
                    "names": [self._draw.choice(self._names)],
                    "to": self._draw.choice(self._groups),
                }
                status, answer = self.ask("/api/decide", {"decisions": [move | {"why": why}], "revision": revision})
            if status == 200:
                self._decided += 1
                self._found.changes[answer["revision"]] = why
                return
        self._found.faults.append("others were faster a hundred times")


def load(
    build: Path, minutes: float, clients: int, pause: float, names: list[str], groups: list[str]
) -> dict[str, Any]:
    """Serve a build, put the load on it, and return what was found."""
    file = build / "decisions.yaml"
    words = [sys.executable, "-m", "hgld", "review", str(build), "--who", "ada", "--decisions", str(file), "--json"]
    with subprocess.Popen([*words, "--no-browser"], stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        address, found, ends = json.loads(server.stdout.readline())["address"], Found(), time.monotonic() + 60 * minutes
        memory: list[int] = []

        def client(number: int) -> None:
            own, draw = Client(address, number, names, groups, found), random.Random(-number)
            try:
                while time.monotonic() < ends:
                    own.turn()
                    own.leave()
                    time.sleep(min(draw.uniform(0, 2 * pause), max(0, ends - time.monotonic())))
            except (OSError, http.client.HTTPException, ValueError, KeyError) as error:
                found.faults.append(f"client {number}: {error!r}")

        threads = [threading.Thread(target=client, args=(number,)) for number in range(clients)]
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads):
            memory.append(resident(server.pid))
            threads[0].join(max(0.1, 60 * minutes / 60))
            threads = [thread for thread in threads if thread.is_alive()] or threads[:1]
        server.send_signal(signal.SIGINT)
        server.wait(60)
    kept = [entry.decision.why for entry in read_decisions([file])] if file.exists() else []
    return {
        "requests": sum(found.statuses.values()),
        "statuses": dict(found.statuses),
        "confirmed": sum(why is not None for why in found.changes.values()),
        "taken back": sum(why is None for why in found.changes.values()),
        "kept": len(kept),
        "lost or not asked for": len(set(kept) ^ set(found.left())) + (kept != found.left()),
        "median seconds": round(statistics.median(found.seconds), 4),
        "slowest seconds": round(max(found.seconds), 3),
        "memory MB": [size >> 20 for size in memory[:: max(1, len(memory) // 10)]],
        "exit": server.returncode,
        "faults": found.faults[:20],
    }


def resident(process: int) -> int:
    """Bytes of memory that a process has in use."""
    return int(Path(f"/proc/{process}/statm").read_text().split()[1]) * 4096


def many(names: int) -> dict[int, Any]:
    """Groups of twenty names."""
    return {
        group: (f"group {group}", None, {f"name {n} of a thing": (n % 7 + 1, 0.5, n % 10 == 0, 0) for n in
                                         range(20 * group, min(names, 20 * group + 20))})
        for group in range(max(2, names // 20))
    }  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--clients", type=int, default=50)
    parser.add_argument("--names", type=int, default=500)
    parser.add_argument("--pause", type=float, default=4.0, help="seconds between a client's turns, on average")
    given = parser.parse_args()
    groups = many(given.names)
    names, labels = [name for _, _, of in groups.values() for name in of], [label for label, *_ in groups.values()]
    with tempfile.TemporaryDirectory() as folder:
        build = write_build(Path(folder, "build"), groups)
        found = load(build, given.minutes, given.clients, given.pause, names, labels)
    print(json.dumps(found, indent=2))
    return bool(found["faults"] or found["lost or not asked for"])


if __name__ == "__main__":
    sys.exit(main())
