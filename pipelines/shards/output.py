"""The place that a dataset is written to: a folder, or a URL that fsspec can write to.

A file appears there complete or not at all.
"""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import fsspec

from hgld.errors import ConfigError, MissingResourceError, StorageError
from hgld.files import PART, aside_of, existing_parent, put_in_place, sync

_ATOMIC_UPLOADS = {"s3", "s3a", "gs", "gcs", "az", "abfs", "abfss", "adl", "memory", "oss", "r2", "hf"}


class ShardOutput:
    """The place of a dataset; cheap to make, so that every worker makes its own.

    Args:
        root: a folder, or a URL of any fsspec file system.

    Raises:
        ConfigError: a URL of no known scheme, or a chain of them.
        MissingResourceError: the scheme needs a package that is not installed.
    """

    def __init__(self, root: str) -> None:
        self.root = root
        self.is_local = "://" not in root and "::" not in root
        if self.is_local:
            self.folder = Path(root).absolute()  # workers on a cluster may run in another folder
            return
        if "::" in root:
            raise ConfigError(
                f"{root}: chained URLs cannot be written to; expected one scheme, for instance s3://bucket/name."
            )
        self.scheme = root.partition("://")[0].lower()
        try:
            self.file_system, path = fsspec.core.url_to_fs(root)
        except ImportError as error:
            raise MissingResourceError(f"{root}: {error}") from error
        except ValueError as error:
            raise ConfigError(f"{root}: cannot be written to ({error}).") from error
        self.path = path.rstrip("/")

    @property
    def address(self) -> str:
        """The folder as an absolute path, or the URL."""
        return str(self.folder) if self.is_local else self.root

    def sizes(self) -> dict[str, int]:
        """Return the bytes of every entry by name (folders: 0), sorted; empty if the place does not exist yet."""
        if self.is_local:
            found = sorted(self.folder.iterdir()) if self.folder.is_dir() else []
            return {path.name: path.stat().st_size if path.is_file() else 0 for path in found}
        with self._storage_errors("list"):
            try:
                listed = self.file_system.ls(self.path, detail=True, refresh=True)
            except FileNotFoundError:
                return {}
        named = {entry["name"].rstrip("/").rpartition("/")[2]: int(entry["size"] or 0) for entry in listed}
        return dict(sorted(named.items()))

    def size(self, name: str) -> int | None:
        """Return the bytes of a file; None if it does not exist."""
        if self.is_local:
            path = self.folder / name
            return path.stat().st_size if path.is_file() else None
        with self._storage_errors(f"look at {name}"):
            try:
                return int(self.file_system.info(f"{self.path}/{name}", refresh=True)["size"])
            except FileNotFoundError:
                return None

    def read(self, name: str, most: int) -> bytes | None:
        """Return the content of a file; None if it does not exist or has more than ``most`` bytes."""
        size = self.size(name)
        if size is None or size > most:
            return None
        if self.is_local:
            return (self.folder / name).read_bytes()
        with self._storage_errors(f"read {name}"):
            return self.file_system.cat_file(f"{self.path}/{name}")

    def aside(self, name: str, scratch: Path) -> Path:
        """Return a local path at which to write a file before it is published: in ``scratch`` if the place is a URL."""
        if not self.is_local:
            scratch.mkdir(parents=True, exist_ok=True)
            return aside_of(scratch / name, racing=True)
        self.folder.mkdir(parents=True, exist_ok=True)
        return aside_of(self.folder / name, racing=True)

    def publish(self, aside: Path, name: str) -> None:
        """Move a file that was written at :meth:`aside` to its place.

        Raises:
            StorageError: it could not be written there, or has another size afterwards.
        """
        if self.is_local:
            put_in_place(aside, self.folder / name)
            return
        target = f"{self.path}/{name}"
        with self._storage_errors(f"write {name}"):
            self.file_system.makedirs(self.path, exist_ok=True)
            if self.scheme in _ATOMIC_UPLOADS:  # an upload is seen when it is complete
                self.file_system.put_file(os.fspath(aside), target)
            else:
                part = f"{self.path}/.{name}{PART}"
                self.file_system.put_file(os.fspath(aside), part)
                self.file_system.mv(part, target)
        written, size = self.size(name), aside.stat().st_size
        if written != size:
            raise StorageError(f"{self.root}: {name} has {written} bytes after {size} were written. Run it again.")
        aside.unlink()

    def settle(self) -> None:
        """Sync the names of the files to the disk, where the place is a folder."""
        if self.is_local:
            sync(self.folder)

    def remove(self, name: str) -> None:
        """Remove a file if it exists."""
        if self.is_local:
            (self.folder / name).unlink(missing_ok=True)
        elif self.size(name) is not None:
            with self._storage_errors(f"remove {name}"):
                self.file_system.rm_file(f"{self.path}/{name}")

    def remove_parts(self) -> None:
        """Remove partial files that killed writers left."""
        for name in self.sizes():
            if name.startswith(".") and name.endswith(PART):
                self.remove(name)

    @contextmanager
    def _storage_errors(self, action: str) -> Iterator[None]:
        try:
            yield
        except FileNotFoundError:
            raise
        except (OSError, ValueError, NotImplementedError) as error:
            reason = str(error) or type(error).__name__
            raise StorageError(
                f"{self.root}: could not {action} ({reason[:300]}). Check the address and the rights, then run the "
                "same command again: what was written is kept."
            ) from error


# -- free space -------------------------------------------------------------------------------------------------------

_MARGIN = 64 << 20  # for tables and other files beside the images


def check_space(folder: Path, needed: int) -> None:
    """Refuse a build for which the disk has too little free space.

    Args:
        folder: where the bytes will be written; it need not exist yet.
        needed: number of bytes.

    Raises:
        StorageError: the disk has too little; the message says how much is free and how much is missing.
    """
    free = shutil.disk_usage(existing_parent(folder)).free
    if free < needed + _MARGIN:
        raise StorageError(
            f"{folder}: {amount(free)} are free and about {amount(needed + _MARGIN)} needed. Free "
            f"{amount(needed + _MARGIN - free)}, or choose a folder of another disk."
        )


def amount(count: int) -> str:
    """Format a number of bytes for people.

    >>> amount(999), amount(166_000_000_000)
    ('999 B', '166.0 GB')
    """
    value, unit = float(count), "B"
    for larger in ("kB", "MB", "GB", "TB"):
        if value < 1000:
            break
        value, unit = value / 1000, larger
    return f"{value:.0f} B" if unit == "B" else f"{value:.1f} {unit}"
