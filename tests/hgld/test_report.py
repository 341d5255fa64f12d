"""Reports: means, files, Markdown, and comparisons with intervals and p-values."""

import json

import numpy as np
import polars as pl
import pytest
from scipy.stats import ttest_rel

from hgld.errors import ConfigError, InputError, SchemaError
from hgld.evaluation.report import RetrievalReport, compare
from tests.rows import each_row, refused

SETTINGS = {"protocol": "leave-one-out", "levels": ["fine"], "queries": 4, "weights": None}


def report(columns=None, **settings):
    given = columns or {"AP/fine": np.array([1.0, 0.5, np.nan, 0.0]), "H-AP": np.array([0.25, 0.5, 0.75, 1.0])}
    return RetrievalReport.from_columns(given, {**SETTINGS, **settings})


def test_means_exclude_and_count_undefined_queries():
    found = report()
    assert found.values == {"AP/fine": 0.5, "H-AP": 0.625}
    assert found.undefined == {"AP/fine": 1, "H-AP": 0}
    assert found.to_frame().rows() == [("AP/fine", 0.5, 3, 1), ("H-AP", 0.625, 4, 0)]
    assert np.isnan(report({"AP/fine": np.full(2, np.nan)}).values["AP/fine"])


def test_saved_report_is_read_back_unchanged(tmp_path):
    one = report({"AP/fine": np.array([1.0, np.nan]), "ASI": np.full(2, np.nan)})
    one.save_json(tmp_path / "run.json")
    two = RetrievalReport.load_json(tmp_path / "run.json")
    np.testing.assert_equal(two.values, one.values)
    assert (two.undefined, two.settings) == (one.undefined, one.settings)
    assert two.per_query.equals(one.per_query, null_equal=True)
    (tmp_path / "run.per_query.parquet").unlink()
    without = RetrievalReport.load_json(tmp_path / "run.json")
    assert without.per_query.is_empty()
    with pytest.raises(InputError, match=r"per_query\.parquet file in the same folder"):
        compare({"a": without}, metrics=["ASI"])


GOOD = {"schema_version": 1, "values": {"AP": 1.0}, "undefined": {"AP": 0}, "settings": {}}


@each_row(
    ("text", "message"),
    [
        ("[]", "holds list"),
        (json.dumps({**GOOD, "schema_version": 7}), "schema version is 7; this hgld reads version 1"),
        (json.dumps({**GOOD, "values": {"AP": 10**400}}), "malformed"),
        (json.dumps({"schema_version": 1}), "missing"),
        (json.dumps({**GOOD, "undefined": {}}), "different metrics"),
    ],
)
def test_invalid_report_file_raises_an_error_with_its_path(tmp_path, text, message):
    file = tmp_path / "run.json"
    file.write_text(text)
    with pytest.raises(InputError, match=message) as caught:
        RetrievalReport.load_json(file)
    assert "run.json" in str(caught.value)


def test_per_query_table_of_another_report_is_refused(tmp_path):
    report().save_json(tmp_path / "run.json")
    pl.DataFrame({"query": [1]}).write_parquet(tmp_path / "run.per_query.parquet")
    with pytest.raises(SchemaError, match="columns differ from the report"):
        RetrievalReport.load_json(tmp_path / "run.json")


def test_hostile_level_name_is_escaped_in_markdown():
    hostile = "<script>alert(1)</script>|\n# x & 5% of_us \\input{x}"
    found = report({f"AP/{hostile}": np.array([0.5])}, levels=[hostile])
    text = found.to_markdown()
    assert "| H-AP | 0.6250 | 0 |" in report().to_markdown()
    assert "<script" not in text
    assert all(line.startswith(("| ", "- ")) or not line for line in text.splitlines())


def test_intervals_and_p_values_equal_theoretical_values():
    values = np.random.default_rng(5).normal(0.5, 0.1, 400)
    others = values + np.random.default_rng(6).normal(0.002, 0.03, 400)
    columns = {"one": np.append(values, np.nan), "two": np.append(others, np.nan), "better": np.append(values, 0) + 0.1}
    reports = {name: report({"H-AP": column}, queries=401) for name, column in columns.items()}
    frame = compare(reports, samples=4000)
    row, two, better = frame.rows(named=True)
    assert row["p_value"] is None
    assert better["p_value"] == pytest.approx(1 / 4001)
    assert better["difference_low"] == pytest.approx(0.1)
    half = 1.96 * values.std() / 20
    assert row["low"] == pytest.approx(values.mean() - half, abs=0.15 * half)
    assert row["high"] == pytest.approx(values.mean() + half, abs=0.15 * half)
    assert two["p_value"] == pytest.approx(ttest_rel(others, values).pvalue, abs=0.03)
    assert compare(reports, samples=4000).equals(frame)


def test_metric_without_defined_value_has_no_interval():
    empty = report({"AP/fine": np.full(5, np.nan)})
    row = compare({"a": empty, "b": empty}, samples=10).row(1, named=True)
    assert np.isnan(row["low"])
    assert np.isnan(row["p_value"])


test_compare_refuses_reports_of_different_tasks = refused(
    lambda reports, options: compare(reports, **options),
    [
        ({}, {}, ConfigError, "there are no reports"),
        ({"a": report()}, {"metrics": ["NDCG"]}, ConfigError, "NDCG"),
        ({"a": report(), "b": report(alpha=2.0)}, {}, InputError, "alpha is None and 2.0"),
        ({"a": report(), "b": report({"H-AP": np.ones(3)})}, {}, InputError, "different queries"),
        ({"a": report(labels_sha256="1"), "b": report(labels_sha256="2")}, {}, InputError, "labels_sha256"),
    ],
)


def test_ukbench_score_is_printed_with_two_decimals():
    settings = {"printed": ["N-S"], "dataset": "ukbench"}
    report = RetrievalReport.from_columns({"N-S": np.array([3.876])}, settings)
    assert report.as_printed() == (["", "N-S"], [["ukbench", "3.88"]])
