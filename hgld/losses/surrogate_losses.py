"""Rank losses that replace the step function of a metric by a surrogate: the Smooth and the Sup family.

In the Smooth losses every step becomes a sigmoid (Brown et al., "Smooth-AP", ECCV 2020; Patel et al., "Recall@k
Surrogate Loss", CVPR 2022). In the Sup losses, steps over items of the same or a higher grade stay exact, without a
gradient. Steps over items of a lower grade become a :class:`~hgld.losses.kernels.objectives.SupStep`. So the Sup losses
bound 1 - metric from above (Ramzi et al., "Optimization of Rank Losses for Image Retrieval", arXiv 2309.08250, earlier
ROADMAP, NeurIPS 2021, and HAPPIER, ECCV 2022). The grade, not the relevance, decides which item is lower, because
population-weighted relevance need not grow with the grade.

These arguments have the same meaning in all losses:

- ``tau``: width of the sigmoid, in units of the score.
- ``rho``: slope of the straight line of :class:`SupStep`.
- ``delta``: score difference at which the line begins.
- ``offset``: value of the line at ``delta``; None: the value that makes H^- continuous (published: 1.44).
- ``method``: implementation: auto, pair or eager (:mod:`hgld.losses.kernels.operator`).
- ``level``, in binary losses: column of the labels that decides what is positive, 0 the finest.
- ``normalize``, ``exclude_self`` and ``reduction``: options of :class:`hgld.losses.RankLoss`.

All losses raise ConfigError if a number is out of range or an option is unknown.
"""

from collections.abc import Mapping, Sequence
from typing import ClassVar, Unpack, get_args

import torch
from torch import Tensor

from hgld.errors import check_choice
from hgld.losses.kernels.objectives import (
    DiscountedGain,
    NegativesPenalty,
    Objective,
    PenaltyVariant,
    PrecisionMean,
    RecallMean,
    Sigmoid,
    SupStep,
    Surrogate,
)
from hgld.losses.kernels.operator import Method, rank_metric
from hgld.losses.rank_loss import RankLoss, RankOptions, read_scores
from hgld.relevance import GainFunction, RelevanceKind

# -- gains ------------------------------------------------------------------------------------------------------------
#
# Gains depend only on the number of items of each grade, not on the scores.


def grade_counts(grades: Tensor, num_levels: int) -> Tensor:
    """Return the number of items of each grade in every row of (Q, G) ``grades``: (Q, L + 1) int64."""
    positive = [(grades == grade).sum(dim=1) for grade in range(1, num_levels + 1)]
    counts = torch.stack(positive, dim=1)
    return torch.cat([grades.shape[1] - counts.sum(dim=1, keepdim=True), counts], dim=1)


def ideal_dcg(counts: Tensor, gains: Tensor, gallery_size: int) -> Tensor:
    """Return the ideal DCG, (Q,) float64: the DCG of the whole gallery in order of descending grade."""
    places = torch.arange(1, gallery_size + 1, dtype=torch.float64, device=counts.device)
    discounts = torch.nn.functional.pad((1 / torch.log2(1 + places)).cumsum(dim=0), (1, 0))
    reached = discounts[counts.flip(1).cumsum(dim=1).flip(1)]  # sum of discounts of the items of grade l or more
    within = reached - torch.nn.functional.pad(reached[:, 1:], (0, 1))
    return (gains[:, 1:] * within[:, 1:]).sum(dim=1)


# -- functions of scores and grades -----------------------------------------------------------------------------------
#
# Arguments: ``scores`` (Q, G) floating point (half precision becomes float32), and ``grades`` (Q, G) integers in 0..L
# (:func:`hgld.shared_levels`). Results: values (Q,), 0 if a query has no positive, and valid (Q,) bool.

_OUT_OF_RANGE = 255  # grades are bytes; a larger grade becomes this value, for which the operator raises an error


def graded_ap_loss(
    scores: Tensor,
    grades: Tensor,
    num_levels: int,
    surrogate: Surrogate,
    gain: GainFunction | None = None,
    *,
    left_out: Tensor | None = None,
    method: Method = "auto",
) -> tuple[Tensor, Tensor]:
    """Return 1 - H-AP with a smooth rank; if there is one level, this is 1 - AP.

    With ``SupStep`` this is the loss of SupAP and SupHAP, with ``Sigmoid`` the loss of SmoothAP and SmoothHAP.

    Args:
        scores: (Q, G) finite scores.
        grades: (Q, G) integers in 0..L.
        num_levels: number of levels L.
        surrogate: surrogate of the step function.
        gain: relevance of a grade; ``population`` with alpha 1 if None.
        left_out: (Q,) column that is not ranked (the query itself), -1 if the row ranks all columns. None: every
            row ranks all columns.
        method: implementation: auto, pair or eager (:mod:`hgld.losses.kernels.operator`).

    Returns:
        values (Q,) and valid (Q,) bool.

    Raises:
        InputError: an argument has the wrong shape or dtype.

    >>> import torch
    >>> from hgld.losses.kernels.objectives import SupStep
    >>> values, valid = graded_ap_loss(torch.tensor([[0.9, 0.1, 0.5]]), torch.tensor([[0, 1, 2]]), 2, SupStep())
    >>> valid.tolist()
    [True]
    """
    scores, grades = read_ranked(scores, grades, left_out)
    counts = grade_counts(grades, num_levels)
    gains = (gain or GainFunction()).of_counts(counts)
    totals = (gains * counts).sum(dim=1)
    return _from_best(1, scores, grades, gains, totals, PrecisionMean(), surrogate, method)


def recall_loss(
    scores: Tensor,
    grades: Tensor,
    surrogate: Surrogate,
    recall: RecallMean | None = None,
    *,
    left_out: Tensor | None = None,
    method: Method = "auto",
) -> tuple[Tensor, Tensor]:
    """Return 1 - TR@K with a smooth rank and a smooth cutoff, averaged over the cutoffs K; grades are 0 or 1.

    ``recall`` holds the cutoffs and their temperatures. The other arguments, the results and the errors are the same as
    in :func:`graded_ap_loss`.
    """
    scores, grades = read_ranked(scores, grades, left_out)
    counts = grade_counts(grades, 1)
    gains = (counts >= 0).double()
    return _from_best(1, scores, grades, gains, counts[:, 1].double(), recall or RecallMean(), surrogate, method)


def ndcg_loss(
    scores: Tensor,
    grades: Tensor,
    num_levels: int,
    surrogate: Surrogate,
    *,
    left_out: Tensor | None = None,
    method: Method = "auto",
) -> tuple[Tensor, Tensor]:
    """Return 1 - NDCG over the whole gallery with a smooth rank and the gain 2^grade - 1.

    The arguments, results and errors are the same as in :func:`graded_ap_loss`.
    """
    scores, grades = read_ranked(scores, grades, left_out)
    counts = grade_counts(grades, num_levels)
    gains = GainFunction("exponential").of_counts(counts)
    ideal = ideal_dcg(counts, gains, scores.shape[1])
    return _from_best(1, scores, grades, gains, ideal, DiscountedGain(), surrogate, method)


def read_ranked(scores: Tensor, grades: Tensor, left_out: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return scores in float32 or float64 and grades as bytes; excluded items get score -inf and grade 0."""
    scores = read_scores(scores, grades, left_out)
    grades = grades if grades.dtype == torch.uint8 else grades.clamp(max=_OUT_OF_RANGE).to(torch.uint8)
    if left_out is None:
        return scores, grades
    gone = left_out[:, None] == torch.arange(scores.shape[1], device=scores.device)
    return scores.masked_fill(gone, -torch.inf), grades.masked_fill(gone, 0)


def _from_best(
    best: int,
    scores: Tensor,
    grades: Tensor,
    gains: Tensor,
    norms: Tensor,
    objective: Objective,
    surrogate: Surrogate,
    method: Method,
) -> tuple[Tensor, Tensor]:
    """Return ``best`` - metric of every query, 0 without a positive, and whether the query has a positive."""
    valid = norms > 0
    norms = torch.where(valid, norms, torch.inf)
    metric = rank_metric(scores, grades, gains, norms, objective, surrogate, method)
    return torch.where(valid, best - metric, 0.0), valid


# -- functions of embeddings and labels -------------------------------------------------------------------------------


class GradedOptions(RankOptions, total=False):
    """Keyword options of a graded loss."""

    method: Method


class BinaryOptions(GradedOptions, total=False):
    """Keyword options of a binary loss."""

    level: int


class SurrogateLoss(RankLoss):
    """A rank loss with a surrogate of the step function; a subclass chooses the metric.

    Args:
        surrogate: surrogate of the step function.
        graded: whether the loss reads all levels.
        method: implementation: auto, pair or eager (:mod:`hgld.losses.kernels.operator`).
        level: column that a binary loss reads.
        options: ``normalize``, ``exclude_self`` and ``reduction`` of :class:`hgld.losses.RankLoss`.
    """

    other_names: ClassVar[Mapping[str, str]] = {"temperature": "tau", "anneal": "tau"}

    def __init__(
        self,
        surrogate: Surrogate,
        *,
        graded: bool,
        method: Method = "auto",
        level: int = 0,
        **options: Unpack[RankOptions],
    ) -> None:
        super().__init__(graded=graded, level=level, **options)
        check_choice("method", method, get_args(Method))
        self.surrogate = surrogate
        self.method: Method = method

    def extra_repr(self) -> str:
        return f"{self.surrogate}, method={self.method!r}"


class _APLoss(SurrogateLoss):
    """1 - AP; with ``graded``, 1 - H-AP."""

    gain = GainFunction()

    def query_losses(
        self, scores: Tensor, grades: Tensor, num_levels: int, left_out: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        surrogate, method = self.surrogate, self.method
        return graded_ap_loss(scores, grades, num_levels, surrogate, self.gain, left_out=left_out, method=method)


class _HAPLoss(_APLoss):
    def __init__(
        self,
        surrogate: Surrogate,
        alpha: float,
        relevance: RelevanceKind,
        weights: Sequence[float] | None,
        options: GradedOptions,
    ) -> None:
        super().__init__(surrogate, graded=True, **options)
        self.gain = GainFunction(relevance, alpha, None if weights is None else tuple(weights))


class SmoothAP(_APLoss):
    """1 - AP with sigmoids in place of steps (Brown et al., ECCV 2020, Eq. 6).

    Args:
        tau: width of the sigmoid, in units of the score.
        options: ``level`` (column of the labels that decides what is positive, 0 the finest), ``method``
            (implementation: auto, pair or eager), ``normalize``, ``exclude_self`` and ``reduction``.

    >>> import torch
    >>> loss = SmoothAP(tau=0.01)
    >>> round(float(loss(torch.eye(4), torch.tensor([0, 0, 1, 1]))), 3)
    0.167
    """

    def __init__(self, tau: float = 0.01, **options: Unpack[BinaryOptions]) -> None:
        super().__init__(Sigmoid(tau), graded=False, **options)


class SupAP(_APLoss):
    """An upper bound of 1 - AP (Ramzi et al., NeurIPS 2021, Eq. 6).

    Args:
        tau: width of the sigmoid, in units of the score.
        rho: slope of the straight line beyond ``delta``.
        delta: score difference at which the straight line begins.
        offset: value of the surrogate at ``delta``; None: the value that makes it continuous (published: 1.44).
        options: ``level`` (column of the labels that decides what is positive, 0 the finest), ``method``
            (implementation: auto, pair or eager), ``normalize``, ``exclude_self`` and ``reduction``.
    """

    def __init__(
        self,
        tau: float = 0.01,
        rho: float = 100.0,
        delta: float = 0.05,
        offset: float | None = None,
        **options: Unpack[BinaryOptions],
    ) -> None:
        super().__init__(SupStep(tau, rho, delta, offset), graded=False, **options)


class SmoothHAP(_HAPLoss):
    """1 - H-AP with sigmoids in place of the steps of Hrank+ and of the rank.

    Args:
        alpha: exponent of the relevances ``population`` and ``total``.
        tau: width of the sigmoid, in units of the score.
        relevance: gain of a grade: population, total, weighted_ap or exponential (:func:`hgld.graded_relevance`).
        weights: weights of ``weighted_ap``, one per level, coarsest first.
        options: ``method`` (implementation: auto, pair or eager), ``normalize``, ``exclude_self``, ``reduction``.
    """

    def __init__(
        self,
        alpha: float = 1.0,
        tau: float = 0.01,
        *,
        relevance: RelevanceKind = "population",
        weights: Sequence[float] | None = None,
        **options: Unpack[GradedOptions],
    ) -> None:
        super().__init__(Sigmoid(tau), alpha, relevance, weights, options)


class SupHAP(_HAPLoss):
    """An upper bound of 1 - H-AP (Ramzi et al., ECCV 2022): the rank term of HAPPIER (alpha 1) and HAPPIER_F (3 or 5).

    Args:
        alpha: exponent of the relevances ``population`` and ``total``: a larger exponent gives the finest level more
            weight.
        tau: width of the sigmoid, in units of the score.
        rho: slope of the straight line beyond ``delta``.
        delta: score difference at which the straight line begins.
        offset: value of the surrogate at ``delta``; None: the value that makes it continuous (published: 1.44).
        relevance: gain of a grade: population, total, weighted_ap or exponential (:func:`hgld.graded_relevance`).
        weights: weights of ``weighted_ap``, one per level, coarsest first.
        options: ``method`` (implementation: auto, pair or eager), ``normalize``, ``exclude_self``, ``reduction``.
    """

    def __init__(
        self,
        alpha: float = 1.0,
        tau: float = 0.01,
        rho: float = 100.0,
        delta: float = 0.05,
        offset: float | None = None,
        *,
        relevance: RelevanceKind = "population",
        weights: Sequence[float] | None = None,
        **options: Unpack[GradedOptions],
    ) -> None:
        super().__init__(SupStep(tau, rho, delta, offset), alpha, relevance, weights, options)


class _RecallLoss(SurrogateLoss):
    def __init__(self, surrogate: Surrogate, recall: RecallMean, options: BinaryOptions) -> None:
        super().__init__(surrogate, graded=False, **options)
        self.recall = recall

    def query_losses(
        self, scores: Tensor, grades: Tensor, num_levels: int, left_out: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        return recall_loss(scores, grades, self.surrogate, self.recall, left_out=left_out, method=self.method)

    def extra_repr(self) -> str:
        return f"{self.recall}, {super().extra_repr()}"


class SmoothRecall(_RecallLoss):
    """1 - TR@K averaged over cutoffs K, with sigmoids in the rank and at the cutoff (Patel et al., CVPR 2022).

    Args:
        k: the cutoffs K.
        temperature: width of the sigmoid at the cutoff, in ranks; one for all cutoffs, or one per cutoff. Patel et
            al.'s code has 1, 2, 4, 8, 16 for the default cutoffs.
        tau: width of the sigmoid, in units of the score.
        clip: whether to clip the count of positives within the first K at K, as Patel et al.'s code does; with wide
            sigmoids the count may exceed K.
        options: ``level`` (column of the labels that decides what is positive, 0 the finest), ``method``
            (implementation: auto, pair or eager), ``normalize``, ``exclude_self`` and ``reduction``.
    """

    def __init__(
        self,
        k: Sequence[int] = (1, 2, 4, 8, 16),
        temperature: float | Sequence[float] = 1.0,
        tau: float = 0.01,
        *,
        clip: bool = True,
        **options: Unpack[BinaryOptions],
    ) -> None:
        super().__init__(Sigmoid(tau), RecallMean.of(k, temperature, clip=clip), options)


class SupRecall(_RecallLoss):
    """1 - TR@K averaged over cutoffs K, with SupStep in the rank and a sigmoid at the cutoff (Ramzi et al., 2023).

    The smooth rank is an upper bound of the rank. The loss is not a bound, because of the sigmoid at the cutoff.

    Args:
        k: the cutoffs K.
        temperature: width of the sigmoid at the cutoff, in ranks; one for all cutoffs, or one per cutoff.
        tau: width of the sigmoid, in units of the score.
        rho: slope of the straight line beyond ``delta``.
        delta: score difference at which the straight line begins.
        offset: value of the surrogate at ``delta``; None: the value that makes it continuous (published: 1.44).
        clip: whether to clip the count of positives within the first K at K; Ramzi et al. do not clip.
        options: ``level`` (column of the labels that decides what is positive, 0 the finest), ``method``
            (implementation: auto, pair or eager), ``normalize``, ``exclude_self`` and ``reduction``.
    """

    def __init__(
        self,
        k: Sequence[int] = (1, 2, 4, 8, 16),
        temperature: float | Sequence[float] = 1.0,
        tau: float = 0.01,
        rho: float = 100.0,
        delta: float = 0.05,
        offset: float | None = None,
        *,
        clip: bool = False,
        **options: Unpack[BinaryOptions],
    ) -> None:
        super().__init__(SupStep(tau, rho, delta, offset), RecallMean.of(k, temperature, clip=clip), options)


class SupNDCG(SurrogateLoss):
    """An upper bound of 1 - NDCG over the whole gallery, gain 2^grade - 1 (Ramzi et al., arXiv 2309.08250).

    Args:
        tau: width of the sigmoid, in units of the score.
        rho: slope of the straight line beyond ``delta``.
        delta: score difference at which the straight line begins.
        offset: value of the surrogate at ``delta``; None: the value that makes it continuous (published: 1.44).
        options: ``method`` (implementation: auto, pair or eager), ``normalize``, ``exclude_self``, ``reduction``.
    """

    def __init__(
        self,
        tau: float = 0.01,
        rho: float = 100.0,
        delta: float = 0.05,
        offset: float | None = None,
        **options: Unpack[GradedOptions],
    ) -> None:
        super().__init__(SupStep(tau, rho, delta, offset), graded=True, **options)

    def query_losses(
        self, scores: Tensor, grades: Tensor, num_levels: int, left_out: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        return ndcg_loss(scores, grades, num_levels, self.surrogate, left_out=left_out, method=self.method)


Variant = PenaltyVariant


class PNP(SurrogateLoss):
    """Penalizing Negatives before Positives (Li et al., "Rethinking the Optimization of Average Precision", AAAI 2022).

    R is the number of negatives before a positive, smoothed by sigmoids of width ``tau``. The loss of a query is the
    mean of f(R) over its positives:

    ======= ============================== =======================================================================
    variant f(R)                           slope f'(R)
    ======= ============================== =======================================================================
    ``O``   R                              constant
    ``Iu``  (1 + R) log(1 + R)             grows without bound: log(1 + R) + 1. The paper's Eq. 6 omits the 1; hgld
                                           follows the loss, Eq. 7
    ``Ib``  (b R - log(1 + b R)) / b^2     grows, bounded by 1 / b
    ``Ds``  log(1 + R)                     falls, slowly
    ``Dq``  1 - (1 + R)^-alpha             falls, quickly: the paper's best
    ======= ============================== =======================================================================

    Args:
        variant: name of f.
        b: parameter of ``Ib``: 4 on Stanford Online Products, 1 on VehicleID in the paper.
        alpha: parameter of ``Dq``: choose the largest value with stable training.
        tau: width of the sigmoid, in units of the score.
        options: ``level`` (column of the labels that decides what is positive, 0 the finest), ``method``
            (implementation: auto, pair or eager), ``normalize``, ``exclude_self`` and ``reduction``.

    Raises:
        ConfigError: the variant or method is unknown, or a number is not positive.
    """

    def __init__(
        self,
        variant: Variant = "Dq",
        b: float = 4.0,
        alpha: float = 1.0,
        tau: float = 0.01,
        **options: Unpack[BinaryOptions],
    ) -> None:
        super().__init__(Sigmoid(tau), graded=False, **options)
        NegativesPenalty(variant, b, alpha)  # fails if a number is out of range
        self.variant: Variant = variant
        self.b = b
        self.alpha = alpha
        self.tau = tau

    def query_losses(
        self, scores: Tensor, grades: Tensor, num_levels: int, left_out: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        options = {"b": self.b, "alpha": self.alpha, "tau": self.tau}
        return pnp_loss(scores, grades, self.variant, **options, left_out=left_out, method=self.method)

    def extra_repr(self) -> str:
        return f"variant={self.variant!r}, b={self.b}, alpha={self.alpha}, tau={self.tau}"


def pnp_loss(
    scores: Tensor,
    grades: Tensor,
    variant: Variant = "Dq",
    *,
    b: float = 4.0,
    alpha: float = 1.0,
    tau: float = 0.01,
    left_out: Tensor | None = None,
    method: Method = "auto",
) -> tuple[Tensor, Tensor]:
    """Return the PNP loss of every query, with the formulas of :class:`PNP`.

    Args:
        scores: (Q, G) floating point; half precision is converted to float32.
        grades: (Q, G) integers; items of grades above 0 are positives.
        variant: name of f.
        b: parameter of ``Ib``.
        alpha: parameter of ``Dq``.
        tau: width of the sigmoid.
        left_out: (Q,) int64 column that is not ranked, -1 for none.
        method: implementation: auto, pair or eager (:mod:`hgld.losses.kernels.operator`).

    Returns:
        values (Q,), 0 if undefined, and valid (Q,) bool.

    Raises:
        ConfigError: the variant is unknown, or a number is not positive.
        InputError: an argument has the wrong shape or dtype.
    """
    scores, grades = read_ranked(scores, grades, left_out)
    positive = (grades > 0).to(torch.uint8)
    counts = grade_counts(positive, 1)
    penalty, gains = NegativesPenalty(variant, b, alpha), torch.ones_like(counts, dtype=torch.float64)
    return _from_best(0, scores, positive, gains, counts[:, 1].double(), penalty, Sigmoid(tau), method)
