"""Losses of pairs and triplets: contrastive, calibration, margin and triplet loss."""

import math
from abc import abstractmethod
from typing import Any, Literal, TypedDict, Unpack, get_args

import torch
from torch import Tensor, nn

from hgld.errors import ConfigError, at_least, check_choice, check_positive
from hgld.losses.kernels.operator import contiguous_like, operator, row_operator
from hgld.losses.rank_loss import Batch, RankLoss, TermSum, item_roles, row_blocks

PairReduction = Literal["mean", "none", "nonzero"]
ContrastiveVariant = Literal["distance", "cosine"]


class PairOptions(TypedDict, total=False):
    """Keyword options of a pair loss; the arguments of :class:`PairLoss` have the same names and meanings."""

    reduction: PairReduction
    level: int
    normalize: bool


class PairLoss(RankLoss):
    """A loss that is a sum over pairs; a subclass writes :meth:`pull` and :meth:`push`.

    Args:
        reduction: ``mean``: per query, the mean over its positives plus the mean over its negatives; then the mean
            over the queries that have positives. ``none``: the queries' values (Q,) and valid (Q,). ``nonzero``: the
            mean over the batch's positive pairs with a loss above 0, plus the same mean over its negative pairs.
        level: column of the labels that decides what is positive, 0 the finest.
        normalize: whether to L2-normalise the embeddings. If False, they must be unit vectors, so that d^2 = 2 - 2 s.
        exclude_self: whether to exclude the query from its own pairs.
        summed: whether to sum the losses of a query's pairs instead of averaging them; ``nonzero`` remains a mean.

    Raises:
        ConfigError: the reduction is unknown.
    """

    reductions = get_args(PairReduction)

    def __init__(
        self,
        *,
        exclude_self: bool = False,
        summed: bool = False,
        **options: Unpack[PairOptions],
    ) -> None:
        super().__init__(graded=False, exclude_self=exclude_self, **options)
        self.summed = summed

    @abstractmethod
    def pull(self, scores: Tensor) -> Tensor:
        """Return the (Q, G) loss, >= 0, of every pair as if the pair were positive."""

    @abstractmethod
    def push(self, scores: Tensor) -> Tensor:
        """Return the (Q, G) loss, >= 0, of every pair as if the pair were negative."""

    @property
    def sums_over_queries(self) -> bool:
        return not self.over_nonzero

    def query_losses(
        self, scores: Tensor, grades: Tensor, num_levels: int, left_out: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        roles = item_roles(grades, left_out)
        positive, negative = roles == 2, roles == 1
        pulls = torch.where(positive, self.pull(scores), 0.0)
        pushes = torch.where(negative, self.push(scores), 0.0)
        if self.over_nonzero:
            violating, intruding = (pulls > 0).sum(), (pushes > 0).sum()
            total = pulls.sum(1) / violating.clamp(min=1) + pushes.sum(1) / intruding.clamp(min=1)
            # The mean of these values is the sum of the two means.
            return total * len(scores), torch.ones_like(total, dtype=torch.bool)
        num_positives, num_negatives = positive.sum(1), negative.sum(1)
        pulled, pushed = pulls.sum(1), pushes.sum(1)
        if not self.summed:
            pulled, pushed = pulled / num_positives.clamp(min=1), pushed / num_negatives.clamp(min=1)
        valid = num_positives > 0
        return torch.where(valid, pulled + pushed, 0.0), valid


class CalibrationLoss(PairLoss):
    """The pair loss of ROADMAP (Ramzi et al., "Robust and Decomposable Average Precision", NeurIPS 2021, Eq. 7).

    The loss of a positive with a score s below ``alpha`` is ``alpha - s``; the loss of a negative with s above ``beta``
    is ``s - beta``. This makes scores comparable between queries and batches. ``reduction="mean"`` is the paper's
    average over each query's positives and negatives. ``"nonzero"`` is the published code's average over the batch's
    pairs with a loss above 0.

    Args:
        alpha: score that positives should reach (0.9 in the authors' configurations).
        beta: score below which negatives should stay (the authors' configurations have 0.9 here too).
        exclude_self: whether to exclude the query from its own pairs.
        options: ``reduction``, ``level`` and ``normalize`` of :class:`PairLoss`.

    Raises:
        ConfigError: the reduction is unknown, or a threshold is not a number.

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
        exclude_self: bool = False,
        **options: Unpack[PairOptions],
    ) -> None:
        super().__init__(exclude_self=exclude_self, **options)
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

    ``distance`` (Hadsell et al., "Dimensionality Reduction by Learning an Invariant Mapping", CVPR 2006, without the
    factor of one half). The loss of a positive is d^2. The loss of a negative with d below ``margin`` is
    (``margin`` - d)^2.

    ``cosine`` (Wang et al., "Cross-Batch Memory for Embedding Learning", CVPR 2020, as in the authors' code). The loss
    of a positive is 1 - s. The loss of a negative with a score s above ``margin`` is s. The losses of a query's pairs
    are summed, because nearly all negatives of a memory have loss 0, and a mean would give the few hard negatives
    almost no weight. The authors' code divides by the number of all queries; here a query without positives has loss 0
    and is not counted.

    An item is never its own positive.

    Args:
        margin: with ``distance``, the distance that negatives should keep (unit vectors are at most 2 apart); with
            ``cosine``, the cosine that negatives may reach (0.5 in the authors' code).
        variant: measure of a pair: ``distance`` or ``cosine``.
        options: ``reduction``, ``level`` and ``normalize`` of :class:`PairLoss`. With ``cosine``, ``mean`` and ``none``
            sum over a query's pairs.

    Raises:
        ConfigError: the variant or reduction is unknown, or the margin is out of range.

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
        **options: Unpack[PairOptions],
    ) -> None:
        check_choice("variant", variant, get_args(ContrastiveVariant))
        super().__init__(exclude_self=True, summed=variant == "cosine", **options)
        if variant == "cosine" and not 0 <= margin < 1:
            raise ConfigError(f"margin is {margin}; expected the cosine that negatives may reach, in [0, 1).")
        if variant == "distance":
            check_positive(margin=margin)
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
    """Return the distances of unit vectors, given their cosines in any shape; a distance near 0 has no gradient."""
    return (2 - 2 * scores).clamp(min=torch.finfo(scores.dtype).eps).sqrt()


# -- triplets ---------------------------------------------------------------------------------------------------------
#
# Each pair of an anchor and a positive gets one semi-hard negative.


class Triplet(RankLoss):
    """Triplet loss on unit vectors (Schroff et al., "FaceNet", CVPR 2015): [d(a, p)^2 - d(a, n)^2 + margin]_+.

    For every anchor and positive the loss takes the semi-hard negative: the nearest negative that is farther away than
    the positive, or the farthest negative if all negatives are nearer. The query is never its own positive.

    Args:
        margin: margin of the squared distance.
        options: ``level`` and ``normalize`` of :class:`PairLoss`, and ``reduction``: ``mean`` over all (anchor,
            positive) pairs that have a negative, or ``none``: every anchor's mean (Q,) and valid (Q,). ``mean`` weights
            an anchor by its number of positives.

    Raises:
        ConfigError: the margin is not positive.
    """

    def __init__(self, margin: float = 0.2, **options: Unpack[PairOptions]) -> None:
        super().__init__(graded=False, exclude_self=True, **options)
        check_positive(margin=margin)
        self.margin = margin

    def query_losses(
        self, scores: Tensor, grades: Tensor, num_levels: int, left_out: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        sums, counts, valid = self._pair_sums(scores, grades, left_out)
        return pair_means(sums, counts, each=self.reduction == "none"), valid

    def query_sums(self, *args: Any) -> dict[str, TermSum]:
        """Return the sum of the losses of the queries' pairs, and the number of these pairs."""
        scores, grades, _, left_out = self.scored(Batch(*args))
        sums, counts, _ = self._pair_sums(scores, grades, left_out)
        return {"loss": TermSum(1.0, sums.sum(), counts.sum())}

    def _pair_sums(self, scores: Tensor, grades: Tensor, left_out: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        """Return, per query (Q,), the sum of its pairs' losses, their number, and whether there are any."""
        positive, negative, valid = _anchor_pairs(grades, left_out)
        sums, _ = _triplets(scores, positive, negative, self.margin)
        return sums, positive.sum(1), valid

    def extra_repr(self) -> str:
        return f"margin={self.margin}"


def _anchor_pairs(grades: Tensor, left_out: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """Return (Q, G) bool of the positives and of the negatives, and (Q,) bool of the anchors that have both.

    An anchor without negatives gets no positives.
    """
    roles = item_roles(grades, left_out)
    positive, negative = roles == 2, roles == 1
    valid = positive.any(1) & negative.any(1)
    return positive & valid[:, None], negative, valid


def pair_means(sums: Tensor, counts: Tensor, *, each: bool) -> Tensor:
    """Return the (Q,) mean losses of the queries' pairs, or values whose mean over queries is the mean over pairs.

    Args:
        sums: (Q,) sum of the losses of each query's pairs.
        counts: (Q,) number of each query's pairs.
        each: whether to return every query's own mean. If False, the values are scaled so that their mean over the
            queries with pairs is the mean over all pairs.
    """
    share = counts if each else counts.sum().to(sums.dtype) / (counts > 0).sum().clamp(min=1)
    return sums / share.clamp(min=1)


@row_operator("hgld::triplets")
def _triplets(scores: Tensor, positive: Tensor, negative: Tensor, margin: float) -> tuple[Tensor, Tensor]:
    """Return the sum of the triplet losses per anchor (Q,) and its gradient (Q, G).

    Every row with a positive must have a negative.
    """
    sums, slopes = scores.new_zeros(len(scores)), torch.zeros_like(scores)
    for block in row_blocks(scores):
        beyond = _semi_hard(scores[block], negative[block])
        hinge = 2 * (scores[block].gather(1, beyond) - scores[block]) + margin
        pays = positive[block] & (hinge > 0)
        sums[block] = torch.where(pays, hinge, 0.0).sum(1)
        by_score = 2 * pays.to(scores.dtype)
        slopes[block] = by_score.neg().scatter_add(1, beyond, by_score)
    return sums, slopes


def _semi_hard(scores: Tensor, negative: Tensor) -> Tensor:
    """Return (Q, G): for each item, the column of its semi-hard negative if the item is a positive."""
    ordered, columns = torch.where(negative, scores, torch.inf).sort(dim=1)
    farther = torch.searchsorted(ordered, scores)  # number of negatives with a lower score than the item
    return columns.gather(1, (farther - 1).clamp(min=0))


# -- margin -----------------------------------------------------------------------------------------------------------
#
# Negatives are drawn by distance, and the boundary is learned.

_FARTHEST = 1.999  # larger distances count as this one, because the density of distances is 0 at 2


class Margin(RankLoss):
    """Margin loss (Wu et al., "Sampling Matters in Deep Embedding Learning", ICCV 2017).

    The loss of a positive is [d - beta + margin]_+, the loss of a negative is [beta - d + margin]_+, with a boundary
    beta that is learned. For every pair of an anchor and a positive, one negative of the anchor is drawn with
    replacement, in inverse proportion to the density of distances on the sphere. A distance below ``cutoff`` counts as
    ``cutoff``. Negatives beyond ``reach`` are drawn only if the anchor has no nearer negative; then all its negatives
    are equally likely. The seed of the draws comes from torch's CPU generator. An item is never its own positive.

    Args:
        dim: D, the dimension of the embeddings, on which the density depends.
        margin: half the width of the gap between positives and negatives, as a distance.
        beta: initial boundary; the boundary is a parameter with its own learning rate (0.1 in MultiGrain).
        cutoff: distance below which negatives are as likely as at this distance.
        reach: distance beyond which negatives are drawn only if the anchor has no nearer negative; 2: no limit.
        options: ``level``, ``normalize`` and ``reduction``. ``mean``: mean over all sampled pairs, as in the MultiGrain
            paper. ``nonzero``: mean over the pairs with a loss above 0, as in the published code. ``none``: every
            anchor's mean (Q,) and valid (Q,).

    Raises:
        ConfigError: the reduction is unknown, or a number is out of range.
    """

    reductions = get_args(PairReduction)

    def __init__(
        self,
        dim: int,
        margin: float = 0.2,
        beta: float = 1.2,
        *,
        cutoff: float = 0.5,
        reach: float = 1.4,
        **options: Unpack[PairOptions],
    ) -> None:
        super().__init__(graded=False, exclude_self=True, **options)
        at_least(1, dim=dim)
        check_positive(margin=margin)
        if not 0 < cutoff < reach <= 2:
            raise ConfigError(
                f"cutoff is {cutoff} and reach is {reach}; expected 0 < cutoff < reach <= 2 (unit vectors are at most "
                "2 apart)."
            )
        self.dim = dim
        self.margin = margin
        self.beta = nn.Parameter(torch.tensor(float(beta)))
        self.cutoff = cutoff
        self.reach = reach

    @property
    def sums_over_queries(self) -> bool:
        return False  # the loss is a mean over pairs, which are drawn for the whole batch

    def query_losses(
        self, scores: Tensor, grades: Tensor, num_levels: int, left_out: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        positive, negative, valid = _anchor_pairs(grades, left_out)
        distances = unit_distances(scores)
        num_pairs = positive.sum(1)
        seed = torch.randint(1 << 62, ())  # drawn on the CPU, because the host would wait for a GPU to return the seed
        drawn = draw_negatives(distances.detach(), num_pairs, negative, seed, self.dim, self.cutoff, self.reach)
        beta = self.beta.to(scores.dtype)
        pull = torch.where(positive, (distances - beta + self.margin).clamp(min=0), 0.0)
        push = torch.where(drawn > 0, (beta - distances + self.margin).clamp(min=0), 0.0)
        sums = pull.sum(1) + (drawn * push).sum(1)
        if self.over_nonzero:
            violating = (pull > 0).sum() + torch.where(push > 0, drawn, 0).sum()
            total = sums / violating.clamp(min=1)
            return total * len(scores), torch.ones_like(valid)  # their mean is the mean over pairs with a loss above 0
        return pair_means(sums, 2 * num_pairs, each=self.reduction == "none"), valid

    def extra_repr(self) -> str:
        return f"dim={self.dim}, margin={self.margin}, cutoff={self.cutoff}, reach={self.reach}"


@operator("hgld::draw_negatives", lambda distances, num_draws, negative, *_: contiguous_like(negative, torch.int64))
def draw_negatives(
    distances: Tensor, num_draws: Tensor, negative: Tensor, seed: Tensor, dim: int, cutoff: float, reach: float
) -> Tensor:
    """Draw negatives for every anchor with replacement, in inverse proportion to the density of distances.

    The function is a custom torch operator, because torch.compile cannot trace a number of draws that depends on the
    labels. It has its own generator, so that compilers may treat it as a pure function of its arguments.

    Args:
        distances: (Q, G) distances of unit vectors.
        num_draws: (Q,) number of draws per query; 0 if the query has no negatives.
        negative: (Q, G) bool, whether each item is a negative.
        seed: () int64 on the CPU.
        dim: D, the dimension of the unit vectors.
        cutoff: distance below which negatives are as likely as at this distance.
        reach: distance beyond which negatives are drawn only if the row has no nearer negative.

    Returns:
        (Q, G) int64, how often each item was drawn.
    """
    generator = torch.Generator(distances.device).manual_seed(int(seed))
    drawn = torch.zeros_like(negative, dtype=torch.int64)
    for block in row_blocks(distances):
        weights = _draw_weights(distances[block], negative[block], dim, cutoff, reach)
        most = _most_draws(num_draws[block], distances.shape[1])
        if most:
            columns = torch.multinomial(weights.float(), most, replacement=True, generator=generator)
            used = torch.arange(most, device=distances.device) < num_draws[block, None]
            drawn[block].scatter_add_(1, columns, used.long())
    return drawn


def _most_draws(num_draws: Tensor, size: int) -> int:
    """Return the largest of (q,) numbers of draws; on a GPU return ``size``, so that the host need not wait."""
    return int(num_draws.max()) if num_draws.device.type == "cpu" else size


def _draw_weights(distances: Tensor, negative: Tensor, dim: int, cutoff: float, reach: float) -> Tensor:
    """Return (q, G) sampling weights; a row without negatives gets equal weights, because no row may sum to 0."""
    far = distances.clamp(min=cutoff)
    drawable = negative & ((far < reach) | (reach == 2))
    farthest = min(reach, _FARTHEST)
    log_density = (dim - 2) * far.log() + (dim - 3) / 2 * torch.log1p(-(far.clamp(max=farthest) ** 2) / 4)
    rarity = torch.where(drawable, -log_density, -torch.inf)
    highest = rarity.amax(1, keepdim=True)
    weights = torch.where(drawable, (rarity - highest.nan_to_num(neginf=0.0)).exp(), 0.0)
    weights = torch.where(drawable.any(1, keepdim=True), weights, negative.to(weights.dtype))
    return torch.where(negative.any(1, keepdim=True), weights, 1.0)
