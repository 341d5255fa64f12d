"""A disk that fails at the n-th change: the process stops there as by kill -9, or the disk is full, or read-only.

A change is a file that is opened for writing, renamed or removed, or a folder that is made or removed, of this process
and under one folder. Python tells an audit hook of each before it happens, in whatever thread; what compiled code
writes by itself is seen where polars writes parquet files.
"""

import errno
import os
import resource
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import polars as pl
import pytest

Fault = Literal["stop", "kill", "full", "read-only", "interrupt", "terminate", "hang up"]
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
_SIGNALS = {"interrupt": signal.SIGINT, "terminate": signal.SIGTERM, "hang up": signal.SIGHUP}
_REMOVALS = {"os.remove", "os.rmdir"}
_FOLDER_AT = {"os.rename": 2, "os.link": 2, "os.symlink": 2, "os.mkdir": 2} | dict.fromkeys(_REMOVALS, 1)  # dir_fd


class Stopped(BaseException):
    """Stands for kill -9: error handling does not get to the disk either."""


class _Disk:
    """What the hook counts while a run is watched."""

    def __init__(self, root: Path, after: int, fault: Fault) -> None:
        self.root, self.left, self.fault, self.is_busy = root.resolve(), after, fault, False

    def holds(self, path: Any, folder: int = -1) -> bool:
        if isinstance(path, int):
            return False
        place = Path(os.fsdecode(path))
        if folder >= 0:
            place = Path(f"/proc/self/fd/{folder}").readlink() / place
        return place.absolute().is_relative_to(self.root)

    def change(self, kind: str, torn: Callable[[], object] = lambda: None) -> None:
        """Let a change happen, or raise what the fault makes of it."""
        self.left -= 1
        if self.left >= 0:
            return
        if self.left == -1:
            self.is_busy = True
            try:
                torn()
            finally:
                self.is_busy = False
        match self.fault:
            case "stop" if threading.current_thread() is threading.main_thread():
                raise Stopped
            case "stop":  # a thread that is gone without a word would be waited for
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            case "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            case "full" if kind not in _REMOVALS:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            case "read-only":
                raise OSError(errno.EROFS, os.strerror(errno.EROFS))
            case "interrupt" | "terminate" | "hang up" if self.left == -1:
                signal.raise_signal(_SIGNALS[self.fault])

    def heard(self, event: str, given: tuple[Any, ...]) -> None:
        if self.is_busy:
            return
        if event == "open":
            path, _, flags = given
            if flags & _WRITES and self.holds(path):
                self.change(event, lambda: self._tear(path, flags))
        elif event in _FOLDER_AT:
            if self.holds(given[0], given[_FOLDER_AT[event]]):
                self.change(event)
        elif event == "os.truncate":
            is_open = isinstance(given[0], int)
            if self.holds("" if is_open else given[0], given[0] if is_open else -1):
                self.change(event)

    def _tear(self, path: Any, flags: int) -> None:
        """Leave what a stop behind opening leaves: an empty file where a new one was begun."""
        if self.fault in ("stop", "kill", "full") and flags & os.O_CREAT and not Path(os.fsdecode(path)).is_dir():
            os.close(os.open(path, flags & ~os.O_EXCL, 0o666))


_watched: _Disk | None = None
_hooked: list[bool] = []


def _hook(event: str, given: tuple[Any, ...]) -> None:
    if _watched is not None:
        _watched.heard(event, given)


@contextmanager
def failing_disk(root: Path, after: int, fault: Fault = "stop") -> Iterator[None]:
    """Let so many changes under a folder happen, and the fault from the next one on.

    stop: each raises :class:`Stopped`. kill: SIGKILL. full: all but removals fail. read-only: all fail. interrupt,
    terminate, hang up: SIGINT, SIGTERM or SIGHUP comes before the next one, once; the changes behind it happen.
    """
    global _watched  # an audit hook cannot be removed
    if not _hooked:
        sys.addaudithook(_hook)
        _hooked.append(True)
    disk, write = _Disk(root, after, fault), pl.DataFrame.write_parquet

    def write_parquet(frame: pl.DataFrame, file: Any, **named: Any) -> None:
        if isinstance(file, str | Path) and disk.holds(file):
            disk.change("open", lambda: fault in ("stop", "full") and Path(file).write_bytes(b"PAR1"))
        write(frame, file, **named)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pl.DataFrame, "write_parquet", write_parquet)
        _watched = disk
        try:
            yield
        finally:
            _watched = None


@contextmanager
def counted_changes(root: Path) -> Iterator[list[str]]:
    """Let all changes under a folder happen; what they were."""
    seen: list[str] = []
    with failing_disk(root, 1 << 60), pytest.MonkeyPatch.context() as patch:
        patch.setattr(_Disk, "change", lambda self, kind, torn=None: seen.append(kind))
        yield seen


@contextmanager
def largest_file(size: int) -> Iterator[None]:
    """Refuse to let any file grow over so many bytes, as a full disk does: compiled code and buffers meet it too."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def stop_everywhere(
    prepare: Callable[[int], Path], run: Callable[[Path], object], every: int = 1, first: int = 0
) -> Iterator[Path]:
    """Stop a run after 0, 1, 2, ... changes of the disk, until it comes to its end.

    Args:
        prepare: makes the folder that the run with so many changes works in.
        run: what is stopped.
        every: take only each so many-th of the moments.
        first: the first of them.

    Yields:
        the folder, after the stop.
    """
    for changes in range(first, 10_000, every):
        place = prepare(changes)
        try:
            with failing_disk(place, changes):
                run(place)
        except Stopped:
            yield place
        else:
            return
