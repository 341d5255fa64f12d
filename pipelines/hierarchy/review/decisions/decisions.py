"""Annotators' decisions about names and groups: the actions, their fields, and the checks of their values.

Decisions name groups by their label and names by their text, because numbers change from run to run.
"""

import unicodedata
from collections import Counter
from dataclasses import dataclass, fields
from datetime import datetime
from pathlib import Path
from typing import ClassVar, Literal

from hgld.errors import InputError, quoted

MOST_NAMES = 10_000
_MAX_TEXT = {"who": 100, "why": 5_000}
_MAX_LABEL = 500

Role = Literal["annotator", "adjudicator"]


@dataclass(frozen=True, kw_only=True)
class Decision:
    """The base of all decisions: who decided, when (with its time zone), and, if the person says so, why.

    Raises:
        InputError: a value is empty, too long, not printable or contradicts another one.
    """

    action: ClassVar[str]
    who: str
    when: datetime
    why: str | None = None

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, tuple):
                _check_list(field.name, value)
            elif isinstance(value, str):
                check_text(field.name, value)
        if self.when.tzinfo is None:
            raise InputError(f"when is {self.when.isoformat()} without a time zone; end it with Z for UTC.")
        self._check()

    def _check(self) -> None:
        """Check the rules of one action beyond well-formed values."""


@dataclass(frozen=True, kw_only=True)
class Rename(Decision):
    """Give the group ``group`` the label ``to``, which no other group has; its own: it keeps its label."""

    action = "rename"
    group: str
    to: str


@dataclass(frozen=True, kw_only=True)
class Move(Decision):
    """Put ``names`` into the existing group ``to``, wherever they are now."""

    action = "move"
    names: tuple[str, ...]
    to: str


@dataclass(frozen=True, kw_only=True)
class Accept(Decision):
    """Say that ``names``, or without them all names that ``group`` has, belong to ``group``."""

    action = "accept"
    group: str
    names: tuple[str, ...] | None = None


@dataclass(frozen=True, kw_only=True)
class New(Decision):
    """Let ``names``, of whatever groups, form the new group ``to``."""

    action = "new"
    names: tuple[str, ...]
    to: str


@dataclass(frozen=True, kw_only=True)
class Refuse(Decision):
    """Say that ``names`` do not belong to ``group``, or that ``group`` and the group ``other`` are not one.

    ``group`` need not be there: a group that was proposed and refused never was.
    """

    action = "refuse"
    group: str
    names: tuple[str, ...] | None = None
    other: str | None = None

    def _check(self) -> None:
        if (self.names is None) == (self.other is None):
            raise InputError("refuse: expected either names or other.")
        if self.group == self.other:
            raise InputError(f"refuse: group and other are both {quoted(self.group)}; expected two groups.")


@dataclass(frozen=True, kw_only=True)
class GiveItem(Decision):
    """Give one item, the ``id`` of a ``split``, to the group ``group`` or the name ``name``, whatever its own name.

    With both it gets the name, and stands in the group.
    """

    action = "item"
    split: str
    id: str
    name: str | None = None
    group: str | None = None

    def _check(self) -> None:
        if self.name is None and self.group is None:
            raise InputError("item: expected name, group or both.")


@dataclass(frozen=True, kw_only=True)
class Merge(Decision):
    """Put all names of ``groups`` into ``to``: one of them, another group, or a new label."""

    action = "merge"
    groups: tuple[str, ...]
    to: str

    def _check(self) -> None:
        if set(self.groups) == {self.to}:
            raise InputError(f"merge: {quoted(self.to)} is to be merged into itself; expected two groups.")


@dataclass(frozen=True, kw_only=True)
class Split(Decision):
    """Let ``names`` leave ``group`` and form the new group ``to``."""

    action = "split"
    group: str
    names: tuple[str, ...]
    to: str

    def _check(self) -> None:
        if self.group == self.to:
            raise InputError(f"split: group and to are both {quoted(self.to)}; expected a new label.")


@dataclass(frozen=True, kw_only=True)
class Drop(Decision):
    """Leave out ``names``, or all names of ``group``."""

    action = "drop"
    names: tuple[str, ...] | None = None
    group: str | None = None

    def _check(self) -> None:
        if (self.names is None) == (self.group is None):
            raise InputError("drop: expected either names or group.")


@dataclass(frozen=True, kw_only=True)
class SetTop(Decision):
    """Say that ``group`` belongs to ``top``, a class of the build's top level; of ``level`` where it has several."""

    action = "set"
    group: str
    top: str
    level: str | None = None


ACTIONS: dict[str, type[Decision]] = {
    kind.action: kind for kind in (Rename, Move, Merge, Split, Drop, SetTop, Accept, New, Refuse, GiveItem)
}


@dataclass(frozen=True, eq=False)
class Entry:
    """A decision with its position: the file, its number there (from 1), its first line, the file's role.

    Entries are compared by identity: the same decision may stand in a file twice.
    """

    decision: Decision
    file: Path
    number: int
    line: int
    role: Role = "annotator"

    @property
    def place(self) -> str:
        return f"{self.file.name} entry {self.number}"


def check_text(field: str, value: str) -> None:
    """Refuse a text that no decision can hold in this field.

    Raises:
        InputError: it is empty, too long or not printable.
    """
    limit = _MAX_TEXT.get(field, _MAX_LABEL)
    if not value.strip():
        raise InputError(f"{field} is empty.")
    if value != value.strip():
        raise InputError(f"{field} is {quoted(value)}; take away the spaces around it.")
    if len(value) > limit:
        raise InputError(f"{field} has {len(value)} characters; at most {limit} are read.")
    allowed = "\n\t" if field == "why" else ""
    bad = next((c for c in value if unicodedata.category(c) in ("Cc", "Cs", "Zl", "Zp") and c not in allowed), None)
    if bad is not None:
        raise InputError(f"{field} contains the control character U+{ord(bad):04X}; take it out.")


def _check_list(field: str, values: tuple[str, ...]) -> None:
    if not 1 <= len(values) <= MOST_NAMES:
        raise InputError(f"{field} has {len(values)} members; expected 1 to {MOST_NAMES}.")
    for value in values:
        check_text(f"a member of {field}", value)
    if len(set(values)) != len(values):
        twice = min(value for value, count in Counter(values).items() if count > 1)
        raise InputError(f"{field} names {quoted(twice)} twice.")
