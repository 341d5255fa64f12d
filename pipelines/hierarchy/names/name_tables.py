"""Lists and tables of names from outside: a plain list, one name per line, or a table with a column ``name``.

A table's cells are separated by commas, tabs or semicolons, and its first line names the columns. A line of a plain
list is one name, commas and all; where double quotes enclose the whole line, they are taken off.
"""

import csv
import io
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from hgld.errors import TableError, excerpt, quoted
from hgld.tables import read_text

NAME = "name"
SHOWN = 80  # characters of a text from outside in a message
_OTHER_HEADERS = {"label", "class", "category", "landmark_id", "supercategory", "title", "names", "classes", "labels"}
_DELIMITERS = "\t,;"
_LINE_END = re.compile(r"\r\n|\n|\r")


@dataclass(frozen=True)
class NameTable:
    """A list or table of names.

    Attributes:
        file: path of the table.
        text: content of the file.
        columns: columns that are read, ``name`` among them.
        header: the cells of its first line; None: a plain list.
        delimiter: between the cells.
    """

    file: Path
    text: str
    columns: tuple[str, ...]
    header: tuple[str, ...] | None
    delimiter: str = ","

    @classmethod
    def read(cls, file: Path, columns: Sequence[str], aliases: Mapping[str, str]) -> "NameTable":
        """Read a file.

        Args:
            file: the list or table.
            columns: columns to read, ``name`` among them; others are ignored.
            aliases: other spellings of columns.

        Raises:
            TableError: the file is missing, empty, too large or not UTF-8; its first line is a header without ``name``,
                or with a column twice.
        """
        text = read_text(file)
        known = {**{column: column for column in columns}, **aliases}
        first = _LINE_END.split(text.lstrip("\r\n"), maxsplit=1)[0]
        for delimiter in _DELIMITERS:
            cells = tuple(_column(cell, known) for cell in next(csv.reader([first], delimiter=delimiter), []))
            if NAME in cells:
                _check_header(file, cells, columns)
                return cls(file, text, tuple(columns), cells, delimiter)
            known_header = bool({*columns, *_OTHER_HEADERS}.intersection(cells))
            if len(cells) > 1 and (known_header or _is_table(file, text, delimiter, len(cells))):
                shown = ", ".join(repr(cell[:SHOWN]) for cell in cells[:20])
                raise TableError(
                    f"{file} lacks the column {NAME!r}; found {shown}. Rename the column of the names to {NAME!r}; or, "
                    "if this is a list of one name per line, put the first of them in double quotes."
                )
        return cls(file, text, tuple(columns), None)

    def rows(self) -> Iterator[tuple[int, Mapping[str, str]]]:
        """Yield the line in which each row begins and its cells, stripped, by column; empty rows are yielded too.

        Raises:
            TableError: a row is not CSV, or has more cells than the header.
        """
        return self._plain_rows() if self.header is None else self._table_rows(self.header)

    def notes(self) -> tuple[str, ...]:
        """Return notes for people about the reading of the file."""
        if self.header is None:
            first = _lines(self.text)[0].strip()
            if first.lower() in _OTHER_HEADERS:
                return (
                    f"the first line, {quoted(first)}, was taken as a name; if it is a header, write {NAME!r} there.",
                )
            return ()
        ignored = [cell[:SHOWN] for cell in self.header if cell and cell not in self.columns]
        return (f"ignored columns: {', '.join(ignored[:20])}.",) if ignored else ()

    def _plain_rows(self) -> Iterator[tuple[int, Mapping[str, str]]]:
        for line, name in enumerate(_lines(self.text), 1):
            yield line, {NAME: _unquoted(name.strip())}

    def _table_rows(self, header: tuple[str, ...]) -> Iterator[tuple[int, Mapping[str, str]]]:
        reader = csv.reader(io.StringIO(self.text, newline=""), delimiter=self.delimiter, strict=True)
        line, seen = 0, False
        try:
            for cells in reader:
                begins, line = line + 1, reader.line_num
                if not seen:
                    seen = any(map(str.strip, cells))
                    continue
                if len(cells) > len(header):
                    raise TableError(
                        f"{self.file}, line {begins}: {len(cells)} cells where the header has {len(header)}; a cell "
                        f'with {quoted(self.delimiter)} in it needs double quotes around it ("...").'
                    )
                yield (
                    begins,
                    {key: cell.strip() for key, cell in zip(header, cells, strict=False) if key in self.columns},
                )
        except csv.Error as error:
            raise TableError(
                f"{self.file}, line {line + 1}: not a valid table ({excerpt(error)}); expected cells of at most "
                "131,072 characters, in double quotes where they hold the separator or quotes."
            ) from error


def _is_table(file: Path, text: str, delimiter: str, width: int) -> bool:
    """Tell whether a file that calls itself a table has as many cells in every line."""
    if file.suffix.lower() not in (".csv", ".tsv"):
        return False
    lines = [line for line in _LINE_END.split(text) if line.strip()]
    return len(lines) > 1 and all(
        len(next(csv.reader([line], delimiter=delimiter), [])) == width for line in lines[:100]
    )


def check_lengths(file: Path, line: int, cells: Mapping[str, str], most: Mapping[str, int]) -> None:
    """Refuse a row with a cell that is longer than its column allows.

    Raises:
        TableError: names the line and column.
    """
    for column, limit in most.items():
        if len(cells.get(column, "")) > limit:
            raise TableError(
                f"{file}, line {line}: {column} has {len(cells[column]):,} characters; expected at most {limit:,}."
            )


def _column(cell: str, known: Mapping[str, str]) -> str:
    """Return a cell of the header as the columns are spelt; one of no column keeps its spelling."""
    plain = cell.strip().lower()
    return known.get(plain, plain if plain in _OTHER_HEADERS else cell.strip())


def _check_header(file: Path, cells: Sequence[str], columns: Sequence[str]) -> None:
    twice = sorted({cell for cell in cells if cell in columns and cells.count(cell) > 1})
    if twice:
        raise TableError(f"{file} has the column {quoted(twice[0])} twice; expected it once. Rename the other one.")


def _lines(text: str) -> list[str]:
    lines = _LINE_END.split(text)
    return lines[:-1] if not lines[-1] else lines  # the last line's end begins no line


def _unquoted(line: str) -> str:
    """Take off the quotes around a whole line, with those inside doubled, as spreadsheets write them."""
    inner = line[1:-1].replace('""', "")
    return line[1:-1].replace('""', '"') if len(line) > 1 and line[0] == line[-1] == '"' and '"' not in inner else line
