"""Witnesses: functions that take a config and return a result that depends on its fields."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

Observe = Callable[[Any, "World"], Any]


@dataclass
class World:
    """Resources for witnesses.

    Attributes:
        folder: folder for the files of all witnesses.
        patch: fixture that replaces calls to other processes, services and GPUs.
        shared: results of :meth:`once`, keyed by name.
        numbers: counter that names new folders.
    """

    folder: Path
    patch: pytest.MonkeyPatch
    shared: dict[str, Any]
    numbers: Iterator[int]

    def new(self) -> Path:
        """Return a new path that does not exist."""
        return self.folder / f"{next(self.numbers)}"

    def once(self, name: str, make: Callable[[Path], Any]) -> Any:
        """Return the result of ``make`` for a new folder; later calls with this name return the first result."""
        if name not in self.shared:
            self.shared[name] = make(self.folder / name)
        return self.shared[name]


@dataclass(frozen=True)
class Change:
    """A changed value of a config field, which must change the result of a witness.

    Attributes:
        config: class of the config or of a config section.
        name: name of the field.
        value: a value that differs from the value in ``base``; for a path, a function that takes the world.
        base: fields of the base config; the changed config has them too.
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
    """Register a function whose result changes if one of these fields gets the given value."""

    def decorate(observe: Observe) -> Observe:
        CHANGES.extend(Change(config, name, value, base or {}, observe) for name, value in changes.items())
        return observe

    return decorate
