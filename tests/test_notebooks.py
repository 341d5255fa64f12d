"""The stored notebooks ran once from top to bottom, are small, are on the site, and still run."""

import os
import subprocess
import sys

import pytest

from benchmarks.notebooks import FOLDER, NAMES, cleaned, program_of, read_notebook
from docs.extensions.notebooks import markdown_of
from tests.forked import together

ENVIRONMENT = os.environ | {"PYTHONPATH": str(FOLDER.parents[1])}
INDEX = (FOLDER.parent / "index.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", NAMES)
def test_stored_notebooks_ran_once_from_top_to_bottom(name):
    notebook = read_notebook(name)
    code = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in code] == list(range(1, len(code) + 1))
    kinds = {output["output_type"] for cell in code for output in cell["outputs"]}
    assert kinds <= {"stream", "execute_result", "display_data"}
    assert (FOLDER / f"{name}.ipynb").stat().st_size < 150_000
    shown = markdown_of(notebook)
    assert "/tmp" not in shown
    assert "\x1b" not in shown
    assert shown.startswith("# ")
    compile(program_of(notebook), name, "exec")
    assert f"notebooks/{name}\n" in INDEX


def test_notebook_names_equal_their_files():
    assert {file.stem for file in FOLDER.glob("*.ipynb")} == set(NAMES)


def cell(kind, source, *outputs):
    return {"cell_type": kind, "source": source, "metadata": {"took": 3}, "outputs": list(outputs)}


def test_notebook_shell_commands_become_subprocess_calls():
    code = ["if 1:\n", "    !echo {name} \\\n", "        again\n", "print('!')"]
    program = program_of({"cells": [cell("markdown", ["!no"]), cell("code", code)]})
    calls = []
    exec(program.replace("import subprocess", ""), {"name": "x", "subprocess": Recorder(calls)})
    assert [call[-1].split() for call in calls] == [["echo", "x", "again"]]


class Recorder:
    def __init__(self, calls):
        self.run = lambda words, check: calls.append(words)


def test_cleaned_notebooks_omit_varying_output_and_use_longer_fences_around_backticks():
    printed = {"output_type": "stream", "name": "stdout", "text": ["/tmp/x/a\n"]}
    warned = printed | {"name": "stderr"}
    shown = {
        "output_type": "execute_result",
        "metadata": {"a": 1},
        "data": {"text/plain": "t", "text/html": "<b>h</b>"},
    }
    notebook = {"cells": [cell("code", ["'```'"], printed, warned, shown)], "metadata": {"kernelspec": {}, "x": 1}}
    kept = cleaned(notebook, "/tmp/x")
    assert kept["metadata"] == {"kernelspec": {}, "language_info": {"name": "python"}}
    assert kept["cells"][0]["metadata"] == {}
    assert [output.get("text", output.get("data")) for output in kept["cells"][0]["outputs"]] == [
        ["a\n"],
        {"text/html": "<b>h</b>"},
    ]
    assert markdown_of(kept).startswith("````cell\n'```'\n````\n\n```{code-block} text\n:class: output\n\na\n```")


SAMPLE = "build-hierarchy --sample --encoder lexical --out labels"  # first command of most notebooks


@pytest.fixture(scope="module")
def command(tmp_path_factory):
    """Folder with a command ``hgld`` that builds the sample once and then copies the result, which saves time."""
    folder = tmp_path_factory.mktemp("command")
    hgld = f"{sys.executable} -m hgld"
    said = subprocess.run(
        [*hgld.split(), *SAMPLE.split()], cwd=folder, env=ENVIRONMENT, capture_output=True, check=True
    )
    (folder / "said").write_bytes(said.stdout)
    copied = f'if [ "$*" = "{SAMPLE}" ]; then cp -r {folder}/labels labels && exec cat {folder}/said; fi'
    (folder / "hgld").write_text(f'#!/bin/sh\n{copied}\nexec {hgld} "$@"\n')
    (folder / "hgld").chmod(0o755)
    return folder


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", NAMES)
def test_notebooks_run_without_errors(name, command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    paths = ENVIRONMENT | {"PATH": f"{command}{os.pathsep}{os.environ['PATH']}"}
    program = program_of(read_notebook(name))
    done = together(exec, program, {"__name__": "__main__"}, folder=tmp_path, count=1, timeout=800, environment=paths)
    assert done.returncode == 0, done.stderr
