"""Analyses on the report page: the numbers of the diagnostics, a figure each, and none where there is nothing."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest

from hgld.cli import main
from hgld.errors import ConfigError
from hgld.evaluation.evaluate import evaluate
from hgld.metrics import class_distances, gap_over_batches, smoothing_errors
from hgld.report_page.analyses import analyse
from hgld.report_page.figures import Figures
from hgld.report_page.page import write_report_page
from hgld.report_page.rankings import first_ranks
from hgld.report_page.runs import Evaluation, Items, Ranked
from hgld.report_page.score_table import _distances, severity
from tests.hgld.test_report_page_page import write_run


def evaluation(seed, shift):
    rng = np.random.default_rng(seed)
    fine = np.arange(96) // 3
    embeddings = (rng.normal(size=(96, 8)) + shift * np.eye(8)[fine % 8]).astype(np.float32)
    report = evaluate(embeddings, fine, levels=("fine",), metrics=("R@1",))
    return Evaluation(report, None, Ranked(Items(embeddings, fine[:, None], None), None, ()))


def of(evaluation: Evaluation) -> Ranked:
    assert evaluation.ranked is not None
    return evaluation.ranked


def test_values_are_those_of_the_diagnostics_and_each_analysis_has_its_figure():
    runs = {"a": evaluation(0, 2.0), "b": evaluation(1, 4.0)}
    found = analyse(["distances", "decomposability", "smoothing"], runs, Figures(), "test")
    embeddings, labels = of(runs["b"]).query.embeddings, of(runs["b"]).query.labels[:, 0]
    gaps = gap_over_batches(embeddings, labels, [32])
    assert [row["gap"] for row in found.values["decomposability"]["b"]] == pytest.approx([gap.gap for gap in gaps])
    rows = found.values["smoothing"]["b"]
    errors = smoothing_errors(embeddings, labels, [row["tau"] for row in rows])
    assert [row["error"] for row in rows] == pytest.approx([error.error for error in errors], abs=1e-5)
    distances = found.values["distances"]["b"]
    assert distances["dists@intra"] == pytest.approx(class_distances(embeddings, labels).intra, abs=1e-6)
    assert sum(distances["intra"]) == pytest.approx(1)
    middles = np.convolve(distances["edges"], [0.5, 0.5], "valid")
    assert middles @ distances["inter"] == pytest.approx(distances["dists@inter"], abs=1 / 60)
    drawn = "distances-a distances-b decomposability smoothing-error smoothing-operating"
    assert [figure.name for figure in found.figures] == [f"test-{name}" for name in drawn.split()]


@pytest.mark.usefixtures("no_figures")
def test_the_verb_shows_the_figures_and_prints_the_numbers(tmp_path, capsys):
    write_run(tmp_path / "a")
    with pytest.raises(SystemExit) as ended:
        main(["report", str(tmp_path / "a"), "--out", str(tmp_path / "r.html"), "--analyses", "smoothing", "--json"])
    assert ended.value.code == 0
    assert list(json.loads(capsys.readouterr().out)["analyses"]["test"]["smoothing"]) == ["a"]
    assert "<h3>Analyses</h3>" in (tmp_path / "r.html").read_text(encoding="utf-8")


def test_an_unknown_analysis_is_refused_and_one_without_pairs_is_said(tmp_path):
    run = tmp_path / "run"
    write_run(run, size=24)
    with pytest.raises(ConfigError, match="no analysis 'gap'; there are distances, decomposability, smoothing"):
        write_report_page([run], tmp_path / "r.html", analyses=["gap"])
    alone = evaluation(0, 2.0)
    items = replace(of(alone).query, labels=np.arange(96)[:, None])  # no class repeats
    alone = replace(alone, ranked=replace(of(alone), query=items))
    found = analyse(["decomposability", "distances"], {"alone": alone}, Figures(), "test")
    assert math.isnan(found.values["distances"]["alone"]["dists@intra"])
    assert list(found.values) == ["distances"]
    assert found.missing[0].startswith("alone: no analysis of decomposability, for no class has two items")


def test_the_curve_of_distances_is_hd_at_k():
    fine = np.arange(48) // 4
    labels = np.stack([fine, fine // 3], axis=1)
    embeddings = np.random.default_rng(0).normal(size=(48, 6))
    curve = _distances(severity(first_ranks(Ranked(Items(embeddings, labels, None), None, ())), 2))
    names = [f"HD@{k}" for k in (1, 2, 7, 20)]
    found = evaluate(embeddings, labels, levels=("fine", "coarse"), metrics=names).values
    assert [curve[k - 1] for k in (1, 2, 7, 20)] == pytest.approx([found[name] for name in names])
