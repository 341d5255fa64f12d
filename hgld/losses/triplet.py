"""Triplet loss with semi-hard negatives."""

import math

import torch
from torch import Tensor

from hgld.errors import ConfigError
from hgld.losses.item_sets import positive_places, ranked_items, row_blocks
from hgld.losses.rank_loss import RankLoss, Reduction
from hgld.losses.row_operator import row_operator


class Triplet(RankLoss):
    """Triplet loss on unit vectors (Schroff et al., "FaceNet", CVPR 2015): [d(a, p)^2 - d(a, n)^2 + margin]_+.

    For every anchor and positive the negative is the semi-hard one: the nearest of those farther away than the
    positive, or the farthest of all where every negative is nearer. The query is never its own positive.

    Args:
        margin: in squared distance.
        level: column of the labels that decides what is positive, 0 the finest.
        normalize: L2-normalise the embeddings; without, they are taken for unit vectors, d^2 = 2 - 2 s.
        reduction: ``mean`` over all (anchor, positive) pairs that have a negative, or ``none``: every anchor's
            mean (Q,) and valid (Q,). The first weighs anchors by their positives, the mean of the second does not.

    Raises:
        ConfigError: a margin that is not positive.
    """

    def __init__(
        self, margin: float = 0.2, *, level: int = 0, normalize: bool = True, reduction: Reduction = "mean"
    ) -> None:
        super().__init__(graded=False, level=level, normalize=normalize, exclude_self=True, reduction=reduction)
        if not 0 < margin < math.inf:
            raise ConfigError(f"margin is {margin}; expected a finite squared distance > 0.")
        self.margin = margin

    def query_losses(
        self, scores: Tensor, grades: Tensor, num_levels: int, left_out: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        ranked = ranked_items(scores, left_out)
        positive = (grades > 0) & ranked
        negative = (grades == 0) & ranked
        valid = positive.any(1) & negative.any(1)
        positive &= valid[:, None]
        sums, _ = _triplets(scores, positive, negative, self.margin)
        return pair_means(sums, positive.sum(1), each=self.reduction == "none"), valid

    def extra_repr(self) -> str:
        return f"margin={self.margin}"


def pair_means(sums: Tensor, counts: Tensor, *, each: bool) -> Tensor:
    """Values (Q,) of queries with ``sums`` (Q,) over ``counts`` (Q,) pairs.

    Args:
        sums: what a query's pairs add up to.
        counts: how many pairs a query has.
        each: every query's own mean; else values whose mean over the queries that have pairs is that over all pairs.
    """
    share = counts if each else counts.sum().to(sums.dtype) / (counts > 0).sum().clamp(min=1)
    return sums / share.clamp(min=1)


@row_operator("hgld::triplets")
def _triplets(scores: Tensor, positive: Tensor, negative: Tensor, margin: float) -> tuple[Tensor, Tensor]:
    """Sums (Q,) over an anchor's positives and d sums / d scores (Q, G); a row of positives has negatives."""
    sums, slopes = scores.new_zeros(len(scores)), torch.zeros_like(scores)
    for block in row_blocks(scores):
        places, used = positive_places(positive[block])
        found = scores[block].gather(1, places)
        beyond = _semi_hard(scores[block], negative[block], found)
        hinge = 2 * (scores[block].gather(1, beyond) - found) + margin
        pays = used & (hinge > 0)
        sums[block] = torch.where(pays, hinge, 0.0).sum(1)
        by_score = 2 * pays.to(scores.dtype)
        slopes[block].scatter_add_(1, beyond, by_score).scatter_add_(1, places, -by_score)
    return sums, slopes


def _semi_hard(scores: Tensor, negative: Tensor, found: Tensor) -> Tensor:
    """(Q, P) column of the semi-hard negative of every positive, scored ``found``; arbitrary without negatives."""
    ordered, columns = torch.where(negative, scores, torch.inf).sort(dim=1)
    farther = torch.searchsorted(ordered, found)  # how many negatives score less than the positive
    return columns.gather(1, (farther - 1).clamp(min=0))
