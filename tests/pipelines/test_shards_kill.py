"""Shard builds killed in any stage, workers included, resume and give the bytes of an uninterrupted build."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.fake_releases.pictures import jpeg
from tests.pipelines.toy_release import LEVELS, ToyRelease, build, bytes_of

ROOT = Path(__file__).parents[2]
CLASSES, PER_CLASS, TARS = 30, 10, 6
OPTIONS: dict[str, Any] = {"group_size": 4, "shard_items": 25, "workers": 2}
BUILD = """
import json, sys
from pathlib import Path
import polars as pl
from hgld.pipelines.shards.build import build_catalog
from hgld.pipelines.shards.catalog import Catalog, Container
from hgld.pipelines.shards.config import ShardConfig, SourceConfig

def told(stage, done, total):
    print(f"{stage}: {done}", flush=True)
    sys.stdin.readline()  # wait until the test has read it

if __name__ == "__main__":
    given = json.loads(sys.argv[1])
    containers = tuple(Container(Path(path), md5, "set") for path, md5 in given["tars"])
    catalog = Catalog("toy", tuple(given["levels"]), pl.read_parquet(given["items"]), Path(given["root"]), containers)
    build_catalog(catalog, None, given["out"], SourceConfig(), ShardConfig(**given["options"]), told)
"""


@pytest.fixture(scope="module")
def release(tmp_path_factory):
    """Return the arguments of a build (except ``out``) and the files of an uninterrupted build."""
    folder, rng = tmp_path_factory.mktemp("release"), np.random.default_rng(0)
    toy = ToyRelease()
    for item in range(CLASSES * PER_CLASS):
        label = item // PER_CLASS
        split = "test" if label % 3 == 0 else "train"
        data = b"damaged" if item % 47 == 0 else jpeg(rng)
        toy.add(f"{label}/{item}.jpg", split, f"species {label}", f"family {label % 7}", data)
    containers = toy.write_tars(folder / "tars", tars=TARS)
    catalog = toy.tar_catalog(folder, containers)
    catalog.items.write_parquet(folder / "items.parquet")
    (folder / "build.py").write_text(BUILD)
    given = {
        "tars": [(str(container.path), container.md5) for container in containers],
        "levels": LEVELS,
        "items": str(folder / "items.parquet"),
        "root": str(folder),
        "script": str(folder / "build.py"),
    }
    build(catalog, folder / "expected", **OPTIONS | {"workers": 1})
    return given, bytes_of(folder / "expected")


def start(given: dict, out: Path) -> subprocess.Popen[bytes]:
    arguments = json.dumps({**given, "out": str(out), "options": OPTIONS})
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-W", "error", given["script"], arguments]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, cwd=ROOT, env=environment, stdin=pipe, stdout=pipe, stderr=pipe)


def hold(process: subprocess.Popen[bytes], stage: str, least: int) -> None:
    """Wait until a build has done ``least`` units of a stage; its main process then waits for :func:`go_on`."""
    assert process.stdout is not None
    for line in process.stdout:
        told, _, done = line.decode().rpartition(": ")
        if told == stage and int(done) >= least:
            return
        go_on(process)
    pytest.fail(f"it ended before: {process.communicate()[1].decode()}")


def go_on(process: subprocess.Popen[bytes]) -> None:
    assert process.stdin is not None
    process.stdin.write(b"\n")
    process.stdin.flush()


def finish(process: subprocess.Popen[bytes]) -> None:
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors.decode()


EARLY, MIDDLE, LATE = ("examining", 2), ("packing", 1), ("writing tables", 0)


@pytest.mark.slow
def test_build_from_tars_killed_in_any_stage_resumes_to_the_same_bytes(release, tmp_path):
    """tests/faults stops builds from loose files."""
    given, expected = release
    delays, out = random.Random(0), tmp_path / "out"
    for stage, least in (EARLY, MIDDLE, LATE):
        process = start(given, out)
        hold(process, stage, least)
        go_on(process)
        time.sleep(delays.uniform(0, 0.05))  # the kill may interrupt any later unit, or come after the last unit
        process.send_signal(signal.SIGKILL)
        process.communicate(timeout=60)
    finish(start(given, out))
    assert bytes_of(out) == expected


@pytest.mark.slow
def test_build_continues_if_its_workers_are_killed(release, tmp_path):
    given, expected = release
    process, kills = start(given, tmp_path / "out"), 0
    for stage, least in (EARLY, MIDDLE):
        hold(process, stage, least)
        for worker in workers_of(process.pid):
            os.kill(worker, signal.SIGKILL)
            kills += 1
        go_on(process)
    finish(process)
    assert kills > 0
    assert bytes_of(tmp_path / "out") == expected


def workers_of(parent: int) -> list[int]:
    """Return the worker processes of a build: the children that multiprocessing spawned."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
            command = (path.parent / "cmdline").read_bytes()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if int(fields[1]) == parent and b"spawn_main" in command:
            found.append(int(path.parent.name))
    return found
