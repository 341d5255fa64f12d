"""Base classes of the losses, and their parts: labels, scores, grades, and the mean over queries.

Labels are (N, L) integers, finest level first, or (N,) for one level; negative is unknown.
"""

import functools
import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, NamedTuple, TypedDict, get_args

import torch
from torch import Tensor, nn

from hgld.errors import ConfigError, InputError, check_choice
from hgld.labels import class_numbers
from hgld.losses.kernels.operator import operator
from hgld.relevance import shared_levels

# -- labels -----------------------------------------------------------------------------------------------------------


def check_level(level: int) -> None:
    """Raise ConfigError if ``level``, a column of the labels, is below 0."""
    if level < 0:
        raise ConfigError(f"level is {level}; expected the number of a column of the labels (0: the finest level).")


def check_labels(labels: Tensor, num_items: int, prefix: str = "") -> None:
    """Raise InputError unless there is one row of integers per embedding."""
    integers = not labels.is_floating_point() and not labels.is_complex() and labels.dtype != torch.bool
    if labels.ndim not in (1, 2) or len(labels) != num_items or not integers:
        raise InputError(
            f"{prefix}labels have shape {tuple(labels.shape)} and dtype {labels.dtype} for {num_items} "
            f"{prefix}embeddings; expected one row of labels per embedding, (N, L) or (N,) integers."
        )


def label_columns(labels: Tensor) -> Tensor:
    """Return (N, L) labels; labels of shape (N,) become one column."""
    return labels[:, None] if labels.ndim == 1 else labels


def label_column(labels: Tensor, level: int) -> Tensor:
    """Return (N,) labels of one level.

    Raises:
        InputError: the labels lack the level.
    """
    columns = label_columns(labels)
    if level >= columns.shape[1]:
        raise InputError(
            f"the labels have {columns.shape[1]} levels and the loss reads level {level} (0 is the finest); "
            "pass labels with that level, or a different level=."
        )
    return columns[:, level]


def on_device(tensor: Tensor, device: torch.device) -> Tensor:
    """Copy a tensor to a device; copies from the CPU use page-locked memory, so that the host does not wait."""
    page_locked = tensor.device.type == "cpu" and device.type not in ("cpu", "mps", "meta")
    if page_locked and not torch.compiler.is_compiling():
        tensor = tensor.pin_memory()
    return tensor.to(device, non_blocking=True)


def check_below(values: Tensor, end: int, message: str) -> None:
    """Check that all (N,) values are below ``end``, without waiting for a GPU.

    For values on the CPU, the function raises InputError. For values on a GPU, a CUDA assertion fails later with the
    message in its log. If a loss gets labels on the CPU, they are checked there.

    Args:
        values: (N,) integers.
        end: number that the values must be below.
        message: text of the error, with ``{last}`` for the largest value.
    """
    if torch.compiler.is_compiling() or not values.numel():
        return
    if values.device.type != "cpu":
        stop: Any = torch._assert_async  # pyright: ignore[reportPrivateImportUsage]
        stop((values < end).all(), message.format(last="one of them"))
    elif (last := int(values.max())) >= end:
        raise InputError(message.format(last=last))


# -- items of one query -----------------------------------------------------------------------------------------------

_MOST_ITEMS = 1 << 20  # (query, item) pairs per block: a temporary table of int64 takes 8 MB


def row_blocks(table: Tensor) -> Iterator[slice]:
    """Yield slices of the rows of a (Q, G) table, each with a bounded number of items; none for an empty table."""
    rows = max(1, _MOST_ITEMS // max(1, table.shape[1]))
    for start in range(0, len(table) if table.numel() else 0, rows):
        yield slice(start, min(start + rows, len(table)))


def read_scores(scores: Tensor, grades: Tensor, left_out: Tensor | None) -> Tensor:
    """Return (Q, G) scores in float32 or float64, after checking that they fit the grades.

    Raises:
        InputError: an argument has the wrong shape or dtype.
    """
    if scores.ndim != 2 or scores.shape != grades.shape or not scores.is_floating_point():
        raise InputError(
            f"scores have shape {tuple(scores.shape)} and dtype {scores.dtype}, grades {tuple(grades.shape)}; "
            "expected two (Q, G) tables; scores need a floating dtype."
        )
    if grades.is_floating_point() or grades.dtype == torch.bool:
        raise InputError(f"grades have dtype {grades.dtype}; expected integers (hgld.shared_levels returns grades).")
    if left_out is not None and left_out.shape != (len(scores),):
        raise InputError(
            f"left_out has shape {tuple(left_out.shape)}; expected ({len(scores)},): the index of the item that each "
            "query excludes, or -1."
        )
    return scores if scores.dtype == torch.float64 else scores.float()


def item_roles(grades: Tensor, left_out: Tensor | None) -> Tensor:
    """Return (Q, G) uint8: 2 for positives, 1 for negatives, 0 for the item that a query excludes."""
    roles = (grades > 0).to(torch.uint8) + 1
    if left_out is None:
        return roles
    return roles * (torch.arange(grades.shape[1], device=grades.device) != left_out[:, None])


# -- argument names of other libraries ---------------------------------------------------------------------------------


class KnownArguments:
    """Base class of losses; an error about an argument name of another library states hgld's name for the argument.

    Attributes:
        other_names: argument names of pytorch-metric-learning, each with the equivalent argument of hgld.
    """

    other_names: ClassVar[Mapping[str, str]] = {}

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "__init__" in vars(cls):
            cls.__init__ = _refuse_other_names(cls.__init__)


def _refuse_other_names(init: Callable[..., None]) -> Callable[..., None]:
    accepted = inspect.signature(init).parameters

    @functools.wraps(init)
    def refuse(self: KnownArguments, *args: Any, **kwargs: Any) -> None:
        for name, own in self.other_names.items():
            if name in kwargs and name not in accepted:
                raise ConfigError(f"{type(self).__name__} has no argument {name!r}; use {own}.")
        init(self, *args, **kwargs)

    return refuse


# -- calls -------------------------------------------------------------------------------------------------------------


def reads_labels(forward: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a loss's ``forward`` so that callers may pass arrays, lists and class names; ``forward`` gets tensors.

    Labels may be anything that :func:`hgld.labels.class_numbers` reads. Every call numbers the names again, so a
    loss that stores something per class (``keeps_classes``: proxies, weights, a memory) accepts only numbers. Arguments
    may be in pytorch-metric-learning's order: ``loss(embeddings, labels, None, ref_emb, ref_labels)``. Indices from a
    miner raise an error.
    """

    @functools.wraps(forward)
    def read(self: nn.Module, embeddings: Tensor, labels: Any, *references: Any, **named: Any) -> Any:
        if not isinstance(embeddings, Tensor):
            raise InputError(f"embeddings are {type(embeddings).__name__}; expected a tensor: torch.as_tensor(...).")
        references, named = _own_order(self, references, named)
        ref_labels = references[1] if len(references) > 1 else named.get("ref_labels")
        if not (isinstance(labels, Tensor) and isinstance(ref_labels, Tensor | None)):
            labels, ref_labels = _as_tensors(self, embeddings, labels, ref_labels)
            if len(references) > 1:
                references = (references[0], ref_labels, *references[2:])
            elif ref_labels is not None:
                named["ref_labels"] = ref_labels
        return forward(self, embeddings, labels, *references, **named)

    return read


def _own_order(loss: nn.Module, references: tuple[Any, ...], named: dict[str, Any]) -> tuple[tuple[Any, ...], dict]:
    """Reorder arguments of pytorch-metric-learning into the order of hgld; raise an error for a miner's indices."""
    indices = named.pop("indices_tuple", None)
    first = references[0] if references else ()
    if isinstance(first, tuple | list):
        indices, references = first or indices, references[1:]
    elif first is None and ("ref_emb" in named or _is_embedding(references)):
        references = references[1:]
    if "ref_emb" in named:
        named["ref_embeddings"] = named.pop("ref_emb")
    if indices:
        raise InputError(
            f"{type(loss).__name__} got the indices of a miner (indices_tuple), which select pairs; losses of hgld use "
            "all items, so omit the miner. hgld.losses.wrap(loss, miner) combines a miner with a loss of "
            "pytorch-metric-learning."
        )
    return references, named


def _is_embedding(references: Sequence[Any]) -> bool:
    return len(references) > 1 and isinstance(references[1], Tensor) and references[1].is_floating_point()


def _as_tensors(loss: nn.Module, embeddings: Tensor, labels: Any, ref_labels: Any) -> tuple[Tensor, Tensor | None]:
    sides = [labels] if ref_labels is None else [labels, ref_labels]
    keeping = next((type(part).__name__ for part in loss.modules() if getattr(part, "keeps_classes", False)), None)
    numbers, _ = class_numbers(*sides, what=("labels", "ref_labels"), numbered_for=keeping)
    found = [torch.from_numpy(side).to(embeddings.device) for side in numbers]
    return found[0], found[1] if len(found) > 1 else None


# -- the loss ---------------------------------------------------------------------------------------------------------

Reduction = Literal["mean", "none"]


class RankOptions(TypedDict, total=False):
    """Keyword options of every rank loss; the arguments of :class:`RankLoss` have the same names and meanings."""

    normalize: bool
    exclude_self: bool
    reduction: Reduction


@dataclass(frozen=True)
class TermSum:
    """A term of a loss as two sums over queries: the term is ``total`` divided by ``count``.

    Attributes:
        weight: weight of the term in the loss.
        total: () sum of the queries' values; the gradient flows here.
        count: () number of queries with a value.
    """

    weight: float
    total: Tensor
    count: Tensor

    @classmethod
    def of(cls, values: Tensor, valid: Tensor) -> "TermSum":
        """Return the sum and the count of the ``valid`` (Q,) entries of ``values`` (Q,)."""
        return cls(1.0, torch.where(valid, values, 0.0).sum(), valid.sum())


def query_sums(loss: Any, *args: Tensor | None) -> dict[str, TermSum]:
    """Return the sums over queries of a loss's terms. :func:`sums_over_queries` must be True for the loss."""
    return loss.query_sums(*args)


def sums_over_queries(loss: nn.Module) -> bool:
    """Return whether a loss consists of sums over queries, which several processes can add up."""
    return bool(getattr(loss, "sums_over_queries", False))


class Batch(NamedTuple):
    """A batch in which every item is a query, and an optional gallery (by default the batch itself).

    Attributes:
        embeddings: (Q, D) floating-point embeddings.
        labels: (Q, L) or (Q,) integers, finest level first, negative if unknown.
        ref_embeddings: (G, D) embeddings of the gallery; None: the batch is its own gallery.
        ref_labels: (G, L) or (G,) labels of the gallery.
        self_index: (Q,) index of the query itself in the gallery, -1 if the query is not in the gallery.
    """

    embeddings: Tensor
    labels: Tensor
    ref_embeddings: Tensor | None = None
    ref_labels: Tensor | None = None
    self_index: Tensor | None = None


class BatchLoss(KnownArguments, nn.Module, ABC):
    """Base class of losses of a batch and an optional gallery; a subclass writes :meth:`batch_loss`."""

    @reads_labels
    def forward(
        self,
        embeddings: Tensor,
        labels: Tensor,
        ref_embeddings: Tensor | None = None,
        ref_labels: Tensor | None = None,
        self_index: Tensor | None = None,
    ) -> Tensor | tuple[Tensor, Tensor]:
        """Return the loss of a batch in which every item is a query.

        Args:
            embeddings: (Q, D) floating-point embeddings.
            labels: (Q, L) or (Q,) integers, finest level first, negative if unknown.
            ref_embeddings: (G, D) embeddings of the gallery: a memory, or all processes' items. None: the batch is its
                own gallery.
            ref_labels: (G, L) or (G,) labels of the gallery.
            self_index: (Q,) index of the query itself in the gallery, -1 if the query is not in the gallery;
                ``exclude_self`` excludes it.

        Returns:
            a scalar; with ``reduction="none"`` values (Q,) and valid (Q,) bool. A batch without a query that has
            positives gives 0, with a gradient of 0.

        Raises:
            InputError: an argument has the wrong shape or dtype.
        """
        return self.batch_loss(Batch(embeddings, labels, ref_embeddings, ref_labels, self_index))

    @abstractmethod
    def batch_loss(self, batch: Batch) -> Tensor | tuple[Tensor, Tensor]:
        """Return the loss of a batch of tensors; :meth:`forward` calls this after reading its arguments."""


class SumOfParts(BatchLoss):
    """A weighted sum of losses, each of a part of the batch; a subclass writes :meth:`parts`.

    Args:
        losses: the losses.
        reason: clause of an error message that states why each loss must be one number.

    Raises:
        ConfigError: a loss does not return a scalar.
    """

    def __init__(self, losses: Sequence[nn.Module], reason: str) -> None:
        super().__init__()
        for loss in losses:
            check_gives_one_number(loss, reason)
        self.losses = nn.ModuleList(losses)

    @abstractmethod
    def parts(self, batch: Batch) -> list[tuple[int, float, nn.Module, Batch]]:
        """Return, per part: its number, its weight, its loss, and the part of the batch that the loss gets."""

    def batch_loss(self, batch: Batch) -> Tensor:
        values = (weight * loss(*part) for _, weight, loss, part in self.parts(batch))
        return sum(values, batch.embeddings.new_zeros(()))

    @property
    def sums_over_queries(self) -> bool:
        """True if all losses are means over queries."""
        return all(map(sums_over_queries, self.losses))

    def query_sums(self, *args: Any) -> dict[str, TermSum]:
        """Return the sums over queries of every part's terms, by name, as :meth:`RankLoss.query_sums` does."""
        return {
            f"{name}_{number}": replace(term, weight=weight * term.weight)
            for number, weight, loss, part in self.parts(Batch(*args))
            for name, term in query_sums(loss, *part).items()
        }


def check_gives_one_number(loss: nn.Module, reason: str) -> None:
    """Raise ConfigError, with the reason, if a loss has ``reduction="none"``."""
    if getattr(loss, "reduction", "mean") == "none":
        raise ConfigError(f"{type(loss).__name__} has reduction='none', but {reason}. Use reduction='mean'.")


class QueryLoss(BatchLoss):
    """A loss that is a mean over queries; a subclass writes :meth:`query_values`."""

    reduction: Reduction = "mean"

    @abstractmethod
    def query_values(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return the loss of every query: values (Q,), and valid (Q,) bool, False for queries excluded by the mean."""

    def batch_loss(self, batch: Batch) -> Tensor | tuple[Tensor, Tensor]:
        values, valid = self.query_values(batch)
        return (values, valid) if self.reduction == "none" else mean_of_valid(values, valid)

    @property
    def sums_over_queries(self) -> bool:
        """True if the loss is a mean over queries, so that the :meth:`query_sums` of parts of a batch can be added up.

        A subclass in which the value of one query depends on other queries returns False.
        """
        return type(self).forward is BatchLoss.forward  # an overridden forward may not be a mean over queries

    def query_sums(self, *args: Any) -> dict[str, TermSum]:
        """Return the sums over queries under the names of the loss's terms; takes the arguments of :meth:`forward`."""
        return {"loss": TermSum.of(*self.query_values(Batch(*args)))}


class RankLoss(QueryLoss):
    """A loss that is a mean over queries; a query's value is a function of its scores and grades.

    A subclass writes :meth:`query_losses`; this class computes its scores and grades from embeddings and labels.

    Args:
        graded: whether the loss reads all levels; a binary loss reads one column of the labels.
        level: the column that a binary loss reads, 0 the finest; must be 0 if the loss is graded.
        normalize: whether to L2-normalise the embeddings, so that scores are cosines.
        exclude_self: whether to exclude the query from its own gallery. The published training code includes it.
        reduction: ``mean`` over the queries that have positives, or ``none``: values (Q,) and valid (Q,), from which
            several processes make one mean.

    Raises:
        ConfigError: the reduction is unknown, the level is negative, or a graded loss has a level above 0.
    """

    reductions: ClassVar[tuple[str, ...]] = get_args(Reduction)

    def __init__(
        self,
        *,
        graded: bool,
        level: int = 0,
        normalize: bool = True,
        exclude_self: bool = False,
        reduction: str = "mean",
    ) -> None:
        super().__init__()
        check_choice("reduction", reduction, self.reductions)
        check_level(level)
        if graded and level:
            raise ConfigError(f"level is {level}; {type(self).__name__} reads all levels, so expected level=0.")
        self.graded = graded
        self.level = level
        self.normalize = normalize
        self.exclude_self = exclude_self
        self.reduction = "none" if reduction == "none" else "mean"
        self.over_nonzero = reduction == "nonzero"

    @abstractmethod
    def query_losses(
        self, scores: Tensor, grades: Tensor, num_levels: int, left_out: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Return the loss of every query.

        Args:
            scores: (Q, G) scores in float32 or float64.
            grades: (Q, G) uint8 grades in 0..L.
            num_levels: number of levels L.
            left_out: (Q,) int64 column that is not ranked, -1 if the row ranks all items. None: every row ranks all
                items.

        Returns:
            values (Q,), 0 if undefined, and valid (Q,) bool: the query has positives.
        """

    def query_values(self, batch: Batch) -> tuple[Tensor, Tensor]:
        return self.query_losses(*self.scored(batch))

    def scored(self, batch: Batch) -> tuple[Tensor, Tensor, int, Tensor | None]:
        """Return the arguments of :meth:`query_losses` for a batch."""
        _check_batch(batch)
        embeddings, labels, ref_embeddings, ref_labels, self_index = batch
        gallery = embeddings if ref_embeddings is None else ref_embeddings
        scores = similarity(embeddings, gallery, normalize=self.normalize)
        query_labels = self._read(labels, scores.device)
        gallery_labels = query_labels if ref_labels is None else self._read(ref_labels, scores.device)
        grades = shared_levels(query_labels, gallery_labels, dtype=torch.uint8)
        left_out = None
        if self.exclude_self and self_index is not None:
            left_out = on_device(self_index, scores.device).to(torch.int64)
        elif self.exclude_self and ref_embeddings is None:
            left_out = torch.arange(len(embeddings), device=scores.device)
        return scores, grades, query_labels.shape[1], left_out

    def _read(self, labels: Tensor, device: torch.device) -> Tensor:
        return on_device(label_columns(labels) if self.graded else label_column(labels, self.level)[:, None], device)


def mean_of_valid(values: Tensor, valid: Tensor) -> Tensor:
    """Return the mean of the ``valid`` (Q,) entries of ``values`` (Q,); 0, with gradient 0, if no entry is valid."""
    return torch.where(valid, values, 0.0).sum() / valid.sum().clamp(min=1)


def similarity(embeddings: Tensor, gallery: Tensor, *, normalize: bool = True) -> Tensor:
    """Return scores (Q, G) of (Q, D) queries against a (G, D) gallery: cosines, or inner products if not ``normalize``.

    Scores are float64 if one of the two arguments is float64, else float32, even under autocast, and never TF32. Lower
    precision would be too coarse: scores near 1 would be 0.05 tau apart in float16 or TF32 (tau = 0.01), and 0.4 tau in
    bfloat16.
    """
    dtype = torch.float64 if torch.float64 in (embeddings.dtype, gallery.dtype) else torch.float32
    with torch.autocast(device_type=embeddings.device.type, enabled=False):
        query = embeddings.to(dtype)
        reference = query if gallery is embeddings else gallery.to(dtype)
        if normalize:
            unit = unit_rows(query)
            reference = unit if reference is query else unit_rows(reference)
            query = unit
        return inner_products(query, reference)


def _save_sides(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
    ctx.save_for_backward(*inputs)


def _inner_products_backward(ctx: Any, by_products: Tensor) -> tuple[Tensor | None, Tensor | None]:
    (rows, others), (first, second) = ctx.saved_tensors, ctx.needs_input_grad
    return (
        inner_products(by_products, others.T) if first else None,
        inner_products(by_products.T, rows.T) if second else None,  # skip a memory: it is large and has no gradient
    )


@operator(
    "hgld::inner_products",
    lambda rows, others: rows.new_empty(len(rows), len(others)),
    _inner_products_backward,
    _save_sides,
)
def inner_products(rows: Tensor, others: Tensor) -> Tensor:
    """Return the (Q, G) inner products of (Q, D) and (G, D) rows in full precision, forwards and backwards.

    The function is a custom torch operator, because the settings of TF32 and bfloat16 apply when a product is computed.
    The backward pass computes its product after the context of the forward pass has ended.
    """
    switches: tuple[Any, ...] = (
        torch.backends.cuda.matmul,
        torch.backends.mkldnn.matmul,  # pyright: ignore[reportAttributeAccessIssue]
    )
    before = [switch.fp32_precision for switch in switches]
    try:
        for switch in switches:
            switch.fp32_precision = "ieee"
        return rows @ others.T
    finally:
        for switch, precision in zip(switches, before, strict=True):
            switch.fp32_precision = precision


def unit_rows(embeddings: Tensor) -> Tensor:
    """L2-normalise the rows of an (N, D) table, even if their squares overflow.

    A row of only zeros and subnormal numbers has no direction: it becomes 0 and has no gradient.
    """
    largest = embeddings.detach().abs().amax(dim=1, keepdim=True)
    nothing = largest < torch.finfo(embeddings.dtype).tiny
    return nn.functional.normalize(embeddings / torch.where(nothing, torch.inf, largest), dim=1)


def _check_batch(batch: Batch) -> None:
    embeddings, labels, ref_embeddings, ref_labels, self_index = batch
    _check_side("", embeddings, labels)
    if (ref_embeddings is None) != (ref_labels is None):
        alone = "ref_labels" if ref_embeddings is None else "ref_embeddings"
        raise InputError(f"got only {alone}; a gallery of references needs both ref_embeddings and ref_labels.")
    if ref_embeddings is not None and ref_labels is not None:
        _check_side("ref_", ref_embeddings, ref_labels)
        if ref_embeddings.shape[1] != embeddings.shape[1]:
            raise InputError(
                f"embeddings have {embeddings.shape[1]} dimensions and ref_embeddings {ref_embeddings.shape[1]}; "
                "queries and gallery must have the same dimension."
            )
    if self_index is None:
        return
    if ref_embeddings is None:
        raise InputError("got self_index without ref_embeddings; omit it: in a batch, query i is gallery item i.")
    if self_index.shape != (len(embeddings),) or self_index.is_floating_point():
        raise InputError(
            f"self_index has shape {tuple(self_index.shape)} and dtype {self_index.dtype}; "
            f"expected ({len(embeddings)},) integers, -1 where no reference is the query."
        )
    size = len(ref_embeddings)
    check_below(self_index, size, f"self_index runs to {{last}}; there are {size} references, from 0 on.")


def _check_side(prefix: str, embeddings: Tensor, labels: Tensor) -> None:
    if embeddings.ndim != 2 or not embeddings.is_floating_point():
        raise InputError(
            f"{prefix}embeddings have shape {tuple(embeddings.shape)} and dtype {embeddings.dtype}; "
            "expected (N, D) of a floating dtype."
        )
    check_labels(labels, len(embeddings), prefix)
