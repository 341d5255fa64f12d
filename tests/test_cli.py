"""Exit codes, messages and JSON of hgld build-hierarchy, and hints for unknown subcommands."""

import json
from pathlib import Path

import pytest

from hgld.cli import EXIT_BAD_INPUT, VERBS

ROOT = Path(__file__).parents[1]
COMMONS = "https://commons.wikimedia.org/wiki/Category:"
NAMES = ("castle", "water castle", "lake", "mountain lake", "church building", "wooden church")


@pytest.fixture
def table(tmp_path):
    path = tmp_path / "names.csv"
    rows = [f"{i},{COMMONS}L{i},{NAMES[i % len(NAMES)]}" for i in range(24)]
    path.write_text("\n".join(["landmark_id,category,supercategory", *rows, ""]))
    return path


@pytest.mark.parametrize(
    ("verb", "hint"),
    [("build-hierachy", "Did you mean 'build-hierarchy'?"), ("fly", f"The subcommands are: {', '.join(VERBS)}.")],
)
def test_unknown_subcommand_error_suggests_the_nearest_or_all_subcommands(hgld, verb, hint):
    code, out, err = hgld(verb)
    assert (code, out) == (EXIT_BAD_INPUT, "")
    assert f"there is no subcommand {verb!r}. {hint}" in err


def test_build_prints_a_table_and_then_json(hgld, table, tmp_path):
    arguments = ("build-hierarchy", "--names", table, "--out", tmp_path / "out", "--encoder", "lexical")
    code, out, err = hgld(*arguments)
    assert (code, err) == (0, "")
    for stage in ("scrape", "clean", "embed", "cluster", "toplevel", "review", "export", "report"):
        assert f"\n{stage} " in f"\n{out}"
    assert str(tmp_path / "out" / "train_label_to_hierarchical.csv") in out
    assert out.endswith(f"next: hgld review {tmp_path / 'out'}\n")
    code, out, err = hgld(*arguments, "--json")
    assert (code, err) == (0, "")
    build = json.loads(out)
    assert not any(stage["ran"] for stage in build["stages"].values())
    assert build["stages"]["clean"]["counts"]["kept (train)"] == 24
    assert all(Path(file).is_file() for file in build["files"].values())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "give exactly one of --sample, --landmarks SPLIT=CSV, --names [SPLIT=]CSV or --classes FILE."),
        (("--sample", "--names", "{table}"), "give exactly one of"),
        (("--names", "{table}", "--names", "train={table}"), "expected one table per split"),
        (("--names", "none.csv"), "'none.csv' is not a file"),
        (("--landmarks", "{table}"), "expected SPLIT=CSV, for instance train=train_label_to_category.csv"),
        (("--landmarks", "../x={table}"), "expected SPLIT=CSV"),
        (("--sample", "--groups", "many"), "'many'; expected a whole number"),
        (("--sample", "--route", "ftp"), "route is 'ftp'; expected one of 'api', 'html'"),
        (("--sample", "--out", "{table}"), "is a file"),
    ],
)
def test_contradictory_build_options_are_refused_before_any_work(hgld, table, tmp_path, arguments, message):
    given = [argument.replace("{table}", str(table)) for argument in arguments]
    code, out, err = hgld("build-hierarchy", "--out", tmp_path / "out", *given)
    assert (code, out) == (EXIT_BAD_INPUT, "")
    assert message in err
    assert not (tmp_path / "out").exists()
