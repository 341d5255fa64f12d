"""Loggers that a run writes to beside its files: TensorBoard, Weights & Biases, and those of other packages.

A logger has two methods (:class:`Logger`). One of another package is a function of a :class:`LoggedRun` and an entry
point of the group ``hgld.loggers``: MLflow, Comet, a database.
"""

import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from hgld.errors import optional_dependency
from hgld.files import write_atomic
from hgld.plugins import Plugins

TENSORBOARD = "tensorboard"
_WANDB_ID = "wandb-id"


class Logger(Protocol):
    """Receiver of what a run logs, called by its main process."""

    def numbers(self, step: int, values: Mapping[str, float]) -> None:
        """Log numbers of a step by name: ``train/loss``, ``test/H-AP``."""

    def close(self) -> None:
        """Finish the log; the run has ended in any way, and may go on some day."""


@dataclass(frozen=True)
class LoggedRun:
    """The run that a logger is made for.

    Attributes:
        folder: of the run.
        from_step: step that it goes on from; what was logged of later steps will be logged again.
        project: the part of the logger's name behind a colon, ``landmarks`` of ``mlflow:landmarks``; may be empty.
        config: its options.
    """

    folder: Path
    from_step: int = 0
    project: str = ""
    config: Mapping[str, Any] = field(default_factory=dict)


class TensorBoardLogger:
    """Logger into ``RUN/tensorboard``; TensorBoard hides what a stopped run logged of steps that are done again.

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
    """Logger to Weights & Biases: one run there for one folder, however often it is stopped and goes on.

    Its id is drawn once and kept in ``RUN/wandb-id``, because runs of one project may lie in folders of one name.

    Raises:
        MissingExtraError: Weights & Biases is not installed.
    """

    def __init__(self, run: LoggedRun) -> None:
        with optional_dependency(
            "wandb", f"--wandb {run.project}", "Or leave the option out: log.csv is always written."
        ):
            import wandb  # pyright: ignore[reportMissingImports]

        self._run: Any = wandb.init(
            project=run.project,
            dir=str(run.folder),
            id=_kept_id(run.folder / _WANDB_ID),
            name=run.folder.resolve().name,
            resume="allow",
            config=dict(run.config),
        )

    def numbers(self, step: int, values: Mapping[str, float]) -> None:
        self._run.log(dict(values), step=step)

    def close(self) -> None:
        self._run.finish()


def _kept_id(path: Path) -> str:
    if not path.is_file():
        write_atomic(path, uuid.uuid4().hex[:12] + "\n")
    return path.read_text(encoding="utf-8").strip()[:64]


LOGGERS: Mapping[str, Callable[[LoggedRun], Logger]] = {TENSORBOARD: TensorBoardLogger, "wandb": WandbLogger}
"""The loggers that hgld has itself."""

PLUGINS = Plugins("hgld.loggers", "logger", LOGGERS)


def make_logger(name: str, run: LoggedRun) -> Logger:
    """Make the logger of a name, ``NAME`` or ``NAME:PROJECT``, for a run.

    Raises:
        ConfigError: there is none of that name, or its package cannot be imported.
        MissingExtraError: what it needs is not installed.
    """
    kind, _, project = name.partition(":")
    if kind in LOGGERS:
        PLUGINS.refuse_namesakes(kind)
    make = LOGGERS[kind] if kind in LOGGERS else PLUGINS.load(kind)
    return make(LoggedRun(run.folder, run.from_step, project, run.config))
