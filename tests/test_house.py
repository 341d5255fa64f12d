"""The rules of the house, held by the tools that know them: style, types, import contracts, names, sizes, speed."""

import ast
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from hgld.cli import VERBS

ROOT = Path(__file__).resolve().parent.parent
ROOMS = ("hgld", "pipelines", "training", "data_cards")
SOURCES = sorted(p for room in ROOMS for p in (ROOT / room).rglob("*.py"))


def run_tool(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", *command], cwd=ROOT, capture_output=True, text=True, check=False)


@pytest.mark.checks
@pytest.mark.parametrize("command", [("ruff", "check", "."), ("ruff", "format", "--check", ".")])
def test_style(command):
    result = run_tool(*command)
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.checks
def test_types():
    result = run_tool("pyright", "--pythonpath", sys.executable)
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.checks
def test_rooms_import_only_what_they_may():
    result = _lint_imports()
    assert result.returncode == 0, result.stdout + result.stderr


def test_the_contract_names_the_whole_library():
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"][
        "contracts"
    ]
    (sources,) = [contract["source_modules"] for contract in contracts if contract["type"] == "forbidden"]
    here = {path.stem for path in (ROOT / "hgld").iterdir() if path.suffix == ".py" or (path / "__init__.py").is_file()}
    assert {f"hgld.{name}" for name in here - {"__init__", "__main__", "cli", *ROOMS}} == set(sources)


def _lint_imports() -> subprocess.CompletedProcess[str]:
    command = "from importlinter.cli import lint_imports_command; lint_imports_command()"
    return subprocess.run([sys.executable, "-c", command], cwd=ROOT, capture_output=True, text=True, check=False)


def test_rooms_and_files_say_what_they_hold():
    silent = {"utils", "util", "lib", "common", "helpers", "helper", "base", "engine", "core", "misc"}
    named = [p for p in SOURCES if silent & {p.stem, *p.relative_to(ROOT).parts[:-1]}]
    assert not named, f"these names say nothing: {named}"


def _imports(path: Path) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return found


def _who_imports(*modules: str) -> set[str]:
    return {
        p.relative_to(ROOT).as_posix()
        for p in SOURCES
        if any(name == m or name.startswith(m + ".") for name in _imports(p) for m in modules)
    }


def test_only_these_touch_the_network():
    clients = {"pipelines/web.py", "pipelines/download.py"}
    assert _who_imports("requests", "urllib3", "http", "socket", "urllib.request", "aiohttp") <= clients
    assert _who_imports("fsspec") <= {"hgld/data/storage.py", "pipelines/shards/output.py"}


def test_only_distributed_touches_process_groups():
    assert _who_imports("torch.distributed") <= {"hgld/distributed.py"}


def test_only_the_command_line_parses_arguments():
    parsing = _who_imports("argparse", "click", "optparse", "getopt")
    assert all(path.startswith("hgld/cli/") for path in parsing), parsing


def test_nothing_unpickles():
    assert not _who_imports("cPickle", "dill", "cloudpickle", "joblib", "shelve", "marshal")
    for path in SOURCES:
        text = path.read_text(encoding="utf-8")
        assert not re.search(r"\bpickle\.(load|loads|Unpickler)\b|from pickle import", text), path
        assert not re.search(r"allow_pickle\s*=\s*True|weights_only\s*=\s*False", text), path


def test_no_absolute_place_of_anyones_machine():
    tests = [path for path in (ROOT / "tests").rglob("*.py") if path != Path(__file__).resolve()]
    for path in [*SOURCES, *tests, ROOT / "README.md"]:
        assert not re.search(r"[\"'\s(](/home/|/root/|/Users/|/mnt/)\w*", path.read_text(encoding="utf-8")), path


HEAVY = (
    *("torch", "torchvision", "timm", "open_clip", "numpy", "scipy", "sklearn", "numba", "polars", "faiss", "ray"),
    *(
        "PIL",
        "cv2",
        "matplotlib",
        "rich",
        "jinja2",
        "yaml",
        "lxml",
        "bs4",
        "requests",
        "fsspec",
        "starlette",
        "asyncio",
    ),
)


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], *([verb, "--help"] for verb in VERBS)], ids=" ".join)
def test_help_imports_nothing_heavy(arguments):
    result, heavy = _imported(arguments)
    assert result.returncode == 0, result.stderr
    assert "hgld" in result.stdout
    assert heavy == "[]"


@pytest.mark.parametrize("typed", ["bu", "train happier-", "train x --loss Su", "evaluate --metrics H", "datasets s"])
def test_completion_imports_nothing_heavy(typed):
    asked = {"COMP_LINE": f"hgld {typed}", "COMP_WORDBREAKS": " =@", "_HGLD_COMPLETE": "bash_complete"}
    result, heavy = _imported([], asked)
    assert result.stdout.startswith("plain,"), result.stderr
    assert heavy == "[]"


def _imported(arguments: list[str], variables: dict[str, str] | None = None):
    """The finished command, and the heavy modules that it imported."""
    program = (
        "import sys\nfrom hgld.cli import main\n"
        f"try:\n    main({arguments!r})\nexcept SystemExit as stop:\n    assert not stop.code\n"
        f"print([m for m in {HEAVY!r} if m in sys.modules], file=sys.stderr)"
    )
    result = subprocess.run(
        [sys.executable, "-c", program],
        cwd=ROOT,
        env=os.environ | (variables or {}),
        capture_output=True,
        text=True,
        check=False,
    )
    return result, result.stderr.strip()


def test_what_goes_to_terminals_goes_through_one_door():
    assert _who_imports("rich.progress", "tqdm") <= {"hgld/cli/output.py", "training/progress.py"}
    assert _who_imports("rich.console") <= {"hgld/cli/output.py", "training/progress.py"}
    for path in SOURCES:
        assert not re.search(r"sys\.(stdout|stderr)\.write\(", path.read_text(encoding="utf-8")), path
