"""Read lists and tables of names. For ``--classes``, write them as the tables that a scrape would write.

A plain list has one name per line, commas included; double quotes around a whole line are removed. The first line of a
table names its columns, and commas, tabs or semicolons separate its cells. The column ``name`` is required.

The optional columns of ``--classes`` are ``id``, ``count``, ``description``, ``image`` and ``language``. ``count`` is
the number of things that the item stands for (1 if empty). ``image`` is one path, or several paths separated by ``|``
or ``;``. ``language`` is a code such as ``en``. A note lists ignored columns.

Each row is an item. Two rows with the same name and different ids are two items. Rows without a name and repeated rows
are excluded and listed with their line. Without ids, the name is the id.
"""

import csv
import io
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl

from hgld.errors import TableError, excerpt, quoted
from hgld.tables import read_text

from ...stage import Progress, StageResult, StageRun, run_stage
from .landmark_tables import (
    CLASSES,
    DROPPED,
    ITEMS,
    scraped_table,
    write_scraped,
)

NAME = "name"
SHOWN = 80  # maximum number of characters of a user's text in a message
_OTHER_HEADERS = {"label", "class", "category", "landmark_id", "supercategory", "title", "names", "classes", "labels"}
_DELIMITERS = "\t,;"
_LINE_END = re.compile(r"\r\n|\n|\r")
VERSION = 1
SPLIT = "classes"
COLUMNS = (NAME, "id", "count", "description", "image", "language")
_WHOLE_NUMBER = re.compile(r"[0-9]{1,15}", re.ASCII)
_LANGUAGE = re.compile(r"[A-Za-z]{2,3}(?:[-_][A-Za-z0-9]{2,8})*", re.ASCII)
_BETWEEN_IMAGES = re.compile(r"[|;]")
_MOST_TEXT = {"name": 2_000, "id": 500, "description": 20_000, "image": 20_000}


@dataclass(frozen=True)
class Item:
    """An item of the list: its line and its cells."""

    line: int
    id: str
    name: str
    count: int = 1
    description: str | None = None
    images: tuple[str, ...] = ()
    language: str | None = None


@dataclass(frozen=True)
class ItemList:
    """The items in the order of the file, the excluded rows (line, id, name, reason), and notes."""

    items: list[Item]
    dropped: list[tuple[int, str, str, str]]
    notes: tuple[str, ...]


def run(
    root: Path, file: Path, progress: Progress, *, find: Callable[[Sequence["Item"]], Any] | None = None
) -> StageRun:
    """Run the stage ``scrape`` on a list of names.

    Args:
        root: the build's directory of stages.
        file: the list or table.
        progress: receives the current task.
        find: function that finds the items' classes (``NameClasses``) in a taxonomy; then ``matches.parquet`` states
            how each was found. None: the class graph is empty.

    Raises:
        TableError: the file cannot be read (:func:`read_items`).
        HgldError: ``find`` raises an error about the items.
    """
    known = None if find is None else find(read_items(file).items)

    def work(directory: Path) -> StageResult:
        progress("read the names", 0, None)
        read = read_items(file)
        dropped = pl.DataFrame(
            [(SPLIT, line, id_, name, reason) for line, id_, name, reason in read.dropped], schema=DROPPED, orient="row"
        )
        if known is None:
            graph = pl.DataFrame(schema=CLASSES)
            return write_scraped(directory, item_table(read.items), graph, dropped, read.notes)
        known.matches(read.items).write_parquet(directory / "matches.parquet")
        table = item_table(read.items, known.of, known.statuses)
        return write_scraped(directory, table, known.graph, dropped, (*read.notes, *known.notes))

    config = {"classes": True, **(known.key if known else {})}
    return run_stage("scrape", root, version=VERSION, config=config, inputs={"classes": file}, work=work)


def item_table(
    items: Sequence[Item], classes: Mapping[str, str] | None = None, statuses: Mapping[str, str] | None = None
) -> pl.DataFrame:
    """Return items as a scrape's table of landmarks: numbered from 0, with one name each.

    Args:
        items: the items, in the order of the table's rows.
        classes: class ids by the items' ids.
        statuses: reasons (statuses) for dropping items, by the ids of these items.
    """
    classes, statuses = classes or {}, statuses or {}
    columns = {
        "split": [SPLIT] * len(items),
        "landmark_id": range(len(items)),
        "category": [item.name for item in items],
        "status": [statuses.get(item.id, "found") for item in items],
        "names": [(item.name,) for item in items],
        "classes": [(classes.get(item.id),) for item in items],
        **{name: [getattr(item, name) for item in items] for name in ITEMS},
    }
    return scraped_table(columns)


def read_items(file: Path) -> ItemList:
    """Read a list or table of names.

    Raises:
        TableError: the file is missing, empty, too large or not UTF-8, or has no name. Or a column occurs twice. Or a
            row is not CSV, has more cells than the header, or has an invalid value. Or one id has two names.
    """
    table = NameTable.read(file, COLUMNS, {"images": "image"})
    items: dict[str, Item] = {}
    dropped: list[tuple[int, str, str, str]] = []
    for line, cells in table.rows():
        name, own_id = cells.get(NAME, ""), cells.get("id", "")
        if not name:
            dropped.append((line, own_id, "", "no name" if any(cells.values()) else "empty row"))
            continue
        item = _item(file, line, cells)
        first = items.setdefault(item.id, item)
        if first.name != name:
            raise TableError(
                f"{file}: the id {item.id[:SHOWN]!r} has the name {first.name[:SHOWN]!r} in line {first.line} and "
                f"{name[:SHOWN]!r} in line {line}; expected one name per id. Correct one of the ids."
            )
        if first is not item:
            dropped.append((line, item.id, name, f"repeats the {'id' if own_id else 'name'} of an earlier row"))
    if not items:
        raise TableError(f"{file}: no name in its {len(dropped)} rows; expected at least one name.")
    return ItemList(list(items.values()), dropped, table.notes())


def _item(file: Path, line: int, cells: Mapping[str, str]) -> Item:
    check_lengths(file, line, cells, _MOST_TEXT)
    count, language = cells.get("count", ""), cells.get("language", "")
    if count and (not _WHOLE_NUMBER.fullmatch(count) or int(count) < 1):
        raise TableError(
            f"{file}, line {line}: count is {count[:SHOWN]!r}; expected a whole number from 1, or an empty cell (1)."
        )
    if language and not _LANGUAGE.fullmatch(language):
        raise TableError(
            f"{file}, line {line}: language is {language[:SHOWN]!r}; expected a code such as en, de or pt-BR, or "
            "nothing if it is unknown."
        )
    images = [part.strip() for part in _BETWEEN_IMAGES.split(cells.get("image", ""))]
    return Item(
        line=line,
        id=cells.get("id") or cells[NAME],
        name=cells[NAME],
        count=int(count or 1),
        description=cells.get("description") or None,
        images=tuple(dict.fromkeys(image for image in images if image)),
        language=language.lower() or None,
    )


# -- lists and tables of names -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class NameTable:
    """A list or table of names.

    Attributes:
        file: path of the table.
        text: content of the file.
        columns: columns to read, ``name`` among them.
        header: the cells of the first line; None: a plain list.
        delimiter: separator of the cells.
    """

    file: Path
    text: str
    columns: tuple[str, ...]
    header: tuple[str, ...] | None
    delimiter: str = ","

    @classmethod
    def read(cls, file: Path, columns: Sequence[str], aliases: Mapping[str, str]) -> "NameTable":
        """Read a list or table of names.

        Args:
            file: the list or table.
            columns: columns to read, ``name`` among them; other columns are ignored.
            aliases: other spellings of column names, each with the name of its column.

        Raises:
            TableError: the file is missing, empty, too large or not UTF-8. Or its first line is a header without
                ``name``, or with a column twice.
        """
        text = read_text(file)
        known = {**{column: column for column in columns}, **aliases}
        first = _LINE_END.split(text.lstrip("\r\n"), maxsplit=1)[0]
        for delimiter in _DELIMITERS:
            cells = tuple(_column(cell, known) for cell in _cells(first, delimiter))
            if NAME in cells:
                _check_header(file, cells, columns)
                return cls(file, text, tuple(columns), cells, delimiter)
            known_header = bool({*columns, *_OTHER_HEADERS}.intersection(cells))
            if len(cells) > 1 and (known_header or _is_table(file, text, delimiter, len(cells))):
                shown = ", ".join(repr(cell[:SHOWN]) for cell in cells[:20])
                raise TableError(
                    f"{file} lacks the column {NAME!r}; found {shown}. Rename the column of the names to {NAME!r}; or, "
                    "if this is a list of one name per line, put the first name in double quotes."
                )
        return cls(file, text, tuple(columns), None)

    def rows(self) -> Iterator[tuple[int, Mapping[str, str]]]:
        """Yield the first line of each row and its stripped cells by column; yield empty rows too.

        Raises:
            TableError: a row is not CSV, or has more cells than the header.
        """
        return self._plain_rows() if self.header is None else self._table_rows(self.header)

    def notes(self) -> tuple[str, ...]:
        """Return notes for the user about ignored columns, or about a first line that looks like a header."""
        if self.header is None:
            first = _lines(self.text)[0].strip()
            if first.lower() in _OTHER_HEADERS:
                return (f"the first line, {quoted(first)}, counts as a name; if it is a header, write {NAME!r} there.",)
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
    """Tell whether a ``.csv`` or ``.tsv`` file has the same number of cells in every line."""
    if file.suffix.lower() not in (".csv", ".tsv"):
        return False
    lines = [line for line in _LINE_END.split(text) if line.strip()]
    return len(lines) > 1 and all(len(_cells(line, delimiter)) == width for line in lines[:100])


def _cells(line: str, delimiter: str) -> list[str]:
    """Return the cells of one line; a line that cannot be a row, because a cell is too long, is one cell."""
    try:
        return next(csv.reader([line], delimiter=delimiter), [])
    except csv.Error:
        return [line]


def check_lengths(file: Path, line: int, cells: Mapping[str, str], most: Mapping[str, int]) -> None:
    """Raise an error for a row with a cell that is too long for its column.

    Raises:
        TableError: a cell is too long; the message names the line and the column.
    """
    for column, limit in most.items():
        if len(cells.get(column, "")) > limit:
            raise TableError(
                f"{file}, line {line}: {column} has {len(cells[column]):,} characters; expected at most {limit:,}."
            )


def _column(cell: str, known: Mapping[str, str]) -> str:
    """Return the column for a cell of the header; an unknown column keeps its spelling."""
    plain = cell.strip().lower()
    return known.get(plain, plain if plain in _OTHER_HEADERS else cell.strip())


def _check_header(file: Path, cells: Sequence[str], columns: Sequence[str]) -> None:
    twice = sorted({cell for cell in cells if cell in columns and cells.count(cell) > 1})
    if twice:
        raise TableError(f"{file} has the column {quoted(twice[0])} twice; expected it once. Rename one of them.")


def _lines(text: str) -> list[str]:
    lines = _LINE_END.split(text)
    return lines[:-1] if not lines[-1] else lines  # a newline at the end of the file does not begin another line


def _unquoted(line: str) -> str:
    """Remove the quotes around a whole line and the doubling of quotes inside, as spreadsheets write them."""
    inner = line[1:-1].replace('""', "")
    return line[1:-1].replace('""', '"') if len(line) > 1 and line[0] == line[-1] == '"' and '"' not in inner else line
