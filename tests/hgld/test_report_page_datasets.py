"""Pictures, names of classes and published rows on a report page: of the evaluation's own dataset, or it is said."""

import re
from dataclasses import replace
from pathlib import Path

import polars as pl
import pytest
from markupsafe import Markup

import hgld.data_cards
from hgld.cli import main
from hgld.errors import StorageError
from hgld.evaluation.report import RetrievalReport
from hgld.metrics import Metric
from hgld.report_page import page
from hgld.report_page.figures import Figure, Figures
from hgld.report_page.page import write_report_page
from hgld.report_page.published import SHIPPED
from tests.hgld.small_dataset import items_of_classes, write_dataset
from tests.hgld.test_report_page_page import write_run

ROWS = "dataset,method,metric,value,source\n"


@pytest.fixture(autouse=True)
def no_figures(monkeypatch):
    """Drawing is slow and another test's."""
    monkeypatch.setattr(Figures, "draw", lambda _, name, title, draw, **__: Figure(name, title, "", Markup()))


def write_run_of(folder, dataset, split="test"):
    report = write_run(folder)
    for kept in (folder / "reports").glob("*-10.json"):
        replace(report, settings=report.settings | {"dataset": dataset, "split": split}).save_json(kept)
    return folder


def table_of_results(path, split):
    [table] = re.findall(rf"<h2>{split}</h2>.*?<table class=\"scores\">(.*?)</table>", path.read_text(), re.DOTALL)
    return table


def test_another_dataset_gives_no_pictures_and_names_and_that_is_said(tmp_path):
    write_dataset(tmp_path / "data", items_of_classes([3] * 8, ("test",), per_coarse=4))  # named "small"
    run, out = write_run_of(tmp_path / "run", "cars196"), tmp_path / "r.html"
    facts = write_report_page([run], out, data=tmp_path / "data")
    said = "test: no pictures and no names of classes from --data, which is small; this is an evaluation of cars196."
    assert facts.notes == (said,)
    assert said in out.read_text()
    assert facts.pictures == 0
    assert "fine: fine" not in out.read_text()
    write_run_of(tmp_path / "own", "small")
    facts = write_report_page([tmp_path / "own"], out, data=tmp_path / "data")
    assert facts.pictures > 0
    assert facts.notes == ()


def test_a_report_that_does_not_say_its_dataset_is_taken_for_that_of_data(tmp_path):
    write_dataset(tmp_path / "data", items_of_classes([3] * 8, ("test",), per_coarse=4))
    write_run(tmp_path / "run")
    facts = write_report_page([tmp_path / "run"], tmp_path / "r.html", data=tmp_path / "data")
    assert facts.pictures > 0
    assert facts.notes == ("test: the report does not say its dataset; it is taken for small, which --data names.",)


def test_published_rows_stand_with_their_own_dataset(tmp_path):
    runs = [write_run_of(tmp_path / name, name) for name in ("sop", "cub")]
    write_dataset(tmp_path / "data", items_of_classes([3] * 8, ("test",), per_coarse=4))
    out = tmp_path / "r.html"
    write_report_page(runs, out, data=tmp_path / "data")
    sop, cub = (table_of_results(out, f"Test of {name}") for name in ("sop", "cub"))
    assert "HAPPIER" in sop
    assert "HAPPIER" not in cub
    assert "68.5" in cub
    assert "68.5" not in sop


def test_shipped_rows_are_of_datasets_and_metrics_that_hgld_knows():
    rows = pl.read_csv(SHIPPED)
    assert set(rows["dataset"]) <= {card.stem for card in Path(hgld.data_cards.__file__).parent.glob("*.md")}
    assert [str(Metric.parse(name)) for name in rows["metric"]] == rows["metric"].to_list()
    assert not rows.select("dataset", "method", "metric").is_duplicated().any()
    assert rows["source"].str.contains(r"arXiv:\d{4}\.\d{5}").all()


@pytest.mark.parametrize(
    ("dataset", "rows", "said"),
    [
        (
            "sop",
            "my set,A,R@1,7,us\nmy set,B,R@1,8,us\n,C,R@1,8,us\n",
            r"0 of its 3 rows are of dataset sop \(found: my set, \(empty\)\)",
        ),
        ("sop", "sop,A,R@77,7,us\nother,A,R@1,7,us\n", r"0 of its 1 rows of sop are of a metric .* \(found: R@77\)"),
        ("sop", "", r"0 of its 0 rows are of dataset sop \(found: none\)"),
        ("", ",A,R@1,7,us\n", "the report does not say its dataset. Name the dataset's directory by --data"),
        ("sop", "sop,A,R@1,7,us\n", None),
    ],
)
def test_published_rows_that_fit_nothing_are_named(tmp_path, capsys, dataset, rows, said):
    (tmp_path / "p.csv").write_text(ROWS + rows)
    write_run_of(tmp_path / "run", dataset)
    with pytest.raises(SystemExit) as stop:
        main(
            ["report", str(tmp_path / "run"), "--published", str(tmp_path / "p.csv"), "--out", str(tmp_path / "r.html")]
        )
    assert stop.value.code == 0
    printed = capsys.readouterr().err
    if said is None:
        assert "p.csv" not in printed
    else:
        assert re.search(said, printed)
        assert "No row of p.csv is shown" in (tmp_path / "r.html").read_text()


def test_pictures_get_the_room_that_all_else_leaves(tmp_path, monkeypatch):
    write_dataset(tmp_path / "data", items_of_classes([3] * 8, ("test",), per_coarse=4))
    run, out = write_run_of(tmp_path / "run", "small"), tmp_path / "r.html"
    full = write_report_page([run], out, data=tmp_path / "data")
    places = out.read_text().count("<img src=")
    bare = full.bytes - sum(len(uri) for uri in re.findall(r'src="(data:[^"]+)"', out.read_text()))
    monkeypatch.setattr(page, "MOST_BYTES", bare + 40_000)
    facts = write_report_page([run], out, data=tmp_path / "data")
    assert facts.bytes <= bare + 40_000
    shown = out.read_text().count("<img src=")
    assert 0 < shown < places == shown + facts.pictures_left_out
    assert f"{facts.pictures_left_out} places without one" in out.read_text()


def test_a_place_that_cannot_be_written_is_refused_before_the_work(tmp_path, monkeypatch):
    monkeypatch.setattr(RetrievalReport, "load_json", lambda path: pytest.fail("it began to work"))
    (tmp_path / "run" / "reports").mkdir(parents=True)
    (tmp_path / "run" / "reports" / "test-epoch-1.json").touch()
    for out, message in (
        (tmp_path / "none" / "x.html", r"x\.html: there is no folder .*none\. Make it"),
        (tmp_path / "run", r"it is a folder\. Name a file in it"),
    ):
        with pytest.raises(StorageError, match=message):
            write_report_page([tmp_path / "run"], out, plots=tmp_path / "plots")
    assert not (tmp_path / "plots").exists()
