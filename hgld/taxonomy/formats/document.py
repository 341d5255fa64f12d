"""Files that a taxonomy is read from: bounded bytes, text, JSON and tables, each read when it is asked for."""

import csv
import io
from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any

from hgld.errors import HierarchyError, TableError
from hgld.files import parse_json
from hgld.tables import decode_table, table_rows
from hgld.taxonomy.graph import short

MOST_BYTES = 1 << 30
MOST_JSON_BYTES = 256 << 20  # its objects take ten times as much memory
_HEAD = 1 << 16


class Document:
    """A file, or a folder, of unknown format.

    Attributes:
        path: its place.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        if not self.path.exists():
            raise HierarchyError(f"{self.path} is not there; expected a file or folder with a taxonomy.")

    @property
    def is_folder(self) -> bool:
        """True for a folder."""
        return self.path.is_dir()

    @cached_property
    def head(self) -> bytes:
        """The first 64 KiB of the file."""
        return b"" if self.is_folder else self._bytes(_HEAD, whole=False)

    @cached_property
    def text(self) -> str:
        """The whole file as text.

        Raises:
            TableError: it is too large, or not UTF-8.
        """
        return decode_table(self.path, self._bytes(MOST_BYTES))

    @property
    def looks_like_json(self) -> bool:
        """True for a file that begins as an object or list of JSON."""
        return self.head.removeprefix(b"\xef\xbb\xbf").lstrip()[:1] in (b"{", b"[")

    @cached_property
    def json(self) -> Any:
        """The file's JSON value.

        Raises:
            InputError: it is too large, nested too deep, or not JSON.
        """
        data = self._bytes(MOST_JSON_BYTES)
        return parse_json(data, str(self.path))

    @property
    def separator(self) -> str:
        """The character between the cells of a table: a tab where the first line has one, else a comma."""
        return "\t" if b"\t" in self.head.partition(b"\n")[0] else ","

    @cached_property
    def columns(self) -> tuple[str, ...]:
        """The cells of the first line of a table, () where it is none."""
        try:
            first = self.head.decode("utf-8-sig", errors="replace")
            row = next(csv.reader(io.StringIO(first, newline=""), delimiter=self.separator), [])
        except csv.Error:
            return ()
        return tuple(cell.strip() for cell in row)

    def rows(self, *, header: bool = True) -> Iterator[tuple[int, list[str]]]:
        """Yield the line in which each row of a table begins (from 1) and its cells; skip empty lines.

        Args:
            header: leave out the first row, and refuse rows that are not as long.

        Raises:
            TableError: not a table.
        """
        rows = table_rows(self.path, self.text, self.separator, len(self.columns) if header else None)
        yield from islice(rows, int(header), None)

    def select(self, columns: Sequence[str]) -> Iterator[tuple[int, list[str]]]:
        """Yield the line of each row and its stripped cells of these columns, ``""`` where the table lacks one.

        Raises:
            TableError: not a table, or one of the columns is there twice.
        """
        for column in columns:
            if self.columns.count(column) > 1:
                raise TableError(f"{self.path} has the column {short(column)} twice; expected it once.")
        places = [self.columns.index(column) if column in self.columns else -1 for column in columns]
        for line, row in self.rows():
            yield line, [row[place].strip() if place >= 0 else "" for place in places]

    def _bytes(self, most: int, *, whole: bool = True) -> bytes:
        try:
            with open(self.path, "rb") as file:
                data = file.read(most + whole)
        except OSError as error:
            raise HierarchyError(
                f"{self.path} cannot be read ({error.strerror}); expected a file with a taxonomy."
            ) from error
        if len(data) > most:
            raise HierarchyError(f"{self.path} has more than {most >> 20:,} MiB; that is too large for a taxonomy.")
        return data


def text_of(value: Any) -> str:
    """Return a text of JSON without blanks around it; empty for a value that is no text."""
    return value.strip() if isinstance(value, str) else ""
