"""Readers of files from outside: regular files only, bounded, hashed while they are read."""

import errno
import hashlib
import io
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from io import BufferedReader
from pathlib import Path
from typing import Any, BinaryIO, cast

from hgld.data.format import MAX_MANIFEST_BYTES, Manifest
from hgld.errors import ImageError, InputError
from hgld.files import open_regular

_FILE_ERRORS = {errno.EACCES, errno.EPERM, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG, errno.ENXIO}


class HashedReader(io.RawIOBase):
    """A file that counts and hashes the bytes that are read.

    Attributes:
        bytes: number of bytes read.
        digest: of the same bytes.
    """

    def __init__(self, file: Any, algorithm: str) -> None:
        self.file, self.bytes = file, 0
        self.digest = hashlib.new(algorithm, usedforsecurity=False)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any, /) -> int:
        count = self.file.readinto(buffer)
        self.bytes += count
        self.digest.update(memoryview(buffer)[:count])
        return count


@contextmanager
def opened_hashed(file: Any, algorithm: str) -> Iterator[tuple[BinaryIO, HashedReader]]:
    """Give a file for reading, and what hashes it; at the end it is read to its last byte."""
    hashed = HashedReader(file, algorithm)
    stored = cast(BinaryIO, BufferedReader(hashed, 1 << 20))
    yield stored, hashed
    while stored.read(1 << 20):  # bytes behind a tar's end mark belong to the checksum
        pass


@contextmanager
def opened_regular(path: Path) -> Iterator[BinaryIO]:
    """Open a file of a dataset directory for reading; never through a link, never a device or pipe.

    Raises:
        InputError: it is no regular file, or cannot be read.
    """
    try:
        file = open_regular(path, follow_links=False)
    except OSError as error:
        what = "a symbolic link, which is not followed" if path.is_symlink() else error.strerror
        raise InputError(f"{path}: cannot be read ({what}). Put the file itself there.") from error
    with file:
        yield file


def read_manifest(path: Path) -> Manifest:
    """Read the manifest of a dataset directory.

    Raises:
        InputError: it cannot be read, or is no manifest.
    """
    with opened_regular(path) as file:
        return Manifest.from_json(file.read(MAX_MANIFEST_BYTES + 1), str(path))


def read_inside(root: Path, file: str, most: int) -> bytes:
    """Return the bytes of a regular file of a folder.

    Args:
        root: the folder.
        file: POSIX path relative to it.
        most: bytes at most.

    Raises:
        ImageError: ``missing``, ``unreadable``, ``too-large``, or ``unsafe-path``: it leads out of the folder,
            by ``..`` or by a link, or is no regular file.
        InputError: the disk or the network fails, which says nothing about the file.
    """
    home = os.path.realpath(root)
    try:
        real = os.path.realpath(os.path.join(root, file))  # noqa: PTH118  # millions of files: Path takes ten times as long
        if not real.startswith(home + os.sep):
            raise ImageError("unsafe-path", "leads out of the source folder")
        descriptor = os.open(real, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW)
        try:
            facts = os.fstat(descriptor)
            if not stat.S_ISREG(facts.st_mode):
                raise ImageError("unsafe-path", "is no regular file")
            if facts.st_size > most:
                raise ImageError("too-large", f"has {facts.st_size} bytes, more than the {most} allowed")
            parts = []
            while part := os.read(descriptor, facts.st_size + 1):
                parts.append(part)
            return b"".join(parts)
        finally:
            os.close(descriptor)
    except FileNotFoundError:
        raise ImageError("missing", "no such file") from None
    except OSError as error:
        if error.errno in _FILE_ERRORS:
            raise ImageError("unreadable", str(error.strerror)) from error
        raise InputError(f"{root}/{file}: cannot be read ({error.strerror}). Run the same command again.") from error
