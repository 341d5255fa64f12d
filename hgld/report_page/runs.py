"""Readers of run folders and of the reports that ``hgld evaluate --out`` writes."""

import json
import math
import re
import statistics
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
import polars as pl

from hgld.errors import ConfigError, InputError, SchemaError, quoted
from hgld.evaluation.embedding_files import KEY, read_labelled
from hgld.evaluation.evaluate import embeddings_fingerprint, labels_fingerprint
from hgld.evaluation.protocols import value_parts
from hgld.evaluation.report import RetrievalReport, check_same_task
from hgld.files import read_json
from hgld.labels import label_codes
from hgld.prediction import CALIBRATION, Calibration
from hgld.tables import read_csv

_KEPT = re.compile(r"(?P<split>.+)-epoch-(?P<epoch>\d{1,9})\.json")
_SWEEP = "sweep.csv"  # file name of the table of hgld train --sweep, whose first columns are the swept fields
_MOST_LOG_BYTES = 64 << 20
_MOST_LOG_VALUES = 1 << 22  # each takes about 60 bytes of memory
_MOST_CONFIG_BYTES = 1 << 20


@dataclass(frozen=True, eq=False)
class Items:
    """The queries or the gallery of a retrieval task.

    Attributes:
        embeddings: (N, D) of any floating dtype.
        labels: (N, L) int64 class ids, finest level first, -1 if unknown.
        keys: (N,) keys; None if the files have no keys.
    """

    embeddings: np.ndarray
    labels: np.ndarray
    keys: list[str] | None


@dataclass(frozen=True, eq=False)
class Ranked:
    """The embeddings behind an evaluation.

    Attributes:
        query: the queries.
        gallery: the gallery; None if every query is ranked against the other queries (leave-one-out).
        names: class names by id, per level; empty if the label table holds ids.
    """

    query: Items
    gallery: Items | None
    names: tuple[dict[int, str], ...]

    @property
    def other_side(self) -> Items:
        """Return the gallery, or the queries in leave-one-out."""
        return self.query if self.gallery is None else self.gallery


@dataclass(frozen=True, eq=False)
class Evaluation:
    """The last evaluation of a run on one split.

    Attributes:
        report: metrics and values per query.
        epoch: epoch of training; None for an evaluation that belongs to no run.
        ranked: the embeddings; None if the run has no files of embeddings.
        why_not: reason why ``ranked`` is None, as the page prints it.
        seeds: reports by seed, if ``report`` is their mean; empty for a single run. ``ranked`` then holds the
            embeddings of the first seed.
    """

    report: RetrievalReport
    epoch: int | None
    ranked: Ranked | None
    why_not: str = ""
    seeds: Mapping[int, RetrievalReport] = field(default_factory=dict)

    @property
    def first_seed(self) -> "Evaluation":
        """The evaluation of the first seed, which ``ranked`` belongs to."""
        return replace(self, report=next(iter(self.seeds.values())), seeds={}) if self.seeds else self

    @property
    def classes(self) -> np.ndarray | None:
        """(Q,) finest class of every query; None without embeddings."""
        return None if self.ranked is None else self.ranked.query.labels[:, 0]

    @property
    def levels(self) -> list[str]:
        """Names of the levels, finest first."""
        return list(self.report.settings.get("levels", []))

    @property
    def dataset(self) -> str:
        """Name of the dataset; empty if the report does not state it, for example a report of plain embeddings."""
        return str(self.report.settings.get("dataset", ""))


@dataclass(frozen=True, eq=False)
class Run:
    """One run, or one report that ``hgld evaluate --out`` wrote.

    Attributes:
        name: name on the page.
        evaluations: evaluations by task. A task is named ``SPLIT``, ``QUERY/GALLERY`` or by its protocol, followed by
            `` of DATASET`` if the page has several datasets; ``evaluation`` if the report does not state it.
        log: numbers of ``log.csv`` by column; empty without a log.
        history: numbers of ``evaluations.csv`` by split and column.
        config: training options by section; empty if unknown.
        calibration: calibration of the predictions; None if ``hgld calibrate`` has not made one.
    """

    name: str
    evaluations: dict[str, Evaluation]
    log: dict[str, list[float]] = field(default_factory=dict)
    history: dict[str, dict[str, list[float]]] = field(default_factory=dict)
    config: Mapping[str, Any] = field(default_factory=dict)
    calibration: Calibration | None = None

    @property
    def recipe(self) -> str:
        """Name of the recipe; empty if unknown."""
        found = self.config.get("recipe", "")
        return found if isinstance(found, str) else ""

    @property
    def seed(self) -> int | None:
        """Seed of the training; None if unknown."""
        section = self.config.get("run")
        found = section.get("seed") if isinstance(section, dict) else None
        return found if type(found) is int else None

    @property
    def seeds(self) -> list[int]:
        """Seeds, if this run is the mean of several; empty for a single run."""
        return sorted({seed for evaluation in self.evaluations.values() for seed in evaluation.seeds})


def read_runs(places: Sequence[str | Path]) -> list[Run]:
    """Read run folders and written reports; runs that differ only in their seed become one run with the mean values.

    Args:
        places: run folders of ``hgld train``, folders of several such runs (``hgld train --seeds 5``), JSON files that
            ``hgld evaluate --out X.json`` wrote, or folders of such runs and files.

    Returns:
        one run per path or group of seeds, in the order of ``places``, named by its folder or file; a repeated name
        gets a number.

    Raises:
        InputError: a path is neither a run nor a report, or its files do not belong together.
        SchemaError: a report cannot be read or shown.
    """
    runs, names, parents = [], set(), {}
    for place in (run for named in places for run in _runs_within(Path(named))):
        stem = (place.resolve().name if place.is_dir() else place.stem) or "run"
        names.add(name := _unused(stem, names))
        parents[name] = place.resolve().parent
        runs.append(_read_folder(name, place) if place.is_dir() else _read_kept(name, place))
    several = len({e.dataset for run in runs for e in run.evaluations.values() if e.dataset}) > 1
    runs = [replace(run, evaluations=_by_task(run.evaluations, several=several)) for run in runs]
    return _merge_seeds(runs, parents)


def _unused(name: str, names: Collection[str]) -> str:
    """Return a name that is not among ``names``: the name itself, or the name and a number."""
    return next(n for n in [name, *(f"{name} ({i})" for i in range(2, len(names) + 3))] if n not in names)


def _runs_within(place: Path) -> list[Path]:
    """Return the runs or reports in a folder, in the order of their sweep or by name; return a run or file itself."""
    if not place.is_dir() or _is_run(place):
        return [place]
    swept = _swept_names(place / _SWEEP)

    def order(run: Path) -> tuple[int, list[tuple[int, str]]]:
        of_sweep = (i for i, name in enumerate(swept) if run.name == name or run.name.startswith(f"{name},seed="))
        return next(of_sweep, len(swept)), _natural_order(run)

    runs = sorted(filter(_is_run, place.iterdir()), key=order)
    return runs or sorted(place.glob("*.json"), key=_natural_order) or [place]


def _swept_names(table: Path) -> list[str]:
    """Return the names of a sweep's runs without seeds, in the order of its table; empty without a table."""
    if not table.is_file():
        return []
    rows = read_csv(table)
    fields = rows.columns[: rows.columns.index("finished")] if "finished" in rows.columns else []
    return [
        ",".join(f"{field.rstrip('_')}={quote(value or '', safe=',+')}" for field, value in row.items())
        for row in rows.select(fields).iter_rows(named=True)
    ]


def _is_run(folder: Path) -> bool:
    return (folder / "log.csv").is_file() or any((folder / "reports").glob("*.json"))


def _natural_order(path: Path) -> list[tuple[int, str]]:
    """Return a key that sorts ``seed=10`` after ``seed=9``."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", path.name)]


# -- seeds -------------------------------------------------------------------------------------------------------------

# Options that may differ within a group of runs: the seed, and options of the machine. Of these, amp, compile and
# micro_batch_size change results by rounding; the remaining options change nothing.
_OF_MACHINE = {"seed", "workers", "device", "amp", "micro_batch_size", "compile", "keep"}
_OF_MACHINE |= {"deterministic", "log_every", "checkpoint_every", "loggers"}
_REASONS = "plan"  # section of a config that says why each option was chosen
_SEED = re.compile(r"(^|[,._-])seed=?\d+|[._-]?\d+$")


def _merge_seeds(runs: Sequence[Run], parents: Mapping[str, Path]) -> list[Run]:
    """Merge runs whose configs differ only in the seed.

    Args:
        runs: all runs of a report.
        parents: folder that each run is in, by the run's name.
    """
    groups: dict[str, list[Run]] = {}
    for run in runs:
        groups.setdefault(_group_key(run, parents[run.name]), []).append(run)
    merged, names = [], set[str]()
    for members in groups.values():
        by_seed = {run.seed: run for run in members if run.seed is not None}
        if len(members) == 1 or len(by_seed) < len(members):  # runs are grouped by seed only if every seed occurs once
            found = members
        else:
            stems = {_SEED.sub("", run.name).strip(",._-") or parents[run.name].name for run in members}
            found = [_mean_run(next(iter(stems)) if len(stems) == 1 else members[0].name, by_seed)]
        for run in found:
            names.add(name := _unused(run.name, names))
            merged.append(replace(run, name=name))
    return merged


def _group_key(run: Run, parent: Path) -> str:
    """Return a text that runs of one group share: their folder, their recipe and all options that change results."""
    if run.seed is None:
        return run.name  # a run without a known seed is in no group
    sections = {
        name: {key: value for key, value in section.items() if key not in _OF_MACHINE}
        for name, section in run.config.items()
        if isinstance(section, dict) and name != _REASONS
    }
    return json.dumps([str(parent), run.recipe, sections], sort_keys=True)


def _mean_run(name: str, runs: Mapping[int, Run]) -> Run:
    """Return a run whose values are the means over seeds; everything else is copied from the first seed."""
    ordered = dict(sorted(runs.items()))
    first = next(iter(ordered.values()))
    evaluations = {}
    for split in dict.fromkeys(split for run in ordered.values() for split in run.evaluations):
        found = {seed: run.evaluations[split] for seed, run in ordered.items() if split in run.evaluations}
        reports = {seed: evaluation.report for seed, evaluation in found.items()}
        some = next(iter(found.values()))
        evaluations[split] = replace(some, report=mean_report(reports), seeds=reports) if len(found) > 1 else some
    return replace(first, name=name, evaluations=evaluations)


def mean_report(reports: Mapping[int, RetrievalReport]) -> RetrievalReport:
    """Return the mean of reports on the same queries, query by query.

    Args:
        reports: report per seed, at least one.

    Raises:
        InputError: the reports are of different queries or tasks, or lack values per query.
    """
    named = {f"seed {seed}": report for seed, report in reports.items()}
    first = next(iter(reports.values()))
    check_same_task(named, next(iter(named)))
    metrics = [name for name in first.values if all(name in report.values for report in reports.values())]
    columns = [name for name in metrics if all(name in report.per_query.columns for report in reports.values())]
    tables = [report.per_query.select(columns).to_numpy() for report in reports.values()]
    rows = pl.DataFrame(np.mean(tables, axis=0), schema=dict.fromkeys(columns, pl.Float64))
    return RetrievalReport(
        {name: statistics.fmean(report.values[name] for report in reports.values()) for name in metrics},
        first.per_query.select("query").hstack(rows),
        {name: first.undefined[name] for name in metrics},
        first.settings | {"metrics": metrics, "seeds": list(reports)},
    )


def _by_task(kept: Mapping[str, Evaluation], *, several: bool) -> dict[str, Evaluation]:
    """Return evaluations by task, so that runs are compared on a task whatever their file names are."""
    tasks = {}
    for name, evaluation in kept.items():
        settings = evaluation.report.settings
        splits = [str(settings[side]) for side in ("split", "gallery_split") if side in settings]
        task = "/".join(splits) or (str(settings["protocol"]) if "printed" in settings else "") or name
        tasks[name] = f"{task} of {evaluation.dataset}" if several and evaluation.dataset else task
    found: dict[str, Evaluation] = {}
    for name in sorted(kept, key=lambda name: (tasks[name] != name, name)):
        task = tasks[name]  # if two evaluations have the same task, the second one adds its file's name
        found[f"{task} ({name})" if task in found else task] = kept[name]
    return found


def _read_folder(name: str, folder: Path) -> Run:
    latest: dict[str, tuple[int, Path]] = {}
    for path in sorted((folder / "reports").glob("*.json")):
        if match := _KEPT.fullmatch(path.name):
            found = (int(match["epoch"]), path)
            latest[match["split"]] = max(found, latest.get(match["split"], found))
    log, history = _numbers(_read_log(folder / "log.csv")), _read_history(folder / "evaluations.csv")
    if not latest and not log:
        raise InputError(
            f"{folder}: neither reports/SPLIT-epoch-N.json nor log.csv is in this folder. Pass a run folder of "
            "`hgld train`, a folder of several run folders, or a report that `hgld evaluate --out X.json` wrote."
        )
    evaluations = {}
    for split, (epoch, path) in sorted(latest.items()):
        report = read_report(path)
        evaluations[split] = Evaluation(report, epoch, *_read_embeddings(report, path, folder / "embeddings"))
    calibration = Calibration.load(folder / CALIBRATION) if (folder / CALIBRATION).is_file() else None
    file = folder / "config.json"  # a run that was copied in part may lack this file
    config = read_json(file, kind=dict, max_bytes=_MOST_CONFIG_BYTES) if file.is_file() else {}
    return Run(name, evaluations, log, history, config, calibration)


def _read_kept(name: str, path: Path) -> Run:
    report = read_report(path)
    kept = Evaluation(report, None, *_read_embeddings(report, path, path.parent))
    return Run(name, {"evaluation": kept}, config={"recipe": report.settings.get("recipe", "")})


# -- reports -----------------------------------------------------------------------------------------------------------


def read_report(path: Path) -> RetrievalReport:
    """Read a report that :meth:`hgld.evaluation.report.RetrievalReport.save_json` wrote.

    The function checks the settings that the page computes with; the page only shows all other settings.

    Raises:
        SchemaError: the file cannot be read, or the page cannot show one of its settings or metrics.
    """
    report = RetrievalReport.load_json(path)
    for setting, (check, expected) in _SETTINGS.items():
        if setting in report.settings and not check(report.settings[setting]):
            raise SchemaError(
                f"{path}: {setting} is {quoted(report.settings[setting])}; expected {expected}. The file was "
                "changed or damaged: evaluate again."
            )
    try:
        for metric in report.values:
            value_parts(metric)
    except ConfigError as error:
        raise SchemaError(f"{path}: {error}") from error
    return report


def _is_names(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(name, str) for name in value) and len(set(value)) == len(value)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


_SETTINGS = {
    "levels": (_is_names, "a list of different names, finest first"),
    "alpha": (_is_number, "a number"),
    "weights": (
        lambda value: value is None or (isinstance(value, list) and all(map(_is_number, value))),
        "null or a list of numbers",
    ),
}


# -- embeddings --------------------------------------------------------------------------------------------------------


def _read_embeddings(report: RetrievalReport, path: Path, folder: Path) -> tuple[Ranked | None, str]:
    """Return the embeddings that a report was made from, or the reason why they cannot be shown.

    The reading fails if embeddings or labels were written after the report, because tables and figures would contradict
    each other.
    """
    settings, files = report.settings, report.settings.get("files")
    if not isinstance(files, dict) or not {"embeddings", "labels"} <= set(files):
        if "checkpoint" in settings:
            return None, (
                "hgld evaluate --checkpoint keeps no embeddings (hgld embed writes them, and hgld evaluate "
                "--embeddings reports on the files)"
            )
        return None, f"{path.name} does not state its embedding files"
    if {"distractors", "whitening"} & set(files) or "query_expansion" in settings:
        return None, "the evaluation post-processed its embeddings or added distractors"
    roles = ("embeddings", "labels", "gallery_embeddings", "gallery_labels")
    named = [str(files[role]) for role in roles if role in files]
    if any(Path(name).name != name for name in named):
        raise InputError(f"{path} names {', '.join(named)}; expected names of files in {folder}, without folders.")
    if missing := [name for name in named if not (folder / name).is_file()]:
        return None, f"{', '.join(missing)} is not in {folder.name or folder}"
    places = [folder / name for name in named]
    ranked = _read_ranked(list(zip(places[::2], places[1::2], strict=True)), list(settings.get("levels", [])))
    query, gallery = ranked.query, ranked.other_side
    hint = (
        f"{path.name} is of another evaluation. Evaluate again (a run that is evaluating writes its report last), "
        "or move the embeddings away: the page is then made without them."
    )
    if len(report.per_query) not in (0, len(query.labels)):
        raise InputError(
            f"{path}: its table has values of {len(report.per_query)} queries; the evaluation has {len(query.labels)}. "
            "Evaluate again."
        )
    sides = [query.embeddings] if ranked.gallery is None else [query.embeddings, gallery.embeddings]
    for what, of, then, now in (
        ("labels", places[1::2], settings.get("labels_sha256"), labels_fingerprint(query.labels, gallery.labels)),
        ("embeddings", places[::2], settings.get("embeddings_sha256"), embeddings_fingerprint(*sides)),
    ):
        if then != now:
            named = " or ".join(map(str, of))
            raise InputError(f"{named}: the {what} differ from the evaluated {what}, or are in another order. {hint}")
    return ranked, ""


def _read_ranked(pairs: Sequence[tuple[Path, Path]], levels: list[str]) -> Ranked:
    vectors, tables = zip(*(read_labelled(*pair, levels) for pair in pairs), strict=True)
    coded = label_codes(tables, levels)
    sides = []
    for read, table, codes in zip(vectors, tables, coded, strict=True):
        keys = table[KEY] if KEY in table.columns else None
        values = read if isinstance(read, np.ndarray) else read.float().numpy()
        sides.append(Items(values, codes, None if keys is None else keys.cast(pl.String).to_list()))
    names = []
    for i, level in enumerate(levels):
        columns = [table[level] for table in tables]
        is_named = not any(column.dtype.is_integer() for column in columns)
        pairs_of_all = (zip(column, codes[:, i], strict=True) for column, codes in zip(columns, coded, strict=True))
        names.append({int(c): str(n) for pairs in pairs_of_all for n, c in pairs if c >= 0} if is_named else {})
    return Ranked(sides[0], sides[1] if len(sides) > 1 else None, tuple(names))


# -- logs --------------------------------------------------------------------------------------------------------------


def _read_log(path: Path) -> pl.DataFrame:
    """Read a table that training appends to, as text, without an unfinished last line."""
    if not path.is_file():
        return pl.DataFrame()
    if path.stat().st_size > _MOST_LOG_BYTES:
        raise InputError(f"{path}: {path.stat().st_size} bytes; expected a log of at most {_MOST_LOG_BYTES}.")
    data = path.read_bytes()
    data = data[: data.rfind(b"\n") + 1]
    if len(data) > _MOST_LOG_VALUES and (values := data.count(b",") + data.count(b"\n")) > _MOST_LOG_VALUES:
        raise InputError(f"{path}: {values:,} values; expected a log of at most {_MOST_LOG_VALUES:,}.")
    return read_csv(data, where=str(path)) if data else pl.DataFrame()


def _numbers(table: pl.DataFrame) -> dict[str, list[float]]:
    numbers = table.select(pl.all().cast(pl.Float64, strict=False).fill_null(math.nan))
    return numbers.to_dict(as_series=False)


def _read_history(path: Path) -> dict[str, dict[str, list[float]]]:
    table = _read_log(path)
    if table.is_empty():
        return {}
    if "split" not in table.columns:
        raise InputError(f"{path}: columns {', '.join(table.columns)}; expected step, epoch, split and the metrics.")
    history = {}
    for (split,), rows in table.sort("split", maintain_order=True).group_by("split", maintain_order=True):
        measured = [column for column in rows.columns if column != "split" and rows[column].count()]
        history[str(split)] = _numbers(rows.select(measured))
    return history
