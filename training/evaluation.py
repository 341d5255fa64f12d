"""Evaluation of a model on splits of a dataset, and on other datasets."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from torch import Tensor

from hgld.dataset import ShardDataset, open_dataset
from hgld.errors import ConfigError, InputError
from hgld.evaluate_files import evaluate_files
from hgld.evaluator import Progress, evaluate
from hgld.report import RetrievalReport
from training.config import TrainConfig
from training.distributed import Processes
from training.embedder import Embedder
from training.embedding import labels_file, write_embeddings
from training.models.embedding_model import EmbeddingModel

EMBEDDINGS = "embeddings"


@dataclass(frozen=True)
class RetrievalTask:
    """Whom the queries are and what they search in.

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
        """The splits that have to be embedded."""
        return (self.query, self.gallery) if self.gallery else (self.query,)


def parse_task(entry: str, place: str) -> RetrievalTask:
    """The task that an entry of ``evaluate_on`` names.

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

    All processes embed; the main one ranks.

    Args:
        model: on this process's device.
        config: of the run: what to evaluate on, the metrics, how images are read.
        place: the run's dataset directory, or its address.
        processes: of the run; every one of them must call this.
        run: folder of the run, where the embeddings are kept (:func:`keep_embeddings`) in place of earlier ones.
        progress: called with a task, the number of units done and their total.

    Returns:
        a report for every entry of ``evaluate_on``, in its order; empty on other processes than the main one.

    Raises:
        ConfigError: an entry or metric that is not understood.
        InputError: a dataset or item that cannot be read, or embeddings that are not finite.
        StorageError: the embeddings cannot be kept.
    """
    tasks = {entry: parse_task(entry, place) for entry in config.run.evaluate_on}
    embedder = Embedder.as_trained(model, config, processes)
    embedded: dict[tuple[str, str], tuple[ShardDataset, Tensor]] = {}
    reports = {}
    for entry, task in tasks.items():
        for split in task.splits:
            if (task.place, split) not in embedded:
                dataset = open_dataset(task.place, split)
                embedded[task.place, split] = dataset, embedder.embed_dataset(dataset, progress)
        if processes.is_main:
            sides = [embedded[task.place, split] for split in task.splits]
            reports[entry] = _rank(sides, config.run.metrics, processes, progress)
    if processes.is_main and run is not None:
        for (where, split), (dataset, embeddings) in embedded.items():
            name = split if where == place else f"{dataset.manifest.name}-{split}"
            keep_embeddings(run, name, embeddings, dataset)
    return reports


def keep_embeddings(run: Path, name: str, embeddings: Tensor, dataset: ShardDataset) -> Path:
    """Keep the newest embeddings of a split for ``hgld report``: ``RUN/embeddings/{name}.npy`` and its labels.

    Args:
        run: the run's folder.
        name: the split, or ``{dataset}-{split}`` of another dataset.
        embeddings: (N, D), in the order of the dataset.
        dataset: N items.

    Returns:
        the file of the embeddings.

    Raises:
        StorageError: it cannot be written.
    """
    path = run / EMBEDDINGS / f"{name}.npy"
    write_embeddings(path, embeddings, dataset)
    return path


def _rank(
    sides: Sequence[tuple[ShardDataset, Tensor]],
    metrics: Sequence[str],
    processes: Processes,
    progress: Progress | None,
) -> RetrievalReport:
    """The report of a split within itself, or of queries against a gallery."""
    (dataset, query), gallery = sides[0], sides[1] if len(sides) > 1 else None
    try:
        report = evaluate(
            query,
            dataset.labels,
            None if gallery is None else gallery[1],
            None if gallery is None else gallery[0].labels,
            levels=dataset.levels,
            metrics=metrics,
            device=processes.device,
            progress=progress,
        )
    except InputError as error:
        raise InputError(f"{dataset!r}: {error}") from error
    stated = {"dataset": dataset.manifest.name, "split": dataset.split}
    stated |= {} if gallery is None else {"gallery_split": gallery[0].split}
    return replace(report, settings=report.settings | stated)


def evaluate_trained(
    embedder: Embedder,
    task: RetrievalTask,
    *,
    levels: Sequence[str] | None = None,
    progress: Progress | None = None,
    **options: Any,
) -> RetrievalReport | None:
    """Embed a task's splits and evaluate the embeddings, with all that :func:`hgld.evaluate_files` offers.

    Args:
        embedder: whose processes embed together; the main one ranks.
        task: queries and gallery.
        levels: of the dataset, finest first; None: all.
        progress: called with a task, the number of units done and their total.
        options: of :func:`hgld.evaluate_files.evaluate_files`: metrics, whitening, query_expansion, ...

    Returns:
        the report; None on other processes than the main one.

    Raises:
        InputError: a dataset or item that cannot be read, or what that function refuses.
        ConfigError: unknown metrics, or options that contradict each other.
        StorageError: no room for temporary files.
    """
    datasets = [open_dataset(task.place, split, levels=levels) for split in task.splits]
    embedded = [embedder.embed_dataset(dataset, progress) for dataset in datasets]
    if not embedder.processes.is_main:
        return None
    with TemporaryDirectory(prefix="hgld-") as folder:
        files = [Path(folder, f"{role}.npy") for role in ("query", "gallery")[: len(datasets)]]
        for file, embeddings, dataset in zip(files, embedded, datasets, strict=True):
            write_embeddings(file, embeddings, dataset)
        sides: dict[str, Any] = {"embeddings": files[0], "labels": labels_file(files[0])}
        if task.gallery:
            sides |= {"gallery_embeddings": files[1], "gallery_labels": labels_file(files[1])}
        options = {"device": embedder.processes.device} | options
        report = evaluate_files(**sides, levels=datasets[0].levels, progress=progress, **options)
    given = {role: name for role, name in report.settings["files"].items() if role not in sides}
    stated = {"files": given, "dataset": datasets[0].manifest.name, "split": task.query}
    stated |= {"gallery_split": task.gallery} if task.gallery else {}
    stated |= {"checkpoint": embedder.checkpoint, "image_size": embedder.view.size, "scales": list(embedder.scales)}
    return replace(report, settings=report.settings | stated)
