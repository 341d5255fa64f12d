"""Sweeps: all combinations, checked before any run, finished ones skipped, the table complete."""

import csv
import dataclasses
import itertools
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hgld.errors import ConfigError, DivergenceError, InputError, StorageError
from hgld.training.config import TrainConfig, flat, save_config, with_fields
from hgld.training.recipes import load_recipe
from hgld.training.sweep import MARKDOWN, TABLE, draw_sweep, plan_sweep, run_sweep, tabulate_sweep, write_table

CONFIG = load_recipe("small-grocery")


class Trainer:
    """Leaves what a run leaves; its AP is a function of tau."""

    def __init__(self, diverges=(), stops_at=None, data="one"):
        self.trained, self.diverges, self.stops_at, self.data = [], diverges, stops_at, data

    def facts_of(self, config):
        return {"name": self.data, "steps_per_epoch": config.run.epochs}

    def __call__(self, config, folder):
        self.trained.append(folder.name)
        if config.loss.tau in self.diverges:
            raise DivergenceError("the loss is nan")
        folder.mkdir(parents=True, exist_ok=True)
        save_config(config, folder / "config.json")
        best = {"metric": "H-AP", "value": 1 - config.loss.tau, "epoch": 2, "step": 8}
        values = {"test": {"R@1": 0.5, "H-AP": 1 - config.loss.tau}}
        summary = {"finished": len(self.trained) != self.stops_at, "best": best, "values": values}
        summary["data"] = self.facts_of(config)
        (folder / "summary.json").write_text(json.dumps(summary))
        return summary["finished"]


def rows_of(runs, out, train_one):
    return tabulate_sweep(runs, out, run_sweep(runs, out, train_one, Trainer().facts_of))


def test_a_sweep_is_the_product_of_its_fields_the_last_one_fastest():
    runs = plan_sweep(CONFIG, ["tau=0.005,0.01", "--alpha=1,3", "lambda=0.1"])
    assert [run.name for run in runs] == [
        "tau=0.005,alpha=1,lambda=0.1",
        "tau=0.005,alpha=3,lambda=0.1",
        "tau=0.01,alpha=1,lambda=0.1",
        "tau=0.01,alpha=3,lambda=0.1",
    ]
    assert runs[1].config == with_fields(CONFIG, {"tau": 0.005, "alpha": 3.0, "lambda_": 0.1})


def test_lists_are_separated_by_semicolons_and_no_name_leaves_the_folder():
    loss = with_fields(CONFIG, {"loss": "SupRecall"})
    runs = plan_sweep(loss, ["recall-at=1,2;4"])
    assert [run.fields["recall_at"] for run in runs] == [(1, 2), (4,)]
    (run,) = plan_sweep(CONFIG, ["evaluate_on=../x/..:test"])
    assert "/" not in run.name
    assert run.config.run.evaluate_on == ("../x/..:test",)


@given(st.lists(st.floats(1e-6, 10.0).map(lambda x: float(f"{x:.5g}")), min_size=1, max_size=4, unique=True))
def test_runs_have_folders_of_their_own(values):
    runs = plan_sweep(CONFIG, ["tau=" + ",".join(map(repr, values))])
    assert len({run.name for run in runs}) == len(values)
    assert [run.config.loss.tau for run in runs] == values


@pytest.mark.parametrize(
    ("sweeps", "message"),
    [
        (["taus=1"], "'taus'.*Did you mean 'tau'"),
        (["tau"], "expected field=a,b,c"),
        (["tau="], "expected field=a,b,c"),
        (["tau=small"], "expected a finite number"),
        (["tau=0.1,0.10"], "twice"),
        (["tau=0.1", "tau=0.2"], "tau twice"),
        (["tau=0.1,0"], "run tau=0: tau is 0.0; expected more than 0"),
        (["bins=10,20,30"], "run bins=10: loss HAPPIER takes no bins"),
        (["seed=" + ",".join(map(str, range(1001)))], "more than 1000 runs"),
    ],
)
def test_what_cannot_be_run_is_refused_before_any_run(sweeps, message):
    with pytest.raises(ConfigError, match=message):
        plan_sweep(CONFIG, sweeps)


def test_values_that_differ_beyond_the_digits_of_a_folder_s_name_are_told_apart():
    runs = plan_sweep(CONFIG, ["tau=0.01,0.010000001"])
    assert len({run.name for run in runs}) == 2


def test_finished_runs_are_skipped_and_the_table_is_the_same(tmp_path):
    runs = plan_sweep(CONFIG, ["tau=0.005,0.01", "seed=0,1"])
    first, second = Trainer(), Trainer()
    rows = rows_of(runs, tmp_path, first)
    assert first.trained == [run.name for run in runs]
    write_table(rows, tmp_path)
    before = (tmp_path / TABLE).read_bytes(), (tmp_path / MARKDOWN).read_bytes()
    write_table(rows_of(runs, tmp_path, second), tmp_path)
    assert second.trained == []
    assert before == ((tmp_path / TABLE).read_bytes(), (tmp_path / MARKDOWN).read_bytes())
    with (tmp_path / TABLE).open(newline="") as file:
        table = list(csv.DictReader(file))
    assert [(row["tau"], row["seed"]) for row in table] == [*itertools.product(("0.005", "0.01"), "01")]
    assert [float(row["best H-AP"]) for row in table] == [0.995, 0.995, 0.99, 0.99]
    assert {row["R@1"] for row in table} == {"0.5"}
    assert (tmp_path / MARKDOWN).read_text().count("\n") == 6


def test_a_stopped_run_ends_the_sweep_and_is_gone_on_with(tmp_path):
    runs = plan_sweep(CONFIG, ["tau=0.005,0.01,0.02"])
    rows = rows_of(runs, tmp_path, Trainer(stops_at=2))
    assert [row["state"] for row in rows] == ["finished", "not finished", "not finished"]
    again = Trainer()
    assert {row["state"] for row in rows_of(runs, tmp_path, again)} == {"finished"}
    assert again.trained == ["tau=0.01", "tau=0.02"]


def test_a_run_that_diverges_is_a_row_and_the_others_are_run(tmp_path):
    runs = plan_sweep(CONFIG, ["tau=0.005,0.01,0.02"])
    rows = rows_of(runs, tmp_path, Trainer(diverges=(0.01,)))
    assert [row["state"] for row in rows] == ["finished", "diverged", "finished"]
    assert "| 0.01 | diverged |  |" in write_table(rows, tmp_path)


def test_a_finished_run_of_other_options_is_not_taken_for_this_one(tmp_path):
    run_sweep(plan_sweep(CONFIG, ["tau=0.01"]), tmp_path, Trainer(), Trainer().facts_of)
    longer = Trainer()
    run_sweep(plan_sweep(with_fields(CONFIG, {"epochs": 21}), ["tau=0.01"]), tmp_path, longer, longer.facts_of)
    assert longer.trained == ["tau=0.01"]  # the trainer refuses or goes on


@pytest.mark.parametrize(
    ("data", "init_from", "passed_over"), [("one", "", True), ("two", "", False), ("one", "run", False)]
)
def test_a_finished_run_on_other_data_or_from_other_weights_is_not_taken_for_this_one(
    data, init_from, passed_over, tmp_path
):
    run_sweep(plan_sweep(CONFIG, ["tau=0.01"]), tmp_path, Trainer(), Trainer().facts_of)
    again = Trainer(data=data)
    runs = plan_sweep(dataclasses.replace(CONFIG, init_from=init_from), ["tau=0.01"])
    run_sweep(runs, tmp_path, again, again.facts_of)
    assert again.trained == ([] if passed_over else ["tau=0.01"])  # the trainer refuses or goes on


@pytest.mark.parametrize("content", ["{", "[1]"])
def test_a_damaged_summary_is_named(tmp_path, content):
    runs = plan_sweep(CONFIG, ["tau=0.01"])
    run_sweep(runs, tmp_path, Trainer(), Trainer().facts_of)
    (tmp_path / "tau=0.01" / "summary.json").write_text(content)
    with pytest.raises(InputError, match=r"tau=0\.01.*summary\.json"):
        run_sweep(runs, tmp_path, Trainer(), Trainer().facts_of)


def test_a_table_that_cannot_be_written_is_said(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="the table of the sweep"):
        write_table([{"tau": "1"}], tmp_path / "file")


def test_splits_are_told_apart(tmp_path):
    def train_one(config, folder):
        folder.mkdir(parents=True)
        save_config(config, folder / "config.json")
        summary = {"finished": True, "best": {}, "values": {"a": {"R@1": 0.1}, "b": {"R@1": 0.2}}}
        (folder / "summary.json").write_text(json.dumps(summary))
        return True

    (row,) = rows_of(plan_sweep(CONFIG, ["tau=0.01"]), tmp_path, train_one)
    assert (row["a: R@1"], row["b: R@1"]) == (0.1, 0.2)


def test_every_field_can_be_swept_by_the_text_of_its_default():
    for name, value in flat(TrainConfig()).items():
        if value in ("", ()) or name == "loss":
            continue
        text = ",".join(map(str, value)) if isinstance(value, tuple) else str(value)
        (run,) = plan_sweep(TrainConfig(), [f"{name}={text}"])
        assert run.config == TrainConfig()


@pytest.mark.parametrize(
    ("sweeps", "names"),
    [
        (["tau=0.005,0.01,0.02"], ["best-h-ap", "r-1", "h-ap"]),
        (["tau=0.005,0.01", "alpha=1,3"], ["best-h-ap", "r-1", "h-ap"]),
        (["tau=0.005,0.01", "alpha=1,3", "lambda=0.1,0.2"],
         [f"{metric}-lambda-0-{value}" for metric in ("best-h-ap", "r-1", "h-ap") for value in (1, 2)]),
    ],
)  # fmt: skip
def test_a_sweep_is_drawn_with_gaps_where_runs_did_not_finish(sweeps, names, tmp_path):
    runs = plan_sweep(CONFIG, sweeps)
    rows = rows_of(runs, tmp_path, Trainer(diverges=[0.01]))
    files = draw_sweep(runs, rows, tmp_path)
    assert files == [f"sweep-{name}.{suffix}" for name in names for suffix in ("svg", "png")]
    drawn = (tmp_path / f"sweep-{names[-1]}.svg").read_text()
    if len(sweeps) == 1:
        assert "tau" in drawn
    else:
        assert drawn.count(">0.995<") == 2  # H-AP of tau 0.005, at two alphas
        assert drawn.count(">–<") == 2  # and of the tau that diverged


def test_a_sweep_of_which_nothing_finished_is_drawn_empty(tmp_path):
    runs = plan_sweep(CONFIG, ["tau=0.005,0.01", "alpha=1,3"])
    rows = rows_of(runs, tmp_path, Trainer(diverges=[0.005, 0.01]))
    assert draw_sweep(runs, rows, tmp_path) == []
