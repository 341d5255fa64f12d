"""Loss wrappers (class weights, virtual items, truncated embeddings) and losses named as in pytorch-metric-learning."""

from collections.abc import Callable, Sequence
from typing import Any, Literal, Unpack

import torch
from torch import Tensor, nn

from hgld.errors import ConfigError, InputError
from hgld.losses.binned import FastAP
from hgld.losses.proxies import NormSoftmax, ProxyNCApp, ProxyOptions
from hgld.losses.rank_loss import (
    Batch,
    BatchLoss,
    QueryLoss,
    RankLoss,
    RankOptions,
    Reduction,
    SumOfParts,
    check_below,
    check_labels,
    check_level,
    label_column,
    on_device,
    unit_rows,
)
from hgld.losses.surrogate_losses import PNP, BinaryOptions, SmoothAP, Variant


class ClassWeighted(QueryLoss):
    """A rank loss with a weight per class, to balance unequal class sizes (Revaud et al., ICCV 2019).

    Args:
        loss: a binary rank loss with ``reduction="none"``; its ``level`` is the level of the classes.
        weights: (C,) weight of a query of each class, for example the inverse of the class's size in the training set;
            scale the weights so that their mean over the queries is 1. Or ``"balanced"``: every class of the batch has
            the same total weight, regardless of its number of queries.

    Attributes:
        weights: (C,) float32 buffer; None if balanced.

    Raises:
        ConfigError: the loss is graded or has another reduction, or the weights are not finite numbers >= 0.

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
            raise ConfigError(f"weights are {weights!r}; expected a tensor of one weight per class, or 'balanced'.")
        if self.weights is not None and not _are_weights(self.weights):
            raise ConfigError(f"weights have shape {tuple(self.weights.shape)}; expected (C,) finite numbers >= 0.")

    @property
    def sums_over_queries(self) -> bool:
        """True if the weights are fixed per class; ``"balanced"`` weights depend on all queries."""
        return self.weights is not None and self.loss.sums_over_queries

    def query_values(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return the weighted loss of every query.

        Raises:
            InputError: a label has no weight, or the loss rejects the batch.
        """
        values, valid = self.loss(*batch)
        column = label_column(batch.labels, self.loss.level)
        if self.weights is not None:
            check_below(
                column,
                len(self.weights),
                f"label {{last}} has no weight: there are weights for {len(self.weights)} classes. Pass one weight for "
                "every class of the level.",
            )
        column = on_device(column, values.device)
        if self.weights is None:
            weights = _balance(column, valid)
        else:
            weights = self.weights.to(values.device)[column.clamp(min=0)]
        return values * weights.to(values), valid


def _balance(labels: Tensor, valid: Tensor) -> Tensor:
    """Return (Q,) weights with mean 1 over the valid queries and the same sum for every class."""
    sizes = ((labels[:, None] == labels) & valid).sum(1).clamp(min=1)
    num_classes = (valid / sizes.double()).sum()
    return valid.sum() / (num_classes.clamp(min=1) * sizes)


def _are_weights(weights: Tensor) -> bool:
    return weights.ndim == 1 and bool((weights.isfinite() & (weights >= 0)).all())


class SiMix(BatchLoss):
    """Similarity mixup (Patel et al., "Recall@k Surrogate Loss with Large Batches and Similarity Mixup", CVPR 2022).

    For every two items of the same finest class in a batch, a virtual item between them joins the batch as query and
    gallery item. Its scores are a mixture of the two items' scores. Since a score is an inner product, this equals
    mixing the unit vectors without normalising again, so the wrapped loss must have ``normalize=False``. A class of K
    items gives K (K - 1) / 2 virtual items, so a batch should have few items per class. In ``eval`` mode nothing is
    mixed.

    The number of virtual items depends on the labels. So torch.compile has a graph break here, but not in the loss.
    Pass labels on the CPU even if the embeddings are on a GPU: the host waits for labels on a GPU.

    Args:
        loss: a rank loss with ``normalize=False``.

    Attributes:
        loss: the wrapped loss.
        reduction: reduction of the loss; ``none`` returns the values of the batch, then the values of virtual queries.

    Raises:
        ConfigError: the loss normalises embeddings.

    >>> from hgld.losses import SmoothRecall
    >>> loss = SiMix(SmoothRecall(normalize=False))
    """

    def __init__(self, loss: nn.Module) -> None:
        super().__init__()
        if getattr(loss, "normalize", True):
            raise ConfigError(
                f"{type(loss).__name__} normalises, which would undo the mixing of scores; pass it normalize=False "
                "(SiMix normalises the real items itself)."
            )
        self.loss = loss
        self.reduction: Reduction = getattr(loss, "reduction", "mean")

    def batch_loss(self, batch: Batch) -> Tensor | tuple[Tensor, Tensor]:
        """Return the loss of the batch and its virtual items; references are not mixed."""
        embeddings, labels, ref_embeddings, ref_labels, self_index = batch
        queries = unit_rows(embeddings.to(torch.promote_types(embeddings.dtype, torch.float32)))
        if self.training:
            virtual, virtual_labels = mix_positives(queries, labels)
            queries, labels = torch.cat([queries, virtual]), torch.cat([labels, virtual_labels])
            if self_index is not None:
                self_index = torch.cat([self_index, self_index.new_full((len(virtual),), -1)])
        if ref_embeddings is not None:
            ref_embeddings = unit_rows(ref_embeddings.to(queries.dtype))
        return self.loss(queries, labels, ref_embeddings, ref_labels, self_index)


def mix_positives(embeddings: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Make a virtual item between every two items of one finest class.

    Args:
        embeddings: (B, D) floating-point embeddings.
        labels: (B, L) or (B,) integers, finest level first; items of unknown finest label are not mixed.

    Returns:
        (V, D) virtual items a x_i + (1 - a) x_j, and the labels of the items i: (V, L) or (V,). Torch's generator draws
        a uniformly from [0, 1] for each virtual item.
    """
    finest = label_column(labels, 0)
    same = (finest[:, None] == finest) & (finest >= 0)
    first, second = same.triu(diagonal=1).nonzero(as_tuple=True)
    share = torch.rand(len(first), 1, dtype=embeddings.dtype, device=embeddings.device)
    first_at, second_at = on_device(first, embeddings.device), on_device(second, embeddings.device)
    return share * embeddings[first_at] + (1 - share) * embeddings[second_at], labels[first]


class MatryoshkaLoss(SumOfParts):
    """The weighted mean of a loss over truncated embeddings (Kusupati et al., NeurIPS 2022, Eq. 1).

    Embeddings are truncated to each of ``dims``, normalised, and passed to the loss. So one model serves every size:
    for example, truncated embeddings make a fast first search.

    Args:
        losses: one loss that all dimensions share, or one loss per dimension (required for losses with proxies).
        dims: dimensions to truncate to, ascending; the last of them is usually D.
        weights: one weight per dimension; None: equal weights.

    Raises:
        ConfigError: ``dims`` do not ascend, there is not one loss and weight per dimension, a weight is not above 0, or
            a loss does not return a scalar.

    >>> import torch
    >>> from hgld.losses import MatryoshkaLoss, SupHAP
    >>> _ = torch.manual_seed(0)
    >>> labels = torch.tensor([[0, 0], [0, 0], [1, 0], [1, 0], [2, 1], [2, 1]])
    >>> MatryoshkaLoss(SupHAP(), dims=(2, 8))(torch.randn(6, 8), labels).shape
    torch.Size([])
    """

    def __init__(
        self,
        losses: nn.Module | Sequence[nn.Module],
        dims: Sequence[int],
        weights: Sequence[float] | None = None,
    ) -> None:
        parts = [losses] if isinstance(losses, nn.Module) else list(losses)
        super().__init__(parts, "a mean over dimensions needs one number per dimension")
        self.dims = tuple(dims)
        self.weights = (1.0,) * len(self.dims) if weights is None else tuple(map(float, weights))
        if not self.dims or self.dims[0] < 1 or sorted(set(self.dims)) != list(self.dims):
            raise ConfigError(f"dims are {self.dims}; expected dimensions >= 1 in ascending order.")
        if len(parts) not in (1, len(self.dims)) or len(self.weights) != len(self.dims):
            raise ConfigError(
                f"there are {len(parts)} losses and {len(self.weights)} weights for the dimensions {self.dims}; "
                "expected one loss, or one loss per dimension, and one weight per dimension."
            )
        if not all(weight > 0 for weight in self.weights):
            raise ConfigError(f"weights are {self.weights}; expected numbers above 0.")

    def parts(self, batch: Batch) -> list[tuple[int, float, nn.Module, Batch]]:
        """Return, per dimension: the dimension, its weight (they sum to 1), its loss, and the truncated batch.

        Raises:
            InputError: embeddings have fewer dimensions than the last of ``dims``.
        """
        if batch.embeddings.shape[1] < self.dims[-1]:
            found = batch.embeddings.shape[1]
            raise InputError(f"embeddings have {found} dimensions; cannot truncate them to {self.dims}.")
        losses = list(self.losses) * (len(self.dims) if len(self.losses) == 1 else 1)
        return [
            (
                dim,
                weight / sum(self.weights),
                loss,
                batch._replace(
                    embeddings=batch.embeddings[:, :dim],
                    ref_embeddings=None if batch.ref_embeddings is None else batch.ref_embeddings[:, :dim],
                ),
            )
            for dim, weight, loss in zip(self.dims, self.weights, losses, strict=True)
        ]

    def extra_repr(self) -> str:
        return f"dims={self.dims}, weights={self.weights}"


class MetricLearningLoss(BatchLoss):
    """Adapter of a loss of pytorch-metric-learning, with an optional miner, to ``loss(embeddings, labels, ...)``.

    ``hgld.losses.wrap`` is the adapter's short name. The adapter accepts labels of several levels, class names, and all
    processes' items. :class:`hgld.losses.SumOverLevels` sums its loss over levels, and
    :class:`hgld.losses.CrossBatchMemory` gives it a memory. You pass an object of the library, so hgld itself does not
    import the library::

        from pytorch_metric_learning.losses import MultiSimilarityLoss
        from pytorch_metric_learning.miners import MultiSimilarityMiner

        loss = MetricLearningLoss(MultiSimilarityLoss(), MultiSimilarityMiner())

    The adapter works with losses of pairs, triplets and tuples: MultiSimilarityLoss, ContrastiveLoss,
    TripletMarginLoss, MarginLoss, LiftedStructureLoss, SupConLoss, NTXentLoss, CircleLoss. It does not work with:

    - SmoothAPLoss, which assumes batches sorted by class with equally many items each, and swaps the number of classes
      with the number of items per class: use :class:`SmoothAP`;
    - FastAPLoss and PNPLoss, which accept no references: use :class:`FastAP` and :class:`PNP`;
    - the library's CrossBatchMemory: pass this module to :class:`CrossBatchMemory` instead.

    Items of unknown label are excluded. Each loss of the library normalises embeddings itself.

    Args:
        loss: loss that is called as ``loss(embeddings, labels, indices_tuple, ref_emb, ref_labels)``.
        miner: miner that is called as ``miner(embeddings, labels, ref_emb, ref_labels)`` and returns the indices.
        level: column of the labels, 0 the finest.

    Raises:
        ConfigError: the level is below 0, or the loss cannot be called.
    """

    def __init__(self, loss: Callable[..., Tensor], miner: Callable[..., Any] | None = None, *, level: int = 0) -> None:
        super().__init__()
        check_level(level)
        if not callable(loss):
            raise ConfigError(
                f"loss is {type(loss).__name__}; expected a loss of pytorch-metric-learning: wrap(NTXentLoss())."
            )
        self.loss = loss
        self.miner = miner
        self.level = level

    @property
    def keeps_classes(self) -> bool:
        """True if the loss has parameters, which in pytorch-metric-learning are vectors or thresholds of classes."""
        return any(True for _ in self.parameters())

    def batch_loss(self, batch: Batch) -> Tensor:
        """Return the loss of a batch; 0, with a gradient of 0, if no label is known.

        References that ``self_index`` points to are excluded for all queries, because the library would count a query's
        own copy as a positive. Pairs within the batch are then the same as in a call without references.

        Raises:
            InputError: an argument has the wrong shape, or the labels lack the level.
        """
        embeddings, labels, ref_embeddings, ref_labels, self_index = batch
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
        """Return the embeddings (at least float32) and labels of the items of known label."""
        check_labels(labels, len(embeddings))
        targets = label_column(labels, self.level).to(embeddings.device)
        known = targets >= 0
        return embeddings.to(torch.promote_types(embeddings.dtype, torch.float32))[known], targets[known]


wrap = MetricLearningLoss


# -- losses named as in pytorch-metric-learning ------------------------------------------------------------------------
#
# These losses give the same values in both libraries. Here they also accept labels of several levels, class names,
# batches in any order, and references.


class SmoothAPLoss(SmoothAP):
    """:class:`SmoothAP` with ``tau`` called ``temperature``.

    SmoothAPLoss of the library gives the same value if a batch is sorted by class and has as many classes as items
    per class. In any other batch it treats wrong items as positives.

    >>> import torch
    >>> embeddings, labels = torch.eye(4), torch.tensor([0, 0, 1, 1])
    >>> bool(SmoothAPLoss(temperature=0.02)(embeddings, labels) == SmoothAP(tau=0.02)(embeddings, labels))
    True
    """

    def __init__(self, temperature: float = 0.01, **options: Unpack[BinaryOptions]) -> None:
        super().__init__(tau=temperature, **options)


class FastAPLoss(FastAP):
    """:class:`FastAP` with ``bins`` called ``num_bins``; the query is excluded from its own gallery."""

    def __init__(self, num_bins: int = 10, *, level: int = 0, **options: Unpack[RankOptions]) -> None:
        super().__init__(num_bins, level=level, **{"exclude_self": True, **options})


class PNPLoss(PNP):
    """:class:`PNP` with ``tau`` called ``anneal``, and the defaults of pytorch-metric-learning."""

    def __init__(
        self,
        b: float = 2.0,
        alpha: float = 1.0,
        anneal: float = 0.01,
        variant: Variant = "O",
        **options: Unpack[BinaryOptions],
    ) -> None:
        super().__init__(variant, b, alpha, anneal, **options)


class NormalizedSoftmaxLoss(NormSoftmax):
    """:class:`NormSoftmax` with ``dim`` called ``embedding_size``."""

    def __init__(
        self,
        num_classes: int,
        embedding_size: int,
        temperature: float = 0.05,
        **options: Unpack[ProxyOptions],
    ) -> None:
        super().__init__(num_classes, embedding_size, temperature, **options)


class ProxyNCALoss(ProxyNCApp):
    """ProxyNCALoss of pytorch-metric-learning: :class:`ProxyNCApp` at the temperature 1 / ``softmax_scale``.

    Unlike the original ProxyNCA, its denominator includes the proxy of the item's own class.
    """

    def __init__(
        self,
        num_classes: int,
        embedding_size: int,
        softmax_scale: float = 1.0,
        **options: Unpack[ProxyOptions],
    ) -> None:
        temperature = 1 / softmax_scale if softmax_scale else 0.0  # for a temperature of 0, NormSoftmax raises an error
        super().__init__(num_classes, embedding_size, temperature, **options)
