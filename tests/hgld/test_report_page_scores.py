"""The table of results: every value under its level, whatever the runs were evaluated on."""

import numpy as np
import pytest

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
    published = [PublishedRow("theirs", "a paper", {"AP": 50.0, "H-AP": 79.55}, close=True)]
    table = score_table(runs, published)
    assert under_headings(table) == [("b", "AP"), ("a", "AP"), ("c", "AP"), (GRADED, "H-AP")]
    [(_, _, cells)] = table.published
    assert [cell.value for cell in cells] == ["", "50.0", "", "79.55"]  # of the finest level that any run has


def known_quality(noise):
    """A run whose embeddings are its classes' directions and noise: the less of it the better."""
    fine = np.arange(120) // 4
    rng = np.random.default_rng(1)
    embeddings = rng.normal(size=(30, 16))[fine] + noise * rng.normal(size=(120, 16))
    labels = np.stack([fine, fine // 5], axis=1)
    return Evaluation(evaluate(embeddings, labels, levels=("a", "b"), metrics=("R@1", "AP", "H-AP")), None, None)


@pytest.mark.parametrize("baseline", ["middle", "best", "worst"])
def test_arrows_say_which_run_is_better_and_differences_have_their_sign(baseline):
    noises = {"best": 0.3, "middle": 1.2, "worst": 3.0}
    runs = {name: known_quality(noise) for name, noise in noises.items()}
    table = score_table({baseline: runs[baseline], **runs}, [], baseline=baseline)
    means = {name: run.report.values for name, run in runs.items()}
    assert all(means["best"][m] > means["middle"][m] > means["worst"][m] for m in means["best"])
    for name, cells in table.runs:
        better = noises[name] < noises[baseline]
        for cell in cells:
            assert cell.change == ("" if name == baseline else "better" if better else "worse")
            assert cell.best == (name == "best")
            if name != baseline:
                assert cell.says[0] == ("+" if better else "-")
                low, high = (float(part) for part in cell.interval.split("–"))
                assert low <= float(cell.value) + 0.06
                assert float(cell.value) <= high + 0.06


def test_a_difference_within_chance_has_no_arrow():
    report = known_quality(1.2)
    table = score_table({"one": report, "same": report}, [])
    [_, (_, cells)] = table.runs
    assert [cell.change for cell in cells] == [""] * len(cells)
    assert all(cell.says.startswith("+0.00") for cell in cells)


def test_a_metric_that_the_baseline_lacks_has_its_interval_too():
    runs = {"first": evaluation(("a", "b"), ("R@1",)), "more": evaluation(("a", "b"), ("R@1", "AP"))}
    table = score_table(runs, [])
    [(_, first), (_, more)] = table.runs
    assert all(cell.interval for cell in more)
    assert [bool(cell.says) for cell in more] == [bool(cell.value) for cell in first]  # compared where both have one
