"""A run that SIGKILL stops at random moments resumes and ends with the bits of an uninterrupted run."""

import random
import signal
import time

import pytest
import torch

from hgld.training.config import config_text, save_config, with_fields
from hgld.training.finetune import finetune_config
from hgld.training.inference.model import load_model
from hgld.training.log import read_rows
from hgld.training.loop import train
from tests.forked import forked
from tests.training.run_process import run
from tests.training.small_runs import STEPS, options, same, weights, write_small

pytestmark = pytest.mark.slow
# These options have state that a checkpoint must save: averages, moments and a memory.
FIELDS = {"loss": "SupRecall", "recall_at": (1, 2), "memory": 30, "memory_from_epoch": 1, "ema": 0.9}


@pytest.fixture(autouse=True)
def one_thread():
    """Use one thread, as the killed runs do, because float sums depend on their order."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def kill_while_training(config, data, out, awaited, draw):
    """Start or resume a run, and kill it soon after it has written to a file."""
    before = awaited.stat().st_mtime_ns if awaited.is_file() else 0
    process = forked(run, config, str(data), out, out=out.parent / "killed", environment={})
    deadline = time.monotonic() + 300
    while not (awaited.is_file() and awaited.stat().st_mtime_ns > before):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    time.sleep(draw.uniform(0.0, 0.2))
    process.kill()
    process.join()
    assert process.exitcode == -signal.SIGKILL


def test_run_killed_at_random_moments_resumes_with_bit_identical_weights(tmp_path):
    data, out, log = write_small(tmp_path / "data"), tmp_path / "run", tmp_path / "run/log.csv"
    config = options(**FIELDS, stream=True, epochs=12, evaluate_every=5, checkpoint_every=4, log_every=1)
    save_config(config, tmp_path / "config.json")
    draw = random.Random(1)
    for _ in range(3):
        kill_while_training(tmp_path / "config.json", data, out, log, draw)
    summary = train(config, str(data), out)
    assert (summary.finished, summary.step) == (True, 12 * STEPS)
    whole = train(config, str(data), tmp_path / "whole")
    assert same(weights(out), weights(tmp_path / "whole"))
    assert (summary.values, summary.best) == (whole.values, whole.best)
    assert [row["step"] for row in read_rows(log)] == [str(step) for step in range(1, 12 * STEPS + 1)]
    assert (out / "evaluations.csv").read_text() == (tmp_path / "whole/evaluations.csv").read_text()


def files(run):
    """Return the bytes of those files of a run that contain no times."""
    wanted = [run / "config.json", run / "evaluations.csv", *run.glob("checkpoints/**/*.safetensors")]
    wanted += [run / "checkpoints" / "best.json"]
    return {str(path.relative_to(run)): path.read_bytes() for path in wanted}


def test_killed_finetune_resumes_with_bit_identical_weights(tmp_path):
    """An uninterrupted run gives the same plan, test size, blended weights and best checkpoint."""
    timm = pytest.importorskip("timm")
    torch.manual_seed(0)
    torch.save(timm.create_model("test_efficientnet", num_classes=0).state_dict(), tmp_path / "weights.pth")
    data, out = write_small(tmp_path / "data", val=(12, 13, 14)), tmp_path / "run"
    given = {"backbone": "timm:test_efficientnet", "pretrained": str(tmp_path / "weights.pth"), "amp": "off"}
    given |= {"epochs": 3, "steps_per_epoch": 8, "batch_size": 8, "images_per_class": 2, "log_every": 1}
    config = with_fields(finetune_config(), given)
    (tmp_path / "config.yaml").write_text(config_text(config))
    draw = random.Random(0)
    for awaited in ("config.json", "log.csv", "log.csv"):
        kill_while_training(tmp_path / "config.yaml", data, out, out / awaited, draw)
    summary = train(config, str(data), out)
    assert (summary.finished, summary.step) == (True, 24)
    assert train(config, str(data), tmp_path / "whole").best == summary.best
    assert files(out) == files(tmp_path / "whole")
    assert summary.best["value"] >= summary.start["val"]["H-AP"]
    (tmp_path / "weights.pth").unlink()  # a run can be read and resumed without the file of its initial weights
    assert load_model(out).dim > 0
    assert train(config, str(data), out).best == summary.best
