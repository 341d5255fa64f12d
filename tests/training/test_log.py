"""Logs: rows of repeated steps are removed, truncated lines are dropped; reporters print the main values."""

import io
import sys
from importlib.machinery import ModuleSpec
from types import ModuleType

import pytest

from hgld.report_page.runs import read_runs
from hgld.training.log import EVALUATIONS, FAULTS, LOG, PLUGINS, RunLog, read_rows, write_faults
from hgld.training.loop import train
from hgld.training.progress import LineReporter, progress_reporter
from tests.training.small_runs import options

ROW = {"epoch": 0.5, "loss": 1.25, "rank": 0.5, "lr_head": 1e-3, "images_per_second": 80.0, "wait_share": 0.02}


def test_resumed_log_has_one_row_per_repeated_step(tmp_path):
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


def test_evaluations_of_datasets_with_different_levels_share_one_csv(tmp_path):
    """Each dataset has its own columns, also after a stop, and the report reads only the columns of its dataset."""
    mine, other = {"AP/fine": 0.5, "H-AP": 0.25}, {"AP/species": 0.75, "AP/genus": 1.0, "H-AP": 0.125}
    for epoch in (1, 2):
        log = RunLog(tmp_path, from_step=4 * epoch - 4)
        log.step(4 * epoch - 2, ROW)
        log.evaluation(4 * epoch, epoch, "test", mine)
        log.evaluation(4 * epoch, epoch, "other", other)
        log.close()
    rows = read_rows(tmp_path / EVALUATIONS)
    assert list(rows[0]) == ["step", "epoch", "split", "AP/fine", "H-AP", "AP/species", "AP/genus"]
    assert [(row["epoch"], row["split"]) for row in rows] == [(e, s) for e in "12" for s in ("test", "other")]
    [run] = read_runs([tmp_path])
    for split, values in (("test", mine), ("other", other)):
        assert run.history[split] == {"step": [4, 8], "epoch": [1, 2]} | {n: [v, v] for n, v in values.items()}


def test_truncated_last_log_line_is_dropped(tmp_path):
    (tmp_path / LOG).write_text("step,loss,rank\n1,0.5,0.25\n2,0.")
    assert [row["step"] for row in read_rows(tmp_path / LOG)] == ["1"]
    RunLog(tmp_path, from_step=5).close()
    assert (tmp_path / LOG).read_text().splitlines() == ["step,loss,rank", "1,0.5,0.25"]


class FakeRun:
    """Fake of a wandb run with the methods that a log uses."""

    def __init__(self, **started):
        self.started, self.rows, self.finished = started, [], False

    def log(self, values, step):
        self.rows.append((step, values))

    def finish(self):
        self.finished = True


@pytest.fixture
def wandb(monkeypatch):
    runs = []
    fake = ModuleType("wandb")
    fake.__spec__ = ModuleSpec("wandb", None)
    vars(fake)["init"] = lambda **started: runs.append(FakeRun(**started)) or runs[-1]
    monkeypatch.setitem(sys.modules, "wandb", fake)
    return runs


def test_wandb_receives_all_values_and_a_resumed_run_continues_its_wandb_run(tmp_path, wandb):
    run = tmp_path / "happier-1"
    run.mkdir()
    for begin in (0, 4):  # the resumed run continues the same wandb run
        log = RunLog(run, from_step=begin, loggers=["wandb:landmarks"], config={"lr": 1e-5})
        log.step(begin + 2, ROW)
        log.evaluation(begin + 4, 1, "test", {"H-AP": 0.5})
        log.close()
    started = {"project": "landmarks", "name": "happier-1", "resume": "allow", "config": {"lr": 1e-5}}
    started |= {"dir": str(run), "id": (run / "wandb-id").read_text().strip()}
    first, second = wandb
    assert first.started == second.started == started
    assert first.rows == [(2, {f"train/{name}": value for name, value in ROW.items()}), (4, {"test/H-AP": 0.5})]
    assert [step for step, _ in second.rows] == [6, 8]
    assert first.finished


def test_tensorboard_shows_each_step_once_after_resuming(tmp_path, monkeypatch):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from tensorboard.summary.writer import event_file_writer

    # TensorBoard sorts event files of the same second by their number as text.
    monkeypatch.setattr(event_file_writer, "_global_uid", event_file_writer.AtomicCounter(0))
    for begin, steps in ((0, (2, 4, 6)), (4, (6, 8))):
        log = RunLog(tmp_path, from_step=begin)
        for step in steps:
            log.step(step, ROW | {"loss": step + begin / 10})
        log.close()
    shown = EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    losses = [(event.step, round(event.value, 3)) for event in shown.Scalars("train/loss")]
    assert losses == [(2, 2.0), (4, 4.0), (6, 6.4), (8, 8.4)]


def test_plugin_loggers_receive_all_logged_values(tmp_path, monkeypatch):
    told = []

    class Kept:
        def __init__(self, run):
            told.append((run.project, run.from_step, run.config["lr"]))

        def numbers(self, step, values):
            told.append((step, sorted(values)))

        def close(self):
            told.append("closed")

    monkeypatch.setattr(type(PLUGINS), "load", lambda self, name: {"mlflow": Kept}[name])
    log = RunLog(tmp_path, loggers=["mlflow:landmarks"], config={"lr": 1.0})
    log.step(2, {"loss": 1.0})
    log.evaluation(4, 1, "test", {"AP": 0.5})
    log.close()
    assert told == [("landmarks", 0, 1.0), (2, ["train/loss"]), (4, ["test/AP"]), "closed"]


def test_last_step_is_always_logged(data, tmp_path):
    train(options(epochs=1, steps_per_epoch=3, log_every=2, evaluate_on=()), data, tmp_path / "run")
    assert [row["step"] for row in read_rows(tmp_path / "run" / LOG)] == ["2", "3"]


def tell_all(shown):
    shown.heading("tau=0.01:")
    shown.begin(2, 8)
    shown.advance(3)
    shown.step(4, 0, ROW | {"memory_mb": 900.0})
    shown.note("an image of \x1b[2J could not be read")
    shown.evaluating(0)
    shown.evaluated(0, {"test": {"H-AP": 0.5}})


def test_line_reporter_prints_start_first_step_and_evaluations():
    out, results, notes = io.StringIO(), [], []
    with progress_reporter(out, results.append, notes.append) as shown:
        assert isinstance(shown, LineReporter)
        tell_all(shown)
    row = "loss 1.25 (rank 0.5), 80 images/s, 2% waiting for data, 900 MB"
    assert results == [
        *("tau=0.01:", "resumes after step 2 of 8"),
        *(f"step 4 of 8, epoch 1: {row}; 0:00:00 left", "epoch 1, test: H-AP 50.00"),
    ]
    assert notes == ["an image of \x1b[2J could not be read"]
    assert out.getvalue() == ""


def test_line_reporter_prints_remaining_time_every_minute():
    now, results = [0.0], []
    shown = LineReporter(results.append, print, lambda: now[0])
    shown.begin(0, 1000, "HAPPIER on cpu")
    for step in range(1, 31):
        now[0] += 10
        shown.advance(step)
        if step % 7 == 0:
            shown.step(step, 0, ROW | {"memory_mb": 900.0})
    assert results[0] == "HAPPIER on cpu"
    assert [line.partition(",")[0] for line in results[1:]] == [f"step {n} of 1000" for n in (7, 13, 19, 25)]
    assert results[2].endswith("; 2:44:30 left")


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_bar_reporter_escapes_control_characters(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    out, others = Terminal(), []
    with progress_reporter(out, others.append, others.append) as shown:
        tell_all(shown)
    for text in ("tau=0.01:", "epoch 1, test: H-AP 50.00", r"an image of \x1b[2J could not be read"):
        assert text in out.getvalue()
    assert "an image of \x1b" not in out.getvalue()
    assert others == []


def test_run_without_tensorboard_is_logged_and_a_note_says_so(tmp_path, monkeypatch):
    monkeypatch.delitem(sys.modules, "torch.utils.tensorboard.writer", raising=False)
    monkeypatch.delitem(sys.modules, "torch.utils.tensorboard", raising=False)
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    log = RunLog(tmp_path)
    log.step(2, ROW)
    log.close()
    assert "pip install 'hgld[tensorboard]'" in log.note
    assert [path.name for path in tmp_path.iterdir()] == [LOG]
    assert len(read_rows(tmp_path / LOG)) == 1
