"""Average precision with exact ranks and a gradient by blackbox differentiation."""

import math
from typing import Unpack

import torch
from torch import Tensor

from hgld.errors import ConfigError, check_positive
from hgld.losses.kernels.operator import contiguous_like, operator, table_operator
from hgld.losses.rank_loss import RankLoss, RankOptions, item_roles, read_scores, row_blocks


class BlackboxAP(RankLoss):
    """1 - AP of exact ranks (Rolinek et al., "Optimizing Rank-based Metrics with Blackbox Differentiation", CVPR 2020).

    The ranks of a query's gallery items have no useful derivative. So the backward pass moves the scores by ``lambda_``
    times the incoming gradient with respect to the ranks, divided by the gallery's size, and ranks them again. The
    gradient of the scores is the difference of the two rankings divided by ``lambda_``. As in the published code, ranks
    among the positives alone count as constants. The published code draws the margin of every pair from a half-normal
    distribution. Here the margin is a constant, as in the paper, so that the loss is a function of its input. Ties
    count against the query.

    The gradient is not linear in the incoming gradient: a factor on the loss multiplies ``lambda_``. So do not scale
    this loss, as ``torch.amp.GradScaler`` does for fp16: its first factor, 65,536, would move the scores far past one
    another. bf16 needs no scaling.

    Args:
        lambda_: distance by which the scores are moved; with a larger distance more pairs get a gradient.
        margin: alpha of the paper; half of it is subtracted from the scores of positives and added to the scores of
            negatives.
        level: column of the labels that decides what is positive, 0 the finest.
        options: ``normalize``, ``exclude_self`` and ``reduction`` of :class:`hgld.losses.RankLoss`.

    Raises:
        ConfigError: ``lambda_`` is not positive, or the margin is negative.
    """

    def __init__(
        self, lambda_: float = 4.0, margin: float = 0.02, *, level: int = 0, **options: Unpack[RankOptions]
    ) -> None:
        super().__init__(graded=False, level=level, **options)
        check_positive(lambda_=lambda_)
        if not 0 <= margin < math.inf:
            raise ConfigError(f"margin is {margin}; expected a finite number of at least 0.")
        self.lambda_ = lambda_
        self.margin = margin

    @property
    def sums_over_queries(self) -> bool:
        return False  # the gradient is not linear in the incoming gradient

    def query_losses(
        self, scores: Tensor, grades: Tensor, num_levels: int, left_out: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        return blackbox_ap_loss(scores, grades, lambda_=self.lambda_, margin=self.margin, left_out=left_out)

    def extra_repr(self) -> str:
        return f"lambda_={self.lambda_}, margin={self.margin}"


def blackbox_ap_loss(
    scores: Tensor, grades: Tensor, *, lambda_: float = 4.0, margin: float = 0.02, left_out: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Return 1 - AP of every query, with the formulas of :class:`BlackboxAP`.

    Args:
        scores: (Q, G) floating point; half precision is converted to float32.
        grades: (Q, G) integers, positive if above 0.
        lambda_: distance by which the scores are moved for the gradient.
        margin: difference by which a positive's score must exceed a negative's score.
        left_out: (Q,) int64 column that is not ranked, -1 for none.

    Returns:
        values (Q,), 0 if undefined, and valid (Q,) bool.

    Raises:
        InputError: an argument has the wrong shape or dtype.
    """
    scores = read_scores(scores, grades, left_out)
    roles = item_roles(grades, left_out)
    return _blackbox_ap(scores, roles, lambda_, margin), (roles == 2).any(1)


@operator("hgld::blackbox_ap_backward", lambda by_values, scores, *_: contiguous_like(scores))
def _blackbox_ap_backward(by_values: Tensor, scores: Tensor, roles: Tensor, lambda_: float, margin: float) -> Tensor:
    """Return the gradient with respect to the scores (Q, G): the difference of two rankings divided by ``lambda_``."""
    gradient = torch.zeros_like(scores, memory_format=torch.contiguous_format)
    for block in row_blocks(scores):
        gradient[block] = _Ranking(scores[block], roles[block], margin).slopes(by_values[block], lambda_)
    return gradient


@table_operator("hgld::blackbox_ap", lambda scores, *_: scores.new_empty(scores.shape[0]), _blackbox_ap_backward)
def _blackbox_ap(scores: Tensor, roles: Tensor, lambda_: float, margin: float) -> Tensor:
    """Return 1 - AP (Q,); ``lambda_`` only changes the gradient."""
    values = scores.new_zeros(len(scores))
    for block in row_blocks(scores):
        ranking = _Ranking(scores[block], roles[block], margin)
        precision = torch.where(ranking.used, ranking.among / ranking.ranks, 0.0).sum(1)
        num = ranking.used.sum(1)
        values[block] = torch.where(num > 0, 1 - precision / num.clamp(min=1), 0.0).to(scores.dtype)
    return values


def positive_places(positive: Tensor) -> tuple[Tensor, Tensor]:
    """Return the columns of the positives of every row.

    Args:
        positive: (Q, G) bool, whether each item is a positive.

    Returns:
        columns (Q, P), and used (Q, P) bool, False for padding. P is the largest number of positives in a row, or G on
        a GPU.
    """
    if positive.device.type != "cpu":
        return all_places(positive)
    counts = positive.sum(1)
    most = int(counts.max()) if counts.numel() else 0
    rows, columns = positive.nonzero(as_tuple=True)
    slots = torch.arange(len(rows)) - (counts.cumsum(0) - counts)[rows]
    places = torch.zeros(len(positive), most, dtype=torch.int64)
    places[rows, slots] = columns
    return places, torch.arange(most) < counts[:, None]


def all_places(positive: Tensor) -> tuple[Tensor, Tensor]:
    """Return the result of :func:`positive_places` with P = G.

    On a GPU, this saves a synchronization: the host does not wait for the largest number of positives.
    """
    places = positive.to(torch.uint8).argsort(dim=1, descending=True, stable=True)
    return places, torch.arange(positive.shape[1], device=positive.device) < positive.sum(1, keepdim=True)


class _Ranking:
    """Ranks of the positives in a block of queries; equal scores count as higher.

    Only the positives are sorted; a search then finds each negative's position among the positives.

    Attributes:
        used: (q, P) bool, True for positives, which are in order of ascending score, False for padding.
        ranks: (q, P) float64, rank of each positive among all ranked items.
        among: (q, P) float64, rank of each positive among the positives.
    """

    def __init__(self, scores: Tensor, roles: Tensor, margin: float) -> None:
        positive = roles == 2
        self._moved = torch.where(positive, scores - margin / 2, scores + margin / 2)
        self._negative, self._size = roles == 1, (roles > 0).sum(1, keepdim=True)
        places, used = positive_places(positive)
        unsorted = torch.where(used, self._moved.gather(1, places), torch.inf)
        self._found, order = unsorted.sort(dim=1)
        self._columns, self.used = places.gather(1, order), used.gather(1, order)
        self.among = _at_or_above(self._found, self.used)
        self.ranks = self.among + _counted_above(self._found, self._moved, self._negative)

    def slopes(self, by_values: Tensor, lambda_: float) -> Tensor:
        """Move scores by ``lambda_`` times the gradient with respect to ranks, and rank again; return slopes (q, G)."""
        by_share = self._size * self.among / (self.used.sum(1, keepdim=True).clamp(min=1) * self.ranks**2)
        by_share = (by_values[:, None] * by_share).to(self._found.dtype)
        again, order = torch.where(self.used, self._found + lambda_ * by_share, torch.inf).sort(dim=1)
        new = _at_or_above(again, self.used) + _counted_above(again, self._moved, self._negative)
        rise = torch.zeros_like(new).scatter(1, order, new) - self.ranks
        overtaken = torch.searchsorted(self._found, self._moved) - torch.searchsorted(again, self._moved)
        change = torch.where(self._negative, overtaken, 0).to(self._found.dtype)
        change.scatter_add_(1, self._columns, torch.where(self.used, rise, 0.0).to(change.dtype))
        return change / (self._size.clamp(min=1) * lambda_)


def _at_or_above(ordered: Tensor, used: Tensor) -> Tensor:
    """Return (q, P) float64: for each of (q, P) ascending scores, the number of ``used`` scores at least as high."""
    return (used.sum(1, keepdim=True) - torch.searchsorted(ordered, ordered)).double()


def _counted_above(ordered: Tensor, scores: Tensor, counted: Tensor) -> Tensor:
    """Return, for each of (q, P) ascending scores, the number of ``counted`` (q, G) ``scores`` at least as high."""
    passed = torch.searchsorted(ordered, scores, right=True)  # number of scores that are at most the item's score
    counts = ordered.new_zeros(len(ordered), ordered.shape[1] + 1, dtype=torch.float64)
    counts.scatter_add_(1, passed, counted.double())
    return counts.flip(1).cumsum(1).flip(1)[:, 1:]
