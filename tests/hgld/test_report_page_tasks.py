"""Which evaluations stand side by side on a report page: those of one task, however they were kept."""

import re
from dataclasses import replace

import numpy as np
import pytest

from hgld.evaluation.evaluate import evaluate
from hgld.report_page.page import write_report_page
from hgld.report_page.runs import read_runs

pytestmark = pytest.mark.usefixtures("no_figures")


def report_of(seed=0, **settings):
    fine = np.arange(24) // 3
    embeddings = np.random.default_rng(seed).normal(size=(24, 8)).astype(np.float32)
    report = evaluate(embeddings, np.stack([fine, fine // 4], axis=1), levels=("fine", "coarse"), metrics=("AP",))
    return replace(report, settings=report.settings | settings)


def write_run(folder, **reports):
    """A run folder of reports by the names of their entries."""
    (folder / "reports").mkdir(parents=True)
    for entry, report in reports.items():
        report.save_json(folder / "reports" / f"{entry}-epoch-1.json")
    return folder


def test_an_evaluation_of_the_checkpoint_stands_beside_its_run(tmp_path):
    write_run(tmp_path / "run", test=report_of(0, dataset="sop", split="test"))
    again = report_of(1, dataset="sop", split="test", files={}, checkpoint={"epoch": 1})
    again.save_json(tmp_path / "again.json")
    facts = write_report_page([tmp_path / "run", tmp_path / "again.json"], tmp_path / "r.html", baseline="again")
    assert facts.splits == ("test",)
    page = (tmp_path / "r.html").read_text()
    table, _ = re.findall(r'<table class="scores sortable">.*?</table>', page, re.DOTALL)  # and one of published rows
    assert re.findall(r'<th scope="row">([^<]*)', table)[:2] == ["run", "again"]
    assert "p = " in table
    assert "`hgld evaluate --checkpoint` keeps no embeddings" in page
    assert "<h2>Test</h2>" in page


def test_tasks_are_named_by_their_splits_and_where_it_matters_by_their_dataset(tmp_path):
    query = {"split": "query", "gallery_split": "gallery"}
    write_run(tmp_path / "a", test=report_of(0, dataset="cub", split="test"))
    write_run(tmp_path / "b", **{"query-gallery": report_of(0, dataset="iNat", **query), "val": report_of(0)})
    report_of(0).save_json(tmp_path / "plain.json")
    alone, named = read_runs([tmp_path / "a"]), read_runs([tmp_path / "a", tmp_path / "b", tmp_path / "plain.json"])
    assert [set(run.evaluations) for run in alone] == [{"test"}]
    assert [set(run.evaluations) for run in named] == [
        {"test of cub"},
        {"query/gallery of iNat", "val"},
        {"evaluation"},
    ]


@pytest.mark.parametrize("other", ["a-test", "z-test"])
def test_two_datasets_of_one_name_keep_an_evaluation_each(tmp_path, other):
    own, further = report_of(0, dataset="manifest", split="test"), report_of(1, dataset="manifest", split="test")
    write_run(tmp_path / "run", **{"test": own, other: further})
    [run] = read_runs([tmp_path / "run"])
    assert {name: e.report.values for name, e in run.evaluations.items()} == {
        "test": own.values,
        f"test ({other})": further.values,
    }
