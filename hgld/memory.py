"""Account of the memory in which the threads of a process read files of others: tables, JSON, tensors and images.

The environment variable ``HGLD_MEMORY`` sets this limit in bytes, or with K, M, G or T (powers of 1,024). The default
is 2% of the memory of the machine or its container, and at least 512 MiB. If the files of several threads would take
more together, threads wait. A single file may take more than the limit in proportion to its size, but never more than
the machine has.
"""

import os
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

from hgld.errors import ConfigError, InputError, quoted

VARIABLE = "HGLD_MEMORY"
_LEAST, _SHARE = 1 << 29, 0.02
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
_UNCOUNTED = 1 << 24  # files and images up to this many bytes are not counted, because a lock would take too long


@cache
def memory_limit() -> int:
    """Return the limit in bytes.

    Raises:
        ConfigError: ``HGLD_MEMORY`` is not an amount.
    """
    asked = os.environ.get(VARIABLE, "")
    if not asked:
        return max(_LEAST, int(_SHARE * machine_memory()))
    amount = re.fullmatch(r"([0-9]{1,15}) ?([KMGT]?)(?:i?B)?", asked.strip(), re.IGNORECASE)
    if not amount or not int(amount[1]):
        raise ConfigError(f"{VARIABLE} is {quoted(asked)}; expected an amount of memory such as 2G or 800M.")
    return int(amount[1]) * _UNITS[amount[2].upper()]


def machine_memory() -> int:
    """Return the bytes of the machine's memory, or of its container (cgroup 2 or 1) if that has less."""
    limits = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    return min(limits + [limit for limit, _ in _containers()])


def free_memory(processes: int) -> int:
    """Return the bytes of this machine's free memory per process.

    If the limit of a container (cgroup 2 or 1) is lower than the free memory of the machine, the limit is used.
    """
    # Linux can give MemAvailable without swapping: it counts the pages of cached files, which AVPHYS does not.
    available = re.search(r"MemAvailable: +(\d+) kB", _read_text("/proc/meminfo"))
    pages = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    free = [int(available[1]) << 10 if available else pages]
    return min(free + [max(limit - used, 0) for limit, used in _containers()]) // processes


def _containers() -> Iterator[tuple[int, int]]:
    """Yield the limit and the use of memory of each cgroup (2 or 1) that has a limit."""
    for names in (("memory.max", "memory.current"), ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes")):
        limit, used = (_read_text(f"/sys/fs/cgroup/{name}").strip() for name in names)
        if limit.isdigit() and used.isdigit():
            yield int(limit), int(used)


def _read_text(path: str) -> str:
    try:
        return Path(path).read_text(encoding="ascii")
    except OSError:
        return ""


class SharedMemory:
    """Account of the memory that the threads of a process hold in total."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Forget all reserved memory; a forked process calls this, because it has no threads of its parent."""
        self._held = 0
        self._changed = threading.Condition()
        self._own = threading.local()  # bytes that the current thread holds

    @contextmanager
    def hold(self, size: int, what: str = "") -> Iterator[None]:
        """Wait until ``size`` more bytes fit into the threads' limit, or no other thread holds memory; then hold them.

        Raises:
            InputError: the machine has less memory. The message begins with ``what``.
        """
        if size <= _UNCOUNTED:
            yield
            return
        limit = memory_limit()
        if size > (most := max(limit, machine_memory())):
            raise InputError(f"{what}: {size >> 20:,} MiB in memory; this machine has {most >> 20:,} MiB.")
        own = getattr(self._own, "held", 0)
        with self._changed:
            # a thread that already holds memory never waits, because two such threads would wait for each other
            self._changed.wait_for(lambda: own or not self._held or self._held + size <= limit)
            self._held += size
        self._own.held = own + size
        try:
            yield
        finally:
            self._own.held = own
            with self._changed:
                self._held -= size
                self._changed.notify_all()


MEMORY = SharedMemory()
os.register_at_fork(after_in_child=MEMORY.reset)
