"""Soak test: a long training that streams from a failing server must not leak memory or file descriptors.

The network is tiny, so that the steps of a day of training take minutes. Every 40th response is an error, and every
60th ends early. The process of the training is sampled four times per second. ``HGLD_SOAK`` is the number of steps.
"""

import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.faults.test_attacks import resident
from tests.hgld.range_server import Asked, RangeServer
from tests.hgld.small_dataset import items_of_classes, write_dataset

pytestmark = [pytest.mark.slow, pytest.mark.long]
_STEPS = int(os.environ.get("HGLD_SOAK", "300"))
_PERIOD = 0.25  # seconds between two samples
_STEPS_PER_EPOCH = 50
_OPTIONS = (
    "--loss HAPPIER --backbone small --pretrained none --pooling gem --dim 8 --size 16 --resize 18 --test-size 0 "
    "--batch-size 8 --images-per-class 2 --micro-batch-size 0 --amp off --workers 1 --stream --num-streams 2 "
    "--device cpu --warmup-steps 0 --evaluate-on val --max-faults 0"
)


@dataclass(frozen=True)
class Soaked:
    """Result of a soak test.

    Attributes:
        code: exit code of the training.
        errors: last lines of its standard error.
        memory: bytes of memory without mapped files, per sample.
        handles: number of open file descriptors, per sample.
        requests: number of requests to the server.
        failures: number of error responses and of responses that ended early.
    """

    code: int
    errors: str
    memory: list[int]
    handles: list[int]
    requests: int
    failures: int

    @property
    def growth(self) -> float:
        """Growth of memory in bytes: the median of the last quarter of the samples minus that of the second quarter."""
        quarter = len(self.memory) // 4
        early, late = sorted(self.memory[quarter : 2 * quarter]), sorted(self.memory[-quarter:])
        return late[len(late) // 2] - early[len(early) // 2]

    @property
    def more_handles(self) -> int:
        """Growth of the number of open file descriptors, computed like :attr:`growth`, but of maxima."""
        quarter = len(self.handles) // 4
        return max(self.handles[-quarter:]) - max(self.handles[quarter : 2 * quarter])


class _FailingServer(RangeServer):
    """Server whose responses fail at fixed places of their sequence."""

    def __init__(self, folder: Path) -> None:
        self.failed = 0
        super().__init__(folder)
        self.lie = self._respond

    def _respond(self, asked: Asked) -> None:
        number = len(self.requests)
        self.failed += not number % 40 or not number % 60
        if not number % 40:
            asked.head("Content-Length: 0", status="503 Busy")
        elif not number % 60:
            asked.partial(asked.data[: len(asked.data) // 2], Content_Length=str(len(asked.data)))
            asked.handler.close_connection = True
        else:
            asked.honest()


def soak(steps: int, folder: Path) -> Soaked:
    """Train for some steps from a failing server, with all files below ``folder``."""
    sizes, splits = [6] * 24, ["train", "train", "val"]
    write_dataset(folder / "data", items_of_classes(sizes, splits), per_shard=12)
    command = [sys.executable, "-m", "hgld", "train", "--out", str(folder / "run"), *_OPTIONS.split()]
    command += ["--epochs", str(steps // _STEPS_PER_EPOCH), "--steps-per-epoch", str(_STEPS_PER_EPOCH)]
    command += ["--evaluate-every", str(max(1, steps // _STEPS_PER_EPOCH // 10))]
    memory, handles = [], []
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    with _FailingServer(folder / "data") as server, (folder / "errors").open("w+") as errors:
        command += ["--data", server.url]
        with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=errors, env=environment) as process:
            while process.poll() is None:
                time.sleep(_PERIOD)
                try:
                    opened = sum(1 for _ in Path(f"/proc/{process.pid}/fd").iterdir())
                except OSError:
                    break  # the process has ended
                memory.append(resident(process.pid))
                handles.append(opened)
        errors.seek(0)
        said = errors.read()[-2000:]
        return Soaked(process.returncode, said, memory, handles, len(server.requests), server.failed)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="memory is read from /proc")
def test_training_from_a_failing_server_leaks_no_memory_and_no_file_descriptor(tmp_path):
    found = soak(_STEPS, tmp_path)
    print(  # pytest -s shows it
        f"{_STEPS:,} steps, {found.requests:,} requests, {found.failures:,} failed: memory grew by "
        f"{found.growth / 2**20:.1f} MiB, file descriptors by {found.more_handles}"
    )
    assert found.code == 0, found.errors
    assert found.failures > 10
    assert found.growth < 40 << 20
    assert found.more_handles <= 2
