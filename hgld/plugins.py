"""Registries: hgld's own definitions in TOML files, and definitions of other packages from entry points.

hgld lists the names of other packages without importing them; it imports an object when it is used.

A registry (losses, metrics, encoders, ...) has a group of entry points. A package declares its loss in its
``pyproject.toml``::

    [project.entry-points."hgld.losses"]
    MeanScoreGap = "mypackage.losses:MeanScoreGap"
"""

import tomllib
from collections.abc import Collection
from dataclasses import dataclass
from functools import cache
from importlib.metadata import EntryPoint, EntryPoints, entry_points
from pathlib import Path
from typing import Any, TypeVar

from hgld.errors import ConfigError, HgldError

_Definition = TypeVar("_Definition")


@dataclass(frozen=True)
class Plugins:
    """The entry points of one group.

    Attributes:
        group: group of entry points, for example ``hgld.losses``.
        noun: noun for a member of the group, for messages.
        own: hgld's own names, which no other package can take.
    """

    group: str
    noun: str
    own: Collection[str]

    def names(self) -> list[str]:
        """Return the names that other packages add, without importing them."""
        return sorted(_points(self.group).names - set(self.own))

    def refuse_namesakes(self, name: str) -> None:
        """Raise an error if another package claims a name that hgld defines.

        Raises:
            ConfigError: another package claims the name; the message names the package.
        """
        for point in _points(self.group).select(name=name):
            raise ConfigError(
                f"the {self.noun} {name!r} is hgld's own, but {_source(point)} claims the name in the entry points "
                f"{self.group!r}. Uninstall that package, or rename its entry point."
            )

    def load(self, name: str) -> Any:
        """Import the object of that name.

        Raises:
            ConfigError: no package has an object of that name, two packages have such an object, or it cannot be
                imported.
        """
        found = list(_points(self.group).select(name=name))
        if not found:
            raise ConfigError(
                f"there is no {self.noun} {name!r}. Expected one of {', '.join([*self.own, *self.names()])}."
            )
        if len(found) > 1:
            raise ConfigError(
                f"{' and '.join(map(_source, found))} both define a {self.noun} {name!r}. Uninstall one of them."
            )
        try:
            return found[0].load()
        except HgldError:
            raise
        except Exception as error:  # importing runs the package's code, which may raise any error
            reason = f"{type(error).__name__}: {error}"
            raise ConfigError(
                f"the {self.noun} {name!r} of {_source(found[0])} cannot be imported ({reason}). Repair or uninstall "
                "that package."
            ) from error


@cache
def _points(group: str) -> EntryPoints:
    """Return the entry points of a group; cached, because installed packages do not change while a process runs."""
    return entry_points(group=group)


def _source(point: EntryPoint) -> str:
    return f"the package {point.dist.name} ({point.value})" if point.dist else point.value


def read_definitions(file: Path, kind: type[_Definition]) -> dict[str, _Definition]:
    """Return the definitions in a TOML file; the keys are their names.

    Args:
        file: the file, with a table per name.
        kind: dataclass of a definition; its fields are the keys of the table.
    """
    entries = tomllib.loads(file.read_text(encoding="utf-8"))
    return {
        name: kind(**{key: tuple(value) if isinstance(value, list) else value for key, value in facts.items()})
        for name, facts in entries.items()
    }
