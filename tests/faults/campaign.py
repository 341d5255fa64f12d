"""Runs of every reader on mutated files. A case is a reader and a number that seeds its mutation."""

import faulthandler
import multiprocessing
import os
import random
import shutil
import tempfile
import time
import traceback
import warnings
from collections.abc import Iterator, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import NamedTuple

from hgld.errors import HgldError
from hgld.pipelines import executor
from hgld.terminal import printable
from tests.faults.mutators import mutate
from tests.faults.readers import READERS

MOST_CPU = 10.0  # maximum CPU seconds per case
MOST_WAIT = 120.0  # seconds of wall-clock time after which the process of a case ends itself
MOST_MEMORY = 1 << 30  # maximum bytes by which one case may increase memory
MOST_MESSAGE = 2_000  # maximum length of an error message, in characters
CASES_A_PROCESS = 5_000
KEPT = Path(__file__).parent / "kept"
_SPAWN = multiprocessing.get_context("spawn")  # a forked process would lack the threads of polars and torch


class Outcome(NamedTuple):
    """Outcome of one case: the verdict of :func:`judge` or ``killed``, and the details of an unexpected error."""

    reader: str
    number: int
    verdict: str
    detail: str

    @property
    def failed(self) -> bool:
        """True if the reader neither read the file nor raised an error of hgld."""
        return self.verdict not in ("refused", "read")


def write_case(reader: str, number: int, sample: Path, folder: Path) -> Path:
    """Copy a reader's sample into a folder and change one of its files; return that file.

    Each file suffix is equally likely. Otherwise a release's many images would be changed more often than its lists.
    """
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(sample, folder)
    rng = random.Random(f"{reader} {number}")
    files: dict[str, list[Path]] = {}
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        files.setdefault(path.suffix, []).append(path)
    chosen = rng.choice(files[rng.choice(sorted(files))])
    data = chosen.read_bytes()
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        data = mutate(chosen.name, data, rng)
    chosen.write_bytes(data)
    return chosen


def _memory(field: str) -> int:
    """Return the memory of this process in bytes: ``VmRSS`` now, or ``VmHWM`` at its peak."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field):
            return int(line.split()[1]) << 10
    raise LookupError(field)


def judge(reader: str, folder: Path) -> tuple[str, str]:
    """Read a folder; return the verdict and its details."""
    outside = {path: path.stat().st_mtime_ns for path in folder.parent.iterdir()}
    Path("/proc/self/clear_refs").write_text("5")  # resets the peak memory of this process
    before, started = _memory("VmRSS"), time.process_time()
    try:
        with warnings.catch_warnings(action="ignore"):
            READERS[reader].read(folder)
    except HgldError as error:
        said = str(error)
        if len(said) > MOST_MESSAGE or " at 0x" in said or "\n" in said or said != printable(said):
            return "message", f"message of {len(said)} characters: {said[:300]!r}"
        verdict, detail = "refused", said[:200]
    except BaseException as error:  # noqa: BLE001  # a panic of polars is a BaseException
        return "fault", "".join(traceback.format_exception(error))[-1500:]
    else:
        verdict, detail = "read", ""
    if (added := _memory("VmHWM") - before) > MOST_MEMORY:
        return "fault", f"took {added:,} bytes"
    if (took := time.process_time() - started) > MOST_CPU:
        return "fault", f"took {took:.0f} s of CPU"
    if {path: path.stat().st_mtime_ns for path in folder.parent.iterdir() if path != folder} != {
        path: moment for path, moment in outside.items() if path != folder
    }:
        return "fault", "wrote outside of its folder"
    return verdict, detail


def make_samples(samples: dict[str, Path]) -> None:
    """Write the sample of every reader into its folder."""
    for reader, folder in samples.items():
        folder.mkdir(parents=True)
        READERS[reader].make(folder)


def run(cases: Sequence[tuple[str, int]], work: Path) -> Iterator[Outcome]:
    """Judge cases in a child process; after a crash or a hang, a new child judges the rest."""
    names = list(dict.fromkeys(name for name, _ in cases))
    samples = {name: work / "samples" / str(number) for number, name in enumerate(names)}
    make_samples(samples)
    left = list(cases)
    while left:
        done = yield from _run_some(left[:CASES_A_PROCESS], samples, work)
        left = left[done:]


def _run_some(cases: Sequence[tuple[str, int]], samples: dict[str, Path], work: Path) -> Iterator[Outcome]:
    told, tells = _SPAWN.Pipe(duplex=False)
    stack = work / "stack.txt"
    stack.write_bytes(b"")
    child = _SPAWN.Process(target=_judge_all, args=(cases, samples, work, tells, stack))
    child.start()
    tells.close()
    count = 0
    try:
        while count < len(cases):
            try:
                outcome = Outcome(*told.recv())
            except EOFError:
                break
            count += 1
            yield outcome
    finally:
        if count < len(cases):
            child.kill()
        child.join()
    if count < len(cases):
        why = f"exit code {child.exitcode}\n{stack.read_text(errors='replace')[-1500:]}"
        yield Outcome(*cases[count], "killed", why)
        count += 1
    return count


def _judge_all(
    cases: Sequence[tuple[str, int]], samples: dict[str, Path], work: Path, tells: Connection, stack: Path
) -> None:
    silence = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silence, 2)  # hides stderr, on which polars prints panics
    # starting by fork is faster for each MATLAB file, and safe because this process has no threads
    executor.START = "fork"
    with open(stack, "w", encoding="utf-8") as file:
        faulthandler.enable(file)
        for reader, number in cases:
            faulthandler.dump_traceback_later(MOST_WAIT, exit=True, file=file)
            folder = work / "cases" / "case"
            folder.parent.mkdir(exist_ok=True)
            try:
                write_case(reader, number, samples[reader], folder)
                verdict, detail = judge(reader, folder)
            except BaseException:  # noqa: BLE001  # the mutator failed
                verdict, detail = "fault", "mutator: " + traceback.format_exc()[-800:]
            tells.send((reader, number, verdict, detail))
        faulthandler.cancel_dump_traceback_later()
        faulthandler.disable()


def drawn(count: int, seed: int) -> list[tuple[str, int]]:
    """Return equally many cases of every reader. The readers alternate, so that a short run covers all of them."""
    a_reader = -(-count // len(READERS))
    return [(name, seed * 1_000_000 + number) for number in range(a_reader) for name in READERS]


def keep(outcome: Outcome, work: Path) -> Path:
    """Copy the files of a failed case to :data:`KEPT`; test_faults.py runs every case there."""
    sample = work / "again" / f"{outcome.reader} {outcome.number}"
    place = KEPT / f"{outcome.reader.replace(' ', '-')}-{outcome.number}"
    make_samples({outcome.reader: sample})
    with tempfile.TemporaryDirectory(dir=work) as case:
        write_case(outcome.reader, outcome.number, sample, Path(case) / "case")
        shutil.copytree(Path(case) / "case", place, dirs_exist_ok=True)
    return place
