"""The log of a run (``log.csv``, ``evaluations.csv``, ``faults.csv``; loggers), and its summary.

hgld writes TensorBoard files if TensorBoard is installed, and uses other loggers on request. A run that resumes from a
checkpoint first removes the rows of steps that it will repeat.
"""

import csv
import io
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from itertools import chain
from pathlib import Path
from typing import Any, Protocol

from hgld.errors import InputError, excerpt, optional_dependency, storage_errors
from hgld.files import write_atomic
from hgld.plugins import Plugins

from .progress import metric_text, metrics_text

TENSORBOARD = "tensorboard"
RESUME_HINT = "The run's checkpoints are complete. Free space and run the same command again."
_WANDB_ID = "wandb-id"
_MOST_BYTES = 1 << 26  # maximum size of a log, as in hgld report: 600,000 lines


class Logger(Protocol):
    """Protocol for a logger, which the main process of a run calls."""

    def numbers(self, step: int, values: Mapping[str, float]) -> None:
        """Log numbers of a step by name: ``train/loss``, ``test/H-AP``."""

    def close(self) -> None:
        """Finish the log after the run has ended in any way; the run may resume later."""


@dataclass(frozen=True)
class LoggedRun:
    """Facts about the run that a logger gets.

    Attributes:
        folder: folder of the run.
        from_step: step from which the run resumes; later steps will be logged again.
        project: part of the logger's name after the colon, for instance ``landmarks`` in ``mlflow:landmarks``; may be
            empty.
        config: options of the run.
    """

    folder: Path
    from_step: int = 0
    project: str = ""
    config: Mapping[str, Any] = field(default_factory=dict)


class TensorBoardLogger:
    """Logger into ``RUN/tensorboard``; if a resumed run repeats steps, TensorBoard hides the earlier entries.

    Raises:
        ModuleNotFoundError: TensorBoard is not installed.
    """

    def __init__(self, run: LoggedRun) -> None:
        from torch.utils.tensorboard.writer import SummaryWriter

        self._writer = SummaryWriter(str(run.folder / TENSORBOARD), purge_step=run.from_step + 1)

    def numbers(self, step: int, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)

    def close(self) -> None:
        self._writer.close()


class WandbLogger:
    """Logger to Weights & Biases; a run folder is one W&B run, however often it is stopped and resumed.

    The W&B id is created at random and kept in ``RUN/wandb-id``, because run folders of one project may share a name.

    Raises:
        MissingExtraError: Weights & Biases is not installed.
    """

    def __init__(self, run: LoggedRun) -> None:
        with optional_dependency("wandb", f"--wandb {run.project}", "Or omit the option: log.csv is always written."):
            import wandb  # pyright: ignore[reportMissingImports]

        path = run.folder / _WANDB_ID
        if not path.is_file():
            write_atomic(path, uuid.uuid4().hex[:12] + "\n")
        self._run: Any = wandb.init(
            project=run.project,
            dir=str(run.folder),
            id=path.read_text(encoding="utf-8").strip()[:64],
            name=run.folder.resolve().name,
            resume="allow",
            config=dict(run.config),
        )

    def numbers(self, step: int, values: Mapping[str, float]) -> None:
        self._run.log(dict(values), step=step)

    def close(self) -> None:
        self._run.finish()


LOGGERS: Mapping[str, Callable[[LoggedRun], Logger]] = {TENSORBOARD: TensorBoardLogger, "wandb": WandbLogger}
"""The loggers that hgld provides."""

PLUGINS = Plugins("hgld.loggers", "logger", LOGGERS)


def make_logger(name: str, run: LoggedRun) -> Logger:
    """Make the logger ``NAME`` or ``NAME:PROJECT`` for a run.

    Raises:
        ConfigError: there is no such logger, or its package cannot be imported.
        MissingExtraError: the logger's package is not installed.
    """
    kind, _, project = name.partition(":")
    if kind in LOGGERS:
        PLUGINS.refuse_namesakes(kind)
    make = LOGGERS[kind] if kind in LOGGERS else PLUGINS.load(kind)
    return make(replace(run, project=project))


# -- the log itself --

LOG, EVALUATIONS, FAULTS = "log.csv", "evaluations.csv", "faults.csv"


class RunLog:
    """The log that the main process writes.

    Args:
        run: the run's folder.
        config: options of the run, for the loggers.
        from_step: step from which the run resumes; rows of later steps are removed.
        judged: number of epochs already evaluated; rows of later evaluations are removed; None: keep all rows.
        loggers: names of further loggers, ``NAME`` or ``NAME:PROJECT``.

    Attributes:
        note: a note about the log to display; empty: no note.

    Raises:
        ConfigError: there is no such logger.
        MissingExtraError: the package of a logger is not installed.
    """

    def __init__(
        self,
        run: Path,
        *,
        from_step: int = 0,
        judged: int | None = None,
        loggers: Sequence[str] = (),
        config: Mapping[str, Any] | None = None,
    ) -> None:
        self._run = run
        for path in (run / LOG, run / EVALUATIONS, *run.glob("faults*.csv")):
            _keep_rows(path, "step", from_step)
        if judged is not None:  # the run may have been killed between an evaluation and the next checkpoint
            _keep_rows(run / EVALUATIONS, "epoch", judged)
        logged_run = LoggedRun(run, from_step, config=config or {})
        self.note = ""
        self._loggers: list[Logger] = []
        for name in (TENSORBOARD, *(name for name in loggers if name != TENSORBOARD)):
            try:
                self._loggers.append(make_logger(name, logged_run))
            except ModuleNotFoundError:
                if name != TENSORBOARD:
                    raise
                self.note = f"{run}: the curves are only in {LOG}; for TensorBoard: pip install 'hgld[tensorboard]'."

    def step(self, step: int, row: Mapping[str, float]) -> None:
        """Write a line of ``log.csv``: the time (UTC) and numbers by name; every line of a run has the same names."""
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        _append(self._run / LOG, {"step": step, "time": now, **row})
        self._show(step, {f"train/{name}": value for name, value in row.items()})

    def evaluation(self, step: int, epoch: int, split: str, values: Mapping[str, float]) -> None:
        """Write the metrics of a split."""
        _append(self._run / EVALUATIONS, {"step": step, "epoch": epoch, "split": split, **values})
        self._show(step, {f"{split}/{name}": value for name, value in values.items()})

    def close(self) -> None:
        for logger in self._loggers:
            logger.close()

    def _show(self, step: int, values: Mapping[str, float]) -> None:
        for logger in self._loggers:
            logger.numbers(step, values)


def write_faults(run: Path, step: int, epoch: int, process: int, faults: Sequence[str]) -> None:
    """Append the replaced items of a batch to the file of this process: ``faults.csv``, ``faults-N.csv``."""
    for fault in faults:
        name = FAULTS if process == 0 else f"faults-{process}.csv"
        _append(run / name, {"step": step, "epoch": epoch, "fault": fault})


def iter_rows(path: Path) -> Iterator[dict[str, str]]:
    """Yield the rows of a log; no rows if the file does not exist yet.

    Raises:
        InputError: the file is not a table of UTF-8 text, or is too large.
    """
    if not path.is_file():
        return
    if (size := path.stat().st_size) > _MOST_BYTES:
        raise InputError(f"{path}: {size:,} bytes; expected a log of at most {_MOST_BYTES:,}. Move it away.")
    try:
        with open(path, newline="", encoding="utf-8") as file:
            for row in csv.DictReader(file):
                if None not in row and None not in row.values():  # ignore an incomplete last line
                    yield row
    except (UnicodeDecodeError, csv.Error) as error:
        raise InputError(
            f"{path}: not a table of UTF-8 text ({excerpt(error)}). Remove it; hgld then starts a new one."
        ) from error


def read_rows(path: Path) -> list[dict[str, str]]:
    """Return all rows of :func:`iter_rows`."""
    return list(iter_rows(path))


def _append(path: Path, row: Mapping[str, Any]) -> None:
    """Append a row; add new columns, which are empty in earlier rows."""
    shown = {key: f"{value:.8g}" if isinstance(value, float) else value for key, value in row.items()}
    with storage_errors(f"write {path}", RESUME_HINT), open(path, "a+", newline="", encoding="utf-8") as file:
        file.seek(0)
        columns = next(csv.reader(file), [])
        if shown.keys() <= set(columns):
            file.seek(0, io.SEEK_END)
            csv.DictWriter(file, columns).writerow(shown)
        else:  # another dataset may have other levels, so the columns may change
            _replace(path, chain(iter_rows(path), [shown]), list(dict.fromkeys([*columns, *shown])))


def _replace(path: Path, rows: Iterable[Mapping[str, Any]], columns: Sequence[str]) -> None:
    table = io.StringIO(newline="")
    writer = csv.DictWriter(table, columns)
    writer.writeheader()
    writer.writerows(rows)
    write_atomic(path, table.getvalue())


def _keep_rows(path: Path, column: str, until: int) -> None:
    rows = (row for row in iter_rows(path) if row[column].isdigit() and int(row[column]) <= until)
    if first := next(rows, None):
        _replace(path, chain([first], rows), list(first))
    else:
        path.unlink(missing_ok=True)


# -- The summary of a run, and its speed --


@dataclass(frozen=True)
class RunSummary:
    """The outcome of a run.

    Attributes:
        finished: whether the run completed its last epoch and its last evaluation.
        step: number of steps done.
        epoch: number of epochs done.
        best: metric, value, epoch, step and entry (``on``) of the best checkpoint; empty if no checkpoint was chosen.
        values: metrics of the last evaluation per split.
        seconds: duration of this call, in seconds.
        images_per_second: mean speed over this call's steps, without evaluations.
        wait_share: share of the steps' time in which the model waited for images.
        faults: number of images that were replaced in this call because they could not be read, over all processes.
        run: the run's folder.
        start: metrics per split before the first step; empty if the initial model was not evaluated.
    """

    finished: bool
    step: int
    epoch: int
    best: Mapping[str, Any]
    values: Mapping[str, Mapping[str, float]]
    seconds: float
    images_per_second: float
    wait_share: float
    faults: int
    run: str
    start: Mapping[str, Mapping[str, float]] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Return the summary as a JSON-ready dictionary."""
        return asdict(self)

    def to_text(self) -> str:
        """Return the summary as a few lines of text."""
        state = "finished" if self.finished else "stopped; the same command resumes it"
        speed = f"{self.images_per_second:.1f} images/s, {self.wait_share:.1%} waiting for data"
        epochs = f"{self.epoch} epoch" + "s" * (self.epoch != 1)
        lines = [f"{self.run}: {state} after {self.step} steps ({epochs}), {self.seconds:.0f} s, {speed}"]
        if self.faults:
            lines.append(f"{self.faults} unreadable images were replaced (faults.csv lists them)")
        for split, metrics in self.values.items():
            lines.append(f"{split}: {metrics_text(metrics, self.best.get('metric', ''))}")
        if self.best:
            metric, value, on, epoch = (self.best[name] for name in ("metric", "value", "on", "epoch"))
            began = self.start.get(on, {}).get(metric)
            when = f" after epoch {epoch}"
            if began is not None and epoch:
                when += f"; the initial model has {metric_text(metric, began)}"
            elif began is not None:
                when = ": the initial model" + (", which no epoch could beat" if self.finished else ", so far")
            lines.append(f"best: {metric} {metric_text(metric, value)} on {on}{when}")
        return "\n".join(lines)


@dataclass
class Timing:
    """Counts of steps: images, seconds in all, seconds of waiting for images, and replaced images."""

    images: int = 0
    seconds: float = 0.0
    waited: float = 0.0
    faults: int = 0

    def add(self, images: int, seconds: float, waited: float, faults: int) -> None:
        """Count a step."""
        self.images += images
        self.seconds += seconds
        self.waited += waited
        self.faults += faults

    @property
    def images_per_second(self) -> float:
        return self.images / self.seconds if self.seconds else 0.0

    @property
    def wait_share(self) -> float:
        return self.waited / self.seconds if self.seconds else 0.0
