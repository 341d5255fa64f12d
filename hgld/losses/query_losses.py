"""The rank losses as functions of scores and grades, one value a query.

All take ``scores`` (Q, G) floating and ``grades`` (Q, G) integers in 0..L (:func:`hgld.shared_levels`), and return
values (Q,), 0 where a query has no positive, and valid (Q,) bool. Scores below float32 are read as float32.
"""

import torch
from torch import Tensor

from hgld.losses.gains import GradedGain, grade_counts, ideal_dcg
from hgld.losses.item_sets import read_scores
from hgld.losses.objectives import DiscountedGain, PrecisionMean, RecallMean
from hgld.losses.rank_metric import Method, rank_metric
from hgld.losses.surrogates import Surrogate

_OUT_OF_RANGE = 255  # a grade is a byte; what does not fit becomes this, which the operator refuses


def graded_ap_loss(
    scores: Tensor,
    grades: Tensor,
    num_levels: int,
    surrogate: Surrogate,
    gain: GradedGain | None = None,
    *,
    left_out: Tensor | None = None,
    method: Method = "auto",
) -> tuple[Tensor, Tensor]:
    """1 - H-AP with a smooth rank; with one level 1 - AP.

    With ``SupStep`` this is the loss of SupAP and SupHAP, with ``Sigmoid`` that of SmoothAP and SmoothHAP.

    Args:
        scores: (Q, G) finite.
        grades: (Q, G) integers in 0..L.
        num_levels: L.
        surrogate: the stand-in for the step function.
        gain: relevance of a grade; ``population`` with alpha 1 if None.
        left_out: (Q,) integers, the column that is not ranked (the query itself), -1 for none; None: all are ranked.
        method: see :mod:`hgld.losses.rank_metric`.

    Returns:
        values (Q,) and valid (Q,) bool.

    Raises:
        InputError: shapes or dtypes do not fit.

    >>> import torch
    >>> from hgld.losses.surrogates import SupStep
    >>> values, valid = graded_ap_loss(torch.tensor([[0.9, 0.1, 0.5]]), torch.tensor([[0, 1, 2]]), 2, SupStep())
    >>> valid.tolist()
    [True]
    """
    scores, grades = _ranked(scores, grades, left_out)
    counts = grade_counts(grades, num_levels)
    gains = (gain or GradedGain()).of_counts(counts)
    totals = (gains * counts).sum(dim=1)
    return _one_minus(scores, grades, gains, totals, PrecisionMean(), surrogate, method)


def recall_loss(
    scores: Tensor,
    grades: Tensor,
    surrogate: Surrogate,
    recall: RecallMean | None = None,
    *,
    left_out: Tensor | None = None,
    method: Method = "auto",
) -> tuple[Tensor, Tensor]:
    """1 - TR@K with a smooth rank and a smooth cutoff, averaged over the cutoffs K; grades are 0 or 1.

    Arguments, results and errors are those of :func:`graded_ap_loss`, ``recall`` the cutoffs and their temperature.
    """
    scores, grades = _ranked(scores, grades, left_out)
    counts = grade_counts(grades, 1)
    gains = (counts >= 0).double()
    return _one_minus(scores, grades, gains, counts[:, 1].double(), recall or RecallMean(), surrogate, method)


def ndcg_loss(
    scores: Tensor,
    grades: Tensor,
    num_levels: int,
    surrogate: Surrogate,
    *,
    left_out: Tensor | None = None,
    method: Method = "auto",
) -> tuple[Tensor, Tensor]:
    """1 - NDCG over the whole gallery with a smooth rank and the gain 2^grade - 1.

    Arguments, results and errors are those of :func:`graded_ap_loss`.
    """
    scores, grades = _ranked(scores, grades, left_out)
    counts = grade_counts(grades, num_levels)
    gains = GradedGain("exponential").of_counts(counts)
    ideal = ideal_dcg(counts, gains, scores.shape[1])
    return _one_minus(scores, grades, gains, ideal, DiscountedGain(), surrogate, method)


def _ranked(scores: Tensor, grades: Tensor, left_out: Tensor | None) -> tuple[Tensor, Tensor]:
    """Scores in float32 or float64, -inf where left out, and grades as bytes, 0 there."""
    scores = read_scores(scores, grades, left_out)
    grades = grades if grades.dtype == torch.uint8 else grades.clamp(max=_OUT_OF_RANGE).to(torch.uint8)
    if left_out is None:
        return scores, grades
    gone = left_out[:, None] == torch.arange(scores.shape[1], device=scores.device)
    return scores.masked_fill(gone, -torch.inf), grades.masked_fill(gone, 0)


def _one_minus(
    scores: Tensor,
    grades: Tensor,
    gains: Tensor,
    norms: Tensor,
    objective: PrecisionMean | RecallMean | DiscountedGain,
    surrogate: Surrogate,
    method: Method,
) -> tuple[Tensor, Tensor]:
    valid = norms > 0
    norms = torch.where(valid, norms, torch.inf)
    metric = rank_metric(scores, grades, gains, norms, objective, surrogate, method)
    return torch.where(valid, 1 - metric, 0.0), valid
