"""Sweeps: one run for every combination of some fields' values, and a table of their results."""

import csv
import io
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import quote

from hgld.errors import ConfigError, DivergenceError, InputError, StorageError, quoted
from hgld.files import read_json, write_atomic

from .config import CONFIG, TrainConfig, flat, parse_field, read_config, with_fields
from .config_checks import check_config

if TYPE_CHECKING:
    from matplotlib.axes import Axes

TABLE, MARKDOWN, SUMMARY = "sweep.csv", "sweep.md", "summary.json"
_MOST_RUNS = 1000
_MOST_FIGURES = 24

State = Literal["finished", "diverged", "not finished"]


@dataclass(frozen=True)
class SweepRun:
    """One run of a sweep.

    Attributes:
        name: its folder below the sweep's.
        fields: the swept fields and their values in this run.
        config: the whole config.
    """

    name: str
    fields: Mapping[str, Any]
    config: TrainConfig


def plan_sweep(config: TrainConfig, sweeps: Sequence[str]) -> tuple[SweepRun, ...]:
    """Plan the runs of a sweep, the last field varying fastest; all are checked before any of them begins.

    Args:
        config: options that all runs have in common.
        sweeps: ``field=a,b,c``, one a field; semicolons separate the values of a field that is a list.

    Raises:
        ConfigError: text of another form, an unknown field (the nearest is named), a field or value given twice, a
            value that the field cannot have, or options that contradict each other.
    """
    axes = [_parse_axis(text) for text in sweeps]
    names = [name for name, _ in axes]
    if twice := {name for name in names if names.count(name) > 1}:
        raise ConfigError(f"--sweep names {', '.join(sorted(twice))} twice; give all values of a field at once.")
    runs = []
    for values in itertools.product(*(values for _, values in axes)):
        fields = dict(zip(names, values, strict=True))
        run = SweepRun(_folder(fields), fields, with_fields(config, fields))
        try:
            check_config(run.config)
        except ConfigError as error:
            raise ConfigError(f"--sweep, run {run.name}: {error}") from error
        runs.append(run)
        if len(runs) > _MOST_RUNS:
            raise ConfigError(f"--sweep asks for more than {_MOST_RUNS} runs; sweep fewer fields at once.")
    return tuple(runs)


def run_sweep(
    runs: Sequence[SweepRun],
    out: Path,
    train_one: Callable[[TrainConfig, Path], bool],
    facts_of: Callable[[TrainConfig], Mapping[str, object]],
) -> dict[str, State]:
    """Do the runs that are not finished yet, one after another, and return how each one ended, by its name.

    A run that diverges is a result too: the sweep goes on. One that was asked to stop ends the sweep; the same call
    goes on from there.

    Args:
        runs: of :func:`plan_sweep`.
        out: the sweep's folder.
        train_one: trains a config into a folder, leaves its config and summary there, and returns whether it finished.
        facts_of: returns the facts of the data for a config; a finished run on other data is not passed over.

    Raises:
        InputError: a config or summary in a run's folder cannot be read.
    """
    states: dict[str, State] = dict.fromkeys((run.name for run in runs), "not finished")
    for run in runs:
        try:
            finished = _finished(out / run.name, run, facts_of) or train_one(run.config, out / run.name)
        except DivergenceError:
            states[run.name] = "diverged"
            continue
        if not finished:
            break
        states[run.name] = "finished"
    return states


def tabulate_sweep(runs: Sequence[SweepRun], out: Path, states: Mapping[str, State]) -> list[dict[str, Any]]:
    """Return a row for each run: its fields, how it ended, its best value and its last values.

    Args:
        runs: of :func:`plan_sweep`.
        out: the sweep's folder.
        states: of :func:`run_sweep`.

    Raises:
        InputError: a summary cannot be read.
    """
    return [_row(run, out / run.name, states[run.name]) for run in runs]


def write_table(rows: Sequence[Mapping[str, Any]], out: Path) -> str:
    """Write the table as ``sweep.csv`` and ``sweep.md``; return the latter's text.

    Raises:
        StorageError: the folder cannot be written to.
    """
    columns = list(dict.fromkeys(itertools.chain.from_iterable(rows)))
    cells = [[_rounded(row.get(column)) for column in columns] for row in rows]
    table = io.StringIO(newline="")
    csv.writer(table, lineterminator="\n").writerows([columns, *([row.get(c, "") for c in columns] for row in rows)])
    lines = [columns, ["---"] * len(columns), *cells]
    text = "".join(f"| {' | '.join(cell.replace('|', '/') for cell in line)} |\n" for line in lines)
    try:
        out.mkdir(parents=True, exist_ok=True)
        for name, content in ((TABLE, table.getvalue()), (MARKDOWN, text)):
            write_atomic(out / name, content)
    except OSError as error:
        raise StorageError(f"{out}: the table of the sweep cannot be written ({error.strerror}).") from error
    return text


def draw_sweep(runs: Sequence[SweepRun], rows: Sequence[Mapping[str, Any]], out: Path) -> list[str]:
    """Draw the last values of a sweep as ``sweep-METRIC.svg`` and ``.png``: a line over one field, a map over two.

    Of more fields the first two are the axes, and there is a figure for every combination of the others. Runs that did
    not finish are gaps.

    Args:
        runs: of :func:`plan_sweep`.
        rows: of :func:`tabulate_sweep`.
        out: the sweep's folder.

    Returns:
        names of the files; of at most 24 figures, the first metrics first.

    Raises:
        StorageError: the folder cannot be written to.
    """
    from hgld.report_page.figures import Figures

    figures = Figures(out)
    fields = list(runs[0].fields)
    shown = [{name: _shown(value) for name, value in run.fields.items()} for run in runs]
    known = {*fields, "state", "best epoch"}
    metrics = list(dict.fromkeys(name for row in rows for name in row if name not in known))
    others = list(dict.fromkeys(tuple(values[name] for name in fields[2:]) for values in shown))
    wanted = [(metric, other) for metric in metrics for other in others][:_MOST_FIGURES]
    try:
        for metric, other in wanted:
            fixed = dict(zip(fields[2:], other, strict=True))
            cells = {
                tuple(values[name] for name in fields[:2]): float(row.get(metric, math.nan))
                for values, row in zip(shown, rows, strict=True)
                if fixed.items() <= values.items()
            }
            said = ", ".join(f"{name.rstrip('_')} {value}" for name, value in fixed.items())
            title = f"{metric}{f' ({said})' if said else ''}"
            draw = partial(_draw_map if len(fields) > 1 else _draw_line, cells=cells, fields=fields)
            figures.draw(f"sweep-{metric}-{said}", title, partial(draw, title=title))
    except OSError as error:
        raise StorageError(f"{out}: the figures of the sweep cannot be written ({error.strerror}).") from error
    return figures.files


def _draw_line(axes: "Axes", cells: Mapping[tuple[str, ...], float], fields: Sequence[str], title: str) -> None:
    axes.plot(range(len(cells)), list(cells.values()), marker="o", markersize=4)
    axes.set_xticks(range(len(cells)), [value or "none" for (value,) in cells])
    axes.set(xlabel=fields[0].rstrip("_"), ylabel=title)


def _draw_map(axes: "Axes", cells: Mapping[tuple[str, ...], float], fields: Sequence[str], title: str) -> None:
    down, across = (list(dict.fromkeys(place[side] for place in cells)) for side in (0, 1))
    table = [[cells.get((row, column), math.nan) for column in across] for row in down]
    axes.grid(visible=False)
    axes.imshow(table, cmap="cividis", aspect="auto")
    finite = [value for line in table for value in line if math.isfinite(value)]
    middle = (min(finite) + max(finite)) / 2 if finite else 0.0
    for row, line in enumerate(table):
        for column, value in enumerate(line):
            text = f"{value:.3f}" if math.isfinite(value) else "–"
            color = "#fdfdfd" if value <= middle else "#1b2530"  # a gap is white
            axes.text(column, row, text, ha="center", va="center", color=color)
    axes.set_xticks(range(len(across)), [value or "none" for value in across])
    axes.set_yticks(range(len(down)), [value or "none" for value in down])
    axes.set(xlabel=fields[1].rstrip("_"), ylabel=fields[0].rstrip("_"), title=title)


def _parse_axis(text: str) -> tuple[str, list[Any]]:
    name, equals, values = text.partition("=")
    name = name.strip().removeprefix("--").replace("-", "_")
    if name == "lambda":
        name = "lambda_"
    if not equals or not values.strip():
        raise ConfigError(f"--sweep {quoted(text)}: expected field=a,b,c, for instance tau=0.005,0.01,0.02.")
    of_lists = isinstance(flat(TrainConfig()).get(name), tuple)
    parts = [part.strip() for part in values.split(";" if of_lists else ",")]
    parsed = [parse_field(name, part) for part in parts]
    if len({repr(value) for value in parsed}) < len(parsed):
        raise ConfigError(f"--sweep {quoted(text)}: a value stands there twice.")
    return name, parsed


def _folder(fields: Mapping[str, Any]) -> str:
    """Return a folder's name: values in their plain form, with characters escaped that a path cannot have."""
    return ",".join(f"{name.rstrip('_')}={quote(_shown(value), safe=',+')}" for name, value in fields.items())


def _shown(value: Any) -> str:
    """Return a value in its shortest form that is read back as the same."""
    if value is None:
        return ""
    if isinstance(value, tuple):
        return ",".join(map(_shown, value))
    if isinstance(value, float) and float(f"{value:g}") == value:
        return f"{value:g}"
    return str(value)


def _rounded(value: Any) -> str:
    return f"{value:.4f}" if isinstance(value, float) else _shown(value)


def _finished(folder: Path, run: SweepRun, facts_of: Callable[[TrainConfig], Mapping[str, object]]) -> bool:
    """Tell whether the folder holds this run, finished; the trainer refuses one of other options or data."""
    if not (folder / SUMMARY).is_file() or not (folder / CONFIG).is_file():
        return False
    before, summary = read_config(folder / CONFIG), _read_summary(folder)
    same = (flat(before), before.init_from) == (flat(run.config), run.config.init_from)
    return same and bool(summary.get("finished")) and summary.get("data") == facts_of(run.config)


def _read_summary(folder: Path) -> dict[str, Any]:
    path = folder / SUMMARY
    try:
        summary = read_json(path)
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: not a run's summary ({error}). Remove {folder} to run it anew.") from error
    if not isinstance(summary, dict):
        raise InputError(f"{path}: holds {type(summary).__name__}; expected a JSON object. Remove {folder}.")
    return summary


def _row(run: SweepRun, folder: Path, state: State) -> dict[str, Any]:
    """Return the row of a run; with several splits the metrics' names begin with the split."""
    row: dict[str, Any] = {name: _shown(value) for name, value in run.fields.items()} | {"state": state}
    if state != "finished":
        return row
    summary = _read_summary(folder)
    if best := summary.get("best"):
        row |= {"best epoch": best["epoch"], f"best {best['metric']}": best["value"]}
    values: Mapping[str, Mapping[str, float]] = summary.get("values") or {}
    for split, metrics in values.items():
        row |= {name if len(values) == 1 else f"{split}: {name}": value for name, value in metrics.items()}
    return row
