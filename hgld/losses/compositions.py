"""Losses that combine other losses: weighted sums of two terms, sums over levels, and MultiGrain."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Literal, Unpack, get_args

import torch
from torch import Tensor, nn

from hgld.errors import ConfigError, at_least, check_choice
from hgld.losses.pairs import CalibrationLoss, Margin, PairReduction
from hgld.losses.proxies import NormSoftmax, read_targets
from hgld.losses.rank_loss import (
    Batch,
    BatchLoss,
    RankLoss,
    Reduction,
    SumOfParts,
    TermSum,
    check_level,
    label_columns,
    mean_of_valid,
    query_sums,
    reads_labels,
    sums_over_queries,
)
from hgld.losses.surrogate_losses import BinaryOptions, GradedOptions, SupAP, SupHAP, SupNDCG, SupRecall
from hgld.relevance import RelevanceKind

Decomposability = Literal["pair", "proxy"]


class Composition(BatchLoss):
    """A rank loss and a decomposability loss, weighted: (1 - lambda) x rank + lambda x decomposability.

    A rank loss orders the items of one batch. The second term makes scores of different batches comparable, so that a
    good order within batches becomes a good order of the whole dataset.

    Args:
        rank: the rank loss.
        decomposability: a loss that takes the same arguments as the rank loss, such as a proxy loss or a pair loss.
        lambda_: weight of the second term (0.1 in ROADMAP and the HAPPIER family; gains are stable below 0.5).

    Attributes:
        reduction: reduction of both losses. With ``none`` the call returns (Q,) weighted sums and (Q,) bool. An
            undefined term counts as 0, and the bool is True if either term is defined. If all labels are known, both
            terms are defined for the same queries, and the mean of the sums is the scalar that ``mean`` returns.

    Raises:
        ConfigError: ``lambda_`` is outside 0..1, or the two losses have different reductions.
    """

    def __init__(self, rank: nn.Module, decomposability: nn.Module, lambda_: float = 0.1) -> None:
        super().__init__()
        if not 0 <= lambda_ <= 1:
            raise ConfigError(f"lambda_ is {lambda_}; expected the weight of the second term, in 0..1.")
        self.reduction: Reduction = getattr(rank, "reduction", "mean")
        if getattr(decomposability, "reduction", "mean") != self.reduction:
            one = rank if self.reduction == "none" else decomposability
            raise ConfigError(
                f"{type(one).__name__} has reduction='none', but the other part does not; give both the same reduction."
            )
        self.rank = rank
        self.decomposability = decomposability
        self.lambda_ = lambda_

    def batch_loss(self, batch: Batch) -> Tensor | tuple[Tensor, Tensor]:
        if self.reduction == "none":
            rank, second = self.rank(*batch), self.decomposability(*batch)
            return (1 - self.lambda_) * rank[0] + self.lambda_ * second[0], rank[1] | second[1]
        return self.combine(self.terms(*batch))

    def combine(self, terms: Mapping[str, Tensor]) -> Tensor:
        """Combine the :meth:`terms` into the loss: a scalar."""
        return (1 - self.lambda_) * terms["rank"] + self.lambda_ * terms["decomposability"]

    def terms(self, *args: Tensor | None) -> dict[str, Tensor]:
        """Return the unweighted terms ``rank`` and ``decomposability`` by name, for the arguments of :meth:`forward`.

        Raises:
            ConfigError: the parts have ``reduction="none"``.
        """
        if self.reduction == "none":
            raise ConfigError("terms() needs losses with reduction='mean'; these have reduction='none'.")
        return {"rank": self.rank(*args), "decomposability": self.decomposability(*args)}

    @property
    def sums_over_queries(self) -> bool:
        """True if both losses are means over queries."""
        return sums_over_queries(self.rank) and sums_over_queries(self.decomposability)

    def query_sums(self, *args: Tensor | None) -> dict[str, TermSum]:
        """Return the sums over queries of the two terms, by name, as :meth:`RankLoss.query_sums` does."""
        parts = {"rank": (self.rank, 1 - self.lambda_), "decomposability": (self.decomposability, self.lambda_)}
        found = {}
        for name, (part, share) in parts.items():
            for inner, term in query_sums(part, *args).items():
                whole = name if inner == "loss" else f"{name}_{inner}"
                found[whole] = replace(term, weight=term.weight * share)
        return found

    def extra_repr(self) -> str:
        return f"lambda_={self.lambda_}"


class _Published(Composition):
    """A rank loss plus a decomposability term, which gets the level and options of the rank loss.

    Args:
        rank: the rank loss.
        num_classes: C, number of classes of the rank loss's level. Needed for ``proxy``.
        dim: D, dimension of the embeddings. Needed for ``proxy``.
        lambda_: weight of the second term.
        decomposability: second term: ``pair`` (:class:`CalibrationLoss` with the published thresholds 0.9 and 0.6) or
            ``proxy`` (:class:`NormSoftmax`). For other thresholds build a :class:`Composition`.
        temperature: temperature of the proxies' softmax.

    Raises:
        ConfigError: ``proxy`` is chosen without ``num_classes`` and ``dim``, or an option of one of the two losses is
            invalid.
    """

    def __init__(
        self,
        rank: RankLoss,
        num_classes: int | None,
        dim: int | None,
        lambda_: float,
        decomposability: Decomposability,
        temperature: float,
    ) -> None:
        check_choice("decomposability", decomposability, get_args(Decomposability))
        if decomposability == "pair":
            second: nn.Module = CalibrationLoss(
                reduction=rank.reduction, level=rank.level, normalize=rank.normalize, exclude_self=rank.exclude_self
            )
        elif num_classes is None or dim is None:
            raise ConfigError(
                "decomposability 'proxy' needs num_classes and dim, one proxy per class; 'pair' needs neither."
            )
        else:
            second = NormSoftmax(num_classes, dim, temperature, level=rank.level, reduction=rank.reduction)
        super().__init__(rank, second, lambda_)


class SupOptions(GradedOptions, total=False):
    """The options of a graded rank term, with the names and defaults of :class:`SupHAP`."""

    tau: float
    rho: float
    delta: float
    offset: float | None


class BinarySupOptions(BinaryOptions, SupOptions, total=False):
    """The options of a binary rank term, with the names and defaults of :class:`SupAP`."""


class ROADMAP(_Published):
    """Sup-AP with the pair loss (Ramzi et al., NeurIPS 2021, Eq. 12) or with the proxy loss, as usually reported.

    Args:
        num_classes: C, number of classes of the level. Needed for ``proxy``.
        dim: D, dimension of the embeddings. Needed for ``proxy``.
        lambda_: weight of the second term.
        decomposability: second term: ``pair`` (:class:`CalibrationLoss` with the published thresholds 0.9 and 0.6) or
            ``proxy`` (:class:`NormSoftmax`). For other thresholds build a :class:`Composition`.
        temperature: temperature of the proxies' softmax.
        options: options of the rank term: ``tau``, ``rho``, ``delta``, ``offset``, ``level``, ``method``,
            ``normalize``, ``exclude_self`` and ``reduction``. Options that the second term also has are passed to both
            terms.

    Raises:
        ConfigError: ``proxy`` is chosen without ``num_classes`` and ``dim``, or an option of one of the two losses is
            invalid.
    """

    def __init__(
        self,
        num_classes: int | None = None,
        dim: int | None = None,
        lambda_: float = 0.1,
        *,
        decomposability: Decomposability = "pair",
        temperature: float = 0.05,
        **options: Unpack[BinarySupOptions],
    ) -> None:
        super().__init__(SupAP(**options), num_classes, dim, lambda_, decomposability, temperature)


class RODRecall(_Published):
    """Sup-R@k with a decomposability term (Ramzi et al., "Optimization of Rank Losses for Image Retrieval", 2023).

    Args:
        num_classes: C, number of classes of the labels' level; each has a proxy. Needed for ``proxy``.
        dim: D, dimension of the embeddings. Needed for ``proxy``.
        lambda_: weight of the second term, in 0..1; the rank term has the weight 1 - ``lambda_``.
        k: cutoffs that recall is averaged over.
        temperature_k: width of the sigmoid at the cutoffs, in ranks.
        decomposability: second term: ``proxy`` (:class:`NormSoftmax`) or ``pair`` (:class:`CalibrationLoss`, with the
            published thresholds 0.9 and 0.6).
        temperature: temperature of the proxies' softmax.
        options: options of the rank term: ``tau``, ``rho``, ``delta``, ``offset``, ``level``, ``method``,
            ``normalize``, ``exclude_self`` and ``reduction``. Options that the second term also has are passed to both
            terms.
    """

    def __init__(
        self,
        num_classes: int | None = None,
        dim: int | None = None,
        lambda_: float = 0.1,
        *,
        k: tuple[int, ...] = (1, 2, 4, 8, 16),
        temperature_k: float = 1.0,
        decomposability: Decomposability = "proxy",
        temperature: float = 0.05,
        **options: Unpack[BinarySupOptions],
    ) -> None:
        rank = SupRecall(k, temperature_k, **options)
        super().__init__(rank, num_classes, dim, lambda_, decomposability, temperature)


class HAPPIER(_Published):
    """Sup-H-AP with proxies of the finest classes (Ramzi et al., "Hierarchical Average Precision Training", ECCV 2022).

    Args:
        num_classes: C, number of classes of the finest level; each has a proxy. Needed for ``proxy``.
        dim: D, dimension of the embeddings. Needed for ``proxy``.
        alpha: exponent of the relevance: 1 is HAPPIER; HAPPIER_F has 5 on Stanford Online Products, 3 on iNaturalist.
        lambda_: weight of the second term, in 0..1; the rank term has the weight 1 - ``lambda_``.
        relevance: gain of a grade: population, total, weighted_ap or exponential (:func:`hgld.graded_relevance`).
        decomposability: second term: ``proxy`` (:class:`NormSoftmax`) or ``pair`` (:class:`CalibrationLoss`, with the
            published thresholds 0.9 and 0.6).
        temperature: temperature of the proxies' softmax.
        options: options of the rank term: ``tau``, ``rho``, ``delta``, ``offset``, ``method``, ``normalize``,
            ``exclude_self`` and ``reduction``. Options that the second term also has are passed to both terms.

    >>> import torch
    >>> labels = torch.tensor([[0, 0], [0, 0], [1, 0], [2, 1]])  # finest first
    >>> HAPPIER(num_classes=3, dim=4)(torch.eye(4), labels).shape
    torch.Size([])
    """

    def __init__(
        self,
        num_classes: int | None = None,
        dim: int | None = None,
        alpha: float = 1.0,
        lambda_: float = 0.1,
        *,
        relevance: RelevanceKind = "population",
        decomposability: Decomposability = "proxy",
        temperature: float = 0.05,
        **options: Unpack[SupOptions],
    ) -> None:
        rank = SupHAP(alpha, relevance=relevance, **options)
        super().__init__(rank, num_classes, dim, lambda_, decomposability, temperature)


class RODNDCG(_Published):
    """Sup-NDCG with a decomposability term on the finest level (Ramzi et al., 2023).

    Args:
        num_classes: C, number of classes of the finest level; each has a proxy. Needed for ``proxy``.
        dim: D, dimension of the embeddings. Needed for ``proxy``.
        lambda_: weight of the second term, in 0..1; the rank term has the weight 1 - ``lambda_``.
        decomposability: second term: ``proxy`` (:class:`NormSoftmax`) or ``pair`` (:class:`CalibrationLoss`, with the
            published thresholds 0.9 and 0.6).
        temperature: temperature of the proxies' softmax.
        options: options of the rank term: ``tau``, ``rho``, ``delta``, ``offset``, ``method``, ``normalize``,
            ``exclude_self`` and ``reduction``. Options that the second term also has are passed to both terms.
    """

    def __init__(
        self,
        num_classes: int | None = None,
        dim: int | None = None,
        lambda_: float = 0.1,
        *,
        decomposability: Decomposability = "proxy",
        temperature: float = 0.05,
        **options: Unpack[SupOptions],
    ) -> None:
        super().__init__(SupNDCG(**options), num_classes, dim, lambda_, decomposability, temperature)


class SumOverLevels(SumOfParts):
    """A binary loss summed over all levels: the sigma baselines of HAPPIER.

    Args:
        losses: one loss that all levels share, or one loss per level, finest first. Losses with proxies must be given
            per level. Each loss gets one column of the labels, (B,), and its ``level`` stays 0. Each level's mean is
            over the queries with positives at that level, so the sum has no ``reduction="none"``.

    Raises:
        ConfigError: there is no loss, or a loss is graded or does not return a scalar.
    """

    def __init__(self, *losses: nn.Module) -> None:
        super().__init__(losses, "a sum over levels needs one number per level")
        parts = [part for loss in losses for part in loss.modules()]  # a composition is graded if one of its parts is
        if not losses or any(getattr(part, "graded", False) or getattr(part, "level", 0) for part in parts):
            raise ConfigError("SumOverLevels needs one binary loss, or one per level, each with level=0.")

    def parts(self, batch: Batch) -> list[tuple[int, float, nn.Module, Batch]]:
        """Return, per level: its number, the weight 1, its loss, and the batch with the labels of that level only.

        Raises:
            ConfigError: there are several losses, but not one per level.
        """
        embeddings, labels, ref_embeddings, ref_labels, self_index = batch
        columns = label_columns(labels).unbind(1)
        ref_columns = [None] * len(columns) if ref_labels is None else label_columns(ref_labels).unbind(1)
        losses = list(self.losses) * (len(columns) if len(self.losses) == 1 else 1)
        if len(losses) != len(columns):
            raise ConfigError(
                f"there are {len(losses)} losses for {len(columns)} levels of labels; give one loss, or one per level."
            )
        return [
            (level, 1.0, loss, Batch(embeddings, own, ref_embeddings, other, self_index))
            for level, (loss, own, other) in enumerate(zip(losses, columns, ref_columns, strict=True))
        ]


# -- MultiGrain -------------------------------------------------------------------------------------------------------
#
# MultiGrain trains one embedding for classes and instances.


class MultiGrain(nn.Module):
    """lambda x cross-entropy on the class + (1 - lambda) x margin loss on the instance (Berman et al., 2019).

    The paper is "MultiGrain: a unified image embedding for classes and instances". Augmentations of one image are the
    positives of the retrieval term; the repeated-augmentation sampler gives them one instance id. The classifier reads
    the raw embedding; the margin loss reads the L2-normalised embedding.

    Args:
        num_classes: number of classes of the level.
        dim: D, dimension of the embeddings.
        lambda_: weight of the classification term.
        margin: alpha of the paper, half the width of the gap between positives and negatives.
        beta: initial boundary between positives and negatives; it is learned (learning rate 0.1 in the paper).
        reduction: reduction of the margin term (:class:`Margin`): ``mean`` over all sampled pairs, as in the paper, or
            ``nonzero``, as in the published code.
        level: column of the labels with the class, 0 the finest.

    Attributes:
        classifier: the linear layer of the class term.
        margin: the margin loss, with its parameter ``beta``.

    Raises:
        ConfigError: ``lambda_`` is outside 0..1, or an option of :class:`Margin` is invalid.
    """

    keeps_classes = True

    def __init__(
        self,
        num_classes: int,
        dim: int,
        lambda_: float = 0.5,
        margin: float = 0.2,
        beta: float = 1.2,
        *,
        reach: float = 1.4,
        reduction: PairReduction = "mean",
        level: int = 0,
    ) -> None:
        super().__init__()
        if not 0 <= lambda_ <= 1:
            raise ConfigError(f"lambda_ is {lambda_}; expected a number from 0 to 1.")
        at_least(1, num_classes=num_classes)
        if reduction == "none":
            raise ConfigError(f"reduction is {reduction!r}; expected 'mean' or 'nonzero'.")
        check_level(level)
        self.lambda_ = lambda_
        self.level = level
        self.classifier = nn.Linear(dim, num_classes)
        self.margin = Margin(dim, margin, beta, reach=reach, reduction=reduction)

    @reads_labels
    def forward(self, embeddings: Tensor, labels: Tensor, *references: Any, instances: Tensor) -> Tensor:
        """Return the loss of a batch.

        Args:
            embeddings: (B, D) floating-point embeddings.
            labels: (B, L) or (B,) class labels; an item of negative label has no class term.
            references: ignored; this argument exists because rank losses accept a gallery.
            instances: (B,) integers, equal for augmentations of one image.

        Returns:
            a scalar.

        Raises:
            InputError: an argument has the wrong shape, or a label is not one of the classes.
        """
        terms = self.terms(embeddings, labels, instances=instances)
        return self.lambda_ * terms["classification"] + (1 - self.lambda_) * terms["retrieval"]

    def terms(self, embeddings: Tensor, labels: Tensor, *, instances: Tensor) -> dict[str, Tensor]:
        """Return the two unweighted terms by name; the arguments and errors are the same as in :meth:`forward`."""
        targets = read_targets(embeddings, labels, self.level, self.classifier.weight)
        logits = self.classifier(embeddings.to(self.classifier.weight.dtype))
        values = nn.functional.cross_entropy(
            logits.to(torch.promote_types(logits.dtype, torch.float32)), targets.clamp(min=0), reduction="none"
        )
        return {
            "classification": mean_of_valid(values, targets >= 0),
            "retrieval": self.margin(embeddings, instances),
        }
