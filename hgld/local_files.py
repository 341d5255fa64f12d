"""Files of one folder, read at any offset by any number of threads and processes."""

import os
import threading
from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO

from hgld.errors import InputError, StorageError

MOST_OPEN_FILES = 128  # a process may usually have 1,024
_STREAM_BUFFER = 1 << 20


class _OpenFile:
    """A descriptor that closes with its last user, so that one thread may forget it while another still reads."""

    __slots__ = ("descriptor",)
    _close = staticmethod(os.close)  # module names may be gone when the last one closes at exit

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor

    def __del__(self) -> None:
        self._close(self.descriptor)


class LocalFiles:
    """Reads files of a folder by name; keeps the last used ones open, in every process its own.

    Args:
        folder: where the files are.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._forget_all()

    def __getstate__(self) -> Path:
        return self._folder

    def __setstate__(self, folder: Path) -> None:
        self.__init__(folder)

    def _forget_all(self) -> None:
        self._process = os.getpid()
        self._lock = threading.Lock()
        self._open: OrderedDict[str, _OpenFile] = OrderedDict()

    def _file(self, name: str) -> _OpenFile:
        if self._process != os.getpid():  # after a fork the lock may be held by a thread that is not here
            self._forget_all()
        with self._lock:
            file = self._open.get(name)
            if file is not None:
                self._open.move_to_end(name)
                return file
        file = _OpenFile(self._descriptor(name))
        with self._lock:
            self._open[name] = file
            if len(self._open) > MOST_OPEN_FILES:
                self._open.popitem(last=False)
        return file

    def path(self, name: str) -> Path:
        """Path of a file that is there.

        Raises:
            InputError: there is none, or it is a link that leads out of the folder.
        """
        path = self._folder / name
        if path.resolve().parent != self._folder.resolve():
            raise InputError(f"{path}: a link that leads out of the folder is not followed. Put the file itself there.")
        if not path.is_file():
            found = "this is a folder, pipe or device" if path.exists() else "no such file"
            raise InputError(f"{path}: {found}. Copy the file there, or build the dataset again.")
        return path

    def _descriptor(self, name: str) -> int:
        path = self.path(name)
        try:
            return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise StorageError(f"{path}: cannot be opened ({error.strerror or error}).") from error

    def exists(self, name: str) -> bool:
        return (self._folder / name).is_file()

    def read_at(self, name: str, offset: int, size: int) -> bytes:
        """``size`` bytes from ``offset``, fewer where the file ends."""
        return self._read(self._file(name), name, offset, size)

    def read_many(self, requests: Sequence[tuple[str, int, int]]) -> list[bytes]:
        """Ranges (name, offset, size), each shorter where its file ends.

        The system is told of all before the first is waited for, which makes a cold disk three times as fast.
        """
        files = {name: self._file(name) for name in {name for name, _, _ in requests}}
        descriptors = {name: file.descriptor for name, file in files.items()}
        for name, offset, size in requests:
            os.posix_fadvise(descriptors[name], offset, size, os.POSIX_FADV_WILLNEED)
        try:
            result = [os.pread(descriptors[name], size, offset) for name, offset, size in requests]
        except OSError:
            return [self._read(files[name], name, offset, size) for name, offset, size in requests]  # says which
        for position, (name, offset, size) in enumerate(requests):
            if len(result[position]) < size:
                result[position] = self._read(files[name], name, offset, size)
        return result

    def _read(self, file: _OpenFile, name: str, offset: int, size: int) -> bytes:
        try:
            data = os.pread(file.descriptor, size, offset)
            while len(data) < size and (more := os.pread(file.descriptor, size - len(data), offset + len(data))):
                data += more
        except OSError as error:
            raise StorageError(
                f"{self._folder / name}: {size} bytes at offset {offset} cannot be read ({error.strerror or error})."
            ) from error
        return data

    def open_stream(self, name: str, offset: int) -> BinaryIO:
        """The file from ``offset`` to its end, to be closed by the caller."""
        descriptor = self._descriptor(name)
        os.posix_fadvise(descriptor, offset, 0, os.POSIX_FADV_SEQUENTIAL)
        file = open(descriptor, "rb", buffering=_STREAM_BUFFER)  # noqa: SIM115  # the caller closes it
        file.seek(offset)
        return file
