"""Evaluation of embeddings that lie in files."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hgld.errors import ConfigError
from hgld.evaluation.embedding_files import check_same_items, label_codes, read_embeddings, read_labels
from hgld.evaluation.evaluate import DEFAULT_METRICS, Progress, evaluate
from hgld.evaluation.postprocess import Whitening, expand_queries
from hgld.evaluation.protocols.distractors import with_distractors
from hgld.evaluation.report import RetrievalReport
from hgld.metrics import Metric
from hgld.relevance import RelevanceKind


def evaluate_files(
    embeddings: str | Path,
    labels: str | Path,
    *,
    levels: Sequence[str],
    gallery_embeddings: str | Path | None = None,
    gallery_labels: str | Path | None = None,
    distractors: str | Path | None = None,
    metrics: Iterable[str | Metric] = DEFAULT_METRICS,
    alpha: float = 1.0,
    count_query: bool = True,
    relevance: RelevanceKind = "population",
    weights: Sequence[float] | None = None,
    normalize: bool = True,
    whitening: str | Path | None = None,
    query_expansion: tuple[float, int] | None = None,
    chunk_size: int | None = None,
    device: torch.device | str | None = None,
    part: range | None = None,
    progress: Progress | None = None,
) -> RetrievalReport:
    """Evaluate embeddings of files, as :func:`hgld.evaluate` does those in memory.

    Args:
        embeddings: npy, parquet or safetensors, see :func:`hgld.evaluation.embedding_files.read_embeddings`.
        labels: parquet or CSV with a column a level, one row an embedding, in the same order.
        levels: names of the columns, finest first.
        gallery_embeddings: the same of the gallery; None for leave-one-out.
        gallery_labels: the gallery's labels.
        distractors: embeddings of further gallery items that match nothing.
        metrics: names of metrics; a binary one without a level stands for every level.
        alpha: exponent of ``population`` and ``total`` relevance.
        count_query: see :func:`hgld.evaluate`, like the three that follow.
        relevance: what the hierarchical metrics go by.
        weights: of ``weighted_ap``.
        normalize: scores are cosine similarities; False takes plain dot products.
        whitening: file of a :class:`hgld.evaluation.postprocess.Whitening` to apply to all embeddings first.
        query_expansion: alpha and k of :func:`hgld.evaluation.postprocess.expand_queries`, after whitening; papers
            take (2, 10).
        chunk_size: queries at a time; None chooses from the free memory.
        device: where to rank; None is the CPU.
        part: consecutive queries to rank, see :func:`hgld.evaluate`; None: all.
        progress: called with a task, the number of units done and their total.

    Returns:
        the report; its settings name the files and the post-processing.

    Raises:
        InputError: files that cannot be read, do not belong together, or hold what :func:`hgld.evaluate` refuses.
        ConfigError: unknown metrics or options that contradict each other.
    """
    if (gallery_embeddings is None) != (gallery_labels is None):
        raise ConfigError("gallery embeddings and gallery labels come together: one of the two files is missing.")
    if not normalize and (whitening is not None or query_expansion is not None):
        raise ConfigError(
            "whitening and query expansion make unit vectors; leave them out, or let embeddings be normalised."
        )
    pairs = [(embeddings, labels)]
    if gallery_embeddings is not None and gallery_labels is not None:
        pairs.append((gallery_embeddings, gallery_labels))
    task = _read_task(pairs, levels, distractors)
    named = {"embeddings": embeddings, "labels": labels, "gallery_embeddings": gallery_embeddings}
    named |= {"gallery_labels": gallery_labels, "distractors": distractors, "whitening": whitening}
    stated: dict[str, Any] = {"files": {role: Path(path).name for role, path in named.items() if path is not None}}
    if whitening is not None:
        loaded = Whitening.load(whitening)
        task = task.whitened(loaded)
        stated["whitening"] = loaded.describe()
    query, gallery, known, own = task.sides(needs_gallery=query_expansion is not None)
    if own is not None:
        stated["protocol"] = "leave-one-out"
    if task.distractors is not None:
        stated["distractors"] = len(task.distractors)
    if gallery is not None and query_expansion is not None:
        power, k = query_expansion
        query = expand_queries(query, gallery, k=k, alpha=power, self_index=own, device=device, progress=progress)
        stated["query_expansion"] = {"alpha": power, "k": k}
    report = evaluate(
        query,
        task.labels,
        gallery,
        known,
        levels=levels,
        metrics=metrics,
        alpha=alpha,
        count_query=count_query,
        relevance=relevance,
        weights=weights,
        self_index=own,
        normalize=normalize,
        chunk_size=chunk_size,
        device=device,
        part=part,
        progress=progress,
    )
    return replace(report, settings=report.settings | stated)


@dataclass(frozen=True, eq=False)
class _Task:
    """What the files hold; without a gallery, the task is leave-one-out."""

    query: Tensor | np.ndarray
    labels: np.ndarray
    gallery: Tensor | np.ndarray | None
    gallery_labels: np.ndarray | None
    distractors: Tensor | np.ndarray | None

    def whitened(self, whitening: Whitening) -> "_Task":
        gallery = None if self.gallery is None else whitening.apply(self.gallery)
        distractors = None if self.distractors is None else whitening.apply(self.distractors)
        return replace(self, query=whitening.apply(self.query), gallery=gallery, distractors=distractors)

    def sides(
        self, *, needs_gallery: bool
    ) -> tuple[Tensor | np.ndarray, Tensor | np.ndarray | None, np.ndarray | None, np.ndarray | None]:
        """Queries, gallery, its labels, and the index of each query in it; three times None for plain leave-one-out."""
        gallery, known, own = self.gallery, self.gallery_labels, None
        if gallery is None and (needs_gallery or self.distractors is not None):
            gallery, known, own = self.query, self.labels, np.arange(len(self.query))
        if gallery is not None and known is not None and self.distractors is not None:
            gallery, known = with_distractors(gallery, known, self.distractors)
        return self.query, gallery, known, own


def _read_task(
    pairs: Sequence[tuple[str | Path, str | Path]], levels: Sequence[str], distractors: str | Path | None
) -> _Task:
    """Embeddings and labels of the queries and, if there are two pairs, of the gallery."""
    sides, tables = [], []
    for embeddings, labels in pairs:
        side, table = read_embeddings(embeddings), read_labels(labels, levels)
        check_same_items(side, table, (embeddings, labels))
        sides.append(side.values)
        tables.append(table)
    codes = label_codes(tables, levels)
    gallery, known = (sides[1], codes[1]) if len(sides) > 1 else (None, None)
    others = None if distractors is None else read_embeddings(distractors).values
    return _Task(sides[0], codes[0], gallery, known, others)
