"""Proxy losses: a softmax over learned vectors of the classes."""

import math

import torch
from torch import Tensor, nn

from hgld.errors import ConfigError, InputError
from hgld.losses.rank_loss import Reduction, mean_of_valid, similarity


class NormSoftmax(nn.Module):
    """Cross-entropy of cosines to proxies over a temperature.

    Zhai and Wu, "Classification is a Strong Baseline for Deep Metric Learning", BMVC 2019: the proxy loss of HAPPIER
    and the other compositions, with their eta as ``temperature``. Items of unknown label add nothing. A gallery of
    references plays no part: the proxies are the gallery.

    Args:
        num_classes: C, classes of the level.
        dim: D, dimension of the embeddings.
        temperature: eta (0.05 in HAPPIER's configurations and in the paper).
        level: column of the labels, 0 the finest.
        reduction: ``mean`` over the items of known label, or ``none``: values (B,) and valid (B,).

    Attributes:
        proxies: (C, D) parameter; give it an optimizer group of its own.

    Raises:
        ConfigError: sizes or a temperature that are not positive.

    >>> import torch
    >>> loss = NormSoftmax(num_classes=10, dim=4)
    >>> loss(torch.eye(4), torch.tensor([0, 3, 9, -1])).shape
    torch.Size([])
    """

    def __init__(
        self, num_classes: int, dim: int, temperature: float = 0.05, *, level: int = 0, reduction: Reduction = "mean"
    ) -> None:
        super().__init__()
        if num_classes < 1 or dim < 1 or level < 0 or not 0 < temperature < math.inf:
            raise ConfigError(
                f"num_classes is {num_classes}, dim {dim}, level {level} and temperature {temperature}; expected sizes "
                "of at least 1, a column >= 0 and a temperature > 0."
            )
        self.level = level
        self.temperature = temperature
        self.reduction = reduction
        self.proxies = new_proxies(num_classes, dim)

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
        logits = self.logits(embeddings)
        values = nn.functional.cross_entropy(logits, targets.clamp(min=0), reduction="none")
        values = torch.where(valid, values, 0.0)
        return (values, valid) if self.reduction == "none" else mean_of_valid(values, valid)

    def logits(self, embeddings: Tensor) -> Tensor:
        """(B, C) float32 or float64: cosines to the proxies over the temperature."""
        return similarity(embeddings, self.proxies) / self.temperature

    def extra_repr(self) -> str:
        return f"{len(self.proxies)} proxies, temperature={self.temperature}, level={self.level}"


class ProxyNCApp(NormSoftmax):
    """ProxyNCA++: the probability of the own proxy among all (Teh et al., "ProxyNCA++", ECCV 2020).

    A softmax of squared distances of unit vectors over the temperature. Since -d^2 = 2s - 2, it is
    :class:`NormSoftmax` at half the temperature. The published code scales both vectors by 3, which is a temperature
    of 1/9.

    Args:
        num_classes: C, classes of the level.
        dim: D, dimension of the embeddings.
        temperature: T.
        level: column of the labels, 0 the finest.
        reduction: ``mean`` or ``none``, see :class:`NormSoftmax`.
    """

    def __init__(
        self, num_classes: int, dim: int, temperature: float = 1 / 9, *, level: int = 0, reduction: Reduction = "mean"
    ) -> None:
        super().__init__(num_classes, dim, temperature, level=level, reduction=reduction)

    def logits(self, embeddings: Tensor) -> Tensor:
        """(B, C) float32 or float64: negative squared distances to the proxies over the temperature."""
        return (2 * similarity(embeddings, self.proxies) - 2) / self.temperature


def new_proxies(num_classes: int, dim: int) -> nn.Parameter:
    """(C, D) vectors drawn as torch draws the weights of a linear layer."""
    bound = 1 / math.sqrt(dim)
    return nn.Parameter(torch.empty(num_classes, dim).uniform_(-bound, bound))


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
    if labels.ndim not in (1, 2) or len(labels) != len(embeddings) or labels.is_floating_point():
        raise InputError(
            f"labels have shape {tuple(labels.shape)} and dtype {labels.dtype} for {len(embeddings)} embeddings; "
            "expected integers, (B, L) or (B,)."
        )
    columns = labels[:, None] if labels.ndim == 1 else labels
    if level >= columns.shape[1]:
        raise InputError(f"labels have {columns.shape[1]} levels and the loss reads level {level} (0 is the finest).")
    targets = columns[:, level].to(device=embeddings.device, dtype=torch.int64)
    if not torch.compiler.is_compiling() and targets.numel() and int(targets.max()) >= num_classes:
        raise InputError(
            f"label {int(targets.max())} has no proxy: there are {num_classes} classes, 0..{num_classes - 1}. "
            "Count the classes of the training set's level, or number its labels from 0 without gaps."
        )
    return targets
