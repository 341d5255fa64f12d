"""Options as fields of dataclasses: one field defines the flag, its help and its checks.

This module imports nothing heavy, because the command line builds its help from such fields.
"""

import dataclasses
import functools
import sys
import typing
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal

from hgld.errors import ConfigError, quoted

PathKind = Literal["", "file", "folder", "existing", "new"]


def setting(
    default: Any,
    help: str,  # noqa: A002  # click and argparse call this argument ``help``
    *,
    unit: str = "",
    choices: Iterable[str] = (),
    above: float | None = None,
    least: float | None = None,
    most: float | None = None,
    repeated: bool = False,
    commas: bool = True,
    key: bool = True,
    common: bool | None = None,
    argument: bool = False,
    flag: str = "",
    metavar: str = "",
    path: PathKind = "",
    parse: Callable[[str], Any] | None = None,
    offered: Callable[[], Iterable[str]] | None = None,
) -> Any:
    """Return a field of a config dataclass for one option.

    Args:
        default: the value if the user gives none; ``...``: the user must give a value.
        help: description of the option for users, in sentences.
        unit: unit of a number, in the plural.
        choices: the allowed texts if the type is not a ``Literal``.
        above: bound that a number must exceed.
        least: smallest value of a number.
        most: largest value of a number.
        repeated: whether the flag can be given several times (tuples).
        commas: whether commas separate the values of one text (tuples).
        key: whether the option can change the output of its stage.
        common: whether the short help lists the option; None: only if a single subcommand has it. ``--help-all`` lists
            all options.
        argument: whether the option is a positional argument of its subcommand.
        flag: spelling of the flag without dashes; default: the name of the field.
        metavar: placeholder of the value in the help.
        path: kind of path: an existing file, a local folder, an existing path, or a new file to write.
        parse: parser of a special text format; raises ValueError with the expected format.
        offered: function that returns names for shell completion; other values are allowed too.
    """
    facts = {name: value for name, value in locals().items() if name not in ("default", "above", "least", "most")}
    bounds = {name: bound for name, bound in (("above", above), ("least", least), ("most", most)) if bound is not None}
    metadata = {**facts, "choices": tuple(choices), **bounds}
    return (
        dataclasses.field(metadata=metadata)
        if default is ...
        else dataclasses.field(default=default, metadata=metadata)
    )


def key_fields(config: Any) -> dict[str, Any]:
    """Return the fields of a stage's config that can change its output (``key`` of :func:`setting`)."""
    return {f.name: getattr(config, f.name) for f in dataclasses.fields(config) if f.metadata.get("key", True)}


@dataclasses.dataclass(frozen=True)
class Option:
    """An option of a config dataclass: reads and checks the texts and values for one field.

    Attributes:
        name: name of the field.
        default: default of the field; ``dataclasses.MISSING`` if a value is required.
        member: type of the value, or of one value of a tuple.
        several: whether the value is a tuple.
        optional: whether the value can be None.
        choices: the allowed texts; empty: any text.
        facts: all other arguments of :func:`setting`.
    """

    name: str
    default: Any
    member: type
    several: bool
    optional: bool
    choices: tuple[str, ...]
    facts: typing.Mapping[str, Any]

    @property
    def flag(self) -> str:
        """Spelling of the flag, without dashes."""
        return self.facts["flag"] or self.name.rstrip("_").replace("_", "-")

    def parse(self, text: str) -> Any:
        """Parse a text into a value; if ``commas`` of the field is True, commas separate the values of a tuple.

        Raises:
            ConfigError: the text does not have the field's type.
        """
        if self.facts["parse"] is not None:
            try:
                return self.facts["parse"](text)
            except ValueError as error:
                raise ConfigError(f"{text!r}: expected {error}.") from error
        if not self.several:
            return self._parse_one(text)
        if not text:
            return ()
        parts = [part.strip() for part in text.split(",")] if self.facts["commas"] else [text]
        if not all(parts):
            raise ConfigError(f"{self.name}: {text!r}; expected values separated by commas, none of them empty.")
        return tuple(self._parse_one(part) for part in parts)

    def check(self, value: Any) -> Any:
        """Check and return a value of the field's type; an integer is allowed for a float, and a list for a tuple.

        Raises:
            ConfigError: the value has a wrong type, or is not one of the choices.
        """
        if self.several:
            if not isinstance(value, tuple | list) or not all(self._fits(one) for one in value):
                raise ConfigError(f"{self.name} is {quoted(value)}; expected a list of {self._expected}.")
            return tuple(self.member(one) for one in value)
        if value is None and self.optional:
            return None
        if not self._fits(value):
            raise ConfigError(f"{self.name} is {quoted(value)}; expected {self._expected}.")
        return float(value) if self.member is float and value is not None else value

    def bound_problem(self, value: Any) -> str:
        """Describe the bound that a number, or a tuple's number, violates; empty if it violates no bound."""
        for name, wrong, expected in (
            ("above", lambda number, bound: not number > bound, "more than {}"),
            ("least", lambda number, bound: number < bound, "{} or more"),
            ("most", lambda number, bound: number > bound, "{} at most"),
        ):
            numbers = value if isinstance(value, tuple) else () if value is None else (value,)
            if name in self.facts and any(wrong(number, self.facts[name]) for number in numbers):
                return f"is {quoted(value)}; expected {expected.format(self.facts[name])}."
        return ""

    def _parse_one(self, text: str) -> Any:
        if self.member is bool:
            if text.lower() not in ("true", "false"):
                raise ConfigError(f"{self.name}: {text!r}; expected true or false.")
            return text.lower() == "true"
        try:
            value = self.member(text)
        except ValueError as error:
            raise ConfigError(f"{self.name}: {text!r}; expected {self._expected}.") from error
        if not self._fits(value):
            raise ConfigError(f"{self.name} is {text!r}; expected {self._expected}.")
        return value

    def _fits(self, value: Any) -> bool:
        if self.choices:
            return value in self.choices
        if isinstance(value, bool) or self.member is bool:
            return isinstance(value, bool) and self.member is bool
        if self.member is float:
            return isinstance(value, int | float) and abs(value) <= sys.float_info.max
        return isinstance(value, self.member)

    @property
    def _expected(self) -> str:
        if self.choices:
            return "one of " + ", ".join(map(repr, self.choices))
        names = {int: "a whole number", float: "a finite number", str: "text", bool: "true or false", Path: "a path"}
        return names[self.member]


@functools.cache
def options_of(config: type) -> dict[str, Option]:
    """Return the options of a config dataclass, keyed by name; fields without :func:`setting` are not options."""
    hints = typing.get_type_hints(config)
    fields = [field for field in dataclasses.fields(config) if "help" in field.metadata]
    return {field.name: _option(field, hints[field.name]) for field in fields}


def bound_problems(config: Any) -> Iterator[tuple[str, str]]:
    """Yield the options of a config whose numbers are out of bounds, each with the problem in words."""
    for name, option in options_of(type(config)).items():
        if problem := option.bound_problem(getattr(config, name)):
            yield name, problem


def _option(field: dataclasses.Field[Any], hint: Any) -> Option:
    optional = typing.get_origin(hint) in (UnionType, typing.Union) and NoneType in typing.get_args(hint)
    if optional:
        hint = next(member for member in typing.get_args(hint) if member is not NoneType)
    several = typing.get_origin(hint) is tuple
    if several:
        hint = typing.get_args(hint)[0]
    choices = field.metadata["choices"]
    if typing.get_origin(hint) is Literal:
        choices, hint = typing.get_args(hint), str
    return Option(field.name, field.default, hint, several, optional, choices, field.metadata)
