"""kill -9 at random moments costs steps, not the run: it ends bit for bit as one that was left in peace."""

import random
import signal
import time

import pytest
import torch

from hgld.training.config import save_config
from hgld.training.log import read_rows
from hgld.training.loop import train
from tests.forked import forked
from tests.training.run_process import run
from tests.training.small_runs import STEPS, options, same, weights, write_small

pytestmark = pytest.mark.slow
KILLS = 5
# Everything that a checkpoint has to hold: averages, moments, a memory.
FIELDS = {"loss": "SupRecall", "recall_at": (1, 2), "memory": 30, "memory_from_epoch": 1, "ema": 0.9}


@pytest.fixture(autouse=True)
def one_thread():
    """As many threads as the killed runs have: sums of floats depend on their order."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def wait_for_log(log, before):
    """Wait until the run has written to its log."""
    deadline = time.monotonic() + 60
    while not (log.is_file() and log.stat().st_mtime_ns > before):
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.parametrize("stream", [False, True])
def test_kills_at_random_moments(stream, tmp_path):
    data, out, log = write_small(tmp_path / "data"), tmp_path / "run", tmp_path / "run/log.csv"
    config = options(**FIELDS, stream=stream, epochs=24, evaluate_every=5, checkpoint_every=4, log_every=1)
    save_config(config, tmp_path / "config.json")
    draw, killed = random.Random(int(stream)), 0
    for number in range(KILLS):
        before = log.stat().st_mtime_ns if log.is_file() else 0
        process = forked(run, tmp_path / "config.json", str(data), out, out=tmp_path / f"kill-{number}", environment={})
        wait_for_log(log, before)
        time.sleep(draw.uniform(0.0, 0.2))
        process.kill()
        process.join()
        killed += process.exitcode == -signal.SIGKILL
    assert killed == KILLS
    summary = train(config, str(data), out)
    assert (summary.finished, summary.step) == (True, 24 * STEPS)
    whole = train(config, str(data), tmp_path / "whole")
    assert same(weights(out), weights(tmp_path / "whole"))
    assert (summary.values, summary.best) == (whole.values, whole.best)
    assert [row["step"] for row in read_rows(log)] == [str(step) for step in range(1, 24 * STEPS + 1)]
    assert (out / "evaluations.csv").read_text() == (tmp_path / "whole/evaluations.csv").read_text()
