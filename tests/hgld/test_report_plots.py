"""Figures for papers: their numbers equal those of the evaluation, and class names are shown as they are."""

from typing import Any

import numpy as np
import pytest
from matplotlib.figure import Figure

from hgld import open_dataset
from hgld.errors import ConfigError
from hgld.report_page.page import make_report
from hgld.report_page.plots import KINDS
from tests.hgld.small_dataset import items_of_classes, write_dataset
from tests.hgld.test_report_page_page import write_run

ODD = ["#1b2530", "url(#a)", "$x$", "\N{HEBREW LETTER SHIN}abc", r"$\frac{1}{$"]


@pytest.fixture(scope="module")
def folder(module_path):
    write_dataset(module_path / "data", items_of_classes([3] * 8, ("test",), per_coarse=4))
    write_run(module_path / "run", names=ODD, shift=1.0)
    write_run(module_path / "keyed", keys=open_dataset(module_path / "data").keys.to_list(), shift=1.0)
    return module_path


@pytest.fixture(scope="module")
def report(folder):
    return make_report([folder / "run"])


def test_curves_have_the_average_precision_of_every_level(report):
    axes = report.plot("curves", ax=Figure().subplots())
    legend = [text.get_text().removesuffix(")").rpartition(" (") for text in axes.get_legend().get_texts()]
    values = {label: float(value) for label, _, value in legend}
    [(_, scores)] = report.scores["test"].runs
    expected = {score.metric: score.value for score in scores}
    for label, metric in (("fine", "AP/fine"), ("coarse", "AP/coarse"), ("hierarchy", "H-AP")):
        assert values[label] == pytest.approx(expected[metric], abs=0.02)  # the curve has 100 recalls


def test_confusion_counts_every_query_of_the_shown_classes(report):
    axes = report.plot("confusion", ax=Figure().subplots())
    names = [label.get_text() for label in axes.get_xticklabels()]
    assert sorted(names) == [f"{ODD[0]} 0", f"{ODD[1]} 1"]
    assert sum(int(text.get_text() or 0) for text in axes.texts) == 24


def test_tree_is_coloured_by_the_error_at_rank_1(report):
    axes = report.plot("tree", ax=Figure().subplots())
    widths = {}
    for patch in axes.patches:
        widths.setdefault(round(patch.get_y() + patch.get_height() / 2), []).append(patch.get_width())
    assert {row: sum(found) for row, found in widths.items()} == {0: 24, 1: 24}
    assert len({patch.get_facecolor() for patch in axes.patches}) > 1
    axes.figure.draw_without_rendering()  # a class name such as $\frac must not be read as a formula


def test_strips_show_the_images_in_the_colours_of_their_grades(folder):
    report = make_report([folder / "keyed"], data=folder / "data")
    axes = report.plot("strips", ax=Figure().subplots())
    assert len(axes.images) == len(axes.patches) == len(axes.texts)
    assert len(axes.images) % 10 == 0
    assert len({patch.get_edgecolor() for patch in axes.patches}) >= 3
    assert np.asarray(axes.images[0].get_array()).shape == (112, 112, 3)


def test_plots_without_what_they_need_are_refused(report, tmp_path):
    refused: list[tuple[str, Any, str]] = [
        ("pie", {}, f"expected one of {', '.join(KINDS)}"),
        ("strips", {}, "give the dataset to make_report"),
        ("tree", {"run": "other"}, "the report has run on test"),
        ("tree", {"split": "val"}, "the report has run on test"),
    ]
    for kind, options, said in refused:
        with pytest.raises(ConfigError, match=said):
            report.plot(kind, **options)
    write_run(tmp_path / "run")
    (tmp_path / "run" / "embeddings" / "test.npy").unlink()
    with pytest.raises(ConfigError, match=r"a plot needs the embeddings of the evaluation: test\.npy is not in"):
        make_report([tmp_path / "run"]).plot("tree")
