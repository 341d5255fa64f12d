"""Annotators' decisions about names and groups: the actions, their fields, and the checks of their values.

Decisions name groups by their label and names by their text, because numbers change from run to run.
"""

import unicodedata
from dataclasses import dataclass, fields
from datetime import datetime
from pathlib import Path
from typing import ClassVar, Literal, get_args

from hgld.errors import InputError

_MAX_NAMES = 10_000
_MAX_TEXT = {"who": 100, "why": 5_000}
_MAX_LABEL = 500

Top = Literal["natural", "human-made"]
Role = Literal["annotator", "adjudicator"]


@dataclass(frozen=True, kw_only=True)
class Decision:
    """The base of all decisions: who decided, when (with its time zone), and why.

    Raises:
        InputError: a value is empty, too long, not printable or contradicts another one.
    """

    action: ClassVar[str]
    who: str
    when: datetime
    why: str

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
    """Give the group ``group`` the label ``to``, which no other group has."""

    action = "rename"
    group: str
    to: str

    def _check(self) -> None:
        if self.group == self.to:
            raise InputError(f"rename: group and to are both {self.to!r}; expected another label.")


@dataclass(frozen=True, kw_only=True)
class Move(Decision):
    """Put ``names`` into the existing group ``to``, wherever they are now."""

    action = "move"
    names: tuple[str, ...]
    to: str


@dataclass(frozen=True, kw_only=True)
class Merge(Decision):
    """Put all names of ``groups`` into ``to``: one of them, another group, or a new label."""

    action = "merge"
    groups: tuple[str, ...]
    to: str

    def _check(self) -> None:
        if set(self.groups) == {self.to}:
            raise InputError(f"merge: {self.to!r} is to be merged into itself; expected two groups.")


@dataclass(frozen=True, kw_only=True)
class Split(Decision):
    """Let ``names`` leave ``group`` and form the new group ``to``."""

    action = "split"
    group: str
    names: tuple[str, ...]
    to: str

    def _check(self) -> None:
        if self.group == self.to:
            raise InputError(f"split: group and to are both {self.to!r}; expected a new label.")


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
    """Say that ``group`` is natural or human-made."""

    action = "set"
    group: str
    top: Top

    def _check(self) -> None:
        if self.top not in get_args(Top):
            raise InputError(f"set: top is {self.top!r}; expected {' or '.join(get_args(Top))}.")


ACTIONS: dict[str, type[Decision]] = {c.action: c for c in (Rename, Move, Merge, Split, Drop, SetTop)}


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
        raise InputError(f"{field} is {value!r}; take away the spaces around it.")
    if len(value) > limit:
        raise InputError(f"{field} has {len(value)} characters; at most {limit} are read.")
    allowed = "\n\t" if field == "why" else ""
    bad = next((c for c in value if unicodedata.category(c) in ("Cc", "Cs", "Zl", "Zp") and c not in allowed), None)
    if bad is not None:
        raise InputError(f"{field} contains the control character U+{ord(bad):04X}; take it out.")


def _check_list(field: str, values: tuple[str, ...]) -> None:
    if not 1 <= len(values) <= _MAX_NAMES:
        raise InputError(f"{field} has {len(values)} members; expected 1 to {_MAX_NAMES}.")
    for value in values:
        check_text(f"a member of {field}", value)
    if len(set(values)) != len(values):
        twice = sorted({v for v in values if values.count(v) > 1})
        raise InputError(f"{field} names {twice[0]!r} twice.")
