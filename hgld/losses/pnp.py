"""PNP: a penalty on the negatives that rank before each positive."""

import math
from collections.abc import Callable
from typing import Literal, Unpack, get_args

import torch
from torch import Tensor

from hgld.errors import ConfigError
from hgld.losses.kernels.operator import row_operator
from hgld.losses.rank_loss import RankLoss, RankOptions, positive_places, ranked_items, read_scores

Variant = Literal["O", "Iu", "Ib", "Ds", "Dq"]

_MOST_PAIRS = 1 << 22  # pairs at once: a few temporaries of 16 MB in float32


class PNP(RankLoss):
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
        level: column of the labels that decides what is positive, 0 the finest.
        options: see :class:`hgld.losses.RankLoss`.

    Raises:
        ConfigError: an unknown variant, or numbers that are not positive.
    """

    def __init__(
        self,
        variant: Variant = "Dq",
        b: float = 4.0,
        alpha: float = 1.0,
        tau: float = 0.01,
        *,
        level: int = 0,
        **options: Unpack[RankOptions],
    ) -> None:
        super().__init__(graded=False, level=level, **options)
        _check(variant, b, alpha, tau)
        self.variant: Variant = variant
        self.b = b
        self.alpha = alpha
        self.tau = tau

    def query_losses(
        self, scores: Tensor, grades: Tensor, num_levels: int, left_out: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        return pnp_loss(scores, grades, self.variant, b=self.b, alpha=self.alpha, tau=self.tau, left_out=left_out)

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
) -> tuple[Tensor, Tensor]:
    """Return PNP of every query; the formulas are those of :class:`PNP`.

    Only dL/dscores is kept for the backward pass, and the workspace is bounded.

    Args:
        scores: (Q, G) floating; below float32 they are read as float32.
        grades: (Q, G) integers, positive where above 0.
        variant: name of f.
        b: of ``Ib``.
        alpha: of ``Dq``.
        tau: width of the sigmoid.
        left_out: (Q,) int64, the column that is not ranked, -1 for none.

    Returns:
        values (Q,), 0 where undefined, and valid (Q,) bool.

    Raises:
        ConfigError: an unknown variant, or numbers that are not positive.
        InputError: shapes or dtypes do not fit.
    """
    _check(variant, b, alpha, tau)
    scores = read_scores(scores, grades, left_out)
    ranked = ranked_items(scores, left_out)
    positive = (grades > 0) & ranked
    negative = (grades == 0) & ranked
    values, _ = _pnp(scores, positive, negative, variant, b, alpha, tau)
    return values, positive.any(1)


def _check(variant: str, b: float, alpha: float, tau: float) -> None:
    if variant not in get_args(Variant):
        raise ConfigError(f"variant {variant!r} is unknown; expected one of {', '.join(get_args(Variant))}.")
    for name, value in (("b", b), ("alpha", alpha), ("tau", tau)):
        if not 0 < value < math.inf:
            raise ConfigError(f"{name} is {value}; expected a finite number > 0.")


@row_operator("hgld::pnp")
def _pnp(
    scores: Tensor, positive: Tensor, negative: Tensor, variant: str, b: float, alpha: float, tau: float
) -> tuple[Tensor, Tensor]:
    """Return values (Q,) and d values / d scores (Q, G)."""
    penalty = _penalty(variant, b, alpha)
    values, slopes = scores.new_zeros(len(scores), dtype=torch.float64), torch.zeros_like(scores)
    if scores.numel() == 0:
        return values.to(scores.dtype), slopes
    places, used = positive_places(positive)
    shares = used.double() / used.sum(1, keepdim=True).clamp(min=1)
    rows = max(1, _MOST_PAIRS // (max(1, places.shape[1]) * scores.shape[1]))
    width = max(1, _MOST_PAIRS // (rows * scores.shape[1]))
    for start in range(0, len(scores), rows):
        block = slice(start, start + rows)
        for chunk, share in zip(places[block].split(width, dim=1), shares[block].split(width, dim=1), strict=True):
            value, slope = _penalties(scores[block], negative[block], chunk, share, penalty, tau)
            values[block] += value
            slopes[block] += slope
    return values.to(scores.dtype), slopes


def _penalties(
    scores: Tensor,
    negative: Tensor,
    places: Tensor,
    share: Tensor,
    penalty: Callable[[Tensor], tuple[Tensor, Tensor]],
    tau: float,
) -> tuple[Tensor, Tensor]:
    """Sum the penalties of the positives at ``places`` (q, p) of q rows, each weighted by its ``share`` (q, p)."""
    difference = scores[:, None, :] - scores.gather(1, places)[:, :, None]  # (q, p, G): s_j - s_k
    step = torch.sigmoid(difference / tau) * negative[:, None, :]
    value, by_count = penalty(step.sum(dim=2, dtype=torch.float64))
    weight = (share * by_count / tau).to(scores.dtype)
    by_pair = weight[:, :, None] * step * (1 - step)
    slopes = by_pair.sum(dim=1).scatter_add(1, places, -by_pair.sum(dim=2))
    return (share * value).sum(dim=1), slopes


def _penalty(variant: str, b: float, alpha: float) -> Callable[[Tensor], tuple[Tensor, Tensor]]:
    """Return the f of a variant: R -> f(R), f'(R)."""
    if variant == "Iu":
        return lambda r: ((1 + r) * torch.log1p(r), 1 + torch.log1p(r))
    if variant == "Ib":
        return lambda r: ((b * r - torch.log1p(b * r)) / b**2, r / (1 + b * r))
    if variant == "Ds":
        return lambda r: (torch.log1p(r), 1 / (1 + r))
    if variant == "Dq":
        return lambda r: (-torch.expm1(-alpha * torch.log1p(r)), alpha * torch.exp(-(alpha + 1) * torch.log1p(r)))
    return lambda r: (r, torch.ones_like(r))
