"""A simulated disk that fails at its n-th change: the process is killed, or the disk becomes full or read-only.

A change opens a file for writing, renames, removes or truncates a file, or makes or removes a folder. Only changes
under one given folder count. A Python audit hook sees each change before it happens, in every thread. Parquet files
that polars writes are counted too. Child interpreters with the variables of :func:`in_workers` share one count, and all
get the signal.
"""

import errno
import json
import os
import resource
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

from tests.interpreter import ROOT

EVERY = int(os.environ.get("HGLD_STOPS", "0"))  # the tests inject a failure at every n-th change; 0: at a few changes
Fault = Literal["stop", "kill", "full", "read-only", "interrupt", "terminate", "hang up"]
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
_SIGNALS = {"kill": signal.SIGKILL, "interrupt": signal.SIGINT, "terminate": signal.SIGTERM, "hang up": signal.SIGHUP}
_REMOVALS = {"os.remove", "os.rmdir"}
# position of the argument dir_fd in each audit event
_FOLDER_AT = {"os.rename": 2, "os.link": 2, "os.symlink": 2, "os.mkdir": 2} | dict.fromkeys(_REMOVALS, 1)


class Stopped(BaseException):
    """Simulated kill -9: after it, error handlers cannot write to the disk either."""


class _Disk:
    """Counter of the changes made by one process, or by several processes that share a file."""

    def __init__(self, root: Path, after: int, fault: Fault, group: int = 0, count: Path | None = None) -> None:
        self.root, self.after, self.fault, self.group = root.resolve(), after, fault, group
        self.seen, self.count, self.is_busy = 0, count, False

    def holds(self, path: Any, folder: int = -1) -> bool:
        if isinstance(path, int):
            return False
        place = Path(os.fsdecode(path))
        if folder >= 0:
            place = Path(f"/proc/self/fd/{folder}").readlink() / place
        return place.absolute().is_relative_to(self.root)

    def _counted(self) -> int:
        """Return the number of this change. Several processes count by appending a byte to one file."""
        self.seen += 1
        if self.count is not None:
            descriptor = os.open(self.count, os.O_WRONLY | os.O_APPEND)
            os.write(descriptor, b".")
            self.seen = os.lseek(descriptor, 0, os.SEEK_CUR)
            os.close(descriptor)
        return self.seen

    def change(self, kind: str, torn: Callable[[], object] = lambda: None) -> None:
        """Let a change happen, or raise the injected failure."""
        beyond = self._counted() - self.after
        if beyond <= 0:
            return
        if beyond == 1:
            self.is_busy = True
            try:
                torn()
            finally:
                self.is_busy = False
        match self.fault:
            case "stop" if threading.current_thread() is threading.main_thread():
                raise Stopped
            case "stop":  # raising Stopped in another thread would leave the main thread waiting for it
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            case "full" if kind not in _REMOVALS:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            case "read-only":
                raise OSError(errno.EROFS, os.strerror(errno.EROFS))
            case "kill" | "interrupt" | "terminate" | "hang up" if beyond == 1 or self.fault == "kill":
                if self.group:
                    os.killpg(self.group, _SIGNALS[self.fault])
                # a worker may be outside the process group, so it signals itself
                if self.fault == "kill" or not self.group:
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
        """Leave an empty file, like a stop right after a new file was opened."""
        if self.fault in ("stop", "kill", "full") and flags & os.O_CREAT and not Path(os.fsdecode(path)).is_dir():
            os.close(os.open(path, flags & ~os.O_EXCL, 0o666))


_watched: _Disk | None = None
_hooked: list[bool] = []


def _hook(event: str, given: tuple[Any, ...]) -> None:
    if _watched is not None:
        _watched.heard(event, given)


def _watch_polars() -> Callable[[], None]:
    """Count the parquet files that polars writes to paths; return the function that restores polars."""
    from polars import DataFrame

    write = DataFrame.write_parquet

    def write_parquet(frame: DataFrame, file: Any, **named: Any) -> None:
        disk = _watched
        if disk is not None and isinstance(file, str | Path) and disk.holds(file):
            disk.change("open", lambda: disk.fault in ("stop", "kill", "full") and Path(file).write_bytes(b"PAR1"))
        write(frame, file, **named)

    DataFrame.write_parquet = write_parquet  # type: ignore[assignment]

    def end() -> None:
        DataFrame.write_parquet = write

    return end


@contextmanager
def failing_disk(root: Path, after: int, fault: Fault = "stop", workers: Path | None = None) -> Iterator[None]:
    """Let ``after`` changes under a folder succeed, then inject a failure into every later change.

    With "stop", each change raises :class:`Stopped`. With "kill", each change sends SIGKILL. With "full", all changes
    except removals fail. With "read-only", all changes fail. With "interrupt", "terminate" or "hang up", one SIGINT,
    SIGTERM or SIGHUP comes before the next change, and later changes succeed.

    Args:
        root: folder whose changes count.
        after: number of changes that succeed.
        fault: type of the injected failure. "stop" works only in one process.
        workers: folder given to :func:`in_workers`. Processes with its variables fail too, and a signal goes to the
            whole process group.
    """
    global _watched  # Python cannot remove an audit hook, so one hook reads this variable
    if not _hooked:
        sys.addaudithook(_hook)
        _hooked.append(True)
    end, disk = _watch_polars(), _Disk(root, after, fault)
    if workers is not None:
        disk = _Disk(root, after, fault, os.getpgrp(), workers / _COUNT)
        (workers / _COUNT).write_bytes(b"")
        (workers / f"{_PLAN}.part").write_text(json.dumps([str(root), after, fault, disk.group]))
        (workers / f"{_PLAN}.part").replace(workers / _PLAN)
    _watched = disk
    try:
        yield
    finally:
        _watched = None
        end()
        if workers is not None:
            (workers / _PLAN).unlink()


# -- interpreters that others start -----------------------------------------------------------------------------------

_WORKERS = "HGLD_TESTS_FAILING_DISK"
_PLAN, _COUNT = "plan.json", "count"


def in_workers(folder: Path) -> dict[str, str]:
    """Return environment variables that make interpreters read the plan of :func:`failing_disk` from a folder."""
    folder.mkdir(parents=True)
    (folder / "sitecustomize.py").write_text("from tests.faults.disk import watch_here\n\nwatch_here()\n")
    paths = [str(folder), str(ROOT), os.environ.get("PYTHONPATH", "")]
    return {_WORKERS: str(folder), "PYTHONPATH": os.pathsep.join(filter(None, paths))}


def let_be(workers: Path) -> None:
    """Remove the plan that a killed process left."""
    (workers / _PLAN).unlink(missing_ok=True)


def changes_of(workers: Path) -> int:
    """Return the number of changes that all processes made since the last plan."""
    return (workers / _COUNT).stat().st_size


def watch_here() -> None:
    """Count the changes of this interpreter while a plan exists."""
    folder = Path(os.environ[_WORKERS])
    known: list[Any] = []

    def hook(event: str, given: tuple[Any, ...]) -> None:
        global _watched
        if event == "import" or (event == "open" and not given[2] & _WRITES):
            if "polars" not in known and hasattr(sys.modules.get("polars"), "DataFrame"):
                known.append("polars")
                _watch_polars()
        elif (event in ("open", "os.truncate") or event in _FOLDER_AT) and not (_watched and _watched.is_busy):
            try:
                root, after, fault, group = plan = json.loads((folder / _PLAN).read_text())
            except FileNotFoundError:
                _watched = None
                return
            if _watched is None or known[-1] != plan:
                known.append(plan)
                _watched = _Disk(Path(root), after, fault, group, folder / _COUNT)
            _watched.heard(event, given)

    sys.addaudithook(hook)


# -- other failures ---------------------------------------------------------------------------------------------------


@contextmanager
def counted_changes(root: Path) -> Iterator[list[str]]:
    """Let all changes under a folder succeed; yield the list of their types."""
    seen: list[str] = []

    class Counts(_Disk):
        def change(self, kind: str, torn: Callable[[], object] = lambda: None) -> None:
            seen.append(kind)

    global _watched
    with failing_disk(root, 1 << 60):
        _watched = Counts(root, 1 << 60, "stop")
        yield seen


@contextmanager
def nfs_removals(root: Path) -> Iterator[list[Path]]:
    """Remove and replace open files under a folder as an NFS client does.

    The client renames an open file to ``.nfs`` and a number ("silly rename"). Nobody can remove this file until it is
    closed, and its folder is not empty so long. The file disappears when this process has closed it.

    Yields:
        the renamed files so far.
    """
    made: list[Path] = []
    plain: dict[str, Any] = {name: getattr(os, name) for name in ("unlink", "remove", "replace", "rename", "rmdir")}

    def place_of(path: Any, folder: int | None) -> Path:
        base = Path(f"/proc/self/fd/{folder}").readlink() if folder is not None else Path()
        return (base / os.fsdecode(path)).absolute()

    def is_open(path: Path) -> bool:
        held = [*Path("/proc/self/fd").iterdir()]
        mapped = {line.split(maxsplit=5)[-1].strip() for line in Path("/proc/self/maps").read_text().splitlines()}
        return str(path) in mapped or any(link.exists() and link.samefile(path) for link in held)

    def free_closed() -> None:
        for path in [path for path in made if path.exists() and not is_open(path)]:
            plain["unlink"](path)

    def keep_open(path: Path) -> bool:
        """Rename an open regular file of the folder; return whether it was open."""
        if not path.is_relative_to(root.resolve()) or path.is_symlink() or not path.is_file() or not is_open(path):
            return False
        if path in made:
            raise OSError(errno.EBUSY, os.strerror(errno.EBUSY), str(path))
        made.append(path.with_name(f".nfs{len(made):012x}"))
        plain["rename"](path, made[-1])
        return True

    def remove(path: Any, *, dir_fd: int | None = None) -> None:
        free_closed()
        if not keep_open(place_of(path, dir_fd)):
            plain["unlink"](path, dir_fd=dir_fd)

    def move(source: Any, target: Any, *, src_dir_fd: int | None = None, dst_dir_fd: int | None = None) -> None:
        free_closed()
        keep_open(place_of(target, dst_dir_fd))
        plain["rename"](source, target, src_dir_fd=src_dir_fd, dst_dir_fd=dst_dir_fd)

    def remove_folder(path: Any, *, dir_fd: int | None = None) -> None:
        free_closed()
        plain["rmdir"](path, dir_fd=dir_fd)

    changed = {"unlink": remove, "remove": remove, "replace": move, "rename": move, "rmdir": remove_folder}
    for name, function in changed.items():
        setattr(os, name, function)
    try:
        yield made
    finally:
        for name, function in plain.items():
            setattr(os, name, function)
        free_closed()


@contextmanager
def largest_file(size: int) -> Iterator[None]:
    """Limit the size of every file in bytes, which also stops writes by compiled code."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def stop_everywhere(
    prepare: Callable[[int], Path], run: Callable[[Path], object], every: int = 1, first: int = 0
) -> Iterator[Path]:
    """Stop a run after 0, 1, 2, ... changes of the disk, until a run finishes without a stop.

    Args:
        prepare: function that makes the folder of a run, given the number of changes before its stop.
        run: function to stop.
        every: difference between the change numbers of successive stops.
        first: number of changes before the first stop.

    Yields:
        Folder of each stopped run.
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
