"""Choice of the best checkpoint, and the evaluations that decide it."""

import json
from types import SimpleNamespace
from typing import Any

import pytest

from hgld.errors import ConfigError, InputError
from hgld.evaluation.report import RetrievalReport
from hgld.training import loop
from hgld.training.checkpoint import find_checkpoint, selection_of
from hgld.training.config import is_validation, read_config
from hgld.training.evaluation import check_evaluation
from hgld.training.inference.embedder import trained_embedder
from hgld.training.log import read_rows
from hgld.training.loop import train
from tests.hgld.small_dataset import items_of_classes, write_dataset
from tests.rows import each_row
from tests.training.small_runs import Notes, options, write_small

ONE_STEP = {"epochs": 1, "steps_per_epoch": 1}


@pytest.fixture(scope="module")
def with_val(module_path):
    return str(write_small(module_path / "small", val=range(12, 15)))


def test_validation_splits_are_recognized_by_name():
    validation = ["val", "validation", "dev", "val_query/val_gallery", "shards:val", "train"]
    others = ["test", "query/gallery", "val/test", "protocol", "protocol=sop", "valley", "val:test", "holdout"]
    assert list(filter(is_validation, validation + others)) == validation


def test_checkpoint_is_chosen_on_val_if_the_dataset_has_it(with_val, tmp_path):
    summary = train(options(steps_per_epoch=1), with_val, tmp_path / "run")
    assert list(summary.values) == ["test", "val"]
    assert summary.best["on"] == "val"
    assert "on val after epoch" in summary.to_text()
    assert selection_of(find_checkpoint(tmp_path / "run")) == "chosen by H-AP on val"
    with trained_embedder(tmp_path / "run") as embedder:
        assert embedder.selection == "chosen by H-AP on val"
    kept = RetrievalReport.load_json(tmp_path / "run" / "reports" / "test-epoch-2.json")
    assert kept.settings["best_checkpoint"] == "chosen by H-AP on val"
    assert train(options(steps_per_epoch=1), with_val, tmp_path / "run").best == summary.best
    assert train(read_config(tmp_path / "run" / "config.json"), with_val, tmp_path / "run").best == summary.best


def test_monitor_that_val_cannot_measure_is_refused(with_val):
    entry = "protocol=leave-one-out"
    with pytest.raises(ConfigError, match="monitor is 'mAP@R', which is not measured on val"):
        check_evaluation(options(evaluate_on=(entry,), monitor="mAP@R"), with_val)
    found, best_of = check_evaluation(options(evaluate_on=(entry,), monitor="R@1"), with_val)
    assert (found.run.evaluate_on, best_of) == ((entry, "val"), ("val", "R@1/fine"))


def test_checkpoint_is_chosen_on_test_only_with_select_on_test(data, with_val, tmp_path):
    told = Notes()
    last = train(options(steps_per_epoch=1), data, tmp_path / "last", progress=told)
    assert last.best == {}
    assert any("no checkpoint is chosen" in note for note in told.notes)
    assert not (tmp_path / "last" / "checkpoints" / "best.json").exists()
    assert selection_of(find_checkpoint(tmp_path / "last")) == "the last of its run"
    kept = RetrievalReport.load_json(tmp_path / "last" / "reports" / "test-epoch-2.json")
    assert kept.settings["best_checkpoint"] == "the last of its run"
    config, best_of = check_evaluation(options(select_on_test=True), with_val)
    assert (config.run.evaluate_on, best_of) == (("test",), ("test", "H-AP"))
    for fields in ({"evaluate_on": ("val", "test")}, {"evaluate_on": ()}):
        with pytest.raises(ConfigError, match="--select-on-test has no effect"):
            check_evaluation(options(**fields, select_on_test=True), with_val)


def test_run_selected_on_test_resumes_only_with_select_on_test(data, tmp_path):
    run = tmp_path / "run"
    train(options(**ONE_STEP, select_on_test=True), data, run)
    mark = run / "checkpoints" / "best.json"
    with pytest.raises(ConfigError, match=r"chosen on test, a test split.*Pass --select-on-test to resume"):
        train(options(**ONE_STEP), data, run)
    assert mark.is_file()
    assert train(options(**ONE_STEP, select_on_test=True), data, run).best["step"] == 1


# -- evaluations of a run --


def test_best_checkpoint_has_the_lowest_metric_value_if_lower_is_better():
    state: Any = SimpleNamespace(best_of=("test", "severity"), best={}, epoch=0, step=0)
    state.start, state.config = {}, SimpleNamespace(run=SimpleNamespace(monitor_tolerance=0.0))
    monitor: Any = SimpleNamespace()
    for value, best in ((2.0, 2.0), (1.5, 1.5), (1.75, 1.5)):
        state.values = {"test": {"severity": value}}
        loop._choose_best(state, monitor)
        assert state.best["value"] == best


@each_row(
    ("fields", "stated"),
    [
        ({"monitor": "NDCG"}, r"monitor is 'NDCG', which is not measured on test.*: R@1/fine"),
        ({"evaluate_on": ("test", "tset")}, "tset"),
        ({"evaluate_on": ("test/tset",)}, "tset"),
        ({"evaluate_on": ("test//b",)}, "evaluate_on"),
        ({"metrics": ("H-AP", "H-APP")}, "H-APP"),
        ({"metrics": ("H-AP", "AP/genus")}, "genus"),
    ],
)
def test_invalid_evaluations_are_refused_before_training(fields, stated, data, tmp_path):
    with pytest.raises((ConfigError, InputError), match=stated):
        train(options(**fields), data, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_resumed_run_may_use_another_monitor(data, tmp_path):
    """With another metric, hgld evaluates the newest checkpoint again and drops the earlier best checkpoint."""
    first = train(options(**ONE_STEP, select_on_test=True), data, tmp_path)
    assert first.best["metric"] == "H-AP"
    fields = {**ONE_STEP, "select_on_test": True}
    same_measure = train(options(**fields, metrics=("H-AP", "ASI"), evaluate_every=2), data, tmp_path)
    assert same_measure.best == first.best
    another = train(options(**ONE_STEP, metrics=("AP",), monitor="AP", evaluate_on=("train", "test")), data, tmp_path)
    assert (another.best["metric"], another.best["step"]) == ("AP/fine", 1)
    assert another.best["value"] == another.values["train"]["AP/fine"]
    rows = read_rows(tmp_path / "evaluations.csv")
    assert [(row["epoch"], row["split"]) for row in rows] == [("1", "train"), ("1", "test")]
    assert json.loads((tmp_path / "checkpoints/best.json").read_text())["metric"] == "AP/fine"


def test_undefined_monitor_metric_is_reported_and_no_checkpoint_is_chosen(data, tmp_path):
    write_dataset(tmp_path / "other", items_of_classes([1] * 4, ["single"]))
    told = Notes()
    entries = (f"{tmp_path / 'other'}:single", "test")
    config = options(**ONE_STEP, evaluate_on=entries, monitor="AP", select_on_test=True)
    summary = train(config, data, tmp_path / "run", progress=told)
    assert summary.finished
    assert summary.best == {}
    assert any("AP/fine is undefined for every query" in note for note in told.notes)
