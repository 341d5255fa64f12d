"""A rank loss whose queries are weighted by class."""

from typing import Literal

from torch import Tensor, nn

from hgld.errors import ConfigError
from hgld.losses.calls import reads_labels
from hgld.losses.rank_loss import RankLoss, TermSum, check_below, label_column, mean_of_valid, on_device


class ClassWeighted(nn.Module):
    """A rank loss whose queries count by their class, against unequal class sizes (Revaud et al., ICCV 2019).

    Args:
        loss: a binary rank loss with ``reduction="none"``; its ``level`` says what the class is.
        weights: (C,) weight of a query of each class, for example in inverse proportion to the size of the class
            in the training set; scale them so that their mean over the queries is 1. Or ``"balanced"``: every class of
            the batch counts alike, whatever its number of queries.

    Attributes:
        weights: (C,) float32 buffer; None if balanced.

    Raises:
        ConfigError: a graded loss or one of another reduction, or weights that are not finite numbers >= 0.

    >>> from hgld.losses.binned import SoftBinAP
    >>> loss = ClassWeighted(SoftBinAP(reduction="none"), "balanced")
    """

    weights: Tensor | None

    keeps_classes = True

    def __init__(self, loss: RankLoss, weights: Tensor | Literal["balanced"]) -> None:
        super().__init__()
        if loss.graded or loss.reduction != "none":
            raise ConfigError(
                f"{type(loss).__name__} is graded or has reduction={loss.reduction!r}; expected a binary rank loss "
                "with reduction='none', whose queries can be weighted."
            )
        self.loss = loss
        self.register_buffer("weights", None if isinstance(weights, str) else weights.float())
        if isinstance(weights, str) and weights != "balanced":
            raise ConfigError(f"weights are {weights!r}; expected a tensor of one weight a class, or 'balanced'.")
        if self.weights is not None and not _are_weights(self.weights):
            raise ConfigError(f"weights have shape {tuple(self.weights.shape)}; expected finite numbers >= 0, (C,).")

    @reads_labels
    def forward(
        self,
        embeddings: Tensor,
        labels: Tensor,
        ref_embeddings: Tensor | None = None,
        ref_labels: Tensor | None = None,
        self_index: Tensor | None = None,
    ) -> Tensor:
        """Return the weighted mean over the queries with positives; arguments are those of :meth:`RankLoss.forward`.

        Raises:
            InputError: a label without a weight, or what the loss refuses.
        """
        return mean_of_valid(*self._weighted(embeddings, labels, ref_embeddings, ref_labels, self_index))

    @property
    def sums_over_queries(self) -> bool:
        """True if the weights are those of classes; balanced ones depend on all queries."""
        return self.weights is not None and self.loss.sums_over_queries

    def query_sums(self, embeddings: Tensor, labels: Tensor, *references: Tensor | None) -> dict[str, TermSum]:
        """Return the sums that the loss is made of, see :meth:`RankLoss.query_sums`."""
        return {"loss": TermSum.of(*self._weighted(embeddings, labels, *references))}

    def _weighted(self, embeddings: Tensor, labels: Tensor, *references: Tensor | None) -> tuple[Tensor, Tensor]:
        values, valid = self.loss(embeddings, labels, *references)
        column = label_column(labels, self.loss.level)
        if self.weights is not None:
            check_below(
                column,
                len(self.weights),
                f"label {{last}} has no weight: there are weights for {len(self.weights)} classes. Give one for every "
                "class of the level.",
            )
        column = on_device(column, values.device)
        if self.weights is None:
            weights = _balance(column, valid)
        else:
            weights = self.weights.to(values.device)[column.clamp(min=0)]
        return values * weights.to(values), valid


def _balance(labels: Tensor, valid: Tensor) -> Tensor:
    """Return (Q,) weights of mean 1 over the valid queries, with one sum for every class that has any."""
    sizes = ((labels[:, None] == labels) & valid).sum(1).clamp(min=1)
    num_classes = (valid / sizes.double()).sum()
    return valid.sum() / (num_classes.clamp(min=1) * sizes)


def _are_weights(weights: Tensor) -> bool:
    return weights.ndim == 1 and bool((weights.isfinite() & (weights >= 0)).all())
