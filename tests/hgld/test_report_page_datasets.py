"""Pictures, names of classes and published rows on a report page: of the evaluation's own dataset, or it is said."""

import re
from contextlib import nullcontext
from dataclasses import replace

import pytest

from hgld.cli import main
from hgld.errors import InputError, StorageError
from hgld.evaluation.report import RetrievalReport
from hgld.published import published_values, search_values
from hgld.report_page import page
from hgld.report_page.page import paper_tables, write_report_page
from hgld.report_page.runs import read_runs
from hgld.training.recipes import RECIPES
from tests.hgld.small_dataset import items_of_classes, write_dataset
from tests.hgld.test_report_page_page import write_run

pytestmark = pytest.mark.usefixtures("no_figures")
ROWS = "dataset,method,metric,value,source\n"


def write_run_of(folder, dataset, split="test"):
    report = write_run(folder)
    for kept in (folder / "reports").glob("*-10.json"):
        replace(report, settings=report.settings | {"dataset": dataset, "split": split}).save_json(kept)
    return folder


def table_of_results(path, split):
    [table] = re.findall(rf"<h2>{split}</h2>.*?<table class=\"scores[^>]*>(.*?)</table>", path.read_text(), re.DOTALL)
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
    sop, cub = (
        re.findall(rf"<h2>Test of {name}</h2>.*?</section>", out.read_text(), re.DOTALL)[0] for name in ("sop", "cub")
    )
    assert "HAPPIER" in sop
    assert "HAPPIER" not in cub
    assert "68.5" in cub
    assert "68.5" not in sop
    own = {value.text for value in published_values() if value.dataset == "sop" and value.metric == "R@1"}
    assert all(f"<td>{text}</td>" in sop for text in own)


def test_rows_of_the_runs_recipe_stand_with_the_runs(tmp_path):
    run = write_run_of(tmp_path / "run", "sop")
    (run / "config.json").write_text('{"recipe": "happier-sop"}')
    rows = search_values(dataset="sop", method="HAPPIER_F")
    asked = []
    write_report_page([run], tmp_path / "r.html", published_of=lambda name: asked.append(name) or rows)
    assert set(asked) == {"happier-sop"}
    above = table_of_results(tmp_path / "r.html", "Test")
    assert above.count('class="published"') == 2  # of Tables V and IX
    assert "SupRank Table V: ResNet-50, 512 dimensions, trained on hierarchy" in above
    assert above.count("<td>81.8</td>") == 2


def test_a_run_stands_in_a_paper_s_table_with_the_difference_to_its_recipe(tmp_path, capsys):
    run = write_run_of(tmp_path / "run", "sop")
    (run / "config.json").write_text('{"recipe": "happier-sop"}')
    out = tmp_path / "r.html"
    with pytest.raises(SystemExit) as stop:
        main(["report", str(run), "--paper", "suprank table 5", "--out", str(out)])
    assert stop.value.code == 0
    [report] = [RetrievalReport.load_json(path) for path in (run / "reports").glob("*-10.json")]
    value = 100 * report.values["R@1/fine"]
    difference = f"{round(value, 1) - 81.0:+.1f}"
    printed = capsys.readouterr().out
    assert "Table V, sop: ResNet-50, 512 dimensions; per cent" in printed
    assert re.search(
        rf"^run .* {value:.1f}[¹² ].*\n  minus HAPPIER  .* {re.escape(difference)} ", printed, re.MULTILINE
    )
    page = out.read_text()
    assert f'{value:.1f}</span><span class="interval">{difference}</span>' in page
    assert "<h2>SupRank Table V</h2>" in page


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ("{", "config.json: not valid JSON"),
        ("[]", "config.json: expected a JSON object"),
        ('"' + " " * (1 << 20) + '"', "config.json: 1048578 bytes; expected at most 1048576"),
        ('{"recipe": ["happier-sop"]}', None),
        ('{"recipe": "of another package"}', None),
        (None, None),
    ],
)
def test_a_run_s_config_is_read_for_its_recipe_alone(tmp_path, config, said):
    run = write_run_of(tmp_path / "run", "sop")
    if config is not None:
        (run / "config.json").write_text(config)
    with pytest.raises(InputError, match=said) if said else nullcontext():
        [found] = read_runs([run])
        [table] = paper_tables(
            [found], ["SupRank Table V"], lambda name: RECIPES[name].values if name in RECIPES else ()
        )
        assert table.own == 1
        assert not any(row.against for block in table.blocks for row in block.rows)


def test_a_paper_s_table_needs_no_page(tmp_path, capsys):
    run = write_run_of(tmp_path / "run", "sop")
    for arguments, code in (((), 2), (("--paper", "SupRank Table IX", "--json"), 0), (("--paper", "Nobody 7"), 2)):
        with pytest.raises(SystemExit) as stop:
            main(["report", str(run), *arguments])
        assert stop.value.code == code
        said = capsys.readouterr()
        assert ("Table IX" in said.out) == (code == 0)
        assert ("(--paper)" in said.err) == (not arguments)
    assert not list(tmp_path.glob("*.html"))


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
