"""How a stage tells a person where it is, without knowing whether anyone looks."""

from typing import Protocol


class Progress(Protocol):
    """Called with what is being done, how many units are done, and how many there are (None: not known)."""

    def __call__(self, task: str, done: int, total: int | None) -> None: ...


def silent(task: str, done: int, total: int | None) -> None:
    """A progress that nobody looks at."""
