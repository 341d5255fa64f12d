"""Losses of single pairs: positives are pulled above a score, negatives pushed below one."""

import math
from abc import abstractmethod
from typing import Literal, get_args

import torch
from torch import Tensor

from hgld.errors import ConfigError
from hgld.losses.item_sets import ranked_items
from hgld.losses.rank_loss import RankLoss

PairReduction = Literal["mean", "none", "nonzero"]
ContrastiveVariant = Literal["distance", "cosine"]


class PairLoss(RankLoss):
    """A loss that adds up over pairs; a subclass writes :meth:`pull` and :meth:`push`.

    Args:
        reduction: ``mean``: for every query the mean over its positives plus the mean over its negatives, then the
            mean over the queries that have positives. ``none``: those values (Q,) and valid (Q,). ``nonzero``: the mean
            over all positive pairs of the batch that have a loss, plus the mean over all negative pairs that have one.
        level: column of the labels that decides what is positive, 0 the finest.
        normalize: L2-normalise the embeddings.
        exclude_self: leave the query out of its own pairs.
        summed: a query's pairs add up, in place of the two means over them; ``nonzero`` is a mean all the same.

    Raises:
        ConfigError: an unknown reduction.
    """

    def __init__(
        self,
        *,
        reduction: PairReduction,
        level: int = 0,
        normalize: bool = True,
        exclude_self: bool = False,
        summed: bool = False,
    ) -> None:
        if reduction not in get_args(PairReduction):
            expected = ", ".join(get_args(PairReduction))
            raise ConfigError(f"reduction {reduction!r} is unknown; expected one of {expected}.")
        super().__init__(
            graded=False,
            level=level,
            normalize=normalize,
            exclude_self=exclude_self,
            reduction="none" if reduction == "none" else "mean",
        )
        self.over_nonzero = reduction == "nonzero"
        self.summed = summed

    @abstractmethod
    def pull(self, scores: Tensor) -> Tensor:
        """Loss (Q, G) of every pair if it is positive, >= 0."""

    @abstractmethod
    def push(self, scores: Tensor) -> Tensor:
        """Loss (Q, G) of every pair if it is negative, >= 0."""

    def query_losses(
        self, scores: Tensor, grades: Tensor, num_levels: int, left_out: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        ranked = ranked_items(scores, left_out)
        positive = (grades > 0) & ranked
        negative = (grades == 0) & ranked
        pulls = torch.where(positive, self.pull(scores), 0.0)
        pushes = torch.where(negative, self.push(scores), 0.0)
        if self.over_nonzero:
            violating, intruding = (pulls > 0).sum(), (pushes > 0).sum()
            total = pulls.sum(1) / violating.clamp(min=1) + pushes.sum(1) / intruding.clamp(min=1)
            return total * len(scores), torch.ones_like(total, dtype=torch.bool)  # their mean is the sum of both means
        num_positives, num_negatives = positive.sum(1), negative.sum(1)
        pulled, pushed = pulls.sum(1), pushes.sum(1)
        if not self.summed:
            pulled, pushed = pulled / num_positives.clamp(min=1), pushed / num_negatives.clamp(min=1)
        valid = num_positives > 0
        return torch.where(valid, pulled + pushed, 0.0), valid


class CalibrationLoss(PairLoss):
    """The pair loss of ROADMAP (Ramzi et al., "Robust and Decomposable Average Precision", NeurIPS 2021, Eq. 7).

    Positives below ``alpha`` pay ``alpha - s``, negatives above ``beta`` pay ``s - beta``: so scores of different
    queries, and of different batches, come to mean the same. ``reduction="mean"`` is the printed average over each
    query's positives and negatives; ``"nonzero"``, over all pairs of the batch that violate, the published code's.

    Args:
        alpha: score that positives should reach (0.9 in the authors' configurations, as is beta).
        beta: score below which negatives should stay.
        reduction: see :class:`PairLoss`.
        level: column of the labels that decides what is positive, 0 the finest.
        normalize: L2-normalise the embeddings.
        exclude_self: leave the query out of its own pairs.

    Raises:
        ConfigError: an unknown reduction, or thresholds that are not numbers.

    >>> import torch
    >>> loss = CalibrationLoss(exclude_self=True)
    >>> round(float(loss(torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.6, 0.8]]), torch.tensor([0, 0, 0]))), 3)
    0.2
    """

    def __init__(
        self,
        alpha: float = 0.9,
        beta: float = 0.6,
        *,
        reduction: PairReduction = "mean",
        level: int = 0,
        normalize: bool = True,
        exclude_self: bool = False,
    ) -> None:
        super().__init__(reduction=reduction, level=level, normalize=normalize, exclude_self=exclude_self)
        if not math.isfinite(alpha) or not math.isfinite(beta):
            raise ConfigError(f"alpha is {alpha} and beta {beta}; expected two finite scores.")
        self.alpha = alpha
        self.beta = beta

    def pull(self, scores: Tensor) -> Tensor:
        return (self.alpha - scores).clamp(min=0)

    def push(self, scores: Tensor) -> Tensor:
        return (scores - self.beta).clamp(min=0)

    def extra_repr(self) -> str:
        return f"alpha={self.alpha}, beta={self.beta}"


class Contrastive(PairLoss):
    """Contrastive loss on unit vectors, by distances or by cosines.

    ``distance`` (Hadsell et al., "Dimensionality Reduction by Learning an Invariant Mapping", CVPR 2006, up to the
    factor of one half): positives pay d^2, negatives the square of what their distance lacks to ``margin``.

    ``cosine`` (Wang et al., "Cross-Batch Memory for Embedding Learning", CVPR 2020, as the authors' code has it):
    positives pay 1 - s, negatives whose score s is above ``margin`` pay s. A query's pairs add up: of a memory nearly
    all negatives pay nothing, and a mean over them would leave the few that pay without weight. That code divides by
    all queries; here one without positives pays nothing and does not count.

    An item is never its own positive.

    Args:
        margin: ``distance``: the distance that negatives should keep (unit vectors are at most 2 apart); ``cosine``:
            the cosine that they may reach, 0.5 in the authors' code.
        variant: ``distance`` or ``cosine``.
        reduction: see :class:`PairLoss`; with ``cosine`` a query's two sums stand in place of its two means.
        level: column of the labels that decides what is positive, 0 the finest.
        normalize: L2-normalise the embeddings; without, they are taken for unit vectors, d^2 = 2 - 2 s.

    Raises:
        ConfigError: an unknown variant or reduction, or a margin that is no such distance or cosine.

    >>> import torch
    >>> loss = Contrastive(0.5, variant="cosine")
    >>> embeddings = torch.tensor([[1.0, 0.0], [0.6, 0.8], [0.8, -0.6]])  # cosines 0.6, 0.8 and 0
    >>> round(float(loss(embeddings, torch.tensor([0, 0, 1]))), 3)  # (0.4 + 0.8 + 0.4) / 2
    0.8
    """

    def __init__(
        self,
        margin: float = 1.0,
        *,
        variant: ContrastiveVariant = "distance",
        reduction: PairReduction = "mean",
        level: int = 0,
        normalize: bool = True,
    ) -> None:
        if variant not in get_args(ContrastiveVariant):
            expected = ", ".join(get_args(ContrastiveVariant))
            raise ConfigError(f"variant {variant!r} is unknown; expected one of {expected}.")
        super().__init__(
            reduction=reduction, level=level, normalize=normalize, exclude_self=True, summed=variant == "cosine"
        )
        if variant == "cosine" and not 0 <= margin < 1:
            raise ConfigError(f"margin is {margin}; expected the cosine that negatives may reach, in [0, 1).")
        if variant == "distance" and not 0 < margin < math.inf:
            raise ConfigError(f"margin is {margin}; expected a finite distance > 0.")
        self.margin = margin
        self.variant = variant

    def pull(self, scores: Tensor) -> Tensor:
        lacking = (1 - scores).clamp(min=0)
        return lacking if self.variant == "cosine" else 2 * lacking

    def push(self, scores: Tensor) -> Tensor:
        if self.variant == "cosine":
            return torch.where(scores > self.margin, scores, 0.0)
        return (self.margin - unit_distances(scores)).clamp(min=0) ** 2

    def extra_repr(self) -> str:
        return f"margin={self.margin}, variant={self.variant!r}"


def unit_distances(scores: Tensor) -> Tensor:
    """Distances of unit vectors from their cosines, of any shape; what rounding cannot tell from 0 is a constant."""
    return (2 - 2 * scores).clamp(min=torch.finfo(scores.dtype).eps).sqrt()
