"""Run the programs of docs/loops and the notebooks, and record the versions of the libraries.

The programs run in this environment, or with ``--fresh`` in a new one. With ``--beside``, the new environment can use
the packages of this environment, so that torch (5 GB) is not installed again::

    python -m benchmarks.libraries --write
    python -m benchmarks.libraries --fresh /tmp/tried --beside --write
"""

import argparse
import os
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import numpy as np
from PIL import Image

from benchmarks.notebooks import NAMES
from hgld.pipelines.shards.build import build_shards
from hgld.pipelines.shards.config import ShardConfig, SourceConfig
from hgld.pipelines.stage import silent

ROOT = Path(__file__).parents[1]
LOOPS, TABLE = ROOT / "docs" / "loops", ROOT / "docs/project/libraries.md"
BEGIN, END = "<!-- tried -->", "<!-- /tried -->"
SECONDS = 900


@dataclass(frozen=True)
class Program:
    """A program of docs/loops, or a notebook.

    Attributes:
        needs: packages whose versions are recorded.
        module: module that starts the program; default: ``python``.
        notebook: whether the program is a notebook.
    """

    needs: tuple[str, ...]
    module: tuple[str, ...] = ()
    notebook: bool = False

    def command(self, name: str, *, write: bool) -> list[str]:
        if self.notebook:
            return [sys.executable, "-m", "benchmarks.notebooks", name, *(["--write"] if write else [])]
        return [sys.executable, *self.module, str(LOOPS / f"{name}.py")]


TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
ACCELERATE = ("-m", "accelerate.commands.launch", "--cpu", "--num_processes", "2", "--num_machines", "1")
PROGRAMS = {
    "plain": Program(("torch",)),
    "ddp": Program(("torch",), TORCHRUN),
    "lightning_two": Program(("lightning",)),
    "lightning_own": Program(("lightning", "torchmetrics")),
    "accelerate_two": Program(("accelerate",), (*ACCELERATE, "--mixed_precision", "no", "--dynamo_backend", "no")),
    "hf_trainer": Program(("transformers", "accelerate")),
    "timm_net": Program(("timm",)),
    "open_clip_net": Program(("open_clip_torch",)),
    "pml_parts": Program(("pytorch-metric-learning",)),
    "pml_trainer": Program(("pytorch-metric-learning",)),
    "hf_datasets": Program(("datasets",)),
    "webdataset_tars": Program(("webdataset",)),
    "croissant": Program(("mlcroissant",)),
    "fiftyone_fields": Program(("fiftyone",)),
}
NOTEBOOKS = {name: Program(("nbclient", "ipykernel"), notebook=True) for name in NAMES}


def versions(names: tuple[str, ...]) -> str | None:
    """Return the installed versions as text, or None if a package is missing."""
    try:
        return ", ".join(f"{name} {version(name)}" for name in names)
    except PackageNotFoundError:
        return None


def make_shards(folder: Path) -> None:
    """Write the dataset ``shards`` that the programs read: noisy squares, 32 colours of 8 images in 4 super-classes."""
    rng = np.random.default_rng(0)
    colors = rng.integers(40, 216, (32, 3))
    for number, color in enumerate(colors.tolist()):
        place = folder / "pictures" / f"kind {number % 4}" / f"color {number}"
        place.mkdir(parents=True)
        for copy in range(8):
            pixels = np.clip(color + rng.normal(0, 24, (64, 64, 3)), 0, 255).astype(np.uint8)
            Image.fromarray(pixels).save(place / f"{copy}.jpg")
    source = SourceConfig(test_classes=0.5, seed=0)
    build_shards("folders", folder / "pictures", str(folder / "shards"), source, ShardConfig(workers=1), silent)


def run(name: str, program: Program, folder: Path, *, write: bool = False) -> str:
    """Run a program in a folder with ``shards`` and return the outcome; ``write`` keeps the outputs of a notebook."""
    started = time.monotonic()
    env, command = dict(os.environ), program.command(name, write=write)
    for variable, place in {"PYTHONPATH": str(ROOT), "PATH": sysconfig.get_path("scripts")}.items():
        env[variable] = os.pathsep.join(filter(None, [place, env.get(variable)]))
    try:
        done = subprocess.run(
            command, cwd=folder, env=env, capture_output=True, text=True, timeout=SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        return f"not done after {SECONDS} s"
    if done.returncode:
        return f"failed: {(done.stderr.strip().splitlines() or ['no message'])[-1][:200]}"
    return f"ran, {time.monotonic() - started:.0f} s"


def install(folder: Path, *, beside: bool) -> str:
    """Make an environment with hgld and every library; return the path of its Python."""
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    python = str(folder / "bin" / "python")
    if beside:
        asked = [python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]
        site = Path(subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip())
        (site / "zz_beside.pth").write_text(sysconfig.get_path("purelib") + "\n", encoding="utf-8")
    needed = dict.fromkeys(name for program in (PROGRAMS | NOTEBOOKS).values() for name in program.needs)
    subprocess.run([python, "-m", "pip", "install", "--quiet", str(ROOT), *needed], check=True)
    return python


def tried(names: list[str], *, write: bool) -> Iterator[str]:
    """Run programs; yield the rows of the table."""
    programs = PROGRAMS | NOTEBOOKS
    with tempfile.TemporaryDirectory() as folder:
        make_shards(Path(folder))
        for name in names or programs:
            found = versions(programs[name].needs)
            outcome = "not installed here" if found is None else run(name, programs[name], Path(folder), write=write)
            file = f"{name}.ipynb" if programs[name].notebook else f"{name}.py"
            yield f"| `{file}` | {found or ', '.join(programs[name].needs)} | {outcome} |"


def write_table(rows: list[str]) -> None:
    """Write rows into docs/project/libraries.md, in the order of the programs; keep all other rows."""
    before, _, rest = TABLE.read_text(encoding="utf-8").partition(BEGIN)
    kept, _, after = rest.partition(END)
    by_program = {row.split("|")[1]: row for row in [*kept.strip().splitlines()[2:], *rows]}
    files = [f" `{name}.py` " for name in PROGRAMS] + [f" `{name}.ipynb` " for name in NOTEBOOKS]
    told = [by_program[file] for file in files if file in by_program]
    text = "\n".join(["| program | with | outcome |", "|---|---|---|", *told])
    TABLE.write_text(f"{before}{BEGIN}\n{text}\n{END}{after}", encoding="utf-8")


def main() -> None:
    """Run all programs whose libraries are installed, print the table, and with ``--write`` update libraries.md."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="programs and notebooks to run; all by default")
    parser.add_argument(
        "--fresh", type=Path, metavar="DIR", help="folder of a new environment with all libraries, made first"
    )
    parser.add_argument("--beside", action="store_true", help="let the new environment use the packages of this one")
    parser.add_argument(
        "--write",
        action="store_true",
        help="write the table into docs/project/libraries.md, and the notebooks' outputs",
    )
    asked = parser.parse_args()
    if asked.fresh:
        words = [*asked.names, *(["--write"] if asked.write else [])]
        python = install(asked.fresh, beside=asked.beside)
        sys.exit(subprocess.run([python, "-m", "benchmarks.libraries", *words], cwd=ROOT, check=False).returncode)
    rows = []
    for row in tried(asked.names, write=asked.write):
        rows.append(row)
        print(row, flush=True)
    if asked.write:
        write_table(rows)


if __name__ == "__main__":
    main()
