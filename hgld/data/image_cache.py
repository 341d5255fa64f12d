"""A cache of limited size for encoded images from URLs, in an SQLite file that all processes of a machine share."""

import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from hashlib import sha256
from pathlib import Path

from hgld.errors import storage_errors

_FILE = "images.sqlite"
_PAGE_BYTES = 1 << 13
_SECONDS = 60.0  # how long a process waits for another process that is writing
_TABLE = """
CREATE TABLE IF NOT EXISTS images (sha256 BLOB PRIMARY KEY, dataset TEXT, data BLOB);
CREATE INDEX IF NOT EXISTS datasets ON images (dataset);
"""
_DELETE_OTHERS = """
DELETE FROM images WHERE rowid IN (SELECT rowid FROM images WHERE dataset < ? OR dataset > ? LIMIT 256)
"""


class ImageCache:
    """Encoded images by their SHA-256.

    An epoch reads every image once, in random order. If a full cache replaced its images, most of them would be gone
    before the next epoch reads them. Therefore it keeps its images, and removes only images of other datasets.

    Every call opens the file anew, because connections to SQLite survive neither a fork nor pickling. The file is not
    flushed to the disk: if a power cut damages it, an error asks to remove it.

    Args:
        folder: folder of the cache, on a disk of this machine.
        max_bytes: maximum size of the file.
        dataset: text that differs between datasets.

    Raises:
        StorageError: the folder cannot be written to, or its file is not a cache.
    """

    def __init__(self, folder: Path, max_bytes: int, dataset: str) -> None:
        self._folder, self._max_bytes, self._dataset, self._is_full = folder, max_bytes, dataset, False
        with self._opened() as database:
            database.executescript(_TABLE)

    @contextmanager
    def _opened(self) -> Iterator[sqlite3.Connection]:
        hint = f"Remove {self._folder / _FILE}, or choose another --cache."
        with storage_errors(f"use the cache {self._folder}", hint, sqlite3.Error):
            self._folder.mkdir(parents=True, exist_ok=True)
            with closing(sqlite3.connect(self._folder / _FILE, _SECONDS)) as database:
                database.execute(f"PRAGMA page_size={_PAGE_BYTES}")
                database.execute(f"PRAGMA max_page_count={max(self._max_bytes // _PAGE_BYTES, 1)}")
                database.execute("PRAGMA synchronous=OFF")
                yield database

    def read(self, digests: Iterable[bytes]) -> dict[bytes, bytes]:
        """Return the cached images among those with the given SHA-256; images whose bytes changed are left out."""
        with self._opened() as database:
            rows = [
                (key, database.execute("SELECT data FROM images WHERE sha256 = ?", (key,)).fetchone())
                for key in digests
            ]
        return {key: row[0] for key, row in rows if row and sha256(row[0]).digest() == key}

    def add(self, images: Mapping[bytes, bytes]) -> None:
        """Add images by their SHA-256, unless the cache or its disk is full."""
        if not images or self._is_full:
            return
        rows = [(key, self._dataset, data) for key, data in images.items()]
        with self._opened() as database:
            while not (self._is_full or _insert(database, rows)):
                with database:
                    self._is_full = not database.execute(_DELETE_OTHERS, [self._dataset] * 2).rowcount


def _insert(database: sqlite3.Connection, rows: list[tuple[bytes, str, bytes]]) -> bool:
    """Insert rows; return False if there is no space."""
    try:
        with database:
            database.executemany("INSERT OR REPLACE INTO images VALUES (?, ?, ?)", rows)
    except sqlite3.OperationalError as error:
        if error.sqlite_errorcode != sqlite3.SQLITE_FULL:
            raise
        return False
    return True
