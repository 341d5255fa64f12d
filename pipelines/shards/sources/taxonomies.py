"""Taxonomies that a release lacks: tables of this project, checked against the release's own classes."""

import csv
from collections.abc import Mapping
from pathlib import Path

from hgld.errors import TableError, quoted


def read_taxonomy(table: str) -> dict[int, tuple[str, ...]]:
    """Read a table of this folder: for every class number its name and those of its coarser classes, finest first.

    Args:
        table: file name, for example ``cub_taxonomy.csv``; its card says where it comes from.
    """
    with open(Path(__file__).parent / table, encoding="utf-8", newline="") as file:
        rows = csv.reader(file)
        next(rows)
        return {int(number): tuple(names) for number, *names in rows}


def classes_of(table: str, classes: Mapping[int, str], where: str) -> dict[int, tuple[str, ...]]:
    """Return the taxonomy of a release's classes.

    Args:
        table: as in :func:`read_taxonomy`.
        classes: the release's classes, by number.
        where: the file that lists them, for messages.

    Raises:
        TableError: a class is missing, unknown, or named otherwise than in the taxonomy: the taxonomy is then not this
            release's.
    """
    taxonomy = read_taxonomy(table)
    expected = {number: names[0] for number, names in taxonomy.items()}
    for number in sorted(expected.keys() | classes.keys()):
        if classes.get(number) != expected.get(number):
            raise TableError(
                f"{where}: class {number} is {quoted(classes.get(number))}; expected "
                f"{quoted(expected.get(number))}, as in {table}. Is it the release that the card names, and whole?"
            )
    return taxonomy
