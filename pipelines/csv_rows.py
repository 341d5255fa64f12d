"""Reader of untrusted CSV files: rows with the line they begin in, and errors that say what to correct."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from hgld.errors import TableError, quoted
from hgld.table_text import decode_table, table_rows

MAX_BYTES = 1 << 30


@dataclass(frozen=True)
class CsvText:
    """The text of a CSV file and the columns of its header.

    Raises:
        TableError: the file cannot be read, is too large, empty or not UTF-8, or its header is not CSV.
    """

    path: Path
    text: str
    columns: tuple[str, ...]

    @classmethod
    def read(cls, path: Path) -> "CsvText":
        text = read_text(path)
        _, header = next(table_rows(path, text), (0, []))
        return cls(path, text, tuple(cell.strip() for cell in header))

    def select(self, columns: Sequence[str]) -> Iterator[tuple[int, list[str]]]:
        """Yield the line in which each row begins (from 1) and its cells of these columns; skip blank lines.

        Raises:
            TableError: a column is missing or there twice, a row is not CSV or has other than the header's number of
                cells.
        """
        places = self._places(columns)
        for line, row in islice(table_rows(self.path, self.text, width=len(self.columns)), 1, None):
            yield line, [row[place] for place in places]

    def _places(self, wanted: Sequence[str]) -> list[int]:
        for column in wanted:
            if self.columns.count(column) != 1:
                fault = (
                    f"has the column {quoted(column)} twice"
                    if column in self.columns
                    else f"lacks the column {quoted(column)}"
                )
                shown = ", ".join(repr(name[:60]) for name in self.columns[:20])
                raise TableError(
                    f"{self.path} {fault}; found {shown}, expected {', '.join(map(repr, wanted))} (others are "
                    "ignored). Rename the column in the file's first line."
                )
        return [self.columns.index(column) for column in wanted]


def read_text(path: Path) -> str:
    """Return the text of a table from outside, without its byte order mark.

    Raises:
        TableError: it cannot be read, is too large, empty or not UTF-8.
    """
    try:
        with open(path, "rb") as file:
            data = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise TableError(f"{path} cannot be read ({error.strerror}); expected a table there.") from error
    if len(data) > MAX_BYTES:
        raise TableError(f"{path} has more than {MAX_BYTES:,} bytes; that is too large for a table.")
    text = decode_table(path, data)
    if not text.strip():
        raise TableError(f"{path} is empty; expected at least one row.")
    return text
