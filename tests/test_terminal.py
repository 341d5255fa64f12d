"""Control characters in foreign text, such as class names and table cells, are escaped on terminals."""

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hgld.cli import EXIT_CHECK_FAILED
from hgld.cli.output import echo, print_json, print_rich
from hgld.evaluation.report import markdown
from hgld.report_page.latex import escape_latex
from hgld.terminal import printable, printable_json
from tests.hgld.small_dataset import items_of_classes
from tests.hgld.test_stream_bare import facts, write_tar
from tests.interpreter import ROOT
from tests.training.untrained_run import write_run

CLI = ROOT / "hgld" / "cli"
EVIL = "evil\x1b]0;owned\x07\x9b2J\x7f\u202e"
SPELLED = r"evil\x1b]0;owned\x07\x9b2J\x7f\u202e"
COMMANDS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


@pytest.fixture
def shards(tmp_path):
    """Folder with one tar whose class names, and the name of one member, contain control characters."""
    folder = tmp_path / "shards"
    folder.mkdir()
    members = []
    for i, item in enumerate(items_of_classes([2, 2, 2])):
        names = {"names": [f"{EVIL}{item.labels[0]}", "top"], "levels": ["fine", "coarse"], "split": "test"}
        members += [(f"k{i}.jpg", item.data), (f"k{i}.json", facts(item.labels[0], 0, **names))]
    write_tar(folder / "test-000000.tar", [*members, (f"{EVIL}.jpg", b"")])
    (folder.parent / "photo.jpg").write_bytes(members[0][1])
    return folder


def test_control_characters_in_tar_names_are_escaped(hgld, output, shards):
    run, photo = shards.parent / "run", shards.parent / "photo.jpg"
    write_run(run)
    out = output("index", shards)
    assert not COMMANDS.search(out)
    words = ["search", photo, "--checkpoint", run, "--data", shards, "--device", "cpu"]
    code, out, _ = hgld(*words)
    assert (code, SPELLED in out) == (0, True), out
    assert not COMMANDS.search(out)
    out = output(*words, "--json")
    assert not COMMANDS.search(out)
    assert EVIL in out.encode("ascii", "backslashreplace").decode("unicode_escape")
    (shards / f"{EVIL}.txt").write_text("")
    code, out, _ = hgld("verify", shards)
    assert code == EXIT_CHECK_FAILED
    assert SPELLED in "".join(out.split("\n"))
    assert not COMMANDS.search(out)


@given(st.text(st.characters(), max_size=60))
def test_only_control_characters_are_escaped(text):
    shown = printable(text)
    assert not COMMANDS.search(shown)
    shown.encode()  # fails if a surrogate is left
    assert (shown == text) is not bool(COMMANDS.search(text) or re.search("[\ud800-\udfff]", text))
    assert [shown.count(kept) for kept in "\n\té\u00a0"] == [text.count(kept) for kept in "\n\té\u00a0"]
    assert not COMMANDS.search(markdown(text) + escape_latex(text))
    assert json.loads(printable_json(json.dumps(text, ensure_ascii=False))) == text


def test_every_print_function_escapes_control_characters(capsys):
    echo(EVIL)
    echo(EVIL, err=True)
    print_rich(EVIL, width=200)
    print_json({EVIL: [EVIL]})
    out, err = capsys.readouterr()
    assert not COMMANDS.search(out + err)
    assert out.count(SPELLED) == 2
    assert json.loads(out.split("\n", 2)[2]) == {EVIL: [EVIL]}


def test_subcommands_print_through_the_output_module_alone():
    files = {file.name for file in CLI.glob("*.py") if re.search(r"click\.s?echo|\bprint\(", file.read_text())}
    assert files == {"__init__.py", "output.py"}  # __init__.py only looks for click.echo in a traceback
