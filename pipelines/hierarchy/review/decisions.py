"""Annotators' decisions about names and groups, and the format of their files: YAML that people can edit.

Decisions name groups by their label and names by their text, because numbers change between builds. A file::

    schema_version: 1
    role: annotator            # or adjudicator; default: annotator
    decisions:
    - action: move
      names:
      - "mountain pass"
      to: "pass"
      who: "ada"
      why: "a pass is not a summit"
      when: "2026-11-21T09:30:00.001Z"

Every value is read as text, so a group can be called ``no`` or ``1984`` without quotes. ``why`` is optional. The page
writes each entry as one line of JSON, which is also YAML. If the writing was cut off, the closing brace is missing, so
reading detects it. The entries of one action on the page have the same ``when``, whose milliseconds are not 0.
"""

import json
import unicodedata
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, fields
from datetime import MAXYEAR, UTC, datetime
from pathlib import Path
from typing import Any, ClassVar, Literal, get_args

import yaml

from hgld.errors import ConfigError, InputError, SchemaError, quoted

MOST_NAMES = 10_000
SCHEMA_VERSION = 1
MAX_BYTES = 16 * 2**20
_MAX_TEXT = {"who": 100, "why": 5_000}
_MAX_LABEL = 500
_MAX_DEPTH = 8
_MAX_EVENTS = 1 << 20  # fields and values; each takes about 300 bytes of memory

# YAML allows these characters only as escapes.
_NOT_IN_YAML = {code: f"\\u{code:04x}" for code in (0xFEFF, 0xFFFE, 0xFFFF)}

Role = Literal["annotator", "adjudicator"]
MODEL = "model:"  # language models are annotators whose name starts like this; their decisions are only votes


@dataclass(frozen=True, kw_only=True)
class Decision:
    """Base of all decisions: who decided, when (with time zone), and optionally why.

    Raises:
        InputError: a value is empty, too long, not printable or contradicts another value.
    """

    action: ClassVar[str]
    who: str
    when: datetime
    why: str | None = None

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, str):
                check_text(field.name, value)
            elif isinstance(value, tuple):
                if not 1 <= len(value) <= MOST_NAMES:
                    raise InputError(f"{field.name} has {len(value)} members; expected 1 to {MOST_NAMES}.")
                for member in value:
                    check_text(f"a member of {field.name}", member)
                if len(set(value)) != len(value):
                    twice = min(member for member, count in Counter(value).items() if count > 1)
                    raise InputError(f"{field.name} lists {quoted(twice)} twice.")
        if self.when.tzinfo is None or self.when.year == MAXYEAR:  # the page must be able to add later times
            raise InputError(f"when is {self.when.isoformat()}; expected a time before 9999 that ends with Z for UTC.")
        self._check()

    def _check(self) -> None:
        """Check the values of one action against each other."""

    def to_dict(self) -> dict[str, Any]:
        """Return the action and the fields that have a value, for JSON."""
        said = {name: value for name, value in vars(self).items() if value is not None}
        return {"action": self.action, **said, "when": self.when.astimezone(UTC).isoformat().replace("+00:00", "Z")}


@dataclass(frozen=True, kw_only=True)
class Rename(Decision):
    """Give the group ``group`` the label ``to``, which no other group has. If ``to`` is its label, this confirms it."""

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
    """Say that ``names`` (default: all names of ``group``) belong to ``group``."""

    action = "accept"
    group: str
    names: tuple[str, ...] | None = None


@dataclass(frozen=True, kw_only=True)
class New(Decision):
    """Move ``names`` from any groups to the new group ``to``."""

    action = "new"
    names: tuple[str, ...]
    to: str


@dataclass(frozen=True, kw_only=True)
class Refuse(Decision):
    """Say that ``names`` do not belong to ``group``."""

    action = "refuse"
    group: str
    names: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class GiveItem(Decision):
    """Give the item ``id`` of ``split`` another name, another group, or both."""

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
    """Move ``names`` from ``group`` to the new group ``to``."""

    action = "split"
    group: str
    names: tuple[str, ...]
    to: str

    def _check(self) -> None:
        if self.group == self.to:
            raise InputError(f"split: group and to are both {quoted(self.to)}; expected a new label.")


@dataclass(frozen=True, kw_only=True)
class Drop(Decision):
    """Drop ``names``, or all names of ``group``."""

    action = "drop"
    names: tuple[str, ...] | None = None
    group: str | None = None

    def _check(self) -> None:
        if (self.names is None) == (self.group is None):
            raise InputError("drop: expected either names or group.")


@dataclass(frozen=True, kw_only=True)
class SetTop(Decision):
    """Put ``group`` into the class ``top`` of ``level``. Default: the build's coarsest level."""

    action = "set"
    group: str
    top: str
    level: str | None = None


ACTIONS: dict[str, type[Decision]] = {
    kind.action: kind for kind in (Rename, Move, Merge, Split, Drop, SetTop, Accept, New, Refuse, GiveItem)
}


@dataclass(frozen=True, eq=False)
class Entry:
    """A decision with its file, its number in the file (from 1) and the file's role.

    Entries are compared by identity, because a file may contain the same decision twice.
    """

    decision: Decision
    file: Path
    number: int
    role: Role = "annotator"

    @property
    def place(self) -> str:
        return f"{self.file.name} entry {self.number}"


def check_text(field: str, value: str) -> None:
    """Check that a text is valid for a field of a decision.

    Raises:
        InputError: the text is empty, too long or not printable.
    """
    limit = _MAX_TEXT.get(field, _MAX_LABEL)
    if not value.strip():
        raise InputError(f"{field} is empty.")
    if value != value.strip():
        raise InputError(f"{field} is {quoted(value)}; remove the spaces around it.")
    if len(value) > limit:
        raise InputError(f"{field} has {len(value)} characters; expected at most {limit}.")
    allowed = "\n\t" if field == "why" else ""
    bad = next((c for c in value if unicodedata.category(c) in ("Cc", "Cs", "Zl", "Zp") and c not in allowed), None)
    if bad is not None:
        raise InputError(f"{field} contains the control character U+{ord(bad):04X}; remove it.")


# -- reading -------------------------------------------------------------------------------------------------------


def read_decisions(paths: Sequence[Path]) -> list[Entry]:
    """Read the decisions of several files, ordered by ``when``, then file name, then number in the file.

    Raises:
        InputError: a file cannot be read, or an entry is not a decision; the message names the file, the entry and its
            line.
        SchemaError: a file has another schema version.
        ConfigError: one file is given twice.
    """
    resolved = [path.resolve() for path in paths]
    for path, one in zip(paths, resolved, strict=True):
        if resolved.count(one) > 1:
            raise ConfigError(f"{path}: this file of decisions is given twice; give it once.")
    entries = [entry for path in paths for entry in parse_decisions(_read(path), path)]
    return sorted(entries, key=lambda e: (e.decision.when, e.file.name, e.number))


def _read(path: Path) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read(MAX_BYTES + 1)
    except OSError as error:
        raise InputError(f"{path}: the decisions cannot be read: {error.strerror}. Check --decisions.") from error


def parse_decisions(text: str | bytes, path: Path) -> list[Entry]:
    """Parse the content of a file, in order; errors and entries name ``path``.

    Raises:
        InputError: the file is too large, or an entry is not a decision.
        SchemaError: the file has another schema version.
    """
    if len(text) > MAX_BYTES:
        raise InputError(f"{path}: the file has more than {MAX_BYTES // 2**20} MB, too many for a file of decisions.")
    if isinstance(text, bytes):
        try:
            text = text.decode("utf-8-sig")
        except UnicodeDecodeError as error:
            said = f"byte 0x{text[error.start]:02x} is not UTF-8; save the file as UTF-8."
            line = text.count(b"\n", 0, error.start) + 1
            raise _entry_error(path, text.decode("utf-8-sig", "replace"), said, line=line) from error
    if not text.strip("\ufeff \t\r\n"):
        return []
    try:
        content = _load(text)
    except yaml.YAMLError as error:
        mark = getattr(error, "context_mark", None) or getattr(error, "problem_mark", None)
        line = mark.line + 1 if mark else text.count("\n", 0, getattr(error, "position", 0)) + 1
        parts = [getattr(error, name, None) for name in ("context", "problem", "reason")]
        raise _entry_error(path, text, f"not YAML: {', '.join(filter(None, parts))}.", line=line) from error
    fields_ = "schema_version, role, decisions"
    if not isinstance(content, dict):
        raise InputError(f"{path}: the file is not a mapping of fields; expected {fields_}.")
    if (version := content.pop("schema_version", None)) != str(SCHEMA_VERSION):
        raise SchemaError(
            f"{path}: schema_version is {quoted(version)}; this hgld reads decisions of version {SCHEMA_VERSION}. "
            f"Begin the file with 'schema_version: {SCHEMA_VERSION}'."
        )
    role, listed = content.pop("role", "annotator"), content.pop("decisions", None)
    if role not in get_args(Role):
        raise InputError(f"{path}: role is {quoted(role)}; expected {' or '.join(get_args(Role))}.")
    if content:
        raise InputError(f"{path}: unknown field {quoted(next(iter(content)))}; expected {fields_}.")
    if not isinstance(listed, list) and listed != "":
        raise InputError(f"{path}: the field 'decisions' is missing or not a list.")
    entries = []
    for number, said in enumerate(listed, 1):
        try:
            entries.append(Entry(make_decision(said), path, number, role))
        except InputError as error:
            raise _entry_error(path, text, str(error), number=number) from error
    return entries


# This base reads values such as no, 1984 and 2026-11-21 as text.
class _Loader(getattr(yaml, "CBaseLoader", yaml.BaseLoader)):  # pyright: ignore[reportGeneralTypeIssues]
    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        found = super().construct_mapping(node, deep)
        if len(found) < len(node.value):
            raise yaml.MarkedYAMLError(problem="a field is given twice", problem_mark=node.start_mark)
        return found


def _load(text: str) -> Any:
    """Return the content of a YAML text: texts, lists and dictionaries.

    The events are checked first, because deep nesting crashes the loader, and aliases can expand without end.
    """
    depth = 0
    for number, event in enumerate[Any](yaml.parse(text, Loader=_Loader)):  # its types lack the fields of events
        mark = event.start_mark
        if number > _MAX_EVENTS:
            raise yaml.MarkedYAMLError(problem="too many fields and values", problem_mark=mark)
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if isinstance(event, yaml.AliasEvent) or depth > _MAX_DEPTH:
            said = "nested too deep" if depth > _MAX_DEPTH else f"*{event.anchor} is a YAML alias; write '*' in quotes"
            raise yaml.MarkedYAMLError(problem=said, problem_mark=mark)
    return yaml.load(text, Loader=_Loader)  # noqa: S506 - it constructs only texts


def _entry_error(path: Path, text: str, said: str, *, line: int = 0, number: int = 0) -> InputError:
    """Return the error about a line or an entry of a file; the text tells which line begins which entry."""
    starts = [row for row, content in enumerate(text.splitlines(), 1) if content.startswith("-")]
    number = number or sum(row <= line for row in starts)
    line = line or (starts[number - 1] if number <= len(starts) else 0)
    where = f"entry {number} (line {line})" if number and line else f"entry {number}" if number else f"line {line}"
    cut = " If its writing was cut off, delete it and decide again." if number and number == len(starts) else ""
    return InputError(f"{path}: {where}: {said}{cut}")


def make_decision(said: Any, **own: Any) -> Decision:
    """Return the decision that the fields of an entry describe.

    Args:
        said: ``action``, and the fields of that action: texts, or lists of texts.
        own: values of fields that ``said`` must not contain.

    Raises:
        InputError: the fields are not a decision.
    """
    if not isinstance(said, Mapping):
        raise InputError("an entry is not a mapping of fields, each with 'name: value'.")
    action = said.get("action")
    kind = ACTIONS.get(action) if isinstance(action, str) else None
    if kind is None:
        found = "missing" if action is None else quoted(str(action)[:50])
        raise InputError(f"action is {found}; expected one of {', '.join(ACTIONS)}.")
    known = {field.name: field for field in fields(kind) if field.name not in own}
    values = dict(own)
    for name, value in said.items():
        if name == "action":
            continue
        if name not in known:
            raise InputError(f"{kind.action} has no field {quoted(name[:50])}; its fields are {', '.join(known)}.")
        if name == "why" and value == "":
            continue
        is_list = name in ("names", "groups")
        members = value if isinstance(value, list) else [value]
        if isinstance(value, list) > is_list or not all(isinstance(member, str) for member in members):
            expected = "a list of texts" if is_list else "one text, in quotes if it looks like a number"
            raise InputError(f"{kind.action}: {name} is {quoted(value)}; expected {expected}.")
        texts = tuple(unicodedata.normalize("NFC", member) for member in members)
        values[name] = texts if is_list else texts[0]
    if missing := [name for name, field in known.items() if field.default is MISSING and name not in values]:
        raise InputError(f"{kind.action} lacks {', '.join(missing)}.")
    if isinstance(values["when"], str):
        values["when"] = _time(values["when"])
    return kind(**values)


def _time(text: str) -> datetime:
    try:
        when = datetime.fromisoformat(text)
    except ValueError as error:
        raise InputError(f"when is {quoted(text)}; expected a time such as 2026-11-21T09:30:00Z or a day.") from error
    is_day = len(text) == len("2026-11-21")  # a day means its first moment, before the day's other entries
    return when.replace(tzinfo=UTC) if is_day else when


# -- writing -------------------------------------------------------------------------------------------------------


def file_header(role: Role = "annotator") -> str:
    """Return the first lines of a file of decisions."""
    return f"schema_version: {SCHEMA_VERSION}\nrole: {role}\ndecisions:\n"


def format_decision(decision: Decision) -> str:
    """Return a decision as an entry of a file, in one line of JSON."""
    return f"- {json.dumps(decision.to_dict(), ensure_ascii=False).translate(_NOT_IN_YAML)}\n"
