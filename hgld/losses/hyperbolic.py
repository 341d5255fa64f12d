"""A softmax over the pairs of a batch by their distances in hyperbolic space."""

import math

import torch
from torch import Tensor, nn

from hgld.errors import ConfigError
from hgld.losses.rank_loss import RankLoss, Reduction, ranked_items

_LEAST = 1e-12  # of u below, where the root of the distance has no slope


class HyperbolicPairs(RankLoss):
    """Cross-entropy of a positive among the negatives by hyperbolic distance (Ermolov et al., "Hyp-ViT", CVPR 2022).

    "Hyperbolic Vision Transformers: Combining Improvements in Metric Learning": an embedding is clipped to the length
    ``radius`` (Eq. 8) and mapped into the Poincare ball of curvature -c (Eq. 4); with d the distance there (Eq. 2 and
    3), a query's positive p pays ``-log(exp(-d_p / t) / (exp(-d_p / t) + sum_neg exp(-d_n / t)))`` (Eq. 5 and 6).

    Differs from the paper: every embedding has the length of the clipping, also one that is shorter, so that the order
    by distance is that by cosine, by which hgld ranks; and the negatives are all of the batch, where the authors' code
    takes those of two images a class at a time. Over several levels (:class:`SumOverLevels`) it is a hyperbolic
    loss of a whole hierarchy. An item is never its own positive.

    Args:
        temperature: t (0.2 in the paper).
        curvature: c (0.1 there).
        radius: length of an embedding before it is mapped (2.3 there).
        level: column of the labels that decides what is positive, 0 the finest.
        normalize: L2-normalise the embeddings; without, they are taken for unit vectors.
        reduction: see :class:`RankLoss`.

    Raises:
        ConfigError: numbers that are not finite and > 0.

    >>> import torch
    >>> loss = HyperbolicPairs()
    >>> round(float(loss(torch.eye(4)[[0, 0, 1, 1]], torch.tensor([0, 0, 1, 1]))), 3)
    0.0
    """

    def __init__(
        self,
        temperature: float = 0.2,
        curvature: float = 0.1,
        radius: float = 2.3,
        *,
        level: int = 0,
        normalize: bool = True,
        reduction: Reduction = "mean",
    ) -> None:
        super().__init__(graded=False, level=level, normalize=normalize, exclude_self=True, reduction=reduction)
        if not all(0 < number < math.inf for number in (temperature, curvature, radius)):
            raise ConfigError(
                f"temperature is {temperature}, curvature {curvature} and radius {radius}; expected finite numbers > 0."
            )
        self.temperature = temperature
        self.curvature = curvature
        self.radius = radius

    def distances(self, scores: Tensor) -> Tensor:
        """Return the distances in the ball of (Q, G) cosines: cosh(sqrt(c) d) = 1 + sinh(2 sqrt(c) r)^2 (1 - s).

        That is 1 + 2 c |x - y|^2 / ((1 - c |x|^2) (1 - c |y|^2)) for x and y of the length tanh(sqrt(c) r) / sqrt(c).
        """
        root = math.sqrt(self.curvature)
        half = (1 - scores).clamp(min=_LEAST) * math.sinh(2 * root * self.radius) ** 2 / 2
        return 2 / root * half.sqrt().asinh()

    def query_losses(
        self, scores: Tensor, grades: Tensor, num_levels: int, left_out: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        ranked = ranked_items(scores, left_out)
        positive, negative = (grades > 0) & ranked, (grades == 0) & ranked
        valid = positive.any(1) & negative.any(1)
        logits = -self.distances(scores) / self.temperature
        masked = torch.where(negative | ~valid[:, None], logits, -torch.inf)  # a row of -inf has NaN slopes
        values = nn.functional.softplus(masked.logsumexp(1, keepdim=True) - logits)
        mean = torch.where(positive, values, 0.0).sum(1) / positive.sum(1).clamp(min=1)
        return torch.where(valid, mean, 0.0), valid

    def extra_repr(self) -> str:
        return f"temperature={self.temperature}, curvature={self.curvature}, radius={self.radius}"
