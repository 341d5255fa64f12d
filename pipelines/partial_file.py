"""A file that grows beside its place until it is whole, over as many runs as that takes."""

import fcntl
import hashlib
import json
import os
from pathlib import Path
from typing import BinaryIO

from hgld.errors import StorageError


class PartialFile:
    """``NAME.part``, and in ``NAME.part.json`` the version of the remote file that its bytes belong to.

    Used as a context; meanwhile no other process writes the same file.

    Args:
        final: where the whole file goes.
        url: where its bytes come from; bytes of another address are thrown away.

    Attributes:
        validator: the server's name for the version (an ETag or date); empty where nothing can be resumed.

    Raises:
        StorageError: another process is writing it.
    """

    def __init__(self, final: Path, url: str) -> None:
        self.validator = ""
        self._final, self._url = final, url
        self._path = final.with_name(f"{final.name}.part")
        self._facts = final.with_name(f"{final.name}.part.json")
        self._handle: BinaryIO

    def __enter__(self) -> "PartialFile":
        self._handle = open(self._path, "ab+")
        try:
            fcntl.flock(self._handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            self._handle.close()
            raise StorageError(f"{self._path} is being written by another process; wait for it or stop it.") from error
        self.validator = self._read_validator()
        if not self.validator:
            self.restart("")
        return self

    def __exit__(self, *exception: object) -> None:
        self._handle.close()

    @property
    def size(self) -> int:
        """Bytes that are there."""
        return os.fstat(self._handle.fileno()).st_size

    def restart(self, validator: str) -> None:
        """Throw the bytes away and begin with those of another version."""
        self._handle.truncate(0)
        self.validator = validator
        self._facts.write_text(json.dumps({"url": self._url, "validator": validator}), encoding="utf-8")

    def write(self, data: bytes) -> None:
        """Append."""
        self._handle.write(data)
        self._handle.flush()

    def md5(self) -> str:
        """The MD5 of the bytes that are there, 32 hex digits."""
        with open(self._path, "rb") as file:
            return hashlib.file_digest(file, "md5").hexdigest()

    def finish(self) -> int:
        """Put the whole file in its place; its size in bytes."""
        size = self.size
        os.fsync(self._handle.fileno())
        self._path.replace(self._final)
        self._facts.unlink(missing_ok=True)
        return size

    def _read_validator(self) -> str:
        """The validator of an earlier run's bytes; empty where it cannot be read or is of another address."""
        try:
            facts = json.loads(self._facts.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return ""
        known = isinstance(facts, dict) and facts.get("url") == self._url
        return str(facts.get("validator", "")) if known else ""
