"""The start of a run: initial weights that its config remembers, warm-up, and the lock of its folder."""

import errno
import os
from pathlib import Path

import pytest
import torch

from hgld.errors import ConfigError, InputError, StorageError
from hgld.files import file_lock
from hgld.training.checkpoint import find_checkpoint, read_checkpoint
from hgld.training.config import read_config
from hgld.training.loop import LOCK, train
from hgld.training.progress import ProgressReporter
from tests.training.small_runs import Notes, options, write_small

STILL = {"lr": 0.0, "lr_head": 0.0, "epochs": 1, "steps_per_epoch": 1, "evaluate_on": ()}


def model_of(run):
    return read_checkpoint(find_checkpoint(run, "last")).tensors["model"]


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return str(write_small(tmp_path_factory.mktemp("data") / "small"))


def test_saved_config_keeps_init_from_for_a_new_run(data, tmp_path):
    first, second, third = (tmp_path / name for name in ("first", "second", "third"))
    train(options(**STILL, seed=1), data, first)
    train(options(**STILL), data, second, init_from=first)
    assert read_config(first / "config.json").init_from == ""
    assert read_config(second / "config.json").init_from == str(first)
    train(read_config(second / "config.json"), data, third)
    assert read_config(third / "config.json").init_from == str(first)
    expected = model_of(first)
    assert all(torch.equal(tensor, expected[name]) for name, tensor in model_of(third).items())
    train(options(**STILL), data, tmp_path / "anew")
    assert not torch.equal(model_of(tmp_path / "anew")["projection.weight"], expected["projection.weight"])


def test_resumed_run_rejects_another_init_from(data, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    first, second = tmp_path / "first", tmp_path / "second"
    train(options(**STILL, seed=1), data, first)
    with pytest.raises(ConfigError, match=r"first holds a run that began without --init-from; the weights of"):
        train(options(**STILL, seed=1), data, first, init_from=second)
    train(options(**STILL), data, second, init_from=Path("first"))
    for same in ("first", "./first", first):  # the same command resumes
        assert train(options(**STILL), data, second, init_from=Path(same)).finished
    assert train(read_config(second / "config.json"), data, second).finished
    with pytest.raises(ConfigError, match=r"began with --init-from first; the weights of .*third would not"):
        train(options(**STILL), data, second, init_from=tmp_path / "third")
    assert read_config(second / "config.json").init_from == "first"


def test_warmup_longer_than_the_run_is_rejected(data, tmp_path):
    short = STILL | {"epochs": 2, "steps_per_epoch": 2}
    with pytest.raises(ConfigError, match=r"warmup_steps is 5 and the run has 4 \(epochs 2, 2 steps each.*--warmup-st"):
        train(options(**short, warmup_steps=5), data, tmp_path / "run")
    assert not (tmp_path / "run").exists()
    assert train(options(**short, warmup_steps=4), data, tmp_path / "run").finished


def test_run_folder_is_locked_against_a_second_training(data, tmp_path):
    out, refusals = tmp_path / "run", []

    def content():  # without TensorBoard's files, which another thread writes
        files = (path for path in out.rglob("*") if path.is_file() and "tensorboard" not in path.parts)
        return {path: path.read_bytes() for path in files}

    class Second(ProgressReporter):
        def begin(self, step, total, description=""):
            before = content()
            with pytest.raises(StorageError, match=r"another training is running in .*run\. .* take another --out"):
                train(options(**STILL), data, out)
            refusals.append(content() == before)

    assert train(options(**STILL), data, out, progress=Second()).finished
    assert refusals == [True]
    assert not (out / LOCK).exists()
    assert train(options(**STILL), data, out).finished  # the first run has released it


def test_file_system_without_locks_gives_a_note(data, tmp_path, monkeypatch):
    def no_locks(*args):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    told = Notes()
    monkeypatch.setattr("hgld.files.fcntl.flock", no_locks)
    assert train(options(**STILL), data, tmp_path / "run", progress=told).finished
    assert any("run has no locks (No locks available)" in note for note in told.notes)


def test_rejected_run_leaves_no_folder(data, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match=r"cannot write .*file/run"):
        train(options(**STILL), data, tmp_path / "file/run")
    with pytest.raises(InputError):
        train(options(**STILL), str(tmp_path / "nothing"), tmp_path / "run")
    assert not (tmp_path / "run").exists()
    (tmp_path / "kept").mkdir()
    with file_lock(tmp_path / "kept" / LOCK, "busy"), pytest.raises(StorageError, match="another training"):
        train(options(**STILL), data, tmp_path / "kept")
