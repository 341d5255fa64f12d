"""Report pages at the extremes: embeddings that are all alike, no mistakes, odd names, many queries."""

import re
import tracemalloc
import warnings

import numpy as np
import polars as pl
import pytest

from hgld.evaluation.evaluate import evaluate
from hgld.report_page import page, rankings
from hgld.report_page.curves import MeanCurves
from hgld.report_page.embedding_map import tsne, why_no_map
from hgld.report_page.figures import Figures
from hgld.report_page.page import write_report_page
from hgld.report_page.rankings import gain_of
from hgld.report_page.runs import Evaluation, Items, Ranked, read_runs
from hgld.report_page.score_table import score_table

FINE = np.arange(24) // 3


def write_run(folder, embeddings, fine=FINE, name="{}"):
    """A run folder with one evaluation of the given embeddings."""
    for part in ("reports", "embeddings"):
        (folder / part).mkdir(parents=True)
    np.save(folder / "embeddings" / "test.npy", embeddings.astype(np.float32))
    columns = {"fine": [name.format(i) for i in fine], "coarse": [name.format(i // 4) for i in fine]}
    pl.DataFrame(columns).write_parquet(folder / "embeddings" / "test.labels.parquet")
    labels = np.stack([np.unique(column, return_inverse=True)[1] for column in columns.values()], axis=1)
    report = evaluate(embeddings.astype(np.float32), labels, levels=("fine", "coarse"), metrics=("R@1", "AP", "H-AP"))
    report.settings["files"] = {"embeddings": "test.npy", "labels": "test.labels.parquet"}
    report.save_json(folder / "reports" / "test-epoch-1.json")


def page_of(tmp_path, *places):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        write_report_page(places, tmp_path / "r.html")
    return (tmp_path / "r.html").read_text(encoding="utf-8")


def embeddings(size=24, seed=0):
    return np.random.default_rng(seed).normal(size=(size, 8))


@pytest.mark.parametrize("noise", [0.0, 1e-7])
@pytest.mark.usefixtures("no_figures")
def test_a_collapsed_model_has_no_map_and_is_told_so(tmp_path, noise):
    write_run(tmp_path / "run", 1 + noise * embeddings())
    text = page_of(tmp_path, tmp_path / "run")
    assert "run: no map of the mean embeddings of every fine, for they are all but equal" in text
    assert "run: no map of the items of the largest classes, for they are all but equal" in text
    assert "Maps of the embedding" not in text
    assert "Precision and recall" in text


def test_points_that_barely_differ_have_a_map():
    points = np.ones((24, 8)) + 1e-5 * (embeddings() + 50 * np.eye(8)[FINE])
    points /= np.linalg.norm(points, axis=1, keepdims=True)
    assert why_no_map(points) == ""
    places = tsne(points)
    assert np.isfinite(places).all()
    distances = np.linalg.norm(places[:, None] - places, axis=-1) + np.diag(np.full(24, np.inf))
    assert (FINE[distances.argmin(axis=1)] == FINE).mean() > 0.9
    assert "a map needs 4" in why_no_map(points[:3])


def test_names_with_an_underscore_are_in_the_legends(tmp_path):
    write_run(tmp_path / "_run", embeddings(), name="_{}")
    text = page_of(tmp_path, tmp_path / "_run")
    legends = re.findall(r'<g id="[^"]*legend_1">(.*?)</svg>', text, re.DOTALL)
    shown = [re.findall(r"<text[^>]*>([^<]*)</text>", legend) for legend in legends]
    assert [f"_{i}" for i in range(8)] in shown
    assert ["_0", "_1"] in shown
    assert any(name.startswith("_run  (0.") for names in shown for name in names)


@pytest.mark.parametrize(
    ("values", "fine", "words"),
    [
        (np.eye(8)[FINE], FINE, "<td>0.0 %</td><td>– (no mistake)</td><td>100.0 %</td>"),
        (embeddings(), np.arange(24), "– (no query has an item of its own fine to find)"),
    ],
)
@pytest.mark.usefixtures("no_figures")
def test_what_is_undefined_is_told_in_words(tmp_path, values, fine, words):
    write_run(tmp_path / "run", values, fine=fine)
    text = page_of(tmp_path, tmp_path / "run")
    assert words in text
    assert not re.search(r">\s*nan\b", text)


def test_arrows_are_explained_where_there_are_two_runs(tmp_path):
    write_run(tmp_path / "one", embeddings())
    write_run(tmp_path / "two", embeddings(seed=1))
    one, two = (run.evaluations["test"] for run in read_runs([tmp_path / "one", tmp_path / "two"]))
    alone, both = (" ".join(score_table(runs, []).notes) for runs in ({"one": one}, {"one": one, "two": two}))
    assert "▲" not in alone
    assert "▲ and ▼: differs from one with p" in both
    for notes in (alone, both):
        assert "where many share few classes, intervals are too narrow." in notes


@pytest.mark.usefixtures("no_figures")
def test_curves_alone_rest_on_a_sample_and_say_so(tmp_path, monkeypatch):
    for module in (rankings, page):
        monkeypatch.setattr(module, "MOST_QUERIES", 10)
    write_run(tmp_path / "run", embeddings(), name="class {}")
    told = []
    write_report_page([tmp_path / "run"], tmp_path / "r.html", progress=lambda *step: told.append(step))
    text = (tmp_path / "r.html").read_text(encoding="utf-8")
    assert ("rank test, run", 24, 24) in told
    assert "Means over 10 of 24 queries, sampled with seed 0." in text
    assert "24 queries that have an item of their own fine in the gallery." in text
    text = re.sub("</?bdi>", "", text)
    rows = [re.findall(r"<td[^>]*>(.*?)</td>", row) for row in re.findall(r"<tr>(<td>class.*?)</tr>", text)]
    wrong = [row for row in rows if float(row[4]) < 100]  # R@1: some query of the class finds another class first
    assert len(rows) == 8
    assert len(wrong) > 3
    assert all(row[-1].startswith("class ") for row in wrong)


@pytest.mark.usefixtures("no_figures")
def test_memory_does_not_grow_with_queries_times_gallery():
    size = 900
    fine = np.arange(size) // 3
    labels = np.stack([fine, fine // 10], axis=1)
    values = embeddings(size).astype(np.float32)
    report = evaluate(values, labels, levels=("fine", "coarse"), metrics=("H-AP",))
    run = Evaluation(report, 1, Ranked(Items(values, labels, None), None, ({}, {})))
    tracemalloc.start()
    try:
        curves = MeanCurves(gain_of(run), 2)
        first = page._first_ranks(run, curves, "rank", None)
        page._curves(Figures(), {"run": run}, {"run": curves}, ("fine", "coarse"), "test")
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert first.items.shape == (size, rankings.FIRST_RANKS)
    assert most < 0.5 * size * size * 8  # one 8-byte number a pair would be twice that; a block of scores is torch's
