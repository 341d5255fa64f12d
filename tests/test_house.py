"""Rules for the source code: style, types, imports, names, sizes, and the speed of --help."""

import ast
import functools
import json
import re
import subprocess
import sys
import tokenize
import tomllib
from pathlib import Path

import networkx  # installed with torch
import pytest

import hgld
from hgld.cli import VERBS

ROOT = Path(__file__).resolve().parent.parent
ROOMS = ("hgld", "pipelines", "training", "data_cards")
SOURCES = sorted(p for room in ROOMS for p in (ROOT / room).rglob("*.py"))


def run_tool(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", *command], cwd=ROOT, capture_output=True, text=True, check=False)


@pytest.mark.checks
@pytest.mark.parametrize("command", [("ruff", "check", "."), ("ruff", "format", "--check", ".")])
def test_ruff_finds_no_errors(command):
    result = run_tool(*command)
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.checks
def test_pyright_finds_no_errors():
    result = run_tool("pyright", "--pythonpath", sys.executable)
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.checks
def test_import_contracts_hold():
    result = _lint_imports()
    assert result.returncode == 0, result.stdout + result.stderr


def test_import_contract_lists_every_library_module():
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"][
        "contracts"
    ]
    (sources,) = [contract["source_modules"] for contract in contracts if contract["type"] == "forbidden"]
    here = {path.stem for path in (ROOT / "hgld").iterdir() if path.suffix == ".py" or (path / "__init__.py").is_file()}
    assert {f"hgld.{name}" for name in here - {"__init__", "__main__", "cli", *ROOMS}} == set(sources)


def _lint_imports() -> subprocess.CompletedProcess[str]:
    command = "from importlinter.cli import lint_imports_command; lint_imports_command()"
    return subprocess.run([sys.executable, "-c", command], cwd=ROOT, capture_output=True, text=True, check=False)


@functools.cache
def _tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


@functools.cache
def _nodes(path: Path) -> list[ast.AST]:
    """Return all nodes of a module but expressions inside expressions, which hold no import."""
    found: list[ast.AST] = []
    ahead: list[ast.AST] = [_tree(path)]
    while ahead:
        for node in ast.iter_child_nodes(ahead.pop()):
            found.append(node)
            if not isinstance(node, ast.expr):
                ahead.append(node)
    return found


@functools.cache
def _imports(path: Path) -> set[str]:
    found: set[str] = set()
    for node in _nodes(path):
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


def test_packages_import_each_other_as_parts_of_hgld():
    """A user may have a module ``training`` or ``data_cards``, which Python would import in place of ours."""
    named = re.compile(rf"^\s*(from|import) ({'|'.join(ROOMS[1:])})\b", re.MULTILINE)
    assert not [path for path in SOURCES if named.search(path.read_text(encoding="utf-8"))]


def test_only_tables_module_refers_to_polars_errors():
    """Polars panics on some damaged parquet files. The tables module turns its errors and panics into one type."""
    naming = {
        path.relative_to(ROOT).as_posix() for path in SOURCES if "PolarsError" in path.read_text(encoding="utf-8")
    }
    assert naming == {"hgld/tables.py"}


def test_only_tables_module_calls_polars_readers():
    """The readers of the tables module do not expand glob characters, and check the footer before decoding."""
    reading = re.compile(r"\bpl\.(read|scan)_\w+\(")
    names = {path.relative_to(ROOT).as_posix() for path in SOURCES if reading.search(path.read_text(encoding="utf-8"))}
    assert names <= {"hgld/tables.py"}


@pytest.mark.checks
def test_only_allowed_modules_import_network_clients():
    clients = {"pipelines/web.py", "pipelines/download.py", "hgld/data/http_files.py"}
    assert _who_imports("requests", "urllib3", "http", "socket", "urllib.request", "aiohttp") <= clients
    assert _who_imports("fsspec") <= {"hgld/data/remote_files.py", "pipelines/shards/output.py"}


def test_only_distributed_module_imports_torch_distributed():
    assert _who_imports("torch.distributed") <= {"hgld/distributed.py"}


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


def _imported(calls: list) -> dict[str, tuple[int, str, list[str]]]:
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
    result = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    told = [json.loads(line) for line in result.stdout.splitlines()]
    assert len(told) == len(calls)
    return {call: (code, out, heavy) for call, code, out, heavy in told}


# -- import cycles -----------------------------------------------------------------------------------------------------


def _module_of(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    parts = parts if parts[0] == "hgld" else ("hgld", *parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {_module_of(path) for path in SOURCES}


def _imported_modules(path: Path) -> set[str]:
    """Return the modules of hgld that a module imports, at its top or in functions, but not only for type checkers."""
    own, nodes = _module_of(path), _nodes(path)
    package = own if path.name == "__init__.py" else own.rpartition(".")[0]
    blocks = [node for node in nodes if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"]
    for_types = {node for block in blocks for statement in block.body for node in ast.walk(statement)}
    names: set[str] = set()
    for node in set(nodes) - for_types:
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            above = package.rsplit(".", node.level - 1)[0] if node.level else ""
            base = ".".join(filter(None, (above, node.module)))
            inner = {alias.name: f"{base}.{alias.name}" for alias in node.names}
            names |= {whole if whole in MODULES else base for whole in inner.values()}
    lazy = set(hgld._EXPORTS.values()) if own == "hgld" else set()
    return ((names & MODULES) | lazy) - {own}


def test_no_import_cycles():
    graph = networkx.DiGraph((_module_of(path), other) for path in SOURCES for other in _imported_modules(path))
    circles = [circle for circle in networkx.strongly_connected_components(graph) if len(circle) > 1]
    assert not [sorted(circle) for circle in circles]


# -- sizes ------------------------------------------------------------------------------------------------------------

LAYOUT = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}


def _tokens(path: Path) -> int:
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
