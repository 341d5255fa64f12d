"""Smaller embeddings: prefixes, int8 and binary codes, what they cost in every metric, and search by a prefix first."""

import math
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from hgld.errors import ConfigError, InputError
from hgld.evaluation.scores import (
    Rows,
    block_rows,
    choose_device,
    exact_products,
    open_embeddings,
    prepare_embeddings,
    score_blocks,
)
from hgld.labels import class_numbers

if TYPE_CHECKING:
    from hgld.evaluation.evaluate import Side
    from hgld.evaluation.options import EvaluationOptions, Progress

CODES = ("int8", "binary")
_MOST_CODE = 127
_MOST_GATHERED = 1 << 24  # numbers of shortlists at a time
_ROWS_AT_ONCE = 1024


def int8_codes(embeddings: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Round embeddings to int8: code = round(127 x / m), m the row's largest absolute value, halves to even.

    Args:
        embeddings: (N, D) finite; the codes of a row of zeros are zeros.

    Returns:
        codes: (N, D) int8 in -127..127.
        scales: (N,) float32, m / 127. A row is its codes times its scale, to within half a scale; a cosine needs none.
    """
    rows = np.asarray(embeddings, np.float64)
    largest = np.abs(rows).max(axis=1, keepdims=True)
    largest[largest == 0] = 1
    return np.rint(rows * (_MOST_CODE / largest)).astype(np.int8), (largest[:, 0] / _MOST_CODE).astype(np.float32)


def binary_codes(embeddings: np.ndarray) -> np.ndarray:
    """Keep the signs of embeddings: (N, D) -> (N, ceil(D / 8)) uint8, a bit is set where x >= 0, the first highest."""
    return np.packbits(np.asarray(embeddings) >= 0, axis=1)


def hamming_distances(query_codes: np.ndarray, gallery_codes: np.ndarray) -> np.ndarray:
    """Count the bits in which binary codes differ: (Q, B) and (G, B) uint8 -> (Q, G) int64.

    The score of binary codes of D dimensions is 1 - 2 distance / D, the cosine of the signs.
    """
    return np.stack([np.bitwise_count(row ^ gallery_codes).sum(axis=1, dtype=np.int64) for row in query_codes])


def prefix_values(
    query: "Side",
    gallery: "Side | None",
    dims: Sequence[int],
    *,
    levels: Sequence[str],
    self_index: np.ndarray | None = None,
    options: "EvaluationOptions",
) -> dict[int, dict[str, float]]:
    """Measure prefixes of the embeddings, each normalised by itself, with one product of the whole.

    The dot products of a prefix are those of the one before it and of the numbers between, divided by the norms at the
    end: cosines that are equal may differ in the last bit, which matters where many are, as with a prefix of 1.

    Args:
        query: embeddings (Q, D) and labels (Q, L), numbers or names: what :func:`hgld.labels.class_numbers` reads.
        gallery: embeddings (G, D) and labels (G, L), in the same way; None for leave-one-out.
        dims: sizes of the prefixes, ascending, D at most.
        levels: names of the L levels.
        self_index: (Q,) gallery index of the query itself, -1 for none.
        options: the metrics, and how to rank.

    Returns:
        the means of all metrics by the size of the prefix; NaN where undefined.

    Raises:
        ConfigError: sizes that do not ascend or are beyond D, or options that prefixes cannot have.
        InputError: a prefix of zeros.
    """
    dims = tuple(dims)
    _check_dims(dims, query[0].shape[1])
    sides = _sides(query, gallery, options)
    bounds = [0, *dims]
    called = ("query", "query" if gallery is None else "gallery")
    norms = [[_norms(side, dim, name, options) for dim in dims] for side, name in zip(sides, called, strict=True)]
    columns = [[_columns(side, begin, end) for side in sides] for begin, end in pairwise(bounds)]

    def blocks(rows: int, part: range) -> Iterator[tuple[int, int, list[Tensor]]]:
        pieces = [score_blocks(queries, items, rows, part) for queries, items in columns]
        for parts in zip(*pieces, strict=True):
            start, stop, _ = parts[0]
            total, found = None, []
            for i, (_, _, products) in enumerate(parts):
                total = products if total is None else total.add_(products)
                found.append(total / norms[0][i][start:stop, None] / norms[1][i])
            yield start, stop, found

    values = _measure(sides, query, gallery, levels, self_index, options, blocks, len(dims))
    return dict(zip(dims, values, strict=True))


def code_values(
    query: "Side",
    gallery: "Side | None",
    kinds: Sequence[str],
    *,
    levels: Sequence[str],
    self_index: np.ndarray | None = None,
    options: "EvaluationOptions",
) -> dict[str, dict[str, float]]:
    """Measure codes of the embeddings, of queries and gallery alike.

    ``int8``: the cosines of :func:`int8_codes`. ``binary``: Hamming distances of :func:`binary_codes`, whose many ties
    count against the query, as everywhere.

    Args:
        query: embeddings (Q, D) and labels (Q, L), numbers or names: what :func:`hgld.labels.class_numbers` reads.
        gallery: embeddings (G, D) and labels (G, L), in the same way; None for leave-one-out.
        kinds: ``int8``, ``binary``.
        levels: names of the L levels.
        self_index: (Q,) gallery index of the query itself, -1 for none.
        options: the metrics, and how to rank.

    Returns:
        the means of all metrics by kind; NaN where undefined.

    Raises:
        ConfigError: an unknown kind, or options that codes cannot have.
    """
    _check_kinds(kinds)
    sides = _sides(query, gallery, options)
    found = {}
    for kind in kinds:
        coded = [_decoded(side, kind, normalize=options.normalize) for side in sides]

        def blocks(
            rows: int, part: range, coded: list[Tensor | Rows] = coded
        ) -> Iterator[tuple[int, int, list[Tensor]]]:
            return ((start, stop, [scores]) for start, stop, scores in score_blocks(coded[0], coded[1], rows, part))

        (found[kind],) = _measure(sides, query, gallery, levels, self_index, options, blocks, 1)
    return found


def compressed_settings(
    query: "Side",
    gallery: "Side | None",
    *,
    levels: Sequence[str],
    self_index: np.ndarray | None,
    options: "EvaluationOptions",
) -> dict[str, Any]:
    """Return what a report's settings say of the prefixes and codes that its options ask for: values, None for NaN."""
    given = {"levels": levels, "self_index": self_index, "options": options}
    found: dict[str, Any] = {}
    if options.prefixes:
        found["prefixes"] = {str(dim): v for dim, v in prefix_values(query, gallery, options.prefixes, **given).items()}
    if options.codes:
        found["codes"] = code_values(query, gallery, options.codes, **given)
    return {
        name: {of: {m: None if math.isnan(v) else v for m, v in values.items()} for of, values in table.items()}
        for name, table in found.items()
    }


def check_compressed(options: "EvaluationOptions", dim: int) -> None:
    """Refuse prefixes and codes that embeddings of so many dimensions cannot have, before anything is ranked.

    Raises:
        ConfigError: says which.
    """
    if options.prefixes:
        _check_dims(options.prefixes, dim)
    _check_kinds(options.codes)
    if options.prefixes or options.codes:
        _refuse_expansion(options)


def _check_dims(dims: Sequence[int], whole: int) -> None:
    if not dims or dims[0] < 1 or sorted(set(dims)) != list(dims) or dims[-1] > whole:
        raise ConfigError(
            f"prefixes are {tuple(dims)} of embeddings of {whole} dimensions; expected ascending sizes of 1 to {whole}."
        )


def _check_kinds(kinds: Sequence[str]) -> None:
    if unknown := [kind for kind in kinds if kind not in CODES]:
        raise ConfigError(f"there are no codes {unknown[0]!r}; there are {', '.join(CODES)}.")


def _refuse_expansion(options: "EvaluationOptions") -> None:
    if options.query_expansion is not None:
        raise ConfigError(
            "query expansion moves the queries by their whole vectors; leave it, or prefixes and codes, out."
        )


Prepared = tuple[Tensor | Rows, Tensor | Rows]


def _sides(query: "Side", gallery: "Side | None", options: "EvaluationOptions") -> Prepared:
    _refuse_expansion(options)
    device = choose_device(query[0], options.device)
    queries = open_embeddings(query[0], "query", normalize=options.normalize, device=device)
    if gallery is None:
        return queries, queries
    return queries, open_embeddings(gallery[0], "gallery", normalize=options.normalize, device=device)


def _columns(side: Tensor | Rows, begin: int, end: int) -> Tensor | Rows:
    return side.columns(begin, end) if isinstance(side, Rows) else side[:, begin:end].contiguous()


def _norms(side: Tensor | Rows, dim: int, called: str, options: "EvaluationOptions") -> Tensor:
    norms = torch.ones(len(side), device=side.device)
    if not options.normalize:
        return norms
    for start in range(0, len(side), _ROWS_AT_ONCE):
        rows = slice(start, start + _ROWS_AT_ONCE)
        norms[rows] = torch.linalg.vector_norm(side[rows][:, :dim].double(), dim=1).float()
    if (norms == 0).any():
        row = int(torch.nonzero(norms == 0)[0])
        raise InputError(
            f"{called} embeddings: the first {dim} numbers of row {row} are zeros, which have no direction. "
            "Leave this prefix out."
        )
    return norms


def _decoded(side: Tensor | Rows, kind: str, *, normalize: bool) -> Tensor | Rows:
    """Return the vectors that codes stand for; products of signs are whole numbers, so that ties are exact.

    Whole numbers of codes are exact in 16 bits.
    """
    scaled = kind == "int8" and not normalize
    rows = np.empty(tuple(side.shape), np.float32 if scaled else np.float16)
    for start in range(0, len(side), _ROWS_AT_ONCE):
        part = side[start : start + _ROWS_AT_ONCE].cpu().numpy()
        if kind == "binary":
            decoded = np.where(part >= 0, 1.0, -1.0)
        else:
            codes, scales = int8_codes(part)
            decoded = codes * scales[:, None] if scaled else codes
        rows[start : start + len(part)] = decoded
    return open_embeddings(rows, "coded", normalize=normalize and kind == "int8", device=side.device)


def _measure(
    sides: Prepared,
    query: "Side",
    gallery: "Side | None",
    levels: Sequence[str],
    self_index: np.ndarray | None,
    options: "EvaluationOptions",
    blocks: Any,
    tables: int,
) -> list[dict[str, float]]:
    """Return the means of the metrics for each table of scores that the blocks yield.

    Several processes rank a share of the queries each, as they do for a report.
    """
    from hgld.evaluation.evaluate import block_metrics, label_table  # which imports this module
    from hgld.evaluation.judgements import LabelRelevance
    from hgld.evaluation.metric import resolve
    from hgld.evaluation.metric_kinds import kind_of
    from hgld.evaluation.report import RetrievalReport

    own = np.arange(len(sides[0])) if gallery is None else self_index
    given = [query[1]] if gallery is None else [query[1], gallery[1]]
    numbers, _ = class_numbers(*given, levels=levels, what=("query labels", "gallery labels"))
    labels = label_table(numbers[0], len(sides[0]), "query")
    others = labels if gallery is None else label_table(numbers[1], len(sides[1]), "gallery")
    relevance = LabelRelevance(labels, others, own)
    gain = options.gain(leave_one_out=own is not None and bool((own >= 0).all()))
    metrics = [metric for metric in resolve(options.metrics, levels) if not kind_of(metric.kind).of_set]
    rows = max(1, block_rows(len(sides[0]), len(sides[1]), sides[0].device, options.chunk_size) // (tables + 1))

    def rank(part: range) -> RetrievalReport:
        columns: dict[str, list[np.ndarray]] = {f"{n} {metric}": [] for n in range(tables) for metric in metrics}
        with exact_products(sides[0].device):
            for start, stop, found in blocks(rows, part):
                for n, scores in enumerate(found):
                    block = relevance.block(start, stop, sides[0].device)
                    for name, column in block_metrics(scores, block, metrics, levels, gain, options.backend).items():
                        columns[f"{n} {name}"].append(column)
                if options.progress is not None:
                    options.progress("rank prefixes and codes", stop - part.start, len(part))
        joined = {name: np.concatenate(parts) for name, parts in columns.items()}
        return RetrievalReport.from_columns(joined, {}, first_query=part.start, num_queries=len(part))

    share = options.share or (lambda rank, count: rank(range(count)))
    values = share(rank, len(sides[0])).values
    return [{str(metric): values[f"{n} {metric}"] for metric in metrics} for n in range(tables)]


# -- search by a prefix ------------------------------------------------------------------------------------------------


def prefix_neighbors(
    query_embeddings: Tensor | np.ndarray,
    gallery_embeddings: Tensor | np.ndarray,
    k: int,
    *,
    prefix: int,
    shortlist: int,
    device: torch.device | str | None = None,
    progress: "Progress | None" = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Find nearest gallery items among those whose prefixes are nearest.

    All items are compared by the first ``prefix`` numbers alone, the best ``shortlist`` of them by the whole vectors.
    With a shortlist of the whole gallery the result is that of :func:`hgld.evaluation.neighbors.nearest_neighbors`.

    Args:
        query_embeddings: (Q, D) of any floating dtype.
        gallery_embeddings: (G, D); of an array on the disk, whole rows are read of the shortlists alone.
        k: how many, at most ``shortlist``.
        prefix: numbers that the first comparison takes, D at most.
        shortlist: items a query that the second comparison takes; all where there are fewer.
        device: where to search; None takes the queries' own device.
        progress: called with a task, the number of queries done and their total.

    Returns:
        indices: (Q, k) int64, best first, equal scores by ascending index.
        scores: (Q, k) float32 cosines of the whole vectors.

    Raises:
        InputError: embeddings of the wrong shape or dtype, or zeros where a direction is needed.
        ConfigError: a prefix beyond D, a k below 1 or beyond the shortlist or gallery.
    """
    dim, shortlist = gallery_embeddings.shape[1], min(shortlist, len(gallery_embeddings))
    if not 1 <= prefix <= dim or not 1 <= k <= shortlist:
        raise ConfigError(
            f"prefix is {prefix} of {dim} dimensions, k {k} and the shortlist {shortlist}; expected a prefix of 1 to "
            f"{dim}, and a k of 1 to the shortlist."
        )
    from hgld.evaluation.neighbors import nearest_neighbors  # which imports what imports this module

    device = choose_device(query_embeddings, device)
    sides = query_embeddings[:, :prefix], gallery_embeddings[:, :prefix]
    places = np.sort(nearest_neighbors(*sides, shortlist, device=device, progress=progress)[0], axis=1)
    query = prepare_embeddings(query_embeddings, "query", device=device)
    indices, scores = np.empty((len(query), k), np.int64), np.empty((len(query), k), np.float32)
    rows = max(1, _MOST_GATHERED // (shortlist * dim))
    with exact_products(device):
        for start in range(0, len(query), rows):
            part = places[start : start + rows]
            items = prepare_embeddings(gallery_embeddings[part.reshape(-1)], "gallery", device=device)
            products = (
                torch.einsum("qd,qnd->qn", query[start : start + rows], items.view(*part.shape, dim)).cpu().numpy()
            )
            order = np.argsort(-products, axis=1, kind="stable")[:, :k]  # places ascend
            indices[start : start + rows] = np.take_along_axis(part, order, axis=1)
            scores[start : start + rows] = np.take_along_axis(products, order, axis=1)
    return indices, scores
