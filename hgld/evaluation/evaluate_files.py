"""Evaluation of embeddings in files."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import polars as pl
from torch import Tensor

from hgld.data.dataset import open_dataset
from hgld.errors import ConfigError, InputError
from hgld.evaluation.embedding_files import (
    KEY,
    read_keyed,
    read_labelled,
)
from hgld.evaluation.metric import split_top_k
from hgld.evaluation.options import EvaluationOptions
from hgld.evaluation.protocols import protocol_of
from hgld.evaluation.protocols.benchmark import (
    Benchmark,
    EmbeddedSplit,
    asked_metrics,
    evaluate_protocol,
    filled_splits,
    open_benchmark,
)
from hgld.evaluation.protocols.by_labels import rank_by_labels
from hgld.evaluation.report import RetrievalReport
from hgld.labels import SIDES, label_codes
from hgld.tables import parquet_schema

_DEFAULTS = EvaluationOptions()


def evaluate_files(
    embeddings: str | Path,
    labels: str | Path,
    *,
    levels: Sequence[str],
    gallery_embeddings: str | Path | None = None,
    gallery_labels: str | Path | None = None,
    distractors: str | Path | None = None,
    whitening: str | Path | None = None,
    options: EvaluationOptions = _DEFAULTS,
    where: str = "",
) -> RetrievalReport:
    """Evaluate embeddings in files, as :func:`hgld.evaluate` does in memory.

    Args:
        embeddings: npy or safetensors file of (N, D) embeddings.
        labels: parquet or CSV with a column per level, one row per embedding, in the same order.
        levels: names of the columns, finest first.
        gallery_embeddings: npy or safetensors file of the gallery's embeddings; None for leave-one-out.
        gallery_labels: parquet or CSV file of the gallery's labels.
        distractors: file of embeddings of further gallery items that are relevant to no query.
        whitening: file of a :class:`hgld.evaluation.postprocess.Whitening` to apply to all embeddings first.
        options: metrics and ranking options.
        where: name of the data in messages; empty: the paths of embeddings and labels.

    Returns:
        the report; its settings list the files and the post-processing.

    Raises:
        InputError: a file cannot be read, files have different numbers of rows, or :func:`hgld.evaluate` rejects the
            data.
        ConfigError: a metric is unknown, or options contradict each other.
    """
    if (gallery_embeddings is None) != (gallery_labels is None):
        raise ConfigError("the file of gallery embeddings or gallery labels is missing; pass both, or neither.")
    pairs = [(embeddings, labels)]
    if gallery_embeddings is not None and gallery_labels is not None:
        pairs.append((gallery_embeddings, gallery_labels))
    vectors, tables = zip(*(read_labelled(*pair, levels) for pair in pairs), strict=True)
    report = evaluate_sides(
        list(zip(vectors, label_codes(tables, levels), strict=True)),
        levels=levels,
        distractors=distractors,
        whitening=whitening,
        options=options,
        where=where or ", ".join(str(part) for pair in pairs for part in pair),
    )
    named = {"embeddings": embeddings, "labels": labels, "gallery_embeddings": gallery_embeddings}
    named |= {"gallery_labels": gallery_labels}
    files = {role: Path(path).name for role, path in named.items() if path is not None}
    return replace(report, settings=report.settings | {"files": files | report.settings["files"]})


def evaluate_sides(
    sides: Sequence[tuple[Tensor | np.ndarray, np.ndarray]],
    *,
    levels: Sequence[str],
    distractors: str | Path | None = None,
    whitening: str | Path | None = None,
    options: EvaluationOptions = _DEFAULTS,
    where: str,
) -> RetrievalReport:
    """Evaluate embeddings at the levels with labels, with distractors and a whitening from files.

    Args:
        sides: embeddings (Q, D) and labels (Q, L) of the queries, then of the gallery. Without a gallery the evaluation
            is leave-one-out.
        levels: names of the L levels, finest first.
        distractors: file of embeddings of further gallery items that are relevant to no query.
        whitening: file of a whitening to apply to all embeddings first.
        options: metrics and ranking options.
        where: name of the data in messages.

    Returns:
        the report; its settings list the files and the post-processing.

    Raises:
        InputError: a file cannot be read, or :func:`hgld.evaluate` rejects the embeddings.
    """
    if not options.normalize and whitening is not None:
        raise ConfigError("whitening makes unit vectors, but normalize is off (--no-normalize). Omit one of them.")
    keys = pl.Series(dtype=pl.String)
    splits = {side: EmbeddedSplit(vectors, keys, labels) for side, (vectors, labels) in zip(SIDES, sides, strict=False)}
    benchmark = Benchmark(where, tuple(levels), splits)
    benchmark, stated = benchmark.processed(distractors=distractors, whitening=whitening, share=options.share)
    report = rank_by_labels(benchmark, benchmark["query"], benchmark.splits.get("gallery"), options)
    return replace(report, settings=report.settings | stated)


def evaluate_dataset_files(
    embeddings: Sequence[str | Path],
    place: str,
    protocol: str = "",
    *,
    labels: str | Path | None = None,
    metrics: Sequence[str] | None = None,
    options: EvaluationOptions = _DEFAULTS,
    distractors: str | Path | None = None,
    whitening: str | Path | None = None,
) -> RetrievalReport:
    """Evaluate files of embeddings of a dataset's items with the dataset's protocol.

    Args:
        embeddings: files ``X.npy``; the file ``X.labels.parquet`` in the same folder holds the items' keys.
        place: path or URL of the dataset with the labels, judgements and lists.
        protocol: name of a protocol; empty: the dataset's protocol.
        labels: table of keys, if there is one file of embeddings. Default: ``X.labels.parquet`` in its folder.
        metrics: names of metrics; None: the metrics of the protocol.
        options: options of ranking; the field ``metrics`` is ignored.
        distractors: file of embeddings that replace the dataset's distractors.
        whitening: file of a whitening to apply to all embeddings first.

    Returns:
        the report; its settings list the files and count the items without embeddings.

    Raises:
        InputError: a file cannot be read or has no keys, a split has no embedding, or no value is defined.
        ConfigError: the protocol is unknown, or it does not support a metric.
    """
    name, dataset = open_benchmark(place, protocol)
    entry = protocol_of(name)
    ks, _ = split_top_k(asked_metrics(name, entry, metrics, dataset.levels))
    if ks:
        raise ConfigError(
            f"{place}: the protocol {name} measures top-{ks[0]}, which needs a classifier. Pass --checkpoint (or "
            "--model) instead of --embeddings, or choose other --metrics."
        )
    tables, keys = read_keyed(embeddings, labels)
    places = pl.DataFrame({KEY: keys, "at": np.arange(len(keys))})
    splits, missing, rows = {}, {}, []
    for split in entry.wanted(filled_splits(dataset)):
        items = open_dataset(place, split)
        found = pl.DataFrame({KEY: items.keys, "item": np.arange(len(items))}).join(places, on=KEY).sort("item")
        if found.is_empty() and split not in entry.further:
            raise InputError(
                f"{', '.join(map(str, embeddings))}: no embedding of the split {split} of {place}, which the protocol "
                f"{name} needs. Embed the split too: hgld embed without --split embeds the whole dataset. If queries "
                "and gallery are in two files, pass --embeddings and --gallery-embeddings."
            )
        if len(found) < len(items):
            missing[split] = len(items) - len(found)
        if len(found):
            items = items.select(found["item"].to_list())
            rows.append(found["at"].to_numpy())
            splits[split] = EmbeddedSplit(
                _rows_at(tables, rows[-1]),
                items.keys,
                items.labels.numpy(),
                contents=partial(items.frame.get_column, "sha256"),
            )
    benchmark, stated = Benchmark.of(dataset, splits).processed(distractors=distractors, whitening=whitening)
    report = evaluate_protocol(name, benchmark, metrics=metrics, options=options)
    stated |= {"without_embeddings": missing} if missing else {}
    # A report page can read the files only if every split has the embeddings of one file, in the same order.
    sizes = [len(table) for table in tables]
    if [len(of_split) for of_split in rows] == sizes and np.array_equal(np.concatenate(rows), np.arange(len(keys))):
        stated["files"] |= _roles(embeddings, labels, dataset.levels)
    return replace(report, settings=report.settings | stated)


def _roles(embeddings: Sequence[str | Path], labels: str | Path | None, levels: Sequence[str]) -> dict[str, str]:
    """Return the names of the files with embeddings and labels, for a report's settings.

    The keys are ``embeddings``, ``labels``, ``gallery_embeddings`` and ``gallery_labels``: the options with which
    ``hgld evaluate`` reads the files again. The result is empty if a file of labels is missing or lacks a level.
    """
    given = {}
    for role, file in zip(("", "gallery_"), map(Path, embeddings), strict=False):
        beside = Path(labels) if labels is not None else file.with_suffix(".labels.parquet")
        if beside.suffix != ".parquet" or not beside.is_file() or not {*levels} <= {*parquet_schema(beside)}:
            return {}
        given |= {f"{role}embeddings": file.name, f"{role}labels": beside.name}
    return given


def _rows_at(tables: Sequence[np.ndarray], places: np.ndarray) -> np.ndarray:
    """Return rows of several tables, numbered across all tables; consecutive rows of one table are not copied.

    Args:
        tables: (N, D) each, usually memory-mapped.
        places: (n,) positions of the rows, from 0 over all tables.
    """
    begin, first, last = 0, int(places[0]), int(places[-1])
    for table in tables:
        if begin <= first and last < begin + len(table) and np.array_equal(places, np.arange(first, last + 1)):
            return table[first - begin : last - begin + 1]
        begin += len(table)
    return (tables[0] if len(tables) == 1 else np.concatenate(tables))[places]
