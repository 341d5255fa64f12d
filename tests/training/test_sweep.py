"""Sweeps check all combinations and seeds before any run, and write one table of means and deviations."""

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hgld.distributed import ALONE
from hgld.errors import ConfigError, DivergenceError
from hgld.training import plan
from hgld.training.config import with_fields
from hgld.training.finetune import finetune_config
from hgld.training.log import RunSummary
from hgld.training.recipes import load_recipe
from hgld.training.sweep import TABLE, plan_sweep, run_sweep, share_precision, tabulate_sweep
from tests.rows import refused

CONFIG = load_recipe("small-grocery")


class Trainer:
    """Fake of train that returns a summary; its H-AP is a function of tau and seed."""

    def __init__(self, diverges=(), stops_at=None):
        self.trained, self.diverges, self.stops_at = [], diverges, stops_at

    def __call__(self, config, folder):
        self.trained.append(folder.name)
        if config.loss.tau in self.diverges:
            raise DivergenceError("the loss is nan")
        values = {"test": {"R@1": 0.5, "H-AP": 1 - config.loss.tau + 0.01 * config.run.seed}}
        done = len(self.trained) != self.stops_at
        return RunSummary(done, 8, 2, {}, values, 1.0, 1.0, 0.0, 0, str(folder))


def rows_of(runs, out, train_one):
    return tabulate_sweep(runs, run_sweep(runs, out, train_one), out)


def test_sweep_has_all_combinations_of_values_with_the_seed_varying_fastest():
    runs = plan_sweep(with_fields(CONFIG, {"seed": 5}), ["--alpha=1,3", "lambda=0.1"], seeds=2)
    names = ["alpha=1,lambda=0.1,seed=5", "alpha=1,lambda=0.1,seed=6"]
    assert [run.name for run in runs] == [*names, *(name.replace("alpha=1", "alpha=3") for name in names)]
    assert runs[1].config == with_fields(CONFIG, {"alpha": 1.0, "lambda_": 0.1, "seed": 6})
    assert [run.name for run in plan_sweep(CONFIG, [], seeds=2)] == ["seed=0", "seed=1"]


def test_sweep_separates_lists_by_semicolons_and_escapes_folder_names():
    runs = plan_sweep(with_fields(CONFIG, {"loss": "SupRecall"}), ["recall-at=1,2;4"])
    assert [run.config.loss.recall_at for run in runs] == [(1, 2), (4,)]
    (run,) = plan_sweep(CONFIG, ["evaluate_on=../x/..:test"])
    assert "/" not in run.name
    assert run.config.run.evaluate_on == ("../x/..:test",)


@given(st.lists(st.floats(1e-6, 10.0).map(lambda x: float(f"{x:.9g}")), min_size=1, max_size=4, unique=True))
def test_sweep_runs_have_distinct_folders(values):
    runs = plan_sweep(CONFIG, ["tau=" + ",".join(map(repr, values))])
    assert len({run.name for run in runs}) == len(values)
    assert [run.config.loss.tau for run in runs] == values


test_invalid_sweeps_are_refused_before_any_run = refused(
    lambda sweeps: plan_sweep(CONFIG, sweeps, seeds=2),
    [
        (["taus=1"], "'taus'.*Did you mean 'tau'"),
        (["tau"], "expected field=a,b,c"),
        (["tau=small"], "expected a finite number"),
        (["tau=0.1,0.10"], "twice"),
        (["tau=0.1", "tau=0.2"], "tau is swept twice"),
        (["seed=0,1"], "seed is swept twice"),
        (["tau=0.1,0"], "run tau=0,seed=0 of the sweep: --tau is 0.0; expected more than 0"),
        (["lr=" + ",".join(f"{i}e-9" for i in range(1, 502))], "more than 1000 runs"),
    ],
    ConfigError,
)


def test_sweep_table_has_means_and_deviations_over_seeds(tmp_path):
    rows = rows_of(plan_sweep(CONFIG, ["tau=0.01,0.02"], seeds=3), tmp_path, Trainer(diverges=(0.02,)))
    first, second = rows
    assert (first["tau"], first["finished"], second["finished"]) == ("0.01", "3 of 3", "0 of 3")
    assert (first["H-AP"], first["H-AP ±"], first["R@1 ±"]) == pytest.approx((1.0, 0.01, 0.0))
    table = pl.read_csv(tmp_path / TABLE, schema_overrides={"tau": pl.String})
    assert table["tau"].to_list() == ["0.01", "0.02"]
    assert table["H-AP"].to_list() == pytest.approx([1.0, None])
    (alone,) = rows_of(plan_sweep(CONFIG, ["tau=0.01"]), tmp_path, Trainer())
    assert alone == {"tau": "0.01", "finished": "1 of 1", "R@1": 0.5, "H-AP": 0.99}


def test_sweep_stops_after_a_stopped_run_and_continues_after_a_diverged_run(tmp_path):
    runs = plan_sweep(CONFIG, ["tau=0.005,0.01,0.02"])
    first = Trainer(stops_at=2)
    assert [row["finished"] for row in rows_of(runs, tmp_path, first)] == ["1 of 1", "0 of 1", "0 of 1"]
    assert len(first.trained) == 2
    second = Trainer(diverges=(0.01,))
    assert [row["finished"] for row in rows_of(runs, tmp_path, second)] == ["1 of 1", "0 of 1", "1 of 1"]


def test_sweep_runs_share_the_precision_of_the_first_run(data, tmp_path, monkeypatch):
    tried = []

    def trial(config, processes):
        tried.append(config.images.size)
        return {"amp": ("bf16", f"trial {len(tried)}"), "micro_batch_size": (0, "fits")}

    monkeypatch.setattr(plan, "_trials", trial)
    given = {"backbone": "small", "batch_size": 8, "images_per_class": 2, "epochs": 1}
    planned = plan_sweep(with_fields(finetune_config(), given), ["size=16,32"], seeds=2)
    runs = share_precision(planned, data, tmp_path, ALONE)
    assert tried == [16]
    for run in runs:
        assert (run.config.optimizer.amp, dict(run.config.plan)["amp"]) == ("bf16", "trial 1")
    recipe = plan_sweep(CONFIG, ["tau=0.01,0.02"])
    assert share_precision(recipe, "nowhere", tmp_path, ALONE) == recipe  # a recipe derives no fields
