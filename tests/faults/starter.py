"""Process that has imported hgld's dependencies and runs commands in forks. It reads and writes lines of JSON.

This module imports hgld only inside functions, because multiprocessing imports the module again in every child.
"""

import gc
import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import nullcontext, suppress
from importlib import import_module
from multiprocessing import set_forkserver_preload
from pathlib import Path
from typing import Any

from tests.interpreter import ROOT

_IMPORTED = {
    *("hgld", "faiss", "matplotlib", "mpl_toolkits", "PIL", "scipy", "sklearn", "tensorboard", "torch", "rich"),
    *("onnx", "onnx_ir", "onnxruntime", "onnxscript"),
}
# modules that trainings import late; without them, each fork would import them in twice the time of its work
_TRAINING = ("torch._inductor", "torch.nn.parallel.distributed", "torch.utils.tensorboard", "hgld.training.loop")
_IGNORED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Starter:
    """Context manager of the process that forks commands, started with additional environment variables."""

    def __init__(self, environment: Mapping[str, str] | None = None) -> None:
        self._environment = environment or {}

    def __enter__(self) -> "Starter":
        line, pipe = [sys.executable, "-m", "tests.faults.starter"], subprocess.PIPE
        environment = {**os.environ, **self._environment}
        self.process = subprocess.Popen(line, cwd=ROOT, env=environment, stdin=pipe, stdout=pipe, text=True)
        return self

    def __exit__(self, *_: object) -> None:
        self.process.communicate()

    def run(
        self,
        words: str,
        base: Path,
        place: Path,
        environments: Sequence[Mapping[str, str]] = ({},),
        *,
        fault: tuple[int, str] | None = None,
        within: str = "",
        workers: Path | None = None,
        settings: Mapping[str, Any] | None = None,
    ) -> list[tuple[int, str]]:
        """Run a command in parallel processes, one per environment.

        Args:
            words: arguments of hgld.
            base: folder that :func:`tests.faults.commands.write_base` wrote.
            place: folder that the command works in.
            environments: additional environment variables of each process.
            fault: arguments ``after`` and ``fault`` of :func:`tests.faults.disk.failing_disk`.
            within: subfolder of ``place`` whose changes count; empty: all changes in ``place`` count.
            workers: argument of :func:`tests.faults.disk.failing_disk`.
            settings: new values of module attributes, keyed by ``module:name``.

        Returns:
            Exit code and stderr of each process; -9 and an empty string for a killed process.
        """
        known = [name for name in sys.modules if name.split(".")[0] in _IMPORTED]
        known += _TRAINING if words.startswith("train") else ()
        asked = {
            "words": words,
            "base": str(base),
            "place": str(place),
            "environments": [dict(one) for one in environments],
            "fault": fault,
            "within": within,
            "workers": workers and str(workers),
            "settings": dict(settings or {}),
            "modules": known,
        }
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps(asked) + "\n")
        self.process.stdin.flush()
        return [tuple(one) for one in json.loads(self.process.stdout.readline())]


def _all_of(asked: Mapping[str, Any]) -> list[tuple[int, str]]:
    """Fork the leader of a new process group and wait for its result. A test may kill the whole group."""
    found, tells = os.pipe()
    leader = os.fork()
    if leader == 0:
        os.close(found)
        os.setpgrp()
        with open(tells, "w", encoding="utf-8") as file:
            file.write(json.dumps(_together(asked)))
        os._exit(0)
    os.close(tells)
    with open(found, encoding="utf-8") as file:
        said = file.read()  # the pipe closes when the last fork exits
    os.waitpid(leader, 0)
    return json.loads(said) if said else [(-signal.SIGKILL, "")] * len(asked["environments"])


def _together(asked: Mapping[str, Any]) -> list[tuple[int, str]]:
    """Start all forks at the same moment, and wait for them."""
    from tests.faults.disk import failing_disk, let_be

    fault, workers = asked["fault"], Path(asked["workers"]) if asked["workers"] else None
    if workers is not None:
        let_be(workers)
    with failing_disk(Path(asked["place"]) / asked["within"], *fault, workers=workers) if fault else nullcontext():
        ready, go, answers = os.pipe(), os.pipe(), []
        for environment in asked["environments"]:
            answer = os.pipe()
            if os.fork() == 0:
                os.write(ready[1], b".")
                os.read(go[0], 1)
                os.environ.update(environment)
                os.write(answer[1], json.dumps(_one(asked)).encode())
                os._exit(0)
            os.close(answer[1])
            answers.append(answer[0])
        for number in _IGNORED:
            signal.signal(number, signal.SIG_IGN)
        for _ in answers:
            os.read(ready[0], 1)
        os.write(go[1], b"." * len(answers))
        found = []
        for answer in answers:
            with open(answer, "rb") as file:
                found.append(tuple(json.loads(file.read() or b'[-9, ""]')))
        for _ in answers:
            os.wait()
    return found


def _one(asked: Mapping[str, Any]) -> tuple[int, str]:
    from tests.faults.commands import run

    for name, value in asked["settings"].items():
        module, _, attribute = name.partition(":")
        setattr(import_module(module), attribute, value)
    set_forkserver_preload(["hgld.pipelines.shards.pack"])
    code, said = run(asked["words"], Path(asked["base"]), Path(asked["place"]))
    return code, said[-20_000:]  # a pipe holds 64 KiB, and nobody reads it before the fork exits


def _serve() -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell starts background jobs with SIGINT ignored
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    import_module("tests.faults.commands")
    for line in sys.stdin:
        asked = json.loads(line)
        for name in asked["modules"]:
            if name not in sys.modules:
                with suppress(ImportError):
                    import_module(name)
        gc.freeze()  # otherwise garbage collection in every fork would copy these memory pages
        print(json.dumps(_all_of(asked)), flush=True)


if __name__ == "__main__":
    _serve()
