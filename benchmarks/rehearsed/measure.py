"""Run commands as processes, measure their time, memory and bytes, and kill them.

All figures come from the kernel:

- CPU seconds of the command and of all processes that it waited for (wait4)
- bytes that it read from and wrote to files and sockets (/proc/PID/io, while it is a zombie)
- peak memory of every process (VmHWM, read ten times per second)
"""

import os
import signal
import subprocess
import threading
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

_ROOT = Path(__file__).resolve().parents[2]
ENVIRONMENT = {  # import path of commands: hgld and the modules beside this one
    "PYTHONPATH": os.pathsep.join(
        [str(_ROOT), str(_ROOT / "benchmarks"), *filter(None, [os.environ.get("PYTHONPATH")])]
    ),
    "OMP_NUM_THREADS": "1",
}
_EVERY = 0.1  # seconds between samples
_MARK = "HGLD_REHEARSAL"


@dataclass
class Spent:
    """Total time, memory and bytes of commands.

    Attributes:
        wall: seconds.
        cpu: seconds of all processes.
        peaks: peak memory of each process, bytes, the largest first.
        read: bytes read from files and sockets, including cached files.
        written: bytes written to files and sockets.
        code: exit status of the last command; negative: the signal that ended it.
    """

    wall: float = 0.0
    cpu: float = 0.0
    peaks: list[int] = field(default_factory=list)
    read: int = 0
    written: int = 0
    code: int = 0

    def __add__(self, other: "Spent") -> "Spent":
        return Spent(
            self.wall + other.wall,
            self.cpu + other.cpu,
            sorted([*self.peaks, *other.peaks], reverse=True)[:16],
            self.read + other.read,
            self.written + other.written,
            other.code,
        )

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def run(
    command: Sequence[str], folder: Path, log: Path, environment: Mapping[str, str], kill_after: float | None = None
) -> Spent:
    """Run a command in a folder and append its output to ``log``.

    Args:
        command: program and arguments.
        folder: working directory of the command.
        log: file for the output.
        environment: further environment variables.
        kill_after: seconds after which all its processes are killed (-9); None: never.
    """
    mark = f"{folder.resolve()} {uuid.uuid4().hex}"
    log.parent.mkdir(parents=True, exist_ok=True)
    begun = time.monotonic()
    with open(log, "ab") as output:
        output.write(f"$ {' '.join(command)}\n".encode())
        output.flush()
        process = subprocess.Popen(
            command,
            cwd=folder,
            env={**os.environ, **environment, _MARK: mark},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
        )
    peaks: dict[int, int] = {}
    ended = threading.Event()
    watch = threading.Thread(target=_watch, args=(process.pid, peaks, ended), daemon=True)
    watch.start()
    killer = threading.Timer(kill_after, _kill, (mark,)) if kill_after is not None else None
    if killer:
        killer.start()
    # wait without reaping the process: its counts in /proc are read next
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    wall = time.monotonic() - begun
    counts = dict(line.split(": ") for line in Path(f"/proc/{process.pid}/io").read_text().splitlines())
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)  # set it by hand: wait4 has reaped the process
    ended.set()
    watch.join()
    if killer:
        killer.cancel()
        killer.join()
    if process.returncode < 0:
        _kill(mark)
    peaks[process.pid] = max(peaks.get(process.pid, 0), 0 if len(peaks) > 1 else usage.ru_maxrss * 1024)
    return Spent(
        wall,
        usage.ru_utime + usage.ru_stime,
        sorted(peaks.values(), reverse=True)[:16],
        int(counts["rchar"]),
        int(counts["wchar"]),
        process.returncode,
    )


def end_leftovers(folder: Path) -> None:
    """Kill the commands that a killed rehearsal in this folder left running, because they hold the folders' locks."""
    _kill(f"{folder.resolve()} ")


def _watch(root: int, peaks: dict[int, int], ended: threading.Event) -> None:
    while not ended.wait(_EVERY):
        for process in _descendants(root):
            if (peak := _peak(process)) is not None:
                peaks[process] = max(peak, peaks.get(process, 0))


def _descendants(root: int) -> list[int]:
    """Return a process and all its descendants, including children of threads."""
    found, waiting = [], [root]
    while waiting:
        process = waiting.pop()
        found.append(process)
        try:
            for task in Path(f"/proc/{process}/task").iterdir():
                waiting += map(int, (task / "children").read_text().split())
        except OSError:  # the process has ended
            continue
    return found


def _peak(process: int) -> int | None:
    try:
        lines = Path(f"/proc/{process}/status").read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM")), None)


def _kill(mark: str) -> None:
    """Kill all processes with the mark in their environment, including orphans, until none is left."""
    needle = f"{_MARK}={mark}".encode()
    while found := [process for process in _processes() if needle in _environment(process)]:
        for process in found:
            try:
                os.kill(process, signal.SIGKILL)
            except ProcessLookupError:
                continue
        time.sleep(0.01)


def _processes() -> list[int]:
    return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]


def _environment(process: int) -> bytes:
    """Return the environment of a process; empty for an ended process or a zombie."""
    try:
        return Path(f"/proc/{process}/environ").read_bytes()
    except OSError:
        return b""


def disk(folder: Path) -> int:
    """Return the bytes on disk of a folder; hard links count once."""
    seen, total = set(), 0
    for parent, _, files in os.walk(folder):
        for name in files:
            # for millions of files, creating Path objects would take minutes
            facts = os.lstat(os.path.join(parent, name))  # noqa: PTH118
            if (facts.st_dev, facts.st_ino) not in seen:
                seen.add((facts.st_dev, facts.st_ino))
                total += facts.st_blocks * 512
    return total
