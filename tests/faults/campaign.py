"""Mutated files through every reader: each case is a reader and a number, from which all of it follows."""

import json
import os
import random
import resource
import shutil
import signal
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from hgld.errors import HgldError
from tests.faults.mutators import mutate
from tests.faults.readers import READERS

MOST_SECONDS = 20.0  # of one case on a busy machine, before its process is killed
MOST_MEMORY = 1 << 30  # bytes that one case may add
MOST_MESSAGE = 2_000  # characters: several places, each with an excerpt
CASES_A_PROCESS = 50
VERDICTS = ("refused", "read", "message", "fault", "killed")
KEPT = Path(__file__).parent / "kept"


class Outcome(NamedTuple):
    """What became of one case: one of :data:`VERDICTS`, and for a fault what was seen."""

    reader: str
    number: int
    verdict: str
    detail: str


def write_case(reader: str, number: int, sample: Path, folder: Path) -> Path:
    """Copy a reader's sample into an empty folder and change one of its files; return that file."""
    shutil.copytree(sample, folder, dirs_exist_ok=True)
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    rng = random.Random(f"{reader} {number}")
    chosen = rng.choice(files)
    data = chosen.read_bytes()
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        data = mutate(chosen.name, data, rng)
    chosen.write_bytes(data)
    return chosen


def _resident() -> int:
    """Bytes of memory that this process holds."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def _peak() -> int:
    """Most bytes of memory that this process ever held."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10


def judge(reader: str, folder: Path) -> tuple[str, str]:
    """Read a folder; return the verdict and what was seen."""
    outside = {path: path.stat().st_mtime_ns for path in folder.parent.iterdir()}
    before, peak_before = _resident(), _peak()
    try:
        with warnings.catch_warnings(action="ignore"):
            READERS[reader].read(folder)
    except HgldError as error:
        said = str(error)
        if len(said) > MOST_MESSAGE or " at 0x" in said or not said.isprintable():
            return "message", f"message of {len(said)} characters: {said[:300]!r}"
        verdict, detail = "refused", said[:200]
    except BaseException as error:  # noqa: BLE001  # a panic of polars is no Exception
        return "fault", "".join(traceback.format_exception(error))[-1500:]
    else:
        verdict, detail = "read", ""
    if (peak := _peak()) > peak_before and peak - before > MOST_MEMORY:
        return "fault", "took more than a gigabyte"
    if {path: path.stat().st_mtime_ns for path in folder.parent.iterdir() if path != folder} != {
        path: moment for path, moment in outside.items() if path != folder
    }:
        return "fault", "wrote outside of its folder"
    return verdict, detail


def forked(work: Callable[[], object]) -> None:
    """Do something in a child: this process must not begin to use polars, whose threads do not survive a fork.

    Raises:
        RuntimeError: it failed there.
    """
    child = os.fork()
    if not child:
        try:
            work()
        except BaseException:  # noqa: BLE001  # the parent says that it failed
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    if os.waitpid(child, 0)[1]:
        raise RuntimeError("a child failed; its traceback stands above")


def make_samples(samples: dict[str, Path]) -> None:
    """Write the sample of every reader into its folder."""
    for reader, folder in samples.items():
        folder.mkdir(parents=True)
        READERS[reader].make(folder)


def run(cases: Sequence[tuple[str, int]], work: Path) -> Iterator[Outcome]:
    """Judge cases in processes of their own, so that a crash or a hang is a verdict too."""
    names = list(dict.fromkeys(name for name, _ in cases))
    samples = {name: work / "samples" / str(number) for number, name in enumerate(names)}
    forked(lambda: make_samples(samples))
    left = list(cases)
    while left:
        done = yield from _run_some(left[:CASES_A_PROCESS], samples, work)
        left = left[done:]


def _run_some(cases: Sequence[tuple[str, int]], samples: dict[str, Path], work: Path) -> Iterator[Outcome]:
    told = work / "told.jsonl"
    told.write_bytes(b"")
    child = os.fork()
    if not child:
        _judge_all(cases, samples, work, told)
        os._exit(0)
    count, moved, ended = 0, time.monotonic(), 0
    try:
        while not ended:
            ended = os.waitpid(child, os.WNOHANG)[0]
            found = told.read_text(encoding="utf-8").splitlines()[count:]
            for line in found:
                count, moved = count + 1, time.monotonic()
                yield Outcome(*json.loads(line))
            if not ended and time.monotonic() - moved > MOST_SECONDS:
                break
            time.sleep(0.02)
    finally:
        if not ended:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
    rest = told.read_text(encoding="utf-8").splitlines()[count:]
    for line in rest:
        count += 1
        yield Outcome(*json.loads(line))
    if count < len(cases):
        yield Outcome(*cases[count], "killed", "crashed" if ended else f"no end in {MOST_SECONDS:g} s")
        count += 1
    return count


def _judge_all(cases: Sequence[tuple[str, int]], samples: dict[str, Path], work: Path, told: Path) -> None:
    silence = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silence, 2)  # polars says on stderr that it panics
    with open(told, "a", encoding="utf-8") as out:
        for reader, number in cases:
            place = Path(tempfile.mkdtemp(dir=work))
            try:
                folder = place / "case"
                write_case(reader, number, samples[reader], folder)
                verdict, detail = judge(reader, folder)
            except BaseException:  # noqa: BLE001  # of the mutator
                verdict, detail = "fault", "mutator: " + traceback.format_exc()[-800:]
            print(json.dumps([reader, number, verdict, detail]), file=out, flush=True)
            shutil.rmtree(place, ignore_errors=True)


def drawn(count: int, seed: int) -> list[tuple[str, int]]:
    """As many cases of every reader, in turns, so that an early end has met all of them."""
    a_reader = -(-count // len(READERS))
    return [(name, seed * 1_000_000 + number) for number in range(a_reader) for name in READERS]


def table(outcomes: Sequence[Outcome]) -> str:
    """Counts by reader and verdict, as a table of docs/reliability.md."""
    counts = Counter((one.reader, one.verdict) for one in outcomes)
    lines = [f"| reader | cases | {' | '.join(VERDICTS)} |", f"|---|{'---|' * (len(VERDICTS) + 1)}"]
    for name in READERS:
        row = [counts[name, verdict] for verdict in VERDICTS]
        lines.append(f"| {name} | {sum(row):,} | {' | '.join(f'{n:,}' for n in row)} |")
    total = [sum(counts[name, verdict] for name in READERS) for verdict in VERDICTS]
    lines.append(f"| **all** | {sum(total):,} | {' | '.join(f'{n:,}' for n in total)} |")
    return "\n".join(lines)


def keep(outcome: Outcome, work: Path) -> Path:
    """Keep the files of a case that failed, for a test."""
    sample = work / "again"
    shutil.rmtree(sample, ignore_errors=True)
    place = KEPT / f"{outcome.reader.replace(' ', '-')}-{outcome.number}"

    def write() -> None:
        make_samples({outcome.reader: sample})
        write_case(outcome.reader, outcome.number, sample, place)

    forked(write)
    return place
