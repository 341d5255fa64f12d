"""Builds on a real Ray cluster of two processes, with the same bytes and errors as local builds."""

import os
import signal

import pytest

from hgld.errors import HgldError, InputError
from hgld.pipelines.executor import run_units
from tests.interpreter import python
from tests.pipelines.toy_release import LEVELS, ToyRelease, bytes_of
from tests.pipelines.unit_workers import Sum, add

pytestmark = [pytest.mark.slow, pytest.mark.enable_socket, pytest.mark.filterwarnings("default")]


def test_build_command_starts_a_ray_cluster_and_writes_the_bytes_of_a_local_build(tmp_path, output):
    release = ToyRelease.make()
    release.write(tmp_path)
    release.items().select("file", *LEVELS).rename({"file": "path"}).write_csv(tmp_path / "labels.csv")
    words = ["build-shards", "manifest", "--source", str(tmp_path / "labels.csv")]
    words += ["--levels", ",".join(LEVELS), "--test-classes", "0.4"]
    output(*words, "--workers", 1, "--out", tmp_path / "local")
    python("-m", "hgld", *words, "--executor", "ray", "--workers", 2, "--out", tmp_path / "started")
    assert bytes_of(tmp_path / "started") == bytes_of(tmp_path / "local")


def test_ray_runs_units_in_other_processes_and_repeats_lost_units(cluster, tmp_path):
    units = [Sum(f"unit {i}", (i, 1), tmp_path, kills=i == 2) for i in range(6)]
    found = {}
    run_units(add, units, lambda unit, result: found.update({unit.name: result}), executor="ray", workers=2)
    assert {name: result[0] for name, result in found.items()} == {f"unit {i}": i + 1 for i in range(6)}
    assert os.getpid() not in {result[1] for result in found.values()}
    assert len(list(tmp_path.glob("unit 2.*"))) == 2


def test_errors_of_ray_units_are_raised(cluster, tmp_path):
    with pytest.raises(InputError, match="unit 0 is refused"):
        run_units(add, [Sum("unit 0", (), tmp_path, refuses=True)], print, executor="ray")
    with pytest.raises(HgldError, match="died 3 times at unit 1 "):
        run_units(add, [Sum("unit 1", (), tmp_path, kills=99)], print, executor="ray")
    assert len(list(tmp_path.glob("unit 1.*"))) == 3
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
