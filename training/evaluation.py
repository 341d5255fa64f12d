"""Evaluation of a model on splits of the run's dataset and of others: every process embeds and ranks its share."""

import hashlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from polars.exceptions import PolarsError

from hgld.data.dataset import open_dataset
from hgld.distributed import Processes, from_all
from hgld.errors import ConfigError, InputError, StorageError
from hgld.evaluation.evaluate import EvaluationOptions, Progress, evaluate_labelled
from hgld.evaluation.evaluate_files import evaluate_files
from hgld.evaluation.metric import resolve
from hgld.evaluation.report import RetrievalReport
from hgld.training.config import TrainConfig
from hgld.training.inference.embedder import Embedded, Embedder
from hgld.training.inference.embedding import labels_file, write_embeddings
from hgld.training.models.embedding_model import EmbeddingModel

EMBEDDINGS = "embeddings"
REPORTS = "reports"
_LONGEST_NAME = 48  # letters, of at most 4 bytes each, of the 255 bytes of a file's name
_MOST_NAMED = 20  # unreadable items in a report; the file beside the embeddings names them all


@dataclass(frozen=True)
class RetrievalTask:
    """A retrieval task: the split of the queries, and the split that they search in.

    Attributes:
        place: dataset directory or its address.
        query: split of the queries.
        gallery: split of the gallery; empty: every query searches in the rest of its own split.
    """

    place: str
    query: str
    gallery: str = ""

    @property
    def splits(self) -> tuple[str, ...]:
        """The splits that the task embeds."""
        return (self.query, self.gallery) if self.gallery else (self.query,)


def parse_task(entry: str, place: str) -> RetrievalTask:
    """Parse an entry of ``evaluate_on`` into its task.

    Args:
        entry: ``SPLIT``, ``QUERY/GALLERY``, or either behind ``DIR:`` for another dataset.
        place: the dataset of entries without a directory.

    Raises:
        ConfigError: the entry is none of these.
    """
    other, colon, splits = entry.rpartition(":")
    query, slash, gallery = splits.partition("/")
    if not query or (slash and not gallery) or (colon and not other) or "/" in gallery:
        raise ConfigError(f"evaluate_on: {entry!r}; expected SPLIT, QUERY/GALLERY, DIR:SPLIT or DIR:QUERY/GALLERY.")
    return RetrievalTask(other or place, query, gallery)


def check_evaluation(config: TrainConfig, place: str) -> tuple[str, ...]:
    """Refuse evaluations that cannot be made, before the epochs that they would follow.

    Args:
        config: of the run.
        place: the run's dataset directory, or its address.

    Returns:
        entry of ``evaluate_on`` and metric by which the best checkpoint is chosen; empty if nothing is evaluated.

    Raises:
        ConfigError: an entry or metric that is not understood, or a ``best_by`` that is not measured.
        InputError: a dataset that cannot be read, or has no such split.
    """
    asked = config.run
    levels = {}
    for entry in asked.evaluate_on:
        task = parse_task(entry, place)
        sides = [open_dataset(task.place, split) for split in task.splits]
        levels[entry] = sides[0].levels
    measured = {entry: [str(metric) for metric in resolve(asked.metrics, names)] for entry, names in levels.items()}
    if not measured:
        return ()
    first = asked.evaluate_on[0]
    for name in (asked.best_by, f"{asked.best_by}/{levels[first][0]}"):
        if name in measured[first]:
            return first, name
    raise ConfigError(
        f"best_by is {asked.best_by!r}; measured on {first} are {', '.join(measured[first])}. Name one of them."
    )


def evaluate_splits(
    model: EmbeddingModel,
    config: TrainConfig,
    place: str,
    processes: Processes,
    *,
    run: Path | None = None,
    progress: Progress | None = None,
) -> dict[str, RetrievalReport]:
    """Evaluate a model on all that ``evaluate_on`` names, at every level of the datasets.

    Items that cannot be read are left out; the reports' settings count and name them (``unreadable``).

    Args:
        model: on this process's device.
        config: of the run: the splits, the metrics, and how images are read.
        place: the run's dataset directory, or its address.
        processes: of the run; every one of them must call this.
        run: folder of the run, where the embeddings replace earlier ones (:func:`keep_embeddings`); None: not kept.
        progress: called with a task, the number of units done and their total.

    Returns:
        a report for every entry of ``evaluate_on``, in its order; empty on other processes than the main one.

    Raises:
        ConfigError: an entry or metric that is not understood.
        InputError: a dataset that cannot be read, or embeddings that are not finite.
        StorageError: the embeddings cannot be kept.
    """
    tasks = {entry: parse_task(entry, place) for entry in config.run.evaluate_on}
    embedder = Embedder.as_trained(model, config, processes)
    embedded: dict[tuple[str, str], Embedded] = {}
    reports = {}
    for entry, task in tasks.items():
        for split in task.splits:
            if (task.place, split) not in embedded:
                embedded[task.place, split] = embedder.embed_readable(open_dataset(task.place, split), progress)
        report = _rank([embedded[task.place, split] for split in task.splits], config.run.metrics, processes, progress)
        if report is not None:
            reports[entry] = report
    if processes.is_main and run is not None:
        names = _embedding_names(embedded, place)
        for side, name in names.items():
            keep_embeddings(run, name, embedded[side])
        for entry, task in tasks.items():
            files = _files([names[task.place, split] for split in task.splits])
            reports[entry] = replace(reports[entry], settings=reports[entry].settings | {"files": files})
    return reports


def _embedding_names(embedded: Mapping[tuple[str, str], Embedded], place: str) -> dict[tuple[str, str], str]:
    """Return file names for the embeddings of splits: the split, for another dataset with that one's name before it."""
    sides = {(split if where == place else f"{where}:{split}"): (where, split) for where, split in embedded}
    titles = {
        of: split if where == place else f"{embedded[where, split].dataset.manifest.name}-{split}"
        for of, (where, split) in sides.items()
    }
    return {sides[of]: name for of, name in file_names(titles).items()}


def _files(names: Sequence[str]) -> dict[str, str]:
    """Return a report's record of its files: embeddings and labels of the queries, and of a gallery of its own."""
    files = {}
    for role, name in zip(("", "gallery_"), names, strict=False):
        path = Path(f"{name}.npy")
        files |= {f"{role}embeddings": path.name, f"{role}labels": labels_file(path).name}
    return files


def file_names(titles: Mapping[str, str]) -> dict[str, str]:
    """Return a file name for each title: no two alike, and none that leads to another folder.

    Args:
        titles: by unique identifier; titles may repeat.

    Returns:
        by identifier the title's letters, digits and ``-_.``, with ``-`` for other characters; if that is long or
        repeats, its end and a digest of the identifier.
    """
    plain = {of: "".join(c if c.isalnum() or c in "-_." else "-" for c in title) for of, title in titles.items()}
    shared = Counter(plain.values())
    return {
        of: name if shared[name] == 1 and len(name) <= _LONGEST_NAME else f"{name[-_LONGEST_NAME:]}-{_digest(of)}"
        for of, name in plain.items()
    }


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()[:8]


def keep_embeddings(run: Path, name: str, embedded: Embedded) -> Path:
    """Keep the newest embeddings of a split for ``hgld report``: ``RUN/embeddings/{name}.npy`` and its labels.

    Args:
        run: the run's folder.
        name: the split, or ``{dataset}-{split}`` of another dataset, as :func:`file_names` has it.
        embedded: its embeddings, and what could not be read.

    Returns:
        the file of the embeddings.

    Raises:
        StorageError: it cannot be written.
    """
    path = run / EMBEDDINGS / f"{name}.npy"
    write_embeddings(path, embedded.vectors, embedded.dataset, embedded.faults)
    return path


def keep_reports(run: Path, epoch: int, reports: Mapping[str, RetrievalReport]) -> None:
    """Keep reports for ``hgld report``: ``RUN/reports/{entry}-epoch-{n}.json`` and their values a query.

    Args:
        run: the run's folder.
        epoch: epochs done.
        reports: by entry of ``evaluate_on``.

    Raises:
        StorageError: one cannot be written.
    """
    folder = run / REPORTS
    for entry, name in file_names({entry: entry for entry in reports}).items():
        path = folder / f"{name}-epoch-{epoch}.json"
        try:
            folder.mkdir(exist_ok=True)
            reports[entry].save_json(path)
        except (OSError, PolarsError) as error:
            reason = getattr(error, "strerror", None) or error
            raise StorageError(
                f"cannot write {path} ({reason}). The run's checkpoints are whole. Free space and run the same command "
                "again."
            ) from error


def _rank(
    sides: Sequence[Embedded], metrics: Sequence[str], processes: Processes, progress: Progress | None
) -> RetrievalReport | None:
    """Rank a split within itself, or queries against a gallery; None on other processes than the main one."""
    query, gallery = sides[0], sides[1] if len(sides) > 1 else None
    dataset = query.dataset

    def rank(part: range) -> RetrievalReport:
        return evaluate_labelled(
            (query.vectors, dataset.labels),
            None if gallery is None else (gallery.vectors, gallery.dataset.labels),
            levels=dataset.levels,
            options=EvaluationOptions(metrics=metrics, device=processes.device, part=part, progress=progress),
        )

    try:
        report = ranked_together(rank, len(dataset), processes)
    except InputError as error:
        raise InputError(f"{dataset!r}: {error}") from error
    if report is None:
        return None
    stated = {"dataset": dataset.manifest.name, "split": dataset.split}
    stated |= {} if gallery is None else {"gallery_split": gallery.dataset.split}
    return replace(report, settings=report.settings | stated | _unreadable(sides))


def ranked_together(
    rank: Callable[[range], RetrievalReport], num_queries: int, processes: Processes
) -> RetrievalReport | None:
    """Evaluate with the queries shared among the processes; a query's values do not depend on its share.

    Args:
        rank: makes the report of some consecutive queries (``part`` of :func:`hgld.evaluate`).
        num_queries: of all.
        processes: every one of them must call this.

    Returns:
        the report of all queries; None on other processes than the main one.
    """
    share = -(-num_queries // processes.count)
    own = range(num_queries)[processes.index * share : (processes.index + 1) * share]
    report = rank(own) if own else None
    if processes.count == 1:
        return report
    values = b"" if report is None else np.stack([report.per_query[name] for name in report.values], axis=1).tobytes()
    parts = from_all(values, processes)
    if report is None or not processes.is_main:
        return None
    table = np.frombuffer(b"".join(parts)).reshape(num_queries, len(report.values))
    return RetrievalReport.from_columns({n: table[:, c] for c, n in enumerate(report.values)}, report.settings)


def _unreadable(sides: Sequence[Embedded]) -> dict[str, Any]:
    """Return a report's settings about items that are left out of it: their number, and the first by name."""
    faults = [fault for side in sides for fault in side.faults]
    if not faults:
        return {}
    named = [f"{fault.where}: {fault.reason}" for fault in faults[:_MOST_NAMED]]
    return {"unreadable": {"items": len(faults), "first": named}}


def evaluate_trained(
    embedder: Embedder,
    task: RetrievalTask,
    *,
    levels: Sequence[str] | None = None,
    options: EvaluationOptions,
    **processing: Any,
) -> RetrievalReport | None:
    """Embed a task's splits and evaluate the embeddings, with all that :func:`hgld.evaluation.evaluate_files` offers.

    Args:
        embedder: the model; its processes embed and rank together.
        task: queries and gallery.
        levels: of the dataset, finest first; None: all.
        options: the metrics and how to rank; device and part are replaced by those of each process.
        **processing: of :func:`hgld.evaluation.evaluate_files.evaluate_files`: distractors, whitening, query_expansion.

    Returns:
        the report; None on other processes than the main one.

    Raises:
        InputError: a dataset that cannot be read, or files that ``evaluate_files`` refuses.
        ConfigError: unknown metrics, or options that contradict each other.
        StorageError: no room for temporary files.
    """
    datasets = [open_dataset(task.place, split, levels=levels) for split in task.splits]
    embedded = [embedder.embed_readable(dataset, options.progress) for dataset in datasets]
    with TemporaryDirectory(prefix="hgld-") as folder:
        files = [Path(folder, f"{role}.npy") for role in ("query", "gallery")[: len(datasets)]]
        for file, side in zip(files, embedded, strict=True):
            write_embeddings(file, side.vectors, side.dataset)
        sides: dict[str, Any] = {"embeddings": files[0], "labels": labels_file(files[0])}
        if task.gallery:
            sides |= {"gallery_embeddings": files[1], "gallery_labels": labels_file(files[1])}

        def rank(part: range) -> RetrievalReport:
            here = replace(options, device=embedder.processes.device, part=part)
            return evaluate_files(**sides, levels=datasets[0].levels, options=here, **processing)

        report = ranked_together(rank, len(embedded[0].dataset), embedder.processes)
    if report is None:
        return None
    given = {role: name for role, name in report.settings["files"].items() if role not in sides}
    stated = {"files": given, "dataset": datasets[0].manifest.name, "split": task.query, **_unreadable(embedded)}
    stated |= {"gallery_split": task.gallery} if task.gallery else {}
    stated |= {} if embedder.gem_p is None else {"gem_p": embedder.gem_p}
    stated |= {"checkpoint": embedder.checkpoint, **embedder.view_facts([side.dataset for side in embedded])}
    return replace(report, settings=report.settings | stated)
