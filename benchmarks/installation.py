"""Measures what an installation takes: the disk of ``pip install .`` and of what each extra adds, and the time.

The disk is that of the distributions' files, so it can be told of any environment that has the extras::

    python benchmarks/installation.py                             # of this one
    python benchmarks/installation.py --fresh /tmp/fresh --write  # installs base and extras, one after another: 10 GB
"""

import argparse
import json
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
BASE = [Requirement(line) for line in PROJECT["dependencies"]]
EXTRAS = {name: [Requirement(r) for r in lines] for name, lines in PROJECT["optional-dependencies"].items()}
FOR_DEVELOPERS = {"all", "bench", "dev", "docs"}
TABLE = ROOT / "docs" / "getting-started.md"
BEGIN, END = "<!-- sizes -->", "<!-- /sizes -->"
_OF_TORCH = ("torch", "triton", "nvidia-", "cuda-")


def brought_by(requirements: Iterable[Requirement]) -> set[str]:
    """Return the names of all distributions that an installation of these brings."""
    waiting, found = list(requirements), set()
    while waiting:
        requirement = waiting.pop()
        key = (canonicalize_name(requirement.name), frozenset(requirement.extras))
        if key in found:
            continue
        found.add(key)
        try:
            further = distribution(requirement.name).requires or []
        except PackageNotFoundError:
            continue  # of another platform, or an extra that is not installed here
        asked = [{"extra": extra} for extra in ("", *requirement.extras)]
        waiting += [r for r in map(Requirement, further) if not r.marker or any(map(r.marker.evaluate, asked))]
    return {name for name, _ in found}


def disk(names: Iterable[str]) -> tuple[int, int]:
    """Return how many of these distributions are installed, and the bytes of their files."""
    installed, size = 0, 0
    for name in names:
        try:
            files = distribution(name).files or []
        except PackageNotFoundError:
            continue
        installed += 1
        places = (Path(str(file.locate())) for file in files)
        size += sum(place.stat().st_size for place in places if place.is_file())
    return installed, size


def sizes() -> dict[str, tuple[int, int]]:
    """Return distributions and bytes of the base, of torch and what it needs alone, and of what each extra adds."""
    base = brought_by(BASE)
    found = {"base": disk(base), "torch": disk(name for name in base if name.startswith(_OF_TORCH))}
    for extra in (name for name in EXTRAS if name not in FOR_DEVELOPERS):
        if all(disk([requirement.name])[0] for requirement in EXTRAS[extra]):
            found[extra] = disk(brought_by(EXTRAS[extra]) - base)
    return found


def install(folder: Path) -> tuple[dict[str, tuple[int, int]], dict[str, float]]:
    """Install the base and every extra in turn into a new environment; return their sizes and seconds."""
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    python = str(folder / "bin" / "python")
    pip = [python, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, "wheel", "--no-deps", "--wheel-dir", str(folder), str(ROOT)], check=True)
    [wheel] = folder.glob("hgld-*.whl")
    seconds = {}
    for extra in ("base", *(name for name in EXTRAS if name not in FOR_DEVELOPERS)):
        started = time.monotonic()
        subprocess.run([*pip, "install", f"{wheel}[{extra}]" if extra != "base" else str(wheel)], check=True)
        seconds[extra] = time.monotonic() - started
        print(f"{extra}: {seconds[extra]:.0f} s", flush=True)
    done = subprocess.run([python, __file__, "--json"], capture_output=True, text=True, check=True)
    return json.loads(done.stdout), seconds


def table(found: dict[str, tuple[int, int]], seconds: dict[str, float]) -> str:
    """Return the rows as Markdown."""
    named = {"base": "`pip install .`", "torch": "of it torch, Triton, CUDA"}
    heads = ["", "distributions", "disk, MB", *(["seconds"] if seconds else [])]
    rows = [f"| {' | '.join(heads)} |", f"|---|{'---:|' * (len(heads) - 1)}"]
    for name, (count, size) in found.items():
        plus = "" if name in named else "+ "
        cells = [named.get(name, f"`{name}`"), f"{plus}{count}", f"{plus}{size / 1e6:,.0f}"]
        cells += [f"{seconds[name]:,.0f}" if name in seconds else ""] if seconds else []
        rows.append(f"| {' | '.join(cells)} |")
    return "\n".join(rows)


def main() -> None:
    """Print the table; ``--write`` puts it into docs/getting-started.md."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--fresh", type=Path, metavar="DIR", help="install into a new environment here")
    parser.add_argument("--json", action="store_true", help="print the sizes alone")
    parser.add_argument("--write", action="store_true", help="put the table into docs/getting-started.md")
    asked = parser.parse_args()
    found, seconds = install(asked.fresh) if asked.fresh else (sizes(), {})
    if asked.json:
        print(json.dumps(found))
        return
    print(text := table(found, seconds))
    if asked.write:
        before, _, rest = TABLE.read_text(encoding="utf-8").partition(BEGIN)
        TABLE.write_text(f"{before}{BEGIN}\n{text}\n{END}{rest.partition(END)[2]}", encoding="utf-8")


if __name__ == "__main__":
    main()
