"""Annotators' decisions about names and groups, and their files: plain YAML that people edit and the page appends to.

Decisions name groups by their label and names by their text, because numbers change from run to run. A file::

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

Every value is read as text, so a group may be called ``no`` or ``1984`` without quotes. ``why`` is optional. The page
writes an entry as one line of JSON, which is YAML too: an entry whose writing was cut off lacks its closing brace, and
never passes for a whole one. Entries that the page wrote in one action have one ``when``, whose milliseconds are not 0.
"""

import errno
import json
import os
import unicodedata
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import MISSING, dataclass, fields
from datetime import UTC, datetime
from io import FileIO
from pathlib import Path
from typing import Any, ClassVar, Literal, get_args

import yaml

from hgld.errors import ConfigError, InputError, SchemaError, StorageError, quoted
from hgld.files import file_lock, sync

MOST_NAMES = 10_000
SCHEMA_VERSION = 1
MAX_BYTES = 16 * 2**20
_MAX_TEXT = {"who": 100, "why": 5_000}
_MAX_LABEL = 500
_MAX_DEPTH = 8

_NOT_IN_YAML = {code: f"\\u{code:04x}" for code in (0xFEFF, 0xFFFE, 0xFFFF)}  # letters that YAML has as escapes alone

Role = Literal["annotator", "adjudicator"]


@dataclass(frozen=True, kw_only=True)
class Decision:
    """Base of all decisions: who decided, when (with its time zone), and, if the person says so, why.

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
            if isinstance(value, str):
                check_text(field.name, value)
            elif isinstance(value, tuple):
                if not 1 <= len(value) <= MOST_NAMES:
                    raise InputError(f"{field.name} has {len(value)} members; expected 1 to {MOST_NAMES}.")
                for member in value:
                    check_text(f"a member of {field.name}", member)
                if len(set(value)) != len(value):
                    twice = min(member for member, count in Counter(value).items() if count > 1)
                    raise InputError(f"{field.name} names {quoted(twice)} twice.")
        if self.when.tzinfo is None:
            raise InputError(f"when is {self.when.isoformat()} without a time zone; end it with Z for UTC.")
        self._check()

    def _check(self) -> None:
        """Check the rules of one action beyond well-formed values."""

    def to_dict(self) -> dict[str, Any]:
        """Return the action and the fields that are stated, as JSON has them."""
        said = {name: value for name, value in vars(self).items() if value is not None}
        return {"action": self.action, **said, "when": self.when.astimezone(UTC).isoformat().replace("+00:00", "Z")}


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
    """Let ``names``, of any groups, form the new group ``to``."""

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
    """Give one item, the ``id`` of a ``split``, to the group ``group`` or the name ``name``, whatever its name.

    With both it gets the name, and is in the group.
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
    """Drop ``names``, or all names of ``group``."""

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
    """A decision with its file, its number there (from 1) and the file's role.

    Entries are compared by identity: a file may hold the same decision twice.
    """

    decision: Decision
    file: Path
    number: int
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


# -- reading -------------------------------------------------------------------------------------------------------


def read_decisions(paths: Sequence[Path]) -> list[Entry]:
    """Read the decisions of one or several files, ordered by ``when``, then file name, then number in the file.

    Raises:
        InputError: a file cannot be read, or an entry is not a decision; names the file, the entry and its line.
        SchemaError: a file of another schema version.
        ConfigError: one file is given twice.
    """
    resolved = [path.resolve() for path in paths]
    if len(set(resolved)) != len(resolved):
        twice = next(p for p, r in zip(paths, resolved, strict=True) if resolved.count(r) > 1)
        raise ConfigError(f"{twice}: this file of decisions is given twice; name it once.")
    entries = [entry for path in paths for entry in _read(path)]
    return sorted(entries, key=lambda e: (e.decision.when, e.file.name, e.number))


def _read(path: Path) -> list[Entry]:
    try:
        with open(path, "rb") as file:
            data = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise InputError(f"{path}: the decisions cannot be read: {error.strerror}. Check --decisions.") from error
    return parse_decisions(data, path)


def parse_decisions(text: str | bytes, path: Path) -> list[Entry]:
    """Parse the content of a file, in its order; errors and entries name ``path``.

    Raises:
        InputError, SchemaError: as :func:`read_decisions`.
    """
    if len(text) > MAX_BYTES:
        raise InputError(f"{path}: larger than {MAX_BYTES // 2**20} MB; that is too large for a file of decisions.")
    if isinstance(text, bytes):
        try:
            text = text.decode("utf-8-sig")
        except UnicodeDecodeError as error:
            said = f"byte 0x{text[error.start]:02x} is not UTF-8; save the file as UTF-8."
            line = text.count(b"\n", 0, error.start) + 1
            raise _refusal(path, text.decode("utf-8-sig", "replace"), said, line=line) from error
    if not text.strip("\ufeff \t\r\n"):
        return []
    try:
        content = _load(text)
    except yaml.YAMLError as error:
        mark = getattr(error, "context_mark", None) or getattr(error, "problem_mark", None)
        line = mark.line + 1 if mark else text.count("\n", 0, getattr(error, "position", 0)) + 1
        parts = [getattr(error, name, None) for name in ("context", "problem", "reason")]
        raise _refusal(path, text, f"not YAML: {', '.join(filter(None, parts))}.", line=line) from error
    if not isinstance(content, dict):
        raise InputError(f"{path}: the file is not a mapping of fields; expected schema_version, role, decisions.")
    if (version := content.get("schema_version")) != str(SCHEMA_VERSION):
        raise SchemaError(
            f"{path}: schema_version is {quoted(version)}; this hgld reads decisions of version {SCHEMA_VERSION}. "
            f"Begin the file with 'schema_version: {SCHEMA_VERSION}'."
        )
    role, listed = content.get("role", "annotator"), content.get("decisions") or []
    if role not in get_args(Role):
        raise InputError(f"{path}: role is {quoted(role)}; expected {' or '.join(get_args(Role))}.")
    if unknown := [field for field in content if field not in ("schema_version", "role", "decisions")]:
        raise InputError(f"{path}: unknown field {quoted(unknown[0])}; expected schema_version, role, decisions.")
    if "decisions" not in content or not isinstance(listed, list):
        raise InputError(f"{path}: the field 'decisions' is missing or not a list.")
    entries = []
    for number, said in enumerate(listed, 1):
        try:
            entries.append(Entry(make_decision(said), path, number, role))
        except InputError as error:
            raise _refusal(path, text, str(error), number=number) from error
    return entries


class _Loader(getattr(yaml, "CBaseLoader", yaml.BaseLoader)):  # values stay text: no, 1984, 2026-11-21
    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        found = super().construct_mapping(node, deep)
        if len(found) < len(node.value):
            raise yaml.MarkedYAMLError(problem="a field is given twice", problem_mark=node.start_mark)
        return found


def _load(text: str) -> Any:
    """Return the content of a YAML text: texts, lists and dictionaries.

    The events are read first: enough brackets crash the loader, and aliases may stand for endless lists.
    """
    depth = 0
    for event in yaml.parse(text, Loader=_Loader):
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if isinstance(event, yaml.AliasEvent) or depth > _MAX_DEPTH:
            said = "nested too deep" if depth > _MAX_DEPTH else f"*{event.anchor} is a YAML alias; write '*' in quotes"
            raise yaml.MarkedYAMLError(problem=said, problem_mark=event.start_mark)
    return yaml.load(text, Loader=_Loader)  # noqa: S506 - it constructs texts alone


def _refusal(path: Path, text: str, said: str, *, line: int = 0, number: int = 0) -> InputError:
    """Return the error of a line, or of an entry; the other is counted in the text."""
    starts = [row for row, content in enumerate(text.splitlines(), 1) if content.startswith("-")]
    number = number or sum(row <= line for row in starts)
    line = line or (starts[number - 1] if number <= len(starts) else 0)
    where = f"entry {number} (line {line})" if number and line else f"entry {number}" if number else f"line {line}"
    cut = " If its writing was cut off, delete it and decide again." if number and number == len(starts) else ""
    return InputError(f"{path}: {where}: {said}{cut}")


def make_decision(said: Any, **own: Any) -> Decision:
    """Return the decision that the fields of an entry state.

    Args:
        said: ``action``, and the fields of that action: texts, or lists of texts.
        own: fields that are not for ``said`` to state.

    Raises:
        InputError: it is no decision.
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
            raise InputError(f"{kind.action}: {name} is not a {'list of texts' if is_list else 'text'}.")
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
    is_day = len(text) == len("2026-11-21")  # its first moment, so that it comes before the day's other entries
    return when.replace(tzinfo=UTC) if is_day else when


# -- writing -------------------------------------------------------------------------------------------------------


def file_header(role: Role = "annotator") -> str:
    """Return the lines that a file of decisions begins with."""
    return f"schema_version: {SCHEMA_VERSION}\nrole: {role}\ndecisions:\n"


def format_decision(decision: Decision) -> str:
    """Return a decision as an entry of a file: a line of JSON."""
    return f"- {json.dumps(decision.to_dict(), ensure_ascii=False).translate(_NOT_IN_YAML)}\n"


def append_decision(path: Path, decision: Decision, *, role: Role = "annotator") -> None:
    """Append one decision to a file and wait until the disk has it.

    The entry is one write at the end of the file under a lock, so that a crash leaves it whole, cut off (which
    :func:`read_decisions` names) or absent, and never touches the entries before it.

    Args:
        path: the file; made if it is not there.
        decision: the decision.
        role: role of a new file; one that has decisions keeps its own.

    Raises:
        InputError: the file's last entry is cut off or wrong, or its form cannot be appended to.
        StorageError: the disk is full or the file not writable; the file is as it was.
    """
    with locked(path) as file:
        append_locked(file, path, [decision], role)


@contextmanager
def locked(path: Path) -> Iterator[FileIO]:
    """Open a file of decisions under a lock, so that no other writer appends to it; make it if it is not there.

    Raises:
        StorageError: the file cannot be opened, or an operation on it fails on the disk.
    """
    try:
        with file_lock(path) as file:
            yield file
    except OSError as error:
        raise StorageError(
            f"{path}: the decision could not be written: {error.strerror or error}. "
            "The file is as it was; free space or check its rights, then decide again."
        ) from error


def append_locked(file: FileIO, path: Path, decisions: Sequence[Decision], role: Role) -> None:
    """Append decisions to a file that :func:`locked` opened, in one write; otherwise as :func:`append_decision`."""
    entries = "".join(map(format_decision, decisions)).encode()
    file.seek(0)
    before = file.read(MAX_BYTES + 1)
    if not before.strip():
        entries = file_header(role).encode() + entries
    else:
        _check_appendable(path, before, decisions)
        entries = entries if before.endswith(b"\n") else b"\n" + entries
    try:
        if os.write(file.fileno(), entries) < len(entries):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        os.fsync(file.fileno())
    except OSError:
        os.ftruncate(file.fileno(), len(before))
        raise
    sync(path.parent)


def _check_appendable(path: Path, before: bytes, decisions: Sequence[Decision]) -> None:
    """Refuse a file to whose end the decisions cannot be added as its next ones.

    Only the file's last entry is read together with the new ones: the page appends thousands of times.
    """
    start = before.rfind(b"\n- ") + 1
    header = f"schema_version: {SCHEMA_VERSION}\ndecisions:\n" if start else ""
    tail = f"{header}{before[start:].decode('utf-8-sig', 'replace')}\n{''.join(map(format_decision, decisions))}"
    try:
        read = [entry.decision for entry in parse_decisions(tail, path)]
    except InputError:
        read = []
    if len(before) > MAX_BYTES or read[-len(decisions) :] != list(decisions):
        parse_decisions(before, path)  # names the entry that is wrong, if one is
        raise InputError(
            f"{path}: nothing can be appended to this file. Let it end with its list of decisions, each beginning with "
            "'- ' in the first column."
        )
