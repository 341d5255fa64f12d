"""The table of results: every value under its level, whatever the runs were evaluated on."""

import numpy as np

from hgld.evaluation.evaluate import evaluate
from hgld.report_page.published import PublishedRow
from hgld.report_page.runs import Evaluation
from hgld.report_page.score_table import GRADED, score_table


def evaluation(levels, metrics):
    fine = np.arange(24) // 3
    labels = np.stack([fine // 2**i for i in range(len(levels))], axis=1)
    embeddings = np.random.default_rng(0).normal(size=(24, 8)).astype(np.float32)
    return Evaluation(evaluate(embeddings, labels, levels=levels, metrics=metrics), None, None)


def under_headings(table):
    """(level, metric) of every column, as a reader takes them from the two rows of the heading."""
    levels = [level for level, width in table.groups for _ in range(width)]
    assert len(levels) == len(table.columns)
    return list(zip(levels, table.columns, strict=True))


def test_runs_of_other_levels_keep_their_values_under_their_own():
    runs = {
        "a": evaluation(("landmark", "group"), ("R@1", "AP", "H-AP")),
        "b": evaluation(("product", "kind"), ("R@1", "AP", "H-AP", "NDCG")),
    }
    table = score_table(runs, [])
    columns = under_headings(table)
    assert [level for level, _ in table.groups] == ["landmark", "group", "product", "kind", GRADED]
    for name, cells in table.runs:
        values = runs[name].report.values
        shown = {
            (m if level == GRADED else f"{m}/{level}"): c.value for (level, m), c in zip(columns, cells, strict=True)
        }
        assert {m: v for m, v in shown.items() if v} == {m: f"{100 * v:.2f}" for m, v in values.items()}


def test_a_run_with_fewer_levels_shares_the_columns_of_those_it_has():
    runs = {"coarse": evaluation(("b",), ("AP",)), "all": evaluation(("a", "b", "c"), ("AP", "H-AP"))}
    published = [PublishedRow("theirs", "a paper", {"AP": 50.0, "H-AP": 79.55})]
    table = score_table(runs, published)
    assert under_headings(table) == [("b", "AP"), ("a", "AP"), ("c", "AP"), (GRADED, "H-AP")]
    [(_, _, cells)] = table.published
    assert [cell.value for cell in cells] == ["", "50.0", "", "79.55"]  # of the finest level that any run has


def test_a_metric_that_the_baseline_lacks_has_its_interval_too():
    runs = {"first": evaluation(("a", "b"), ("R@1",)), "more": evaluation(("a", "b"), ("R@1", "AP"))}
    table = score_table(runs, [])
    [(_, first), (_, more)] = table.runs
    assert all(cell.interval for cell in more)
    assert [bool(cell.says) for cell in more] == [bool(cell.value) for cell in first]  # compared where both have one
