"""Margin loss with distance-weighted negatives and a learned boundary."""

import math
from typing import Literal, get_args

import torch
from torch import Tensor, nn

from hgld.errors import ConfigError
from hgld.losses.item_sets import ranked_items
from hgld.losses.pair_loss import unit_distances
from hgld.losses.rank_loss import RankLoss
from hgld.losses.triplet import pair_means

MarginReduction = Literal["mean", "none", "nonzero"]


class Margin(RankLoss):
    """Margin loss (Wu et al., "Sampling Matters in Deep Embedding Learning", ICCV 2017).

    Positives pay [d - beta + margin]_+, negatives [beta - d + margin]_+, with a boundary beta that is learned. For
    every pair of an anchor and a positive one negative of the anchor is drawn, with replacement, in inverse proportion
    to the density of distances on the sphere: d below ``cutoff`` counts as ``cutoff``, and negatives beyond
    ``reach`` are not drawn, unless the anchor has no other, when all are equally likely. The seed of the draws comes
    from torch's generator of the embeddings' device. An item is never its own positive.

    Args:
        dim: D, the dimension of the embeddings, on which the density depends.
        margin: half the width between positives and negatives, in distance.
        beta: initial boundary; a parameter (give it a learning rate of its own: MultiGrain has 0.1).
        cutoff: distance below which negatives are not more likely to be drawn.
        reach: distance from which negatives are not drawn.
        reduction: ``mean`` over all sampled pairs, positive and negative, as MultiGrain prints it; ``nonzero``: over
            those that have a loss, as published code does; ``none``: every anchor's mean (Q,) and valid (Q,).
        level: column of the labels that decides what is positive, 0 the finest.
        normalize: L2-normalise the embeddings; without, they are taken for unit vectors, d^2 = 2 - 2 s.

    Raises:
        ConfigError: an unknown reduction, or numbers out of range.
    """

    def __init__(
        self,
        dim: int,
        margin: float = 0.2,
        beta: float = 1.2,
        *,
        cutoff: float = 0.5,
        reach: float = 1.4,
        reduction: MarginReduction = "mean",
        level: int = 0,
        normalize: bool = True,
    ) -> None:
        if reduction not in get_args(MarginReduction):
            expected = ", ".join(get_args(MarginReduction))
            raise ConfigError(f"reduction {reduction!r} is unknown; expected one of {expected}.")
        super().__init__(
            graded=False,
            level=level,
            normalize=normalize,
            exclude_self=True,
            reduction="none" if reduction == "none" else "mean",
        )
        if dim < 1 or not 0 < margin < math.inf or not 0 < cutoff < reach < 2:
            raise ConfigError(
                f"dim is {dim}, margin {margin}, cutoff {cutoff} and reach {reach}; expected dim >= 1, margin > 0 and "
                "0 < cutoff < reach < 2 (unit vectors are at most 2 apart)."
            )
        self.dim = dim
        self.margin = margin
        self.beta = nn.Parameter(torch.tensor(float(beta)))
        self.cutoff = cutoff
        self.reach = reach
        self.over_nonzero = reduction == "nonzero"

    def query_losses(
        self, scores: Tensor, grades: Tensor, num_levels: int, left_out: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        ranked = ranked_items(scores, left_out)
        positive = (grades > 0) & ranked
        negative = (grades == 0) & ranked
        distances = unit_distances(scores)
        valid = positive.any(1) & negative.any(1)
        positive &= valid[:, None]
        num_pairs = positive.sum(1)
        seed = torch.randint(1 << 62, (), device=scores.device)
        drawn = draw_negatives(distances.detach(), num_pairs, negative, seed, self.dim, self.cutoff, self.reach)
        beta = self.beta.to(scores.dtype)
        pull = torch.where(positive, (distances - beta + self.margin).clamp(min=0), 0.0)
        push = torch.where(drawn > 0, (beta - distances + self.margin).clamp(min=0), 0.0)
        sums = pull.sum(1) + (drawn * push).sum(1)
        if self.over_nonzero:
            violating = (pull > 0).sum() + torch.where(push > 0, drawn, 0).sum()
            total = sums / violating.clamp(min=1)
            return total * len(scores), torch.ones_like(valid)  # their mean is the sum over the violating pairs' count
        return pair_means(sums, 2 * num_pairs, each=self.reduction == "none"), valid

    def extra_repr(self) -> str:
        return f"dim={self.dim}, margin={self.margin}, cutoff={self.cutoff}, reach={self.reach}"


@torch.library.custom_op("hgld::draw_negatives", mutates_args=())
def draw_negatives(
    distances: Tensor, num_draws: Tensor, negative: Tensor, seed: Tensor, dim: int, cutoff: float, reach: float
) -> Tensor:
    """Draw negatives of every anchor with replacement, in inverse proportion to the density of distances.

    An operator of torch: the largest number of draws depends on the labels, which torch.compile cannot look into. It
    draws from a generator of its own, so that compilers may take it for a function of its arguments.

    Args:
        distances: (Q, G) of unit vectors.
        num_draws: (Q,), 0 where there are no negatives.
        negative: (Q, G) bool.
        seed: () int64.
        dim: D, the dimension of the sphere's space.
        cutoff: distance below which all are as likely as there.
        reach: distance from which none is drawn, unless a row has no other.

    Returns:
        (Q, G) int64, how often each item was drawn.
    """
    drawn = torch.zeros_like(negative, dtype=torch.int64)
    most = int(num_draws.max()) if num_draws.numel() else 0
    if most == 0:
        return drawn
    far = distances.clamp(min=cutoff)
    drawable = negative & (far < reach)
    log_density = (dim - 2) * far.log() + (dim - 3) / 2 * torch.log1p(-(far.clamp(max=reach) ** 2) / 4)
    rarity = torch.where(drawable, -log_density, -torch.inf)
    highest = rarity.amax(1, keepdim=True)
    weights = torch.where(drawable, (rarity - highest.nan_to_num(neginf=0.0)).exp(), 0.0)
    weights = torch.where(drawable.any(1, keepdim=True), weights, negative.to(weights.dtype))
    weights = torch.where(negative.any(1, keepdim=True), weights, 1.0)  # a row that draws nothing still needs a sum
    generator = torch.Generator(distances.device).manual_seed(int(seed))
    columns = torch.multinomial(weights.float(), most, replacement=True, generator=generator)
    used = torch.arange(most, device=distances.device) < num_draws[:, None]
    return drawn.scatter_add_(1, columns, used.long())


@draw_negatives.register_fake
def _(
    distances: Tensor, num_draws: Tensor, negative: Tensor, seed: Tensor, dim: int, cutoff: float, reach: float
) -> Tensor:
    return torch.empty_like(negative, dtype=torch.int64)
