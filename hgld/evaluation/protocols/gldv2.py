"""Google Landmarks v2 retrieval: test images query the index; mAP@100 on the public and the private half.

Weyand, Araujo, Cao, Sim: "Google Landmarks Dataset v2", CVPR 2020. The solution (``retrieval_solution_v2.1.csv``) lists
for every test image the index images of the same landmark, and whether it is scored as Public or Private or Ignored.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import torch
from torch import Tensor

from hgld.errors import InputError, StorageError, TableError, excerpt, quoted
from hgld.evaluation.evaluate import evaluate_judged
from hgld.evaluation.judgements import ListRelevance
from hgld.evaluation.neighbors import nearest_neighbors
from hgld.evaluation.options import EvaluationOptions, Progress
from hgld.evaluation.protocols.benchmark import DISTRACTORS, Benchmark
from hgld.evaluation.protocols.distractors import stack_gallery
from hgld.evaluation.protocols.labelled import rank_by_labels
from hgld.evaluation.report import RetrievalReport
from hgld.files import write_atomic
from hgld.tables import read_csv

DEPTH = 100
HALVES = ("public", "private")
_METRIC = f"mAP@{DEPTH}"
_USAGES = {"Public": "public", "Private": "private", "Ignored": "ignored"}
_MOST_BYTES = 2 << 30
_ID = re.compile(r"[0-9A-Za-z_-]{1,64}\Z")


@dataclass(frozen=True)
class RetrievalSolution:
    """Ground truth of the retrieval task.

    Attributes:
        public: relevant index images of every test image of the public half.
        private: the same of the private half.
        ignored: test images that are not scored.
    """

    public: Mapping[str, tuple[str, ...]]
    private: Mapping[str, tuple[str, ...]]
    ignored: frozenset[str]


def read_retrieval_solution(path: str | Path) -> RetrievalSolution:
    """Read ``retrieval_solution_v2.1.csv``: id, images (ids with spaces between, or None), Usage.

    Raises:
        TableError: other columns, an unknown usage, a test image twice, or a scored one without relevant images.
    """
    file = Path(path)
    table = _read_table(file, ["id", "images", "Usage"])
    parts: dict[str, dict[str, tuple[str, ...]]] = {half: {} for half in _USAGES.values()}
    seen: set[str] = set()
    for row, (test_image, images, usage) in enumerate(table.iter_rows(), start=2):
        where = f"{file}: row {row}, image {quoted(test_image)}"
        if usage not in _USAGES:
            raise TableError(f"{where}: Usage is {quoted(usage)}; expected {', '.join(_USAGES)}.")
        if test_image is None or test_image in seen:
            raise TableError(f"{where}: expected every test image once.")
        seen.add(test_image)
        relevant = () if images in (None, "None") else tuple(dict.fromkeys(str(images).split()))
        if usage != "Ignored" and not relevant:
            raise TableError(f"{where}: {usage} without relevant images; expected some, or Usage Ignored.")
        parts[_USAGES[usage]][test_image] = relevant
    return RetrievalSolution(parts["public"], parts["private"], frozenset(parts["ignored"]))


def _read_table(file: Path, columns: list[str]) -> pl.DataFrame:
    table = read_csv(file, max_bytes=_MOST_BYTES)
    if table.columns != columns:
        raise TableError(f"{file}: columns are {excerpt(', '.join(table.columns))}; expected {', '.join(columns)}.")
    return table


def retrieve(
    query_embeddings: Tensor | np.ndarray,
    query_ids: Sequence[str],
    index_embeddings: Tensor | np.ndarray,
    index_ids: Sequence[str],
    **options: Any,
) -> dict[str, list[str]]:
    """Return for every query the ids of the (up to) 100 nearest index images, best first.

    Args:
        query_embeddings: (Q, D).
        query_ids: Q ids of test images.
        index_embeddings: (G, D).
        index_ids: G ids of index images.
        **options: keyword arguments of :func:`hgld.evaluation.neighbors.nearest_neighbors`.

    Raises:
        InputError: ids that are not as many as embeddings, or occur twice.
    """
    _check_ids(query_ids, len(query_embeddings), "query")
    _check_ids(index_ids, len(index_embeddings), "index")
    depth = min(DEPTH, len(index_embeddings))
    found, _ = nearest_neighbors(query_embeddings, index_embeddings, depth, **options)
    return {query: [str(index_ids[i]) for i in row] for query, row in zip(query_ids, found.tolist(), strict=True)}


def _check_ids(ids: Sequence[str], num_embeddings: int, side: str) -> None:
    if len(ids) != num_embeddings or len(set(ids)) != len(ids):
        raise InputError(
            f"there are {len(ids)} {side} ids ({len(set(ids))} of them distinct) for {num_embeddings} embeddings; "
            "expected one an embedding, each once."
        )


def write_submission(path: str | Path, retrieved: Mapping[str, Sequence[str]]) -> None:
    """Write a submission of the retrieval challenge: id, images; the file appears whole or not at all.

    Args:
        path: the CSV to write.
        retrieved: for every test image its retrieved index images, best first, at most 100.

    Raises:
        InputError: more than 100 images for one, or an id that is not letters, digits, ``_`` and ``-``.
        StorageError: the file cannot be written.
    """
    file = Path(path)
    lines = ["id,images\n"]
    for query, images in retrieved.items():
        if len(images) > DEPTH:
            raise InputError(
                f"test image {quoted(query)} has {len(images)} retrieved images; expected at most {DEPTH}."
            )
        wrong = [name for name in (query, *images) if not _ID.match(name)]
        if wrong:
            raise InputError(
                f"test image {quoted(query)}: {quoted(wrong[0])} is not an image id; expected letters, digits, _ and -."
            )
        lines.append(f"{query},{' '.join(images)}\n")
    try:
        write_atomic(file, "".join(lines))
    except OSError as error:
        raise StorageError(f"{file}: cannot be written ({error.strerror}).") from error


def read_submission(path: str | Path) -> dict[str, list[str]]:
    """Read a submission: for every test image its retrieved index images, best first.

    Raises:
        TableError: other columns, or a test image twice.
    """
    file = Path(path)
    retrieved: dict[str, list[str]] = {}
    for row, (test_image, images) in enumerate(_read_table(file, ["id", "images"]).iter_rows(), start=2):
        if test_image is None or test_image in retrieved:
            raise TableError(f"{file}: row {row}, image {quoted(test_image)}: expected every test image once.")
        retrieved[test_image] = str(images or "").split()
    return retrieved


def score_submission(retrieved: Mapping[str, Sequence[str]], solution: RetrievalSolution) -> RetrievalReport:
    """Score a submission as the challenge does.

    Places beyond the 100th do not count, an image retrieved again is a miss, and a test image without a row counts 0.

    Args:
        retrieved: for every test image its retrieved index images, best first.
        solution: from :func:`read_retrieval_solution`.

    Returns:
        a report of ``mAP@100/public`` and ``mAP@100/private``, one row a scored test image, public ones first; a value
        is undefined in the rows of the other half.

    Raises:
        InputError: a test image that the solution does not know.
    """
    unknown = retrieved.keys() - solution.public.keys() - solution.private.keys() - solution.ignored
    if unknown:
        raise InputError(f"test image {quoted(min(unknown))} is not in the solution ({len(unknown)} such images).")
    relevant = {**solution.public, **solution.private}
    values = np.array([_average_precision(retrieved.get(query, ()), relevant[query]) for query in relevant])
    missing = sum(query not in retrieved for query in relevant)
    return _by_halves(values, solution, {"protocol": "GLDv2 retrieval submission", "without_prediction": missing})


def _average_precision(retrieved: Sequence[str], relevant: Sequence[str]) -> float:
    """Return mAP@100 of one query: the sum of P(i) over the relevant places i, over min(100, relevant images)."""
    wanted, total, hits = set(relevant), 0.0, 0
    for place, image in enumerate(retrieved[:DEPTH], start=1):
        if image in wanted:
            wanted.remove(image)
            hits += 1
            total += hits / place
    return total / min(len(relevant), DEPTH)


def _by_halves(values: np.ndarray, solution: RetrievalSolution, settings: Mapping[str, Any]) -> RetrievalReport:
    public = np.arange(len(values)) < len(solution.public)
    columns = {
        f"{_METRIC}/{half}": np.where(mine, values, np.nan)
        for half, mine in zip(HALVES, (public, ~public), strict=True)
    }
    counts = {half: len(getattr(solution, half)) for half in (*HALVES, "ignored")}
    return RetrievalReport.from_columns(columns, {**settings, "metrics": list(columns), **counts})


# -- a dataset of queries, index and judgements -----------------------------------------------------------------------

_RELEVANT = "relevant"


def evaluate_gldv2_benchmark(benchmark: Benchmark, options: EvaluationOptions) -> RetrievalReport:
    """Evaluate the split ``query`` against ``gallery`` by the judgements, on the lists ``public`` and ``private``.

    Returns:
        a report of ``mAP@100/public`` and ``mAP@100/private``; its settings count the judgements whose images could not
        be embedded, and the queries that are left without a relevant image.

    Raises:
        InputError: a list is missing, or a judgement is no ``relevant``.
    """
    query, gallery = benchmark["query"], benchmark["gallery"]
    judged, left_out = benchmark.judged("query", "gallery", (_RELEVANT,))
    further = benchmark.distractors
    ranked = gallery.vectors if further is None else stack_gallery(gallery.vectors, further)
    report = evaluate_judged(
        query.vectors,
        ranked,
        ListRelevance(len(ranked), judged),
        levels=("landmark",),
        options=replace(options, metrics=(_METRIC,)),
        settings={"protocol": "GLDv2 retrieval"},
    )
    values = report.per_query[f"{_METRIC}/landmark"].to_numpy()
    columns = {}
    for half in HALVES:
        rows = np.isin(np.arange(len(query)), benchmark.listed(half, "query"))
        columns[f"{_METRIC}/{half}"] = np.where(rows, values, np.nan)
    stated = {half: int((~np.isnan(column)).sum()) for half, column in zip(HALVES, columns.values(), strict=True)}
    lost = {"judgements_left_out": left_out, "queries_without_relevant": sum(not len(row[0]) for row in judged)}
    stated |= {name: count for name, count in lost.items() if count}
    return RetrievalReport.from_columns(columns, {**report.settings, "metrics": list(columns), **stated})


def evaluate_agreed(benchmark: Benchmark, options: EvaluationOptions) -> RetrievalReport:
    """Evaluate H-GLDv2 by labels that all relevant images of a query agree on; the others of the query are unknown."""
    query, gallery = benchmark["query"], benchmark["gallery"]
    judged, left_out = benchmark.judged("query", "gallery", (_RELEVANT,))
    labels = np.full(query.labels.shape, -1)
    for row, (relevant,) in enumerate(judged):
        known = gallery.labels[relevant]
        if len(known):
            labels[row] = np.where((known == known[0]).all(axis=0), known[0], -1)
    report = rank_by_labels(benchmark, replace(query, labels=labels), gallery, options)
    lost = {"judgements_left_out": left_out, "queries_without_landmark": int((labels[:, 0] < 0).sum())}
    return replace(report, settings=report.settings | {name: count for name, count in lost.items() if count})


def submit_gldv2(benchmark: Benchmark, options: EvaluationOptions, path: Path) -> None:
    """Write the 100 nearest images of ``gallery`` (and distractors) to every image of ``query`` as a submission.

    The queries of a dataset are the scored test images alone; others count nothing.
    """
    query, gallery, further = benchmark["query"], benchmark["gallery"], benchmark.splits.get(DISTRACTORS)
    keys = [*gallery.keys, *(further.keys if further is not None else ())]
    ranked = gallery.vectors if further is None else stack_gallery(gallery.vectors, further.vectors)
    queries = options.expanded(query.vectors, ranked)
    how = {"chunk_size": options.chunk_size, "device": options.device}
    write_submission(path, retrieve(queries, list(query.keys), ranked, keys, **how))


def evaluate_gldv2(
    query_embeddings: Tensor | np.ndarray,
    query_ids: Sequence[str],
    index_embeddings: Tensor | np.ndarray,
    index_ids: Sequence[str],
    solution: RetrievalSolution,
    *,
    normalize: bool = True,
    chunk_size: int | None = None,
    device: torch.device | str | None = None,
    progress: Progress | None = None,
) -> RetrievalReport:
    """Evaluate embeddings of test images against the index; without ties as :func:`score_submission` would.

    Args:
        query_embeddings: (Q, D) of test images; those that the solution ignores are skipped.
        query_ids: Q ids, in the same order.
        index_embeddings: (G, D) of index images, distractors included.
        index_ids: G ids.
        solution: from :func:`read_retrieval_solution`.
        normalize: scores are cosine similarities; False takes plain dot products.
        chunk_size: queries at a time; None chooses from the free memory.
        device: where to rank.
        progress: called with a task, the number of queries done and their total.

    Returns:
        a report as that of :func:`score_submission`; equal scores count against the query.

    Raises:
        InputError: ids that do not fit the embeddings, or scored test images or relevant index images without one.
    """
    _check_ids(query_ids, len(query_embeddings), "query")
    _check_ids(index_ids, len(index_embeddings), "index")
    relevant = {**solution.public, **solution.private}
    rows = {query: row for row, query in enumerate(query_ids)}
    places = {image: place for place, image in enumerate(index_ids)}
    lost = [query for query in relevant if query not in rows]
    lost += sorted({image for images in relevant.values() for image in images if image not in places})
    if lost:
        raise InputError(
            f"image {quoted(lost[0])} of the solution has no embedding ({len(lost)} such images); embed them too."
        )
    graded = [[np.array([places[image] for image in images], np.int64)] for images in relevant.values()]
    report = evaluate_judged(
        query_embeddings[[rows[query] for query in relevant]],
        index_embeddings,
        ListRelevance(len(index_ids), graded),
        levels=("landmark",),
        options=EvaluationOptions(
            metrics=(_METRIC,), normalize=normalize, chunk_size=chunk_size, device=device, progress=progress
        ),
        settings={"protocol": "GLDv2 retrieval"},
    )
    return _by_halves(report.per_query[f"{_METRIC}/landmark"].to_numpy(), solution, report.settings)
