"""Losses in hyperbolic space: a softmax over the pairs of a batch, and a hierarchy of learned proxies beside a loss."""

import math
from collections.abc import Mapping
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from hgld.errors import ConfigError, InputError
from hgld.losses.calls import reads_labels
from hgld.losses.rank_loss import (
    RankLoss,
    Reduction,
    check_labels,
    check_level,
    label_column,
    mean_of_valid,
    on_device,
    ranked_items,
    similarity,
)
from hgld.relevance import shared_levels

_LEAST = 1e-12  # of sinh(d / 2)^2 below, where the root has no slope


def hyperbolic_distances(cosines: Tensor, first: Tensor, second: Tensor) -> Tensor:
    """Return distances in the space of curvature -1, by the law of cosines in a form that is exact for near points.

    Args:
        cosines: of the points' directions, seen from the centre.
        first: distances of the ones from the centre; shapes broadcast.
        second: those of the others.
    """
    apart = first.sinh() * second.sinh() * (1 - cosines).clamp(min=0) / 2
    return 2 * (((first - second) / 2).sinh().square() + apart).clamp(min=_LEAST).sqrt().asinh()


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
        _check_positive(temperature=temperature, curvature=curvature, radius=radius)
        self.temperature = temperature
        self.curvature = curvature
        self.radius = radius

    def distances(self, scores: Tensor) -> Tensor:
        """Return the distances in the ball of (Q, G) cosines: cosh(sqrt(c) d) = 1 + sinh(2 sqrt(c) r)^2 (1 - s).

        That is 1 + 2 c |x - y|^2 / ((1 - c |x|^2) (1 - c |y|^2)) for x and y of the length tanh(sqrt(c) r) / sqrt(c).
        """
        length = scores.new_full((), self.radius)
        return _ball_distances(scores, length, length, self.curvature)

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


def _ball_distances(cosines: Tensor, first: Tensor, second: Tensor, curvature: float) -> Tensor:
    """Return distances in the Poincare ball of curvature -c of vectors of these lengths, before they are mapped."""
    scale = 2 * math.sqrt(curvature)  # the metric is 2 |dx| at the centre
    return hyperbolic_distances(cosines, scale * first, scale * second) * (2 / scale)


def _check_positive(**numbers: float) -> None:
    if not all(0 < number < math.inf for number in numbers.values()):
        found = ", ".join(f"{name} {number}" for name, number in numbers.items())
        raise ConfigError(f"found {found}; expected finite numbers > 0.")


# -- HIER -------------------------------------------------------------------------------------------------------------
#
# A hierarchy that nobody labelled, learned beside a loss.

TripletSource = Literal["neighbors", "levels"]


class HIER(nn.Module):
    """A loss and HIER's regularizer: learned proxies become ancestors of items and of each other (CVPR 2023).

    Kim, Jeong and Kwak, "HIER: Metric Learning Beyond Class Labels via Hierarchical Regularization". In the Poincare
    ball lie the items and ``num_proxies`` learned ancestors. Of three items, of which i and j are related and k is not,
    the lowest common ancestor a of i and j is drawn with probabilities ``softmax(-max(d_i, d_j) / temperature)`` over
    the ancestors, and that of all three, b, by the largest of three distances; the draw is a hard Gumbel softmax,
    through which gradients flow as through the soft one. Where a and b differ, the triplet pays

    ``[d_ia - d_ib + margin]_+ + [d_ja - d_jb + margin]_+ + [d_kb - d_ka + margin]_+``.

    The value is that of the loss plus ``weight`` times the mean over the triplets of the items and the mean over those
    of the ancestors, which have ancestors among themselves.

    ``triplets`` are by ``neighbors`` there: i and j are reciprocal neighbours, each among the nearest of the
    other, where an item of the same class counts as nearer than any other; k is any other item. Items without labels
    take part. With ``levels``, which is of hgld, i and j share more levels than i and k. Ancestors have no labels:
    their triplets are always by neighbours.

    Written after the authors' published code; the paper was not at hand, so none of its equations is named. Of hgld:
    every item has the length of the clipping, as in :class:`HyperbolicPairs`; an anchor is never its own k, and one
    with a single neighbour counts; gradients are not rescaled by the metric of the ball. The authors' metric loss is
    Proxy-Anchor or multi-similarity; here it is any of hgld that returns a scalar, but for :class:`MultiGrain`.

    Draws come from torch's generator of the embeddings' device; shapes do not depend on labels, and nothing waits for a
    GPU. It takes a dozen tables of (N, draws, num_proxies) numbers, with N the items, and again with N the ancestors.

    Args:
        loss: of the embeddings and their labels.
        dim: D, dimension of the embeddings.
        weight: of the regularizer (0.5 in the authors' scripts).
        num_proxies: P, learned ancestors (512 there).
        triplets: ``neighbors`` or ``levels``.
        neighbors: how many nearest are looked at, the item itself being one (20 there). A batch of no more items has
            no triplets by neighbours.
        draws: triplets of an anchor; their mean has the same expectation for any number (50 there).
        margin: of the hinges (0.1 there).
        temperature: of the draws (0.1 there).
        curvature: c of the ball's curvature -c (0.1 there).
        radius: length of items before they are mapped into the ball, and the largest of ancestors (2.3 there).
        level: column of the labels that is the class, for ``neighbors``.

    Attributes:
        loss: the loss.
        ancestors: (P, D) parameter, before they are mapped; give it an optimizer group of its own.

    Raises:
        ConfigError: numbers out of range, an unknown source of triplets, a loss of ``reduction="none"``.

    >>> import torch
    >>> from hgld.losses import NormSoftmax
    >>> loss = HIER(NormSoftmax(num_classes=3, dim=4), dim=4, num_proxies=8, neighbors=3)
    >>> sorted(loss.terms(torch.eye(4), torch.tensor([0, 0, 1, 2])))
    ['hierarchy', 'metric']
    """

    graded = True  # it reads all columns, of which a sum over levels would hand it one at a time

    def __init__(
        self,
        loss: nn.Module,
        dim: int,
        weight: float = 0.5,
        *,
        num_proxies: int = 512,
        triplets: TripletSource = "neighbors",
        neighbors: int = 20,
        draws: int = 10,
        margin: float = 0.1,
        temperature: float = 0.1,
        curvature: float = 0.1,
        radius: float = 2.3,
        level: int = 0,
    ) -> None:
        super().__init__()
        if getattr(loss, "reduction", "mean") == "none":
            raise ConfigError(f"{type(loss).__name__} has reduction='none'; HIER adds to a scalar.")
        if triplets not in get_args(TripletSource):
            raise ConfigError(f"triplets are {triplets!r}; expected one of {', '.join(get_args(TripletSource))}.")
        if not 2 <= neighbors < num_proxies or min(dim, draws) < 1:
            raise ConfigError(
                f"num_proxies is {num_proxies}, neighbors {neighbors}, draws {draws} and dim {dim}; expected "
                "2 <= neighbors < num_proxies (among their nearest all would be related) and sizes of at least 1."
            )
        if not 0 <= weight < math.inf:
            raise ConfigError(f"weight is {weight}; expected a finite number >= 0.")
        _check_positive(margin=margin, temperature=temperature, curvature=curvature, radius=radius)
        check_level(level)
        self.loss: Any = loss
        self.weight = weight
        self.triplets: TripletSource = triplets
        self.neighbors = neighbors
        self.draws = draws
        self.margin = margin
        self.temperature = temperature
        self.curvature = curvature
        self.radius = radius
        self.level = level
        self.ancestors = nn.Parameter(torch.randn(num_proxies, dim) / math.sqrt(dim) * radius * 0.9)  # as theirs

    @reads_labels
    def forward(
        self,
        embeddings: Tensor,
        labels: Tensor,
        ref_embeddings: Tensor | None = None,
        ref_labels: Tensor | None = None,
        self_index: Tensor | None = None,
    ) -> Tensor:
        """Return the value of a batch, a scalar; arguments are those of :meth:`RankLoss.forward`.

        References are the loss's alone: the regularizer is of the batch.

        Raises:
            InputError: embeddings of another dimension, labels without the level, or what the loss refuses.
        """
        return self.combine(self.terms(embeddings, labels, ref_embeddings, ref_labels, self_index))

    def terms(self, embeddings: Tensor, labels: Tensor, *references: Tensor | None) -> dict[str, Tensor]:
        """Return the unweighted terms by name: ``hierarchy``, and ``metric`` or those of a loss that has terms."""
        args = embeddings, labels, *(references if any(part is not None for part in references) else ())
        metric = self.loss.terms(*args) if self._has_terms else {"metric": self.loss(*args)}
        return metric | {"hierarchy": self.regularizer(embeddings, labels)}

    def combine(self, terms: Mapping[str, Tensor]) -> Tensor:
        """Combine the :meth:`terms` into the loss: a scalar."""
        metric = self.loss.combine(terms) if self._has_terms else terms["metric"]
        return metric + self.weight * terms["hierarchy"]

    @property
    def _has_terms(self) -> bool:
        return hasattr(self.loss, "combine")  # a composition, or a memory

    def regularizer(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        """Return the mean over the items' triplets plus that over the ancestors', unweighted.

        Args:
            embeddings: (B, D) floating.
            labels: (B, L) or (B,) integers, finest level first, negative where unknown.
        """
        if embeddings.ndim != 2 or embeddings.shape[1] != self.ancestors.shape[1]:
            raise InputError(
                f"embeddings have shape {tuple(embeddings.shape)}; HIER was made for (B, {self.ancestors.shape[1]})."
            )
        check_labels(labels, len(embeddings))
        of_class = labels if self.triplets == "levels" else label_column(labels, self.level)
        grades = shared_levels(*2 * (on_device(of_class, embeddings.device),), dtype=torch.uint8)
        if self.triplets == "neighbors":
            with torch.no_grad():  # cosines are within [-1, 1]
                grades = reciprocal_neighbors(similarity(embeddings, embeddings) + 4 * grades, self.neighbors)
        lengths = self.ancestors.norm(dim=1).clamp(max=self.radius)
        to_items = similarity(embeddings, self.ancestors)
        to_items = _ball_distances(to_items, to_items.new_full((), self.radius), lengths, self.curvature)
        among = similarity(self.ancestors, self.ancestors)
        among = _ball_distances(among, lengths[:, None], lengths, self.curvature)
        nearest = reciprocal_neighbors(-among.detach(), self.neighbors)
        return self._mean_of_triplets(to_items, grades) + self._mean_of_triplets(among, nearest)

    def _mean_of_triplets(self, distances: Tensor, grades: Tensor) -> Tensor:
        """Return the mean over drawn triplets of N points, from their (N, P) distances to the ancestors."""
        shape = (len(distances), self.draws)
        second, third, valid = draw_triplets(grades, torch.rand(2, *shape, device=distances.device))
        noise = distances.new_empty(2, *shape, distances.shape[1]).exponential_()
        noise = noise.clamp_(min=torch.finfo(noise.dtype).tiny).log_().neg_()
        return mean_of_valid(self.hinges(distances, second, third, noise).mean(1), valid)

    def hinges(self, distances: Tensor, second: Tensor, third: Tensor, noise: Tensor) -> Tensor:
        """Return what triplets pay, (N, T).

        Args:
            distances: (N, P) of the points to the ancestors.
            second: (N, T) int64, the j of triplets whose i is the row.
            third: (N, T) int64, their k.
            noise: (2, N, T, P) of Gumbel's distribution.
        """
        to_first, to_second, to_third = distances[:, None], distances[second], distances[third]
        of_two = torch.maximum(to_first, to_second)
        lower, upper = self._drawn(of_two, noise[0]), self._drawn(torch.maximum(of_two, to_third), noise[1])
        apart = lower - upper
        total = distances.new_zeros(())
        for gaps in (to_first * apart, to_second * apart, -to_third * apart):
            total = total + (gaps.sum(2) + self.margin).clamp(min=0)
        return torch.where(apart.detach().bool().any(2), total, 0.0)

    def _drawn(self, farthest: Tensor, noise: Tensor) -> Tensor:
        """Return one-hot rows of what is drawn, with the gradients of the soft draw."""
        soft = (noise - farthest / self.temperature).softmax(2)
        hard = torch.zeros_like(soft).scatter(2, soft.detach().argmax(2, keepdim=True), 1.0)
        return hard + (soft - soft.detach())

    def extra_repr(self) -> str:
        return (
            f"{len(self.ancestors)} ancestors, weight={self.weight}, triplets={self.triplets!r}, "
            f"neighbors={self.neighbors}, draws={self.draws}"
        )


def reciprocal_neighbors(nearness: Tensor, count: int) -> Tensor:
    """Return (N, N) uint8 by (N, N) nearness: 1 where each of a pair is among the ``count`` nearest of the other."""
    places = nearness.topk(min(count, len(nearness)), dim=1).indices
    near = torch.zeros_like(nearness, dtype=torch.uint8).scatter(1, places, 1)
    return near & near.T


def draw_triplets(grades: Tensor, uniform: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Draw for every anchor a related point and a less related one: any of a higher grade than its lowest, any of less.

    Args:
        grades: (N, N) uint8 below 255, a row an anchor; the diagonal is not read.
        uniform: (2, N, T) random numbers in [0, 1), which decide.

    Returns:
        second (N, T) and third (N, T), int64 columns, and valid (N,): the anchor has triplets; else they are any.
    """
    size = len(grades)
    itself = torch.eye(size, dtype=torch.bool, device=grades.device)
    ordered, columns = grades.masked_fill(itself, 255).sort(dim=1, stable=True)  # itself comes last
    lowest = (ordered == ordered[:, :1]).sum(1, keepdim=True)
    related = size - 1 - lowest
    at_second = lowest + _drawn_below(uniform[0], related)
    at_second = at_second.clamp(max=size - 1)  # of rows without triplets
    less = torch.searchsorted(ordered, ordered.gather(1, at_second))
    at_third = _drawn_below(uniform[1], less)
    return columns.gather(1, at_second), columns.gather(1, at_third), related[:, 0] > 0


def _drawn_below(uniform: Tensor, counts: Tensor) -> Tensor:
    """Return integers in 0..counts - 1, 0 where there are none; a product may be rounded up to its count."""
    return torch.minimum((uniform * counts).long(), counts - 1).clamp(min=0)
