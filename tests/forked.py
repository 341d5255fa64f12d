"""Processes that are forked from a server process with torch imported, which saves seconds of imports in each.

The server is a new interpreter, so it has none of the threads of the test process. Tests that start torchrun itself
cover what torchrun adds to a process.
"""

import gc
import json
import multiprocessing
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

import torch

# multiprocessing talks to its server process through a Unix socket, which pytest's network block allows.
_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(
    [  # a module that the server cannot import is imported by each process, which is only slower
        *("torch._dynamo", "torchvision", "matplotlib.pyplot"),
        *("hgld.training.loop", "hgld.training.evaluation", "hgld.training.inference.search", "sklearn.linear_model"),
    ]
)


@dataclass(frozen=True)
class Ended:
    """Result of several processes: their exit codes, and the output of all of them together."""

    codes: tuple[int, ...]
    stdout: str
    stderr: str


def forked(work: Callable[..., object], *arguments: Any, out: Path, environment: Mapping[str, str]) -> Any:
    """Start a process that calls ``work`` and return it. Append its output to ``out.stdout`` and ``out.stderr``."""
    process = _CONTEXT.Process(target=_do, args=(work, arguments, out, dict(environment)))
    process.start()
    return process


def together(
    work: Callable[..., object],
    *arguments: Any,
    folder: Path,
    count: int = 2,
    timeout: float = 300,
    environment: Mapping[str, str] | None = None,
    fails: bool = False,
) -> Ended:
    """Call ``work`` in several processes with the variables that torchrun sets; if one fails, terminate the rest.

    A single process gets none of these variables. A process must fail if ``fails``, otherwise none may.
    """
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    shared = {"WORLD_SIZE": str(count), "LOCAL_WORLD_SIZE": str(count), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    number = sum(1 for _ in folder.glob("together-*.stdout"))
    out = folder / f"together-{number}"
    ranks = [shared | {"RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(count)] if count > 1 else [{}]
    processes = [forked(work, *arguments, out=out, environment={**(environment or {}), **rank}) for rank in ranks]
    until = time.monotonic() + timeout
    try:
        while running := [process for process in processes if process.exitcode is None]:
            if any(process.exitcode for process in processes):
                for process in running:
                    process.terminate()
            assert wait([process.sentinel for process in running], max(0.0, until - time.monotonic())), "no end in time"
    finally:
        for process in processes:
            process.kill()
            process.join()
    said, errors = (Path(f"{out}.{stream}").read_text(encoding="utf-8") for stream in ("stdout", "stderr"))
    codes = tuple(process.exitcode for process in processes)
    assert any(codes) == fails, f"exit codes {codes}\n{said}{errors}"
    return Ended(codes, said, errors)


def _do(work: Callable[..., object], arguments: tuple[Any, ...], out: Path, environment: dict[str, str]) -> None:
    for number, name in ((1, "stdout"), (2, "stderr")):
        with open(f"{out}.{name}", "ab") as file:
            os.dup2(file.fileno(), number)
    gc.freeze()  # garbage collection would copy the memory that the fork shares
    os.environ |= environment
    torch.set_num_threads(1)
    work(*arguments)


# -- another Python interpreter ------------------------------------------------------------------------------------

_STARTER = """
import atexit, gc, importlib, json, os, runpy, sys, traceback
import matplotlib.pyplot, numba, polars, scipy.sparse, sklearn.cluster, torch._dynamo, torchvision
gc.freeze()
for line in sys.stdin:
    out, words = json.loads(line)
    child = os.fork()
    if not child:
        importlib.invalidate_caches()  # finds packages that were installed meanwhile
        file = os.open(out, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(file, 1), os.dup2(file, 2)
        sys.argv, code = words[1:] if words[0] == "-m" else words, 0
        try:
            if words[0] == "-m":
                runpy.run_module(words[1], run_name="__main__", alter_sys=True)
            else:
                runpy.run_path(words[0], run_name="__main__")
        except SystemExit as stop:
            code = stop.code or 0
        except BaseException:
            code = traceback.format_exc()
        if not isinstance(code, int):
            print(code, file=sys.stderr)
            code = 1
        atexit._run_exitfuncs()
        sys.stdout.flush(), sys.stderr.flush()
        os._exit(code)  # a normal exit takes a second to unload the modules
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


@contextmanager
def starter(
    out: Path, cwd: Path, python: str | Path = sys.executable, **environment: str
) -> Iterator[Callable[..., str]]:
    """Yield ``run("-m", "hgld", ...)``, which runs these Python arguments in a fork and returns the output.

    The forked process has imported the slow dependencies, but no module of hgld.

    Args:
        out: file that receives the output.
        cwd: working directory.
        python: interpreter that is started once and then forked.
        environment: all environment variables of the interpreter.
    """
    pipe = subprocess.PIPE
    command = [str(python), "-c", _STARTER]
    with subprocess.Popen(command, cwd=cwd, env=environment, stdin=pipe, stdout=pipe, text=True) as process:
        given, answers = process.stdin, process.stdout
        assert given is not None
        assert answers is not None

        def run(*words: object) -> str:
            given.write(json.dumps([str(out), [str(word) for word in words]]) + "\n")
            given.flush()
            code, said = answers.readline().strip(), out.read_text(encoding="utf-8")
            assert code == "0", f"{words}: {code}: {said}"
            return said

        yield run
