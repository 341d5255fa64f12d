"""YAML from strangers, read as text with line numbers.

Values stay the text that a person wrote (``no``, ``1984`` and ``2026-11-21`` are not converted), every node knows its
line, and what has no place in a list of records is refused: aliases, several documents, keys given twice, deep nesting.
"""

import math
from dataclasses import dataclass, field

import yaml

from hgld.errors import InputError

_MAX_DEPTH = 8
# The parser's events are read one after the other: libyaml's composer recurses, and enough brackets crash the process.
_LOADER = getattr(yaml, "CBaseLoader", yaml.BaseLoader)


class YamlTextError(InputError):
    """Text that cannot be read.

    Attributes:
        line: line of the text, from 1.
        item: number of the top list's item that was being read, from 1; 0 outside of it.
        at_end: the text ended where more was expected.
    """

    def __init__(self, message: str, line: int, item: int = 0, *, at_end: bool = False) -> None:
        super().__init__(message)
        self.line, self.item, self.at_end = line, item, at_end


@dataclass
class Node:
    """A scalar, list or mapping with its first line."""

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
        """A copy of the members, by key."""
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
                    raise YamlTextError(f"the field {self.key!r} is given twice.", child.line)
            else:
                self.value[self.key], self.key = child, None


class _Builder:
    """Makes the tree of one document from the parser's events."""

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
        """Number of the item being read in the list that is a member of the document's mapping; 0 outside of it."""
        if len(self.open) < 2 or not isinstance(self.open[1].value, list):
            return 0
        return len(self.open[1].value) + (len(self.open) == 2)


def read_tree(text: str) -> Node:
    """The one document in a YAML text.

    Raises:
        YamlTextError: the text is not YAML, or uses what is refused here.
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


def quoted(text: str) -> str:
    """The text as a double-quoted YAML scalar on one line."""
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
