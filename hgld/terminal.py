"""Terminal output: progress bars if the terminal supports them, and text without control characters."""

import os
import re
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol, TextIO

# Control characters (C0 except tab and newline, DEL, C1) can control a terminal. Bidirectional overrides change the
# order of visible characters. Surrogates are bytes of file names that are not text.
_COMMANDS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")

_PAUSE = 300.0  # seconds between two lines of progress in a log


def is_terminal(stream: TextIO) -> bool:
    """Tell whether the stream is an interactive terminal, which can move its cursor.

    The terminal of a notebook's cell (``!hgld ...``) cannot move its cursor, although it is called xterm.
    """
    can_move = os.environ.get("TERM", "dumb") not in ("dumb", "unknown") and "JPY_PARENT_PID" not in os.environ
    return can_move and stream.isatty()


def printable(text: str) -> str:
    r"""Escape the characters of a text that could control a terminal (ESC becomes ``\x1b``), but not newlines."""
    return _COMMANDS.sub(lambda found: found[0].encode("unicode_escape").decode("ascii"), text)


def printable_json(text: str) -> str:
    """Escape the characters of a JSON text that could control a terminal, as JSON escapes."""
    return _COMMANDS.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def say(text: str) -> None:
    """Print a line of progress on stderr, for functions whose caller requested progress."""
    print(printable(text), file=sys.stderr, flush=True)  # noqa: T201


class Progress(Protocol):
    """Protocol for a progress function: takes the task, the number of finished units, and the total (None: unknown)."""

    def __call__(self, task: str, done: int, total: int | None) -> None: ...


def silent(task: str, done: int, total: int | None) -> None:
    """Report no progress."""


def _lines(last: float) -> Progress:
    """Return a function that prints a line of progress five minutes after ``last`` or the previous line."""

    def show(task: str, done: int, total: int | None) -> None:
        nonlocal last
        if time.monotonic() >= last + _PAUSE:
            last = time.monotonic()
            say(f"{' '.join(task.split())}: {done:,}" + ("" if total is None else f" of {total:,}"))

    return show


@contextmanager
def progress_bars() -> Iterator[Progress]:
    """Yield a function that shows progress bars on stderr, or a line every five minutes if stderr is not a terminal."""
    if not is_terminal(sys.stderr):
        yield _lines(time.monotonic())
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bars

    names = TextColumn("{task.description}", markup=False)
    columns = [names, BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()]
    with Bars(*columns, console=Console(stderr=True), transient=True) as bars:
        tasks: dict[str, Any] = {}

        def show(task: str, done: int, total: int | None) -> None:
            if task not in tasks:
                tasks[task] = bars.add_task(printable(" ".join(task.split())), total=total)
            bars.update(tasks[task], completed=done, total=total)

        yield show
