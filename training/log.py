"""What a run writes down: ``log.csv``, ``evaluations.csv``, ``faults.csv`` and TensorBoard; Weights & Biases if asked.

A run that goes on from a checkpoint first removes the rows of steps that it will do again.
"""

import csv
import importlib.util
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hgld.errors import MissingResourceError, StorageError

LOG, EVALUATIONS, FAULTS = "log.csv", "evaluations.csv", "faults.csv"


class RunLog:
    """The log of the main process.

    Args:
        run: the run's folder.
        config: of the run, for Weights & Biases.
        from_step: rows of later steps are removed.
        judged: epochs whose evaluations are done; rows of evaluations of later ones are removed; None: all are done.
        wandb: project of Weights & Biases to log to as well; empty: none.

    Raises:
        MissingResourceError: Weights & Biases is asked for and not installed.
    """

    def __init__(
        self,
        run: Path,
        *,
        from_step: int = 0,
        judged: int | None = None,
        wandb: str = "",
        config: Mapping[str, Any] | None = None,
    ) -> None:
        from torch.utils.tensorboard.writer import SummaryWriter

        self._run = run
        for path in (run / LOG, run / EVALUATIONS, *run.glob("faults*.csv")):
            _keep_rows(path, "step", from_step)
        if judged is not None:  # a kill may have come between an evaluation and the checkpoint that knows of it
            _keep_rows(run / EVALUATIONS, "epoch", judged)
        self._board = SummaryWriter(str(run / "tensorboard"), purge_step=from_step or None)
        self._wandb = _start_wandb(wandb, run, config or {}) if wandb else None

    def step(self, step: int, row: Mapping[str, float]) -> None:
        """Write a line of ``log.csv``: numbers by name, the same names in every line of a run."""
        self._write(LOG, step, row, prefix="train")

    def evaluation(self, step: int, epoch: int, split: str, values: Mapping[str, float]) -> None:
        """Write the metrics of a split."""
        _append(self._run / EVALUATIONS, {"step": step, "epoch": epoch, "split": split, **values})
        self._show(step, {f"{split}/{name}": value for name, value in values.items()})

    def close(self) -> None:
        self._board.close()
        if self._wandb is not None:
            self._wandb.finish()

    def _write(self, file: str, step: int, row: Mapping[str, float], prefix: str) -> None:
        _append(self._run / file, {"step": step, **row})
        self._show(step, {f"{prefix}/{name}": value for name, value in row.items()})

    def _show(self, step: int, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            self._board.add_scalar(name, value, step)
        if self._wandb is not None:
            self._wandb.log(dict(values), step=step)


def write_faults(run: Path, step: int, epoch: int, process: int, faults: Sequence[str]) -> None:
    """Write down the items of a batch that were replaced; every process has a file of its own."""
    for fault in faults:
        name = FAULTS if process == 0 else f"faults-{process}.csv"
        _append(run / name, {"step": step, "epoch": epoch, "fault": fault})


def read_rows(path: Path) -> list[dict[str, str]]:
    """The rows of a log, none where it does not exist yet."""
    if not path.is_file():
        return []
    with open(path, newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    return [row for row in rows if None not in row and None not in row.values()]  # a last line cut short is dropped


def _append(path: Path, row: Mapping[str, Any]) -> None:
    """Write a row behind the others; columns that it is the first to have are empty in those."""
    shown = {key: f"{value:.8g}" if isinstance(value, float) else value for key, value in row.items()}
    try:
        columns = _columns(path)
        if not shown.keys() <= set(columns):  # another dataset has other levels
            rows, columns = read_rows(path), list(dict.fromkeys([*columns, *shown]))
            _replace(path, [*rows, shown], columns)
            return
        with open(path, "a", newline="", encoding="utf-8") as file:
            csv.DictWriter(file, columns).writerow(shown)
    except OSError as error:
        raise StorageError(
            f"cannot write {path} ({error.strerror}). The run's checkpoints are whole. Free space and run the same "
            "command again."
        ) from error


def _columns(path: Path) -> list[str]:
    if not path.exists():
        return []
    with open(path, newline="", encoding="utf-8") as file:
        return next(csv.reader(file), [])


def _replace(path: Path, rows: Sequence[Mapping[str, Any]], columns: Sequence[str]) -> None:
    aside = path.with_suffix(".part")
    with open(aside, "w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, columns)
        writer.writeheader()
        writer.writerows(rows)
    aside.replace(path)


def _keep_rows(path: Path, column: str, until: int) -> None:
    rows = [row for row in read_rows(path) if row[column].isdigit() and int(row[column]) <= until]
    if not path.is_file():
        return
    if not rows:
        path.unlink()
        return
    _replace(path, rows, list(rows[0]))


def _start_wandb(project: str, run: Path, config: Mapping[str, Any]) -> Any:
    if importlib.util.find_spec("wandb") is None:
        raise MissingResourceError(
            f"--wandb {project}: the package wandb is not installed. Install it (pip install wandb), or leave the "
            "option out: log.csv and TensorBoard are always written."
        )
    import wandb  # pyright: ignore[reportMissingImports]

    # One run of Weights & Biases for one folder, however often it is stopped and goes on.
    return wandb.init(project=project, dir=str(run), id=run.resolve().name, resume="allow", config=dict(config))
