"""The memory of a process: its limit, and the account that decoding threads share."""

import multiprocessing
import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from hgld import memory
from hgld.errors import ConfigError, InputError
from hgld.memory import MEMORY, SharedMemory, memory_limit
from tests.rows import refused

MIB = 1 << 20


@pytest.fixture(autouse=True)
def fresh_limit():
    memory_limit.cache_clear()
    yield
    memory_limit.cache_clear()


@pytest.mark.parametrize(
    ("asked", "expected"), [("1073741824", 1 << 30), ("2G", 2 << 30), ("800m", 800 * MIB), ("3 GiB", 3 << 30)]
)
def test_limit_is_read_from_the_environment(asked, expected, monkeypatch):
    monkeypatch.setenv("HGLD_MEMORY", asked)
    assert memory_limit() == expected


def limit_of(asked, *, monkeypatch):
    monkeypatch.setenv("HGLD_MEMORY", asked)
    memory_limit()


test_unusable_limit_is_refused = refused(
    limit_of,
    ["0", "much", "-1", "2X", "1e9"],
    ConfigError,
    r"HGLD_MEMORY is .*; expected an amount of memory such as 2G or 800M",
)


@pytest.mark.parametrize(("machine", "expected"), [(8 << 30, 512 * MIB), (1000 << 30, 20 << 30)])
def test_default_limit_is_a_share_of_the_machine(machine, expected, monkeypatch):
    monkeypatch.delenv("HGLD_MEMORY", raising=False)
    monkeypatch.setattr(memory, "machine_memory", lambda: machine)
    assert memory_limit() == pytest.approx(expected)


def test_threads_hold_at_most_the_limit_in_total_unless_one_thread_holds_all(monkeypatch):
    account, held, lock, seen = SharedMemory(), [], threading.Lock(), []
    sizes = random.Random(0).choices(range(17, 150), k=60)

    def work(size):
        with account.hold(size * MIB):
            with lock:
                held.append(size)
                seen.append(tuple(held))
            time.sleep(0.001)
            with lock:
                held.remove(size)

    monkeypatch.setattr(memory, "memory_limit", lambda: 100 * MIB)
    with ThreadPoolExecutor(6) as pool:
        list(pool.map(work, sizes))
    assert len(seen) == len(sizes)
    assert all(sum(together) <= 100 or len(together) == 1 for together in seen)


def test_memory_that_one_thread_holds_twice_is_free_again_after_an_error():
    account = SharedMemory()
    for _ in range(2):
        with pytest.raises(ValueError, match="damaged"), account.hold(memory_limit()), account.hold(memory_limit()):
            raise ValueError("damaged")  # a thread that holds memory does not wait for more


def _holds_all():
    with MEMORY.hold(memory_limit()):
        pass


def test_forked_process_does_not_wait_for_threads_of_its_parent():
    with MEMORY.hold(memory_limit()):
        child = multiprocessing.get_context("fork").Process(target=_holds_all)
        child.start()
        child.join(30)
    assert child.exitcode == 0


def test_more_memory_than_the_machine_has_is_refused_with_its_size(monkeypatch):
    monkeypatch.setattr(memory, "machine_memory", lambda: 2 << 30)
    expected = pytest.raises(InputError, match=r"weights\.pt: 4,096 MiB in memory; this machine has 2,048 MiB")
    with expected, SharedMemory().hold(4 << 30, "weights.pt"):
        pass
