"""Revisited Oxford and Paris: 70 queries each, easy, medium and hard, with junk that is not ranked.

Radenović, Iscen, Tolias, Avrithis, Chum: "Revisiting Oxford and Paris: Large-Scale Image Retrieval Benchmarking", CVPR
2018. An image that shows the landmark clearly is *easy*, otherwise *hard*; one that shows too little of it is *junk*.
Easy ranks against easy images (hard ones are junk then), medium against both, hard against hard ones (easy ones are
junk then).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hgld.errors import InputError, quoted
from hgld.evaluation.judgements import ListRelevance
from hgld.evaluation.options import EvaluationOptions, Progress
from hgld.evaluation.protocols.benchmark import Benchmark
from hgld.evaluation.protocols.distractors import stack_gallery
from hgld.evaluation.protocols.pickled_data import read_pickled_data
from hgld.evaluation.protocols.trapezoid import evaluate_trapezoid
from hgld.evaluation.report import RetrievalReport

PRECISION_AT = (1, 5, 10)
_PARTS = ("easy", "hard", "junk")
_POSITIVE = {"easy": ("easy",), "medium": ("easy", "hard"), "hard": ("hard",)}
_LEFT_OUT = {"easy": ("junk", "hard"), "medium": ("junk",), "hard": ("junk", "easy")}


@dataclass(frozen=True)
class RevisitedGroundTruth:
    """Ground truth of revisited Oxford or Paris.

    Attributes:
        images: names of the G gallery images, without ``.jpg``, in the order of the indices.
        queries: names of the Q query images.
        boxes: (Q, 4) float64 x and y of the upper left and the lower right corner of the queries' crops, in pixels.
        easy: for every query the gallery indices of its easy images.
        hard: the same of its hard images.
        junk: the same of images that are never ranked.
    """

    images: tuple[str, ...]
    queries: tuple[str, ...]
    boxes: np.ndarray
    easy: tuple[np.ndarray, ...]
    hard: tuple[np.ndarray, ...]
    junk: tuple[np.ndarray, ...]

    def judgements(self, difficulty: str, num_gallery: int) -> ListRelevance:
        """Return the relevance at a difficulty (``easy``, ``medium`` or ``hard``) in a gallery of G or more images."""
        positive = [self._union(query, _POSITIVE[difficulty]) for query in range(len(self.queries))]
        left_out = [self._union(query, _LEFT_OUT[difficulty]) for query in range(len(self.queries))]
        return ListRelevance(num_gallery, [[part] for part in positive], left_out)

    def _union(self, query: int, parts: Sequence[str]) -> np.ndarray:
        return np.concatenate([getattr(self, part)[query] for part in parts])


def read_revisited(path: str | Path) -> RevisitedGroundTruth:
    """Read ``gnd_roxford5k.pkl`` or ``gnd_rparis6k.pkl`` as published, without running any code of it.

    Raises:
        InputError: the file is not such a ground truth; see also
            :func:`hgld.evaluation.protocols.pickled_data.read_pickled_data`.
    """
    file = Path(path)
    data = read_pickled_data(file)
    if not isinstance(data, dict) or not {"imlist", "qimlist", "gnd"} <= data.keys():
        raise InputError(f"{file}: expected a dict with imlist, qimlist and gnd, as gnd_roxford5k.pkl holds it.")
    images, queries = _names(file, data, "imlist"), _names(file, data, "qimlist")
    entries = data["gnd"]
    if not isinstance(entries, list) or len(entries) != len(queries):
        raise InputError(f"{file}: gnd has no entry for each of the {len(queries)} queries of qimlist.")
    lists = {part: tuple(_indices(file, e, part, n, len(images)) for n, e in enumerate(entries)) for part in _PARTS}
    for number in range(len(queries)):
        every = np.concatenate([lists[part][number] for part in _PARTS])
        if len(np.unique(every)) != len(every):
            raise InputError(f"{file}: gnd[{number}] lists an image twice; expected it under easy, hard or junk once.")
    boxes = np.array([_box(file, entry, number) for number, entry in enumerate(entries)], np.float64).reshape(-1, 4)
    return RevisitedGroundTruth(images, queries, boxes, **lists)


def _names(file: Path, data: dict[Any, Any], key: str) -> tuple[str, ...]:
    names = data[key]
    if not isinstance(names, list) or not names or not all(isinstance(n, str) for n in names):
        raise InputError(f"{file}: {key} is not a list of image names.")
    return tuple(names)


def _indices(file: Path, entry: Any, part: str, number: int, num_images: int) -> np.ndarray:
    values = entry.get(part) if isinstance(entry, dict) else None
    if isinstance(values, np.ndarray):
        values = values.ravel().tolist()  # a list of none may be an array of floats
    if not isinstance(values, list) or not all(type(v) is int and 0 <= v < num_images for v in values):
        raise InputError(
            f"{file}: gnd[{number}][{quoted(part)}] is not a list of indices into the {num_images} images of imlist."
        )
    return np.array(values, np.int64)


def _box(file: Path, entry: dict[Any, Any], number: int) -> list[float]:
    values = entry.get("bbx")
    box = values.ravel().tolist() if isinstance(values, np.ndarray) else values
    if not isinstance(box, list | tuple) or len(box) != 4 or not all(isinstance(v, int | float) for v in box):
        raise InputError(f"{file}: gnd[{number}]['bbx'] is not a box of four numbers.")
    return [float(v) for v in box]


def evaluate_revisited(
    query_embeddings: Tensor | np.ndarray,
    gallery_embeddings: Tensor | np.ndarray,
    ground_truth: RevisitedGroundTruth,
    *,
    distractors: Tensor | np.ndarray | None = None,
    precision_at: Sequence[int] = PRECISION_AT,
    normalize: bool = True,
    chunk_size: int | None = None,
    device: torch.device | str | None = None,
    progress: Progress | None = None,
) -> RetrievalReport:
    """Evaluate on revisited Oxford or Paris.

    Args:
        query_embeddings: (Q, D) of the cropped queries, in the order of ``ground_truth.queries``.
        gallery_embeddings: (G, D) in the order of ``ground_truth.images``.
        ground_truth: from :func:`read_revisited`.
        distractors: (N, D) further images that are relevant to no query (R1M); None: none.
        precision_at: the k of mP@k.
        normalize: scores are cosine similarities; False takes plain dot products.
        chunk_size: queries at a time; None chooses from the free memory.
        device: where to take products.
        progress: called with a task, the number of queries done and their total.

    Returns:
        a report of ``mAP/easy``, ``mAP/medium``, ``mAP/hard`` and ``mP@k`` of each. Queries without positives at a
        difficulty are undefined there, as in the published evaluation.

    Raises:
        InputError: embeddings of the wrong shape, dtype or number.
    """
    num_images, num_queries = len(ground_truth.images), len(ground_truth.queries)
    if len(gallery_embeddings) != num_images or len(query_embeddings) != num_queries:
        raise InputError(
            f"there are {len(query_embeddings)} query and {len(gallery_embeddings)} gallery embeddings; the ground "
            f"truth has {num_queries} queries and {num_images} images. Embed them in the order of its lists."
        )
    gallery = gallery_embeddings if distractors is None else stack_gallery(gallery_embeddings, distractors)
    tasks = {name: ground_truth.judgements(name, len(gallery)) for name in _POSITIVE}
    settings = {"protocol": "revisited Oxford and Paris", "distractors": len(gallery) - num_images}
    return evaluate_trapezoid(
        query_embeddings,
        gallery,
        tasks,
        precision_at=precision_at,
        normalize=normalize,
        chunk_size=chunk_size,
        device=device,
        progress=progress,
        settings=settings,
    )


WITH_DISTRACTORS = "+distractors"  # behind a difficulty's name; "+ 1M" in the published tables


def evaluate_revisited_benchmark(benchmark: Benchmark, options: EvaluationOptions) -> RetrievalReport:
    """Evaluate the split ``query`` against ``gallery`` by its judgements, without and with the distractors it has.

    Returns:
        the report of :func:`evaluate_revisited`; values with distractors are called ``mAP/easy+distractors``
        and so on. Its
        settings count the judgements whose images could not be embedded.

    Raises:
        InputError: judgements with other verdicts than easy, hard and junk, or of one image twice.
    """
    query, gallery = benchmark["query"], benchmark["gallery"]
    judged, left_out = benchmark.judged("query", "gallery", _PARTS)
    lists = {part: tuple(rows[i] for rows in judged) for i, part in enumerate(_PARTS)}
    names = tuple(gallery.keys), tuple(query.keys)
    truth = RevisitedGroundTruth(*names, boxes=np.zeros((len(query), 4)), **lists)
    how = {"normalize": options.normalize, "chunk_size": options.chunk_size, "device": options.device}
    reports = []
    for further in (None, benchmark.distractors):
        if further is None and reports:
            continue
        ranked = gallery.vectors if further is None else stack_gallery(gallery.vectors, further)
        queries = options.expanded(query.vectors, ranked)
        reports.append(
            evaluate_revisited(queries, gallery.vectors, truth, distractors=further, progress=options.progress, **how)
        )
    columns = {
        name + ending: report.per_query[name].to_numpy()
        for report, ending in zip(reports, ("", WITH_DISTRACTORS), strict=False)
        for name in report.values
    }
    stated = {"judgements_left_out": left_out} if left_out else {}
    return RetrievalReport.from_columns(columns, reports[-1].settings | stated)
