"""Atomic writing of files and folders, and locks that end with their process.

A file is first written under another name (``.NAME.part``), flushed to the disk, and then renamed. If the process is
killed, the path has either the earlier file or the complete new file, and the next process overwrites the temporary
file. If two processes or threads write the same file or folder, one waits for the other (``.NAME.lock``).
"""

import errno
import fcntl
import itertools
import json
import os
import pickletools
import shutil
import stat
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from io import FileIO
from pathlib import Path
from typing import IO, Any, BinaryIO, TypeVar

from hgld.errors import InputError, StorageError, excerpt
from hgld.memory import MEMORY

PART = ".part"
_CALLS = itertools.count()
# errors of file systems without locks; cluster file systems may have none
_NO_LOCKS = (errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK)
# errors of file systems that cannot flush folders
_NO_FLUSH = (errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.EBADF)
_Made = TypeVar("_Made")


class NoLockWarning(UserWarning):
    """A file system has no locks, so hgld would not notice that another process writes the same files."""


# -- reading -----------------------------------------------------------------------------------------------------------

_MOST_JSON_BYTES = 1 << 26  # a text with one emoji takes nine times its size
# maximum number of JSON values: each takes about 100 bytes of memory, even if it has 2 bytes in the file
_MOST_JSON_VALUES = 1 << 22
_FEW_JSON_BYTES = 1 << 16


def is_file(folder: Path, name: str) -> bool:
    """Tell whether a folder has a file; False for a name from a table that no file can have."""
    return os.path.isfile(os.path.join(folder, name))  # noqa: PTH113, PTH118  # Path.is_file fails if a name is too long


def open_regular(path: Path, *, follow_links: bool = True) -> BinaryIO:
    """Open a regular file for reading; raise an error for devices and for pipes, which would wait for a writer.

    Raises:
        OSError: the file cannot be opened, is not a regular file, or is a link although ``follow_links`` is False.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | (0 if follow_links else os.O_NOFOLLOW))
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    return open(descriptor, "rb")


def parse_json(
    data: bytes | str,
    where: str,
    *,
    kind: type | None = None,
    max_bytes: int = _MOST_JSON_BYTES,
    max_values: int = _MOST_JSON_VALUES,
) -> Any:
    """Parse foreign JSON; if the text would take too much memory, raise an error before parsing.

    Args:
        data: the text.
        where: name of the source in messages.
        kind: required type of the value, ``dict`` or ``list``; None: any type.
        max_bytes: maximum size of the text in bytes.
        max_values: maximum number of values, keys and brackets.

    Raises:
        InputError: the text is not JSON, is too large or nested too deep, or its value does not have the type ``kind``.
    """
    if len(data) > max_bytes:
        raise InputError(f"{where}: more than {max_bytes:,} bytes; expected a smaller JSON file.")
    marks = (b"[", b"{", b",", b":") if isinstance(data, bytes) else ("[", "{", ",", ":")
    # short texts need no count: a text has fewer values than characters
    values = sum(data.count(mark) for mark in marks) if len(data) > min(max_values, _FEW_JSON_BYTES) else 0  # type: ignore[arg-type]
    if values > max_values:
        raise InputError(f"{where}: JSON of {values:,} values and brackets; expected at most {max_values:,}.")
    try:
        with MEMORY.hold(len(data) + 100 * values, where):
            found = json.loads(data)
    except InputError:
        raise
    except (ValueError, RecursionError) as error:
        raise InputError(f"{where}: not valid JSON ({excerpt(error)}).") from error
    if kind is not None and not isinstance(found, kind):
        expected = "object" if kind is dict else kind.__name__
        raise InputError(f"{where}: holds {type(found).__name__}; expected a JSON {expected}.")
    return found


def read_json(path: Path, *, max_bytes: int = _MOST_JSON_BYTES, fix: str = "", **bounds: Any) -> Any:
    """Read a JSON file with the limits of :func:`parse_json`.

    Args:
        path: path of the file.
        max_bytes: maximum size of the file in bytes.
        fix: last sentence of error messages: how to fix an unusable file.
        bounds: ``kind`` and ``max_values`` of :func:`parse_json`.

    Raises:
        InputError: the file cannot be read, or :func:`parse_json` raises an error.
    """
    try:
        with open_regular(path) as file:
            data = file.read(max_bytes + 1)
        return parse_json(data, str(path), max_bytes=max_bytes, **bounds)
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror or error}). {fix}".rstrip()) from error
    except InputError as error:
        raise InputError(f"{error} {fix}".rstrip()) from error


# maximum size of a safetensors header: 160,000 tensors; parsing takes 20 times as much memory
_MOST_TENSOR_NAMES = 1 << 24
_MOST_OPCODES = 1 << 21  # each can make an object of 60 to 200 bytes


@contextmanager
def reading_tensors(path: Path) -> Iterator[None]:
    """Reserve memory for the tensors of a file (safetensors, pickle) while the ``with`` block reads them.

    Raises:
        InputError: the tensors take more memory than the machine has, or the file names too many of them.
        OSError: the file cannot be read.
    """
    with open_regular(path) as file:
        names, size = int.from_bytes(file.read(8), "little"), os.fstat(file.fileno()).st_size
    if path.suffix == ".safetensors" and _MOST_TENSOR_NAMES < names < size:
        raise InputError(f"{path}: a header of {names:,} bytes; expected at most {_MOST_TENSOR_NAMES:,}.")
    with MEMORY.hold(size, str(path)):
        yield


def check_pickles(file: IO[bytes], count: int = 1) -> None:
    """Parse the opcodes of pickles in a row, without making their objects.

    Raises:
        ValueError: a pickle has more opcodes than any file that hgld reads, ends early, or makes a ``bytearray``, which
            could have any size.
    """
    opcodes = (opcode for _ in range(count) for opcode in pickletools.genops(file))
    for number, (_, name, _) in enumerate(opcodes):
        if number > _MOST_OPCODES or name in ("builtins bytearray", "__builtin__ bytearray"):
            raise ValueError(f"more than {_MOST_OPCODES:,} opcodes" if number > _MOST_OPCODES else name)


# -- writing -----------------------------------------------------------------------------------------------------------


def sync(path: Path) -> None:
    """Flush a file or folder to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in _NO_FLUSH or not stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise
    finally:
        os.close(descriptor)


def aside_of(path: Path, *, racing: bool = False) -> Path:
    """Return the temporary path at which a file or folder is written before it is renamed.

    Args:
        path: path of the final file.
        racing: whether several processes may write the file at the same time; each call then returns a different path.
    """
    return path.with_name(f".{path.name}.{os.getpid()}-{next(_CALLS)}{PART}" if racing else f".{path.name}{PART}")


def lock_of(path: Path) -> Path:
    """Return the path of the lock for writing a file or folder, ``.NAME.lock`` in the same folder.

    The temporary file itself cannot be the lock: over SMB, only the descriptor that holds the lock can write to a
    locked file, and some writers (safetensors) replace the file at the given path.
    """
    return path.with_name(f".{path.name}.lock")


def put_in_place(aside: Path, path: Path) -> None:
    """Flush a temporary file (:func:`aside_of`) to the disk, and rename it to its final path.

    The folder is not flushed: if a power failure undoes the rename, hgld only repeats the work.
    """
    sync(aside)
    aside.replace(path)


def existing_parent(path: Path) -> Path:
    """Return the folder itself if it exists, or its nearest existing parent."""
    absolute = path.absolute()
    return next(folder for folder in (absolute, *absolute.parents) if folder.is_dir())


def write_atomic(path: Path, content: bytes | str | Callable[[Path], object], *, racing: bool = False) -> None:
    """Write a file completely, or leave the existing file unchanged.

    Args:
        path: the file; its folder exists.
        content: bytes, text (written as UTF-8), or a function that writes a file at the given path.
        racing: whether several processes may write the file at the same time.
    """
    aside = aside_of(path, racing=racing)
    with nullcontext() if racing else file_lock(lock_of(path), keep=False):
        try:
            with open(aside, "wb") as file:
                mode = os.fstat(file.fileno()).st_mode
                if not callable(content):
                    file.write(content.encode() if isinstance(content, str) else content)
            if callable(content):
                content(aside)
                aside.chmod(mode)  # some writers (safetensors) create files that other users cannot read
            put_in_place(aside, path)
        except BaseException:
            aside.unlink(missing_ok=True)
            raise


def write_folder(path: Path, fill: Callable[[Path], _Made]) -> _Made:
    """Fill a new folder, then replace the existing folder with it; until then the existing folder is unchanged.

    If the process is killed between the two renames, the earlier folder keeps its temporary name; the next process
    first renames it back.

    Args:
        path: path of the folder.
        fill: function that writes files into a given empty folder.

    Returns:
        the result of ``fill``.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    aside, before = aside_of(path), path.with_name(f".{path.name}.before{PART}")
    with file_lock(lock_of(path), keep=False):
        try:
            if not path.exists():
                with suppress(FileNotFoundError):
                    before.rename(path)
            _remove(aside, before)
            aside.mkdir()
            made = fill(aside)
            _flush(aside)
            with suppress(FileNotFoundError):
                if not stat.S_ISDIR(path.lstat().st_mode):
                    raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(path))
                path.rename(before)
            aside.replace(path)
            sync(path.parent)
        finally:
            try:
                _remove(aside, *([before] if path.exists() else []))
            except BaseException:  # even after Ctrl-C, finish the removal
                _remove(aside)
                raise
    return made


def _remove(*folders: Path) -> None:
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)


def _flush(folder: Path) -> None:
    """Flush a folder and its content to the disk; give its files the permissions of new files."""
    mode = folder.stat().st_mode
    for file in folder.rglob("*"):
        if file.is_file():
            file.chmod(mode & 0o666)
        sync(file)
    sync(folder)


@contextmanager
def file_lock(path: Path, busy: str = "", *, keep: bool = True) -> Iterator[FileIO]:
    """Lock a file against other processes; the system releases the lock when this process ends, for any reason.

    Args:
        path: the file, created if it does not exist.
        busy: message of the error if another process holds the lock; empty: wait for that process.
        keep: whether the file stays afterwards.

    Yields:
        the file, opened unbuffered for reading and appending.

    Raises:
        StorageError: ``busy`` is given, and another process holds the lock or the file cannot be opened.
        OSError: ``busy`` is empty, and the file cannot be opened.

    Warns:
        NoLockWarning: ``busy`` is given, and the file system has no locks.
    """
    try:
        file = _locked(path, busy)
    except BlockingIOError as error:
        raise StorageError(busy) from error
    except OSError as error:
        if not busy:
            raise
        raise StorageError(
            f"{path}: cannot be opened for writing ({error.strerror}). Free space, or check the folder's permissions."
        ) from error
    try:
        yield file
    finally:
        with file:
            if not keep:
                with suppress(OSError):  # a file that stays is used again; an error here would replace the block's own
                    path.unlink()


def _locked(path: Path, busy: str) -> FileIO:
    while True:
        file = open(path, "a+b", buffering=0)  # noqa: SIM115  # the caller closes the file
        try:
            fcntl.flock(file, fcntl.LOCK_EX | (fcntl.LOCK_NB if busy else 0))
            with suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(file.fileno()), path.stat()):
                    return file
        except BaseException as error:
            if isinstance(error, OSError) and error.errno in _NO_LOCKS:
                if busy:
                    told = f"the file system of {path.parent} has no locks ({error.strerror}); make sure that no other "
                    warnings.warn(f"{told}process of hgld writes there.", NoLockWarning, stacklevel=2)
                return file
            file.close()
            raise
        file.close()  # the previous holder deleted the lock file: open it again
