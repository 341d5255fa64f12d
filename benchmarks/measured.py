"""Shared parts of benchmarks: child processes, memory as Linux reports it, and files of finished measurements."""

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any


def status_bytes(field: str) -> int:
    """Return bytes of this process: ``VmHWM`` for its peak, ``VmRSS``, or ``RssAnon`` without the pages of files."""
    with open("/proc/self/status", encoding="ascii") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith(field))


def in_its_own_process(*words: object, **environment: str) -> dict[str, Any]:
    """Run a program and return the JSON of its last line; its stderr is shown."""
    command = [sys.executable, *map(str, words)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env={**os.environ, **environment})
    return json.loads(done.stdout.splitlines()[-1])


def together(count: int, *words: object, **environment: str) -> list[dict[str, Any]]:
    """Run a program in ``count`` processes, with torchrun's variables if more than one; return each one's last line."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free.getsockname()[1]), "WORLD_SIZE": str(count)}
    started = []
    for index in range(count):
        ranks = {"RANK": str(index), "LOCAL_RANK": str(index), **address} if count > 1 else {}
        every = {**os.environ, **environment, **ranks}
        command = [sys.executable, *map(str, words)]
        started.append(subprocess.Popen(command, env=every, stdout=subprocess.PIPE, text=True))
    said = [process.communicate()[0] for process in started]
    return [json.loads(text.splitlines()[-1]) for text in said]


def head(*names: str) -> str:
    """Return the first two lines of a Markdown table."""
    return f"{row(names)}\n|---|{'---:|' * (len(names) - 1)}"


def row(cells: Iterable[object]) -> str:
    return f"| {' | '.join(map(str, cells))} |"


class Lines:
    """File of finished measurements, a line of JSON each, with lookup by fields; incomplete lines are only reported."""

    def __init__(self, file: Path, key: Sequence[str]) -> None:
        self.file, self._key = file, key
        self.rows: dict[str, dict[str, Any]] = {}
        lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
        for number, line in enumerate(lines, 1):
            try:
                if line:
                    self._keep(json.loads(line))
            except ValueError:
                print(f"{file}: line {number} is incomplete; its run will be repeated", file=sys.stderr)

    def _keep(self, measured: dict[str, Any]) -> None:
        self.rows[self._of(measured)] = measured

    def _of(self, measured: dict[str, Any]) -> str:
        return json.dumps([measured.get(name) for name in self._key])

    def get(self, about: dict[str, Any]) -> dict[str, Any] | None:
        return self.rows.get(self._of(about))

    def add(self, measured: dict[str, Any]) -> None:
        self._keep(measured)
        self.file.parent.mkdir(parents=True, exist_ok=True)
        with self.file.open("a", encoding="utf-8") as file:
            file.write(f"\n{json.dumps(measured)}")  # an earlier stop may have left an incomplete line
            file.flush()
            os.fsync(file.fileno())
