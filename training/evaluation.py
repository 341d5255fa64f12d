"""Evaluation of a model on splits of the run's dataset and other datasets; every process embeds and ranks its share."""

import hashlib
import unicodedata
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from hgld.data.dataset import ShardDataset, open_dataset
from hgld.distributed import Processes, wait_for_all
from hgld.errors import ConfigError, storage_errors
from hgld.evaluation.evaluate import refuse_undefined, refuse_without_positives
from hgld.evaluation.evaluate_files import evaluate_sides
from hgld.evaluation.metric import resolve, split_top_k
from hgld.evaluation.options import DEFAULT_METRICS, EvaluationOptions, Progress
from hgld.evaluation.protocols import at_finest, protocol_of
from hgld.evaluation.protocols.benchmark import (
    Benchmark,
    EmbeddedSplit,
    asked_metrics,
    evaluate_protocol,
    filled_splits,
    open_benchmark,
)
from hgld.evaluation.protocols.by_labels import AVERAGE
from hgld.evaluation.report import RetrievalReport
from hgld.evaluation.row_table import Sharing, shared_folder
from hgld.evaluation.trained_on import TRAINED_ON
from hgld.tables import POLARS_FAULTS

from .checkpoint import checkpoint_step
from .config import TrainConfig, is_validation
from .inference.classification import Classifier, targets_of, trained_classes
from .inference.embedder import Embedded, Embedder
from .inference.embedding import labels_file, write_embeddings
from .log import RESUME_HINT
from .models.embedding_model import EmbeddingModel
from .seen import Seen

_T = TypeVar("_T")

EMBEDDINGS = "embeddings"
ROWS = ".rows"  # folder of a run, in which several processes keep the embeddings of an evaluation
REPORTS = "reports"
VAL = "val"
PROTOCOL = "protocol"  # entry of --evaluate-on that means the dataset's own protocol
_LONGEST_NAME = 48  # maximum letters of a file name: each takes at most 4 bytes, and a name may have 255 bytes
_MOST_NAMED = 20  # maximum number of unreadable items in a report; the file next to the embeddings lists all


@dataclass(frozen=True)
class RetrievalTask:
    """A retrieval task: the split of the queries and the split that they search, or a protocol.

    Attributes:
        place: dataset directory or its URL.
        query: split of the queries; or ``protocol`` for the dataset's own protocol, ``protocol=NAME`` for another
            protocol.
        gallery: split of the gallery; empty: every query searches all other items of its split.
    """

    place: str
    query: str
    gallery: str = ""

    @property
    def by_protocol(self) -> bool:
        """True if a protocol defines queries and gallery."""
        return self.query.partition("=")[0] == PROTOCOL

    @property
    def protocol(self) -> str:
        """Name of the protocol; empty: the dataset's own protocol."""
        return self.query.partition("=")[2] if self.by_protocol else ""

    @property
    def splits(self) -> tuple[str, ...]:
        """The splits that the task embeds; empty if a protocol defines them."""
        named = (self.query, self.gallery) if self.gallery else (self.query,)
        return () if self.by_protocol else named


def parse_task(entry: str, place: str) -> RetrievalTask:
    """Parse an entry of ``evaluate_on`` into its task.

    Args:
        entry: splits or protocol to evaluate: ``SPLIT``, ``QUERY/GALLERY``, ``protocol`` or ``protocol=NAME``. The
            prefix ``DIR:`` names another dataset.
        place: the dataset of entries without a directory.

    Raises:
        ConfigError: the entry has another form.
    """
    other, colon, splits = entry.rpartition(":")
    query, slash, gallery = splits.partition("/")
    if not query or (slash and not gallery) or (colon and not other) or "/" in gallery:
        raise ConfigError(
            f"evaluate_on: {entry!r}; expected SPLIT, QUERY/GALLERY, {PROTOCOL} or {PROTOCOL}=NAME, or one of these "
            "after DIR:."
        )
    return RetrievalTask(other or place, query, gallery)


def check_evaluation(config: TrainConfig, place: str) -> tuple[TrainConfig, tuple[str, ...]]:
    """Check before the first epoch that all evaluations are possible.

    Checkpoints are chosen on the first entry of ``evaluate_on`` that has only validation splits
    (:func:`hgld.training.config.is_validation`). If there is none and the dataset has a split ``val``, ``val`` is
    evaluated too. With ``select_on_test``, checkpoints are chosen on the first entry, a test split.

    Args:
        config: options of the run.
        place: the run's dataset directory, or its URL.

    Returns:
        the config with all entries to evaluate, and a pair: the entry of ``evaluate_on`` and the metric that choose the
        best checkpoint, empty if no checkpoint is chosen.

    Raises:
        ConfigError: an entry or metric is invalid, ``monitor`` is not measured, or ``select_on_test`` has no effect.
        InputError: a dataset cannot be read, or does not have the split.
    """
    asked = config.run
    first = asked.evaluate_on[0] if asked.evaluate_on else "nothing"
    if asked.select_on_test and (not asked.evaluate_on or is_validation(first)):
        raise ConfigError(
            f"--select-on-test has no effect: the first entry of evaluate_on is {first}, not a test split. Omit it."
        )
    if not asked.evaluate_on:
        return config, ()
    chosen = first if asked.select_on_test else next(filter(is_validation, asked.evaluate_on), "")
    if not chosen and not split_top_k(asked.metrics)[0] and VAL in filled_splits(open_dataset(place)):
        chosen, asked = VAL, replace(asked, evaluate_on=(*asked.evaluate_on, VAL))

    @cache
    def classes() -> tuple[str, tuple[str, ...]]:
        trained = open_dataset(place, asked.train_split)
        return trained_classes(config.loss, trained.hierarchy, trained.labels)

    known = {e: _metric_names(e, parse_task(e, place), asked.metrics, classes) for e in asked.evaluate_on}
    where = chosen or first
    finest, measured = known[where]
    monitor, kind = asked.monitor, asked.monitor.partition("/")[0]
    wanted = [monitor, f"{monitor}/{AVERAGE}", f"{monitor}/{finest}"]
    # If val lacks the level of the metric but another entry has it, the metric is measured at val's finest level.
    if chosen == VAL and any({*wanted[:2]} & {*names} for _, names in known.values()):
        wanted.append(f"{kind}/{finest}")
    for name in wanted:
        if name in measured:
            return replace(config, run=asked), (chosen, name) if chosen else ()
    raise ConfigError(
        f"monitor is {monitor!r}, which is not measured on {where}. Choose one of: {', '.join(measured)}."
    )


def _metric_names(
    entry: str, task: RetrievalTask, metrics: Sequence[str], classes: Callable[[], tuple[str, tuple[str, ...]]]
) -> tuple[str, list[str]]:
    """Return the finest level of a task, and the names of the values that its evaluation will measure.

    Args:
        entry: entry of ``evaluate_on``.
        task: retrieval task of the entry.
        metrics: metrics of the run, for tasks without a protocol.
        classes: function that returns level and names of the classes of the run's classifier.
    """
    names: list[str] = []
    if task.by_protocol:
        name, dataset = open_benchmark(task.place, task.protocol)
        protocol = protocol_of(name)
        ks, _ = split_top_k(asked_metrics(name, protocol, None, dataset.levels))
        names += at_finest(protocol.printed, dataset.levels)
        sides = [open_dataset(task.place, protocol.splits[0])]
    else:
        sides = [open_dataset(task.place, split) for split in task.splits]
        ks, ranked = split_top_k(metrics)
        if ranked or not ks:
            refuse_without_positives(*_labels_of(sides), f"evaluate_on {entry}")
            names += map(str, resolve(ranked, sides[0].levels))
    if ks:
        targets_of(sides[0], *classes())
    return sides[0].levels[0], list(dict.fromkeys([*(f"top-{k}" for k in ks), *names]))


def _labels_of(sides: Sequence[ShardDataset]) -> tuple[np.ndarray, np.ndarray | None]:
    query, *gallery = (side.labels.numpy() for side in sides)
    return query, gallery[0] if gallery else None


# -- evaluation of a task, for runs and for hgld evaluate --


@dataclass(frozen=True, eq=False)
class SplitEmbedder:
    """Embedder that embeds each split only once for all tasks; every process must request the same splits.

    Attributes:
        embedder: the model; its processes embed together.
        progress: function called with a task, the number of units done and the total number.
        levels: levels of the datasets, finest first; None: all levels.
        raw: whether to embed all splits without normalisation, because a classifier may read them.
        found: the embeddings computed so far, and whether they are raw, keyed by dataset and split.
        units: the unit rows of raw embeddings.
    """

    embedder: Embedder
    progress: Progress | None = None
    levels: Sequence[str] | None = None
    raw: bool = False
    found: dict[tuple[str, str], tuple[Embedded, bool]] = field(default_factory=dict)
    units: dict[tuple[str, str], Embedded] = field(default_factory=dict)

    def embed(self, place: str, split: str, ks: Sequence[int] = ()) -> tuple[Embedded, RetrievalReport | None]:
        """Return a split's unit embeddings and, with ``ks``, a report on the classifier's top-k predictions.

        Raises:
            ConfigError: ``ks`` is given without a classifier, or with several scales.
            InputError: no item has a class of the classifier, or :meth:`Embedder.embed_readable` raises an error.
        """
        dataset, raw = open_dataset(place, split, levels=self.levels), self.raw or bool(ks)
        classifier = self.embedder.classifier_for(dataset) if ks else None
        if classifier is not None:  # if no item has a class of the classifier, fail before any work
            targets_of(dataset, classifier.level, classifier.names)
        if (place, split) not in self.found or (raw and not self.found[place, split][1]):
            self.found[place, split] = self.embedder.embed_readable(dataset, self.progress, unit=not raw), raw
        embedded, raw = self.found[place, split]
        if raw and (place, split) not in self.units:
            self.units[place, split] = self.embedder.unit(embedded)
        unit = self.units[place, split] if raw else embedded
        if classifier is None:
            return unit, None
        settings = {
            "protocol": "classification",
            "classifier": {"level": classifier.level, "classes": len(classifier.names)},
            "queries": len(embedded.dataset),
            "levels": list(dataset.levels),
            "metrics": [f"top-{k}" for k in ks],
        }
        targets = targets_of(embedded.dataset, classifier.level, classifier.names)
        return unit, RetrievalReport.from_columns(classifier.top_k(embedded.vectors, targets, ks), settings)


def evaluate_task(
    splits: SplitEmbedder,
    task: RetrievalTask,
    *,
    options: EvaluationOptions,
    distractors: str | Path | None = None,
    whitening: str | Path | None = None,
) -> RetrievalReport:
    """Embed a task's splits and evaluate them: at every level and with the classifier, or with a protocol.

    Args:
        splits: embedder of the splits; its processes also share the ranking.
        task: queries and gallery, or a protocol.
        options: options of the metrics and the ranking; the embedder's device and processes replace ``device`` and
            ``share``. With a protocol, the default metrics mean the protocol's own metrics.
        distractors: file of embeddings of further gallery items that match nothing; they replace the distractors of a
            protocol's dataset.
        whitening: file of a whitening to apply before the evaluation.

    Returns:
        the report, on every process; its settings count and list unreadable items (``unreadable``).

    Raises:
        InputError: a dataset or file cannot be read or lacks what a protocol needs, embeddings are not finite, or no
            value is defined.
        ConfigError: the protocol or a metric is unknown, or options contradict each other.
    """
    processes = splits.embedder.processes
    share = None if processes.count == 1 else Sharing(processes, splits.embedder.folder)
    options = replace(options, device=processes.device, share=share)
    evaluate = _evaluate_by_protocol if task.by_protocol else _evaluate_splits
    report, sides, stated = evaluate(splits, task, options, {"distractors": distractors, "whitening": whitening})
    wait_for_all(processes)  # the main process may remove the embeddings now
    return _add_settings(report, stated | _embedding_settings(splits.embedder, sides))


def _evaluate_splits(
    splits: SplitEmbedder, task: RetrievalTask, options: EvaluationOptions, files: dict[str, Any]
) -> tuple[RetrievalReport, list[Embedded], dict[str, Any]]:
    """Evaluate queries against a gallery; return the report, the embeddings of both splits, and further settings."""
    ks, ranked = split_top_k(options.metrics)
    datasets = [open_dataset(task.place, split, levels=splits.levels) for split in task.splits]
    is_ranked = bool(ranked) or not ks
    if is_ranked:  # if no query has a positive, fail before any work
        refuse_without_positives(*_labels_of(datasets), repr(datasets[0]))
    else:
        _refuse_unread(files | {"query_expansion": options.query_expansion})
    query, answers = splits.embed(task.place, task.query, ks)
    sides = [query, *(splits.embed(task.place, split)[0] for split in task.splits[1:] if is_ranked)]
    ranking = None
    if is_ranked:
        pairs = [(side.vectors, side.dataset.labels.numpy()) for side in sides]
        options = replace(options, metrics=ranked)
        facts: dict[str, Any] = {"levels": query.dataset.levels, "where": repr(query.dataset), "options": options}
        ranking = evaluate_sides(pairs, **facts, **files)
    stated = {"dataset": query.dataset.manifest.name, "split": task.query}
    stated |= {"gallery_split": task.gallery} if len(sides) > 1 else {}
    return _join_reports(answers, ranking), sides, stated


def _evaluate_by_protocol(
    splits: SplitEmbedder, task: RetrievalTask, options: EvaluationOptions, files: dict[str, Any]
) -> tuple[RetrievalReport, list[Embedded], dict[str, Any]]:
    """Evaluate with a protocol; return the report, the embedded splits, and further settings for the report."""
    name, dataset = open_benchmark(task.place, task.protocol)
    protocol = protocol_of(name)
    metrics = None if options.metrics is DEFAULT_METRICS else tuple(options.metrics)
    ks, ranked = split_top_k(asked_metrics(name, protocol, metrics, dataset.levels))
    is_ranked = bool(ranked) or not ks
    if not is_ranked:
        _refuse_unread(files)
    sides: dict[str, Embedded] = {}
    ranking, answers, stated = None, None, dict[str, Any]()
    for split in protocol.wanted(filled_splits(dataset)):
        sides[split], found = splits.embed(task.place, split, ks if split == protocol.splits[0] else ())
        answers = answers or found
    if is_ranked:
        embedded = {}
        for split, side in sides.items():
            part, labels = side.dataset, side.dataset.labels.numpy()
            embedded[split] = EmbeddedSplit(
                side.vectors, part.keys, labels, contents=partial(part.frame.get_column, "sha256")
            )
        benchmark, stated = Benchmark.of(dataset, embedded).processed(**files, share=options.share)
        ranking = evaluate_protocol(name, benchmark, metrics=ranked or None, options=options)
    report = _join_reports(answers, ranking)
    refuse_undefined(report, f"dataset {dataset.manifest.name}, protocol {name}")
    printed = [value for value in at_finest(protocol.printed, dataset.levels) if value in report.values]
    stated |= {"protocol": name, "dataset": dataset.manifest.name, "printed": printed}
    return report, list(sides.values()), stated


def _embedding_settings(embedder: Embedder, embedded: Sequence[Embedded]) -> dict[str, Any]:
    """Return a report's settings about the embedding model, its view of images, and unreadable images."""
    stated = embedder.view_facts([side.dataset for side in embedded])
    if (network := embedder.network) is not None:
        stated |= {"model": network.name, "model_weights": network.weights, "pooling": network.pooling or None}
    else:
        stated |= {name: getattr(embedder, name) or None for name in ("checkpoint", "selection", "recipe")}
    stated["gem_p"] = embedder.gem_p
    if faults := [f"{fault.where}: {fault.reason}" for side in embedded for fault in side.faults]:
        stated["unreadable"] = {"items": len(faults), "first": faults[:_MOST_NAMED]}
    return {name: value for name, value in stated.items() if value is not None}


def _refuse_unread(processing: Mapping[str, Any]) -> None:
    """Raise an error for options that only a ranking uses."""
    if unread := [name for name, value in processing.items() if value is not None]:
        raise ConfigError(
            f"{', '.join(unread)}: these affect only a ranking, but top-k does not rank; omit them, or add a "
            "ranking metric. Whitening does not change a classifier's predictions."
        )


def _join_reports(answers: RetrievalReport | None, ranked: RetrievalReport | None) -> RetrievalReport:
    """Join the reports of classifier and ranking on the same queries; one of the reports may be None."""
    if answers is None or ranked is None:
        report = ranked if answers is None else answers
        assert report is not None
        return report
    both = {"classifier": answers.settings["classifier"]}
    both["metrics"] = answers.settings["metrics"] + ranked.settings["metrics"]
    return RetrievalReport(
        values=answers.values | ranked.values,
        per_query=answers.per_query.join(ranked.per_query, on="query", maintain_order="left"),
        undefined=answers.undefined | ranked.undefined,
        settings=ranked.settings | both,
    )


def _add_settings(report: RetrievalReport, facts: dict[str, Any]) -> RetrievalReport:
    """Return a report with further settings."""
    return replace(report, settings=report.settings | facts)


# -- evaluations after the epochs of a run --


def evaluate_splits(
    model: EmbeddingModel,
    config: TrainConfig,
    place: str,
    processes: Processes,
    *,
    classifier: Classifier | None = None,
    run: Path | None = None,
    rows: Path | None = None,
) -> dict[str, RetrievalReport]:
    """Evaluate a model on all entries of ``evaluate_on``, at every level of the datasets.

    Args:
        model: model on this process's device.
        config: config of the run, with the splits, the metrics, and how images are read.
        place: the run's dataset directory, or its URL.
        processes: processes of the run; every process must call this.
        classifier: classifier that the metrics ``top-k`` evaluate on the queries.
        run: folder of the run, in which the embeddings replace earlier embeddings; None: do not write embeddings.
        rows: temporary folder for the embeddings of several processes, which all of them share; None: a new folder
            in TMPDIR.

    Returns:
        a report for every entry of ``evaluate_on``, in order; empty on all processes but the main process.

    Raises:
        ConfigError: an entry or metric is invalid.
        InputError: a dataset cannot be read, or embeddings are not finite.
        StorageError: the embeddings cannot be written.
    """
    tasks = {entry: parse_task(entry, place) for entry in config.run.evaluate_on}
    reports = {}
    with shared_folder(processes, rows) as folder:
        embedder = replace(Embedder.as_trained(model, config, processes), classifier=classifier, folder=folder)
        splits = SplitEmbedder(embedder, raw=bool(split_top_k(config.run.metrics)[0]))
        for entry, task in tasks.items():
            metrics = DEFAULT_METRICS if task.by_protocol else config.run.metrics
            reports[entry] = evaluate_task(splits, task, options=EvaluationOptions(metrics=metrics))
        if not processes.is_main:
            return {}
        return reports if run is None else _keep_splits(run, place, splits, tasks, reports)


def _keep_splits(
    run: Path,
    place: str,
    splits: SplitEmbedder,
    tasks: Mapping[str, RetrievalTask],
    reports: Mapping[str, RetrievalReport],
) -> dict[str, RetrievalReport]:
    """Write the embeddings of all splits; add to the reports their file names, and which queries were trained on."""
    seen, facts, sides, titles = Seen.load(run), dict[str, Any](), {}, {}
    for entry, task in tasks.items():
        queries, ranked = (task.query,), task.splits
        if task.by_protocol:
            protocol = protocol_of(reports[entry].settings["protocol"])
            queries, ranked = protocol.queries, protocol.ranked_by_labels(reports[entry].settings)
        sides[entry] = [(task.place, split) for split in ranked]
        for side in sides[entry]:
            name = splits.found[side][0].dataset.manifest.name
            titles[side] = side[1] if task.place == place else f"{name}-{side[1]}"
        facts[entry] = {}
        if seen is not None and task.place != place:  # another dataset may contain training images of the run
            trained_on = seen.facts([splits.found[task.place, split][0].dataset for split in queries])
            facts[entry] = {TRAINED_ON: trained_on} if trained_on else {}
    written = {side: _keep_embeddings(run, name, splits.embed(*side)[0]) for side, name in file_names(titles).items()}
    for entry in tasks:
        files = {}
        for role, side in zip(("", "gallery_"), sides[entry], strict=False):
            files |= {f"{role}{kind}": name for kind, name in written[side].items()}
        facts[entry] |= {"files": files} if files else {}
    return {entry: _add_settings(report, facts[entry]) for entry, report in reports.items()}


def _keep_embeddings(run: Path, name: str, split: Embedded) -> dict[str, str]:
    """Write a split's embeddings into the run's folder; return the names of the embeddings file and the labels file."""
    path = run / EMBEDDINGS / f"{name}.npy"
    write_embeddings(path, split.vectors, split.dataset, split.faults, made=split.file)
    return {"embeddings": path.name, "labels": labels_file(path).name}


def file_names(titles: Mapping[_T, str]) -> dict[_T, str]:
    """Return a safe file name for each title; the names are distinct for disks that ignore case, too.

    Args:
        titles: titles by unique identifier; titles may repeat.

    Returns:
        per identifier, the title with ``-`` for characters other than letters, digits and ``-_.``; if that name is too
        long or not unique, the end of the name and a digest of the identifier.
    """
    plain = {of: "".join(c if c.isalnum() or c in "-_." else "-" for c in title) for of, title in titles.items()}
    folded = {of: unicodedata.normalize("NFC", name).casefold() for of, name in plain.items()}
    shared, names = Counter(folded.values()), dict(plain)
    for of, name in plain.items():
        if shared[folded[of]] > 1 or len(name) > _LONGEST_NAME:
            digest = hashlib.sha256(str(of).encode("utf-8", "surrogateescape")).hexdigest()
            names[of] = f"{name[-_LONGEST_NAME:]}-{digest[:8]}"
    return names


def keep_reports(run: Path, epoch: int, reports: Mapping[str, RetrievalReport]) -> None:
    """Write reports for ``hgld report``: ``RUN/reports/{entry}-epoch-{n}.json`` and their values per query.

    Args:
        run: the run's folder.
        epoch: number of epochs done.
        reports: reports by entry of ``evaluate_on``.

    Raises:
        StorageError: a report cannot be written.
    """
    folder = run / REPORTS
    for entry, name in file_names({entry: entry for entry in reports}).items():
        path = folder / f"{name}-epoch-{epoch}.json"
        with storage_errors(f"write {path}", RESUME_HINT, *POLARS_FAULTS):
            folder.mkdir(exist_ok=True)
            reports[entry].save_json(path)


def keep_evaluation(
    run: Path, config: TrainConfig, splits: SplitEmbedder, task: RetrievalTask, report: RetrievalReport
) -> bool:
    """Write the report of a split and its embeddings into the run's folder, for ``hgld report RUN``.

    Args:
        run: the run's folder.
        config: config of the run.
        splits: embedder that embedded the split with the run's model.
        task: one split; if the run itself evaluates that split, nothing is written.
        report: the report of the task.

    Returns:
        True if the report was written.

    Raises:
        StorageError: a file cannot be written.
    """
    if task.query in config.run.evaluate_on:
        return False
    side = splits.embed(task.place, task.query)[0]
    name = file_names({task: f"{side.dataset.manifest.name}-{task.query}"})[task]
    files = _keep_embeddings(run, name, side)
    epoch = checkpoint_step(Path(splits.embedder.checkpoint)) // max(1, config.batch.steps_per_epoch)
    keep_reports(run, epoch, {name: _add_settings(report, {"files": files})})
    return True
