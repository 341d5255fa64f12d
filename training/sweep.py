"""Sweeps: one run for every combination of swept values and every seed, and one table of the results.

``OUT/FIELD=VALUE,...,seed=N/`` is the folder of a run, named after the swept values; ``OUT/sweep.csv`` is the table.
``hgld report OUT/*/`` groups the runs whose ``config.json`` differ only in the seed.
"""

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import mean, stdev
from typing import Any
from urllib.parse import quote

import polars as pl

from hgld.distributed import Processes
from hgld.errors import ConfigError, DivergenceError, quoted, storage_errors
from hgld.files import write_atomic

from .config import TrainConfig, flat, parse_field, with_fields
from .config_checks import check_config
from .log import RunSummary
from .plan import try_machine
from .state import checked_plan

TABLE = "sweep.csv"
_MOST_RUNS = 1000


@dataclass(frozen=True)
class SweepRun:
    """One run of a sweep.

    Attributes:
        name: name of its subfolder in the sweep's folder.
        fields: the swept fields and their values in this run, without the seed.
        config: the complete config of the run.
    """

    name: str
    fields: Mapping[str, Any]
    config: TrainConfig


def plan_sweep(config: TrainConfig, sweeps: Sequence[str], seeds: int = 1) -> tuple[SweepRun, ...]:
    """Plan the runs of a sweep, with the seeds of a combination one after another, and check the options of all runs.

    Args:
        config: options that all runs have in common; the config's seed is the first seed.
        sweeps: ``field=a,b,c``, one per field; semicolons separate the values of a field that is a list.
        seeds: number of runs of every combination, with consecutive seeds.

    Raises:
        ConfigError: the text is malformed, a field is unknown (the message suggests the nearest), a field or value is
            given twice, a value is invalid, or options contradict each other.
    """
    axes = [_parse_axis(text) for text in sweeps]
    names = [name for name, _ in axes]
    if twice := {name for name in names if names.count(name) > 1 or (name == "seed" and seeds > 1)}:
        raise ConfigError(f"{', '.join(sorted(twice))} is swept twice; give all values of a field in one --sweep.")
    first = config.run.seed
    runs = []
    for values in itertools.product(*(values for _, values in axes)):
        fields = dict(zip(names, values, strict=True))
        for seed in range(first, first + seeds) if seeds > 1 else (None,):
            every = fields if seed is None else {**fields, "seed": seed}
            name = ",".join(f"{name.rstrip('_')}={quote(_shown(v), safe=',+')}" for name, v in every.items())
            run = SweepRun(name, {n: _shown(v) for n, v in fields.items()}, with_fields(config, every))
            try:
                check_config(run.config)
            except ConfigError as error:
                raise ConfigError(f"run {name} of the sweep: {error}") from error
            runs.append(run)
            if len(runs) > _MOST_RUNS:
                raise ConfigError(f"the sweep has more than {_MOST_RUNS} runs; sweep fewer fields at once.")
    return tuple(runs)


def share_precision(runs: Sequence[SweepRun], place: str, out: Path, processes: Processes) -> tuple[SweepRun, ...]:
    """Give all runs the precision that a trial on this machine chooses for the first run, unless it is set already.

    A trial measures times, so separate trials could give the seeds of one sweep different precisions. Every process
    must call this function.

    Args:
        runs: runs of :func:`plan_sweep`.
        place: dataset directory or its URL.
        out: folder of the sweep.
        processes: processes that train together.

    Raises:
        HgldError: options, dataset and network do not fit together (errors of :func:`hgld.training.state.prepare_run`).
    """
    first = runs[0]
    if "amp" not in first.config.to_derive:
        return tuple(runs)
    tried = try_machine(checked_plan(first.config, place, out / first.name, processes), processes)
    reason = ("amp", dict(tried.plan).get("amp", ""))
    configs = [with_fields(run.config, {"amp": tried.optimizer.amp}) for run in runs]
    return tuple(
        replace(run, config=replace(config, plan=(*config.plan, reason)))
        for run, config in zip(runs, configs, strict=True)
    )


def run_sweep(
    runs: Sequence[SweepRun], out: Path, train_one: Callable[[TrainConfig, Path], RunSummary]
) -> dict[str, RunSummary | None]:
    """Do the runs one after another, and return their summaries by name; the summary of a diverged run is None.

    If a run diverges, the sweep continues. If a run is asked to stop, the sweep ends; the same call resumes it. A run
    that has finished is not trained again.

    Args:
        runs: runs of :func:`plan_sweep`.
        out: the sweep's folder.
        train_one: function that trains a config in a folder, or resumes the run in the folder.
    """
    found: dict[str, RunSummary | None] = {}
    for run in runs:
        try:
            summary = train_one(run.config, out / run.name)
        except DivergenceError:
            found[run.name] = None
            continue
        found[run.name] = summary
        if not summary.finished:
            break
    return found


def tabulate_sweep(runs: Sequence[SweepRun], found: Mapping[str, RunSummary | None], out: Path) -> list[dict[str, Any]]:
    """Write ``sweep.csv`` with one row per combination of fields, and return its rows.

    A row has the fields, the number of finished runs, and the mean of each final value over these runs; with several
    seeds also the standard deviation (``NAME ±``).

    Raises:
        StorageError: the folder cannot be written to.
    """
    groups: dict[tuple[str, ...], list[SweepRun]] = {}
    for run in runs:
        groups.setdefault(tuple(run.fields.values()), []).append(run)
    rows = []
    for members in groups.values():
        summaries = [one for run in members if (one := found.get(run.name)) is not None and one.finished]
        row: dict[str, Any] = {**members[0].fields, "finished": f"{len(summaries)} of {len(members)}"}
        values: dict[str, list[float]] = {}
        for one in summaries:
            for split, metrics in one.values.items():
                for name, value in metrics.items():
                    values.setdefault(name if len(one.values) == 1 else f"{split}: {name}", []).append(value)
        for name, numbers in values.items():
            row[name] = mean(numbers)
            if len(members) > 1:
                row[f"{name} ±"] = stdev(numbers) if len(numbers) > 1 else None
        rows.append(row)
    table = pl.from_dicts(rows, infer_schema_length=None)
    with storage_errors(f"write {out / TABLE}", "Free space and run the same command again."):
        out.mkdir(parents=True, exist_ok=True)
        write_atomic(out / TABLE, table.write_csv())
    return rows


def _parse_axis(text: str) -> tuple[str, list[Any]]:
    name, equals, values = text.partition("=")
    name = name.strip().removeprefix("--").replace("-", "_")
    if name == "lambda":
        name = "lambda_"
    if not equals or not values.strip():
        raise ConfigError(f"--sweep {quoted(text)}: expected field=a,b,c, for instance tau=0.005,0.01,0.02.")
    of_lists = isinstance(flat(TrainConfig()).get(name), tuple)
    parsed = [parse_field(name, part.strip()) for part in values.split(";" if of_lists else ",")]
    if len({repr(value) for value in parsed}) < len(parsed):
        raise ConfigError(f"--sweep {quoted(text)}: a value is given twice.")
    return name, parsed


def _shown(value: Any) -> str:
    """Return the shortest text of a value that is parsed to the same value."""
    if isinstance(value, tuple):
        return ",".join(map(_shown, value))
    if isinstance(value, float) and float(f"{value:g}") == value:
        return f"{value:g}"
    return str(value)
