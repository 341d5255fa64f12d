"""Session-wide set-up: cache of compiled kernels, one thread per worker, signals, real data, hypothesis."""

import atexit
import gc
import json
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tests.interpreter import ROOT

# Numba and torch read these variables at import. Compiled kernels stay between sessions; each worker uses one core.
os.environ.setdefault("NUMBA_CACHE_DIR", str(ROOT / ".pytest_cache" / "numba"))
os.environ.setdefault("MPLBACKEND", "Agg")  # no test opens a window
# Without a folder of its own, matplotlib would list the machine's fonts in every process.
os.environ.setdefault("MPLCONFIGDIR", str(ROOT / ".pytest_cache" / "matplotlib"))
os.environ["XDG_CACHE_HOME"] = tempfile.mkdtemp(prefix="hgld-cache-")  # no test writes or reads the user's cache
if "PYTEST_XDIST_WORKER" in os.environ:
    for pool in ("OMP", "MKL", "OPENBLAS"):
        os.environ.setdefault(f"{pool}_NUM_THREADS", "1")

import pytest
from hypothesis import HealthCheck, settings

# `--hypothesis-profile thorough` tries 400 examples per test instead of 25.
slow_machine = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True, max_examples=25)
settings.register_profile("hgld", slow_machine)
settings.register_profile("thorough", slow_machine, max_examples=400)
settings.load_profile("hgld")

sys.modules["wandb"] = None  # pyright: ignore[reportArgumentType]  # timm would import it, which takes a second
# Without bytecode, every child process would compile the whole package again.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False
os.fsync = lambda fd: None  # fsync only matters for power cuts, and it slows every test that writes
gc.disable()  # imported modules and collected tests are never garbage

atexit.register(shutil.rmtree, os.environ["XDG_CACHE_HOME"], ignore_errors=True)
SLOW_SECONDS = 900  # time limit of slow tests and checks; pyproject.toml has the limit of fast tests


class DoctestFiles:
    """Plugin that keeps pytest from importing the modules of hgld without doctests, some of which need seconds."""

    def pytest_ignore_collect(self, collection_path: Path) -> bool | None:
        is_module = collection_path.suffix == ".py" and not collection_path.is_relative_to(Path(__file__).parent)
        return True if is_module and ">>>" not in collection_path.read_text(encoding="utf-8") else None


def pytest_configure(config: pytest.Config) -> None:
    """Register the plugin for all folders; a hook of this file applies to the folder of tests only."""
    config.pluginmanager.register(DoctestFiles())


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give slow tests and checks a longer time limit."""
    for item in items:
        if {"slow", "checks"} & item.keywords.keys() and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(SLOW_SECONDS))


def pytest_collection_finish() -> None:
    """Keep the garbage collector from scanning modules and tests again and again."""
    gc.freeze()
    atexit.register(gc.unfreeze)  # otherwise native libraries report leaks at exit
    gc.set_threshold(20_000, 50, 100)  # tests make many objects and few cycles
    gc.enable()


@pytest.fixture(scope="session")
def real_data() -> Path:
    """Folder of real datasets, from the variable HGLD_DATA. Without the variable, the test is skipped."""
    folder = os.environ.get("HGLD_DATA")
    if not folder:
        pytest.skip("HGLD_DATA is not set: no real data to test on")
    return Path(folder)


@pytest.fixture(scope="module")
def module_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """``tmp_path`` for the fixtures of a module."""
    return tmp_path_factory.mktemp("module")


@pytest.fixture
def hgld(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """``hgld(*words)`` runs the command in this process and returns exit code, stdout and stderr."""
    from hgld.cli import main  # this import is slow, and only some tests need it

    def run(*words: object) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as stop:
            main([str(word) for word in words])
        assert isinstance(stop.value.code, int)
        said = capsys.readouterr()
        return stop.value.code, said.out, said.err

    return run


@pytest.fixture
def output(hgld: Callable[..., tuple[int, str, str]]) -> Callable[..., str]:
    """``output(*words)`` runs a command that must succeed, and returns stdout; ``said`` is the expected stderr."""

    def run(*words: object, said: str | None = None) -> str:
        code, out, err = hgld(*words)
        assert (code, err) == (0, err if said is None else said)
        return out

    return run


@pytest.fixture
def json_of(output: Callable[..., str]) -> Callable[..., Any]:
    """``json_of(*words)`` runs a command with ``--json``, and returns its answer."""
    return lambda *words, **said: json.loads(output(*words, "--json", **said))


@pytest.fixture
def refusal(hgld: Callable[..., tuple[int, str, str]]) -> Callable[..., str]:
    """``refusal(*words)`` runs a command that must refuse its input without output, and returns stderr."""

    def run(*words: object) -> str:
        code, out, err = hgld(*words)
        assert (code, out) == (2, "")
        return err

    return run


@pytest.fixture
def no_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make report pages without figures, to save time."""
    from tests.undrawn import without_figures

    without_figures(monkeypatch)


@pytest.fixture(scope="session", autouse=True)
def heeded_signals() -> Iterator[None]:
    """Restore the default handlers of SIGINT and SIGHUP: a background job or nohup makes processes ignore them."""
    handlers = {signal.SIGINT: signal.default_int_handler, signal.SIGHUP: signal.SIG_DFL}
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture
def mat_files_here(monkeypatch):
    """Read MATLAB files in this process, which saves a second. tests/faults uses a child process, as hgld does."""

    def run_here(work, argument, **_):
        return work(argument)

    monkeypatch.setattr("hgld.pipelines.shards.sources.release.run_alone", run_here)


@pytest.fixture(scope="session")
def browser(tmp_path_factory):
    """Headless Chromium, which all tests share. Without Chromium, the test is skipped."""
    from tests.pipelines.headless_chromium import CHROMIUM, Page

    if CHROMIUM is None:
        pytest.skip("no Chromium on this machine")
    with Page(tmp_path_factory.mktemp("profile"), 1280, 900) as page:
        yield page


@pytest.fixture
def chromium(browser):
    """A new tab of Chromium."""
    browser.renew()
    return browser


@pytest.fixture(scope="module")
def cluster() -> Iterator[str]:
    """Start a Ray cluster of two processes, and return its address."""
    import ray

    environment = {"env_vars": {"PYTHONPATH": str(ROOT)}}
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, runtime_env=environment)
    yield ray.get_runtime_context().gcs_address
    ray.shutdown()
