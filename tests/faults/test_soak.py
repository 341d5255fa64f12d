"""Soak test: a long training that streams from a failing server must not leak memory or file descriptors.

The network is tiny, so that the steps of a day of training take minutes. Every 40th response is an error, and every
60th ends early. The process of the training is sampled four times per second. ``HGLD_SOAK`` is the number of steps.
"""

import os
import subprocess
import sys
import time
from pathlib import Path
from statistics import median

import pytest

from tests.faults.test_attacks import resident
from tests.hgld.range_server import RangeServer
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


class _FailingServer(RangeServer):
    """Server whose responses fail at fixed places of their sequence."""

    def __init__(self, folder):
        self.failed = 0
        super().__init__(folder)
        self.lie = self._respond

    def _respond(self, asked):
        number = len(self.requests)
        self.failed += not number % 40 or not number % 60
        if not number % 40:
            asked.head("Content-Length: 0", status="503 Busy")
        elif not number % 60:
            asked.partial(asked.data[: len(asked.data) // 2], Content_Length=str(len(asked.data)))
            asked.handler.close_connection = True
        else:
            asked.honest()


def growth(samples, summary):
    """Return by how much the last quarter of the samples is above the second quarter."""
    quarter = len(samples) // 4
    return summary(samples[-quarter:]) - summary(samples[quarter : 2 * quarter])


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="memory is read from /proc")
def test_training_from_a_failing_server_leaks_no_memory_and_no_file_descriptor(tmp_path):
    write_dataset(tmp_path / "data", items_of_classes([6] * 24, ["train", "train", "val"]), per_shard=12)
    command = [sys.executable, "-m", "hgld", "train", "--out", str(tmp_path / "run"), *_OPTIONS.split()]
    command += ["--epochs", str(_STEPS // _STEPS_PER_EPOCH), "--steps-per-epoch", str(_STEPS_PER_EPOCH)]
    command += ["--evaluate-every", str(max(1, _STEPS // _STEPS_PER_EPOCH // 10))]
    memory, handles = [], []
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    with _FailingServer(tmp_path / "data") as server, (tmp_path / "errors").open("w+") as errors:
        command += ["--data", server.url]
        with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=errors, env=environment) as process:
            while process.poll() is None:
                time.sleep(_PERIOD)
                try:
                    handles.append(sum(1 for _ in Path(f"/proc/{process.pid}/fd").iterdir()))
                except OSError:
                    break  # the process has ended
                memory.append(resident(process.pid))
        errors.seek(0)
        assert process.returncode == 0, errors.read()[-2000:]
    more_memory, more_handles = growth(memory, median), growth(handles, max)
    print(  # pytest -s shows it
        f"{_STEPS:,} steps, {len(server.requests):,} requests, {server.failed:,} failed: memory grew by "
        f"{more_memory / 2**20:.1f} MiB, file descriptors by {more_handles}"
    )
    assert server.failed > 10
    assert more_memory < 40 << 20
    assert more_handles <= 2
