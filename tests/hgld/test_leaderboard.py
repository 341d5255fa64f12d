"""The leaderboard: its numbers are those of the reports and of their comparison; its page shows text as text."""

import math
import re

import numpy as np
import pytest

from hgld.evaluation.report import RetrievalReport, compare
from hgld.report_page.leaderboard import Entry, leaderboard

LEVELS = ("fine", "coarse")


def report(seed: int, lift: float, **settings) -> RetrievalReport:
    rng = np.random.default_rng(seed)
    base = np.random.default_rng(9).random(80)
    columns = {
        "R@1/fine": (base + lift + 0.05 * rng.normal(size=80) > 0.5).astype(float),
        "AP/fine": np.clip(base * 0.5 + lift + 0.02 * rng.normal(size=80), 0, 1),
        "AP/coarse": np.clip(base * 0.5 + lift, 0, 1),
        "H-AP": np.clip(base + 0.001 * rng.normal(size=80), 0, 1),
    }
    return RetrievalReport.from_columns(columns, {"levels": list(LEVELS), "queries": 80, "gallery": 80, **settings})


@pytest.fixture
def entries():
    reports = {"low": report(0, 0.0), "high": report(1, 0.2), "near": report(2, 0.198)}
    return [Entry(name, one, 8 * i + 8, 12.34 * 10**i) for i, (name, one) in enumerate(reports.items())]


def test_every_level_has_a_table_of_the_models_best_first(entries):
    board = leaderboard(entries)
    assert [(table.level, table.metrics) for table in board.tables] == [
        ("fine", ("R@1", "AP")), ("coarse", ("AP",)), ("all levels", ("H-AP",)),
    ]  # fmt: skip
    for table, metric in zip(board.tables, ("R@1/fine", "AP/coarse", "H-AP"), strict=True):
        values = [entry.report.values[metric] for entry, _ in table.rows]
        assert values == sorted(values, reverse=True)
        assert [row[0].value for _, row in table.rows] == values
        assert [row[0].best for _, row in table.rows] == [value == values[0] for value in values]


def test_intervals_and_tests_are_those_of_the_comparison_with_the_best(entries):
    reports = {entry.name: entry.report for entry in entries}
    for table in leaderboard(entries).tables:
        for column, name in enumerate(table.metrics):
            metric = name if table.level == "all levels" else f"{name}/{table.level}"
            best = max(reports, key=lambda one: reports[one].values[metric])
            expected = {
                row["report"]: row
                for row in compare(reports, metrics=[metric], baseline=best).frame.iter_rows(named=True)
            }
            for entry, row in table.rows:
                score, own = row[column], expected[entry.name]
                assert (score.value, score.low, score.high) == pytest.approx((own["value"], own["low"], own["high"]))
                assert math.isnan(score.p_value) if entry.name == best else score.p_value == own["p_value"]
    ap = {entry.name: row[1] for entry, row in leaderboard(entries).tables[0].rows}
    assert ap["high"].level_with_best
    assert not ap["low"].level_with_best


def test_a_model_with_other_queries_or_metrics_is_shown_and_said(entries):
    other = report(3, 0.1, protocol="another")
    alone = RetrievalReport.from_columns({"AP/fine": np.full(80, 0.3)}, entries[0].report.settings)
    board = leaderboard([*entries, Entry("other", other, 4), Entry("alone", alone, 4)])
    notes = [note for note in board.notes if "other is not compared" in note]
    assert notes
    assert "different tasks" in notes[0]
    fine = {entry.name: row for entry, row in board.tables[0].rows}
    assert fine["other"][0].interval
    assert not fine["other"][0].p_text
    assert math.isnan(fine["alone"][0].value)
    assert fine["alone"][0].shown == ""
    assert fine["alone"][1].p_value < 0.05
    assert [entry.name for entry, _ in board.tables[0].rows][-1] == "alone"


def test_values_that_are_lower_the_better_and_no_shares(entries):
    made = [
        Entry(name, RetrievalReport.from_columns({"severity": np.full(20, value)}, {"levels": list(LEVELS)}), 4)
        for name, value in (("worse", 1.5), ("better", 0.5))
    ]
    (table,) = leaderboard(made).tables
    assert [(entry.name, row[0].shown, row[0].best) for entry, row in table.rows] == [
        ("better", "0.50", True), ("worse", "1.50", False),
    ]  # fmt: skip
    assert [row[0].interval for _, row in table.rows] == ["0.50–0.50", "1.50–1.50"]
    assert "Not in per cent: severity." in leaderboard(made).notes


def test_text_and_page_hold_every_model_and_what_failed(entries):
    evil = '<script>alert("1")</script>|_x'
    board = leaderboard([*entries, Entry(evil, report(5, 0.1), 4)], {"timm:gone": "no <weights>"})
    text, page, facts = board.to_markdown(), board.to_html("A & B"), board.to_dict()
    for name in ("low", "high", "near"):
        assert f"| {name} |" in text
        assert page.count(f'<th scope="row">{name}</th>') == 3
    assert "<script" not in text
    assert page.count("<script") == 1  # the one that sorts
    assert "no &lt;weights&gt;" in page
    assert "A &amp; B" in page
    assert "not evaluated: timm:gone" in text
    assert not re.search(r"(src|href)=\"(?!#)", page), "the page loads nothing"
    assert "| 12 |" in text
    assert {model["model"]: model["dimensions"] for model in facts["models"]} == {
        "low": 8, "high": 16, "near": 24, evil: 4,
    }  # fmt: skip
    assert len(facts["scores"]) == 16
    assert facts["failed"] == {"timm:gone": "no <weights>"}
    assert {model["images_per_second"] for model in facts["models"]} == {12.34, 123.4, 1234.0, None}
