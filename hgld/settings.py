"""Options as fields of dataclasses: one field an option, from which its flag, its help and its checks are made.

This module imports nothing heavy, because the help of the command line is made from such fields.
"""

import dataclasses
import functools
import math
import typing
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal

from hgld.errors import ConfigError


def setting(
    default: Any,
    help: str,  # noqa: A002  # as click and argparse call it
    *,
    unit: str = "",
    choices: Iterable[str] = (),
    above: float | None = None,
    least: float | None = None,
    most: float | None = None,
    repeated: bool = False,
    commas: bool = True,
    key: bool = True,
) -> Any:
    """Make the field of a config dataclass for one option.

    Args:
        default: the value if none is given.
        help: description for people, in sentences.
        unit: of its number, in the plural.
        choices: the texts that it can be, where its type is no ``Literal``.
        above: bound that its number exceeds.
        least: its least number.
        most: its largest number.
        repeated: whether its flag can be given several times (tuples).
        commas: whether commas separate the values of one text (tuples).
        key: whether it can change the output of the stage that reads it.
    """
    bounds = {name: bound for name, bound in (("above", above), ("least", least), ("most", most)) if bound is not None}
    told = {"help": help, "unit": unit, "choices": tuple(choices), "repeated": repeated, "commas": commas, "key": key}
    return dataclasses.field(default=default, metadata={**told, **bounds})


@dataclasses.dataclass(frozen=True)
class Option:
    """An option of a config dataclass: reads and checks the texts and values for one field.

    Attributes:
        name: of the field.
        default: of the field.
        member: type of a value, of one of them where there are several.
        several: whether the value is a tuple.
        optional: whether it can be None.
        choices: the texts that it can be; empty: any.
        facts: the other arguments of :func:`setting`.
    """

    name: str
    default: Any
    member: type
    several: bool
    optional: bool
    choices: tuple[str, ...]
    facts: typing.Mapping[str, Any]

    def parse(self, text: str) -> Any:
        """Return the value that a text stands for; commas separate the values of a tuple, where the field says so.

        Raises:
            ConfigError: the text is not of the field's type.
        """
        if not self.several:
            return self._parse_one(text)
        if not text:
            return ()
        parts = [part.strip() for part in text.split(",")] if self.facts["commas"] else [text]
        if not all(parts):
            raise ConfigError(f"{self.name}: {text!r}; expected values separated by commas, none of them empty.")
        return tuple(self._parse_one(part) for part in parts)

    def check(self, value: Any) -> Any:
        """Return a value if it is of the field's type; whole numbers pass for real ones, lists for tuples.

        Raises:
            ConfigError: it is of another type, or none of the choices.
        """
        if self.several:
            if not isinstance(value, tuple | list) or not all(self._fits(one) for one in value):
                raise ConfigError(f"{self.name} is {value!r}; expected a list of {self._expected}.")
            return tuple(self.member(one) for one in value)
        if value is None and self.optional:
            return None
        if not self._fits(value):
            raise ConfigError(f"{self.name} is {value!r}; expected {self._expected}.")
        return float(value) if self.member is float and value is not None else value

    def bound_problem(self, value: Any) -> str:
        """Describe the bound that a number violates; empty if there is none."""
        for name, wrong, expected in (
            ("above", lambda bound: not value > bound, "more than {}"),
            ("least", lambda bound: value < bound, "{} or more"),
            ("most", lambda bound: value > bound, "{} at most"),
        ):
            if name in self.facts and wrong(self.facts[name]):
                return f"is {value}; expected {expected.format(self.facts[name])}."
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
            return isinstance(value, int | float) and math.isfinite(value)
        return isinstance(value, self.member)

    @property
    def _expected(self) -> str:
        if self.choices:
            return "one of " + ", ".join(map(repr, self.choices))
        names = {int: "a whole number", float: "a finite number", str: "text", bool: "true or false", Path: "a path"}
        return names[self.member]


@functools.cache
def options_of(config: type) -> dict[str, Option]:
    """Return the options of a config dataclass by their names."""
    hints = typing.get_type_hints(config)
    return {field.name: _option(field, hints[field.name]) for field in dataclasses.fields(config)}


def bound_problems(config: Any) -> Iterator[tuple[str, str]]:
    """Yield the options of a config whose numbers are out of bounds, each with the problem in words."""
    for name, option in options_of(type(config)).items():
        if problem := option.bound_problem(getattr(config, name)):
            yield name, problem


def _option(field: dataclasses.Field[Any], hint: Any) -> Option:
    several = typing.get_origin(hint) is tuple
    if several:
        hint = typing.get_args(hint)[0]
    optional = typing.get_origin(hint) is UnionType
    if optional:
        hint = next(member for member in typing.get_args(hint) if member is not NoneType)
    choices = field.metadata["choices"]
    if typing.get_origin(hint) is Literal:
        choices, hint = typing.get_args(hint), str
    return Option(field.name, field.default, hint, several, optional, choices, field.metadata)
