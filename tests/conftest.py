"""Session-wide set-up: one cache of compiled kernels, one thread a worker, Ctrl-C, optional real data, hypothesis."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

# Before anything imports numba or torch, and for every process that a test starts: kernels are compiled once and kept
# between sessions, and the workers of pytest-xdist do not take each other's cores.
os.environ.setdefault("NUMBA_CACHE_DIR", str(Path(__file__).parents[1] / ".pytest_cache" / "numba"))
if "PYTEST_XDIST_WORKER" in os.environ:
    for pool in ("OMP", "MKL", "OPENBLAS"):
        os.environ.setdefault(f"{pool}_NUM_THREADS", "1")

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile("hgld", deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True)
settings.load_profile("hgld")


SLOW_SECONDS = 900  # of a slow test or a check; pyproject.toml has the limit of the fast ones


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give slow tests and checks the time that they need."""
    for item in items:
        if {"slow", "checks"} & item.keywords.keys() and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(SLOW_SECONDS))


@pytest.fixture(scope="session")
def real_data() -> Path:
    """The folder of real data sets named by HGLD_DATA; the test is skipped without it."""
    folder = os.environ.get("HGLD_DATA")
    if not folder:
        pytest.skip("HGLD_DATA is not set: no real data to test on")
    return Path(folder)


@pytest.fixture(scope="session", autouse=True)
def heeded_ctrl_c() -> Iterator[None]:
    """Ctrl-C is heeded, here and by what the tests start: a shell's background jobs begin with it ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)
