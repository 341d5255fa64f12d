"""PNP: a penalty on the negatives that rank before each positive."""

from typing import Unpack

import torch
from torch import Tensor

from hgld.losses.kernels.objectives import NegativesPenalty, PenaltyVariant
from hgld.losses.kernels.operator import Method, rank_metric
from hgld.losses.surrogate_losses import BinaryOptions, SurrogateLoss, grade_counts, read_ranked
from hgld.losses.surrogates import Sigmoid

Variant = PenaltyVariant


class PNP(SurrogateLoss):
    """Penalizing Negatives before Positives (Li et al., "Rethinking the Optimization of Average Precision", AAAI 2022).

    With R the number of negatives before a positive, smoothed by sigmoids of width ``tau``, the loss of a query is the
    mean over its positives of

    ======= ============================== =======================================================================
    variant f(R)                           slope f'(R)
    ======= ============================== =======================================================================
    ``O``   R                              constant
    ``Iu``  (1 + R) log(1 + R)             grows without bound (the paper's Eq. 6 prints log(1 + R), which is less
                                           by 1 than the derivative of its loss, Eq. 7; the loss is kept)
    ``Ib``  (b R - log(1 + b R)) / b^2     grows, bounded by 1 / b
    ``Ds``  log(1 + R)                     falls, slowly
    ``Dq``  1 - (1 + R)^-alpha             falls, quickly: the paper's best
    ======= ============================== =======================================================================

    Args:
        variant: name of f.
        b: of ``Ib``: 4 on Stanford Online Products, 1 on VehicleID in the paper.
        alpha: of ``Dq``: as large as training stays stable.
        tau: width of the sigmoid, in units of the score.
        options: ``level`` and ``method`` as in :mod:`hgld.losses.surrogate_losses`; the others see
            :class:`hgld.losses.RankLoss`.

    Raises:
        ConfigError: an unknown variant or method, or numbers that are not positive.
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
        NegativesPenalty(variant, b, alpha)  # refuses what is out of range
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
    """Return PNP of every query; the formulas are those of :class:`PNP`.

    Args:
        scores: (Q, G) floating; below float32 they are read as float32.
        grades: (Q, G) integers, positive where above 0.
        variant: name of f.
        b: of ``Ib``.
        alpha: of ``Dq``.
        tau: width of the sigmoid.
        left_out: (Q,) int64, the column that is not ranked, -1 for none.
        method: path of computation, see :mod:`hgld.losses.kernels.operator`.

    Returns:
        values (Q,), 0 where undefined, and valid (Q,) bool.

    Raises:
        ConfigError: an unknown variant, or numbers that are not positive.
        InputError: shapes or dtypes do not fit.
    """
    scores, grades = read_ranked(scores, grades, left_out)
    positive = (grades > 0).to(torch.uint8)
    counts = grade_counts(positive, 1)
    valid = counts[:, 1] > 0
    norms = torch.where(valid, counts[:, 1].double(), torch.inf)
    penalty = NegativesPenalty(variant, b, alpha)
    metric = rank_metric(
        scores, positive, torch.ones_like(counts, dtype=torch.float64), norms, penalty, Sigmoid(tau), method
    )
    return torch.where(valid, -metric, 0.0), valid
