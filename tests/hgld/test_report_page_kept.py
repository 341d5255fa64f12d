"""Kept reports and the embeddings beside them: what was changed since, or is damaged, is refused by its name."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from hgld.errors import InputError, SchemaError
from hgld.evaluation.evaluate import EvaluationOptions
from hgld.evaluation.evaluate_files import evaluate_files
from hgld.evaluation.report import RetrievalReport
from hgld.report_page.page import write_report_page
from hgld.report_page.runs import read_runs

SIZE = 60


def embeddings(seed):
    fine = np.arange(SIZE) // 3
    return (np.random.default_rng(seed).normal(size=(SIZE, 8)) + 2 * np.eye(8)[fine % 8]).astype(np.float32)


def keep(
    folder: Path, *, gallery: bool = False, metrics=("R@1", "AP", "H-AP"), levels=("fine", "top"), **given
) -> RetrievalReport:
    """An evaluation with its files, as ``hgld evaluate --embeddings e.npy --out x.json`` leaves them."""
    sides = {}
    for role, seed in (("", 0), ("gallery_", 1))[: 1 + gallery]:
        np.save(folder / f"{role}e.npy", embeddings(seed))
        table = pl.DataFrame({"fine": np.arange(SIZE) // 3, "top": np.arange(SIZE) // 30})
        table.with_columns(pl.when(pl.col("fine") == 4).then(-7).otherwise(pl.col("top")).alias("top")).write_parquet(
            folder / f"{role}l.parquet"
        )
        sides |= {f"{role}embeddings": folder / f"{role}e.npy", f"{role}labels": folder / f"{role}l.parquet"}
    report = evaluate_files(**sides, levels=levels, options=EvaluationOptions(metrics=metrics, **given))
    report.save_json(folder / "x.json")
    return report


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"gallery": True},
        {"normalize": False},
        {"metrics": ("H-AP",), "relevance": "weighted_ap"},
        {"metrics": ("R@1/top",)},
    ],
)
def test_what_was_evaluated_is_taken(tmp_path, options):
    keep(tmp_path, **options)
    [run] = read_runs([tmp_path / "x.json"])
    assert run.evaluations["evaluation"].ranked is not None


@pytest.mark.usefixtures("no_figures")
def test_a_run_of_other_levels_is_named_where_it_is_left_out(tmp_path):
    for name, levels in (("both", ("fine", "top")), ("one", ("fine",))):
        (tmp_path / name).mkdir()
        keep(tmp_path / name, levels=levels)
        (tmp_path / name / "x.json").rename(tmp_path / name / f"{name}.json")
    write_report_page([tmp_path / "both" / "both.json", tmp_path / "one" / "one.json"], tmp_path / "r.html")
    text = (tmp_path / "r.html").read_text(encoding="utf-8")
    assert "one: no curves, maps and galleries, for its levels are not those of both." in text
    assert "both: no curves" not in text


@pytest.mark.parametrize("gallery", [False, True])
def test_embeddings_written_since_are_refused(tmp_path, gallery):
    keep(tmp_path, gallery=gallery)
    changed = tmp_path / ("gallery_e.npy" if gallery else "e.npy")
    np.save(changed, embeddings(2))
    with pytest.raises(InputError, match=r"e\.npy: other embeddings, .*x\.json is of another evaluation"):
        read_runs([tmp_path / "x.json"])
    changed.unlink()
    read_runs([tmp_path / "x.json"])  # the way out


def test_the_same_embeddings_in_another_precision_are_no_other_evaluation(tmp_path):
    keep(tmp_path)
    np.save(tmp_path / "e.npy", embeddings(0).astype(np.float64))
    [run] = read_runs([tmp_path / "x.json"])
    assert run.evaluations["evaluation"].ranked is not None


@pytest.mark.usefixtures("no_figures")
def test_a_report_that_does_not_say_its_embeddings_is_shown_without_them(tmp_path):
    report = keep(tmp_path)
    settings = {name: value for name, value in report.settings.items() if name != "embeddings_sha256"}
    replace(report, settings=settings).save_json(tmp_path / "x.json")
    [run] = read_runs([tmp_path / "x.json"])
    assert run.evaluations["evaluation"].ranked is None
    assert "evaluate again" in run.evaluations["evaluation"].why_not


def test_labels_of_other_items_are_refused(tmp_path):
    keep(tmp_path)
    labels = tmp_path / "l.parquet"
    pl.read_parquet(labels).reverse().write_parquet(labels)
    with pytest.raises(InputError, match=r"l\.parquet: other labels.*x\.json is of another evaluation"):
        read_runs([tmp_path / "x.json"])


def test_values_a_query_of_another_report_are_refused(tmp_path):
    keep(tmp_path)
    values = tmp_path / "x.per_query.parquet"
    pl.read_parquet(values).head(7).write_parquet(values)
    with pytest.raises(InputError, match=r"x\.json: values of 7 queries"):
        read_runs([tmp_path / "x.json"])


@pytest.mark.parametrize(
    ("setting", "value", "message"),
    [
        ("levels", 5, "levels is 5; expected a list of different names"),
        ("levels", "fine", "levels is 'fine'"),
        ("levels", [{}], r"levels is \[{}\]"),
        ("levels", ["fine", "fine"], "levels is"),
        ("alpha", "x", "alpha is 'x'; expected a number"),
        ("weights", 5, "weights is 5; expected null or a list of numbers"),
        ("weights", ["a"], "weights is"),
    ],
)
def test_damaged_settings_are_named(tmp_path, setting, value, message):
    report = keep(tmp_path)
    replace(report, settings=report.settings | {setting: value}).save_json(tmp_path / "x.json")
    with pytest.raises(SchemaError, match=rf"x\.json: {message}"):
        read_runs([tmp_path / "x.json"])


def test_a_metric_that_is_none_is_named_with_its_file(tmp_path):
    RetrievalReport.from_columns({"F1": np.ones(3)}, {}).save_json(tmp_path / "x.json")
    with pytest.raises(SchemaError, match=r"x\.json: metric 'F1' is unknown"):
        read_runs([tmp_path / "x.json"])
