"""Rows of tables: those that other people wrote, with errors that name the line, and those of ours as text."""

import csv
import io
from collections.abc import Iterable, Iterator
from pathlib import Path

from hgld.errors import TableError


def decode_table(path: Path, data: bytes) -> str:
    """Return the text of a table's bytes, without its byte order mark.

    Raises:
        TableError: not UTF-8.
    """
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise TableError(
            f"{path}, line {line:,}: not UTF-8 (byte {data[error.start]:#04x}). Save the table as UTF-8, for example "
            "with: iconv -f latin1 -t utf-8"
        ) from error


def table_rows(
    path: Path, text: str, separator: str = ",", width: int | None = None
) -> Iterator[tuple[int, list[str]]]:
    """Yield the line in which each row begins (from 1) and its cells; skip blank lines.

    Between commas cells may be quoted; between tabs quotes mean themselves.

    Args:
        path: of the table, for errors.
        text: its content.
        separator: a comma or a tab.
        width: number of cells that every row but the first has; None: any.

    Raises:
        TableError: a row is not valid, or has another number of cells.
    """
    quoting = csv.QUOTE_NONE if separator == "\t" else csv.QUOTE_MINIMAL
    reader = csv.reader(
        io.StringIO(text, newline=""), delimiter=separator, quoting=quoting, strict=quoting != csv.QUOTE_NONE
    )
    line, is_first = 0, True
    try:
        for row in reader:
            begins, line = line + 1, reader.line_num
            if row and not is_first and width is not None and len(row) != width:
                raise TableError(
                    f"{path}, line {begins:,}: {len(row)} cells where the header has {width}; a cell with a comma in "
                    'it needs double quotes around it ("...").'
                )
            if row:
                is_first = False
                yield begins, row
    except csv.Error as error:
        kind, cells = ("TSV", "tab") if separator == "\t" else ("CSV", "comma")
        quoted = "" if separator == "\t" else ", in double quotes where they hold commas"
        raise TableError(
            f"{path}, line {line + 1:,}: not valid {kind} ({error}); expected {cells}-separated cells{quoted}, of at "
            "most 131,072 characters."
        ) from error


def csv_text(rows: Iterable[Iterable[object]]) -> str:
    """Return rows of cells as CSV, quoted where they must be, each with a newline at its end."""
    text = io.StringIO(newline="")
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue()
