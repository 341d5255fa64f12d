"""INRIA Copydays: edited copies query the 157 originals, among distractors; mAP by the trapezoid rule.

Douze, Jégou, Sandhawalia, Amsaleg, Schmid: "Evaluation of GIST Descriptors for Web-Scale Image Search", CIVR 2009.
MultiGrain (Berman et al. 2019) reports the subset *strong*, 229 print-and-scan, painted and otherwise strong
edits, with 10,000 distractors. A copy and its original share their number up to the last two digits.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from hgld.errors import InputError, quoted
from hgld.evaluation.judgements import LabelRelevance, ListRelevance
from hgld.evaluation.options import EvaluationOptions, Progress
from hgld.evaluation.protocols.benchmark import Benchmark
from hgld.evaluation.protocols.distractors import stack_gallery, with_distractors
from hgld.evaluation.protocols.trapezoid import evaluate_trapezoid, image_numbers
from hgld.evaluation.report import RetrievalReport

_BLOCK = 100


def evaluate_copydays(
    query_embeddings: Tensor | np.ndarray,
    query_names: Sequence[str],
    original_embeddings: Tensor | np.ndarray,
    original_names: Sequence[str],
    *,
    distractors: Tensor | np.ndarray | None = None,
    normalize: bool = True,
    chunk_size: int | None = None,
    device: torch.device | str | None = None,
    progress: Progress | None = None,
) -> RetrievalReport:
    """Evaluate on one kind of Copydays' edits.

    Args:
        query_embeddings: (Q, D) of the edited copies.
        query_names: Q file names, for example ``200001.jpg``, in the same order.
        original_embeddings: (G, D) of the originals.
        original_names: G file names, for example ``200000.jpg``.
        distractors: (N, D) further images that are no one's original; None: none.
        normalize: scores are cosine similarities; False takes plain dot products.
        chunk_size: queries at a time; None chooses from the free memory.
        device: where to take products.
        progress: called with a task, the number of queries done and their total.

    Returns:
        a report of ``mAP``.

    Raises:
        InputError: names without a number or not as many as embeddings, or a copy whose original is missing.
    """
    copies, originals = image_numbers(query_names) // _BLOCK, image_numbers(original_names) // _BLOCK
    if len(copies) != len(query_embeddings) or len(originals) != len(original_embeddings):
        raise InputError(
            f"there are {len(copies)} query names for {len(query_embeddings)} embeddings and {len(originals)} names "
            f"for {len(original_embeddings)} originals; expected one name an embedding."
        )
    missing = ~np.isin(copies, originals)
    if missing.any():
        raise InputError(
            f"query {quoted(query_names[int(missing.argmax())])} has no original ({int(missing.sum())} such queries); "
            f"expected {copies[missing][0] * _BLOCK}.jpg among the originals."
        )
    gallery = original_embeddings if distractors is None else stack_gallery(original_embeddings, distractors)
    judgements = ListRelevance(len(gallery), [[np.flatnonzero(originals == copy)] for copy in copies])
    return evaluate_trapezoid(
        query_embeddings,
        gallery,
        {"": judgements},
        normalize=normalize,
        chunk_size=chunk_size,
        device=device,
        progress=progress,
        settings={"protocol": "Copydays", "distractors": len(gallery) - len(original_embeddings)},
    )


def evaluate_copydays_benchmark(benchmark: Benchmark, options: EvaluationOptions) -> RetrievalReport:
    """Evaluate the edited copies of the split ``query`` against the originals of ``gallery`` and the distractors.

    The finest label says which original a copy is of.

    Returns:
        a report of ``mAP``; its settings count the copies whose original is not in the gallery, which are undefined.
    """
    query, gallery, further = benchmark["query"], benchmark["gallery"], benchmark.distractors
    known = gallery.labels[:, :1]
    ranked = gallery.vectors
    if further is not None:
        ranked, known = with_distractors(ranked, known, further)
    report = evaluate_trapezoid(
        options.expanded(query.vectors, ranked),
        ranked,
        {"": LabelRelevance(query.labels[:, :1], known)},
        normalize=options.normalize,
        chunk_size=options.chunk_size,
        device=options.device,
        progress=options.progress,
        settings={"distractors": 0 if further is None else len(further)},
    )
    lost = report.undefined["mAP"]
    return replace(report, settings=report.settings | ({"queries_without_original": lost} if lost else {}))
