"""``hgld train --drill``: failures of processes that train together, tried on this machine.

As a module, this runs one process of a drill: ``python -m hgld.cli.drill FAILURE MARK WORDS``.
"""

import hashlib
import multiprocessing
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from multiprocessing.connection import Listener
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import numpy as np

COUNT = 2
BY_HAND, TORCHRUN, SRUN = "by hand", "torchrun", "srun"
_FAILS_AT = 4  # step at which the failure occurs
_FULL = 2000  # bytes
_MINUTES = 0.2  # --process-timeout of the runs
_GRACE = 45.0  # torchrun and Slurm wait 30 s for a process after SIGTERM; then torchrun ends itself
_ALLOWED = 15.0  # seconds until all other processes have ended
_LONGEST = 600.0  # seconds after which a run is killed
_RUN = (
    *("--backbone", "small", "--pretrained", "none", "--dim", "8", "--size", "16", "--resize", "18", "--workers", "1"),
    *("--batch-size", "8", "--images-per-class", "2", "--loss", "SupAP", "--lr", "0.01", "--lr-head", "0.01"),
    *("--epochs", "1", "--steps-per-epoch", "16", "--warmup-steps", "0", "--checkpoint-every", "2", "--log-every", "1"),
    *("--evaluate-on", "", "--loggers", "", "--amp", "off", "--process-timeout", str(_MINUTES)),
)


@dataclass(frozen=True)
class Failure:
    """A failure to try.

    Attributes:
        what: description of the failure for the table.
        fail: function of the step's ``Backward`` and of the dataset's folder, called in the process that fails.
        victim: index of the process that fails; None: all processes call ``fail``.
        ends: whether that process still prints an error and ends.
        seconds: how long the other processes may take to end.
    """

    what: str
    fail: Callable[[Any, Path], object]
    victim: int | None = 1
    ends: bool = True
    seconds: float = _ALLOWED


def _kill(backward: Any, data: Path) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _exhaust_memory(backward: Any, data: Path) -> None:
    import torch

    torch.empty(1 << 58, device=backward.processes.device)


def _spoil_weights(backward: Any, data: Path) -> None:
    import torch

    with torch.no_grad():
        next(backward.model.parameters()).fill_(float("nan"))


def _fill_disk(backward: Any, data: Path) -> None:
    # The closest that a process can get to a full disk: no file may grow beyond a limit, which the error still fits.
    resource.setrlimit(resource.RLIMIT_FSIZE, (_FULL, _FULL))


def _empty_shards(backward: Any, data: Path) -> None:
    for shard in data.glob("train-*.tar"):
        os.truncate(shard, 0)


def _stop(backward: Any, data: Path) -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


FAILURES: Mapping[str, Failure] = {
    "killed": Failure("a process is killed", _kill, ends=False),
    "store": Failure("the first process, which hosts the store, is killed", _kill, victim=0, ends=False),
    "memory": Failure("a process runs out of memory", _exhaust_memory),
    "nan": Failure("a process computes NaN", _spoil_weights),
    "disk": Failure("the disk is full", _fill_disk, victim=0),
    "shard": Failure("the shards are cut", _empty_shards, victim=None),
    "stuck": Failure("a process hangs", _stop, ends=False, seconds=60 * _MINUTES + _ALLOWED),
}


_LAUNCHED = ("killed", "nan", "stuck")  # torchrun and srun add the same to every failure: SIGTERM to the others


@dataclass(frozen=True)
class Outcome:
    """Result of one failure in a drill.

    Attributes:
        failure: key in :data:`FAILURES`.
        launcher: :data:`BY_HAND`, :data:`TORCHRUN` or :data:`SRUN`.
        lines: last line that each process printed to stderr, by its index; empty if it printed none.
        seconds: seconds from the failure to the end of the last other process.
        kept: step of the newest checkpoint.
        problems: promises that were broken; empty if all were kept.
    """

    failure: str
    launcher: str
    lines: tuple[str, ...]
    seconds: float
    kept: int
    problems: tuple[str, ...]

    def cells(self) -> list[str]:
        """Return the outcome's row of the table."""
        result = "; ".join(self.problems) or "resumed, with the same weights"
        return [FAILURES[self.failure].what, self.launcher, f"{self.seconds:.1f}", f"step {self.kept}", result]


def drill(
    folder: Path,
    device: str = "cpu",
    *,
    failures: Sequence[str] = tuple(FAILURES),
    launchers: Sequence[str] = (),
    say: Callable[[str], object] = print,
) -> list[Outcome]:
    """Let processes that train a small network fail in every way, resume each run, and compare its weights.

    Args:
        folder: empty folder for the dataset and the runs.
        device: device of the runs; on ``cuda`` each process needs a GPU.
        failures: keys of :data:`FAILURES`.
        launchers: programs that start the processes; default: :data:`BY_HAND`, :data:`TORCHRUN` and, within a job of
            Slurm, :data:`SRUN`.
        say: function called with a line about each run.
    """
    data = _write_data(folder)
    words = ["train", "--data", str(data), *_RUN, "--device", device, "--out"]
    whole = folder / "undisturbed"
    _ended(_started([*words, str(whole)], whole, BY_HAND))
    expected, found = _digest(whole), []
    saved = {shard: shard.read_bytes() for shard in data.glob("*.tar")}
    for launcher in launchers or (BY_HAND, TORCHRUN, *([SRUN] if "SLURM_JOB_ID" in os.environ else [])):
        for name in failures if launcher == BY_HAND else [name for name in failures if name in _LAUNCHED]:
            out = folder / f"{name}-{launcher.replace(' ', '-')}"
            outcome = _try(name, launcher, [*words, str(out)], out)
            for shard, content in saved.items():
                shard.write_bytes(content)
            again = _ended(_started([*words, str(out)], out.with_suffix(".again"), BY_HAND))
            problems = list(outcome.problems)
            if any(again):
                problems.append("the same command did not resume")
            elif _digest(out) != expected:
                problems.append("the resumed run has other weights")
            found.append(replace(outcome, problems=tuple(problems)))
            say(f"{launcher}, {FAILURES[name].what}: {'; '.join(problems) or 'as promised'}")
    return found


def _write_data(folder: Path) -> Path:
    """Write a small dataset of shards: 12 classes of 6 images in 3 groups."""
    from PIL import Image

    rng, images, data = np.random.default_rng(0), folder / "images", folder / "data"
    for number in range(12):
        place = images / f"group-{number // 4}" / f"class-{number}"
        place.mkdir(parents=True)
        for item in range(6):
            Image.fromarray(rng.integers(0, 256, (24, 24, 3), dtype=np.uint8)).save(place / f"{item}.png")
    command = [sys.executable, "-m", "hgld", "build-shards", "folders", "--yes", "--test-classes", "0.3"]
    command += ["--source", str(images), "--out", str(data)]
    subprocess.run(command, check=True, capture_output=True)  # noqa: S603  # a command of hgld
    return data


def _started(
    words: Sequence[str], logs: Path, launcher: str, failure: str = "", mark: str = ""
) -> Sequence[BaseProcess]:
    """Start the processes of a run, or torchrun or srun, which starts them."""
    program = ["-m", "hgld.cli.drill", failure, mark, *words]
    with Listener(("127.0.0.1", 0)) as free:
        place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free.address[1])}
    if launcher == TORCHRUN:
        options = ["--standalone", "--nproc-per-node", str(COUNT), "--redirects", "3", "--log-dir", f"{logs}.logs"]
        arguments = [([sys.executable, "-m", "torch.distributed.run", *options, *program], {}, f"{logs}.log")]
    elif launcher == SRUN:
        options = ["--nodes", "1", "--ntasks", str(COUNT), "--kill-on-bad-exit", "--error", f"{logs}.%t.log"]
        arguments = [(["srun", *options, sys.executable, *program], place, f"{logs}.log")]
    else:
        place["WORLD_SIZE"] = str(COUNT)
        ranks = [{"RANK": str(index), "LOCAL_RANK": str(index)} for index in range(COUNT)]
        command = [failure, mark, *words]
        arguments = [(command, place | rank, f"{logs}.{rank['RANK']}.log") for rank in ranks]
    # A server that has imported torch forks the processes, which saves seconds of imports in each.
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch._dynamo", "torchvision", "hgld.training.loop", "hgld.cli.train_commands"])
    processes = [context.Process(target=_begin, args=one) for one in arguments]
    for process in processes:
        process.start()
    return processes


def _begin(command: list[str], variables: dict[str, str], log: str) -> None:
    """Become one process of a run, or torchrun or srun if the command begins with a program."""
    os.environ |= variables
    for number, place in ((1, os.devnull), (2, log)):
        os.dup2(os.open(place, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
    if command[0] in (sys.executable, SRUN):
        os.execvp(command[0], command)  # noqa: S606  # torchrun or srun
    run_process(command[0], command[1], command[2:])


def _ended(processes: Sequence[BaseProcess], spared: int | None = None) -> list[int | None]:
    """Wait for all processes but one, then kill that one; return the exit codes."""
    until = time.monotonic() + _LONGEST
    for number, process in enumerate(processes):
        if number != spared:
            process.join(max(0.0, until - time.monotonic()))
    for process in processes:
        process.kill()  # also ends a stopped process
        process.join()
    return [process.exitcode for process in processes]


def _try(name: str, launcher: str, words: Sequence[str], out: Path) -> Outcome:
    failure, mark = FAILURES[name], Path(f"{out}.failed")
    spared = failure.victim if name == "stuck" and launcher == BY_HAND else None
    codes = _ended(_started(words, out, launcher, name, str(mark)), spared)
    problems = []
    seconds = time.time() - float(mark.read_text()) if mark.exists() else float("nan")
    allowed = failure.seconds + (0 if launcher == BY_HAND else _GRACE)
    if not seconds <= allowed:
        problems.append(f"took {seconds:.0f} s, not {allowed:.0f}")
    if not all(codes):
        problems.append("a process ended without an error code")
    lines = tuple(_last_line(out, launcher, index) for index in range(COUNT))
    for index, line in enumerate(lines):
        if not line.startswith("hgld: ") and (failure.ends or index != failure.victim):
            problems.append(f"process {index} printed no error")
    steps = sorted(out.glob("checkpoints/step-*"))
    if not steps:
        problems.append("no checkpoint")
    kept = int(steps[-1].name.removeprefix("step-")) if steps else 0
    return Outcome(name, launcher, lines, seconds, kept, tuple(problems))


def _last_line(out: Path, launcher: str, index: int) -> str:
    logs = list(Path(f"{out}.logs").rglob(f"attempt_0/{index}/stderr.log"))
    file = logs[0] if launcher == TORCHRUN and logs else Path(f"{out}.{index}.log")
    text = file.read_text(encoding="utf-8", errors="replace") if file.is_file() else ""
    errors = [line for line in text.splitlines() if line.startswith("hgld: ")]
    return errors[-1] if errors else ""


def _digest(run: Path) -> str:
    """Return a checksum of the weights in the newest checkpoint."""
    steps = sorted(run.glob("checkpoints/step-*"))
    return hashlib.sha256((steps[-1] / "model.safetensors").read_bytes()).hexdigest() if steps else ""


def run_process(name: str, mark: str, words: Sequence[str]) -> None:
    """Run ``hgld`` in this process, which fails at a step if it is the victim of the failure."""
    import torch

    from hgld.cli import main
    from hgld.training.step import Backward

    torch.set_num_threads(1)  # sums over another number of threads round differently
    if not name:
        main(list(words))
    failure, data, steps = FAILURES[name], Path(words[words.index("--data") + 1]), iter(range(10**9))
    compute = Backward.__call__

    def failing(self: Any, batch: Any) -> Any:
        if next(steps) + 1 == _FAILS_AT and failure.victim in (None, self.processes.index):
            Path(mark).write_text(str(time.time()), encoding="utf-8")
            failure.fail(self, data)
        return compute(self, batch)

    Backward.__call__ = failing
    main(list(words))


if __name__ == "__main__":
    run_process(sys.argv[1], sys.argv[2], sys.argv[3:])
