"""The tars of a release, read once from front to back: compressed or not, with their checksum taken on the way."""

import bz2
import gzip
import hashlib
import io
import lzma
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, cast

from hgld.errors import InputError
from hgld.tar_members import ByteStream, Member, stream_members
from pipelines.catalog import Container

_MAGIC = {b"\x1f\x8b": "gzip", b"BZh": "bzip2", b"\xfd7zXZ\x00": "xz", b"\x28\xb5\x2f\xfd": "zstd"}
_CHUNK = 1 << 20
_MOST_CHECKSUM_BYTES = 1 << 16


def compression_of(path: Path) -> str | None:
    """How a tar is compressed; None if it is not.

    Raises:
        InputError: it cannot be read, or is compressed in a way that is not supported.
    """
    try:
        with open(path, "rb") as file:
            begin = file.read(max(map(len, _MAGIC)))
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror}).") from error
    found = next((name for magic, name in _MAGIC.items() if begin.startswith(magic)), None)
    if found == "zstd":
        raise InputError(f"{path}: compressed by zstd, which hgld does not read; expected tar, gzip, bzip2 or xz.")
    return found


def expected_md5(container: Container) -> str | None:
    """The official MD5 sum of a tar, in lower-case hexadecimal; None if none is published.

    Raises:
        InputError: the file that should hold it does not.
    """
    if container.md5 is None or isinstance(container.md5, str):
        return container.md5.lower() if container.md5 else None
    try:
        with open(container.md5, encoding="ascii", errors="replace") as file:
            text = file.read(_MOST_CHECKSUM_BYTES)
    except OSError as error:
        raise InputError(f"{container.md5}: cannot be read ({error.strerror}).") from error
    found = re.search(r"\b[0-9a-fA-F]{32}\b", text)
    if found is None:
        raise InputError(f"{container.md5}: no MD5 sum in it; expected 32 hex digits. Fetch the file again.")
    return found[0].lower()


class SourceTar:
    """A tar that is read once.

    Attributes:
        bytes: of the file as it lies there, known once all members were given.
        md5: of the same bytes, in hexadecimal.
    """

    def __init__(self, path: Path, max_member_bytes: int) -> None:
        self.path, self.max_member_bytes = path, max_member_bytes
        self.bytes, self.md5 = 0, ""

    def members(self) -> Iterator[tuple[Member, bytes]]:
        """Members with their bytes; at the end the whole file was read.

        Raises:
            InputError: the tar is damaged, cut off, or cannot be read.
        """
        compression = compression_of(self.path)
        try:
            with open(self.path, "rb", buffering=0) as file:
                hashed = _Hashed(file)
                stored = cast(BinaryIO, io.BufferedReader(hashed, _CHUNK))
                tar = _decompressed(stored, compression)
                yield from stream_members(tar, where=str(self.path), max_member_bytes=self.max_member_bytes)
                while stored.read(_CHUNK):  # what stands behind the end mark belongs to the checksum
                    pass
                self.bytes, self.md5 = hashed.count, hashed.digest.hexdigest()
        except OSError as error:
            raise InputError(f"{self.path}: cannot be read ({error.strerror or error}).") from error


class _Hashed(io.RawIOBase):
    """A file that counts and hashes whatever is read of it."""

    def __init__(self, file: io.FileIO) -> None:
        self.file = file
        self.count, self.digest = 0, hashlib.md5(usedforsecurity=False)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any, /) -> int:
        count = self.file.readinto(buffer)
        self.count += count
        self.digest.update(memoryview(buffer)[:count])
        return count


def _decompressed(file: BinaryIO, compression: str | None) -> ByteStream:
    if compression == "gzip":
        return gzip.GzipFile(fileobj=file)
    if compression == "bzip2":
        return bz2.BZ2File(file)
    return lzma.LZMAFile(file) if compression == "xz" else file
