"""Run commands as processes and measure their time and memory, which the kernel counts for all their processes."""

import os
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

_ROOT = Path(__file__).resolve().parents[2]
ENVIRONMENT = {  # import path of commands: hgld and the modules beside this one
    "PYTHONPATH": os.pathsep.join(
        [str(_ROOT), str(_ROOT / "benchmarks"), *filter(None, [os.environ.get("PYTHONPATH")])]
    ),
    "OMP_NUM_THREADS": "1",
}


@dataclass
class Spent:
    """Time and memory of commands.

    Attributes:
        wall: seconds.
        cpu: seconds of all processes.
        peak: largest peak memory of a process, bytes.
        code: exit status of the last command; negative: the signal that ended it.
    """

    wall: float = 0.0
    cpu: float = 0.0
    peak: int = 0
    code: int = 0

    def __add__(self, other: "Spent") -> "Spent":
        return Spent(self.wall + other.wall, self.cpu + other.cpu, max(self.peak, other.peak), other.code)


def run(command: Sequence[str], folder: Path, log: Path) -> Spent:
    """Run a command in a folder and append its output to ``log``."""
    log.parent.mkdir(parents=True, exist_ok=True)
    begun, environment = time.monotonic(), os.environ | ENVIRONMENT
    with open(log, "ab") as output:
        output.write(f"$ {' '.join(command)}\n".encode())
        output.flush()
        process = subprocess.Popen(
            command, cwd=folder, env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=output
        )
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)  # set it by hand: wait4 has reaped the process
    wall = time.monotonic() - begun
    return Spent(wall, usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024, process.returncode)


def disk(folder: Path) -> int:
    """Return the bytes on disk of a folder; hard links count once."""
    return int(subprocess.check_output(["du", "-s", "-B1", str(folder)]).split()[0])
