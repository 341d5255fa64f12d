"""Evaluation of embeddings on a retrieval task: all metrics at all levels in one pass over the scores."""

import hashlib
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hgld.errors import ConfigError, InputError
from hgld.evaluation.embedding_files import KEY, SPLIT, read_embeddings, read_labels
from hgld.evaluation.judgements import (
    MOST_LEVELS,
    LabelRelevance,
    RelevanceBlock,
    RelevanceFacts,
    RelevanceSource,
    block_of_items,
    facts_of,
    graded_block,
)
from hgld.evaluation.metric import Metric, resolve
from hgld.evaluation.neighbors import Heads, ranking_heads, worth_heads
from hgld.evaluation.options import DEFAULT_METRICS, EvaluationOptions
from hgld.evaluation.postprocess import expand_queries
from hgld.evaluation.report import RetrievalReport
from hgld.evaluation.scores import (
    Rows,
    block_rows,
    check_dimensions,
    checked_self_index,
    choose_device,
    exact_products,
    open_embeddings,
    score_blocks,
)
from hgld.evaluation.statistics import (
    clustering_of,
    depth_needed,
    depths_of,
    metric_values,
    order_statistics,
    order_statistics_torch,
)
from hgld.labels import SIDES, Array, Labels, read_label_sides
from hgld.relevance import GainFunction

# -- metrics from a table of scores -----------------------------------------------------------------------------------

_LARGEST_SCORE = 1e37  # if scores are below this, their differences stay finite in float32


def ranking_metrics(
    scores: Array,
    grades: Array,
    metrics: Iterable[str | Metric],
    *,
    levels: Sequence[str],
    gain: GainFunction | None = None,
    left_out: Array | None = None,
    backend: str | None = None,
) -> dict[str, np.ndarray]:
    """Compute the metrics of every query from a table of scores.

    Args:
        scores: (Q, G) finite scores, which are ranked in float32.
        grades: (Q, G) integers in 0..L, for example from :func:`hgld.shared_levels`.
        metrics: names of metrics; a binary metric without a level is computed at every level.
        levels: names of the L levels, finest first.
        gain: gain of a grade in H-AP, H-R@k, H-P@k and wAP; ``population`` with alpha 1 if None.
        left_out: (Q, G) bool, True for pairs that are not ranked; None: all pairs are ranked.
        backend: implementation: ``native`` or ``torch``; None: ``native`` on the CPU, else ``torch``.

    Returns:
        a dict from metric names to (Q,) float64 values; NaN if the query has no positive.

    Raises:
        InputError: the shapes differ, a score is not finite, or a grade is outside 0..L.
        ConfigError: a metric, level or backend is unknown.

    >>> import torch
    >>> from hgld.metrics import ranking_metrics
    >>> scores, grades = torch.tensor([[0.9, 0.8, 0.7, 0.6]]), torch.tensor([[0, 2, 1, 0]])
    >>> found = ranking_metrics(scores, grades, ["AP", "R@1"], levels=["fine", "coarse"])
    >>> {name: round(float(value[0]), 3) for name, value in found.items()}
    {'AP/fine': 0.5, 'AP/coarse': 0.583, 'R@1/fine': 0.0, 'R@1/coarse': 0.0}
    """
    score, grade = torch.as_tensor(scores).detach(), torch.as_tensor(grades).detach()
    if score.ndim != 2 or score.shape != grade.shape or not score.is_floating_point():
        raise InputError(
            f"scores have shape {tuple(score.shape)} and dtype {score.dtype}, grades {tuple(grade.shape)}; "
            "expected two (Q, G) tables; scores need a floating dtype."
        )
    if score.numel() and not float(score.abs().amax()) < _LARGEST_SCORE:  # "not <" also catches NaN
        raise InputError(f"scores hold NaN, Inf or values beyond {_LARGEST_SCORE:g}; expected finite scores.")
    check_num_levels(len(levels))
    if grade.is_floating_point() or (grade.numel() and not (int(grade.min()) >= 0 and int(grade.max()) <= len(levels))):
        raise InputError(f"grades of dtype {grade.dtype} are not all integers from 0 to {len(levels)}.")
    mask = None if left_out is None else torch.as_tensor(left_out).detach()
    if mask is not None and (mask.shape != score.shape or mask.dtype != torch.bool):
        raise InputError(f"left_out has shape {tuple(mask.shape)} and dtype {mask.dtype}; expected (Q, G) bool.")
    block = graded_block(grade.to(score.device), len(levels), mask)
    chosen = resolve(metrics, levels)
    return block_metrics(score.float().clone(), block, chosen, levels, gain or GainFunction(), backend)


def check_num_levels(num_levels: int) -> None:
    """Raise an error if there is no level, or more levels than a grade can count.

    Raises:
        ConfigError: there are no levels, or too many.
    """
    if not 1 <= num_levels <= MOST_LEVELS:
        raise ConfigError(f"there are {num_levels} levels; expected 1..{MOST_LEVELS}.")


def block_metrics(
    scores: Tensor,
    block: RelevanceBlock,
    metrics: Sequence[Metric],
    levels: Sequence[str],
    gain: GainFunction,
    backend: str | None = None,
) -> dict[str, np.ndarray]:
    """Compute the metrics of a block of queries.

    Args:
        scores: (q, G) float32; the scores of pairs that are not ranked are overwritten.
        block: grades of the pairs of these queries and all gallery items.
        metrics: metrics with their levels, made by :func:`hgld.evaluation.metric.resolve`.
        levels: names of the levels, finest first.
        gain: gain of a grade in the hierarchical metrics.
        backend: implementation: ``native`` (only on the CPU) or ``torch``; None: ``native`` on the CPU, else ``torch``.

    Returns:
        a dict from metric names to (q,) float64 values.

    Raises:
        ConfigError: the backend is unknown, or it is ``native`` and the scores are not on the CPU.
    """
    on_cpu = scores.device.type == "cpu"
    if backend not in (None, "native", "torch") or (backend == "native" and not on_cpu):
        raise ConfigError(f"backend is {backend!r} on {scores.device}; expected native (on the CPU) or torch.")
    rows, columns = (torch.from_numpy(part).to(scores.device) for part in block.left_out)
    scores[rows, columns] = -torch.inf
    rank = order_statistics if (backend or ("native" if on_cpu else "torch")) == "native" else order_statistics_torch
    gains = gain.of_counts(torch.from_numpy(block.counts)).numpy().copy()
    depth = depth_needed(metrics, levels, block.counts)
    found = rank(scores, block.grades, block.counts, gains, depths_of(metrics), depth, {m.kind for m in metrics})
    return metric_values(metrics, levels, found, block.counts, gain, gains)


# -- metrics from embeddings ------------------------------------------------------------------------------------------

_HASHED_ROWS = 1024


def evaluate(
    query_embeddings: Array | Any,
    query_labels: Labels,
    gallery_embeddings: Array | None = None,
    gallery_labels: Labels | None = None,
    *,
    levels: Sequence[str] | None = None,
    metrics: Iterable[str | Metric] = DEFAULT_METRICS,
    alpha: float = 1.0,
    count_query: bool = True,
    chunk_size: int | None = None,
    device: torch.device | str | None = None,
    options: EvaluationOptions | None = None,
) -> RetrievalReport:
    """Evaluate embeddings according to their labels.

    Without a gallery every item queries all other items (leave-one-out). Scores are cosine similarities, ranked in
    float32 with TF32 off, whatever the dtype of the embeddings. :class:`hgld.metrics.Metric` defines the metrics.

    ``hgld.evaluate(model, data)`` evaluates a model from :func:`hgld.load_model` on a dataset or a folder of class
    folders. It follows the dataset's protocol; if the dataset has no protocol, every image queries all other images.

    Embeddings and labels may be paths of files, as ``hgld embed`` writes them:
    ``hgld.evaluate("e.npy", "e.labels.parquet")``.

    Args:
        query_embeddings: (Q, D) embeddings of any floating dtype; or the model.
        query_labels: (Q, L) integers, finest level first, negative if unknown; (Q,) for one level. Or class names,
            None if unknown. Or a table or dataset with the columns ``levels``. :func:`hgld.labels.class_numbers` reads
            all of these.
        gallery_embeddings: (G, D) embeddings; None for leave-one-out.
        gallery_labels: (G, L) labels; items without known labels are distractors.
        levels: names of the L levels, finest first. None: a table's columns, a dataset's levels, or, for labels without
            names, ``level0`` (finest), ``level1``, ...
        metrics: names of metrics; a binary metric without a level is computed at every level.
        alpha: exponent of ``population`` and ``total`` relevance.
        count_query: whether the query counts as an item of its own class, in leave-one-out with ``population``
            relevance.
        chunk_size: number of queries ranked at a time; None: as many as the free memory allows.
        device: device to rank on; None: the device of the embeddings.
        options: further options. The five arguments above override its fields if they are not at their defaults.

    Returns:
        the report: mean of every metric, one row per query, numbers of undefined queries, settings.

    Raises:
        InputError: embeddings or labels have the wrong shape or dtype, or hold NaN, Inf or zero vectors.
        HierarchyError: the labels put one class under two parents.
        ConfigError: a metric, level or option is unknown.

    >>> import torch, hgld
    >>> embeddings = torch.tensor([[1.0, 0.0], [0.9, 0.1], [0.0, 1.0], [0.1, 0.9]])
    >>> labels = torch.tensor([[0, 0], [0, 0], [1, 1], [2, 1]])
    >>> report = hgld.evaluate(embeddings, labels, levels=("product", "category"), metrics=("R@1", "H-AP"))
    >>> {name: round(value, 3) for name, value in report.values.items()}
    {'R@1/product': 1.0, 'R@1/category': 1.0, 'H-AP': 1.0}
    >>> report.undefined
    {'R@1/product': 2, 'R@1/category': 0, 'H-AP': 0}
    """
    given: dict[str, Any] = {"alpha": alpha, "count_query": count_query, "chunk_size": chunk_size, "device": device}
    given["metrics"] = metrics if isinstance(metrics, str) else tuple(metrics)
    defaults = EvaluationOptions()
    changed = {name: value for name, value in given.items() if value != getattr(defaults, name)}
    if (gallery_embeddings is None) != (gallery_labels is None):
        raise InputError("gallery embeddings or gallery labels are missing; pass both, or neither for leave-one-out.")
    options = replace(options or defaults, **changed)
    if hasattr(query_embeddings, "evaluate"):
        model: Any = query_embeddings
        return model.evaluate(query_labels, levels=levels, options=options)
    query = _read_side(query_embeddings, query_labels, levels)
    gallery = None if gallery_labels is None else _read_side(gallery_embeddings, gallery_labels, levels)
    return evaluate_labelled(query, gallery, levels=levels, options=options)


def _read_side(embeddings: Any, labels: Any, levels: Sequence[str] | None) -> "Side":
    """Read embeddings and labels that are paths of files."""
    if isinstance(embeddings, str | Path):
        embeddings = read_embeddings(embeddings)
    if isinstance(labels, str | Path):
        labels = read_labels(labels, levels).drop(KEY, SPLIT, strict=False)
    return embeddings, labels


Side = tuple[Array, Labels]


def evaluate_labelled(
    query: Side,
    gallery: Side | None = None,
    *,
    levels: Sequence[str] | None = None,
    self_index: Array | None = None,
    options: EvaluationOptions,
) -> RetrievalReport:
    """Evaluate embeddings according to their labels, as :func:`evaluate` does.

    Args:
        query: embeddings (Q, D) and labels (Q, L).
        gallery: embeddings (G, D) and labels (G, L); None for leave-one-out.
        levels: names of the L levels; None: ``level0`` (finest), ``level1``, ...
        self_index: (Q,) gallery index of the query itself, which is excluded; -1 if the query is not in the gallery.
        options: metrics and ranking options.

    Returns:
        the report.
    """
    if gallery is None and self_index is not None:
        raise ConfigError("self_index needs a gallery; without it, each query is excluded from its own ranking.")
    device = choose_device(query[0], options.device)
    sides = [query] if gallery is None else [query, gallery]
    opened = [
        open_embeddings(vectors, side, device=device, **_reading(options))
        for (vectors, _), side in zip(sides, SIDES, strict=False)
    ]
    queries, items = opened[0], opened[-1]
    tables, names = read_label_sides([labels for _, labels in sides], [len(part) for part in opened], levels)
    index = None if self_index is None else checked_self_index(self_index, len(queries))
    index = np.arange(len(queries)) if gallery is None else index
    stated = {
        "protocol": "leave-one-out" if gallery is None else "query against gallery",
        **_describe(query[0], options),
        "labels_sha256": labels_fingerprint(tables[0], tables[-1]),
        "embeddings_sha256": embeddings_fingerprint(*(vectors for vectors, _ in sides)),
    }
    relevance = LabelRelevance(tables[0], tables[-1], index)
    queries = _expand(queries, items, options, index)
    is_leave_one_out = index is not None and bool((index >= 0).all())
    gain = GainFunction(options.relevance, options.alpha, options.weights, options.count_query and is_leave_one_out)
    return _Ranking(queries, items, relevance, names, gain, options, tables[-1]).report(stated)


def evaluate_judged(
    query_embeddings: Array,
    gallery_embeddings: Array,
    judgements: RelevanceSource,
    *,
    levels: Sequence[str] = ("relevant",),
    options: EvaluationOptions,
) -> RetrievalReport:
    """Evaluate embeddings according to judgements instead of labels: lists of relevant items, junk, and so on.

    Args:
        query_embeddings: (Q, D) of any floating dtype.
        gallery_embeddings: (G, D) embeddings.
        judgements: relevance of the gallery items to the queries, for example
            :class:`hgld.evaluation.judgements.ListRelevance`.
        levels: names of the levels of the judgements, finest first.
        options: metrics and ranking options.

    Returns:
        the report.

    Raises:
        InputError: embeddings have the wrong shape or dtype, or their number differs from the number in the judgements.
        ConfigError: a metric, level or option is unknown.
    """
    device = choose_device(query_embeddings, options.device)
    query = open_embeddings(query_embeddings, "query", device=device, **_reading(options))
    gallery = open_embeddings(gallery_embeddings, "gallery", device=device, **_reading(options))
    if judgements.shape != (len(query), len(gallery)) or judgements.num_levels != len(levels):
        raise InputError(
            f"judgements have {judgements.shape[0]} queries, {judgements.shape[1]} gallery items and "
            f"{judgements.num_levels} levels, but there are {len(query)} query embeddings, {len(gallery)} gallery "
            f"embeddings and the levels {', '.join(levels)}."
        )
    query = _expand(query, gallery, options)
    gain = GainFunction(options.relevance, options.alpha, options.weights)
    ranking = _Ranking(query, gallery, judgements, levels, gain, options)
    return ranking.report({"protocol": "judged lists", **_describe(query_embeddings, options)})


def _reading(options: EvaluationOptions) -> dict[str, bool]:
    return {"normalize": options.normalize, "is_shared": options.share is not None}


def _expand(
    query: Tensor | Rows, gallery: Tensor | Rows, options: EvaluationOptions, self_index: np.ndarray | None = None
) -> Tensor | Rows:
    """Apply query expansion to prepared queries if ``options.query_expansion`` is set."""
    if options.query_expansion is None:
        return query
    expanded = expand_queries(query, gallery, options, self_index)
    return open_embeddings(expanded, "query", normalize=False, device=query.device, is_shared=options.share is not None)


def refuse_without_positives(query_labels: np.ndarray, gallery_labels: np.ndarray | None, where: str) -> None:
    """Raise an error if, according to the labels, no query has a relevant item; called before anything is embedded.

    Args:
        query_labels: (Q, L) integers, -1 if unknown.
        gallery_labels: (G, L); None: every query searches the other queries.
        where: name of the data in messages.

    Raises:
        InputError: no query shares a class with another gallery item at any level.
    """
    for level, column in enumerate(query_labels.T):
        classes, counts = np.unique(column[column >= 0], return_counts=True)
        if (counts > 1).any() if gallery_labels is None else np.isin(classes, gallery_labels[:, level]).any():
            return
    raise InputError(
        f"{where}: according to the labels no query has a relevant item in the gallery, so no metric is defined. "
        "If the dataset has a protocol, omit the split options (for a run: --evaluate-on protocol)."
    )


def refuse_undefined(report: RetrievalReport, where: str) -> None:
    """Raise an error if no value of a report is defined.

    Raises:
        InputError: no value is defined; the message states cause and fix.
    """
    if all(map(math.isnan, report.values.values())):
        raise InputError(
            f"{where}: no query has a relevant item in the gallery, so none of {', '.join(report.values)} is defined. "
            "Check that queries and gallery have labels (or judgements) of the same classes. If you omit the split "
            "options, hgld follows the dataset's protocol."
        )


def labels_fingerprint(*labels: np.ndarray) -> str:
    """Hash labels in their order; two reports can be compared query by query only if this hash is the same.

    Args:
        labels: (N, L) integers of the queries, then of the gallery; in leave-one-out the same table twice. All
            negative numbers count as unknown.
    """
    digest = hashlib.sha256()
    for table in labels:
        digest.update(repr(table.shape).encode())
        digest.update(np.ascontiguousarray(np.maximum(table, -1), dtype="<i8").data)
    return digest.hexdigest()


def embeddings_fingerprint(*embeddings: Array) -> str:
    """Hash embeddings in their order, so that a report page can check that a file holds the evaluated embeddings.

    Args:
        embeddings: (N, D) embeddings of the queries, and of the gallery if there is one. 16-bit numbers are hashed
            unchanged, all other numbers as float32.
    """
    digest = hashlib.sha256()
    for table in embeddings:
        digest.update(repr(tuple(table.shape)).encode())
        for start in range(0, len(table), _HASHED_ROWS):
            rows = table[start : start + _HASHED_ROWS]
            if isinstance(rows, Tensor):
                rows = rows.detach().cpu()
                values = (rows.contiguous().view(torch.int16) if rows.element_size() == 2 else rows.float()).numpy()
            else:
                values = rows if rows.dtype == np.float16 else np.asarray(rows, np.float32)
            digest.update(np.ascontiguousarray(values).data)
    return digest.hexdigest()


@dataclass(frozen=True)
class _Ranking:
    """A ranking of queries, block by block, down to the last rank that the metrics need."""

    query: Tensor | Rows
    gallery: Tensor | Rows
    relevance: RelevanceSource
    levels: Sequence[str]
    gain: GainFunction
    options: EvaluationOptions
    gallery_labels: np.ndarray | None = None

    def report(self, settings: Mapping[str, Any]) -> RetrievalReport:
        """Return the report of all queries; ``settings`` are added to its settings."""
        check_dimensions(self.query, self.gallery)
        check_num_levels(len(self.levels))
        metrics = resolve(self.options.metrics, self.levels)
        of_set = [metric for metric in metrics if metric.definition.of_set]
        if of_set and self.gallery_labels is None:
            raise ConfigError(
                f"metrics {', '.join(map(str, of_set))} need classes, but judged lists have none. Omit these metrics."
            )
        of_queries = [metric for metric in metrics if metric not in of_set]
        stated = {
            **settings,
            "levels": list(self.levels),
            "metrics": [str(metric) for metric in metrics],
            "queries": len(self.query),
            "gallery": len(self.gallery),
            "dimensions": self.query.shape[1],
            "relevance": self.gain.kind,
            "alpha": self.gain.alpha,
            "weights": None if self.gain.weights is None else list(self.gain.weights),
            "count_query": self.gain.count_query,
            "scores": "float32, TF32 off",
            "ties": "against the query",
            "device": self.query.device.type,
        }
        if clusterings := self._clusterings(of_set):
            stated["clustering"] = clusterings

        def rank(part: range) -> RetrievalReport:
            found: list[dict[str, np.ndarray]] = []
            for done, values in self._blocks(part, of_queries) if of_queries else ():
                found.append(values)
                if self.options.progress is not None:
                    self.options.progress("rank", done - part.start, len(part))
            columns = {str(metric): np.concatenate([values[str(metric)] for values in found]) for metric in of_queries}
            whole = self._of_set(of_set) if part.start == 0 else {}  # only the first process computes set metrics
            return RetrievalReport.from_columns(
                columns, stated, first_query=part.start, num_queries=len(part), of_set=whole
            )

        if self.options.share is not None:
            return self.options.share.rank(rank, len(self.query))
        return rank(range(len(self.query)))

    def _clusterings(self, metrics: Sequence[Metric]) -> dict[str, str]:
        """Return how the NMI of a level is computed if the clustering is not plain k-means."""
        found = {}
        for metric in metrics:
            if metric.kind == "NMI" and self.gallery_labels is not None:
                labels = self.gallery_labels[:, list(self.levels).index(str(metric.level))]
                known = labels[labels >= 0]
                found[str(metric)] = clustering_of(len(known), self.gallery.shape[1], len(np.unique(known)))
        return {name: method for name, method in found.items() if method != clustering_of(0, 0, 0)}

    def _of_set(self, metrics: Sequence[Metric]) -> dict[str, float]:
        """Return the clustering metrics of the gallery items; NaN if no item has a class."""
        found, items = {}, self.gallery
        if metrics and isinstance(items, Tensor):
            items = items.cpu()  # one copy serves all metrics and levels
        for metric in metrics:
            assert self.gallery_labels is not None
            labels = self.gallery_labels[:, list(self.levels).index(str(metric.level))]
            # hgld's functions read the rows in parts; functions of other packages expect a tensor on the CPU
            table = items if isinstance(metric.definition.value, str) else items[:].cpu()
            known = (labels >= 0).any()
            found[str(metric)] = float(metric.definition.compute(table, labels)) if known else float("nan")
            if self.options.progress is not None:
                self.options.progress(str(metric), 1, 1)
        return found

    def _blocks(self, part: range, metrics: Sequence[Metric]) -> Iterator[tuple[int, dict[str, np.ndarray]]]:
        """Yield the number of queries ranked so far, and the metrics of the last block."""
        with exact_products(self.query.device):
            facts, depth = self._head_depth(part, metrics)
            if facts is None or depth is None:
                yield from self._by_rows(part, metrics)
                return
            for head in ranking_heads(self.query, self.gallery, depth, part):
                yield head.queries.stop, self._of_head(head, facts, part.start, metrics)

    def _head_depth(self, part: range, metrics: Sequence[Metric]) -> tuple[RelevanceFacts | None, int | None]:
        """Return the relevance facts and the number of first ranks that suffice; None if all ranks are needed."""
        reads_head = all(m.depth is not None or m.definition.first_positives for m in metrics)
        if self.query.device.type != "cpu" or not reads_head or not worth_heads(1, len(self.gallery)):
            return None, None
        facts = facts_of(self.relevance, part.start, part.stop)
        depth = depth_needed(metrics, self.levels, facts.counts)
        depth = None if depth is None else depth + int(np.bincount(facts.left_out[0]).max(initial=0))
        return (facts, depth) if depth is not None and worth_heads(depth, len(self.gallery)) else (None, None)

    def _by_rows(self, part: range, metrics: Sequence[Metric]) -> Iterator[tuple[int, dict[str, np.ndarray]]]:
        device, chosen, is_shared = self.query.device, self.options.chunk_size, self.options.share is not None
        rows = block_rows(len(part), len(self.gallery), device, chosen, is_shared=is_shared)
        for start, stop, scores in score_blocks(self.query, self.gallery, rows, part):
            block = self.relevance.block(start, stop, self.query.device)
            yield stop, block_metrics(scores, block, metrics, self.levels, self.gain)

    def _of_head(
        self, head: Heads, facts: RelevanceFacts, first: int, metrics: Sequence[Metric]
    ) -> dict[str, np.ndarray]:
        start, stop = head.queries.start, head.queries.stop
        block = block_of_items(self.relevance, start, stop, head.items, facts.of(start - first, stop - first))
        found = block_metrics(head.scores, block, metrics, self.levels, self.gain)
        for row in head.overfull:
            ((_, values),) = self._by_rows(range(start + row, start + row + 1), metrics)
            for name, value in values.items():
                found[name][row] = value[0]
        return found


def _describe(embeddings: Array, options: EvaluationOptions) -> dict[str, Any]:
    dtype = str(getattr(embeddings, "dtype", "")).removeprefix("torch.")
    stated: dict[str, Any] = {"embedding_dtype": dtype, "normalized": options.normalize}
    if options.query_expansion is not None:
        stated["query_expansion"] = dict(zip(("alpha", "k"), options.query_expansion, strict=True))
    return stated
