"""Evaluation of embeddings in files."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from hgld.errors import ConfigError
from hgld.evaluation.embedding_files import check_same_items, label_codes, read_embeddings, read_labels
from hgld.evaluation.evaluate import EvaluationOptions, evaluate_labelled
from hgld.evaluation.postprocess import Whitening, expand_queries
from hgld.evaluation.protocols.distractors import with_distractors
from hgld.evaluation.report import RetrievalReport

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
    query_expansion: tuple[float, int] | None = None,
    options: EvaluationOptions = _DEFAULTS,
) -> RetrievalReport:
    """Evaluate embeddings in files, as :func:`hgld.evaluate` does in memory.

    Args:
        embeddings: npy, parquet or safetensors, see :func:`hgld.evaluation.embedding_files.read_embeddings`.
        labels: parquet or CSV with a column a level, one row an embedding, in the same order.
        levels: names of the columns, finest first.
        gallery_embeddings: the same of the gallery; None for leave-one-out.
        gallery_labels: the gallery's labels.
        distractors: embeddings of further gallery items that match nothing.
        whitening: file of a :class:`hgld.evaluation.postprocess.Whitening` to apply to all embeddings first.
        query_expansion: alpha and k of :func:`hgld.evaluation.postprocess.expand_queries`, after whitening; papers
            take (2, 10).
        options: the metrics, and how to rank.

    Returns:
        the report; its settings name the files and the post-processing.

    Raises:
        InputError: files that cannot be read, do not belong together, or hold what :func:`hgld.evaluate` refuses.
        ConfigError: unknown metrics or options that contradict each other.
    """
    if (gallery_embeddings is None) != (gallery_labels is None):
        raise ConfigError("gallery embeddings and gallery labels come together: one of the two files is missing.")
    if not options.normalize and (whitening is not None or query_expansion is not None):
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
    gallery, self_index = task.ranked_against(needs_gallery=query_expansion is not None)
    if self_index is not None:
        stated["protocol"] = "leave-one-out"
    if task.distractors is not None:
        stated["distractors"] = len(task.distractors)
    query = task.query
    if gallery is not None and query_expansion is not None:
        power, k = query_expansion
        place = {"device": options.device, "progress": options.progress}
        query = expand_queries(query, gallery[0], k=k, alpha=power, self_index=self_index, **place)
        stated["query_expansion"] = {"alpha": power, "k": k}
    report = evaluate_labelled((query, task.labels), gallery, levels=levels, self_index=self_index, options=options)
    return replace(report, settings=report.settings | stated)


@dataclass(frozen=True, eq=False)
class _Task:
    """The contents of the files; without a gallery, the task is leave-one-out."""

    query: Tensor | np.ndarray
    labels: np.ndarray
    gallery: Tensor | np.ndarray | None
    gallery_labels: np.ndarray | None
    distractors: Tensor | np.ndarray | None

    def whitened(self, whitening: Whitening) -> "_Task":
        gallery = None if self.gallery is None else whitening.apply(self.gallery)
        distractors = None if self.distractors is None else whitening.apply(self.distractors)
        return replace(self, query=whitening.apply(self.query), gallery=gallery, distractors=distractors)

    def ranked_against(
        self, *, needs_gallery: bool
    ) -> tuple[tuple[Tensor | np.ndarray, np.ndarray] | None, np.ndarray | None]:
        """Return the gallery with its labels, and the index of each query in it; twice None for plain leave-one-out."""
        gallery, labels, self_index = self.gallery, self.gallery_labels, None
        if gallery is None and (needs_gallery or self.distractors is not None):
            gallery, labels, self_index = self.query, self.labels, np.arange(len(self.query))
        if gallery is None or labels is None:
            return None, None
        if self.distractors is not None:
            gallery, labels = with_distractors(gallery, labels, self.distractors)
        return (gallery, labels), self_index


def _read_task(
    pairs: Sequence[tuple[str | Path, str | Path]], levels: Sequence[str], distractors: str | Path | None
) -> _Task:
    """Read embeddings and labels of the queries and, if there are two pairs, of the gallery."""
    sides, tables = [], []
    for embeddings, labels in pairs:
        side, table = read_embeddings(embeddings), read_labels(labels, levels)
        check_same_items(side, table, (embeddings, labels))
        sides.append(side.values)
        tables.append(table)
    codes = label_codes(tables, levels)
    gallery, gallery_labels = (sides[1], codes[1]) if len(sides) > 1 else (None, None)
    further = None if distractors is None else read_embeddings(distractors).values
    return _Task(sides[0], codes[0], gallery, gallery_labels, further)
