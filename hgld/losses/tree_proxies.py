"""Proxy losses that know the tree of the classes: each finest class has a proxy, or each node of the tree has one.

Of the labels the finest column alone is read: the hierarchy knows the nodes above a class. With proxies of the finest
classes alone (:class:`TreeProxyLoss`) every mistake counts by how far it is in the tree. A pair of classes has the
grade of their items (:func:`hgld.shared_levels`); with L levels their distance in the tree is ``(L - grade) / L``, the
height of their lowest common ancestor over that of a root above all levels. With a vector for every node
(:class:`NodeProxyLoss`) a level at which a class is unknown adds nothing for its items.
"""

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn

from hgld.errors import ConfigError
from hgld.hierarchy import Hierarchy
from hgld.losses.hyperbolic import hyperbolic_distances
from hgld.losses.proxies import NormSoftmax, ProxyLoss
from hgld.losses.rank_loss import Reduction, similarity, unit_rows
from hgld.relevance import shared_levels

_LEAST = 1e-12  # below which roots have no slope
_NARROW = 0.1  # K of the cones' width, in MERU and in Ganea et al.
_SHUT = 1e-6  # the slope of a cone's width has no bound where it becomes a half-space: at sinh a = 2 K it is cut
_FARTHEST = math.asinh(2.0**15)  # of the centre, whose sinh float32 still knows well


def _classes_of_leaves(hierarchy: Hierarchy) -> Tensor:
    classes = hierarchy.expand(np.arange(hierarchy.num_classes[0]))
    return torch.from_numpy(classes.astype(np.int64))


class TreeProxyLoss(NormSoftmax):
    """A proxy loss over the finest classes of a hierarchy; a subclass writes :meth:`item_losses`.

    Args:
        hierarchy: the tree of the training classes.
        dim: D, dimension of the embeddings.
        temperature: of the cosines to the proxies.
        reduction: see :class:`~hgld.losses.proxies.ProxyLoss`.

    Attributes:
        proxies: (C, D) parameter, one vector a finest class; give it an optimizer group of its own.
        classes: (C, L) int64 buffer: every proxy's class at each level, -1 where unknown.

    Raises:
        ConfigError: a temperature that is not positive, or sizes below 1.
    """

    classes: Tensor
    graded = True  # one column of labels, but all levels

    def __init__(
        self, hierarchy: Hierarchy, dim: int, temperature: float = 0.05, *, reduction: Reduction = "mean"
    ) -> None:
        super().__init__(hierarchy.num_classes[0], dim, temperature, reduction=reduction)
        self.register_buffer("classes", _classes_of_leaves(hierarchy))

    def grades(self, targets: Tensor) -> Tensor:
        """Return (B, C) int64 in 0..L: how many levels the classes of the items share with every proxy's class."""
        return shared_levels(self.classes[targets], self.classes)


class TreeSoftmax(TreeProxyLoss):
    """A softmax at every level, over one set of proxies: that of a coarse class is the mean of those beneath it.

    The clustering term of HAPPIER (:class:`NormSoftmax`) sees the finest classes alone. Here the cross-entropy of the
    cosines over the temperature is taken at every level, where a class's proxy is the sum of the unit proxies of its
    finest classes, and the levels' values are averaged. So the proxies of one coarse class are drawn together.
    Of hgld, not of a paper; Zhai and Wu, BMVC 2019, is the loss of one level, and levels with proxies of their own are
    ``SumOverLevels`` of it.

    Args:
        hierarchy: see :class:`TreeProxyLoss`.
        dim: see there.
        temperature: of the cosines, at all levels.
        level_weights: >= 0, one a level, finest first; None: equal. They are scaled to a sum of 1.
        reduction: see :class:`~hgld.losses.proxies.ProxyLoss`.

    Raises:
        ConfigError: weights that do not fit the levels, or what :class:`TreeProxyLoss` refuses.
    """

    def __init__(
        self,
        hierarchy: Hierarchy,
        dim: int,
        temperature: float = 0.05,
        level_weights: Sequence[float] | None = None,
        *,
        reduction: Reduction = "mean",
    ) -> None:
        super().__init__(hierarchy, dim, temperature, reduction=reduction)
        self.num_classes = hierarchy.num_classes
        given = (1.0,) * len(self.num_classes) if level_weights is None else tuple(level_weights)
        usable = all(0 <= weight < math.inf for weight in given) and sum(given) > 0
        if len(given) != len(self.num_classes) or not usable:
            raise ConfigError(
                f"level_weights are {level_weights} for {len(self.num_classes)} levels "
                f"({', '.join(hierarchy.levels)}); expected one finite number >= 0 a level, finest first, not all 0."
            )
        self.level_weights = tuple(weight / sum(given) for weight in given)

    def item_losses(self, embeddings: Tensor, targets: Tensor) -> Tensor:
        unit, own = unit_rows(self.proxies), self.classes[targets]
        total = unit.new_zeros(len(embeddings))
        for level, weight in enumerate(self.level_weights):
            columns = self.classes[:, level]
            known = (columns >= 0)[:, None]
            above = unit.new_zeros(max(1, self.num_classes[level]), unit.shape[1])
            above = above.index_add(0, columns.clamp(min=0), torch.where(known, unit, 0.0))
            logits = similarity(embeddings, above) / self.temperature
            values = nn.functional.cross_entropy(logits, own[:, level].clamp(min=0), reduction="none")
            total = total + weight * torch.where(own[:, level] >= 0, values, 0.0)
        return total


class HXE(TreeProxyLoss):
    """Hierarchical cross-entropy: the surprise of every step from the root to the class, weighted by its depth.

    Bertinetto et al., "Making Better Mistakes: Leveraging Class Hierarchies with Deep Networks", CVPR 2020, Eq. 3 and
    4. The probability of a node is the sum of those of its leaves, and the loss is
    ``-sum_l exp(-alpha k_l) log p(node_l | node_(l+1))`` over the item's nodes, from its leaf to the coarsest level,
    whose parent is the root, with k levels above a node: information is discounted down the hierarchy, as the paper's
    text says (its formula calls k a height). With alpha = 0 it is :class:`NormSoftmax`; a larger alpha prefers coarse
    distinctions. Differs from the paper in its leaves' probabilities, a softmax of cosines to proxies where the paper
    has a linear layer. A level at which a class has no node counts as the finer one.

    Args:
        hierarchy: see :class:`TreeProxyLoss`.
        dim: see there.
        temperature: of the cosines.
        alpha: of the weights (0.1 to 0.6 in the paper).
        reduction: see :class:`~hgld.losses.proxies.ProxyLoss`.

    Raises:
        ConfigError: an alpha that is not a finite number >= 0, or what :class:`TreeProxyLoss` refuses.
    """

    def __init__(
        self,
        hierarchy: Hierarchy,
        dim: int,
        temperature: float = 0.05,
        alpha: float = 0.4,
        *,
        reduction: Reduction = "mean",
    ) -> None:
        super().__init__(hierarchy, dim, temperature, reduction=reduction)
        if not 0 <= alpha < math.inf:
            raise ConfigError(f"alpha is {alpha}; expected a finite number >= 0.")
        self.alpha = alpha

    def item_losses(self, embeddings: Tensor, targets: Tensor) -> Tensor:
        logits, grades = self.logits(embeddings), self.grades(targets)
        num_levels = self.classes.shape[1]
        total, below = torch.zeros_like(logits[:, 0]), logits.gather(1, targets[:, None])[:, 0]
        for level in range(num_levels):
            beneath = grades >= num_levels - level - 1  # leaves of the next coarser node: of the root all
            above = torch.where(beneath, logits, -torch.inf).logsumexp(1)
            total = total + math.exp(-self.alpha * (num_levels - 1 - level)) * (above - below)
            below = above
        return total


class SoftLabels(TreeProxyLoss):
    """Cross-entropy against targets that fall with the distance in the tree: hierarchical label smoothing.

    Bertinetto et al., CVPR 2020, Eq. 5: the target of class A for an item of class C is ``exp(-beta d(A, C))``, scaled
    to a sum of 1; its limit for a large beta is :class:`NormSoftmax`. Differs from the paper in its probabilities, as
    :class:`HXE` does.

    Args:
        hierarchy: see :class:`TreeProxyLoss`.
        dim: see there.
        temperature: of the cosines.
        beta: of the targets (4 to 30 in the paper).
        reduction: see :class:`~hgld.losses.proxies.ProxyLoss`.

    Raises:
        ConfigError: a beta that is not a finite number >= 0, or what :class:`TreeProxyLoss` refuses.
    """

    def __init__(
        self,
        hierarchy: Hierarchy,
        dim: int,
        temperature: float = 0.05,
        beta: float = 10.0,
        *,
        reduction: Reduction = "mean",
    ) -> None:
        super().__init__(hierarchy, dim, temperature, reduction=reduction)
        if not 0 <= beta < math.inf:
            raise ConfigError(f"beta is {beta}; expected a finite number >= 0.")
        self.beta = beta

    def item_losses(self, embeddings: Tensor, targets: Tensor) -> Tensor:
        logits = self.logits(embeddings)
        distances = 1 - self.grades(targets).to(logits.dtype) / self.classes.shape[1]
        return nn.functional.cross_entropy(logits, (-self.beta * distances).softmax(1), reduction="none")


class NodeProxyLoss(ProxyLoss):
    """A proxy loss over all nodes of a hierarchy; a subclass writes :meth:`item_losses`.

    Args:
        hierarchy: the tree of the training classes.
        dim: D, dimension of the embeddings.
        reduction: see :class:`~hgld.losses.proxies.ProxyLoss`.

    Attributes:
        proxies: (C, D) parameter, one vector a finest class.
        ancestors: (A, D) parameter, one a class of the other levels, finer levels first.
        classes: (C, L) int64 buffer: every finest class's class at each level, -1 where unknown.

    Raises:
        ConfigError: sizes below 1.
    """

    classes: Tensor
    graded = True  # one column of labels, but all levels

    def __init__(self, hierarchy: Hierarchy, dim: int, *, reduction: Reduction = "mean") -> None:
        super().__init__(hierarchy.num_classes[0], dim, reduction=reduction)
        self.num_classes = tuple(hierarchy.num_classes)
        bound = 1 / math.sqrt(dim)  # as that of the proxies
        self.ancestors = nn.Parameter(torch.empty(sum(self.num_classes[1:]), dim).uniform_(-bound, bound))
        self.register_buffer("classes", _classes_of_leaves(hierarchy))

    def nodes(self) -> Tensor:
        """Return (N, D): the vectors of all nodes, level by level, finest first."""
        return torch.cat([self.proxies, self.ancestors])

    def extra_repr(self) -> str:
        return f"{len(self.proxies)} proxies, {len(self.ancestors)} ancestors"


class HierCos(NodeProxyLoss):
    """Hierarchical composition of orthogonal subspaces: an axis a node, and a class is the span of its path.

    Sani and Anand, "Hier-COS: Making Deep Features Hierarchy-aware via Composition of Orthogonal Subspaces",
    arXiv:2503.07853. A module maps the embedding into a space with one orthonormal axis for every node of the tree; a
    finest class is the subspace of its own axis and its ancestors', so that two classes share as many axes as they have
    ancestors in common. With z the coordinates there, and z_l those of the nodes of level l, the loss is
    ``KL(t || softmax |z|) + alpha sum_l |onehot_l - |z_l| / norm(z_l)|_1``. The target t lies on the item's path: in
    proportion to ``exp(2 / h)`` for the node of height h, the finest's being 1. The one-hot vector is the item's node.

    Written after the authors' published code; the paper was not at hand, so none of its equations is named. Of hgld:
    the map is linear, from the unit embedding over a temperature, which gives z room from the start, and a parameter of
    the loss (theirs is a residual module of the network). Retrieval is by the embedding before the map, whose dimension
    need not reach the number of nodes. Levels at which a class is unknown are left out of t and of the sum.

    Args:
        hierarchy: see :class:`NodeProxyLoss`.
        dim: see there.
        temperature: by which the coordinates are divided.
        alpha: weight of the second term (0.1 in the authors' scripts).
        reduction: see :class:`~hgld.losses.proxies.ProxyLoss`.

    Attributes:
        proxies: (C, D) rows of the map for the finest nodes.
        ancestors: (A, D) its rows for the others.

    Raises:
        ConfigError: a temperature that is not positive, an alpha that is not a finite number >= 0, or sizes below 1.
    """

    heights: Tensor
    starts: Tensor

    def __init__(
        self,
        hierarchy: Hierarchy,
        dim: int,
        temperature: float = 0.05,
        alpha: float = 0.1,
        *,
        reduction: Reduction = "mean",
    ) -> None:
        super().__init__(hierarchy, dim, reduction=reduction)
        if not 0 < temperature < math.inf or not 0 <= alpha < math.inf:
            raise ConfigError(f"temperature is {temperature} and alpha {alpha}; expected finite numbers > 0 and >= 0.")
        self.temperature = temperature
        self.alpha = alpha
        sizes = torch.tensor((0, *self.num_classes[:-1]))
        self.register_buffer("starts", sizes.cumsum(0), persistent=False)  # of the levels among the nodes
        self.register_buffer("heights", torch.arange(1, len(self.num_classes) + 1), persistent=False)

    def coordinates(self, embeddings: Tensor) -> Tensor:
        """Return (B, N) float32 or float64: (B, D) embeddings in the space of the nodes, level by level."""
        nodes = self.nodes()
        return similarity(embeddings, nodes) * nodes.norm(dim=1) / self.temperature

    def item_losses(self, embeddings: Tensor, targets: Tensor) -> Tensor:
        sizes, own = self.coordinates(embeddings).abs(), self.classes[targets]
        known, path = own >= 0, own.clamp(min=0)
        wanted = torch.where(known, (2 / self.heights.to(sizes.dtype)).exp(), 0.0)
        wanted = wanted / wanted.sum(1, keepdim=True)
        found = sizes.log_softmax(1).gather(1, path + self.starts)
        total = (torch.xlogy(wanted, wanted) - wanted * found).sum(1)
        for level, coordinates in enumerate(sizes.split(self.num_classes, dim=1)):
            if self.num_classes[level]:
                unit = unit_rows(coordinates)  # within [0, 1], so |onehot - unit|_1 is:
                apart = 1 + unit.sum(1) - 2 * unit.gather(1, path[:, level, None])[:, 0]
                total = total + self.alpha * torch.where(known[:, level], apart, 0.0)
        return total

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, temperature={self.temperature}, alpha={self.alpha}"


class EntailmentCones(NodeProxyLoss):
    """Hyperbolic entailment: the vector of every class, coarse or fine, opens a cone in which its images lie.

    Desai et al., "Hyperbolic Image-Text Representations" (MERU), ICML 2023, has texts entail images; here classes do.
    Images and classes lie on the hyperboloid of curvature -1, lifted from the tangent space at its vertex. At every
    level the image pays the cross-entropy of its class by distance, ``-log softmax(-d / temperature)``, and ``weight
    max(0, ext - aper)``: ext is the angle at the class between the way out from the vertex and the way to the image,
    ``aper = arcsin(2 K / sinh a)`` half the width of the cone of a class at the distance a, with K = 0.1. So general
    classes, whose cones are wide, come to lie near the vertex. The levels' values are averaged.

    The distance and both angles are MERU's (there after Le et al., 2019, and Ganea et al., ICML 2018), taken from its
    published code because the paper was not at hand. Of hgld: classes in place of texts, levels, and a cross-entropy
    from images to classes alone; a fixed curvature and a fixed distance of every image to the vertex, both learned
    there, so that images are ordered by distance as by cosine, by which hgld ranks. The angle is taken by atan2,
    which has a gradient also on the cone's axis.

    Args:
        hierarchy: see :class:`NodeProxyLoss`.
        dim: see there.
        temperature: of the distances.
        weight: of the cones beside the cross-entropy (0.2 in MERU).
        radius: distance of images to the vertex.
        reduction: see :class:`~hgld.losses.proxies.ProxyLoss`.

    Attributes:
        proxies: (C, D) tangent vectors of the finest classes; their lengths are the distances a.
        ancestors: (A, D) those of the others.

    Raises:
        ConfigError: a temperature that is not positive, a weight below 0, a radius that is not in (0, 10], or sizes
            below 1.
    """

    def __init__(
        self,
        hierarchy: Hierarchy,
        dim: int,
        temperature: float = 0.05,
        weight: float = 0.2,
        radius: float = 1.0,
        *,
        reduction: Reduction = "mean",
    ) -> None:
        super().__init__(hierarchy, dim, reduction=reduction)
        if not 0 < temperature < math.inf or not 0 <= weight < math.inf or not 0 < radius <= 10:
            raise ConfigError(
                f"temperature is {temperature}, weight {weight} and radius {radius}; expected a finite number > 0, one "
                ">= 0, and one in (0, 10]."
            )
        self.temperature = temperature
        self.weight = weight
        self.radius = radius

    def distances(self, cosines: Tensor, lengths: Tensor) -> Tensor:
        """Return the distances of images to classes of these lengths, by their cosines; shapes broadcast."""
        return hyperbolic_distances(cosines, lengths, lengths.new_full((), self.radius))

    def outside(self, cosines: Tensor, lengths: Tensor) -> Tensor:
        """Return by which angle images lie outside the cones of classes of these lengths, 0 within them."""
        sines = (1 - cosines.square()).clamp(min=_LEAST).sqrt()
        far, out = math.sinh(self.radius), math.cosh(self.radius)
        angle = torch.atan2(far * sines, far * cosines * lengths.cosh() - out * lengths.sinh())
        beside = (lengths.sinh().square() - (2 * _NARROW) ** 2).clamp(min=_SHUT)
        width = torch.atan2(torch.full_like(beside, 2 * _NARROW), beside.sqrt())  # arcsin, exact also near 1
        return (angle - width).clamp(min=0)

    def item_losses(self, embeddings: Tensor, targets: Tensor) -> Tensor:
        nodes, own = self.nodes(), self.classes[targets]
        lengths, cosines = nodes.norm(dim=1).clamp(max=_FARTHEST), similarity(embeddings, nodes)
        total = torch.zeros_like(cosines[:, 0])
        parts = zip(cosines.split(self.num_classes, dim=1), lengths.split(self.num_classes), strict=True)
        for level, (scores, ends) in enumerate(parts):
            if self.num_classes[level]:
                number = own[:, level].clamp(min=0)
                logits = -self.distances(scores, ends) / self.temperature
                values = nn.functional.cross_entropy(logits, number, reduction="none")
                gaps = self.outside(scores.gather(1, number[:, None])[:, 0], ends[number])
                total = total + torch.where(own[:, level] >= 0, values + self.weight * gaps, 0.0)
        return total / len(self.num_classes)

    def extra_repr(self) -> str:
        options = f"temperature={self.temperature}, weight={self.weight}, radius={self.radius}"
        return f"{super().extra_repr()}, {options}"
