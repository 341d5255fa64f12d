"""Control characters in foreign text, such as class names and table cells, are escaped on terminals."""

import io
import json
import re
import tarfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hgld.cli import EXIT_CHECK_FAILED
from hgld.cli.output import echo, print_json, print_rich
from hgld.evaluation.report import markdown
from hgld.report_page.latex import escape_latex
from hgld.terminal import printable, printable_json
from tests.hgld.small_dataset import items_of_classes
from tests.training.untrained_run import write_run

CLI = Path(__file__).parents[1] / "hgld" / "cli"
EVIL = "evil\x1b]0;owned\x07\x9b2J\x7f\u202e"
SPELLED = r"evil\x1b]0;owned\x07\x9b2J\x7f\u202e"
COMMANDS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


@pytest.fixture
def shards(tmp_path) -> Path:
    """Folder with one tar whose class names, and the name of one member, contain control characters."""
    folder = tmp_path / "shards"
    folder.mkdir()
    with tarfile.open(folder / "test-000000.tar", "w") as tar:
        for i, item in enumerate(items_of_classes([2, 2, 2], ["test"])):
            names = [f"{EVIL}{item.labels[0]}", "top"]
            facts = {"labels": [item.labels[0], 0], "names": names, "split": "test", "source": "x"}
            text = json.dumps(facts | {"levels": ["fine", "coarse"]})
            for name, data in ((f"k{i}.jpg", item.data), (f"k{i}.json", text.encode())):
                member = tarfile.TarInfo(name)
                member.size = len(data)
                tar.addfile(member, io.BytesIO(data))
        tar.addfile(tarfile.TarInfo(f"{EVIL}.jpg"))
        (folder.parent / "photo.jpg").write_bytes(items_of_classes([1])[0].data)
    return folder


def test_control_characters_in_tar_names_are_escaped(hgld, shards):
    run, photo = shards.parent / "run", shards.parent / "photo.jpg"
    write_run(run)
    code, out, _ = hgld("index", shards)
    assert code == 0, out
    assert not COMMANDS.search(out)
    words = ["search", photo, "--checkpoint", run, "--data", shards, "--device", "cpu"]
    code, out, _ = hgld(*words)
    assert (code, SPELLED in out) == (0, True), out
    assert not COMMANDS.search(out)
    code, out, _ = hgld(*words, "--json")
    assert (code, COMMANDS.search(out)) == (0, None)
    assert EVIL in out.encode("ascii", "backslashreplace").decode("unicode_escape")
    (shards / f"{EVIL}.txt").write_text("")
    code, out, _ = hgld("verify", shards)
    assert code == EXIT_CHECK_FAILED
    assert SPELLED in "".join(out.split("\n"))
    assert not COMMANDS.search(out)


def test_control_characters_in_table_cells_are_escaped(hgld, tmp_path):
    head, rows = "landmark_id,hierarchical_label\n", enumerate(zip([EVIL] * 3 + ["lake"] * 2, "xxyyy", strict=True))
    for file, cells in zip(
        ("a.csv", "b.csv"), zip(*((f"{i},{a}", f"{i},{b}") for i, (a, b) in rows), strict=True), strict=True
    ):
        (tmp_path / file).write_text(head + "\n".join(cells), encoding="utf-8")
    code, out, _ = hgld("compare", tmp_path / "a.csv", tmp_path / "b.csv")
    assert (code, COMMANDS.search(out)) == (0, None)
    assert r"evil\x1b" in out


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
