"""What people see of a run while it goes."""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Protocol, TextIO

_FIRST = ("loss", "images_per_second", "wait_share", "memory_mb")


class Shown(Protocol):
    """What a run tells of itself, by its main process."""

    def begin(self, step: int, total: int) -> None:
        """The run begins, or goes on, after ``step`` of ``total`` steps."""

    def step(self, step: int, epoch: int, row: Mapping[str, float]) -> None:
        """A line of the log: loss and its parts, rates, images a second, share of waiting, memory."""

    def advance(self, step: int) -> None:
        """A step was done."""

    def evaluating(self, epoch: int) -> None:
        """The evaluation after an epoch (from 0) begins."""

    def evaluated(self, epoch: int, values: Mapping[str, Mapping[str, float]]) -> None:
        """Its values by split and metric."""

    def note(self, text: str) -> None:
        """Something to be told once, perhaps of several lines."""

    def end(self) -> None:
        """The run ended, in whatever way."""


class Silent:
    """Shows nothing."""

    def begin(self, step: int, total: int) -> None:
        pass

    def step(self, step: int, epoch: int, row: Mapping[str, float]) -> None:
        pass

    def advance(self, step: int) -> None:
        pass

    def evaluating(self, epoch: int) -> None:
        pass

    def evaluated(self, epoch: int, values: Mapping[str, Mapping[str, float]]) -> None:
        pass

    def note(self, text: str) -> None:
        pass

    def end(self) -> None:
        pass


class Lines(Silent):
    """A line for every line of the log and every evaluation, for files and pipes.

    Args:
        out: where to.
    """

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._total = 0

    def begin(self, step: int, total: int) -> None:
        self._total = total
        if step:
            self.note(f"goes on after step {step} of {total}")

    def step(self, step: int, epoch: int, row: Mapping[str, float]) -> None:
        self.note(f"step {step}/{self._total}, epoch {epoch + 1}: {told(row)}")

    def evaluated(self, epoch: int, values: Mapping[str, Mapping[str, float]]) -> None:
        for split, metrics in values.items():
            self.note(f"epoch {epoch + 1}, {split}: {_metrics(metrics)}")

    def note(self, text: str) -> None:
        self._out.write(f"{text}\n")
        self._out.flush()


class Bars(Silent):
    """A progress bar on a terminal, with the newest line of the log beside it; evaluations stay above it.

    Args:
        out: the terminal.
    """

    def __init__(self, out: TextIO) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        columns = (BarColumn(16), MofNCompleteColumn(), TimeRemainingColumn(), TextColumn("{task.description}"))
        self._bars: Any = Progress(*columns, console=Console(file=out), transient=True)
        self._task: Any = None

    def begin(self, step: int, total: int) -> None:
        self._task = self._bars.add_task("the first step", total=total, completed=step)
        self._bars.start()

    def step(self, step: int, epoch: int, row: Mapping[str, float]) -> None:
        self._bars.update(self._task, completed=step, description=f"epoch {epoch + 1}: {told(row)}")

    def advance(self, step: int) -> None:
        self._bars.update(self._task, completed=step)

    def evaluating(self, epoch: int) -> None:
        self._bars.update(self._task, description=f"epoch {epoch + 1}: evaluation")

    def evaluated(self, epoch: int, values: Mapping[str, Mapping[str, float]]) -> None:
        for split, metrics in values.items():
            self.note(f"epoch {epoch + 1}, {split}: {_metrics(metrics)}")

    def note(self, text: str) -> None:
        self._bars.console.print(text, markup=False, highlight=False, soft_wrap=True)

    def end(self) -> None:
        self._bars.stop()


@contextmanager
def shown_on(out: TextIO) -> Iterator[Shown]:
    """Bars where ``out`` is a terminal that can move its cursor, lines elsewhere."""
    able = out.isatty() and os.environ.get("TERM") not in ("dumb", "unknown")
    shown: Shown = Bars(out) if able else Lines(out)
    try:
        yield shown
    finally:
        shown.end()


def told(row: Mapping[str, float]) -> str:
    """A line of the log in words: the loss with its parts, speed, waiting, memory; learning rates are left to files."""
    parts = [
        f"{name} {value:.4g}"
        for name, value in row.items()
        if name not in ("epoch", *_FIRST) and not name.startswith(("lr_", "gradient"))
    ]
    loss = f"loss {row['loss']:.4g}" + (f" ({', '.join(parts)})" if parts else "")
    speed = f"{row['images_per_second']:.0f} images/s, {row['wait_share']:.0%} waiting for data"
    return f"{loss}, {speed}, {row['memory_mb']:.0f} MB"


def _metrics(metrics: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {value:.4f}" for name, value in metrics.items())
