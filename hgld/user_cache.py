"""Folders in the user's cache for results, keyed by the facts from which the results were computed."""

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

from platformdirs import user_cache_path

from hgld.files import read_json, write_folder

# maximum size of all folders of one subject (``galleries``, ...); beyond it, the least recently read folders are
# removed
MOST_BYTES = 8 << 30
_RECORD = "made-from.json"
_Result = TypeVar("_Result")


class KeptFolder:
    """A folder of the cache, which may not exist yet.

    A folder is read only if its files have the checksums that were stored with them.

    Args:
        subject: name of the parent folder, for instance ``galleries``.
        made_from: JSON-ready facts that determine the content; different facts have a different folder.
    """

    def __init__(self, subject: str, made_from: Mapping[str, Any]) -> None:
        self._made_from = dict(made_from)
        name = digest_of(json.dumps(self._made_from, sort_keys=True))[:32]
        self.folder = user_cache_path("hgld") / subject / name

    def read(self, load: "Callable[[Path], _Result]") -> "_Result | None":
        """Return ``load(folder)``; None if the folder does not exist or one of its files changed."""
        try:
            record = read_json(self.folder / _RECORD, kind=dict)
            if record != self._make_record(self.folder):
                return None
            os.utime(self.folder / _RECORD)
            return load(self.folder)
        except (OSError, ValueError):
            return None

    def write(self, fill: Callable[[Path], object]) -> None:
        """Replace the folder: ``fill(folder)`` writes plain files into an empty folder.

        Raises:
            OSError: the disk is full or not writable; the existing folder is kept.
        """

        def fill_and_seal(folder: Path) -> None:
            fill(folder)
            (folder / _RECORD).write_text(json.dumps(self._make_record(folder)), encoding="utf-8")

        write_folder(self.folder, fill_and_seal)
        self._remove_oldest()

    def _make_record(self, folder: Path) -> dict[str, Any]:
        files = {file.name: file_digest(file) for file in sorted(folder.iterdir()) if file.name != _RECORD}
        return {"made_from": self._made_from, "files": files}

    def _remove_oldest(self) -> None:
        found = []
        for record in self.folder.parent.glob(f"*/{_RECORD}"):
            with suppress(OSError):  # another process may have removed the folder
                size = sum(file.stat().st_size for file in record.parent.iterdir())
                found.append((record.parent == self.folder, record.stat().st_mtime_ns, size, record.parent))
        total = sum(size for _, _, size, _ in found)
        for is_this, _, size, folder in sorted(found):
            if total <= MOST_BYTES or is_this:
                return
            shutil.rmtree(folder, ignore_errors=True)
            total -= size


def digest_of(text: str) -> str:
    """Return the SHA-256 of a text in hexadecimal."""
    return hashlib.sha256(text.encode()).hexdigest()


def file_digest(path: Path) -> str:
    """Return the SHA-256 of a file in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
