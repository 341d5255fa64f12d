"""CSL: one softmax a level over the proxies of the finest classes, with a margin a level."""

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn

from hgld.errors import ConfigError
from hgld.hierarchy import Hierarchy
from hgld.losses.proxies import ProxyLoss
from hgld.losses.rank_loss import Reduction, similarity
from hgld.relevance import shared_levels

_MARGINS = {
    2: (0.25, 0.45),
    3: (0.25, 0.35, 0.45),
    7: (0.15, 0.25, 0.35, 0.45, 0.55, 0.65, 0.75),
}


class CSL(ProxyLoss):
    """Cross-scale learning (Sun et al., "Dynamic Metric Learning", CVPR 2021): a softmax a level, with level margins.

    Every finest class has a proxy. With s^+ the cosine to the item's own proxy, and at level c the negatives all
    proxies that do not share the item's class there, the loss is

    ``sum_c softplus(log sum_neg exp(scale s^-) - scale s^+ + scale margin_c)``:

    the own proxy must lead those of other classes by a margin that is larger at coarser levels. A level at which an
    item has no negative adds nothing for it. Only the finest column of the labels is read: the hierarchy knows the
    rest.

    Args:
        hierarchy: the tree of the training classes.
        dim: D, dimension of the embeddings.
        margins: one a level, finest first. None: those of HAPPIER's configurations, which exist for 2, 3 and 7 levels.
        scale: inverse temperature (32 there).
        reduction: see :class:`ProxyLoss`.

    Attributes:
        proxies: (C, D) parameter, one vector a finest class; give it an optimizer group of its own.
        classes: (C, L) int64 buffer: every proxy's class at each level.

    Raises:
        ConfigError: margins that do not fit the levels, or sizes that are not positive.
    """

    classes: Tensor
    graded = True  # one column of labels, but all levels

    def __init__(
        self,
        hierarchy: Hierarchy,
        dim: int,
        margins: Sequence[float] | None = None,
        scale: float = 32.0,
        *,
        reduction: Reduction = "mean",
    ) -> None:
        num_levels, num_classes = len(hierarchy.levels), hierarchy.num_classes[0]
        super().__init__(num_classes, dim, reduction=reduction)
        if not 0 < scale < math.inf:
            raise ConfigError(f"scale is {scale}; expected a finite number > 0.")
        given = _MARGINS.get(num_levels, ()) if margins is None else tuple(margins)
        if len(given) != num_levels or not all(math.isfinite(margin) for margin in given):
            raise ConfigError(
                f"margins are {margins} for {num_levels} levels ({', '.join(hierarchy.levels)}); expected one finite "
                "number a level, finest first. Defaults exist for 2, 3 and 7 levels."
            )
        self.margins = given
        self.scale = scale
        classes = hierarchy.expand(np.arange(num_classes))
        self.register_buffer("classes", torch.from_numpy(classes.astype(np.int64)))

    def item_losses(self, embeddings: Tensor, targets: Tensor) -> Tensor:
        grades = shared_levels(self.classes[targets], self.classes)
        logits = similarity(embeddings, self.proxies) * self.scale
        return cross_level_softmax(logits, targets, grades, [self.scale * margin for margin in self.margins])

    def extra_repr(self) -> str:
        return f"{len(self.proxies)} proxies, margins={self.margins}, scale={self.scale}"


def cross_level_softmax(logits: Tensor, own: Tensor, grades: Tensor, margins: Sequence[float]) -> Tensor:
    """Sum over levels of softplus(logsumexp of the level's negatives - own logit + margin).

    Args:
        logits: (B, C) scaled cosines to the proxies.
        own: (B,) int64, every item's own proxy.
        grades: (B, C) integers in 0..L, grades of the proxies to the item's class.
        margins: L of them, finest level first, in units of the logits.

    Returns:
        (B,) values.
    """
    lead = logits.gather(1, own[:, None])[:, 0]
    total = torch.zeros_like(lead)
    for level, margin in enumerate(margins):
        negative = grades < len(margins) - level
        some = negative.any(1)
        masked = torch.where(negative | ~some[:, None], logits, -torch.inf)  # no row of -inf alone: its gradient is NaN
        loss = nn.functional.softplus(masked.logsumexp(1) - lead + margin)
        total = total + torch.where(some, loss, 0.0)
    return total
