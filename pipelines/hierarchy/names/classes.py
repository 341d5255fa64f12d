"""The source ``--classes``, which turns a list of class names into the tables that a scrape writes.

The file is a plain list or a table (``name_tables.py``). Further columns are optional: ``id``; ``count``, the
number that the item stands for (1 if empty); ``description``; ``image``, one path or several separated by ``|`` or
``;``; ``language``, a code such as ``en``. A note lists ignored columns.

An item is a row. Items of the same name but different ids are two items of one name. Rows without a name and rows that
repeat an earlier one are left out and listed with their line. Without ids a name is its item's id.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl

from hgld.errors import TableError

from ...stage import Progress, StageResult, StageRun, run_stage
from .landmark_tables import (
    CLASSES,
    DROPPED,
    ITEMS,
    scraped_table,
    write_scraped,
)
from .name_tables import NAME, SHOWN, NameTable, check_lengths

VERSION = 1
SPLIT = "classes"
COLUMNS = (NAME, "id", "count", "description", "image", "language")
_WHOLE_NUMBER = re.compile(r"[0-9]{1,15}", re.ASCII)
_LANGUAGE = re.compile(r"[A-Za-z]{2,3}(?:[-_][A-Za-z0-9]{2,8})*", re.ASCII)
_BETWEEN_IMAGES = re.compile(r"[|;]")
_MOST_TEXT = {"name": 2_000, "id": 500, "description": 20_000, "image": 20_000}


@dataclass(frozen=True)
class Item:
    """An item of the list: the line that it is in, and its cells."""

    line: int
    id: str
    name: str
    count: int = 1
    description: str | None = None
    images: tuple[str, ...] = ()
    language: str | None = None


@dataclass(frozen=True)
class ItemList:
    """The items in the order of the file, the rows that were left out (line, id, name, reason), and notes."""

    items: list[Item]
    dropped: list[tuple[int, str, str, str]]
    notes: tuple[str, ...]


def run(
    root: Path, file: Path, progress: Progress, *, find: Callable[[Sequence["Item"]], Any] | None = None
) -> StageRun:
    """Run the stage ``scrape`` on a list of names, without a class graph unless one is found.

    Args:
        root: the build's directory of stages.
        file: the list or table.
        progress: told that it is read.
        find: finds the items' classes (``NameClasses``) in a taxonomy or in Wikidata; ``matches.parquet`` says how.

    Raises:
        TableError: as :func:`read_items`.
        HgldError: whatever ``find`` refuses.
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
    """Return items as the table of landmarks that a scrape leaves: numbered from 0, one name each, with its facts.

    Args:
        items: items in order.
        classes: class ids by the items' ids.
        statuses: statuses of items that are to be dropped, by their ids.
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
        TableError: the file is missing, empty, too large or not UTF-8, or has no name. Or a column is there twice. Or a
            row is not CSV, has more cells than the header, or has a value that its column cannot have. Or one id has
            two names.
    """
    table = NameTable.read(file, COLUMNS, {"images": "image"})
    items, dropped = _distinct(file, table.rows())
    if not items:
        raise TableError(f"{file}: no name in its {len(dropped)} rows; expected at least one name.")
    return ItemList(items, dropped, table.notes())


def _distinct(
    file: Path, rows: Iterator[tuple[int, Mapping[str, str]]]
) -> tuple[list[Item], list[tuple[int, str, str, str]]]:
    """Return the items, and (line, id, name, reason) of the rows that are left out."""
    items: dict[str, Item] = {}
    dropped: list[tuple[int, str, str, str]] = []
    for line, cells in rows:
        name, own_id = cells.get(NAME, ""), cells.get("id", "")
        if not name:
            dropped.append((line, own_id, "", "no name" if any(cells.values()) else "empty row"))
            continue
        item = _item(file, line, cells)
        first = items.get(item.id)
        if first is None:
            items[item.id] = item
        elif first.name != name:
            raise TableError(
                f"{file}: the id {item.id[:SHOWN]!r} has the name {first.name[:SHOWN]!r} in line {first.line} and "
                f"{name[:SHOWN]!r} in line {line}; expected one name per id. Correct one of the ids."
            )
        else:
            dropped.append((line, item.id, name, f"repeats the {'id' if own_id else 'name'} of an earlier row"))
    return list(items.values()), dropped


def _item(file: Path, line: int, cells: Mapping[str, str]) -> Item:
    check_lengths(file, line, cells, _MOST_TEXT)
    count, language = cells.get("count", ""), cells.get("language", "")
    if count and (not _WHOLE_NUMBER.fullmatch(count) or int(count) < 1):
        raise TableError(
            f"{file}, line {line}: count is {count[:SHOWN]!r}; expected a whole number from 1, or nothing (1)."
        )
    if language and not _LANGUAGE.fullmatch(language):
        raise TableError(
            f"{file}, line {line}: language is {language[:SHOWN]!r}; expected a code such as en, de or pt-BR, or "
            "nothing where it is not known."
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
