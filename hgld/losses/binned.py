"""Average precision over soft bins of scores: soft histograms, the quantised mAP of Revaud et al., and FastAP."""

from collections.abc import Mapping
from typing import ClassVar, Literal, Unpack, get_args

import torch
from torch import Tensor

from hgld.errors import ConfigError, at_least, check_choice
from hgld.losses.kernels.operator import contiguous_like, operator, table_operator
from hgld.losses.rank_loss import RankLoss, RankOptions, item_roles, read_scores, row_blocks

# -- soft histograms --------------------------------------------------------------------------------------------------
#
# Their backward pass is written by hand and runs in blocks of queries. Autograd would keep half a dozen (Q, G) tables,
# but the formulas need only the scores and one byte per pair, from which the bins are computed again.


def soft_histograms(scores: Tensor, roles: Tensor, bins: int, low: float) -> tuple[Tensor, Tensor]:
    """Share every item linearly between the two nearest of ``bins`` bin centres, evenly spaced from 1 down to ``low``.

    Args:
        scores: (Q, G) floating point; a score beyond the outermost centre falls wholly into that centre's bin.
        roles: (Q, G) uint8: 0 for ignored items, 1 for negatives, 2 for positives.
        bins: number of bins M, at least 2.
        low: the lowest centre, below 1.

    Returns:
        two (Q, M) float64 contents of the bins, the highest scores first: one for the positives, one for all items.
    """
    contents = _histograms(scores, roles, bins, low)
    return contents[:, 1], contents.sum(dim=1)


@operator("hgld::soft_histograms_backward", lambda by_contents, scores, *_: contiguous_like(scores))
def _histograms_backward(by_contents: Tensor, scores: Tensor, roles: Tensor, bins: int, low: float) -> Tensor:
    """Return the gradient with respect to the scores (Q, G), given the gradient for the contents (Q, 2, M)."""
    gradient = torch.zeros_like(scores, memory_format=torch.contiguous_format)
    flat = by_contents.reshape(len(scores), 2 * bins).to(scores.dtype)
    for block in row_blocks(scores):
        place, first, _ = _places(scores[block], roles[block], bins, low)
        moves = (roles[block] > 0) & (place >= 0) & (place <= bins - 1)
        by_share = flat[block].gather(1, first + 1) - flat[block].gather(1, first)
        gradient[block] = torch.where(moves, by_share * (-(bins - 1) / (1 - low)), 0.0)
    return gradient


def _shape(scores: Tensor, roles: Tensor, bins: int, low: float) -> Tensor:
    return scores.new_empty(scores.shape[0], 2, bins, dtype=torch.float64)


@table_operator("hgld::soft_histograms", _shape, _histograms_backward)
def _histograms(scores: Tensor, roles: Tensor, bins: int, low: float) -> Tensor:
    """Return (Q, 2, M) float64 contents of the bins, first for the negatives, then for the positives."""
    contents = scores.new_zeros(len(scores), 2 * bins, dtype=torch.float64)
    for block in row_blocks(scores):
        _, first, share = _places(scores[block], roles[block], bins, low)
        counted = (roles[block] > 0).double()
        share = counted * share
        contents[block].scatter_add_(1, first, counted - share).scatter_add_(1, first + 1, share)
    return contents.view(-1, 2, bins)


def _places(scores: Tensor, roles: Tensor, bins: int, low: float) -> tuple[Tensor, Tensor, Tensor]:
    """Return, for (q, G) items, the position in bins, the column of the upper centre, and the lower centre's share."""
    place = (1 - scores) * ((bins - 1) / (1 - low))
    inside = place.clamp(0, bins - 1)
    upper = inside.floor().nan_to_num().clamp(max=bins - 2)  # a NaN stays in the share, and so in the loss
    return place, upper.long() + bins * (roles == 2), inside - upper


# -- the quantised mAP of Revaud et al. -------------------------------------------------------------------------------

Ties = Literal["ignored", "relaxed", "integral"]


class SoftBinAP(RankLoss):
    """1 - AP with the scores sorted into soft bins (Revaud et al., "Learning with Average Precision", ICCV 2019).

    The ``bins`` centres are spaced evenly from 1 down to ``low``. Every score is shared linearly between its two
    nearest centres; a score beyond the outermost centre falls wholly into that centre's bin. AP is the precision after
    each bin, weighted by the recall gained in it. For the paper's class weights use :class:`ClassWeighted`.

    Args:
        bins: M, the number of bin centres (20 in the paper).
        low: the lowest centre. The paper has -1, the published code 0. With 0 the bins of positive scores are twice as
            fine, and scores below 0 get no gradient.
        ties: rule for the items of one bin, which are tied. ``ignored`` is the paper's form. ``relaxed`` and
            ``integral`` approximate tie-aware AP, the average of AP over all orders within a bin (He et al., "Hashing
            as Tie-Aware Learning to Rank", CVPR 2018). ``integral`` replaces the sum over positions by the integral of
            the published code. ``relaxed`` is a simpler form that is smooth in the bins' contents.
        level: column of the labels that decides what is positive, 0 the finest.
        options: ``normalize``, ``exclude_self`` and ``reduction`` of :class:`hgld.losses.RankLoss`.

    Raises:
        ConfigError: ``bins`` is below 2, ``low`` is not below 1, or ``ties`` is unknown.
    """

    other_names: ClassVar[Mapping[str, str]] = {"num_bins": "bins"}

    def __init__(
        self,
        bins: int = 20,
        *,
        low: float = -1.0,
        ties: Ties = "ignored",
        level: int = 0,
        **options: Unpack[RankOptions],
    ) -> None:
        super().__init__(graded=False, level=level, **options)
        at_least(2, bins=bins)
        if not low < 1:
            raise ConfigError(f"low is {low}; expected a score below 1.")
        check_choice("ties", ties, get_args(Ties))
        self.bins = bins
        self.low = low
        self.ties: Ties = ties

    def query_losses(
        self, scores: Tensor, grades: Tensor, num_levels: int, left_out: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        return soft_bin_ap_loss(scores, grades, bins=self.bins, low=self.low, ties=self.ties, left_out=left_out)

    def extra_repr(self) -> str:
        return f"bins={self.bins}, low={self.low}, ties={self.ties!r}"


def soft_bin_ap_loss(
    scores: Tensor,
    grades: Tensor,
    *,
    bins: int = 20,
    low: float = -1.0,
    ties: Ties = "ignored",
    left_out: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Return 1 - AP of every query from soft bins, with the formulas of :class:`SoftBinAP`.

    Args:
        scores: (Q, G) floating point; half precision is converted to float32.
        grades: (Q, G) integers, positive if above 0.
        bins: number of bin centres.
        low: the lowest centre; the highest is 1.
        ties: treatment of ties: ``ignored``, ``relaxed`` or ``integral``.
        left_out: (Q,) int64 column that is not ranked, -1 if all columns are ranked.

    Returns:
        values (Q,), 0 if undefined, and valid (Q,) bool.

    Raises:
        InputError: an argument has the wrong shape or dtype.
    """
    scores = read_scores(scores, grades, left_out)
    roles = item_roles(grades, left_out)
    relevant, everything = soft_histograms(scores, roles, bins, low)
    hits = _PRECISION_SUMS[ties](relevant, everything).sum(1)
    num_positives = (roles == 2).sum(1)
    valid = num_positives > 0
    return torch.where(valid, 1 - hits / num_positives.clamp(min=1), 0.0).to(scores.dtype), valid


def _ratio(part: Tensor, whole: Tensor) -> Tensor:
    """Return part / whole, 0 if the whole is 0, without a NaN in the gradient."""
    filled = whole > 0
    return torch.where(filled, part, 0.0) / torch.where(filled, whole, 1.0)


def _eager_precision(relevant: Tensor, everything: Tensor) -> Tensor:
    return relevant * _ratio(relevant.cumsum(1), everything.cumsum(1))


def _relaxed_precision(relevant: Tensor, everything: Tensor) -> Tensor:
    """Return the precision at the mean position of each bin's items, times its positives (He et al. 2018)."""
    hits, seen = relevant.cumsum(1), everything.cumsum(1)
    return relevant * (2 * hits - relevant + 1) / (2 * seen - everything + 1)


def _integral_precision(relevant: Tensor, everything: Tensor) -> Tensor:
    """Return the integral of precision over each bin, in which positives are spaced evenly (He et al. 2018)."""
    before_hits, before = relevant.cumsum(1) - relevant, everything.cumsum(1) - everything
    slope = _ratio((relevant - 1).clamp(min=0), (everything - 1).clamp(min=0))
    start = before + 1
    gained = everything * slope + (before_hits + 1 - slope * start) * torch.log1p(everything / start)
    return _ratio(relevant, everything) * gained


_PRECISION_SUMS = {"ignored": _eager_precision, "relaxed": _relaxed_precision, "integral": _integral_precision}


# -- FastAP -----------------------------------------------------------------------------------------------------------
#
# FastAP is average precision over a histogram of distances.


class FastAP(RankLoss):
    """1 - FastAP (Cakir et al., "Deep Metric Learning to Rank", CVPR 2019).

    Squared distances of unit vectors are in 0..4. Each distance is shared linearly between the two nearest of the
    ``bins`` + 1 bin edges. Since d^2 = 2 - 2s, this is :class:`SoftBinAP` with ``bins`` + 1 centres; the two papers
    differ only in the number of bins. The published code excludes the query from its own gallery:
    ``exclude_self=True``.

    Args:
        bins: number of bins, of width 4 / bins in squared distance.
        level: column of the labels that decides what is positive, 0 the finest.
        options: ``normalize``, ``exclude_self`` and ``reduction`` of :class:`hgld.losses.RankLoss`.

    Raises:
        ConfigError: ``bins`` is below 1.
    """

    other_names: ClassVar[Mapping[str, str]] = {"num_bins": "bins"}

    def __init__(self, bins: int = 20, *, level: int = 0, **options: Unpack[RankOptions]) -> None:
        super().__init__(graded=False, level=level, **options)
        at_least(1, bins=bins)
        self.bins = bins

    def query_losses(
        self, scores: Tensor, grades: Tensor, num_levels: int, left_out: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        return soft_bin_ap_loss(scores, grades, bins=self.bins + 1, left_out=left_out)

    def extra_repr(self) -> str:
        return f"bins={self.bins}"
