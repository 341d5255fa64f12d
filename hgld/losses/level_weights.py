"""A binary rank loss at every level, with weights of the levels that training finds."""

from typing import Literal, get_args

import torch
from torch import Tensor, nn

from hgld.errors import ConfigError, InputError
from hgld.losses.calls import reads_labels
from hgld.losses.rank_loss import RankLoss, by_level, mean_of_valid

LevelWeights = Literal["learned", "hard"]


class LevelWeighted(nn.Module):
    """A binary rank loss over all levels, whose weights are learned or follow what is ranked worst.

    ``learned``: by uncertainty (Kendall, Gal and Cipolla, "Multi-Task Learning Using Uncertainty to Weigh Losses",
    CVPR 2018, Eq. 10, in the logarithm of the variance): with ``s`` a parameter a level, which starts at 0, the loss is
    ``sum_l exp(-s_l) loss_l + s_l / 2``. It may fall below 0. ``hard``: hard-level mining, of hgld: a query's value is
    ``sum_l w_l loss_l`` with ``w_l`` in proportion to ``loss_l ** gamma`` and of sum 1, without a gradient through the
    weights; so the levels at which its ranking is worst count most. With gamma 0 it is the mean over the levels at
    which a query has positives, for :class:`SupAP` an upper bound of 1 - H-AP of the relevance ``weighted_ap``.

    Args:
        loss: a binary rank loss with ``reduction="none"`` and level 0; it sees one column of the labels at a time.
        num_levels: L.
        weights: ``learned`` or ``hard``.
        gamma: see above.

    Attributes:
        log_variances: (L,) parameter, finest level first; None for ``hard``.

    Raises:
        ConfigError: a graded loss, one of another reduction or level, unknown weights, or numbers out of range.

    >>> from hgld.losses.surrogate_losses import SupAP
    >>> loss = LevelWeighted(SupAP(reduction="none"), num_levels=3, weights="hard")
    """

    graded = True  # a memory, or a sum over levels, must hand it all columns

    def __init__(self, loss: RankLoss, num_levels: int, weights: LevelWeights = "learned", gamma: float = 1.0) -> None:
        super().__init__()
        if loss.graded or loss.level or loss.reduction != "none":
            raise ConfigError(
                f"{type(loss).__name__} is graded, or has level={loss.level} or reduction={loss.reduction!r}; expected "
                "a binary rank loss with level=0 and reduction='none'."
            )
        if weights not in get_args(LevelWeights) or num_levels < 1 or not 0 <= gamma < float("inf"):
            raise ConfigError(
                f"weights are {weights!r}, num_levels is {num_levels} and gamma {gamma}; expected 'learned' or 'hard', "
                "at least one level, and a finite gamma >= 0."
            )
        self.loss = loss
        self.weights: LevelWeights = weights
        self.gamma = gamma
        self.num_levels = num_levels
        self.log_variances = nn.Parameter(torch.zeros(num_levels)) if weights == "learned" else None

    @reads_labels
    def forward(
        self,
        embeddings: Tensor,
        labels: Tensor,
        ref_embeddings: Tensor | None = None,
        ref_labels: Tensor | None = None,
        self_index: Tensor | None = None,
    ) -> Tensor:
        """Return the loss of a batch, a scalar; arguments are those of :meth:`RankLoss.forward`.

        Raises:
            InputError: another number of levels, or what the loss refuses.
        """
        levels = by_level(embeddings, labels, ref_embeddings, ref_labels, self_index)
        if len(levels) != self.num_levels:
            raise InputError(f"the labels have {len(levels)} levels; the loss has weights of {self.num_levels}.")
        found = [self.loss(*args) for args in levels]
        values, valid = (torch.stack(parts, dim=1) for parts in zip(*found, strict=True))  # (Q, L) each
        if self.log_variances is not None:
            means = torch.stack([mean_of_valid(*each) for each in found])
            some = valid.any(0)  # a level without positives says nothing of its weight
            return torch.where(some, means * (-self.log_variances).exp() + self.log_variances / 2, 0.0).sum()
        hardness = torch.where(valid, values.detach().clamp(min=0) ** self.gamma, 0.0)
        shares = hardness / hardness.sum(1, keepdim=True).clamp(min=torch.finfo(hardness.dtype).tiny)
        return mean_of_valid((shares * values).sum(1), valid.any(1))

    def extra_repr(self) -> str:
        return f"weights={self.weights!r}, gamma={self.gamma}"
