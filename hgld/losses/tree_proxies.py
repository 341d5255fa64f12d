"""Proxy losses that know the tree of the classes: every mistake counts by how far it is in the tree.

Every finest class has a proxy, and nothing else is learned. Of the labels the finest column alone is read: the
hierarchy knows the rest. A pair of classes has the grade of their items (:func:`hgld.shared_levels`); with L levels
their distance in the tree is ``(L - grade) / L``, the height of their lowest common ancestor over that of a root above
all levels.
"""

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn

from hgld.errors import ConfigError
from hgld.hierarchy import Hierarchy
from hgld.losses.proxies import NormSoftmax
from hgld.losses.rank_loss import Reduction, similarity, unit_rows
from hgld.relevance import shared_levels


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
        classes = hierarchy.expand(np.arange(hierarchy.num_classes[0]))
        self.register_buffer("classes", torch.from_numpy(classes.astype(np.int64)))

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
