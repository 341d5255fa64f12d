"""Mutation testing: plant forty random small bugs, and find the fast test that catches each.

Run with: python benchmarks/mutations.py --work DIR [--count 40] [--seed 0] [--nearest] [--only FILE:LINE]

The program chooses random lines of the losses, metrics, protocols, samplers, stages and the training loop. A line must
have arithmetic, a comparison or a condition. One operator of the line is replaced (``<`` by ``<=``, ``+`` by ``-``,
``and`` by ``or``, a condition by its negation).

Every mutation is tried in a copy of the tree. The ten test files nearest to the module by name and by imports run
first, then the rest of the fast suite unless ``--nearest`` is given. The run ends when a test fails that passes without
the mutation. If a run takes over ``--limit`` seconds, the mutation counts as caught, because it made an endless loop.
Results are kept in DIR, so that the same call resumes.
"""

import ast
import hashlib
import json
import math
import os
import re
import shutil
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, cast

from measured import head, make_parser, row  # a module beside this script

ROOT = Path(__file__).resolve().parents[1]
MUTATED = (
    "hgld/losses/**/*.py",
    "hgld/evaluation/**/*.py",
    "hgld/relevance.py",
    "hgld/samplers/**/*.py",
    "pipelines/stage.py",
    "pipelines/hierarchy/**/*.py",
    "pipelines/shards/**/*.py",
    "training/checkpoint.py",
    "training/state.py",
    "training/step.py",
    "training/loop.py",
)
NEAR = 10  # number of test files nearest to the mutated module, which run first
FAILED = r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$"
_BOTH_WAYS = (
    *((ast.Lt, ast.LtE), (ast.Gt, ast.GtE), (ast.Eq, ast.NotEq), (ast.Is, ast.IsNot), (ast.In, ast.NotIn)),
    *((ast.And, ast.Or), (ast.Add, ast.Sub), (ast.Mult, ast.Div), (ast.BitAnd, ast.BitOr), (ast.LShift, ast.RShift)),
)
SWAPS: dict[type[ast.AST], Any] = {
    **{one: other for pair in _BOTH_WAYS for one, other in (pair, pair[::-1])},
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.FloorDiv,
    ast.Pow: ast.Mult,
    ast.MatMult: ast.Add,
    ast.BitXor: ast.BitAnd,
}


@dataclass(frozen=True)
class Mutation:
    """One replacement in a file: position in bytes, old text and new text; ``place`` numbers equal replacements."""

    file: str
    line: int
    start: int
    end: int
    before: str
    after: str
    place: int

    @property
    def key(self) -> str:
        return f"{self.file} {self.before} -> {self.after} ({self.place})"

    def __str__(self) -> str:
        return f"{self.file}:{self.line} {self.before} -> {self.after}"


@cache
def names_of_text() -> set[str]:
    """Return the module constants that hold text, such as file names."""
    found: set[str] = set()
    for path in (path for room in ("hgld", "pipelines", "training") for path in (ROOT / room).rglob("*.py")):
        for node in ast.parse(path.read_bytes()).body:
            if isinstance(node, ast.Assign) and "'" in ast.unparse(node.value):
                found |= {name.id for target in node.targets for name in ast.walk(target) if isinstance(name, ast.Name)}
    return found


def is_joined(node: ast.AST) -> bool:
    """Tell whether a node is text or a list, whose ``+`` and ``/`` are not arithmetic."""
    if isinstance(node, ast.Constant):
        return isinstance(node.value, str)
    if isinstance(node, ast.Name):
        return node.id in names_of_text()
    return isinstance(node, (ast.JoinedStr, ast.List, ast.ListComp, ast.Tuple))


def mutated(node: Any) -> ast.AST | None:
    """Return a copy of a node with another operator, or None if it has no operator to replace."""
    match node:
        case ast.Compare(ops=[first, *others]):
            return ast.Compare(node.left, [SWAPS[type(first)](), *others], node.comparators)
        case ast.BoolOp():
            return ast.BoolOp(SWAPS[type(node.op)](), node.values)
        case ast.BinOp() if not (is_joined(node.left) or is_joined(node.right)):
            return ast.BinOp(node.left, SWAPS[type(node.op)](), node.right)
        case ast.UnaryOp(op=ast.Not()):
            return node.operand
        case ast.UnaryOp(op=ast.USub()) if not isinstance(node.operand, ast.Constant):
            return node.operand
        case ast.AugAssign() if not is_joined(node.value):
            return ast.AugAssign(node.target, SWAPS[type(node.op)](), node.value)
    return None


def sites(tree: ast.AST) -> Iterator[tuple[Any, Any]]:
    """Yield (node, replacement) for every possible mutation, without annotations, messages and asserts."""
    for name, value in ast.iter_fields(tree):
        if name in {"annotation", "returns", "decorator_list"}:
            continue
        node: Any
        for node in value if isinstance(value, list) else [value]:
            if not isinstance(node, ast.AST) or isinstance(node, (ast.JoinedStr, ast.Raise, ast.Assert)):
                continue
            other = mutated(node)
            if other is None and name == "test":
                other = ast.UnaryOp(ast.Not(), cast(Any, node))
            if other is not None:
                yield node, other
            yield from sites(node)


def mutations_of(path: Path) -> Iterator[Mutation]:
    """Yield every mutation of a file."""
    source = path.read_bytes()
    starts = [0]
    for line in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    alike: Counter[tuple[str, str]] = Counter()
    for node, other in sites(ast.parse(source)):
        if not isinstance(node, (ast.expr, ast.stmt)) or node.end_lineno is None or node.end_col_offset is None:
            continue
        start = starts[node.lineno - 1] + node.col_offset
        end = starts[node.end_lineno - 1] + node.end_col_offset
        text = ast.unparse(ast.fix_missing_locations(other))
        after = text if isinstance(node, ast.stmt) else f"({text})"
        before = " ".join(source[start:end].decode().split())
        alike[before, after] += 1
        place = alike[before, after]
        yield Mutation(path.relative_to(ROOT).as_posix(), node.lineno, start, end, before, after, place)


def draw(count: int, seed: int) -> list[Mutation]:
    """Return mutations of random lines, one operator per line.

    The choice depends on the seed and the text of each line, so that changes to other lines do not affect it.
    """
    lines: dict[tuple[str, int], list[Mutation]] = {}
    for path in sorted({path for pattern in MUTATED for path in ROOT.glob(pattern)}):
        for mutation in mutations_of(path):
            lines.setdefault((mutation.file, mutation.line), []).append(mutation)
    print(f"{len(lines)} lines, {sum(map(len, lines.values()))} mutations", file=sys.stderr)

    chosen = sorted(lines.values(), key=lambda mutations: lot(seed, *mutations))[:count]
    return [min(mutations, key=lambda mutation: lot(seed, mutation)) for mutations in chosen]


def lot(seed: int, *mutations: Mutation) -> bytes:
    """Return a pseudo-random number that orders lines, or the mutations of a line."""
    return hashlib.sha256(f"{seed} {[mutation.key for mutation in mutations]}".encode()).digest()


def module_name(file: str) -> str:
    """Return the name under which a file of the tree is imported."""
    name = re.sub(r"(/__init__)?\.py$", "", file).replace("/", ".")
    return name if name.startswith("hgld") else f"hgld.{name}"


def imported(path: Path) -> set[str]:
    """Return the modules of hgld that a file imports, at its top or within a function."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_bytes())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return {name for name in names if name.split(".")[0] in {"hgld", "tests"}}


@cache
def import_graph() -> dict[str, set[str]]:
    """Return the modules that every module of the tree, and every test file by its path, imports."""
    files = {
        module_name(path.relative_to(ROOT).as_posix()): path
        for room in ("hgld", "pipelines", "training")
        for path in (ROOT / room).rglob("*.py")
    }
    files |= {path.relative_to(ROOT).as_posix(): path for path in (ROOT / "tests").rglob("test_*.py")}
    files |= {module_name(p.relative_to(ROOT).as_posix())[5:]: p for p in (ROOT / "tests").rglob("*.py")}
    return {name: imported(path) for name, path in files.items()}


def distances(test: str) -> dict[str, int]:
    """Return the length of the shortest chain of imports from a test file to every module that it reaches."""
    graph, found, edge, steps = import_graph(), {}, {test}, 0
    while edge:
        found |= dict.fromkeys(edge, steps)
        edge = {name for module in edge for name in graph[module] if name in graph and name not in found}
        steps += 1
    return found


@cache
def reached() -> dict[str, dict[str, int]]:
    return {name: distances(name) for name in import_graph() if name.endswith(".py")}


def ranked_tests(mutation: Mutation) -> list[str]:
    """Return all test files, nearest to the mutated module first.

    A test file is near if it has the module's name or reaches the module by few imports. Among equally near files,
    those that reach fewer modules come first.
    """
    name = module_name(mutation.file)
    words = {name.rpartition(".")[2], name.rpartition(".")[2].rstrip("s")}

    def rank(test: str) -> tuple[float, int, str]:
        found = reached()[test]
        steps = 0 if any(word in Path(test).stem for word in words) else found.get(name, math.inf)
        if steps == math.inf and any(re.search(rf"\b{word}\b", (ROOT / test).read_text("utf-8")) for word in words):
            steps = 3  # assumed import distance of a test that names the module only in a string
        return steps, len(found), test

    return sorted(reached(), key=rank)


def compiles_kernels(file: str) -> bool:
    """Tell whether a module may hold code that numba compiles and caches for other modules too."""
    return any("numba" in path.read_text(encoding="utf-8") for path in (ROOT / file).parent.glob("*.py"))


class Copy:
    """A copy of the tree in which one mutation at a time is tried."""

    def __init__(self, folder: Path, limit: float) -> None:
        self.folder, self.limit = folder, limit
        excluded = shutil.ignore_patterns(".git", "__pycache__", ".*_cache", ".venv", ".hypothesis", "site", "build")
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(ROOT, folder, symlinks=True, ignore=excluded)
        self.broken: set[str] = set()  # tests that fail even without a mutation
        self.stamp = 1_000_000_000

    def test(self, mutation: Mutation, nearest: bool) -> str | None:
        """Return the test that catches a mutation, or None."""
        tests = ranked_tests(mutation)
        rounds = [tests[:NEAR]] if nearest else [tests[:NEAR], [*tests[NEAR:], "docs", "README.md", "hgld"]]
        source = (ROOT / mutation.file).read_bytes()
        changed = source[: mutation.start] + mutation.after.encode() + source[mutation.end :]
        try:
            for words in rounds:
                while caught := self._first_failure(mutation.file, changed, words):
                    if "::" not in caught or not self._first_failure(mutation.file, source, [caught]):
                        return caught
                    self.broken.add(caught)
            return None
        finally:
            shutil.copy2(ROOT / mutation.file, self.folder / mutation.file)

    def _first_failure(self, file: str, source: bytes, words: list[str]) -> str | None:
        """Return the first test that fails with the given text of a file, or None if all pass."""
        self.stamp += 10  # Python reuses byte code if a file's time is unchanged, so each version gets a new time
        (self.folder / file).write_bytes(source)
        os.utime(self.folder / file, (self.stamp, self.stamp))
        kernels = self.folder / "compiled"
        if compiles_kernels(file):  # recompile kernels of the changed module and its callers
            shutil.rmtree(kernels, ignore_errors=True)
        command = [sys.executable, "-m", "pytest", "-q", "--no-header", "--tb=no", "-p", "no:cacheprovider"]
        # No time limit per test: a slow test on a busy machine must not count as one that catches the mutation. A
        # mutation that hangs is caught by the limit for the whole run.
        command += ["-o", "timeout=0", "-x", "-n", "0"]
        command += [word for test in sorted(self.broken) for word in ("--deselect", test)] + words
        own = {"PYTHONPATH": str(self.folder), "NUMBA_CACHE_DIR": str(kernels), "OMP_NUM_THREADS": "1"}
        with (self.folder / "pytest.log").open("w+", encoding="utf-8") as log:
            process = subprocess.Popen(
                command,
                cwd=self.folder,
                env=os.environ | own,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
            try:
                code = process.wait(self.limit)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
                return f"no end within {self.limit:.0f} s"
            log.seek(0)
            text = log.read()
        if code in {0, 5}:  # exit code 5: pytest found no test
            return None
        if code in {3, 4}:
            raise RuntimeError(f"pytest did not run ({code}):\n{text[-3000:]}")
        failed = re.findall(FAILED, text, re.MULTILINE)
        return failed[0] if failed else f"pytest ended with {code}"


def table(drawn: list[Mutation], results: dict[str, str | None]) -> str:
    """Return the results as a table in Markdown."""
    lines = [head("line", "mutation", "caught by")]
    for mutation in drawn:
        caught = results.get(mutation.key, "not tried") or "**survived**"
        cells = (f"{mutation.file}:{mutation.line}", f"`{mutation.before}` -> `{mutation.after}`", caught)
        lines.append(row(cell.replace("|", "\\|") for cell in cells))
    done = [results[mutation.key] for mutation in drawn if mutation.key in results]
    return "\n".join([*lines, "", f"{sum(caught is not None for caught in done)} of {len(done)} caught"])


def main() -> None:
    parser = make_parser(__doc__, work=Path, count=40, seed=0, limit=1200.0)
    parser.add_argument("--nearest", action="store_true", help="run only the nearest test files")
    parser.add_argument("--only", default="", help="only mutations of this FILE:LINE")
    parser.add_argument("--list", action="store_true", help="print the mutations and stop")
    options = parser.parse_args()
    drawn = [m for m in draw(options.count, options.seed) if str(m).startswith(options.only)]
    if options.list:
        print(*drawn, sep="\n")
        return
    options.work.mkdir(parents=True, exist_ok=True)
    kept = options.work / "results.json"
    results: dict[str, str | None] = json.loads(kept.read_text(encoding="utf-8")) if kept.is_file() else {}
    copy = Copy(options.work.resolve() / "copy", options.limit)
    for mutation in drawn:
        if mutation.key in results:
            continue
        results[mutation.key] = copy.test(mutation, options.nearest)
        kept.write_text(json.dumps(results, indent=1), encoding="utf-8")
        print(f"{mutation}\n          {results[mutation.key] or 'SURVIVED'}", flush=True)
    print(table(drawn, results))


if __name__ == "__main__":
    main()
