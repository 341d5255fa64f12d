"""Proxy losses: a softmax over learned vectors of the classes."""

import math
from abc import ABC, abstractmethod

import torch
from torch import Tensor, nn

from hgld.errors import ConfigError, InputError
from hgld.losses.label_columns import check_labels, check_level, label_column
from hgld.losses.rank_loss import Reduction, check_reduction, mean_of_valid, similarity


class ProxyLoss(nn.Module, ABC):
    """A loss of single items, by their cosines to the proxies of the classes; a subclass writes :meth:`item_losses`.

    Items of unknown label add nothing. A gallery of references plays no part: the proxies are the gallery.

    Args:
        num_classes: C, classes of the level.
        dim: D, dimension of the embeddings.
        level: column of the labels, 0 the finest.
        reduction: ``mean`` over the items of known label, or ``none``: values (B,) and valid (B,).

    Attributes:
        proxies: (C, D) parameter; give it an optimizer group of its own.

    Raises:
        ConfigError: sizes below 1, a level below 0, or an unknown reduction.
    """

    def __init__(self, num_classes: int, dim: int, *, level: int = 0, reduction: Reduction = "mean") -> None:
        super().__init__()
        if num_classes < 1 or dim < 1:
            raise ConfigError(f"num_classes is {num_classes} and dim {dim}; expected sizes of at least 1.")
        check_level(level)
        check_reduction(reduction)
        self.level = level
        self.reduction: Reduction = reduction
        bound = 1 / math.sqrt(dim)  # as torch draws the weights of a linear layer
        self.proxies = nn.Parameter(torch.empty(num_classes, dim).uniform_(-bound, bound))

    @abstractmethod
    def item_losses(self, embeddings: Tensor, targets: Tensor) -> Tensor:
        """Loss (B,) of every item: (B, D) embeddings of (B,) classes; those of unknown items are arbitrary."""

    def forward(
        self,
        embeddings: Tensor,
        labels: Tensor,
        ref_embeddings: Tensor | None = None,
        ref_labels: Tensor | None = None,
        self_index: Tensor | None = None,
    ) -> Tensor | tuple[Tensor, Tensor]:
        """Loss of a batch.

        Args:
            embeddings: (B, D) floating.
            labels: (B, L) or (B,) integers, negative where unknown.
            ref_embeddings: of no effect, like the next two; rank losses take them.
            ref_labels: of no effect.
            self_index: of no effect.

        Returns:
            a scalar, 0 with a gradient of 0 where no label is known; values (B,) and valid (B,) for ``none``.

        Raises:
            InputError: shapes do not fit, or a label has no proxy.
        """
        targets = read_targets(embeddings, labels, self.level, self.proxies)
        valid = targets >= 0
        values = torch.where(valid, self.item_losses(embeddings, targets.clamp(min=0)), 0.0)
        return (values, valid) if self.reduction == "none" else mean_of_valid(values, valid)


class NormSoftmax(ProxyLoss):
    """Cross-entropy of cosines to proxies over a temperature.

    Zhai and Wu, "Classification is a Strong Baseline for Deep Metric Learning", BMVC 2019: the proxy loss of HAPPIER
    and the other compositions, with their eta as ``temperature``.

    Args:
        num_classes: C, classes of the level.
        dim: D, dimension of the embeddings.
        temperature: eta (0.05 in HAPPIER's configurations and in the paper).
        level: column of the labels, 0 the finest.
        reduction: see :class:`ProxyLoss`.

    Raises:
        ConfigError: a temperature that is not positive, or what :class:`ProxyLoss` refuses.

    >>> import torch
    >>> loss = NormSoftmax(num_classes=10, dim=4)
    >>> loss(torch.eye(4), torch.tensor([0, 3, 9, -1])).shape
    torch.Size([])
    """

    def __init__(
        self, num_classes: int, dim: int, temperature: float = 0.05, *, level: int = 0, reduction: Reduction = "mean"
    ) -> None:
        super().__init__(num_classes, dim, level=level, reduction=reduction)
        if not 0 < temperature < math.inf:
            raise ConfigError(f"temperature is {temperature}; expected a finite number > 0.")
        self.temperature = temperature

    def item_losses(self, embeddings: Tensor, targets: Tensor) -> Tensor:
        return nn.functional.cross_entropy(self.logits(embeddings), targets, reduction="none")

    def logits(self, embeddings: Tensor) -> Tensor:
        """(B, C) float32 or float64: cosines to the proxies over the temperature."""
        return similarity(embeddings, self.proxies) / self.temperature

    def extra_repr(self) -> str:
        return f"{len(self.proxies)} proxies, temperature={self.temperature}, level={self.level}"


class ProxyNCApp(NormSoftmax):
    """ProxyNCA++: the probability of the own proxy among all (Teh et al., "ProxyNCA++", ECCV 2020).

    A softmax of squared distances of unit vectors over the temperature. Since -d^2 = 2s - 2, it is
    :class:`NormSoftmax` at half the temperature. The published code scales both vectors by 3, which is a temperature
    of 1/9. Arguments are those of :class:`NormSoftmax`.
    """

    def __init__(
        self, num_classes: int, dim: int, temperature: float = 1 / 9, *, level: int = 0, reduction: Reduction = "mean"
    ) -> None:
        super().__init__(num_classes, dim, temperature, level=level, reduction=reduction)

    def logits(self, embeddings: Tensor) -> Tensor:
        """(B, C) float32 or float64: negative squared distances to the proxies over the temperature."""
        return (2 * similarity(embeddings, self.proxies) - 2) / self.temperature


def read_targets(embeddings: Tensor, labels: Tensor, level: int, proxies: Tensor) -> Tensor:
    """(B,) int64 labels of one level on the device of the embeddings, negative where unknown.

    Raises:
        InputError: shapes do not fit, there is no such level, or a label has no proxy.
    """
    num_classes, dim = proxies.shape
    if embeddings.ndim != 2 or embeddings.shape[1] != dim or not embeddings.is_floating_point():
        raise InputError(
            f"embeddings have shape {tuple(embeddings.shape)} and dtype {embeddings.dtype}; the proxies expect "
            f"(B, {dim}) of a floating dtype."
        )
    check_labels(labels, len(embeddings))
    targets = label_column(labels, level).to(device=embeddings.device, dtype=torch.int64)
    if not torch.compiler.is_compiling() and targets.numel() and int(targets.max()) >= num_classes:
        raise InputError(
            f"label {int(targets.max())} has no proxy: there are {num_classes} classes, 0..{num_classes - 1}. "
            "Count the classes of the training set's level, or number its labels from 0 without gaps."
        )
    return targets
