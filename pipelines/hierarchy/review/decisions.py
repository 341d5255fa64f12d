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

Every value is read as text, so a group may be called ``no`` or ``1984`` without quotes. ``why`` is optional. ``when``
comes last and is quoted: an entry whose writing was cut off lacks it or its closing quote, and never passes for a whole
one. Entries that the page wrote in one action have one ``when``, whose milliseconds are not 0.
"""

import errno
import math
import os
import unicodedata
from collections import Counter
from collections.abc import Iterator, Sequence
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
_LOADER = getattr(yaml, "CBaseLoader", yaml.BaseLoader)  # scalars stay text: no, 1984 and 2026-11-21 are not converted

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
    """Give one item, the ``id`` of a ``split``, to the group ``group`` or the name ``name``, whatever its own name.

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
    """A decision with its position: the file, its number there (from 1), its first line, the file's role.

    Entries are compared by identity: a file may hold the same decision twice.
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
            before = text[: error.start].decode("utf-8-sig")
            where = _where(before, before.count("\n") + 1)
            cut = "" if error.end < len(text) else " The file ends inside a letter, as when its writing was cut off."
            raise InputError(
                f"{path}: {where}: byte 0x{text[error.start]:02x} is not UTF-8.{cut} "
                "Save the file as UTF-8, or delete that entry and decide again."
            ) from error
    if not text.strip("\ufeff \t\r\n"):
        return []
    try:
        header = _members(_document(text), "the file")
        version = _scalar(header.pop("schema_version", None))
        if version != str(SCHEMA_VERSION):
            raise SchemaError(
                f"{path}: schema_version is {quoted(version)}; this hgld reads decisions of version {SCHEMA_VERSION}. "
                f"Begin the file with 'schema_version: {SCHEMA_VERSION}'."
            )
        role_node = header.pop("role", None)
        role: Any = _scalar(role_node) if role_node else "annotator"
        if role_node and role not in get_args(Role):
            raise _TextError(f"role is {quoted(role)}; expected {' or '.join(get_args(Role))}.", role_node)
        listed = header.pop("decisions", None)
        if header:
            unknown = next(iter(header))
            raise _TextError(f"unknown field {quoted(unknown)}; expected schema_version, role, decisions.", 1)
        if listed is None:
            raise _TextError("the field 'decisions' is missing.", 1)
        nodes = [] if listed.value == "" else _sequence(listed, "decisions")
    except _TextError as error:
        where = _where(text, error.line)
        is_last = error.at_end or not text.endswith("\n")
        cut = " The file ends inside this entry, as when its writing was cut off: delete it and decide again."
        raise InputError(f"{path}: {where}: {error}{cut if is_last and 'entry' in where else ''}") from error
    entries = []
    for number, node in enumerate(nodes, 1):
        line = node.start_mark.line + 1
        try:
            entries.append(Entry(_decision(node), path, number, line, role))
        except (_TextError, InputError) as error:
            line = error.line if isinstance(error, _TextError) else line
            cut = " If its writing was cut off, delete it and decide again." if number == len(nodes) else ""
            raise InputError(f"{path}: entry {number} (line {line}): {error}{cut}") from error
    return entries


class _TextError(InputError):
    """YAML text that cannot be read, at a node or line; ``at_end``: the text ended where more was expected."""

    def __init__(self, message: str, at: yaml.Node | int, *, at_end: bool = False) -> None:
        super().__init__(message)
        self.line, self.at_end = at if isinstance(at, int) else at.start_mark.line + 1, at_end


def _where(text: str, line: int) -> str:
    """Return ``entry 3 (line 12)``, or the line alone where it is before the first entry."""
    number = sum(row.startswith("- ") for row in text.splitlines()[:line])
    return f"entry {number} (line {line})" if number else f"line {line}"


def _document(text: str) -> yaml.Node:
    """Return the one document of a YAML text, without aliases and deep nesting.

    The events are read first: the composer recurses, and enough brackets crash the process.
    """
    depth = documents = 0
    try:
        for event in yaml.parse(text, Loader=_LOADER):
            line = event.start_mark.line + 1 if event.start_mark else 1
            depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
            documents += isinstance(event, yaml.DocumentStartEvent)
            if isinstance(event, yaml.AliasEvent):
                raise _TextError(f"*{event.anchor} is a YAML alias; write '*' inside quotes.", line)
            if depth > _MAX_DEPTH:
                raise _TextError("lists and mappings are nested too deep.", line)
            if documents > 1:
                raise _TextError("a second YAML document begins; expected one.", line)
        root = yaml.compose(text, Loader=_LOADER)
    except yaml.MarkedYAMLError as error:
        said = ", ".join(part for part in (error.context, error.problem) if part)
        mark = error.problem_mark
        if mark is None:
            raise _TextError(f"not YAML: {said}.", 1) from error
        at_end = mark.line >= text.rstrip("\n").count("\n") + 1 or not text[mark.index :].strip()
        raise _TextError(f"not YAML: {said}.", (error.context_mark or mark).line + 1, at_end=at_end) from error
    except yaml.YAMLError as error:  # a character that no YAML has
        line = text.count("\n", 0, getattr(error, "position", 0)) + 1
        raise _TextError(f"not YAML: {getattr(error, 'reason', error)}.", line) from error
    if root is None:
        raise _TextError("the text is empty.", 1)
    return root


def _scalar(node: yaml.Node | None) -> str | None:
    return node.value if isinstance(node, yaml.ScalarNode) else None


def _sequence(node: yaml.Node, what: str) -> list[yaml.Node]:
    if not isinstance(node, yaml.SequenceNode):
        raise _TextError(f"{what} is not a list.", node)
    return node.value


def _members(node: yaml.Node, what: str) -> dict[str, yaml.Node]:
    if not isinstance(node, yaml.MappingNode):
        raise _TextError(f"{what} is not a mapping of fields, each with 'name: value'.", node)
    found: dict[str, yaml.Node] = {}
    for key, value in node.value:
        name = _text(key, "a field's name")
        if name in found:
            raise _TextError(f"the field {quoted(name)} is given twice.", key)
        found[name] = value
    return found


def _text(node: yaml.Node, what: str) -> str:
    if not isinstance(node, yaml.ScalarNode):
        raise _TextError(f"{what} is not a text.", node)
    return unicodedata.normalize("NFC", node.value)


def _decision(node: yaml.Node) -> Decision:
    members = _members(node, "an entry")
    action = members.pop("action", None)
    kind = None if action is None else ACTIONS.get(_text(action, "action"))
    if kind is None:
        found = "missing" if action is None else quoted(action.value)
        raise InputError(f"action is {found}; expected one of {', '.join(ACTIONS)}.")
    known = {field.name: field for field in fields(kind)}
    if unknown := [name for name in members if name not in known]:
        raise InputError(f"{kind.action} has no field {quoted(unknown[0])}; its fields are {', '.join(known)}.")
    if "why" in members and members["why"].value == "":
        del members["why"]
    if missing := [name for name, field in known.items() if field.default is MISSING and name not in members]:
        raise InputError(f"{kind.action} lacks {', '.join(missing)}.")
    values: dict[str, Any] = {}
    for name, value in members.items():
        if name in ("names", "groups"):
            listed = [value] if isinstance(value, yaml.ScalarNode) else _sequence(value, name)
            values[name] = tuple(_text(member, f"a member of {name}") for member in listed)
        else:
            values[name] = _time(_text(value, name)) if name == "when" else _text(value, name)
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
    """Return a decision as an entry of a file: one field a line, its time last and quoted."""
    own = [field.name for field in fields(decision) if field.name not in ("who", "why", "when")]
    lines = [f"- action: {decision.action}"]
    for name in (*own, "who", "why", "when"):
        value = getattr(decision, name)
        if isinstance(value, tuple):
            lines += [f"  {name}:", *(f"  - {_quoted(member)}" for member in value)]
        elif isinstance(value, datetime):
            parts = "milliseconds" if value.microsecond and value.microsecond % 1000 == 0 else "auto"
            written = value.astimezone(UTC).isoformat(timespec=parts).replace("+00:00", "Z")
            lines.append(f"  {name}: {_quoted(written)}")
        elif value is not None:
            lines.append(f"  {name}: {_quoted(value)}")
    return "\n".join(lines) + "\n"


def _quoted(text: str) -> str:
    """Return the text as a double-quoted YAML scalar on one line."""
    return yaml.safe_dump(text, default_style='"', allow_unicode=True, width=math.inf).rstrip("\n")


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
    start = before.rfind(b"\n- action:") + 1
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
            "'- action:' in the first column."
        )
