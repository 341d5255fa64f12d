"""Runs the programs of docs/loops with the libraries that are installed, and writes down which versions they ran with.

In a fresh environment::

    python -m venv tried && . tried/bin/activate
    pip install '.[timm,clip,stream]' lightning accelerate transformers pytorch-metric-learning datasets mlcroissant
    python benchmarks/libraries.py --write
"""

import argparse
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import numpy as np
from PIL import Image

from hgld.pipelines.shards.build import build_shards
from hgld.pipelines.shards.config import ShardConfig, SourceConfig
from hgld.pipelines.stage import silent

ROOT = Path(__file__).parents[1]
LOOPS, TABLE = ROOT / "docs" / "loops", ROOT / "docs" / "libraries.md"
BEGIN, END = "<!-- tried -->", "<!-- /tried -->"
SECONDS = 900


@dataclass(frozen=True)
class Program:
    """A program of docs/loops: the distributions that it needs, and what starts it (``python`` by default)."""

    needs: tuple[str, ...]
    module: tuple[str, ...] = ()

    def command(self, file: Path) -> list[str]:
        return [sys.executable, *self.module, str(file)]


TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
ACCELERATE = ("-m", "accelerate.commands.launch", "--cpu", "--num_processes", "2", "--num_machines", "1")
PROGRAMS = {
    "plain": Program(("torch",)),
    "ddp": Program(("torch",), TORCHRUN),
    "lightning_two": Program(("lightning",)),
    "accelerate_two": Program(("accelerate",), (*ACCELERATE, "--mixed_precision", "no", "--dynamo_backend", "no")),
    "hf_trainer": Program(("transformers", "accelerate")),
    "timm_net": Program(("timm",)),
    "open_clip_net": Program(("open_clip_torch",)),
    "pml_parts": Program(("pytorch-metric-learning",)),
    "hf_datasets": Program(("datasets",)),
    "webdataset_tars": Program(("webdataset",)),
    "croissant": Program(("mlcroissant",)),
}


def versions(names: tuple[str, ...]) -> str | None:
    """Return the installed versions as text; None where one is missing."""
    try:
        return ", ".join(f"{name} {version(name)}" for name in names)
    except PackageNotFoundError:
        return None


def make_shards(folder: Path) -> None:
    """Write the dataset ``shards`` that the programs read: noisy squares, 32 colours of 8 pictures under 4 kinds."""
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


def run(name: str, folder: Path) -> str:
    """Run a program in a folder with ``shards``; return what became of it."""
    started = time.monotonic()
    command = PROGRAMS[name].command(LOOPS / f"{name}.py")
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=SECONDS, check=False)
    except subprocess.TimeoutExpired:
        return f"not done after {SECONDS} s"
    if done.returncode:
        return f"failed: {(done.stderr.strip().splitlines() or ['no message'])[-1][:200]}"
    return f"ran, {time.monotonic() - started:.0f} s"


def main() -> None:
    """Run what can be run, print the table, and with ``--write`` put it into docs/libraries.md."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="programs to run; all by default")
    parser.add_argument("--write", action="store_true", help="put the table into docs/libraries.md")
    asked = parser.parse_args()
    rows = ["| program | with | outcome |", "|---|---|---|"]
    with tempfile.TemporaryDirectory() as folder:
        make_shards(Path(folder))
        for name in asked.names or PROGRAMS:
            found = versions(PROGRAMS[name].needs)
            outcome = "not installed here" if found is None else run(name, Path(folder))
            rows.append(f"| `{name}.py` | {found or ', '.join(PROGRAMS[name].needs)} | {outcome} |")
            print(rows[-1], flush=True)
    if asked.write:
        before, _, rest = TABLE.read_text(encoding="utf-8").partition(BEGIN)
        text = "\n".join(rows)
        TABLE.write_text(f"{before}{BEGIN}\n{text}\n{END}{rest.partition(END)[2]}", encoding="utf-8")


if __name__ == "__main__":
    main()
