"""Shared parts of benchmarks: options, child processes, memory, files of finished measurements, matched groups."""

import argparse
import io
import json
import multiprocessing
import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from scipy.optimize import linear_sum_assignment


def make_parser(about: str | None, **defaults: Any) -> argparse.ArgumentParser:
    """Return a parser with an option per keyword.

    Args:
        about: docstring of the script.
        defaults: default values by option; a list takes several values, and an option whose default is a type is
            required.
    """
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in defaults.items():
        option = f"--{name.replace('_', '-')}"
        if isinstance(default, type):
            parser.add_argument(option, type=default, required=True)
        else:
            is_list = isinstance(default, list)
            kind, count = type(default[0] if is_list else default), "+" if is_list else None
            parser.add_argument(option, type=kind, nargs=count, default=default, help="default: %(default)s")
    return parser


def status_bytes(field: str) -> int:
    """Return bytes of this process: ``VmHWM`` for its peak, ``VmRSS``, or ``RssAnon`` without the pages of files."""
    with open("/proc/self/status", encoding="ascii") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith(field))


@contextmanager
def watched_memory() -> Iterator[dict[int, int]]:
    """Yield a growing table: the peak memory, without the pages of files, of every half second."""
    peaks, done, start = {0: status_bytes("RssAnon")}, threading.Event(), time.perf_counter()

    def watch() -> None:
        while not done.wait(0.02):
            now = int(2 * (time.perf_counter() - start))
            peaks[now] = max(peaks.get(now, 0), status_bytes("RssAnon"))

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield peaks
    finally:
        done.set()
        watcher.join()


def in_its_own_process(run: Callable[..., Any], *arguments: object, **environment: str) -> Any:
    """Return what a function returns in a new process with further environment variables."""
    os.environ |= environment
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        return pool.submit(run, *arguments).result()


def run_hgld(*words: object) -> None:
    """Run a command of hgld in this process; its output is shown only if it fails."""
    import hgld.cli

    said = io.StringIO()
    try:
        with redirect_stdout(said), redirect_stderr(said):
            hgld.cli.main(list(map(str, words)))
    except SystemExit as end:
        if end.code:
            raise RuntimeError(f"hgld {' '.join(map(str, words))} ended with {end.code}:\n{said.getvalue()}") from end


def together(count: int, run: Callable[..., Any], *arguments: object) -> list[Any]:
    """Return what a function returns in each of several processes, with torchrun's variables if more than one."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with ProcessPoolExecutor(count, multiprocessing.get_context("spawn"), max_tasks_per_child=1) as pool:
        return list(pool.map(partial(_run_rank, count, port, run, arguments), range(count)))


def _run_rank(count: int, port: int, run: Callable[..., Any], arguments: tuple[Any, ...], rank: int) -> Any:
    if count > 1:
        ranks = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": count, "MASTER_PORT": port}
        os.environ |= {"MASTER_ADDR": "127.0.0.1", **{name: str(value) for name, value in ranks.items()}}
    return run(*arguments)


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


def match_groups(shared: Mapping[tuple[Any, str], int]) -> dict[Any, str]:
    """Match groups one to one to labels, with as many shared names (or items) as possible.

    Args:
        shared: numbers of shared names by (group, label).
    """
    groups, labels = (sorted(set(column)) for column in zip(*shared, strict=True))
    table = np.array([[shared.get((group, label), 0) for label in labels] for group in groups])
    rows, columns = linear_sum_assignment(table, maximize=True)
    return {groups[row]: labels[column] for row, column in zip(rows, columns, strict=True)}
