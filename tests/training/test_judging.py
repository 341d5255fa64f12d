"""Evaluations of a run: impossible ones are rejected early, they may change on resuming, and are written once."""

import json
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from hgld import files
from hgld.errors import ConfigError, InputError, StorageError
from hgld.training import loop
from hgld.training.log import read_rows
from hgld.training.loop import train
from tests.fake_releases.pictures import jpeg
from tests.hgld.small_dataset import Item, write_dataset
from tests.training.small_runs import STEPS, Notes, options, write_small


def test_best_checkpoint_minimizes_metrics_where_lower_is_better():
    state: Any = SimpleNamespace(best_of=("test", "severity"), best={}, epoch=0, step=0)
    state.start, state.config = {}, SimpleNamespace(run=SimpleNamespace(monitor_tolerance=0.0))
    monitor: Any = SimpleNamespace()
    for value, best in ((2.0, 2.0), (1.5, 1.5), (1.75, 1.5)):
        state.values = {"test": {"severity": value}}
        loop._choose_best(state, monitor)
        assert state.best["value"] == best


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return str(write_small(tmp_path_factory.mktemp("data") / "small"))


@pytest.mark.parametrize(
    ("fields", "stated"),
    [
        ({"monitor": "NDCG"}, r"monitor is 'NDCG'; measured on test are R@1/fine"),
        ({"evaluate_on": ("test", "tset")}, "tset"),
        ({"evaluate_on": ("test/tset",)}, "tset"),
        ({"evaluate_on": ("test//b",)}, "evaluate_on"),
        ({"metrics": ("H-AP", "H-APP")}, "H-APP"),
        ({"metrics": ("H-AP", "AP/genus")}, "genus"),
    ],
    ids=str,
)
def test_impossible_evaluations_are_rejected_before_training(fields, stated, data, tmp_path):
    with pytest.raises((ConfigError, InputError), match=stated):
        train(options(**fields), data, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_resumed_run_may_change_its_evaluations(data, tmp_path):
    """By another metric the newest checkpoint is evaluated again, and the earlier best one is forgotten."""
    first = train(options(epochs=1, select_on_test=True), data, tmp_path)
    assert first.best["metric"] == "H-AP"
    fields = {"epochs": 1, "select_on_test": True}
    same_measure = train(options(**fields, metrics=("H-AP", "ASI"), evaluate_every=2), data, tmp_path)
    assert same_measure.best == first.best
    another = train(options(epochs=1, metrics=("AP",), monitor="AP", evaluate_on=("train", "test")), data, tmp_path)
    assert (another.best["metric"], another.best["step"]) == ("AP/fine", STEPS)
    assert another.best["value"] == another.values["train"]["AP/fine"]
    rows = read_rows(tmp_path / "evaluations.csv")
    assert [(row["epoch"], row["split"]) for row in rows] == [("1", "train"), ("1", "test")]
    assert json.loads((tmp_path / "checkpoints/best.json").read_text())["metric"] == "AP/fine"


def test_undefined_monitor_metric_is_noted_and_chooses_no_checkpoint(tmp_path):
    place = str(write_small(tmp_path / "data"))
    single = [Item((c, c // 2), "single", jpeg(np.random.default_rng(c))) for c in range(4)]
    write_dataset(tmp_path / "other", single)
    told = Notes()
    entries = (f"{tmp_path / 'other'}:single", "test")
    config = options(epochs=1, evaluate_on=entries, monitor="AP", select_on_test=True)
    summary = train(config, place, tmp_path / "run", progress=told)
    assert summary.finished
    assert summary.best == {}
    assert any("AP/fine is undefined for every query" in note for note in told.notes)


def test_evaluation_rows_are_not_duplicated_after_a_kill(data, tmp_path, monkeypatch):
    keep, kept = loop.save_run, []

    def save(run):
        kept.append(run.step)
        if len(kept) == 2:  # after the evaluation of the first epoch
            raise KeyboardInterrupt
        keep(run)

    monkeypatch.setattr(loop, "save_run", save)
    with pytest.raises(KeyboardInterrupt):
        train(options(epochs=1), data, tmp_path)
    monkeypatch.undo()
    assert len(read_rows(tmp_path / "evaluations.csv")) == 1
    train(options(epochs=1), data, tmp_path)
    assert [row["step"] for row in read_rows(tmp_path / "evaluations.csv")] == ["6"]


def test_failed_summary_write_keeps_the_old_summary(data, tmp_path, monkeypatch):
    train(options(epochs=1), data, tmp_path)
    before = (tmp_path / "summary.json").read_bytes()

    def full(change: str) -> None:
        if change == "replace summary.json":
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(files, "fault_point", full)
    with pytest.raises(StorageError, match=r"summary\.json.*No space left"):
        train(options(epochs=1), data, tmp_path)
    assert (tmp_path / "summary.json").read_bytes() == before
    assert not list(tmp_path.glob(".*.part"))
