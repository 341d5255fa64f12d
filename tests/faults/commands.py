"""Commands that write files, with their input, for tests of stops, full disks and parallel starts."""

import io
import re
import shutil
from contextlib import chdir, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from hgld.cli import main
from hgld.training.config import save_config
from tests.fake_releases.pictures import jpeg
from tests.training.small_runs import options, write_small
from tests.training.untrained_run import write_run

THINGS = ["red apple", "green apple", "old apple", "oak", "red oak", "dry oak", "blue whale", "killer whale", "whale"]


@dataclass(frozen=True)
class Command:
    """A command of hgld and what its tests need to know.

    Attributes:
        words: its arguments; ``{base}`` is the folder of :func:`write_base`. The command runs in a separate folder.
        before: arguments of an earlier command in the same folder, whose results differ.
        works_on: folders of the base that the command changes; each test copies them.
        keeps: True if old files stay until their replacement is complete; False if the manifest is missing meanwhile.
        stops: number of stops of this command in the short form of the tests.
    """

    words: str
    before: str = ""
    works_on: tuple[str, ...] = ()
    keeps: bool = True
    stops: int = 2


_SHARDS = "build-shards folders --source {base}/images --out out --shard-items 4 --test-classes .5"
_EMBED = "embed --checkpoint {base}/run --data {base}/data --out e.npy"
_EVALUATE = "evaluate --embeddings {base}/e.npy --labels {base}/e.labels.parquet --levels fine,coarse --out r.json"
COMMANDS = {
    "build-hierarchy": Command("build-hierarchy --classes {base}/list.csv --encoder lexical --out out", stops=1),
    "build-shards": Command(f"{_SHARDS} --workers 1"),
    "build-shards, spooled": Command(f"{_SHARDS} --workers 1 --keep-examined --resize 24"),
    "index": Command("index data --force", works_on=("data",), keeps=False),
    "train": Command("train --config {base}/config.json --data {base}/data --out out"),
    "embed": Command(f"{_EMBED} --split test", f"{_EMBED} --split train"),
    "evaluate": Command(f"{_EVALUATE} --metrics R@1,AP", f"{_EVALUATE} --metrics AP"),
    "report": Command("report {base}/r.json --out p.html", "report {base}/r.json --out p.html --title Before", stops=1),
    "audit": Command(
        "audit --embeddings {base}/e.npy --out out", "audit --embeddings {base}/e.npy --out out --data {base}/data"
    ),
    "export": Command("export --checkpoint {base}/run --out x.onnx", stops=1),
    "calibrate": Command(
        "calibrate --checkpoint run --data {base}/many --split test --test-split test", works_on=("run",)
    ),
    "card": Command("card shards", works_on=("shards",)),
}


def write_base(base: Path) -> None:
    """Write the input files of the commands."""
    write_small(base / "data")
    write_small(base / "many", held_out=range(18))
    write_run(base / "run")
    rng = np.random.default_rng(0)
    for number in range(12):
        path = base / f"images/top{number // 6}/fine{number // 6}{number // 3}/{number % 3}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(jpeg(rng))
    (base / "images/top0/fine00/0.jpg").write_bytes(jpeg(rng))
    (base / "list.csv").write_text("\n".join(THINGS))
    trial = {"epochs": 1, "steps_per_epoch": 3, "checkpoint_every": 2, "loggers": ("tensorboard",)}
    save_config(options(**trial, evaluate_every=1), base / "config.json")
    for words in (
        f"{_EMBED} --split test",
        f"{_EVALUATE.replace('{base}/', '')} --metrics R@1,AP",
        f"{_SHARDS} --workers 1".replace("--out out", "--out shards"),
    ):
        succeed(words, base, base)


def place_of(command: Command, base: Path, place: Path) -> Path:
    """Make the folder of a command, with the results of its earlier command."""
    place.mkdir(parents=True)
    for name in command.works_on:
        (shutil.copytree if (base / name).is_dir() else shutil.copy2)(base / name, place / name)
    if command.before:
        succeed(command.before, base, place)
    return place


LOCK = re.compile(r"\..*\.lock")  # a stopped command may leave empty lock files, which the next command reuses
_TIMES = re.compile(rb'"(?:started|seconds|images_per_second|wait_share|memory_mb)": [0-9.e+-]+')
_TIMED = ("time", "images_per_second", "wait_share", "memory_mb")  # columns of log.csv that differ between runs


def contents(place: Path) -> dict[str, Any]:
    """Return the content of every file in a folder, without times and speeds."""
    found: dict[str, Any] = {}
    for path in sorted(
        path
        for path in place.rglob("*")
        if path.is_file() and path.parent.name != "tensorboard" and not LOCK.fullmatch(path.name)
    ):
        name, data = str(path.relative_to(place)), path.read_bytes()
        if path.suffix == ".json":
            found[name] = _TIMES.sub(b"", data)
        elif path.name == "log.csv":
            found[name] = pl.read_csv(path).drop(_TIMED).rows()
        else:
            found[name] = data
    return found


def run(words: str, base: Path, place: Path) -> tuple[int, str]:
    """Run a command in a folder; return its exit code and what it wrote to stderr."""
    said = io.StringIO()
    try:
        with chdir(place), redirect_stdout(io.StringIO()), redirect_stderr(said):
            main([word.replace("{base}", str(base)) for word in words.split()])
    except SystemExit as leaving:
        return int(leaving.code or 0), said.getvalue()
    raise AssertionError("main() returned")


def succeed(words: str, base: Path, place: Path) -> None:
    """Run a command that must succeed."""
    code, said = run(words, base, place)
    assert code == 0, said


def assert_said(said: str, code: int, *expected: int) -> None:
    """Check the exit code, and that the error is one line. TensorBoard and Python may print lines before it."""
    assert code in expected, said
    lines = said.splitlines()
    assert len(lines) <= 1 or "tensorboard" in said or "resource_tracker" in said, said
    assert not lines or (lines[-1].startswith("hgld") and len(lines[-1]) < 2_000), said
