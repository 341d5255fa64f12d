"""The notebooks of the guides: they ran from top to bottom, are small, are shown on the site, and still run."""

import os
import subprocess
import sys

import pytest

from benchmarks.notebooks import FOLDER, NAMES, cleaned, program_of, read_notebook
from docs.extensions.notebooks import markdown_of

INDEX = (FOLDER.parent / "index.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", NAMES)
def test_what_is_kept_ran_once_from_top_to_bottom(name):
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


def test_the_names_are_the_files():
    assert {file.stem for file in FOLDER.glob("*.ipynb")} == set(NAMES)


def cell(kind, source, *outputs):
    return {"cell_type": kind, "source": source, "metadata": {"took": 3}, "outputs": list(outputs)}


def test_commands_of_the_shell_become_calls():
    code = ["if 1:\n", "    !echo {name} \\\n", "        again\n", "print('!')"]
    program = program_of({"cells": [cell("markdown", ["!no"]), cell("code", code)]})
    calls = []
    exec(program.replace("import subprocess", ""), {"name": "x", "subprocess": Recorder(calls)})
    assert [call[-1].split() for call in calls] == [["echo", "x", "again"]]


class Recorder:
    def __init__(self, calls):
        self.run = lambda words, check: calls.append(words)


def test_what_differs_from_run_to_run_is_not_kept_and_fences_hold_fences():
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


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", NAMES)
def test_notebooks_run(name, tmp_path):
    (tmp_path / "hgld").write_text(f'#!/bin/sh\nexec {sys.executable} -m hgld "$@"\n')
    (tmp_path / "hgld").chmod(0o755)
    paths = {"PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}", "PYTHONPATH": str(FOLDER.parents[1])}
    (tmp_path / "work").mkdir()
    command = [sys.executable, "-c", program_of(read_notebook(name))]
    env = os.environ | paths | {"MPLBACKEND": "Agg"}
    done = subprocess.run(command, cwd=tmp_path / "work", env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
