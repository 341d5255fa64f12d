"""Read the lists of a release with size limits; errors state the file and the line."""

import io
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from hgld.errors import InputError, TableError, excerpt, quoted
from hgld.tables import read_csv as read_table

from ...executor import ProcessEndedError, run_alone
from ..catalog import Catalog

MAX_LIST_BYTES = 1 << 30
_MAX_LINE = 1 << 20  # maximum characters of a line; GLDv2's longest line lists some 10,000 images
_MAX_PATH = 1024
_MAX_MAT_BYTES = 64 << 20
_MAT_SECONDS = 120.0  # time limit per file; the largest file of a release takes one second
_MAT_MEMORY = 2 << 30  # bytes


def find_folder(source: Path, inside: str, marker: str) -> Path:
    """Return the folder of a release that has the file ``marker``: ``source`` itself, or ``inside`` of it.

    Raises:
        InputError: neither folder has that file.
    """
    for folder in (source, source / inside):
        if (folder / marker).is_file():
            return folder
    raise InputError(
        f"{source} holds neither {marker} nor {inside}/{marker}; expected the folder that the release unpacks to."
    )


def need(path: Path) -> Path:
    """Return the path of a file that a release must have.

    Raises:
        InputError: the file is missing.
    """
    if not path.is_file():
        found = "is a folder" if path.is_dir() else "is missing"
        raise InputError(f"{path} {found}; expected a file of the release.")
    return path


def read_bytes(path: Path, most: int = MAX_LIST_BYTES) -> bytes:
    """Return the bytes of a list file of at most ``most`` bytes.

    Raises:
        InputError: the file is missing.
        TableError: the file cannot be read, or is too large.
    """
    try:
        with open(need(path), "rb") as file:
            data = file.read(most + 1)
    except OSError as error:
        raise TableError(f"{path} cannot be read ({error.strerror}).") from error
    if len(data) > most:
        raise TableError(f"{path} has more than {most:,} bytes, too many for a list of a release.")
    return data


def read_lines(path: Path) -> Iterator[tuple[str, str]]:
    """Yield the location (file and line number) and the text of every line that is not blank.

    Raises:
        InputError: the file is missing.
        TableError: the file cannot be read, is too large, has a line that is too long, or is not UTF-8.
    """
    for number, raw in enumerate(read_bytes(path).splitlines(), start=1):
        where = f"{path}, line {number}"
        if len(raw) > _MAX_LINE:
            raise TableError(f"{where}: {len(raw):,} bytes; expected at most {_MAX_LINE:,} in a line.")
        try:
            line = raw.decode("utf-8-sig" if number == 1 else "utf-8")
        except UnicodeDecodeError as error:
            raise TableError(f"{where}: not UTF-8 (byte {raw[error.start]:#04x}).") from error
        if line.strip():
            yield where, line


def read_words(path: Path, columns: Sequence[str], *, header: bool = False) -> Iterator[tuple[str, list[str]]]:
    """Yield the location of every line (file and line number) and its words, one word per column.

    Args:
        path: path of the list.
        columns: names of the words, for messages.
        header: whether the first line must hold the names of the columns.

    Raises:
        InputError: the file is missing.
        TableError: the file cannot be read, or a line has a wrong number of words.
    """
    for where, line in read_lines(path):
        words = line.split()
        if header:
            header = False
            if words != list(columns):
                raise TableError(f"{where} is {quoted(line)}; expected the header {' '.join(columns)}.")
        elif len(words) != len(columns):
            raise TableError(f"{where} is {quoted(line)} with {len(words)} words; expected {' '.join(columns)}.")
        else:
            yield where, words


def read_csv(path: Path, columns: Sequence[str], *, filled: Sequence[str] = ()) -> pl.DataFrame:
    """Read columns of a CSV as text, null if a cell is empty, in the order of the file.

    Args:
        path: path of the CSV file.
        columns: columns to read; other columns are ignored.
        filled: columns that must have no empty cell.

    Raises:
        InputError: the file is missing.
        TableError: the file cannot be read as CSV, lacks a column, or has an empty cell in a required column.
    """
    table = read_table(need(path), columns)
    for column in filled:
        if table[column].null_count():
            row = table[column].is_null().arg_true()[0] + 2
            raise TableError(
                f"{path}, row {row}: {column} is empty; expected a value in every row. Is the file complete?"
            )
    return table.select(columns)


def read_mats(wanted: Mapping[Path, Sequence[str]]) -> list[dict[str, Any]]:
    """Read variables of MATLAB files (version 5) with scipy, cells as arrays; nothing in a file is executed.

    scipy's reader is native code that damaged files can crash, and variables may decompress to any size, so all files
    are read in one process of their own with bounded time and memory.

    Args:
        wanted: the variables of every file.

    Returns:
        the variables of every file, keyed by name, in the order of ``wanted``.

    Raises:
        InputError: a file is missing.
        TableError: a file cannot be read, is too large, or lacks a variable.
    """
    asked = [(str(path), read_bytes(path, _MAX_MAT_BYTES), tuple(wanted[path])) for path in wanted]
    try:
        return run_alone(_load_mats, asked, seconds=_MAT_SECONDS, memory=_MAT_MEMORY)
    except ProcessEndedError as error:
        names = ", ".join(map(str, wanted))
        raise TableError(
            f"{names}: the file is damaged or too large: the process that read it ended ({error})."
        ) from error


def _load_mats(asked: Sequence[tuple[str, bytes, Sequence[str]]]) -> list[dict[str, Any]]:
    """Read variables of MATLAB files, which are given as path, content and names of variables."""
    from scipy.io import loadmat

    results = []
    for path, data, names in asked:
        try:
            found = loadmat(io.BytesIO(data), variable_names=list(names), verify_compressed_data_integrity=True)
        except Exception as error:  # noqa: BLE001  # scipy raises many types of errors for damaged files
            said = excerpt(str(error) or type(error).__name__)
            raise TableError(f"{path}: not a MATLAB file of version 5 that can be read ({said}).") from None
        missing = [name for name in names if name not in found]
        if missing:
            raise TableError(f"{path} lacks the variable {quoted(missing[0])}; expected {', '.join(names)}.")
        results.append({name: found[name] for name in names})
    return results


def mat_rows(path: Path, table: np.ndarray, fields: Mapping[str, type]) -> Iterator[tuple[str, list[Any]]]:
    """Yield the location and the fields, texts or whole numbers, of every entry of a MATLAB struct array.

    Raises:
        TableError: a field is missing, or is not a single value of its type.
    """
    found = table.dtype.names or ()
    if missing := [field for field in fields if field not in found]:
        raise TableError(f"{path}: its entries lack {quoted(missing[0])}; found {', '.join(found) or 'no fields'}.")
    for index, entry in enumerate(table.ravel(), start=1):
        where = f"{path}, entry {index}"
        yield where, [mat_value(f"{where}: {field}", entry[field], kind) for field, kind in fields.items()]


def mat_value(where: str, value: Any, kind: type) -> Any:
    """Return the single text (str) or whole number (int) that a MATLAB cell holds.

    Raises:
        TableError: the file holds something else.
    """
    found = np.asarray(value).ravel()
    if found.size != 1 or not (isinstance(found[0], str) if kind is str else found.dtype.kind in "iub"):
        expected = "one text" if kind is str else "one whole number"
        raise TableError(f"{where} has {found.size} values of {found.dtype}; expected {expected}.")
    return kind(found[0])


def relative_path(text: str, where: str) -> str:
    """Check a path that a list states: POSIX, relative, inside the release; return it without empty parts.

    Args:
        text: the path as stated.
        where: file and line, for the message.

    Raises:
        TableError: the path is empty, too long or absolute, leads out of the release with ``..``, or holds a backslash
            or a control character.
    """
    parts = text.split("/")
    bad = not text or len(text) > _MAX_PATH or text.startswith("/") or ".." in parts or "\\" in text
    if bad or re.search(r"[\x00-\x1f\x7f]", text):
        raise TableError(
            f"{where}: {quoted(text)} is not a path inside the release; expected for example images/a/b.jpg."
        )
    return "/".join(part for part in parts if part not in ("", "."))


def whole_number(text: str, where: str, what: str) -> int:
    """Parse a whole number that a list states.

    Raises:
        TableError: the text is not a whole number.
    """
    if not (text.isascii() and text.isdigit() and len(text) <= 18):
        raise TableError(f"{where}: {what} is {quoted(text)}; expected a whole number.")
    return int(text)


def catalog_of(
    name: str,
    levels: tuple[str, ...],
    rows: Iterable[Sequence[str | None]],
    root: Path,
    sources: Iterable[Path] = (),
    *,
    listed: Iterable[tuple[str, str]] | None = None,
    **facts: Any,
) -> Catalog:
    """Return the catalog of a release.

    Args:
        name: name of the dataset, and of its protocol unless ``facts`` name one.
        levels: names of the levels, finest first.
        rows: for each item: key, split, file, then one class per level (None: unknown).
        root: folder of the loose files.
        sources: the list files that were read.
        listed: pairs of the name of a list and the key of an item in it; None: no lists.
        facts: further fields of the catalog.
    """
    schema = dict.fromkeys(("key", "split", "file", *levels), pl.String)
    lists = None if listed is None else pl.DataFrame(list(listed), {"list": pl.String, "key": pl.String}, orient="row")
    items = pl.DataFrame(list(rows), schema, orient="row")
    return Catalog(name, levels, items, root, lists=lists, sources=tuple(sources), **{"protocol": name, **facts})
