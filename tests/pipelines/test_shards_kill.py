"""Kill -9 a build of shards at random moments, workers included: it ends in the bytes of an uninterrupted one."""

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
CLASSES, PER_CLASS, TARS = 60, 20, 12
OPTIONS: dict[str, Any] = {"group_size": 4, "shard_items": 100}
BUILD = """
import json, sys
from pathlib import Path
import polars as pl
from hgld.pipelines.shards.catalog import Catalog, Container
from hgld.pipelines.shards.config import ShardConfig
from tests.pipelines.toy_release import build

if __name__ == "__main__":
    given = json.loads(sys.argv[1])
    containers = tuple(Container(Path(path), md5, "set") for path, md5 in given["tars"])
    catalog = Catalog("toy", tuple(given["levels"]), pl.read_parquet(given["items"]), Path(given["root"]), containers)
    build(catalog, given["out"], ShardConfig(**given["options"]))
"""


@pytest.fixture(scope="module")
def release(tmp_path_factory):
    """The arguments of a build, without ``out``; and the dataset that an uninterrupted one makes."""
    folder, rng = tmp_path_factory.mktemp("release"), np.random.default_rng(0)
    toy = ToyRelease()
    for item in range(CLASSES * PER_CLASS):
        label = item // PER_CLASS
        split = "test" if label % 3 == 0 else "train"
        data = b"damaged" if item % 97 == 0 else jpeg(rng)
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
    build(catalog, folder / "expected", **OPTIONS)
    return given, bytes_of(folder / "expected")


def start(given: dict, out: Path, **options: object) -> subprocess.Popen[bytes]:
    arguments = json.dumps({**given, "out": str(out), "options": {**OPTIONS, **options}})
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-W", "error", given["script"], arguments]
    return subprocess.Popen(command, cwd=ROOT, env=environment, stderr=subprocess.PIPE)


def finish(process: subprocess.Popen[bytes]) -> None:
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors.decode()


def stages_at(out: Path) -> tuple[bool, bool, bool]:
    """How far a build got: examined something, packed something, wrote tables."""
    return any(out.glob(".build/examined/set-*")), any(out.glob("*.tar")), any(out.glob("*.parquet"))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "kills"), [({"workers": 2}, 5), ({"workers": 2, "spool": "always", "resize": 24}, 3)], ids=str
)
def test_killed_builds_end_in_the_same_bytes(release, tmp_path, options, kills):
    given, expected = release
    if "resize" in options:
        finish(start(given, tmp_path / "whole", **options))
        expected = bytes_of(tmp_path / "whole")
    begin = time.monotonic()
    finish(start(given, tmp_path / "timed", **options))
    duration = time.monotonic() - begin
    assert bytes_of(tmp_path / "timed") == expected
    moments, met, killed = random.Random(0), set(), 0
    out = tmp_path / "out"
    while killed < kills:
        process = start(given, out, **options)
        try:
            process.communicate(timeout=duration * moments.uniform(0.15, 1.05))
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)
            process.communicate(timeout=30)
            killed += 1
            met.add(stages_at(out))
        else:  # it ended before its moment: a new place to be killed in
            assert process.returncode == 0
            assert bytes_of(out) == expected
            out = tmp_path / f"out-{killed}"
    assert len(met) >= 2, "all kills came at the same stage"
    finish(start(given, out, **options))
    assert bytes_of(out) == expected


@pytest.mark.slow
def test_killed_workers_do_not_end_a_build(release, tmp_path):
    given, expected = release
    process = start(given, tmp_path / "out", workers=2)
    kills = 0
    while process.poll() is None:
        time.sleep(0.4)
        for worker in workers_of(process.pid)[: 1 if kills < 4 else 0]:
            os.kill(worker, signal.SIGKILL)
            kills += 1
    finish(process)
    assert kills > 0
    assert bytes_of(tmp_path / "out") == expected


def workers_of(parent: int) -> list[int]:
    """The pool's processes: those children of a process that multiprocessing spawned to do work."""
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
