"""Choice of the best checkpoint: on val, on test only with ``--select-on-test``, and stated in reports."""

import pytest

from hgld.errors import ConfigError
from hgld.evaluation.report import RetrievalReport
from hgld.training.checkpoint import find_checkpoint, selection_of
from hgld.training.config import is_validation, read_config
from hgld.training.evaluation import check_evaluation
from hgld.training.inference.embedder import trained_embedder
from hgld.training.loop import train
from tests.training.small_runs import STEPS, Notes, options, write_small


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return str(write_small(tmp_path_factory.mktemp("data") / "small"))


@pytest.fixture(scope="module")
def with_val(tmp_path_factory):
    return str(write_small(tmp_path_factory.mktemp("val") / "small", val=range(12, 15)))


@pytest.mark.parametrize(
    ("entry", "expected"),
    [
        *((entry, True) for entry in ("val", "validation", "dev", "val_query/val_gallery", "shards:val", "train")),
        *((entry, False) for entry in ("test", "query/gallery", "val/test", "protocol", "protocol=sop", "x:test")),
        *((entry, False) for entry in ("valley", "val:test", "holdout")),
    ],
)
def test_validation_splits_are_recognized_by_name(entry, expected):
    assert is_validation(entry) == expected


def test_checkpoint_is_chosen_on_val_if_the_dataset_has_it(with_val, tmp_path):
    summary = train(options(), with_val, tmp_path / "run")
    assert list(summary.values) == ["test", "val"]
    assert summary.best["on"] == "val"
    assert "on val after epoch" in summary.to_text()
    assert selection_of(find_checkpoint(tmp_path / "run")) == "chosen by H-AP on val"
    with trained_embedder(tmp_path / "run") as embedder:
        assert embedder.selection == "chosen by H-AP on val"
    kept = RetrievalReport.load_json(tmp_path / "run" / "reports" / "test-epoch-2.json")
    assert kept.settings["best_checkpoint"] == "chosen by H-AP on val"
    assert train(options(), with_val, tmp_path / "run").best == summary.best
    assert train(read_config(tmp_path / "run" / "config.json"), with_val, tmp_path / "run").best == summary.best


def test_monitor_must_be_measured_on_val(with_val):
    entry = "protocol=leave-one-out"
    for monitor, chosen in (("mAP@R", ConfigError), ("R@1", "R@1/fine")):
        config = options(evaluate_on=(entry,), monitor=monitor)
        if chosen is ConfigError:
            with pytest.raises(ConfigError, match="monitor is 'mAP@R'; measured on val are"):
                check_evaluation(config, with_val)
        else:
            found, best_of = check_evaluation(config, with_val)
            assert (found.run.evaluate_on, best_of) == ((entry, "val"), ("val", chosen))


def test_checkpoint_is_chosen_on_test_only_with_select_on_test(data, with_val, tmp_path):
    told = Notes()
    last = train(options(), data, tmp_path / "last", progress=told)
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
    train(options(epochs=1, select_on_test=True), data, run)
    mark = run / "checkpoints" / "best.json"
    with pytest.raises(ConfigError, match=r"chosen on test, a test split.*--select-on-test goes on so"):
        train(options(epochs=1), data, run)
    assert mark.is_file()
    assert train(options(epochs=1, select_on_test=True), data, run).best["step"] == STEPS
