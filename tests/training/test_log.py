"""Logs: rows of steps that are done again are removed, cut lines are dropped, what people see names what matters."""

import io

import pytest

from hgld.errors import MissingResourceError, StorageError
from training.log import EVALUATIONS, FAULTS, LOG, RunLog, read_rows, write_faults
from training.progress import Lines, shown_on, told

ROW = {"epoch": 0.5, "loss": 1.25, "rank": 0.5, "lr_head": 1e-3, "images_per_second": 80.0, "wait_share": 0.02}


def test_rows_of_steps_that_are_done_again_are_removed(tmp_path):
    log = RunLog(tmp_path)
    for step in (2, 4, 6):
        log.step(step, ROW)
    log.evaluation(4, 1, "test", {"H-AP": 0.5})
    log.evaluation(6, 2, "test", {"H-AP": 0.75})
    write_faults(tmp_path, 6, 1, 0, ["train-000000.tar: key 'a, \"b\"': not a JPEG"])
    write_faults(tmp_path, 3, 0, 1, ["train-000001.tar: truncated"])
    log.close()
    RunLog(tmp_path, from_step=4).close()
    assert [row["step"] for row in read_rows(tmp_path / LOG)] == ["2", "4"]
    assert read_rows(tmp_path / LOG)[0]["loss"] == "1.25"
    assert read_rows(tmp_path / EVALUATIONS) == [{"step": "4", "epoch": "1", "split": "test", "H-AP": "0.5"}]
    assert read_rows(tmp_path / FAULTS) == []
    assert read_rows(tmp_path / "faults-1.csv")[0]["fault"] == "train-000001.tar: truncated"
    assert list((tmp_path / "tensorboard").iterdir())


def test_a_line_that_was_cut_short_is_dropped(tmp_path):
    (tmp_path / LOG).write_text("step,loss,rank\n1,0.5,0.25\n2,0.")
    assert [row["step"] for row in read_rows(tmp_path / LOG)] == ["1"]
    RunLog(tmp_path, from_step=5).close()
    assert (tmp_path / LOG).read_text().splitlines() == ["step,loss,rank", "1,0.5,0.25"]


def test_a_log_that_cannot_be_written_is_said(tmp_path):
    log = RunLog(tmp_path)
    (tmp_path / LOG).mkdir()
    with pytest.raises(StorageError, match=r"log\.csv.*checkpoints are whole"):
        log.step(2, ROW)
    log.close()


def test_wandb_that_is_not_installed_is_said(tmp_path, monkeypatch):
    monkeypatch.setattr("training.log.importlib.util.find_spec", lambda name: None)
    with pytest.raises(MissingResourceError, match="pip install wandb"):
        RunLog(tmp_path, wandb="project")


def test_lines_tell_loss_parts_speed_and_waiting():
    out = io.StringIO()
    with shown_on(out) as shown:
        assert isinstance(shown, Lines)
        shown.begin(2, 8)
        shown.step(4, 0, ROW | {"memory_mb": 900.0})
        shown.evaluated(0, {"test": {"H-AP": 0.5}})
    assert out.getvalue().splitlines() == [
        "goes on after step 2 of 8",
        "step 4/8, epoch 1: loss 1.25 (rank 0.5), 80 images/s, 2% waiting for data, 900 MB",
        "epoch 1, test: H-AP 0.5000",
    ]


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_bars_on_a_terminal():
    out = Terminal()
    with shown_on(out) as shown:
        shown.begin(0, 8)
        shown.advance(3)
        shown.step(4, 0, ROW | {"memory_mb": 900.0})
        shown.evaluating(0)
        shown.evaluated(0, {"test": {"H-AP": 0.5}})
    assert "epoch 1, test: H-AP 0.5000" in out.getvalue()
    assert "rank 0.5" in told(ROW | {"memory_mb": 900.0})
