"""Witnesses: functions of a config whose result depends on its fields."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

Observe = Callable[[Any, "World"], Any]


@dataclass
class World:
    """Resources of witnesses.

    Attributes:
        folder: folder for their files.
        patch: replaces calls to other processes, services and GPUs.
        shared: results of :meth:`once`, by name.
        numbers: numbers of new folders.
    """

    folder: Path
    patch: pytest.MonkeyPatch
    shared: dict[str, Any]
    numbers: Iterator[int]

    def new(self) -> Path:
        """Return a new path that does not exist."""
        return self.folder / f"{next(self.numbers)}"

    def once(self, name: str, make: Callable[[Path], Any]) -> Any:
        """Return the result of ``make`` for a new folder; only the first call makes it."""
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
        base: fields with equal values in both configs.
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
    """Register a function whose result changes if one of these fields has the given value."""

    def decorate(observe: Observe) -> Observe:
        CHANGES.extend(Change(config, name, value, base or {}, observe) for name, value in changes.items())
        return observe

    return decorate
