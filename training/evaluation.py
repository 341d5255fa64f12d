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
from torch.nn.functional import normalize as unit_rows

from hgld.data.dataset import ShardDataset, open_dataset
from hgld.distributed import Processes, from_all
from hgld.errors import ConfigError, InputError, StorageError
from hgld.evaluation.evaluate import EvaluationOptions, Progress, evaluate_labelled
from hgld.evaluation.evaluate_files import evaluate_files
from hgld.evaluation.metric import Metric, resolve, split_top_k
from hgld.evaluation.report import RetrievalReport
from hgld.training.config import TrainConfig
from hgld.training.inference.classification import Classifier, targets_of, trained_classes
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
    ks, ranked = split_top_k(asked.metrics)
    classes: tuple[str, tuple[str, ...]] = ("", ())
    if ks and asked.evaluate_on:
        trained = open_dataset(place, asked.train_split)
        classes = trained_classes(config.loss, trained.hierarchy, trained.labels)
    levels = {}
    for entry in asked.evaluate_on:
        task = parse_task(entry, place)
        sides = [open_dataset(task.place, split) for split in task.splits]
        levels[entry] = sides[0].levels
        if ks:
            targets_of(sides[0], *classes)
    answers = [f"top-{k}" for k in ks]
    measured = {
        entry: answers + [str(metric) for metric in (resolve(ranked, names) if ranked or not ks else ())]
        for entry, names in levels.items()
    }
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
    classifier: Classifier | None = None,
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
        classifier: by which metrics ``top-k`` are measured, of the queries' items.
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
    ks, ranked = split_top_k(config.run.metrics)
    embedder = replace(Embedder.as_trained(model, config, processes), classifier=classifier)
    queries = {(task.place, task.query) for task in tasks.values()}
    embedded: dict[tuple[str, str], Embedded] = {}
    answers: dict[tuple[str, str], RetrievalReport | None] = {}
    reports = {}
    for entry, task in tasks.items():
        for split in task.splits:
            side = (task.place, split)
            if side not in embedded:
                asked = ks if side in queries else ()
                embedded[side], answers[side] = _embed(embedder, open_dataset(*side), asked, progress)
        sides = [embedded[task.place, split] for split in task.splits]
        report = _rank(sides, ranked, processes, progress) if ranked or not ks else None
        report = _joined(answers[task.place, task.query], report)
        if processes.is_main and report is not None:
            reports[entry] = replace(report, settings=report.settings | _stated(sides))
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
    sides: Sequence[Embedded], metrics: Sequence[str | Metric], processes: Processes, progress: Progress | None
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
    return report


def _stated(sides: Sequence[Embedded]) -> dict[str, Any]:
    """Return a report's settings about the splits of queries and gallery, and what could not be read of them."""
    query, *gallery = (side.dataset for side in sides)
    stated: dict[str, Any] = {"dataset": query.manifest.name, "split": query.split}
    stated |= {"gallery_split": gallery[0].split} if gallery else {}
    return stated | _unreadable(sides)


def _embed(
    embedder: Embedder, dataset: ShardDataset, ks: Sequence[int], progress: Progress | None
) -> tuple[Embedded, RetrievalReport | None]:
    """Embed a split as unit vectors, and with ``ks`` report on every process which classes the classifier finds.

    Raises:
        ConfigError: ``ks`` without a classifier, or of several scales.
        InputError: no item is of a class of the classifier, or what :meth:`Embedder.embed_readable` refuses.
    """
    if not ks:
        return embedder.embed_readable(dataset, progress), None
    if embedder.classifier is None:
        raise ConfigError(
            f"metric top-{ks[0]} needs a classifier, and there is none: the run's loss has no proxies or classifier, "
            "or its classes.json is missing."
        )
    targets = embedder.classifier.targets(dataset)  # what cannot be classified is refused before any work
    found = embedder.embed_readable(dataset, progress, unit=False)
    targets = targets if len(found.dataset) == len(dataset) else embedder.classifier.targets(found.dataset)
    answers = RetrievalReport.from_columns(
        embedder.classifier.top_k(found.vectors, targets, ks),
        {
            "protocol": "classification",
            "classifier": embedder.classifier.describe(),
            "levels": list(dataset.levels),
            "metrics": [f"top-{k}" for k in ks],
            "queries": len(found.dataset),
        },
    )
    return replace(found, vectors=unit_rows(found.vectors, dim=1)), answers


def _joined(answers: RetrievalReport | None, ranked: RetrievalReport | None) -> RetrievalReport | None:
    """Join what a classifier finds about the queries with a ranking of them; None if there is neither."""
    if answers is None or ranked is None:
        return ranked if answers is None else answers
    both = {"classifier": answers.settings["classifier"]}
    both["metrics"] = answers.settings["metrics"] + ranked.settings["metrics"]
    return RetrievalReport(
        values=answers.values | ranked.values,
        per_query=answers.per_query.join(ranked.per_query, on="query", maintain_order="left"),
        undefined=answers.undefined | ranked.undefined,
        settings=ranked.settings | both,
    )


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
    ks, ranked = split_top_k(options.metrics)
    query, *rest = (open_dataset(task.place, split, levels=levels) for split in task.splits)
    side, answers = _embed(embedder, query, ks, options.progress)
    if ks and not ranked:
        rest = []  # the gallery has nothing to say
    embedded = [side, *(embedder.embed_readable(dataset, options.progress) for dataset in rest)]
    report = answers
    if ranked or not ks:
        asked = replace(options, metrics=ranked)
        report = _joined(answers, _rank_files(embedder, embedded, asked, processing))
    if report is None or not embedder.processes.is_main:
        return None
    stated = {"dataset": query.manifest.name, "split": task.query, **_unreadable(embedded)}
    stated |= {"gallery_split": task.gallery} if rest else {}
    stated |= {} if embedder.gem_p is None else {"gem_p": embedder.gem_p}
    stated |= {"checkpoint": embedder.checkpoint, **embedder.view_facts([side.dataset for side in embedded])}
    return replace(report, settings=report.settings | stated)


def _rank_files(
    embedder: Embedder, embedded: Sequence[Embedded], options: EvaluationOptions, processing: Mapping[str, Any]
) -> RetrievalReport | None:
    """Rank embeddings with all that :func:`evaluate_files` offers; None on other processes than the main one."""
    levels = embedded[0].dataset.levels
    with TemporaryDirectory(prefix="hgld-") as folder:
        files = [Path(folder, f"{role}.npy") for role in ("query", "gallery")[: len(embedded)]]
        for file, side in zip(files, embedded, strict=True):
            write_embeddings(file, side.vectors, side.dataset)
        sides: dict[str, Any] = {"embeddings": files[0], "labels": labels_file(files[0])}
        if len(files) > 1:
            sides |= {"gallery_embeddings": files[1], "gallery_labels": labels_file(files[1])}

        def rank(part: range) -> RetrievalReport:
            here = replace(options, device=embedder.processes.device, part=part)
            return evaluate_files(**sides, levels=levels, options=here, **processing)

        report = ranked_together(rank, len(embedded[0].dataset), embedder.processes)
    if report is None:
        return None
    given = {role: name for role, name in report.settings["files"].items() if role not in sides}
    return replace(report, settings=report.settings | {"files": given})
