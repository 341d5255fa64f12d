"""Files of decisions: plain YAML that people edit and the review page appends to.

::

    schema_version: 1
    role: annotator            # or adjudicator; annotator where left out
    decisions:
    - action: move
      names:
      - "mountain pass"
      to: "pass"
      who: "ada"
      why: "a pass is not a summit"
      when: "2026-11-21T09:30:00.001Z"

Every value is read as text, so a group may be called ``no`` or ``1984`` without quotes. ``why`` may be left out.
``when`` comes last and is quoted: an entry whose writing was cut off anywhere lacks it or its closing quote, and never
passes for a whole one. Entries that a page wrote in one action have one ``when``, whose milliseconds are not 0.
"""

import errno
import math
import os
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import MISSING, dataclass, field, fields
from datetime import UTC, datetime
from io import FileIO
from pathlib import Path
from typing import Any, get_args

import yaml

from hgld.errors import ConfigError, InputError, SchemaError, StorageError, quoted
from hgld.files import file_lock, sync

from .decisions import ACTIONS, Decision, Entry, Role

# -- untrusted YAML, read as text with line numbers ----------------------------------------------------------------
#
# Values stay the text that a person wrote (``no``, ``1984`` and ``2026-11-21`` are not converted), and every node knows
# its line. Features that a list of records does not need are refused: aliases, several documents, keys given twice,
# deep nesting.

_MAX_DEPTH = 8
# The parser's events are read one after the other: libyaml's composer recurses, and enough brackets crash the process.
_LOADER = getattr(yaml, "CBaseLoader", yaml.BaseLoader)


class YamlTextError(InputError):
    """YAML text that cannot be read.

    Attributes:
        line: line of the text, from 1.
        item: number of the top list's item that was being read, from 1; 0 outside of it.
        at_end: True if the text ended where more was expected.
    """

    def __init__(self, message: str, line: int, item: int = 0, *, at_end: bool = False) -> None:
        super().__init__(message)
        self.line, self.item, self.at_end = line, item, at_end


@dataclass
class Node:
    """A scalar, list or mapping of a YAML text, with its first line."""

    value: "str | list[Node] | dict[str, Node]"
    line: int
    key: str | None = field(default=None, repr=False)  # of the mapping's member that is being read

    def text(self, what: str) -> str:
        if not isinstance(self.value, str):
            raise YamlTextError(f"{what} is not a text.", self.line)
        return self.value

    def sequence(self, what: str) -> "list[Node]":
        if not isinstance(self.value, list):
            raise YamlTextError(f"{what} is not a list.", self.line)
        return self.value

    def mapping(self, what: str) -> "dict[str, Node]":
        """Return a copy of the members, by key."""
        if not isinstance(self.value, dict):
            raise YamlTextError(f"{what} is not a mapping of fields, each with 'name: value'.", self.line)
        return dict(self.value)

    def add(self, child: "Node") -> None:
        if isinstance(self.value, list):
            self.value.append(child)
        elif isinstance(self.value, dict):
            if self.key is None:
                self.key = child.text("a field's name")
                if self.key in self.value:
                    raise YamlTextError(f"the field {quoted(self.key)} is given twice.", child.line)
            else:
                self.value[self.key], self.key = child, None


class _Builder:
    """A builder of the tree of one document from the parser's events."""

    def __init__(self) -> None:
        self.root: Node | None = None
        self.open: list[Node] = []

    def feed(self, event: yaml.Event) -> None:
        if isinstance(event, yaml.CollectionEndEvent):
            self.open.pop()
        elif (node := _node(event)) is not None:
            self._add(node)

    def _add(self, node: Node) -> None:
        if self.open:
            self.open[-1].add(node)
        elif self.root is not None:
            raise YamlTextError("a second YAML document begins; expected one.", node.line)
        else:
            self.root = node
        if not isinstance(node.value, str):
            self.open.append(node)
        if len(self.open) > _MAX_DEPTH:
            raise YamlTextError("lists and mappings are nested too deep.", node.line)

    @property
    def item(self) -> int:
        """Number, from 1, of the item being read in the document's list of records; 0 outside of it."""
        if len(self.open) < 2 or not isinstance(self.open[1].value, list):
            return 0
        return len(self.open[1].value) + (len(self.open) == 2)


def read_tree(text: str) -> Node:
    """Read the one document of a YAML text.

    Raises:
        YamlTextError: the text is not YAML, or uses a feature that is refused here.
    """
    builder = _Builder()
    try:
        for event in yaml.parse(text, Loader=_LOADER):
            builder.feed(event)
    except YamlTextError as error:
        raise YamlTextError(str(error), error.line, builder.item) from error
    except yaml.YAMLError as error:
        raise _syntax_error(error, text, builder.item) from error
    if builder.root is None:
        raise YamlTextError("the text is empty.", 1)
    return builder.root


def _yaml_quoted(text: str) -> str:
    """Return the text as a double-quoted YAML scalar on one line."""
    return yaml.safe_dump(text, default_style='"', allow_unicode=True, width=math.inf).rstrip("\n")


def _node(event: yaml.Event) -> Node | None:
    line = event.start_mark.line + 1 if event.start_mark else 1
    if isinstance(event, yaml.AliasEvent):
        raise YamlTextError(f"*{event.anchor} is a YAML alias; write '*' inside quotes.", line)
    if isinstance(event, yaml.ScalarEvent):
        return Node(event.value, line)
    if isinstance(event, yaml.SequenceStartEvent):
        return Node([], line)
    return Node({}, line) if isinstance(event, yaml.MappingStartEvent) else None


def _syntax_error(error: yaml.YAMLError, text: str, item: int) -> YamlTextError:
    if not isinstance(error, yaml.MarkedYAMLError) or error.problem_mark is None:
        position = getattr(error, "position", 0)
        return YamlTextError(f"not YAML: {getattr(error, 'reason', error)}.", text.count("\n", 0, position) + 1, item)
    mark = error.context_mark or error.problem_mark
    at_end = (
        error.problem_mark.line >= text.rstrip("\n").count("\n") + 1 or not text[error.problem_mark.index :].strip()
    )
    said = ", ".join(part for part in (error.context, error.problem) if part)
    return YamlTextError(f"not YAML: {said}.", mark.line + 1, item, at_end=at_end)


# -- decisions -----------------------------------------------------------------------------------------------------

SCHEMA_VERSION = 1
MAX_BYTES = 16 * 2**20


def read_decisions(paths: Sequence[Path]) -> list[Entry]:
    """Read the decisions of one or several files, ordered by ``when``, then file name, then number in the file.

    Raises:
        InputError: a file cannot be read, or an entry of it is not a decision; names the file, the entry and its line.
        SchemaError: a file of another schema version.
        ConfigError: one file is given twice.
    """
    resolved = [path.resolve() for path in paths]
    if len(set(resolved)) != len(resolved):
        twice = next(p for p, r in zip(paths, resolved, strict=True) if resolved.count(r) > 1)
        raise ConfigError(f"{twice}: this file of decisions is given twice; name it once.")
    entries = [entry for path in paths for entry in parse_decisions(_read_text(path), path)]
    return sorted(entries, key=lambda e: (e.decision.when, e.file.name, e.number))


def parse_decisions(text: str, path: Path) -> list[Entry]:
    """Parse the decisions in the text of a file, in their order; errors and entries name ``path``.

    Raises:
        InputError, SchemaError: as :func:`read_decisions`.
    """
    if not text.strip():
        return []
    try:
        root = read_tree(text)
        header = root.mapping("the file")
        version = header.pop("schema_version", None)
        if version is None or version.value != str(SCHEMA_VERSION):
            raise SchemaError(
                f"{path}: schema_version is {quoted(None if version is None else version.value)}; this hgld "
                f"reads decisions of version {SCHEMA_VERSION}. Begin the file with 'schema_version: {SCHEMA_VERSION}'."
            )
        role = _role(header.pop("role", None))
        listed = header.pop("decisions", None)
        if header:
            raise YamlTextError(
                f"unknown field {quoted(next(iter(header)))}; expected schema_version, role, decisions.", 1
            )
        if listed is None:
            raise YamlTextError("the field 'decisions' is missing.", 1)
        nodes = [] if listed.value == "" else listed.sequence("decisions")
    except YamlTextError as error:
        raise InputError(_located(path, text, error)) from error
    return [_entry(node, path, number, role, len(nodes)) for number, node in enumerate(nodes, 1)]


def _entry(node: Node, path: Path, number: int, role: Role, count: int) -> Entry:
    try:
        return Entry(_decision(node), path, number, node.line, role)
    except (YamlTextError, InputError) as error:
        cut = " If its writing was cut off, delete it and decide again." if number == count else ""
        raise InputError(f"{path}: entry {number} (line {node.line}): {error}{cut}") from error


def _decision(node: Node) -> Decision:
    given = node.mapping("an entry")
    action = given.pop("action", None)
    kind = None if action is None else ACTIONS.get(action.text("action"))
    if kind is None:
        found = "missing" if action is None else quoted(action.value)
        raise InputError(f"action is {found}; expected one of {', '.join(ACTIONS)}.")
    known = {f.name: f for f in fields(kind)}
    if unknown := [key for key in given if key not in known]:
        raise InputError(f"{kind.action} has no field {quoted(unknown[0])}; its fields are {', '.join(known)}.")
    if (why := given.get("why")) is not None and why.value == "":
        del given["why"]
    required = [name for name, f in known.items() if f.default is MISSING]
    if missing := [name for name in required if name not in given]:
        raise InputError(f"{kind.action} lacks {', '.join(missing)}.")
    values: dict[str, Any] = {name: _value(name, value) for name, value in given.items()}
    return kind(**values)


def _value(name: str, node: Node) -> str | tuple[str, ...] | datetime:
    if name in ("names", "groups"):
        items = [node] if isinstance(node.value, str) else node.sequence(name)
        return tuple(_nfc(item.text(f"a member of {name}")) for item in items)
    text = _nfc(node.text(name))
    return _when(text) if name == "when" else text


def _nfc(text: str) -> str:
    return unicodedata.normalize("NFC", text)


def _when(text: str) -> datetime:
    try:
        when = datetime.fromisoformat(text)
    except ValueError as error:
        raise InputError(f"when is {quoted(text)}; expected a time such as 2026-11-21T09:30:00Z or a day.") from error
    if len(text) == len("2026-11-21"):  # a day alone: its first moment, so that it comes before the day's other entries
        when = when.replace(tzinfo=UTC)
    return when


def _role(node: Node | None) -> Role:
    if node is None:
        return "annotator"
    for role in get_args(Role):
        if node.value == role:
            return role
    raise YamlTextError(f"role is {quoted(node.value)}; expected {' or '.join(get_args(Role))}.", node.line)


def _read_text(path: Path) -> str:
    try:
        with open(path, "rb") as file:
            data = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise InputError(f"{path}: the decisions cannot be read: {error.strerror}. Check --decisions.") from error
    if len(data) > MAX_BYTES:
        raise InputError(f"{path}: larger than {MAX_BYTES // 2**20} MB; that is too large for a file of decisions.")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        number = sum(row.startswith(b"- ") for row in data[: error.start].splitlines())
        cut = "" if error.end < len(data) else " The file ends inside a letter, as when its writing was cut off."
        raise InputError(
            f"{path}: entry {number} (line {line}): byte 0x{data[error.start]:02x} is not UTF-8.{cut} "
            "Save the file as UTF-8, or delete that entry and decide again."
        ) from error


def _located(path: Path, text: str, error: YamlTextError) -> str:
    where = f"entry {error.item} (line {error.line})" if error.item else f"line {error.line}"
    last = error.at_end or not text.endswith("\n")
    cut = " The file ends inside this entry, as when its writing was cut off: delete it and decide again."
    return f"{path}: {where}: {error}{cut if last and error.item else ''}"


def file_header(role: Role = "annotator") -> str:
    """Return the lines that a file of decisions begins with."""
    return f"schema_version: {SCHEMA_VERSION}\nrole: {role}\ndecisions:\n"


def format_decision(decision: Decision) -> str:
    """Return a decision as an entry of a file: one field a line, its time last and quoted."""
    names = [f.name for f in fields(decision) if f.name not in ("who", "why", "when")]
    return _entry_text(decision, [*names, "who", "why", "when"], _yaml_quoted)


def format_decision_as_before(decision: Decision) -> str:
    """Return a decision as pages wrote it while every decision had a reason, which came last."""
    names = [f.name for f in fields(decision) if f.name not in ("who", "why", "when")]
    return _entry_text(decision, [*names, "who", "when", "why"], lambda time: time)


def _entry_text(decision: Decision, order: Sequence[str], as_time: Callable[[str], str]) -> str:
    lines = [f"- action: {decision.action}"]
    for name in order:
        value = getattr(decision, name)
        if isinstance(value, tuple):
            lines += [f"  {name}:", *(f"  - {_yaml_quoted(item)}" for item in value)]
        elif isinstance(value, datetime):
            lines.append(f"  {name}: {as_time(_time_text(value))}")
        elif name == "top" and value in ("natural", "human-made"):  # as these were always written
            lines.append(f"  {name}: {value}")
        elif value is not None:
            lines.append(f"  {name}: {_yaml_quoted(value)}")
    return "\n".join(lines) + "\n"


def _time_text(when: datetime) -> str:
    parts = "milliseconds" if when.microsecond and when.microsecond % 1000 == 0 else "auto"
    return when.astimezone(UTC).isoformat(timespec=parts).replace("+00:00", "Z")


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
    """Append decisions to a file that :func:`locked` gave, in one write; otherwise as :func:`append_decision`."""
    entries = "".join(map(format_decision, decisions)).encode()
    file.seek(0)
    before = file.read(MAX_BYTES + 1)
    if not before.strip():
        entries = file_header(role).encode() + entries
    else:
        _check_appendable(path, before, decisions)
        entries = entries if before.endswith(b"\n") else b"\n" + entries
    _write_at_end(file.fileno(), entries, len(before))
    sync(path.parent)


def _check_appendable(path: Path, before: bytes, decisions: Sequence[Decision]) -> None:
    """Refuse a file to whose end the decisions cannot be added as its next ones.

    Only the file's last entry is read together with the new ones: a page appends thousands of times.
    """
    if len(before) > MAX_BYTES:
        raise InputError(f"{path}: larger than {MAX_BYTES // 2**20} MB; begin another file.")
    start = before.rfind(b"\n- action:") + 1
    header = f"schema_version: {SCHEMA_VERSION}\ndecisions:\n" if start else ""
    last = before[start:].decode("utf-8-sig", "replace")
    added = "".join(map(format_decision, decisions))
    try:
        read = parse_decisions(f"{header}{last}\n{added}", path)
        if [entry.decision for entry in read[-len(decisions) :]] == list(decisions):
            return
    except InputError:
        pass  # distinguished below: a wrong entry in the file, or a form that cannot be continued
    read_decisions([path])  # names the entry that is wrong, if one is
    raise InputError(
        f"{path}: nothing can be appended to this file. Let it end with its list of decisions, each beginning with "
        "'- action:' in the first column."
    )


def _write_at_end(descriptor: int, data: bytes, size: int) -> None:
    try:
        if os.write(descriptor, data) < len(data):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        os.fsync(descriptor)
    except OSError:
        os.ftruncate(descriptor, size)
        raise
