"""Average precision with exact ranks and a gradient by blackbox differentiation."""

import math
from typing import Any, Unpack

import torch
from torch import Tensor

from hgld.errors import ConfigError
from hgld.losses.item_sets import ranked_items
from hgld.losses.rank_loss import RankLoss, RankOptions


class BlackboxAP(RankLoss):
    """1 - AP of exact ranks (Rolinek et al., "Optimizing Rank-based Metrics with Blackbox Differentiation", CVPR 2020).

    The ranks of a query's gallery, divided by its size, have no useful derivative. Backwards, the scores are moved by
    ``lambda_`` times the gradient that arrives at the ranks and ranked again: the difference of the two rankings over
    ``lambda_`` is the gradient of the scores. As in the published code, ranks among the positives alone
    count as constants. There the margin is drawn from a half-normal distribution for every pair; here it is the paper's
    constant, so that the loss is a function of its input. Ties count against the query.

    Args:
        lambda_: how far the scores are moved: the larger, the more pairs the gradient sees.
        margin: alpha of the paper; scores of positives are lowered and those of negatives raised by half of it.
        level: column of the labels that decides what is positive, 0 the finest.
        options: see :class:`hgld.losses.RankLoss`.

    Raises:
        ConfigError: ``lambda_`` is not positive, or the margin is negative.
    """

    def __init__(
        self, lambda_: float = 4.0, margin: float = 0.02, *, level: int = 0, **options: Unpack[RankOptions]
    ) -> None:
        super().__init__(graded=False, level=level, **options)
        if not 0 < lambda_ < math.inf or not 0 <= margin < math.inf:
            raise ConfigError(f"lambda_ is {lambda_} and margin {margin}; expected lambda_ > 0 and margin >= 0.")
        self.lambda_ = lambda_
        self.margin = margin

    def query_losses(
        self, scores: Tensor, grades: Tensor, num_levels: int, left_out: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        return blackbox_ap_loss(scores, grades, lambda_=self.lambda_, margin=self.margin, left_out=left_out)

    def extra_repr(self) -> str:
        return f"lambda_={self.lambda_}, margin={self.margin}"


def blackbox_ap_loss(
    scores: Tensor, grades: Tensor, *, lambda_: float = 4.0, margin: float = 0.02, left_out: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """1 - AP of every query; the formulas are those of :class:`BlackboxAP`.

    Args:
        scores: (Q, G) floating.
        grades: (Q, G), positive where above 0.
        lambda_: how far the scores are moved for the gradient.
        margin: between positives and negatives.
        left_out: (Q,) int64, the column that is not ranked, -1 for none.

    Returns:
        values (Q,), 0 where undefined, and valid (Q,) bool.
    """
    ranked = ranked_items(scores, left_out)
    positive = (grades > 0) & ranked
    moved = torch.where(positive, scores - margin / 2, scores + margin / 2)
    shares, among_positives = _BlackboxRanks.apply(moved, ranked, positive, lambda_)
    precision = torch.where(positive, among_positives / shares, 0.0)
    num_positives = positive.sum(1)
    valid = num_positives > 0
    return torch.where(valid, 1 - precision.sum(1) / num_positives.clamp(min=1), 0.0), valid


class _BlackboxRanks(torch.autograd.Function):
    """Ranks among all ranked items and among the positives, both over the number of ranked items.

    The first has the gradient by blackbox differentiation, the second none.
    """

    @staticmethod
    def forward(ctx: Any, scores: Tensor, ranked: Tensor, positive: Tensor, lambda_: float) -> tuple[Tensor, Tensor]:
        shares, among_positives = _shares(scores, ranked, positive)
        ctx.save_for_backward(scores, ranked, shares)
        ctx.lambda_ = lambda_
        ctx.mark_non_differentiable(among_positives)
        return shares, among_positives

    @staticmethod
    def backward(ctx: Any, *by_outputs: Tensor) -> tuple[Tensor, None, None, None]:
        scores, ranked, shares = ctx.saved_tensors
        (moved,) = _shares(scores + ctx.lambda_ * by_outputs[0], ranked)
        return torch.where(ranked, moved - shares, 0.0) / ctx.lambda_, None, None, None


def _shares(scores: Tensor, ranked: Tensor, *subsets: Tensor) -> tuple[Tensor, ...]:
    """Ranks, equal scores last, over the number of ranked items: (Q, G) tables among the ranked and among each subset.

    Of items outside a set the value is arbitrary; among the ranked it is above 0.
    """
    ordered, columns = torch.where(ranked, scores, -torch.inf).sort(dim=1)
    first = torch.searchsorted(ordered, ordered)  # of each group of equal scores
    size = ranked.sum(1, keepdim=True).clamp(min=1)
    counts = [scores.shape[1] - first]
    for subset in subsets:
        member = subset.gather(1, columns).long()
        from_here = member.sum(1, keepdim=True) - member.cumsum(1) + member
        counts.append(from_here.gather(1, first))
    return tuple(torch.zeros_like(scores).scatter(1, columns, count.to(scores.dtype) / size) for count in counts)
