"""The benchmarks of names, each on one or few real datasets: they run, and their tables say what the pages say."""

import os

import pytest

from tests.interpreter import python

pytestmark = [pytest.mark.slow, pytest.mark.skipif("HGLD_DATA" not in os.environ, reason="needs the reference groups")]


def rows_of(script, *words):
    """Run a benchmark with the encoder lexical; return the cells of its table rows."""
    made = python("-W", "ignore", f"benchmarks/{script}", "--encoder", "lexical", *words)
    lines = [line for line in made.stdout.splitlines() if line.startswith("| ") and "---" not in line]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def test_deciding_about_shown_names_helps_more_than_the_nearest_mean_row():
    *_, (_, _, nearest, *_, ours) = rows_of("hierarchy_doubt.py", "--sets", "cub200", "--shown", "5")
    assert float(ours) > float(nearest) + 0.05


def test_errors_of_one_dataset_are_predicted_from_other_datasets():
    rows = rows_of("hierarchy_doubt.py", "--sets", "grocery,washington,cub200")
    aurocs = {(row[0], i): float(row[4]) for i, row in enumerate(rows) if row[0] in ("grocery", "washington", "cub200")}
    assert len(aurocs) == 6
    assert min(aurocs.values()) > 0.6


def test_review_needs_fewer_actions_than_margin_sampling():
    words = ("--sets", "grocery", "--seeds", "1", "--order", "names")
    until = {strategy: float(cells[2]) for _, strategy, *cells in rows_of("review_effort.py", *words)[1:]}
    assert until["hgld review"] < until["margin sampling"]


def test_careful_person_corrects_all_names_and_acceptance_without_reading_is_noticed():
    rows = rows_of("review_trust.py", "--sets", "grocery", "--screens", "8")
    last = {(row[2], row[3], row[5]): row[6:] for row in rows if row[0] == "grocery"}
    # classes are decided on the fourth screen only, so groups that change later may have a wrong class
    assert {last[kind, "careful", "group"][0] for kind in ("given", "found")} == {"0"}
    assert all(last[kind, "blind", "tree"][1].endswith("unread") for kind in ("given", "found"))
