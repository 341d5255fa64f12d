import os
import resource
import signal
import subprocess
import sys
import time
from contextlib import nullcontext
from pathlib import Path

import pytest

from hgld.errors import HgldError, InputError
from hgld.pipelines import executor
from hgld.pipelines.executor import ProcessEndedError, run_alone, run_units
from tests.interpreter import ROOT
from tests.pipelines.unit_workers import Sum, add, done_alone
from tests.rows import each_row

LINUX = pytest.mark.skipif(sys.platform != "linux", reason="needs Linux")


def units_of(folder, special=None, **given):
    """Return six units; the unit with the number ``special`` has the given fields."""
    return [Sum(f"unit {i}", tuple(range(i + 1)), folder, **(given if i == special else {})) for i in range(6)]


def sums(units, workers):
    found, processes = {}, set()

    def done(unit, result):
        assert unit.name not in found
        found[unit.name] = result[0]
        processes.add(result[1])

    run_units(add, units, done, workers=workers)
    return found, processes


EXPECTED = {f"unit {i}": i * (i + 1) // 2 for i in range(6)}


def test_single_worker_runs_in_this_process(tmp_path):
    assert sums(units_of(tmp_path), 1) == (EXPECTED, {os.getpid()})


@pytest.mark.slow
def test_error_contains_the_unit_that_kills_every_worker(tmp_path, monkeypatch):
    monkeypatch.setattr(executor, "ATTEMPTS", 2)
    with pytest.raises(HgldError, match="died 2 times at unit 2 "):
        sums(units_of(tmp_path, 2, kills=99), 2)
    # if a killed worker had several units, no unit is blamed, so one more attempt is allowed
    assert len(list(tmp_path.glob("unit 2.*"))) <= 1 + 2


def test_workers_are_other_processes_and_a_unit_runs_again_if_its_worker_is_killed(tmp_path):
    found, processes = sums(units_of(tmp_path, 0, kills=1), 2)
    assert found == EXPECTED
    assert os.getpid() not in processes
    assert len(list(tmp_path.glob("unit 0.*"))) == 2


@each_row("workers", [1, 2])
def test_error_in_a_unit_of_work_is_raised(tmp_path, workers):
    with pytest.raises(InputError, match="unit 3 is refused"):
        sums(units_of(tmp_path, 3, refuses=True), workers)


@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_error_contains_the_unit_that_runs_out_of_memory(tmp_path, workers):
    with pytest.raises(HgldError, match=r"not enough memory for unit 3\. Finished work is kept"):
        sums(units_of(tmp_path, 3, starves=True), workers)


PARENT = """
import sys
from pathlib import Path
from hgld.pipelines.executor import run_units
from tests.pipelines.unit_workers import Sum, wait_forever

if __name__ == "__main__":
    units = [Sum(f"unit {i}", (), Path(sys.argv[1])) for i in range(2)]
    run_units(wait_forever, units, print, workers=2)
"""


@pytest.mark.parametrize("ended_by", [signal.SIGKILL, pytest.param(signal.SIGINT, marks=pytest.mark.slow)])
def test_workers_end_if_their_parent_process_ends(tmp_path, ended_by):
    script = tmp_path / "parent.py"
    script.write_text(PARENT)
    began = tmp_path / "began"
    began.mkdir()
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    parent = subprocess.Popen(
        [sys.executable, str(script), str(began)], cwd=ROOT, env=environment, stderr=subprocess.PIPE
    )
    wait_until(lambda: len(list(began.iterdir())) == 2)
    workers = [int(path.name.rpartition(".")[2]) for path in began.iterdir()]
    parent.send_signal(ended_by)
    _, errors = parent.communicate(timeout=30)
    assert parent.returncode != 0
    assert ended_by == signal.SIGKILL or b"KeyboardInterrupt" in errors
    wait_until(lambda: not any(alive(worker) for worker in workers))


def wait_until(true):
    assert callable(true)
    deadline = time.monotonic() + 60
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def alive(process):
    """Tell whether a process runs; zombies do not count."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.slow
@pytest.mark.parametrize(
    ("what", "error", "said"),
    [
        ("fail", InputError, "it failed"),
        ("crash", ProcessEndedError, "Segmentation fault"),
        ("hang", ProcessEndedError, r"did not finish within 0\.5 s"),
        ("leave", ProcessEndedError, "exit status 3;"),
        pytest.param("take", MemoryError, "^$", marks=LINUX),
        ("return", None, ""),
    ],
)
def test_isolated_process_returns_its_result_or_its_error(what, error, said):
    with pytest.raises(error, match=said) if error else nullcontext():
        assert run_alone(done_alone, what, seconds=0.5 if what == "hang" else 60.0, memory=1 << 30) == what


@LINUX
def test_memory_limit_set_by_the_system_is_never_increased(monkeypatch):
    """A cluster may have set the limit, and the system refuses values above the hard limit."""
    limits, asked = (1 << 40, 1 << 41), []
    monkeypatch.setattr(resource, "getrlimit", lambda kind: limits)
    monkeypatch.setattr(resource, "setrlimit", lambda kind, pair: asked.append(pair))
    executor._limit_memory(1 << 50)
    assert asked == [limits]
