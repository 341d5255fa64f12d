"""Losses of pytorch-metric-learning, called as those of hgld are."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from hgld.errors import ConfigError
from hgld.losses.calls import reads_labels
from hgld.losses.rank_loss import check_labels, check_level, label_column


def wrap(
    loss: Callable[..., Tensor], miner: Callable[..., Any] | None = None, *, level: int = 0
) -> "MetricLearningLoss":
    """Return a loss of pytorch-metric-learning as one of hgld: see :class:`MetricLearningLoss` for the arguments.

    It then takes labels of several levels, names, and all processes' items
    (:class:`hgld.losses.SumOverLevels` adds it up over levels, :class:`hgld.losses.CrossBatchMemory` remembers).
    """
    return MetricLearningLoss(loss, miner, level=level)


class MetricLearningLoss(nn.Module):
    """A loss of pytorch-metric-learning, with an optional miner, behind ``loss(embeddings, labels, ...)``.

    It is handed the library's object, so that hgld needs the library only where one is used::

        from pytorch_metric_learning.losses import MultiSimilarityLoss
        from pytorch_metric_learning.miners import MultiSimilarityMiner

        loss = MetricLearningLoss(MultiSimilarityLoss(), MultiSimilarityMiner())

    Right for losses of pairs, triplets and tuples: MultiSimilarityLoss, ContrastiveLoss, TripletMarginLoss, MarginLoss,
    LiftedStructureLoss, SupConLoss, NTXentLoss, CircleLoss. Not for:

    - SmoothAPLoss, which assumes batches sorted by class with equally many items each, and swaps the number of classes
      with that of items a class: use :class:`SmoothAP`;
    - FastAPLoss and PNPLoss, which take no references (:class:`FastAP`, :class:`PNP` do);
    - CrossBatchMemory, which its losses would need inside: :class:`CrossBatchMemory` takes this module.

    Items of unknown label are left out. The losses normalise by their own rules.

    Args:
        loss: called as ``loss(embeddings, labels, indices_tuple, ref_emb, ref_labels)``.
        miner: called as ``miner(embeddings, labels, ref_emb, ref_labels)``, gives the indices.
        level: column of the labels, 0 the finest.

    Raises:
        ConfigError: a level below 0, or what is no loss.
    """

    def __init__(self, loss: Callable[..., Tensor], miner: Callable[..., Any] | None = None, *, level: int = 0) -> None:
        super().__init__()
        check_level(level)
        if not callable(loss):
            raise ConfigError(
                f"loss is {type(loss).__name__}; expected one of pytorch-metric-learning's: wrap(NTXentLoss())."
            )
        self.loss = loss
        self.miner = miner
        self.level = level

    @property
    def keeps_classes(self) -> bool:
        """True if the loss has parameters: those of pytorch-metric-learning are vectors or thresholds of classes."""
        return any(True for _ in self.parameters())

    @reads_labels
    def forward(
        self,
        embeddings: Tensor,
        labels: Tensor,
        ref_embeddings: Tensor | None = None,
        ref_labels: Tensor | None = None,
        self_index: Tensor | None = None,
    ) -> Tensor:
        """Return the loss of a batch, 0 with a gradient of 0 where no label is known.

        References that ``self_index`` names are left out for all queries, since the library would take a query's own
        copy for its positive: pairs within the batch are those of the call without references.

        Raises:
            InputError: shapes do not fit, or there is no such level.
        """
        queries, targets = self._known(embeddings, labels)
        references: tuple[Tensor | None, Tensor | None] = (None, None)
        if ref_embeddings is not None and ref_labels is not None:
            if self_index is not None:
                kept = torch.ones(len(ref_labels), dtype=torch.bool, device=self_index.device)
                kept[self_index[self_index >= 0]] = False
                ref_embeddings, ref_labels = ref_embeddings[kept], ref_labels[kept]
            references = self._known(ref_embeddings, ref_labels)
        if len(queries) == 0 or (references[0] is not None and len(references[0]) == 0):
            return embeddings.sum() * 0.0
        indices = None if self.miner is None else self.miner(queries, targets, *references)
        return self.loss(queries, targets, indices, *references)

    def _known(self, embeddings: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Return the items of known label and those labels, in float32 at least."""
        check_labels(labels, len(embeddings))
        targets = label_column(labels, self.level).to(embeddings.device)
        known = targets >= 0
        return embeddings.to(torch.promote_types(embeddings.dtype, torch.float32))[known], targets[known]
