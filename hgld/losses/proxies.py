"""Proxy losses: a softmax over one learned vector per class."""

import math
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import ClassVar, TypedDict, Unpack, get_args

import numpy as np
import torch
from torch import Tensor, nn

from hgld.distributed import ALONE, Processes, gather, gather_with_gradients, share_rows, whole_shape
from hgld.errors import ConfigError, InputError, at_least, check_choice, check_positive
from hgld.hierarchy import Hierarchy
from hgld.losses.rank_loss import (
    Batch,
    QueryLoss,
    Reduction,
    check_below,
    check_labels,
    check_level,
    label_column,
    on_device,
    similarity,
)
from hgld.relevance import shared_levels


class ProxyOptions(TypedDict, total=False):
    """Keyword options of a proxy loss; the arguments of :class:`ProxyLoss` have the same names and meanings."""

    level: int
    reduction: Reduction


class ProxyLoss(QueryLoss):
    """A loss per item, from the item's cosines to the classes' proxies; a subclass writes :meth:`item_losses`.

    Items of unknown label add nothing. Reference embeddings are ignored, because the proxies are the gallery.

    Args:
        num_classes: C, number of classes of the level.
        dim: D, dimension of the embeddings.
        level: column of the labels, 0 the finest.
        reduction: ``mean`` over the items of known label, or ``none``: values (B,) and valid (B,).

    Attributes:
        proxies: (C, D) parameter; give it its own optimizer group.

    Raises:
        ConfigError: a size is below 1, the level is below 0, or the reduction is unknown.
    """

    keeps_classes = True
    other_names: ClassVar[Mapping[str, str]] = {
        "embedding_size": "dim",
        "softmax_scale": "temperature=1 / softmax_scale",
    }

    def __init__(self, num_classes: int, dim: int, *, level: int = 0, reduction: Reduction = "mean") -> None:
        super().__init__()
        at_least(1, num_classes=num_classes, dim=dim)
        check_level(level)
        check_choice("reduction", reduction, get_args(Reduction))
        self.level = level
        self.reduction = reduction
        bound = 1 / math.sqrt(dim)  # torch initialises a linear layer in the same way
        self.proxies = nn.Parameter(torch.empty(num_classes, dim).uniform_(-bound, bound))

    @abstractmethod
    def item_losses(self, embeddings: Tensor, targets: Tensor) -> Tensor:
        """Return the (B,) loss of (B, D) embeddings of (B,) classes; the caller ignores items of unknown class."""

    def query_values(self, batch: Batch) -> tuple[Tensor, Tensor]:
        targets = read_targets(batch.embeddings, batch.labels, self.level, self.proxies)
        valid = targets >= 0
        return torch.where(valid, self.item_losses(batch.embeddings, targets.clamp(min=0)), 0.0), valid


class ClassSoftmax(ProxyLoss):
    """A proxy loss that is a function of logarithms of sums over classes, so that processes can split the classes.

    The arguments are the same as in :class:`ProxyLoss`.
    """

    processes = ALONE
    rows = slice(0, None)  # rows of the proxies that this process holds

    def share(self, processes: Processes) -> None:
        """Keep only this process's rows of the proxies; from then on all processes compute the loss together.

        Every process must call this method, and afterwards the loss with equally many items. This process then has the
        whole gradient of its rows, times the number of processes (:func:`hgld.distributed.average_gradients`).
        """
        self.processes, self.proxies = processes, share_rows(self.proxies, processes)
        self.rows = self.proxies.rows

    @abstractmethod
    def logits(self, embeddings: Tensor) -> Tensor:
        """Return the scaled similarities to the C' proxies of this process: (B, C') float32 or float64."""

    @abstractmethod
    def log_sums(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Return the logarithms of K sums over the classes of (B, C') logits, for (B,) targets: (B, K)."""

    @abstractmethod
    def from_sums(self, lead: Tensor, sums: Tensor) -> Tensor:
        """Return the (B,) losses from the (B,) logits of the targets and the (B, K) :meth:`log_sums` of all classes."""

    def item_losses(self, embeddings: Tensor, targets: Tensor) -> Tensor:
        everyone = gather_with_gradients(embeddings, self.processes, adding=True)
        known, logits = gather(targets, self.processes), self.logits(everyone)
        place = known - self.rows.start
        index = place.clamp(0, len(self.proxies) - 1)
        lead = torch.where(place == index, logits.gather(1, index[:, None])[:, 0], _nothing(logits))
        of_process = torch.column_stack([lead, self.log_sums(logits, known)])
        of_all = gather_with_gradients(of_process, self.processes, adding=True).unflatten(0, (self.processes.count, -1))
        start = self.processes.index * len(embeddings)
        sums = of_all[:, start : start + len(embeddings)].logsumexp(0)
        return self.from_sums(sums[:, 0], sums[:, 1:])


def _nothing(logits: Tensor) -> float:
    """Return a logit that adds nothing to a sum; the gradient of a sum of only -inf would be NaN."""
    return torch.finfo(logits.dtype).min


class NormSoftmax(ClassSoftmax):
    """Cross-entropy over the cosines to the proxies, divided by a temperature.

    Zhai and Wu, "Classification is a Strong Baseline for Deep Metric Learning", BMVC 2019. This is the proxy loss of
    HAPPIER, RODNDCG, RODRecall and ROADMAP; ``temperature`` is eta in those papers.

    Args:
        num_classes: C, number of classes of the level.
        dim: D, dimension of the embeddings.
        temperature: divisor of the cosines (0.05 in HAPPIER's configurations and in the paper).
        options: ``level`` and ``reduction`` of :class:`ProxyLoss`.

    Raises:
        ConfigError: the temperature is not positive, or an option of :class:`ProxyLoss` is invalid.

    >>> import torch
    >>> loss = NormSoftmax(num_classes=10, dim=4)
    >>> loss(torch.eye(4), torch.tensor([0, 3, 9, -1])).shape
    torch.Size([])
    """

    def __init__(self, num_classes: int, dim: int, temperature: float = 0.05, **options: Unpack[ProxyOptions]) -> None:
        super().__init__(num_classes, dim, **options)
        check_positive(temperature=temperature)
        self.temperature = temperature

    def item_losses(self, embeddings: Tensor, targets: Tensor) -> Tensor:
        if self.processes.count > 1:
            return super().item_losses(embeddings, targets)
        return nn.functional.cross_entropy(self.logits(embeddings), targets, reduction="none")

    def log_sums(self, logits: Tensor, targets: Tensor) -> Tensor:
        return logits.logsumexp(1, keepdim=True)

    def from_sums(self, lead: Tensor, sums: Tensor) -> Tensor:
        return sums[:, 0] - lead

    def logits(self, embeddings: Tensor) -> Tensor:
        """Return the cosines to the proxies divided by the temperature: (B, C) float32 or float64."""
        return similarity(embeddings, self.proxies) / self.temperature

    def extra_repr(self) -> str:
        return f"{len(self.proxies)} proxies, temperature={self.temperature}, level={self.level}"


class ProxyNCApp(NormSoftmax):
    """ProxyNCA++: probability of the proxy of an item's class among all proxies (Teh et al., ECCV 2020).

    The loss is a softmax over negative squared distances of unit vectors, divided by the temperature. Since
    -d^2 = 2s - 2, it equals :class:`NormSoftmax` at half the temperature. The published code scales embeddings and
    proxies by 3, which is a temperature of 1/9. The arguments are the same as in :class:`NormSoftmax`.
    """

    def __init__(self, num_classes: int, dim: int, temperature: float = 1 / 9, **options: Unpack[ProxyOptions]) -> None:
        super().__init__(num_classes, dim, temperature, **options)

    def logits(self, embeddings: Tensor) -> Tensor:
        """Return negative squared distances to the proxies, divided by the temperature: (B, C) float32 or float64."""
        return (2 * similarity(embeddings, self.proxies) - 2) / self.temperature


def read_targets(embeddings: Tensor, labels: Tensor, level: int, proxies: Tensor) -> Tensor:
    """Return (B,) int64 labels of one level on the device of the embeddings, negative if unknown.

    Raises:
        InputError: a shape is wrong, the labels lack the level, or a label has no proxy.
    """
    num_classes, dim = whole_shape(proxies)
    if embeddings.ndim != 2 or embeddings.shape[1] != dim or not embeddings.is_floating_point():
        raise InputError(
            f"embeddings have shape {tuple(embeddings.shape)} and dtype {embeddings.dtype}; the proxies expect "
            f"(B, {dim}) of a floating dtype."
        )
    check_labels(labels, len(embeddings))
    column = label_column(labels, level)
    check_below(
        column,
        num_classes,
        f"label {{last}} has no proxy: there are {num_classes} classes, 0..{num_classes - 1}. "
        "Count the classes of the training set's level, or number its labels from 0 without gaps.",
    )
    return on_device(column, embeddings.device).to(torch.int64)


# -- CSL --------------------------------------------------------------------------------------------------------------
#
# CSL has one softmax per level over the proxies of the finest classes, with one margin per level.

_MARGINS = {
    2: (0.25, 0.45),
    3: (0.25, 0.35, 0.45),
    7: (0.15, 0.25, 0.35, 0.45, 0.55, 0.65, 0.75),
}


class CSL(ClassSoftmax):
    """Cross-scale learning: one softmax per level, with margins (Sun et al., "Dynamic Metric Learning", CVPR 2021).

    Every finest class has a proxy. s^+ is the cosine to the proxy of the item's class. The negatives of level c are all
    proxies that do not share the item's class at c. The loss is

    ``sum_c softplus(log sum_neg exp(scale s^-) - scale s^+ + scale margin_c)``.

    So s^+ must exceed the cosines of the negatives by a margin, which is larger at coarser levels. A level without
    negatives adds nothing. Only the finest column of the labels is read, because the hierarchy has the coarser classes.

    Args:
        hierarchy: the tree of the training classes.
        dim: D, dimension of the embeddings.
        margins: one margin per level, finest first. None: the margins of HAPPIER's configurations for 2, 3 or 7 levels.
        scale: inverse temperature (32 in HAPPIER's configurations).
        reduction: ``mean`` over the items of known label, or ``none``: values (B,) and valid (B,).

    Attributes:
        proxies: (C, D) parameter, one vector per finest class; give it its own optimizer group.
        classes: (C, L) int64 buffer: every proxy's class at each level.

    Raises:
        ConfigError: there is not one margin per level, or a size or the scale is not positive.
    """

    classes: Tensor
    graded = True  # the loss reads one column of labels, but trains all levels

    def __init__(
        self,
        hierarchy: Hierarchy,
        dim: int,
        margins: Sequence[float] | None = None,
        scale: float = 32.0,
        *,
        reduction: Reduction = "mean",
    ) -> None:
        num_levels, num_classes = len(hierarchy.levels), hierarchy.num_classes[0]
        super().__init__(num_classes, dim, reduction=reduction)
        check_positive(scale=scale)
        given = _MARGINS.get(num_levels, ()) if margins is None else tuple(margins)
        if len(given) != num_levels or not all(math.isfinite(margin) for margin in given):
            raise ConfigError(
                f"margins are {margins} for {num_levels} levels ({', '.join(hierarchy.levels)}); expected one finite "
                "number per level, finest first. Defaults exist for 2, 3 and 7 levels."
            )
        self.margins = given
        self.scale = scale
        classes = hierarchy.expand(np.arange(num_classes))
        self.register_buffer("classes", torch.from_numpy(classes.astype(np.int64)))

    def logits(self, embeddings: Tensor) -> Tensor:
        return similarity(embeddings, self.proxies) * self.scale

    def log_sums(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Return the logarithms of the sums over each level's negatives: (B, L)."""
        grades = shared_levels(self.classes[targets], self.classes[self.rows], dtype=torch.uint8)
        levels = range(len(self.margins), 0, -1)
        return torch.stack([torch.where(grades < n, logits, _nothing(logits)).logsumexp(1) for n in levels], dim=1)

    def from_sums(self, lead: Tensor, sums: Tensor) -> Tensor:
        # A level without negatives has the logarithm of nothing, and adds 0.
        columns = zip(sums.unbind(1), self.margins, strict=True)
        gaps = torch.stack([s - lead + self.scale * margin for s, margin in columns])
        # By default torch takes softplus(x) for x above 20, which is 2e-9 too little for float64.
        return nn.functional.softplus(gaps, threshold=50).sum(0)

    def extra_repr(self) -> str:
        return f"{len(self.proxies)} proxies, margins={self.margins}, scale={self.scale}"
