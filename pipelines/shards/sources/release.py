"""Read the lists of a release: bounded, checked, and with errors that say where to get missing files."""

import os
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import polars as pl

from hgld import tables
from hgld.errors import ConfigError, InputError, TableError, quoted
from hgld.files import parse_json

from ...executor import ProcessEndedError, run_alone
from ..catalog import DROPPED

if TYPE_CHECKING:
    from ..config import SourceConfig

MAX_LIST_BYTES = 1 << 30
_MAX_LINE = 1 << 20  # characters; GLDv2's longest line lists some 10,000 images
_MAX_PATH = 1024
_SHOWN = 80
_MAT_SECONDS = 120.0  # the largest of a release takes one
_MAT_MEMORY = 2 << 30  # bytes
_ALWAYS_TAKEN = {"seed", "splits"}


def refuse_options(options: "SourceConfig", taken: Collection[str], name: str) -> None:
    """Refuse options that a source does not take, so that none is ignored in silence.

    Args:
        options: given by the user.
        taken: fields that this source reads besides ``seed`` and ``splits``.
        name: the source, for the message.

    Raises:
        ConfigError: an option was given that this source does not take.
    """
    given = [f.name for f in fields(options) if getattr(options, f.name) != f.default]
    refused = [field for field in given if field not in _ALWAYS_TAKEN and field not in taken]
    if refused:
        flags = ", ".join(f"--{field.replace('_', '-')}" for field in refused)
        takes = ", ".join(f"--{field.replace('_', '-')}" for field in taken) or "none of its own"
        raise ConfigError(f"{name} does not take {flags}; its options are: {takes}. Leave {flags} out.")


def find_folder(source: Path, inside: str, marker: str, obtain: str) -> Path:
    """Find the folder of a release, which may have been unpacked into ``source`` itself or into a folder of it.

    Args:
        source: the folder given by the user.
        inside: the name of the folder that the release's archive makes.
        marker: a file of the release, relative to its folder.
        obtain: where to get the release.

    Raises:
        InputError: neither folder has that file.
    """
    for folder in (source, source / inside):
        if (folder / marker).is_file():
            return folder
    raise InputError(
        f"{source} holds neither {marker} nor {inside}/{marker}; expected the folder that the release "
        f"unpacks to. {obtain}"
    )


def numbered_images(
    source: Path, inside: str, pattern: str, example: str, obtain: str
) -> tuple[dict[str, int], pl.DataFrame]:
    """Find the images of a release that has no list, by names with a number in them.

    Args:
        source: the folder given by the user.
        inside: the folder of the images, where ``source`` is the one that holds it.
        pattern: of the whole name of an image; its group is the number.
        example: a name, for the message.
        obtain: where to get the release.

    Returns:
        the number of every image by its path relative to ``source``, in the order of the numbers; the files of other
        names, as a catalog's ``dropped``.

    Raises:
        InputError: there are no such images.
    """
    folder, prefix = (source / inside, f"{inside}/") if (source / inside).is_dir() else (source, "")
    names = sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []
    found = {f"{prefix}{name}": int(match[1]) for name in names if (match := re.fullmatch(pattern, name))}
    if not found:
        raise InputError(f"{folder}: no image named like {example} in it ({len(names)} other files). {obtain}")
    others = [
        (prefix + os.fsencode(name).decode("utf-8", errors="replace"), "", "not an image of the release", "")
        for name in names
        if prefix + name not in found
    ]
    ordered = dict(sorted(found.items(), key=lambda image: image[1]))
    return ordered, pl.DataFrame(others, schema=DROPPED, orient="row")


def need(path: Path, obtain: str) -> Path:
    """Return the path of a file that a release must have.

    Raises:
        InputError: it is missing; the message says where to get it.
    """
    if not path.is_file():
        found = "is a folder" if path.is_dir() else "is missing"
        raise InputError(f"{path} {found}; expected a file of the release. {obtain}")
    return path


def read_bytes(path: Path, obtain: str, *, most: int = MAX_LIST_BYTES) -> bytes:
    """Return the bytes of a list, at most ``most`` of them.

    Raises:
        InputError: the file is missing.
        TableError: it cannot be read, or is larger.
    """
    try:
        with open(need(path, obtain), "rb") as file:
            data = file.read(most + 1)
    except OSError as error:
        raise TableError(f"{path} cannot be read ({error.strerror}).") from error
    if len(data) > most:
        raise TableError(f"{path} has more than {most:,} bytes, too many for a list of a release.")
    return data


def read_lines(path: Path, obtain: str) -> Iterator[tuple[int, str]]:
    """Yield the lines of a text file with their numbers from 1, without line ends; blank lines are skipped.

    Raises:
        InputError: the file is missing.
        TableError: it cannot be read, is too large, has a line that is too long, or is not UTF-8.
    """
    for number, raw in enumerate(read_bytes(path, obtain).splitlines(), start=1):
        if len(raw) > _MAX_LINE:
            raise TableError(f"{path}, line {number}: {len(raw):,} bytes; expected at most {_MAX_LINE:,} in a line.")
        try:
            line = raw.decode("utf-8-sig" if number == 1 else "utf-8")
        except UnicodeDecodeError as error:
            raise TableError(f"{path}, line {number}: not UTF-8 (byte {raw[error.start]:#04x}).") from error
        if line.strip():
            yield number, line


def read_words(path: Path, columns: Sequence[str], obtain: str, *, header: bool = False) -> Iterator[list[str]]:
    """Yield the words of every line, as many as there are columns.

    Args:
        path: the list.
        columns: names of the words, for messages.
        obtain: where to get the release.
        header: if True, the first line must hold the columns' names.

    Raises:
        InputError: the file is missing.
        TableError: it cannot be read, or a line has another number of words.
    """
    for number, line in read_lines(path, obtain):
        words = line.split()
        if header:
            header = False
            if words != list(columns):
                raise TableError(f"{path}, line {number} is {quoted(line)}; expected the header {' '.join(columns)}.")
        elif len(words) != len(columns):
            raise TableError(
                f"{path}, line {number} is {quoted(line)}: {len(words)} words; expected {' '.join(columns)}."
            )
        else:
            yield words


def read_csv(path: Path, columns: Sequence[str], obtain: str, *, filled: Sequence[str] = ()) -> pl.DataFrame:
    """Read columns of a CSV as text, null where a cell is empty, in the order of the file.

    Args:
        path: the CSV.
        columns: to read; others are ignored.
        obtain: where to get the release.
        filled: columns that must have no empty cell.

    Raises:
        InputError: the file is missing.
        TableError: it cannot be read as CSV, lacks a column, or has an empty cell where none may be.
    """
    data = read_bytes(path, obtain)
    table = tables.read_csv(data, where=str(path))
    missing = [column for column in columns if column not in table.columns]
    if missing:
        found = ", ".join(repr(name[:_SHOWN]) for name in table.columns[:20])
        raise TableError(f"{path} lacks the column {quoted(missing[0])}; found {found}, expected {', '.join(columns)}.")
    for column in filled:
        if table[column].null_count():
            row = table[column].is_null().arg_true()[0] + 2
            raise TableError(f"{path}, row {row}: {column} is empty; expected a value in every row. Is the file whole?")
    return table.select(columns)


def read_json(path: Path, obtain: str) -> Any:
    """Read the content of a JSON file.

    Raises:
        InputError: the file is missing.
        TableError: it cannot be read, is too large, or not JSON.
    """
    data = read_bytes(path, obtain)
    return parse_json(data, str(path), max_bytes=len(data), max_values=1 << 27)  # a release of 3 million images


def read_mats(wanted: Mapping[Path, Sequence[str]], obtain: str, *, most: int = 64 << 20) -> list[dict[str, Any]]:
    """Read variables of MATLAB files (version 5) with scipy, cells as arrays; nothing in a file is executed.

    scipy's reader is native code that damaged files can crash, so all files are read in one process of their own.

    Args:
        wanted: the variables of every file.
        obtain: where to get the release.
        most: bytes of a file.

    Returns:
        the variables of every file by their names, in the order of ``wanted``.

    Raises:
        InputError: a file is missing.
        TableError: a file cannot be read, is larger than ``most`` bytes, or lacks a variable.
    """
    asked = [(str(path), read_bytes(path, obtain, most=most), tuple(wanted[path])) for path in wanted]
    try:
        return run_alone(_load_mats, asked, seconds=_MAT_SECONDS, memory=_MAT_MEMORY)
    except TableError as error:
        raise TableError(f"{error} {obtain}") from None
    except ProcessEndedError as error:
        names = ", ".join(str(path) for path in wanted)
        raise TableError(
            f"{names}: not a MATLAB file of version 5 that can be read (its reader was ended: {error}). The file is "
            f"damaged. {obtain}"
        ) from error


def _load_mats(asked: Sequence[tuple[str, bytes, Sequence[str]]]) -> list[dict[str, Any]]:
    """Read variables (path, content, names), in whatever process this is."""
    import io

    from scipy.io import loadmat

    results = []
    for path, data, names in asked:
        try:
            found = loadmat(io.BytesIO(data), variable_names=list(names), verify_compressed_data_integrity=True)
        except Exception as error:  # noqa: BLE001  # scipy raises what its parts raise at damaged files
            said = _first_line(error)
            raise TableError(f"{path}: not a MATLAB file of version 5 that can be read ({said}).") from None
        missing = [name for name in names if name not in found]
        if missing:
            raise TableError(f"{path} lacks the variable {quoted(missing[0])}; expected {', '.join(names)}.")
        results.append({name: found[name] for name in names})
    return results


def relative_path(text: str, where: str) -> str:
    """Check a path that a list states: POSIX, relative, inside the release.

    Args:
        text: the path as stated.
        where: file and line, for the message.

    Raises:
        TableError: it is empty or too long, absolute, climbs out with ``..``, or holds a backslash or a control
            character.
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
        TableError: it is not a whole number.
    """
    if not (text.isascii() and text.isdigit() and len(text) <= 18):
        raise TableError(f"{where}: {what} is {quoted(text)}; expected a whole number.")
    return int(text)


def keep_splits(items: pl.DataFrame, splits: Sequence[str], name: str) -> pl.DataFrame:
    """Keep the items of the given splits, or all of them where none is given.

    Raises:
        ConfigError: a split that the release does not have.
    """
    there = items["split"].unique().sort().to_list()
    unknown = [split for split in splits if split not in there]
    if unknown:
        raise ConfigError(
            f"{name} has no split {quoted(unknown[0])}; its splits are {', '.join(there)}. Correct --splits."
        )
    return items.filter(pl.col("split").is_in(list(splits))) if splits else items


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0][:200] or type(error).__name__
