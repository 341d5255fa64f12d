"""Session-wide set-up: one cache of compiled kernels, one thread a worker, signals, optional real data, hypothesis."""

import atexit
import gc
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

# Before anything imports numba or torch, and for every process that a test starts: kernels are compiled once and kept
# between sessions, and the workers of pytest-xdist do not take each other's cores.
os.environ.setdefault("NUMBA_CACHE_DIR", str(Path(__file__).parents[1] / ".pytest_cache" / "numba"))
os.environ.setdefault("MPLBACKEND", "Agg")  # no test opens a window
os.environ["XDG_CACHE_HOME"] = tempfile.mkdtemp(prefix="hgld-cache-")  # no test fills the user's cache, or reads it
if "PYTEST_XDIST_WORKER" in os.environ:
    for pool in ("OMP", "MKL", "OPENBLAS"):
        os.environ.setdefault(f"{pool}_NUM_THREADS", "1")

import pytest
from hypothesis import HealthCheck, settings

# Enough examples to meet what a law forbids, few enough for the fast tests; `--hypothesis-profile thorough` draws more.
slow_machine = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True, max_examples=25)
settings.register_profile("hgld", slow_machine)
settings.register_profile("thorough", slow_machine, max_examples=400)
settings.load_profile("hgld")

# Without bytecode every process that a test starts compiles the whole package again, as every worker does the tests.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False
os.fsync = lambda fd: None  # no test cuts the power, and what the disk takes is time of every test that writes
gc.disable()  # while modules are imported and tests collected: nothing of it is ever garbage

atexit.register(shutil.rmtree, os.environ["XDG_CACHE_HOME"], ignore_errors=True)
SLOW_SECONDS = 900  # of a slow test or a check; pyproject.toml has the limit of the fast ones


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give slow tests and checks the time that they need."""
    for item in items:
        if {"slow", "checks"} & item.keywords.keys() and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(SLOW_SECONDS))


def pytest_collection_finish() -> None:
    """Keep the collector from walking through all modules and tests again and again, in the end too."""
    gc.freeze()
    atexit.register(gc.unfreeze)  # what native libraries count as leaked is taken down with the interpreter
    gc.set_threshold(20_000, 50, 100)  # what a few tests leave in cycles is little; they make thousands of objects each
    gc.enable()


@pytest.fixture(scope="session")
def real_data() -> Path:
    """The folder of real data sets named by HGLD_DATA; the test is skipped without it."""
    folder = os.environ.get("HGLD_DATA")
    if not folder:
        pytest.skip("HGLD_DATA is not set: no real data to test on")
    return Path(folder)


@pytest.fixture
def hgld(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """``hgld(*words)`` runs the command in this process: its exit code, and what it wrote to stdout and stderr."""
    from hgld.cli import main  # imports most of hgld, which only some tests need

    def run(*words: object) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as stop:
            main([str(word) for word in words])
        assert isinstance(stop.value.code, int)
        said = capsys.readouterr()
        return stop.value.code, said.out, said.err

    return run


@pytest.fixture
def no_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Report pages draw nothing."""
    from tests.undrawn import without_figures

    without_figures(monkeypatch)


@pytest.fixture(scope="session", autouse=True)
def heeded_signals() -> Iterator[None]:
    """Let processes heed Ctrl-C and hangups where the tests run in the background or by nohup, which ignore them."""
    handlers = {signal.SIGINT: signal.default_int_handler, signal.SIGHUP: signal.SIG_DFL}
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture
def mat_files_here(monkeypatch):
    """Read MATLAB files in this process, which takes a second less; tests/faults/kept reads them in another one."""

    def run_here(work, argument, **_):
        return work(argument)

    monkeypatch.setattr("hgld.pipelines.shards.sources.release.run_alone", run_here)
