"""MultiGrain: one embedding for classes and instances."""

from typing import Any

import torch
from torch import Tensor, nn

from hgld.errors import ConfigError
from hgld.losses.label_columns import check_level
from hgld.losses.margin import Margin, MarginReduction
from hgld.losses.proxies import read_targets
from hgld.losses.rank_loss import mean_of_valid


class MultiGrain(nn.Module):
    """lambda x cross-entropy on the class + (1 - lambda) x margin loss on the instance (Berman et al., 2019).

    "MultiGrain: a unified image embedding for classes and instances". Augmentations of one image are the positives of
    the retrieval term; the repeated-augmentation sampler says, by an instance id, which items of a batch are of one
    image. The classifier reads the embedding as it comes, the margin loss its unit vector.

    Args:
        num_classes: classes of the level.
        dim: D, dimension of the embeddings.
        lambda_: weight of the classification term.
        margin: alpha of the paper, half the width between positives and negatives.
        beta: initial boundary between them; it is learned (learning rate 0.1 in the paper).
        reduction: of the margin term: ``mean`` over all sampled pairs as printed, or ``nonzero`` as in the published
            code, see :class:`Margin`.
        level: column of the labels that is the class, 0 the finest.

    Attributes:
        classifier: the linear layer of the class term; whitening can be folded into it.
        margin: the margin loss, with its parameter ``beta``.

    Raises:
        ConfigError: ``lambda_`` outside 0..1, or what :class:`Margin` refuses.
    """

    def __init__(
        self,
        num_classes: int,
        dim: int,
        lambda_: float = 0.5,
        margin: float = 0.2,
        beta: float = 1.2,
        *,
        reduction: MarginReduction = "mean",
        level: int = 0,
    ) -> None:
        super().__init__()
        if not 0 <= lambda_ <= 1 or num_classes < 1 or reduction == "none":
            raise ConfigError(
                f"lambda_ is {lambda_}, num_classes {num_classes} and reduction {reduction!r}; expected lambda_ "
                "in 0..1, at least one class, and 'mean' or 'nonzero'."
            )
        check_level(level)
        self.lambda_ = lambda_
        self.level = level
        self.classifier = nn.Linear(dim, num_classes)
        self.margin = Margin(dim, margin, beta, reduction=reduction)

    def forward(self, embeddings: Tensor, labels: Tensor, *references: Any, instances: Tensor) -> Tensor:
        """Loss of a batch.

        Args:
            embeddings: (B, D) floating.
            labels: (B, L) or (B,) integers, the classes, negative where unknown (then without a class term).
            references: of no effect; rank losses take them.
            instances: (B,) integers, equal for augmentations of one image.

        Returns:
            a scalar.

        Raises:
            InputError: shapes do not fit, or a label is not one of the classes.
        """
        terms = self.terms(embeddings, labels, instances=instances)
        return self.lambda_ * terms["classification"] + (1 - self.lambda_) * terms["retrieval"]

    def terms(self, embeddings: Tensor, labels: Tensor, *, instances: Tensor) -> dict[str, Tensor]:
        """The two terms, not yet weighted; arguments and errors are those of the call."""
        targets = read_targets(embeddings, labels, self.level, self.classifier.weight)
        logits = self.classifier(embeddings)
        values = nn.functional.cross_entropy(
            logits.to(torch.promote_types(logits.dtype, torch.float32)), targets.clamp(min=0), reduction="none"
        )
        return {
            "classification": mean_of_valid(values, targets >= 0),
            "retrieval": self.margin(embeddings, instances),
        }
