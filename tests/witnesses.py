"""Witnesses: small functions of a config whose result shows what its fields change."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

Observe = Callable[[Any, "World"], Any]


@dataclass
class World:
    """What witnesses work with.

    Attributes:
        folder: theirs.
        patch: for the doors through which a field reaches what is not here: other processes, services, GPUs.
        shared: things that one witness made for all its calls, by name.
        numbers: numbers for its folders.
    """

    folder: Path
    patch: pytest.MonkeyPatch
    shared: dict[str, Any]
    numbers: Iterator[int]

    def new(self) -> Path:
        """Return a path at which nothing is yet."""
        return self.folder / f"{next(self.numbers)}"

    def once(self, name: str, make: Callable[[Path], Any]) -> Any:
        """Return what ``make`` gives for a new folder, made at the first call."""
        if name not in self.shared:
            self.shared[name] = make(self.folder / name)
        return self.shared[name]


@dataclass(frozen=True)
class Change:
    """A field of a config that a witness sees change.

    Attributes:
        config: class of the config, or of the section of a config.
        name: name of the field.
        value: a value that differs from the base's; a function of the world if it is a path in it.
        base: fields that both configs have.
        observe: the witness.
    """

    config: type
    name: str
    value: Any
    base: dict[str, Any]
    observe: Observe

    @property
    def label(self) -> str:
        return f"{self.config.__name__}.{self.name}-{self.observe.__name__}"


CHANGES: list[Change] = []


def witness(config: type, base: dict[str, Any] | None = None, **changes: Any) -> Callable[[Observe], Observe]:
    """Say that a function's result is another where one of these fields has the value that is given."""

    def decorate(observe: Observe) -> Observe:
        CHANGES.extend(Change(config, name, value, base or {}, observe) for name, value in changes.items())
        return observe

    return decorate
