"""FastAP: average precision over a histogram of distances."""

from typing import Unpack

from torch import Tensor

from hgld.errors import ConfigError
from hgld.losses.rank_loss import RankLoss, RankOptions
from hgld.losses.soft_bin_ap import soft_bin_ap_loss


class FastAP(RankLoss):
    """1 - FastAP (Cakir et al., "Deep Metric Learning to Rank", CVPR 2019).

    Squared distances of unit vectors, 0..4, are shared linearly between the ``bins`` + 1 edges of as many bins. Since
    d^2 = 2 - 2s, this is :class:`SoftBinAP` with ``bins`` + 1 centres; the two papers differ in the count alone. The
    published code leaves the query out of its own gallery: ``exclude_self=True``.

    Args:
        bins: number of bins, of width 4 / bins in squared distance.
        level: column of the labels that decides what is positive, 0 the finest.
        options: see :class:`hgld.losses.RankLoss`.

    Raises:
        ConfigError: no bin.
    """

    def __init__(self, bins: int = 20, *, level: int = 0, **options: Unpack[RankOptions]) -> None:
        super().__init__(graded=False, level=level, **options)
        if bins < 1:
            raise ConfigError(f"bins is {bins}; expected at least 1.")
        self.bins = bins

    def query_losses(
        self, scores: Tensor, grades: Tensor, num_levels: int, left_out: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        return soft_bin_ap_loss(scores, grades, bins=self.bins + 1, left_out=left_out)

    def extra_repr(self) -> str:
        return f"bins={self.bins}"
