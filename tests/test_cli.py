"""What people and machines get from the verbs: exit codes, messages, plans, JSON."""

import json
import re
import shlex
from pathlib import Path

import click
import pytest

from hgld import __version__
from hgld.cli import EXIT_BAD_INPUT, EXIT_STOPPED, VERBS, cli, main
from hgld.pipelines.hierarchy import build as building

ROOT = Path(__file__).parents[1]
COMMONS = "https://commons.wikimedia.org/wiki/Category:"
NAMES = ("castle", "water castle", "lake", "mountain lake", "church building", "wooden church")


@pytest.fixture
def hgld(capsys):
    """``hgld(*arguments)`` runs the command: exit code, stdout, stderr."""

    def run(*arguments: str | Path) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as stop:
            main([str(argument) for argument in arguments])
        assert isinstance(stop.value.code, int)
        return (stop.value.code, *capsys.readouterr())

    return run


@pytest.fixture
def table(tmp_path):
    path = tmp_path / "names.csv"
    rows = [f"{i},{COMMONS}L{i},{NAMES[i % len(NAMES)]}" for i in range(24)]
    path.write_text("\n".join(["landmark_id,category,supercategory", *rows, ""]))
    return path


def test_help_and_version(hgld):
    code, out, _ = hgld("--help-all")
    assert code == 0
    for verb, (_, summary) in VERBS.items():
        assert verb in out
        assert summary in out
    assert hgld("--version")[:2] == (0, f"hgld, version {__version__}\n")


@pytest.mark.parametrize(
    ("verb", "hint"),
    [("build-hierachy", "Did you mean 'build-hierarchy'?"), ("fly", f"The verbs are: {', '.join(VERBS)}.")],
)
def test_an_unknown_verb_is_answered_with_the_nearest_or_all(hgld, verb, hint):
    code, out, err = hgld(verb)
    assert (code, out) == (EXIT_BAD_INPUT, "")
    assert f"there is no verb {verb!r}. {hint}" in err


def test_a_build_for_people_then_for_machines(hgld, table, tmp_path):
    arguments = ("build-hierarchy", "--names", table, "--out", tmp_path / "out", "--encoder", "lexical")
    code, out, err = hgld(*arguments)
    assert (code, err) == (0, "")
    for stage in ("scrape", "clean", "embed", "cluster", "toplevel", "review", "export", "report"):
        assert f"\n{stage} " in f"\n{out}"
    assert str(tmp_path / "out" / "train_label_to_hierarchical.csv") in out
    code, out, err = hgld(*arguments, "--json")
    assert (code, err) == (0, "")
    build = json.loads(out)
    assert not any(stage["ran"] for stage in build["stages"].values())
    assert build["stages"]["clean"]["counts"]["kept (train)"] == 24
    assert all(Path(file).is_file() for file in build["files"].values())
    labels = tmp_path / "out" / "train_label_to_hierarchical.csv"
    assert hgld("compare", labels, labels)[2] == f"next: hgld review {tmp_path / 'out'}\n"
    record = json.loads((tmp_path / "out" / "provenance.json").read_text())
    record["inputs"].append({"role": "decisions", "file": "ada.yaml"})
    (tmp_path / "out" / "provenance.json").write_text(json.dumps(record))
    after = f"hgld build-shards gldv2 --source RELEASE --labels {tmp_path / 'out'} --out SHARDS"
    assert hgld("compare", tmp_path / "out", labels)[2] == f"next: {after}\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "give exactly one of --sample, --landmarks SPLIT=CSV, --names [SPLIT=]CSV or --classes FILE."),
        (("--sample", "--names", "{table}"), "give exactly one of"),
        (("--names", "{table}", "--names", "train={table}"), "each split has one table"),
        (("--names", "none.csv"), "'none.csv' is not a file"),
        (("--landmarks", "{table}"), "expected SPLIT=CSV, for instance train=train_label_to_category.csv"),
        (("--landmarks", "../x={table}"), "expected SPLIT=CSV"),
        (("--sample", "--groups", "many"), "'many': expected whole numbers from 0 separated by commas"),
        (("--sample", "--route", "ftp"), "route is 'ftp'; expected one of 'api', 'html'"),
        (("--sample", "--out", "{table}"), "is a file"),
    ],
)
def test_options_that_cannot_be_served_are_refused_before_any_work(hgld, table, tmp_path, arguments, message):
    given = [argument.replace("{table}", str(table)) for argument in arguments]
    code, out, err = hgld("build-hierarchy", "--out", tmp_path / "out", *given)
    assert (code, out) == (EXIT_BAD_INPUT, "")
    assert message in err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "Give your mail address or page: --contact you@example.org"),
        (("--contact", "me"), "contact is 'me'; expected a mail address"),
        (("--contact", "a@b.org", "--rate", "50"), "at most 3.33, the documented limit"),
        (("--commons-url", "ftp://x"), "'ftp://x' is not an address"),
    ],
)
def test_a_scrape_that_may_not_begin_says_why(hgld, table, tmp_path, arguments, message):
    code, out, err = hgld("build-hierarchy", "--landmarks", f"train={table}", "--out", tmp_path / "out", *arguments)
    assert (code, out) == (EXIT_BAD_INPUT, "")
    assert message in err
    assert "Traceback" not in err


def test_stopping_says_how_to_go_on(hgld, tmp_path, monkeypatch):
    def stop(*arguments, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr(building, "build_hierarchy", stop)
    code, out, err = hgld("build-hierarchy", "--sample", "--out", tmp_path / "out")
    assert (code, out) == (EXIT_STOPPED, "")
    assert err.strip() == "hgld: stopped; the same command goes on from here."


def commands_of_the_documents():
    """Every ``hgld VERB ...`` in a block of README.md and docs, its lines joined."""
    for document in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]:
        for block in re.findall(r"```(?:sh)?\n(.*?)```", document.read_text(encoding="utf-8"), re.DOTALL):
            for line in block.replace("\\\n", " ").splitlines():
                for command in re.findall(r"(?:^|&& )hgld (.*?)(?=&&|$)", line):
                    words = shlex.split(command, comments=True)
                    yield pytest.param(words, id=f"{document.name}: {' '.join(words[:2])}")


@pytest.mark.parametrize("words", list(commands_of_the_documents()))
def test_the_documents_commands_have_these_verbs_and_options(words):
    command = cli.get_command(click.Context(cli), words[0])
    assert command is not None, words[0]
    known = {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)}
    assert {word.partition("=")[0] for word in words if word.startswith("--")} <= known
