"""The stored notebooks ran once from top to bottom, are small, are on the site, and still run."""

import re
import shlex
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest

from benchmarks.notebooks import FOLDER, NAMES, program_of, read_notebook
from docs.extensions.notebooks import markdown_of
from tests.rows import each_row

INDEX = (FOLDER.parent / "index.md").read_text(encoding="utf-8")


@each_row("name", NAMES)
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


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("name", NAMES)
def test_notebooks_run_without_errors(name, output, tmp_path, monkeypatch):
    """Commands of hgld run in this process, because other processes would import everything again."""

    def run(words, check):
        if command := re.fullmatch(r"hgld ([^|>]+)(?:\|.*|> (\S+))?", words[-1]):
            said = output(*shlex.split(command[1]))
            if command[2]:
                Path(command[2]).write_text(said)
        else:
            subprocess.run(words, check=check)

    monkeypatch.chdir(tmp_path)
    program = program_of(read_notebook(name)).replace("import subprocess", "")
    exec(program, {"__name__": "__main__", "subprocess": SimpleNamespace(run=run)})
