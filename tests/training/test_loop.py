"""The training loop: a stopped run ends like an uninterrupted one; errors are reported and keep a checkpoint."""

import json
import os
import shutil
import signal
from pathlib import Path

import polars as pl
import pytest
import torch

from hgld.data.index import read_index
from hgld.errors import ConfigError, DivergenceError, InputError, StorageError
from hgld.training import loop, state
from hgld.training.checkpoint import find_checkpoint, read_checkpoint, selection_of
from hgld.training.config import read_config
from hgld.training.log import read_rows
from hgld.training.loop import LOCK, train
from hgld.training.progress import ProgressReporter
from tests.hgld.streamed_dataset import damage, no_image
from tests.rows import each_row
from tests.training.small_runs import STEPS, Notes, options, same, weights, write_half_damaged, write_small

# These options have state that a resumed run must restore; options that do not interact share a case.
VARIANTS = {
    "stream in whole epochs, adamw, ema, clipped, bf16": {
        "steps_per_epoch": STEPS,
        "stream": True,
        "optimizer": "adamw",
        "ema": 0.9,
        "clip_norm": 1.0,
        "amp": "bf16",
    },
    "hierarchical-pk, nesterov, linear, frozen": {
        "sampler": "hierarchical-pk",
        "optimizer": "sgd",
        "nesterov": True,
        "schedule": "linear",
        "frozen_epochs": 1,
        "warmup_steps": 3,
    },
    "memory": {"loss": "SupAP", "memory": 20, "memory_from_epoch": 0},
    "simix in chunks": {"loss": "RODRecall", "simix": True, "recall_at": (1, 2), "micro_batch_size": 3},
    "multigrain": {
        "loss": "MultiGrain",
        "sampler": "repeated-augmentation",
        "repeats": 2,
        "images_per_class": 4,
        "jitter": 0.3,
    },
}


def test_run_with_zero_epochs_evaluates_the_initial_model(data, tmp_path):
    config = options(epochs=0, warmup_steps=30, frozen_epochs=5, schedule="step", milestones=(3,), select_on_test=True)
    summary = train(config, data, tmp_path / "run")
    assert (summary.finished, summary.step, summary.epoch) == (True, 0, 0)
    value = summary.values["test"]["H-AP"]
    assert summary.best == {"metric": "H-AP", "value": value, "epoch": 0, "step": 0, "on": "test", "top": value}
    assert "on test: the initial model" in summary.to_text()
    assert read_rows(tmp_path / "run" / "evaluations.csv")
    assert (tmp_path / "run" / "reports" / "test-epoch-0.json").is_file()
    again = train(config, data, tmp_path / "run")
    assert again.values == summary.values
    trained = train(options(**STILL), data, tmp_path / "other", init_from=tmp_path / "run")
    assert trained.step == 1


class Signals(ProgressReporter):
    """Reporter that sends a signal to this process after some steps."""

    def __init__(self, *steps, number=signal.SIGTERM):
        self.steps, self.number = set(steps), number

    def advance(self, step):
        if step in self.steps:
            os.kill(os.getpid(), self.number)


def weights_at(config, data, out, step):
    """Start or resume a run, stop it after a step, and return its weights."""
    summary = train(config, data, out, progress=Signals(step))
    assert (summary.finished, summary.step) == (False, step)
    assert find_checkpoint(out, "last").name == f"step-{step:08d}"
    return weights(out)


def stopped_and_resumed(config, data, out, *steps):
    for step in steps:
        weights_at(config, data, out, step)
    return train(config, data, out)


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(
            name, marks=pytest.mark.slow if "bf16" in name or name in ("simix in chunks", "multigrain") else ()
        )
        for name in VARIANTS
    ],
)
def test_resumed_run_ends_bit_identical_to_uninterrupted_run(name, data, tmp_path):
    config = options(**{"steps_per_epoch": 3, **VARIANTS[name]})
    whole = train(config, data, tmp_path / "whole")
    in_epoch_2 = config.batch.steps_per_epoch + 1
    stops = [weights_at(config, data, tmp_path / "stopped", step) for step in (1, in_epoch_2)]
    resumed = train(config, data, tmp_path / "stopped")
    assert whole.finished
    assert resumed.finished
    assert not same(*stops)
    assert not same(stops[1], weights(tmp_path / "whole"))
    assert (resumed.values, resumed.best) == (whole.values, whole.best)
    assert same(weights(tmp_path / "whole"), weights(tmp_path / "stopped"))
    logs = [pl.read_csv(tmp_path / run / "log.csv") for run in ("whole", "stopped")]
    kept = [c for c in logs[0].columns if c not in ("time", "images_per_second", "wait_share", "memory_mb")]
    assert logs[0][kept].equals(logs[1][kept])
    assert all(log["wait_share"].is_between(0, 1).all() for log in logs)
    texts = [(tmp_path / run / "evaluations.csv").read_text() for run in ("whole", "stopped")]
    assert texts[0] == texts[1]


def test_stop_at_epoch_end_does_not_skip_the_evaluation(data, tmp_path):
    config = options(steps_per_epoch=2)
    whole = train(config, data, tmp_path / "whole")
    resumed = stopped_and_resumed(config, data, tmp_path / "stopped", 2, 4)
    assert [row["step"] for row in read_rows(tmp_path / "stopped/evaluations.csv")] == ["2", "4"]
    assert (resumed.values, resumed.best) == (whole.values, whole.best)


def test_run_resumes_only_with_unchanged_options_and_data(data, tmp_path):
    train(options(**STILL), data, tmp_path / "run")
    with pytest.raises(ConfigError, match=r"lr is 0\.5, was 0\.0.*--init-from"):
        train(options(**STILL | {"lr": 0.5}), data, tmp_path / "run")
    other = write_small(tmp_path / "other")
    facts = json.loads((other / "dataset.json").read_text())
    (other / "dataset.json").write_text(json.dumps(facts | {"name": "another"}))
    with pytest.raises(ConfigError, match=r"on other data.*\(name was small, is another;.*--init-from"):
        train(options(**STILL), str(other), tmp_path / "run")


@each_row(("stream", "change"), [(False, {"held_out": range(6)}), (True, {"order": 1})])
def test_run_does_not_resume_if_the_split_or_the_image_order_changed(stream, change, data, tmp_path):
    config = options(epochs=1, steps_per_epoch=1, stream=stream, evaluate_on=())
    train(config, data, tmp_path / "run")
    other = write_small(tmp_path / "small", **change)
    with pytest.raises(ConfigError, match=r"on other data.*\(checksum was \w{16}, is \w{16};.*--init-from"):
        train(config, str(other), tmp_path / "run")
    shutil.rmtree(other)
    shutil.copytree(data, other)
    assert train(config, str(other), tmp_path / "run").finished


def test_init_from_starts_with_the_averaged_weights(data, tmp_path):
    train(options(ema=0.5, epochs=1, steps_per_epoch=2, evaluate_on=()), data, tmp_path / "first")
    train(options(**STILL), data, tmp_path / "second", init_from=tmp_path / "first")
    averaged = read_checkpoint(find_checkpoint(tmp_path / "first")).tensors["ema"]
    tuned = read_checkpoint(find_checkpoint(tmp_path / "second")).tensors["model"]
    assert all(torch.equal(averaged[name], tuned[name]) for name in averaged)


@each_row(
    ("tolerance", "worths", "chosen"),
    [
        (0.1, [0.1, 0.9, 0.85, 0.78], 2),  # epoch 2 is within 0.1 of the best value 0.9, and trained longer
        (0.1, [0.88, 0.9, 0.85, 0.1], 1),  # epoch 2 is within 0.1 of the best value, but below the initial model
    ],
)
def test_best_checkpoint_is_the_last_within_monitor_tolerance(tolerance, worths, chosen, data, tmp_path, monkeypatch):
    worth = iter(worths)

    def judged(*args, **kwargs):
        if not reports:
            reports.update(evaluate(*args, **kwargs))
        reports["test"].values["H-AP"] = next(worth)
        return reports

    evaluate, reports = loop.evaluate_splits, {}
    monkeypatch.setattr(loop, "evaluate_splits", judged)
    config = options(epochs=3, steps_per_epoch=1, evaluate_start=True, select_on_test=True, monitor_tolerance=tolerance)
    summary = train(config, data, tmp_path)
    expected = {"metric": "H-AP", "value": worths[chosen], "epoch": chosen, "step": chosen, "on": "test"}
    assert summary.best == expected | {"top": max(worths)}
    assert selection_of(find_checkpoint(tmp_path)) == "chosen by H-AP on test, a test split"
    names = {f"step-{chosen:08d}", "step-00000003"}
    assert {path.name for path in (tmp_path / "checkpoints").glob("step-*")} == names


def test_frozen_backbone_weights_do_not_change(data, tmp_path):
    config = options(frozen_epochs=1, keep=9, steps_per_epoch=2, evaluate_on=())
    train(config, data, tmp_path)
    torch.manual_seed(config.run.seed)
    begin = state.build_model(config.model, image_size=config.images.size).state_dict()
    first, second = (read_checkpoint(tmp_path / f"checkpoints/step-{2 * n:08d}").tensors["model"] for n in (1, 2))
    backbone = [name for name in begin if name.startswith("backbone.")]
    assert all(torch.equal(begin[name], first[name]) for name in backbone)
    assert not torch.equal(begin["projection.weight"], first["projection.weight"])
    assert not any(torch.equal(first[name], second[name]) for name in backbone if name.endswith("0.weight"))
    with pytest.raises(ConfigError, match="--frozen-epochs is 1"):
        train(options(frozen_epochs=1, dim=0), data, tmp_path / "nothing-moves")


@pytest.mark.parametrize("where", ["loss", "gradient"])
def test_diverged_run_stops_and_keeps_the_newest_checkpoint(where, data, tmp_path, monkeypatch):
    config = options(loss="SupAP", memory=20, memory_from_epoch=0, checkpoint_every=2)
    reference = weights_at(config, data, tmp_path / "reference", 2)
    forward, calls = loop.Backward.__call__, []

    def broken(self, batch):
        calls.append(batch)
        if len(calls) == 3:
            values = forward(self, batch)
            if where == "gradient":
                next(self.model.parameters()).grad.fill_(float("inf"))
                return values
            return loop.StepValues(values.loss * float("nan"), values.parts)
        return forward(self, batch)

    monkeypatch.setattr(loop.Backward, "__call__", broken)
    told = r"epoch 1, step 3.*train/.*The step was skipped.*--init-from .*run/checkpoints/step-00000002\."
    with pytest.raises(DivergenceError, match=told):
        train(config, data, tmp_path / "run")
    monkeypatch.undo()
    assert same(reference, weights(tmp_path / "run"))


@each_row("stream", [False, True])
def test_damaged_training_image_is_replaced_and_damaged_test_image_excluded(stream, tmp_path):
    place, run, shown = write_small(tmp_path / "data"), tmp_path / "run", Notes()
    table = read_index(place / "index.parquet")[0]
    [key], [other] = (damage(place, table.filter(split=split), [5], no_image) for split in ("train", "test"))
    summary = train(options(epochs=1, stream=stream), str(place), run, progress=shown)
    rows = read_rows(run / "faults.csv")
    assert (summary.finished, summary.faults) == (True, len(rows))
    assert rows
    assert all(key in row["fault"] for row in rows)
    assert summary.values["test"]["H-AP"] > 0
    [told] = shown.notes
    assert told.startswith("test: unreadable images, which are excluded: 1; the first: ")
    for text in (
        told,
        *((run / name).read_text() for name in ("embeddings/test.faults.csv", "reports/test-epoch-1.json")),
    ):
        assert other in text


def test_run_stops_if_too_many_images_are_replaced_and_continues_with_a_higher_limit(tmp_path):
    place, out = str(write_half_damaged(tmp_path / "data")), tmp_path / "run"
    config = options(epochs=1, stream=True, evaluate_on=())
    with pytest.raises(
        InputError, match=r"1\d of 48 images .* could not be read and were replaced, the last: .*train-"
    ):
        train(config, place, out)
    listed = len(read_rows(out / "faults.csv"))
    assert listed > 10
    summary = train(options(epochs=1, stream=True, evaluate_on=(), max_faults=1.0), place, out)
    assert (summary.finished, summary.step) == (True, 6)
    assert len(read_rows(out / "faults.csv")) > listed


@pytest.mark.slow  # float16 is slow on a CPU
def test_fp16_runs_on_a_cpu_and_resumes(data, tmp_path):
    config = options(amp="fp16", epochs=1, evaluate_every=0)
    train(config, data, tmp_path / "whole")
    stopped_and_resumed(config, data, tmp_path / "stopped", 3)
    assert same(weights(tmp_path / "whole"), weights(tmp_path / "stopped"))
    assert read_checkpoint(find_checkpoint(tmp_path / "whole")).state["scaler"]["scale"] > 0


def test_fp16_overflow_skips_the_update_of_all_parameters(data, tmp_path, monkeypatch):
    config = options(amp="fp16", epochs=1, ema=0.9, loss="NormSoftmax", log_every=1, size=8, resize=8)
    reference = weights_at(config, data, tmp_path / "reference", 2)
    forward, calls = loop.Backward.__call__, []

    def overflowing(self, batch):
        values = forward(self, batch)
        calls.append(batch)
        if len(calls) == 3:
            next(self.model.parameters()).grad.fill_(float("inf"))
        return values

    monkeypatch.setattr(loop.Backward, "__call__", overflowing)
    assert same(reference, weights_at(config, data, tmp_path / "run", 3))
    scales = [read_checkpoint(find_checkpoint(tmp_path / r, "last")).state["scaler"] for r in ("reference", "run")]
    assert scales[1]["scale"] == scales[0]["scale"] / 2


# -- the start of a run --

STILL = {"lr": 0.0, "lr_head": 0.0, "epochs": 1, "steps_per_epoch": 1, "evaluate_on": ()}


def model_of(run):
    return read_checkpoint(find_checkpoint(run, "last")).tensors["model"]


def test_saved_config_keeps_init_from_and_a_resumed_run_refuses_another(data, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    first, second = tmp_path / "first", tmp_path / "second"
    train(options(**STILL, seed=1), data, first)
    with pytest.raises(ConfigError, match=r"first holds a run that began without --init-from; the weights of"):
        train(options(**STILL, seed=1), data, first, init_from=second)
    train(options(**STILL), data, second, init_from=Path("first"))
    for spelling in ("first", "./first", first):
        assert train(options(**STILL), data, second, init_from=Path(spelling)).finished
    again = train(read_config(second / "config.json"), data, tmp_path / "again")
    expected = model_of(first)
    assert all(torch.equal(tensor, expected[name]) for name, tensor in model_of(Path(again.run)).items())
    with pytest.raises(ConfigError, match=r"began with --init-from first; the weights of .*third would not"):
        train(options(**STILL), data, second, init_from=tmp_path / "third")
    assert read_config(second / "config.json").init_from == "first"


def test_warmup_longer_than_the_run_is_refused(data, tmp_path):
    short = STILL | {"epochs": 2, "steps_per_epoch": 2}
    with pytest.raises(ConfigError, match=r"warmup_steps is 5 and the run has 4 \(epochs 2, 2 steps each.*--warmup-st"):
        train(options(**short, warmup_steps=5), data, tmp_path / "run")
    assert not (tmp_path / "run").exists()
    assert train(options(**short, warmup_steps=4), data, tmp_path / "run").finished


def test_run_folder_is_locked_against_a_second_training(data, tmp_path):
    out, refusals = tmp_path / "run", []

    class Second(ProgressReporter):
        def begin(self, step, total, description=""):
            with pytest.raises(StorageError, match=r"another training is running in .*run\. .* choose another --out"):
                train(options(**STILL), data, out)
            refusals.append(step)

    assert train(options(**STILL), data, out, progress=Second()).finished
    assert refusals
    assert not (out / LOCK).exists()
    assert train(options(**STILL), data, out).finished  # the first run has released the lock


def test_refused_run_leaves_no_folder(data, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match=r"cannot write .*file/run"):
        train(options(**STILL), data, tmp_path / "file/run")
    with pytest.raises(InputError):
        train(options(**STILL), str(tmp_path / "nothing"), tmp_path / "run")
    assert not (tmp_path / "run").exists()
