"""Experiments of the papers: every table has one, every command parses, and a toy of each runs to its end."""

import re
import shlex
from functools import cache, partial
from pathlib import Path
from typing import Any

import click
import pytest

from hgld.cli import cli
from hgld.cli.paper_figures import draw_sweeps, read_sweeps
from hgld.cli.reproduce_commands import _commands, _run, _show_sweeps
from hgld.cli.train_commands import TrainOptions, _asked_config
from hgld.errors import ConfigError
from hgld.evaluation.protocols import protocol_of
from hgld.metrics import Metric
from hgld.pipelines.shards.sources import source_name
from hgld.published import PAPERS, find_table, published_values
from hgld.published.experiments import all_experiments, find_experiments
from hgld.settings import options_of
from hgld.training.config import SECTIONS
from hgld.training.recipes import RECIPES
from hgld.training.sweep import plan_sweep
from tests.interpreter import ROOT
from tests.rows import each_row

PAGE = ROOT / "docs" / "project" / "papers.md"
FIVE = ("smooth-ap", "listwise", "pnp", "suprank", "multigrain")
EXPERIMENTS = [one for one in all_experiments() if not one.why]
REAL = [one for one in EXPERIMENTS if one.paper != "data"]
FIRST = list({one.paper: one for one in reversed(REAL)}.values())


def test_experiments_have_commands_or_a_reason_and_known_datasets():
    built = {one.table for one in all_experiments() if one.paper == "data"}
    keys = [(one.paper, one.table) for one in all_experiments()]
    assert len(set(keys)) == len(keys) > 60
    for one in all_experiments():
        assert bool(one.commands) != bool(one.why), one
        assert {*one.data.split()} <= built
        assert one.paper in (*FIVE, "data")


def test_every_table_of_a_paper_has_an_experiment():
    named = {(one.paper, name) for one in all_experiments() for name in (one.table, one.table.partition(",")[0])}
    assert {(value.paper, value.table) for value in published_values() if value.paper in FIVE} <= named


@pytest.mark.checks
def test_every_recipe_of_a_table_is_in_its_commands_once():
    [table] = find_experiments("suprank 5")
    lines = [command for command, _ in _commands(table, Path())]
    assert "hgld train happier-sop --data sop --out runs/happier-sop" in lines
    assert "hgld build-shards sop --source releases/sop --out sop" in lines
    assert sum("hgld train" in line for line in lines) == sum(
        any((v.paper, v.table) == ("suprank", "Table V") for v in recipe.values) for recipe in RECIPES.values()
    )


def find_rows(one):
    return [v for v in published_values() if (v.paper, v.table) == (one.paper, one.table)]


@pytest.mark.checks
def test_every_command_parses_without_unknown_names(monkeypatch):
    # accepts paths of files that do not exist here
    monkeypatch.setattr(click.Path, "convert", lambda self, value, param, ctx: Path(value))
    verbs: Any = cache(partial(cli.get_command, click.Context(cli)))
    for command in dict.fromkeys(command for one in EXPERIMENTS for command, _ in _commands(one, Path())):
        program, verb, *words = shlex.split(command)
        assert program == "hgld"
        check(verb, verbs(verb).make_context(verb, words).params)


def check(verb, given):
    """Fail for unknown recipes, datasets, tables, protocols and metrics."""
    if verb == "train":
        options = [option for section in SECTIONS.values() for option in options_of(section).values()]
        fields = {option.name: given[option.flag.replace("-", "_")] for option in options}
        asked = TrainOptions(recipe=given["recipe"], loss=given["loss"] or (), sweep=sum(given["sweep"], ()))
        plan_sweep(*_asked_config(asked, {name: value for name, value in fields.items() if value is not None}))
    elif verb == "build-shards":
        source_name(given["release"])
    elif verb == "report":
        for table in sum(given["paper"], ()):
            find_table(table)
    if given.get("protocol"):
        protocol_of(given["protocol"])
    for name in (given.get("metrics") or ()) if verb == "evaluate" else ():
        Metric.parse(name)


def test_page_of_the_papers_names_existing_tests():
    named = re.findall(r"`(tests/[^`]+)`", PAGE.read_text(encoding="utf-8"))
    assert len(named) == 8
    assert all((ROOT / file).is_file() for file in named)


@each_row("spelling", ["SupRank Table V", "suprank 5", "Ramzi 2023, tab. V"])
def test_experiment_is_found_by_any_spelling_of_its_table(spelling):
    assert [one.table for one in find_experiments(spelling)] == ["Table V"]


def test_unknown_experiment_error_lists_the_known_ones():
    with pytest.raises(ConfigError, match=r"PNP has no table or figure 'Table 99'; it has Table 1; .*Figure 8"):
        find_experiments("PNP Table 99")
    assert [one.table for one in find_experiments("SupRank Figures 7 and 8")] == [
        f"Figures 7 and 8, {name}" for name in ("lambda", "rho", "alpha")
    ]


@pytest.mark.checks
def test_reproduce_lists_tables_and_marks_datasets_that_are_here(json_of, tmp_path):
    (tmp_path / "sop").mkdir()
    (tmp_path / "sop" / "dataset.json").write_text("{}")
    rows = {row["table"]: row for row in json_of("reproduce", "--list", "--data", tmp_path)["tables"]}
    assert rows["Smooth-AP Table 2"]["data"] == "sop (here)"
    assert rows["SupRank Table III"]["data"] == "sop (here), inat-base"
    assert rows["SupRank Table III"]["state"] == "can run"
    assert "Eq. 9" in rows["Smooth-AP Figures 4 and S7"]["state"]
    assert len(rows) == len([one for one in all_experiments() if one.paper != "data"])


def test_reproduce_prints_published_values_datasets_and_commands(output, json_of):
    out = output("reproduce", "SupRank Table X")
    assert re.search(r"^Sup-H-AP surrogate \+ DG\* \(HAPPIER\) +54.3$", out, re.MULTILINE)
    assert "\nhgld train happier-inat-base --data inat-base --out runs/happier-inat-base\n" in out
    assert "hgld datasets inat-base" in out
    told = json_of("reproduce", "SupRank Table X")
    assert [row["table"] for row in told["tables"]] == ["SupRank Table X"]
    assert told["commands"][-1] == 'hgld report runs --paper "SupRank Table X"'
    out = output("reproduce", "PNP Figure 6")
    assert out.startswith("PNP Figure 6: cannot be repeated; ")


def write_sweeps(folder, one, values):
    """Write the table of every sweep of an experiment; ``values`` are those of each metric that the paper has."""
    for words in (shlex.split(line) for line in one.commands.splitlines() if "--sweep" in line):
        field, _, swept = words[words.index("--sweep") + 1].partition("=")
        names = list(dict.fromkeys(value.name for value in RECIPES[words[2]].values if value.unit in "%1"))
        rows = [f"{x},1 of 1" + f",{y}" * len(names) for x, y in zip(swept.split(","), values, strict=False)]
        out = folder / words[words.index("--out") + 1]
        out.mkdir()
        field = {"lambda": "lambda_"}.get(field, field)
        (out / "sweep.csv").write_text("\n".join([",".join([field, "finished", *names]), *rows, ""]))


def test_published_increases_are_printed_and_drawn_beside_the_users_own(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    [figure] = find_experiments("SupRank Figure 6")
    for method, values in {"sup-ap": (40.0, 50.0, 0.0), "roadmap-proxy": (50.0, 52.0, 1.0)}.items():
        for name, level in {"sop": "product", "inat-base": "species"}.items():
            (tmp_path / f"suprank-{method}-{name}").mkdir()
            rows = [f"{batch},{value}" for batch, value in zip((32, 128, 4), values, strict=True)]
            text = "\n".join([f"batch_size,mAP@R/{level}", *rows, ""])
            (tmp_path / f"suprank-{method}-{name}" / "sweep.csv").write_text(text)
    _show_sweeps(figure, is_toy=False)
    out, err = capsys.readouterr()
    shown = [line.split() for line in out.splitlines()]
    assert shown[5][:3] == ["method", "setting", "increase"]
    assert any(line[-4:] == ["batch", "32", "22.8", "5.5"] for line in shown)
    assert ["your", "batch", "32,", "sop", "25.0"] in shown
    assert ["your", "batch", "128,", "inat-base", "4.0"] in shown
    assert not any(line[:4] == ["your", "batch", "4,", "sop"] and len(line) == 5 for line in shown), "undefined over 0"
    assert all((tmp_path / "figures" / f"suprank-figure-6.{suffix}").is_file() for suffix in ("pdf", "png"))
    assert str(tmp_path / "figures" / "suprank-figure-6.png") in err
    _show_sweeps(find_experiments("SupRank Table V")[0], is_toy=False)
    assert capsys.readouterr().out == ""


@pytest.mark.checks
def test_sweeps_are_drawn_with_the_published_values_at_their_settings(tmp_path, monkeypatch):
    [figure] = find_experiments("SupRank Figures 7 and 8, lambda")
    write_sweeps(tmp_path, figure, (0.1, 0.2, 0.3, 0.4, 0.5, 0.6))
    drawn = {}

    def keep(axes, entries, **options):
        drawn.update({label: [tuple(point) for point in line.get_xydata()] for line, label in entries})

    monkeypatch.setattr("hgld.report_page.figures.draw_legend", keep)
    assert len(draw_sweeps(figure, read_sweeps(figure, tmp_path), tmp_path / "figures")) == 2
    own = dict(drawn["roadmap-proxy-inat-base, R@1/species, yours"])
    assert own == pytest.approx({0.0: 10.0, 0.1: 20.0, 0.3: 30.0, 0.5: 40.0, 0.7: 50.0})
    assert drawn["roadmap-proxy-inat-base, R@1/species, published"] == [(0.1, 71.8), (0.3, 72.1)]
    assert dict(drawn["happier-inat-base, H-AP, yours"])[1.0] == pytest.approx(60.0)
    assert drawn["happier-inat-base, H-AP, published"] == [(0.1, 54.3)]


def test_toy_is_refused_among_real_datasets_and_without_the_synthetic_releases(refusal, tmp_path, monkeypatch):
    toy = ("reproduce", "SupRank Table X", "--toy")
    assert "omit one of them" in refusal(*toy, "--data", tmp_path)
    assert list(tmp_path.iterdir()) == []
    monkeypatch.setattr("hgld.cli.reproduce_commands._CHECKOUT", tmp_path)
    assert "clone of hgld's repository" in refusal(*toy)


@pytest.fixture(scope="module")
def toys(module_path):
    """A folder that all toys share, so that a dataset is built once and a recipe is trained once."""
    return module_path


@pytest.mark.slow
@pytest.mark.parametrize(
    "one",
    [pytest.param(one, marks=[] if one in FIRST else [pytest.mark.long]) for one in REAL],
    ids=lambda one: f"{one.paper} {one.table}",
)
def test_toy_of_an_experiment_runs_every_command_to_its_end(one, toys, capfd):
    _run(one, toys, is_toy=True)
    out, err = capfd.readouterr()
    assert f"{one.title}, toy: tiny synthetic data" in out
    has_numbers = re.search(r"--sweep \w+=\d", one.commands)  # a sweep of words is no figure
    assert bool(has_numbers) == bool(drawn := re.findall(r"drawn: (.*)", err))
    assert all(Path(name).is_file() for line in drawn for name in line.split(", "))
    if "hgld report" in one.commands and find_rows(one):
        assert re.search(rf"^{PAPERS[one.paper].name} .*{re.escape(one.table.partition(',')[0])}", out, re.MULTILINE)
        assert " is of manifest; the table is of" not in out, (
            "an own list does not have the name of the table's dataset"
        )
