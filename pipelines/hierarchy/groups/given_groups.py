"""Groups given by the user (``--into``): a list of group names, or a table that describes them.

Beside ``name`` are read, if they are there: ``description``; ``parent``, the name of the coarser group that it lies in;
``seeds``, names that belong into it, separated by ``|``. A group that is another one's parent is a class of a coarser
level, and names are put into groups that are no parents. Parents may have parents: the nearest ones are the level above
the groups, theirs the next one; a group with fewer of them than others has no class at the levels beyond.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from hgld.errors import TableError, quoted

from ..names.clean import name_key
from ..names.name_tables import NAME, SHOWN, NameTable, check_lengths

NONE = "none of these"
COLUMNS = (NAME, "description", "parent", "seeds")
_ALIASES = {"seed": "seeds", "seed names": "seeds", "seed_names": "seeds"}
_MOST_TEXT = {"name": 500, "description": 20_000, "parent": 500, "seeds": 100_000}


@dataclass(frozen=True)
class GivenGroup:
    """A group of the file: its line, its texts, and its classes at the levels above it, finest first."""

    line: int
    name: str
    description: str = ""
    seeds: tuple[str, ...] = ()
    above: tuple[str, ...] = ()


@dataclass(frozen=True)
class GivenGroups:
    """The groups that names are put into, in the order of the file, and notes for people."""

    groups: tuple[GivenGroup, ...]
    notes: tuple[str, ...] = ()

    @property
    def levels_above(self) -> int:
        """Number of levels that parents give."""
        return max(len(group.above) for group in self.groups)

    @classmethod
    def read(cls, file: Path) -> "GivenGroups":
        """Read the groups of a file.

        Raises:
            TableError: the file cannot be read as a list or table of names; a group is there twice, is called "none of
                these", or lies below itself; or there is no group.
        """
        table = NameTable.read(file, COLUMNS, _ALIASES)
        rows = _rows(file, table)
        parent = {key: cells["parent"] for key, (_, cells) in rows.items() if cells.get("parent")}
        parents = {name_key(name) for name in parent.values()}
        spelling = {key: cells[NAME] for key, (_, cells) in rows.items()}
        above = {key: _above(file, line, key, parent, spelling) for key, (line, _) in rows.items()}
        groups = tuple(
            GivenGroup(
                line=line,
                name=cells[NAME],
                description=cells.get("description", ""),
                seeds=_seeds(cells.get("seeds", "")),
                above=above[key],
            )
            for key, (line, cells) in rows.items()
            if key not in parents
        )
        if not groups:
            raise TableError(f"{file}: no group that is not a parent; expected at least one group to put names into.")
        return cls(groups, table.notes())


def _rows(file: Path, table: NameTable) -> dict[str, tuple[int, Mapping[str, str]]]:
    """Return line and cells of every named row by the key of its name."""
    rows: dict[str, tuple[int, Mapping[str, str]]] = {}
    for line, cells in table.rows():
        check_lengths(file, line, cells, _MOST_TEXT)
        if not any(cells.values()):
            continue
        key = name_key(cells.get(NAME, ""))
        if not key:
            raise TableError(
                f"{file}, line {line}: no name; expected a group in every row. Name it, or delete the row."
            )
        if key in rows:
            raise TableError(
                f"{file}: the group {quoted(cells[NAME][:SHOWN])} stands in line {rows[key][0]} and in line "
                f"{line}; expected each once. Join the two rows; several seeds are separated by |."
            )
        if key == NONE:
            raise TableError(
                f"{file}, line {line}: a group cannot be called {NONE!r}, as the group of names that fit no other is."
            )
        rows[key] = (line, cells)
    return rows


def _seeds(text: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(part.strip() for part in text.split("|") if part.strip()))


def _above(file: Path, line: int, key: str, parent: Mapping[str, str], spelling: Mapping[str, str]) -> tuple[str, ...]:
    """Return the names of a group's parent, of that one's parent and so on."""
    above: list[str] = []
    seen = {key}
    while key in parent:
        key = name_key(parent[key])
        if key in seen:
            raise TableError(
                f"{file}, line {line}: {quoted(spelling[key][:SHOWN])} lies below itself by its parents; "
                "expected a tree. Correct the column 'parent'."
            )
        seen.add(key)
        above.append(spelling.get(key) or next(name for name in parent.values() if name_key(name) == key))
    return tuple(above)
