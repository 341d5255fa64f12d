"""The guides to custom training loops: every program is short, is on a page and runs; all options exist."""

import re
import runpy

import click
import pytest

from benchmarks.libraries import LOOPS, PROGRAMS, main, make_shards, run, versions
from hgld.cli import cli
from tests.forked import together
from tests.interpreter import ROOT
from tests.rows import each_row

DOCS = ROOT / "docs"
FILES = sorted(LOOPS.glob("*.py"))


def test_every_loop_program_is_in_the_list_of_run_programs():
    assert {file.stem for file in FILES} == set(PROGRAMS)
    assert main.__doc__


@each_row("file", FILES)
def test_loop_programs_are_short_and_shown_in_docs(file):
    text = file.read_text(encoding="utf-8")
    compile(text, file.name, "exec")
    assert len([line for line in text.splitlines() if line]) < 30
    shown = f"```{{literalinclude}} ../loops/{file.name}\n"
    assert [page for page in DOCS.rglob("*.md") if shown in page.read_text("utf-8")]


def test_options_in_migration_guide_exist():
    page = (DOCS / "how-to/coming-from.md").read_text(encoding="utf-8")
    command = cli.get_command(click.Context(cli), "train")
    assert command is not None
    known = {flag for option in command.params for flag in (*option.opts, *option.secondary_opts)}
    named = set(re.findall(r"--[a-z][a-z-]+", page))
    assert len(named) > 50
    assert named <= known, named - known


@pytest.fixture(scope="module")
def folder(module_path):
    """A folder with the shards that the programs read."""
    make_shards(module_path)
    return module_path


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", PROGRAMS)
def test_loop_programs_run(name, folder, monkeypatch):
    program = PROGRAMS[name]
    if versions(program.needs) is None:
        pytest.skip(f"{', '.join(program.needs)}: not installed")
    if program.module:  # a launcher such as torchrun starts this program
        assert run(name, program, folder).startswith("ran")
        return
    monkeypatch.chdir(folder)
    together(runpy.run_path, str(LOOPS / f"{name}.py"), None, "__main__", folder=folder, count=1, timeout=800)
