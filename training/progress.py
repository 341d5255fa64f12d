"""Reporters that show a run's progress: bars on a terminal, lines elsewhere, or nothing."""

import math
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, TextIO

from hgld.terminal import is_terminal, printable

_FIRST = ("loss", "images_per_second", "wait_share", "memory_mb")


class ProgressReporter:
    """Receiver of a run's progress, called by its main process; this class shows nothing."""

    def heading(self, text: str) -> None:
        """Announce the next of several runs, or what the run will do."""

    def begin(self, step: int, total: int, description: str = "") -> None:
        """Begin or resume a run after ``step`` of ``total`` steps, with a description of the run in one line."""

    def step(self, step: int, epoch: int, row: Mapping[str, float]) -> None:
        """Report a line of the log: loss and its parts, rates, images per second, share of waiting, memory."""

    def advance(self, step: int) -> None:
        """Report that a step is done."""

    def evaluating(self, epoch: int) -> None:
        """Report that the evaluation after an epoch begins (epochs count from 0; -1: before the first step)."""

    def evaluated(self, epoch: int, values: Mapping[str, Mapping[str, float]], monitor: str = "") -> None:
        """Report the evaluation's values by split and metric; ``monitor`` is the metric that chooses checkpoints."""

    def note(self, text: str) -> None:
        """Report a note, which may have several lines."""

    def end(self) -> None:
        """End the report, however the run ended."""


class LineReporter(ProgressReporter):
    """Reporter for files and pipes: a line at the start, one per minute with the time left, one per evaluation.

    Args:
        result: function that prints a line of the run's results.
        note: function that prints a note, separately from the results.
        clock: function that returns the time in seconds.
    """

    _SECONDS = 60.0

    def __init__(
        self,
        result: Callable[[str], object],
        note: Callable[[str], object],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._result, self._note, self._clock = result, note, clock

    def heading(self, text: str) -> None:
        self._result(text)

    def begin(self, step: int, total: int, description: str = "") -> None:
        if description:
            self._result(description)
        if step:
            self._result(f"resumes after step {step} of {total}")
        self._newest, self._total, self._first, self._said = "", total, (step, self._clock()), -math.inf

    def step(self, step: int, epoch: int, row: Mapping[str, float]) -> None:
        self._newest = f", epoch {epoch + 1}: {format_row(row)}"
        self.advance(step)

    def advance(self, step: int) -> None:
        now, (first, began) = self._clock(), self._first
        # The first steps are slower (kernels are chosen and compiled): say nothing before the log's first line.
        if self._newest and now - self._said >= self._SECONDS and step > first:
            self._said = now
            left = timedelta(seconds=round((self._total - step) * (now - began) / (step - first)))
            self._result(f"step {step} of {self._total}{self._newest}; {left} left")

    def evaluated(self, epoch: int, values: Mapping[str, Mapping[str, float]], monitor: str = "") -> None:
        for split, metrics in values.items():
            self._result(f"{_after(epoch)}, {split}: {metrics_text(metrics, monitor)}")

    def note(self, text: str) -> None:
        self._note(text)


class BarReporter(LineReporter):
    """Reporter for terminals: a bar with the newest line of the log next to it; evaluations stay above the bar.

    Args:
        out: the terminal.
    """

    def __init__(self, out: TextIO) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        super().__init__(self._print, self._print)
        columns = (BarColumn(16), MofNCompleteColumn(), TimeRemainingColumn(), TextColumn("{task.description}"))
        self._bars: Any = Progress(*columns, console=Console(file=out), transient=True)

    def _print(self, text: str) -> None:
        self._bars.console.print(printable(text), markup=False, highlight=False, soft_wrap=True)

    def begin(self, step: int, total: int, description: str = "") -> None:
        super().begin(step, total, description)
        self._task = self._bars.add_task("the first step", total=total, completed=step)
        self._bars.start()

    def step(self, step: int, epoch: int, row: Mapping[str, float]) -> None:
        self._bars.update(self._task, completed=step, description=f"epoch {epoch + 1}: {format_row(row)}")

    def advance(self, step: int) -> None:
        self._bars.update(self._task, completed=step)

    def evaluating(self, epoch: int) -> None:
        self._bars.update(self._task, description=f"{_after(epoch)}: evaluation")

    def end(self) -> None:
        self._bars.stop()


@contextmanager
def progress_reporter(
    out: TextIO, result: Callable[[str], object], note: Callable[[str], object]
) -> Iterator[ProgressReporter]:
    """Make a :class:`BarReporter` if ``out`` is a terminal that can move its cursor, else a :class:`LineReporter`.

    Args:
        out: the stream that people may look at.
        result: function that prints a line of the run's results, if ``out`` is not such a terminal.
        note: function that prints a note, separately from the results.
    """
    reporter: ProgressReporter = BarReporter(out) if is_terminal(out) else LineReporter(result, note)
    try:
        yield reporter
    finally:
        reporter.end()


def format_row(row: Mapping[str, float]) -> str:
    """Return a line of the log in words: the loss with its parts, speed, waiting and memory, but no learning rates."""
    parts = [
        f"{name} {value:.4g}"
        for name, value in row.items()
        if name not in ("epoch", *_FIRST) and not name.startswith(("lr_", "gradient"))
    ]
    loss = f"loss {row['loss']:.4g}" + (f" ({', '.join(parts)})" if parts else "")
    speed = f"{row['images_per_second']:.0f} images/s, {row['wait_share']:.0%} waiting for data"
    return f"{loss}, {speed}, {row['memory_mb']:.0f} MB"


def _after(epoch: int) -> str:
    return f"epoch {epoch + 1}" if epoch >= 0 else "start"


def metrics_text(metrics: Mapping[str, float], monitor: str = "") -> str:
    """Return an evaluation in short: R@1 of the finest level, H-AP, ASI and the monitor; without these, all metrics.

    Args:
        metrics: values by name, the finest level first.
        monitor: metric by which the best checkpoint is chosen; empty if no checkpoint is chosen.
    """
    finest = next((name for name in metrics if name.partition("/")[0] == "R@1"), "")
    chosen = [name for name in metrics if name in (finest, "H-AP", "ASI", monitor)] or list(metrics)
    return ", ".join(f"{name} {metric_text(name, metrics[name])}" for name in chosen)


def metric_text(name: str, value: float) -> str:
    """Return a metric's value as reports show it: in per cent if it is a share."""
    from hgld.evaluation.protocols import is_per_cent

    return f"{100 * value:.2f}" if is_per_cent(name) else f"{value:.4g}"
