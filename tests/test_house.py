"""Rules for the source code: style, types, imports, names, sizes, and the speed of --help."""

import ast
import functools
import json
import re
import sys
import tokenize
import tomllib
from pathlib import Path

import grimp  # installed with import-linter
import networkx  # installed with torch
import pytest

import hgld
from hgld.cli import VERBS
from tests.interpreter import ROOT, python
from tests.rows import each_row

ROOMS = ("hgld", "pipelines", "training", "data_cards")
SOURCES = sorted(p for room in ROOMS for p in (ROOT / room).rglob("*.py"))


@pytest.mark.checks
@each_row("command", [("ruff", "check", "."), ("ruff", "format", "--check", ".")])
def test_ruff_finds_no_errors(command):
    python("-m", *command)


@pytest.mark.checks
def test_pyright_finds_no_errors():
    python("-m", "pyright", "--pythonpath", sys.executable)


@pytest.mark.checks
def test_import_contracts_hold():
    python("-c", "from importlinter.cli import lint_imports_command; lint_imports_command()")


def test_import_contract_lists_every_library_module():
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"][
        "contracts"
    ]
    (sources,) = [contract["source_modules"] for contract in contracts if contract["type"] == "forbidden"]
    here = {path.stem for path in (ROOT / "hgld").iterdir() if path.suffix == ".py" or (path / "__init__.py").is_file()}
    assert {f"hgld.{name}" for name in here - {"__init__", "__main__", "cli", *ROOMS}} == set(sources)


@functools.cache
def _tree(path):
    return ast.parse(path.read_text(encoding="utf-8"))


def _files_with(pattern: str) -> set[str]:
    found = re.compile(pattern, re.MULTILINE)
    return {p.relative_to(ROOT).as_posix() for p in SOURCES if found.search(p.read_text(encoding="utf-8"))}


def _who_imports(*modules: str) -> set[str]:
    packages = [module.rpartition(".") for module in modules if "." in module]
    named = [re.escape(module) for module in modules] + [rf"{a} import .*\b{name}" for a, _, name in packages]
    return _files_with(rf"^\s*(?:from|import) (?:{'|'.join(named)})\b")


def test_packages_import_each_other_as_parts_of_hgld():
    """A user may have a module ``training`` or ``data_cards``, which Python would import in place of ours."""
    assert not _who_imports(*ROOMS[1:])


@each_row("pattern", ["PolarsError", r"\bpl\.(read|scan)_\w+\("])
def test_only_tables_module_calls_polars_readers_and_catches_their_errors(pattern):
    """Polars panics on some damaged parquet files, expands glob characters, and decodes bombs; the module does not."""
    assert _files_with(pattern) == {"hgld/tables.py"}


@pytest.mark.checks
def test_only_allowed_modules_import_network_clients():
    clients = {"pipelines/web.py", "pipelines/download.py", "hgld/data/http_files.py"}
    assert _who_imports("requests", "urllib3", "http", "socket", "urllib.request", "aiohttp") <= clients
    assert _who_imports("fsspec") <= {"hgld/data/remote_files.py", "pipelines/shards/output.py"}


def test_only_distributed_module_imports_torch_distributed():
    assert _who_imports("torch.distributed") <= {"hgld/distributed.py"}


def test_only_cli_parses_arguments_and_only_terminal_modules_show_progress():
    assert all(path.startswith("hgld/cli/") for path in _who_imports("argparse", "click", "optparse", "getopt"))
    assert _who_imports("rich.progress", "tqdm") <= {"hgld/terminal.py", "training/progress.py"}


def test_no_module_has_a_meaningless_name():
    silent = {"utils", "util", "lib", "common", "helpers", "helper", "base", "engine", "core", "misc"}
    assert not [p for p in SOURCES if silent & {p.stem, *p.relative_to(ROOT).parts[:-1]}]


def test_docstrings_do_not_begin_with_relative_pronouns():
    assert not _files_with(r'^\s*r?"""(What|Which|How|Where|Who|Whose|Whether|Of|That|When|Why|If)\b')


def test_no_module_unpickles():
    assert not _who_imports("cPickle", "dill", "cloudpickle", "joblib", "shelve", "marshal")
    for path in SOURCES:
        text = path.read_text(encoding="utf-8")
        assert not re.search(r"\bpickle\.(load|loads|Unpickler)\b|from pickle import", text), path
        assert not re.search(r"allow_pickle\s*=\s*True|weights_only\s*=\s*False", text), path


def test_no_source_contains_absolute_user_paths():
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


def test_help_imports_nothing_heavy():
    for arguments, (code, out, heavy) in _imported(
        [["--help"], ["--version"], *([verb, word] for verb in VERBS for word in ("--help", "--help-all"))]
    ).items():
        assert (code, heavy) == (0, []), arguments
        assert "hgld" in out, arguments


def test_completion_imports_nothing_heavy():
    typed = {  # words on the command line: first suggested completion
        "hgld bu": "build-hierarchy",
        "hgld train happier-s": "happier-s",
        "hgld train x --loss Sup": "Sup",
        "hgld evaluate --metrics H-AP,N": "H-AP,NDCG",
        "hgld datasets s": "sop",
    }
    asked = [
        {"COMP_WORDS": line, "COMP_CWORD": str(len(line.split()) - 1), "_HGLD_COMPLETE": "bash_complete"}
        for line in typed
    ]
    for (line, first), (_, out, heavy) in zip(typed.items(), _imported(asked).values(), strict=True):
        assert out.startswith(f"plain,{first}"), line
        assert set(heavy) <= {"yaml"}, line  # recipe names are in a YAML file


def _imported(calls):
    """Call the command several times in one process; return exit code, output and imported heavy modules per call.

    A call is a list of arguments, or the environment variables with which a shell requests completions.
    """
    program = f"""
import contextlib, io, json, os, sys
from hgld.cli import main
for call in {calls!r}:
    out = io.TextIOWrapper(io.BytesIO(), "utf-8", write_through=True)  # click writes completions as bytes
    code = 0
    if isinstance(call, dict):
        os.environ.update(call)
    with contextlib.redirect_stdout(out):
        try:
            main([] if isinstance(call, dict) else call)
        except SystemExit as stop:
            code = stop.code or 0
    print(json.dumps([str(call), code, out.buffer.getvalue().decode(), [m for m in {HEAVY!r} if m in sys.modules]]))
"""
    told = [json.loads(line) for line in python("-c", program).stdout.splitlines()]
    assert len(told) == len(calls)
    return {call: (code, out, heavy) for call, code, out, heavy in told}


# -- import cycles -----------------------------------------------------------------------------------------------------


def test_no_import_cycles():
    imports = grimp.build_graph("hgld", exclude_type_checking_imports=True, cache_dir=None)
    graph = networkx.DiGraph(("hgld", module) for module in hgld._EXPORTS.values())
    graph.add_edges_from((one, to) for one in imports.modules for to in imports.find_modules_directly_imported_by(one))
    circles = [circle for circle in networkx.strongly_connected_components(graph) if len(circle) > 1]
    assert not [sorted(circle) for circle in circles]


# -- sizes ------------------------------------------------------------------------------------------------------------

LAYOUT = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}


def _tokens(path):
    """Return the number of tokens of a module's code, without docstrings, comments and whitespace."""
    docstrings = {
        (node.body[0].lineno, node.body[0].col_offset)
        for node in ast.walk(_tree(path))
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        and ast.get_docstring(node) is not None
    }
    with tokenize.open(path) as file:
        return sum(
            one.type not in LAYOUT and one.start not in docstrings for one in tokenize.generate_tokens(file.readline)
        )


@pytest.mark.checks
def test_no_folder_exceeds_its_token_ceiling():
    """A change beyond the ceiling in CONTRIBUTING.md must remove as many tokens elsewhere, or raise the ceiling."""
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    ceilings = {
        name: int(most.replace(",", ""))
        for name, most in re.findall(r"^\| `([\w/]+)` \| ([\d,]+) \|$", text, re.MULTILINE)
    }
    sizes = dict.fromkeys(ceilings, 0)
    rooms = ("hgld", "pipelines", "training", "tests", "benchmarks")
    for path in (path for room in rooms for path in (ROOT / room).rglob("*.py")):
        parts = path.relative_to(ROOT).parts
        room = "/".join(parts[: 1 if len(parts) < 3 or parts[0] in ("tests", "benchmarks") else 2])
        assert room in sizes, f"CONTRIBUTING.md has no ceiling for {room}"
        sizes[room] += _tokens(path)
    above = {room: (size, ceilings[room]) for room, size in sizes.items() if size > ceilings[room]}
    assert not above, f"tokens, and the ceiling: {above}"
