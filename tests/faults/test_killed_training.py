"""Two processes that train, killed during a checkpoint, go on to the bytes of those that were left in peace."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from hgld.training.config import save_config
from tests.training.small_runs import options, same, weights, write_small

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]


def test_kills_during_checkpoints_of_two_processes(tmp_path):
    data = write_small(tmp_path / "data")
    save_config(options(ema=0.9, epochs=2, checkpoint_every=3, evaluate_every=0), tmp_path / "config.json")
    words = [sys.executable, "-m", "tests.faults.killed_training", str(tmp_path / "config.json"), str(data)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    pipe = subprocess.PIPE
    with subprocess.Popen(words, cwd=ROOT, env=environment, stdin=pipe, stdout=pipe, stderr=pipe, text=True) as starter:
        kills = [(str(tmp_path / "run"), after) for after in (2, 11, 23)]
        ends = [(str(tmp_path / "run"), -1), (str(tmp_path / "whole"), -1)]
        said, errors = starter.communicate("".join(json.dumps(one) + "\n" for one in (*kills, *ends)), timeout=600)
    codes = [json.loads(line) for line in said.splitlines()]
    assert [first for first, _ in codes] == [-signal.SIGKILL] * len(kills) + [0, 0], errors
    assert all(second != 0 for _, second in codes[: len(kills)])  # the other process ends too
    assert codes[-2:] == [[0, 0]] * 2
    assert same(weights(tmp_path / "run"), weights(tmp_path / "whole"))
