"""The guides for loops of one's own: every program is short, shown and run somewhere; every option they name is one."""

import re
from pathlib import Path

import click
import pytest

from benchmarks.libraries import LOOPS, PROGRAMS, main, make_shards, run, versions
from hgld.cli import cli

DOCS = Path(__file__).parents[1] / "docs"
FILES = sorted(LOOPS.glob("*.py"))


def test_every_program_is_in_the_list_of_those_that_are_run():
    assert {file.stem for file in FILES} == set(PROGRAMS)
    assert main.__doc__


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_programs_are_short_and_shown(file):
    text = file.read_text(encoding="utf-8")
    compile(text, file.name, "exec")
    assert len([line for line in text.splitlines() if line]) < 30
    assert [
        page for page in DOCS.glob("*.md") if f"```{{literalinclude}} loops/{file.name}\n" in page.read_text("utf-8")
    ]


def test_options_that_replace_others_are_there():
    page = (DOCS / "coming-from.md").read_text(encoding="utf-8")
    command = cli.get_command(click.Context(cli), "train")
    assert command is not None
    known = {flag for option in command.params for flag in (*option.opts, *option.secondary_opts)}
    named = set(re.findall(r"--[a-z][a-z-]+", page))
    assert len(named) > 50
    assert named <= known, named - known


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", PROGRAMS)
def test_programs_run(name, tmp_path):
    if versions(PROGRAMS[name].needs) is None:
        pytest.skip(f"{', '.join(PROGRAMS[name].needs)}: not installed")
    make_shards(tmp_path)
    assert run(name, PROGRAMS[name], tmp_path).startswith("ran")
