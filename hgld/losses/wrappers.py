"""Wrappers of losses: class weights, virtual items, truncated embeddings; and the names of pytorch-metric-learning."""

from collections.abc import Callable, Sequence
from typing import Any, Literal, Unpack, cast

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
        weights: (C,) weight of a query of each class, for example in inverse proportion to the size of the class
            in the training set; scale them so that their mean over the queries is 1. Or ``"balanced"``: every class of
            the batch counts alike, regardless of its number of queries.

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
            raise ConfigError(f"weights are {weights!r}; expected a tensor of one weight per class, or 'balanced'.")
        if self.weights is not None and not _are_weights(self.weights):
            raise ConfigError(f"weights have shape {tuple(self.weights.shape)}; expected finite numbers >= 0, (C,).")

    @property
    def sums_over_queries(self) -> bool:
        """True if the weights are fixed per class; ``"balanced"`` weights depend on all queries."""
        return self.weights is not None and self.loss.sums_over_queries

    def query_values(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return the weighted loss of every query.

        Raises:
            InputError: a label without a weight, or what the loss refuses.
        """
        values, valid = self.loss(*batch)
        column = label_column(batch.labels, self.loss.level)
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
    """Return (Q,) weights with mean 1 over the valid queries and the same sum for every class."""
    sizes = ((labels[:, None] == labels) & valid).sum(1).clamp(min=1)
    num_classes = (valid / sizes.double()).sum()
    return valid.sum() / (num_classes.clamp(min=1) * sizes)


def _are_weights(weights: Tensor) -> bool:
    return weights.ndim == 1 and bool((weights.isfinite() & (weights >= 0)).all())


class SiMix(BatchLoss):
    """Similarity mixup (Patel et al., "Recall@k Surrogate Loss with Large Batches and Similarity Mixup", CVPR 2022).

    For every pair of a batch's items of one finest class, a virtual item between them joins the batch as query and
    gallery item. Its scores are the mixture of the two items' scores. Since a score is an inner product, this equals
    mixing the unit vectors without normalising again, so the wrapped loss must have ``normalize=False``. A class of K
    items gives K (K - 1) / 2 virtual items, so a batch should have few items per class. In ``eval`` mode nothing is
    mixed.

    The number of virtual items depends on the labels. So torch.compile breaks its graph here, but not in the loss.
    Labels on a GPU are waited for; labels on the CPU, with embeddings on a GPU, are not.

    Args:
        loss: a rank loss with ``normalize=False``.

    Attributes:
        loss: the loss.
        reduction: reduction of the loss; ``none`` gives the virtual queries' values too, after those of the batch.

    Raises:
        ConfigError: a loss that normalises.

    >>> from hgld.losses import SmoothRecall
    >>> loss = SiMix(SmoothRecall(normalize=False))
    """

    def __init__(self, loss: nn.Module) -> None:
        super().__init__()
        if getattr(loss, "normalize", True):
            raise ConfigError(
                f"{type(loss).__name__} normalises, which would undo the mixing of scores; give it normalize=False "
                "(SiMix normalises the real items itself)."
            )
        self.loss = loss
        self.reduction: Reduction = getattr(loss, "reduction", "mean")

    def batch_loss(self, batch: Batch) -> Tensor | tuple[Tensor, Tensor]:
        """Return the loss of the batch together with its virtual items; references are not mixed."""
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
        a x_i + (1 - a) x_j, a drawn uniformly from [0, 1] by torch's generator, (V, D), and the labels of the i: (V, L)
        or (V,).
    """
    finest = label_column(labels, 0)
    same = (finest[:, None] == finest) & (finest >= 0)
    first, second = same.triu(diagonal=1).nonzero(as_tuple=True)
    share = torch.rand(len(first), 1, dtype=embeddings.dtype, device=embeddings.device)
    first_at, second_at = on_device(first, embeddings.device), on_device(second, embeddings.device)
    return share * embeddings[first_at] + (1 - share) * embeddings[second_at], labels[first]


class MatryoshkaLoss(BatchLoss):
    """The weighted mean of a loss over truncated embeddings (Kusupati et al., NeurIPS 2022, Eq. 1).

    The first ``dims[0]`` numbers of an embedding, the first ``dims[1]``, ... are each normalised and given to the loss
    like whole embeddings. So short embeddings make fast first searches, and one model serves every size.

    Args:
        losses: one loss that all dimensions share, or one loss per dimension (proxies must have its size).
        dims: dimensions to truncate to, ascending; the last one is usually D.
        weights: one weight per dimension; equal if None.

    Raises:
        ConfigError: dims that do not ascend, lists of other lengths or weights that are not above 0,
            or a loss that does not return a scalar.

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
        super().__init__()
        parts = [losses] if isinstance(losses, nn.Module) else list(losses)
        for loss in parts:
            if getattr(loss, "reduction", "mean") == "none":
                raise ConfigError(f"{type(loss).__name__} has reduction='none'; a mean over prefixes needs scalars.")
        self.dims = tuple(dims)
        self.weights = (1.0,) * len(self.dims) if weights is None else tuple(map(float, weights))
        if not self.dims or self.dims[0] < 1 or sorted(set(self.dims)) != list(self.dims):
            raise ConfigError(f"dims are {self.dims}; expected the sizes of prefixes, ascending.")
        if len(parts) not in (1, len(self.dims)) or len(self.weights) != len(self.dims):
            raise ConfigError(
                f"there are {len(parts)} losses and {len(self.weights)} weights for the prefixes {self.dims}; expected "
                "one loss, or one of each per prefix."
            )
        if not all(weight > 0 for weight in self.weights):
            raise ConfigError(f"weights are {self.weights}; expected numbers above 0.")
        self.losses = nn.ModuleList(parts)

    def batch_loss(self, batch: Batch) -> Tensor:
        """Return the weighted mean of the losses of the prefixes.

        Raises:
            InputError: embeddings shorter than the last prefix.
        """
        embeddings, labels, ref_embeddings, ref_labels, self_index = batch
        if embeddings.shape[1] < self.dims[-1]:
            raise InputError(f"embeddings have {embeddings.shape[1]} dimensions; the prefixes are {self.dims}.")
        total = embeddings.new_zeros(())
        for i, (dim, weight) in enumerate(zip(self.dims, self.weights, strict=True)):
            loss = self.losses[i if len(self.losses) > 1 else 0]
            references = None if ref_embeddings is None else ref_embeddings[:, :dim]
            value = loss(embeddings[:, :dim], labels, references, ref_labels, self_index)
            total = total + weight * cast(Tensor, value)
        return total / sum(self.weights)

    def extra_repr(self) -> str:
        return f"dims={self.dims}, weights={self.weights}"


class MetricLearningLoss(BatchLoss):
    """Adapter of a loss of pytorch-metric-learning, with an optional miner, to ``loss(embeddings, labels, ...)``.

    ``hgld.losses.wrap`` is its short name. It takes labels of several levels, class names, and all processes' items.
    :class:`hgld.losses.SumOverLevels` sums it over levels, and :class:`hgld.losses.CrossBatchMemory` gives it a memory.
    It takes an object of the library, so that hgld itself does not need the library::

        from pytorch_metric_learning.losses import MultiSimilarityLoss
        from pytorch_metric_learning.miners import MultiSimilarityMiner

        loss = MetricLearningLoss(MultiSimilarityLoss(), MultiSimilarityMiner())

    It suits losses of pairs, triplets and tuples: MultiSimilarityLoss, ContrastiveLoss, TripletMarginLoss, MarginLoss,
    LiftedStructureLoss, SupConLoss, NTXentLoss, CircleLoss. It does not suit:

    - SmoothAPLoss, which assumes batches sorted by class with equally many items each, and swaps the number of classes
      with that of items per class: use :class:`SmoothAP`;
    - FastAPLoss and PNPLoss, which take no references (:class:`FastAP`, :class:`PNP` do);
    - CrossBatchMemory, which its losses would need inside: :class:`CrossBatchMemory` takes this module.

    Items of unknown label are left out. The losses normalise by their own rules.

    Args:
        loss: loss that is called as ``loss(embeddings, labels, indices_tuple, ref_emb, ref_labels)``.
        miner: miner that is called as ``miner(embeddings, labels, ref_emb, ref_labels)``, gives the indices.
        level: column of the labels, 0 the finest.

    Raises:
        ConfigError: a level below 0, or a loss that cannot be called.
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
        """True if the loss has parameters, which are vectors or thresholds of classes in pytorch-metric-learning."""
        return any(True for _ in self.parameters())

    def batch_loss(self, batch: Batch) -> Tensor:
        """Return the loss of a batch, 0 with a gradient of 0 if no label is known.

        References that ``self_index`` names are left out for all queries, since the library would take a query's own
        copy for its positive: pairs within the batch are those of the call without references.

        Raises:
            InputError: shapes do not fit, or there is no such level.
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
        """Return the items of known label, at least in float32, and their labels."""
        check_labels(labels, len(embeddings))
        targets = label_column(labels, self.level).to(embeddings.device)
        known = targets >= 0
        return embeddings.to(torch.promote_types(embeddings.dtype, torch.float32))[known], targets[known]


wrap = MetricLearningLoss


# -- names of pytorch-metric-learning ----------------------------------------------------------------------------------
#
# These losses mean the same in both libraries and give the same values. They take labels of several levels or names,
# batches in any order, and references.


class SmoothAPLoss(SmoothAP):
    """:class:`SmoothAP` with ``tau`` called ``temperature``.

    The library's own gives the same value for batches of as many classes as items per class, sorted by class; of
    others it takes the wrong items for positives.

    >>> import torch
    >>> embeddings, labels = torch.eye(4), torch.tensor([0, 0, 1, 1])
    >>> bool(SmoothAPLoss(temperature=0.02)(embeddings, labels) == SmoothAP(tau=0.02)(embeddings, labels))
    True
    """

    def __init__(self, temperature: float = 0.01, **options: Unpack[BinaryOptions]) -> None:
        super().__init__(tau=temperature, **options)


class FastAPLoss(FastAP):
    """:class:`FastAP` with ``bins`` called ``num_bins``; the query is left out of its own gallery."""

    def __init__(self, num_bins: int = 10, *, level: int = 0, **options: Unpack[RankOptions]) -> None:
        super().__init__(num_bins, level=level, **{"exclude_self": True, **options})


class PNPLoss(PNP):
    """:class:`PNP` with ``tau`` called ``anneal``, and the library's defaults."""

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
    """The library's ProxyNCA, which counts the own proxy below too: :class:`ProxyNCApp` at 1 / ``softmax_scale``."""

    def __init__(
        self,
        num_classes: int,
        embedding_size: int,
        softmax_scale: float = 1.0,
        **options: Unpack[ProxyOptions],
    ) -> None:
        temperature = 1 / softmax_scale if softmax_scale else 0.0  # NormSoftmax refuses 0
        super().__init__(num_classes, embedding_size, temperature, **options)
