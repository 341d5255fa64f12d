"""Two processes train the same weights as one, from a directory and from shards over HTTP.

A restart and a signal are tested under torchrun. The other tests fork their processes, which is faster.
"""

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from subprocess import PIPE

import pytest
import torch

from hgld import distributed
from hgld.distributed import join_rows
from hgld.evaluation.options import EvaluationOptions
from hgld.training import optimizers
from hgld.training.checkpoint import find_checkpoint
from hgld.training.config import CONFIG, read_config, save_config, with_fields
from hgld.training.evaluation import SplitEmbedder, evaluate_task, parse_task
from hgld.training.finetune import finetune_config
from hgld.training.inference.embedder import trained_embedder
from hgld.training.log import read_rows
from hgld.training.loop import train
from tests import forked
from tests.hgld.range_server import serve
from tests.interpreter import ROOT
from tests.training.run_process import run
from tests.training.small_runs import QUICK, STEPS, options, same, weights, write_small

pytestmark = pytest.mark.slow
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
# SGD and a smooth surrogate, because Adam and a steep surrogate would amplify rounding differences.
ALIKE = {
    "optimizer": "sgd",
    "lr": 0.01,
    "lr_head": 0.01,
    "lr_proxies": 0.01,
    "clip_norm": 1.0,
    "tau": 0.1,
}


@pytest.fixture(scope="module")
def data(module_path):
    return write_small(module_path / "small")


def together(config, data, out, *stop, processes=2, **more):
    """Train in several processes, to the end or until a step; return what they wrote."""
    file = out.with_suffix(".json")
    save_config(config, file)
    place = out.parent
    return forked.together(run, file, str(data), out, *stop, folder=place, count=processes, **more)


def wait_for_rows(agent, log, count):
    """Wait until the log of a run has more than ``count`` rows."""
    deadline = time.monotonic() + 120
    while not (log.is_file() and len(read_rows(log)) > count):
        assert agent.poll() is None, agent.communicate()[1]
        assert time.monotonic() < deadline
        time.sleep(0.01)


def assert_alike(run, other):
    first, second = weights(run), weights(other)
    assert first.keys() == second.keys()
    for name, tensor in first.items():
        torch.testing.assert_close(tensor, second[name], rtol=1e-5, atol=1e-5, msg=lambda text, n=name: f"{n}: {text}")
    before, after = (read_rows(path / "evaluations.csv")[-1] for path in (run, other))
    assert float(after["H-AP"]) == pytest.approx(float(before["H-AP"]), abs=1e-4)


@pytest.mark.parametrize(
    "fields",
    [
        {"micro_batch_size": 2, "frozen_epochs": 1, "epochs": 2},
        {"loss": "SupAP", "memory": 20, "memory_from_epoch": 0},
    ],
    ids=str,
)
def test_two_processes_train_the_same_weights_as_one_process(fields, data, tmp_path):
    config = options(**(ALIKE | {"epochs": 1} | fields))
    together(config, data, tmp_path / "two")
    train(config, str(data), tmp_path / "one")
    assert_alike(tmp_path / "one", tmp_path / "two")


def test_two_finetuning_processes_share_one_plan(tmp_path):
    data = write_small(tmp_path / "data", val=(12, 13, 14))
    given = {"backbone": "small", "size": 16, "batch_size": 8, "images_per_class": 2, "epochs": 1, "amp": "off"}
    config = with_fields(finetune_config(), {**ALIKE, **given, "warmup_steps": 0})
    result = together(config, data, tmp_path / "two")
    assert result.stdout.count("what ") == 1  # the main process prints the plan
    train(config, str(data), tmp_path / "one")
    assert_alike(tmp_path / "one", tmp_path / "two")
    one, two = (dict(read_config(tmp_path / name / CONFIG).plan) for name in ("one", "two"))
    assert one.keys() == two.keys()
    # micro_batch_size differs because it counts images per process
    assert one | {"micro_batch_size": ""} == two | {"micro_batch_size": ""}


def test_evaluation_uses_the_batch_norm_statistics_of_the_checkpoint(data, tmp_path):
    """Each process has its own batch norm statistics in training; evaluation uses the statistics in the checkpoint."""
    config = options(backbone="torchvision:resnet18", size=32, resize=36, epochs=1)
    together(config, data, tmp_path / "two")
    [row] = read_rows(tmp_path / "two/evaluations.csv")
    with trained_embedder(tmp_path / "two", which="last", device="cpu") as embedder:
        task, asked = parse_task("test", str(data)), EvaluationOptions(metrics=config.run.metrics)
        report = evaluate_task(SplitEmbedder(embedder), task, options=asked)
    assert {name: float(row[name]) for name in report.values} == pytest.approx(report.values, abs=1e-4)


@pytest.mark.parametrize("is_stream", [False, True])
def test_training_from_a_failing_server_by_two_processes_equals_one_process_from_disk(data, tmp_path, is_stream):
    config = options(**ALIKE, epochs=1, stream=is_stream)
    with serve(data) as server:
        server.failures[:] = [503, 500]
        together(config, server.url, tmp_path / "two")
        assert any(".tar" in request for request in server.requests)
    train(config, str(data), tmp_path / "one")
    assert_alike(tmp_path / "one", tmp_path / "two")


def test_run_resumes_with_another_number_of_processes(data, tmp_path):
    config = options(**ALIKE, epochs=2, stream=True)
    stopped = tmp_path / "stopped"
    together(config, data, stopped, STEPS, processes=1)
    result = together(config, data, stopped)
    assert f"resumes after step {STEPS} of {2 * STEPS}" in result.stdout
    train(config, str(data), tmp_path / "whole")
    assert_alike(tmp_path / "whole", stopped)


def test_cross_batch_memory_of_two_processes_is_restored_by_one_process(data, tmp_path):
    config = options(**ALIKE, epochs=1, loss="SupAP", memory=21, memory_from_epoch=0)
    run, whole = tmp_path / "run", tmp_path / "whole"
    for step in (2, 3):
        together(config, data, run, step)
        assert weights(run)["criterion/loss.embeddings"].shape == (21, config.model.dim)
    train(config, str(data), run)
    train(config, str(data), whole)
    assert_alike(whole, run)
    assert [row.keys() for row in read_rows(run / "log.csv")] == [row.keys() for row in read_rows(whole / "log.csv")]


def run_split(*arguments):
    """Train as ``run``, with all tables of the loss split; print the rows that this process keeps of each table."""

    def join(own, count, processes):
        print(f"process {processes.index} keeps {len(own)} of {count} rows", flush=True)
        return join_rows(own, count, processes)

    distributed._SPLIT_NUMBERS, distributed.join_rows, optimizers.join_rows = 1, join, join
    run(*arguments)


def assert_split(result):
    """Check that each of several processes kept a part of every table of the loss."""
    kept = set(re.findall(r"process (\d) keeps (\d+) of (\d+) rows", result.stdout))
    assert {index for index, _, _ in kept} == {str(index) for index in range(len(result.codes))}
    assert sum(int(rows) for _, rows, _ in kept) == int(kept.pop()[2])


@pytest.mark.parametrize("optimizer", ["adamw", "sgd"])
def test_tables_with_split_moments_end_in_the_bits_of_whole_tables(optimizer, data, tmp_path):
    """Each process has the whole classifier of MultiGrain, and the optimizer's state of some rows."""
    views = {"loss": "MultiGrain", "sampler": "repeated-augmentation", "repeats": 2, "lambda_": 0.5}
    config = options(**ALIKE | views | {"optimizer": optimizer, "images_per_class": 4, "tau": 0.01}, epochs=2)
    file = tmp_path / "config.json"
    save_config(config, file)
    for out, work, *stop in (("whole", run), ("split", run_split, STEPS + 1), ("split", run_split)):
        place = tmp_path / out
        result = forked.together(work, file, str(data), place, *stop, folder=tmp_path, count=2)
    assert_split(result)
    whole, split = (weights(tmp_path / out) for out in ("whole", "split"))
    assert any("proxies/" in name for name in whole)
    assert same(whole, split)


def test_split_proxies_train_as_whole_proxies_and_resume_on_any_number_of_processes(data, tmp_path):
    """Each process holds only its rows of the proxies, with their gradient and moments."""
    changes = {"weight_decay_proxies": 0.1, "metrics": ("R@1", "AP", "H-AP", "top-1"), "evaluate_on": ("train",)}
    file = tmp_path / "config.json"
    save_config(options(**ALIKE | changes, epochs=1, log_every=1), file)

    def train_split(count, name, *stop):
        out = tmp_path / name
        result = forked.together(run_split, file, str(data), out, *stop, folder=tmp_path, count=count)
        assert_split(result)
        return out

    two, four = train_split(2, "two"), train_split(2, "four", STEPS // 2)
    again = shutil.copytree(four, tmp_path / "again")
    assert same(weights(two), weights(train_split(2, again)))
    train_split(4, four)
    one = tmp_path / "one"
    forked.together(run, file, str(data), one, folder=tmp_path, count=1)
    for out in (two, four):
        assert_alike(one, out)
        for log, name in (("evaluations.csv", "top-1"), ("log.csv", "gradient_norm")):
            before, after = ([float(row[name]) for row in read_rows(place / log)] for place in (one, out))
            assert after == pytest.approx(before, rel=1e-4)


def test_error_in_one_process_stops_all_processes(data, tmp_path):
    config = options(**ALIKE, epochs=1)
    broken = write_small(tmp_path / "broken")
    for shard in broken.glob("train-*.tar"):
        shard.write_bytes(b"\0" * shard.stat().st_size)
    result = together(config, broken, tmp_path / "run", fails=True)
    assert all(result.codes)
    assert "InputError" in result.stderr
    # training failed at the first batch, so only the initial checkpoint exists
    assert find_checkpoint(tmp_path / "run", "last").name == "step-00000000"


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="finds the processes in /proc")
def test_torchrun_restarts_a_killed_run_stops_it_and_it_resumes_bit_identical(data, tmp_path):
    epochs = 12  # the run must last until torchrun has passed on the signal
    config = options(**QUICK | {"epochs": epochs, "evaluate_every": 0, "log_every": 1, "checkpoint_every": 4})
    out, log = tmp_path / "run", tmp_path / "run/log.csv"
    save_config(config, tmp_path / "run.json")
    line = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "--max-restarts=1"]
    line += ["-m", "hgld", "train", *map(str, ("--config", tmp_path / "run.json", "--data", data, "--out", out))]
    with subprocess.Popen(line, env=ENVIRONMENT, stdout=PIPE, stderr=PIPE, text=True) as agent:
        wait_for_rows(agent, log, STEPS)
        *_, last = Path(f"/proc/{agent.pid}/task/{agent.pid}/children").read_text().split()
        os.kill(int(last), signal.SIGKILL)
        wait_for_rows(agent, log, 3 * STEPS)
        agent.send_signal(signal.SIGTERM)
        said, errors = agent.communicate(timeout=60)
    assert "resumes after step" in said + errors
    step = int(find_checkpoint(out, "last").name.removeprefix("step-"))
    assert 3 * STEPS < step < epochs * STEPS
    result = together(config, data, out)
    assert f"resumes after step {step} of {epochs * STEPS}" in result.stdout
    together(config, data, tmp_path / "whole")
    assert same(weights(out), weights(tmp_path / "whole"))
