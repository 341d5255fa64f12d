"""Losses under the names and arguments of pytorch-metric-learning, where both mean the same.

Each gives the value of the library's own loss, and takes what hgld's losses take: labels of several levels or names,
batches in any order, references.
"""

from typing import Unpack

from hgld.losses.binned import FastAP
from hgld.losses.proxies import NormSoftmax, ProxyNCApp
from hgld.losses.rank_loss import RankOptions, Reduction
from hgld.losses.surrogate_losses import PNP, BinaryOptions, SmoothAP, Variant


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
        *,
        level: int = 0,
        reduction: Reduction = "mean",
    ) -> None:
        super().__init__(num_classes, embedding_size, temperature, level=level, reduction=reduction)


class ProxyNCALoss(ProxyNCApp):
    """:class:`ProxyNCApp` at the temperature 1 / ``softmax_scale``: the library's loss has the own proxy below, too."""

    def __init__(
        self,
        num_classes: int,
        embedding_size: int,
        softmax_scale: float = 1.0,
        *,
        level: int = 0,
        reduction: Reduction = "mean",
    ) -> None:
        temperature = 1 / softmax_scale if softmax_scale else 0.0  # which is refused
        super().__init__(num_classes, embedding_size, temperature, level=level, reduction=reduction)
