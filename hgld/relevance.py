"""Grade of a pair (number of levels that agree) and gain of a grade.

The terms follow Ramzi et al., "Hierarchical Average Precision Training for Pertinent Image Retrieval", ECCV 2022. The
grade of a gallery item is the number of levels, counted from the root, that it shares with the query. Its relevance is
the gain of that grade.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor

from hgld.errors import ConfigError, InputError, at_least, check_choice
from hgld.labels import Array

RelevanceKind = Literal["population", "total", "weighted_ap", "exponential"]


def _as_labels(labels: Array, side: str) -> Tensor:
    tensor = torch.as_tensor(labels)
    if tensor.is_floating_point() or tensor.is_complex() or tensor.dtype == torch.bool or tensor.ndim not in (1, 2):
        raise InputError(
            f"{side} labels have dtype {tensor.dtype} and shape {tuple(tensor.shape)}; expected integer class ids (-1 "
            "for unknown), (N, L), finest level first, or (N,) for one level. Convert whole numbers with .long()."
        )
    return tensor[:, None] if tensor.ndim == 1 else tensor


def shared_levels(query_labels: Array, gallery_labels: Array, *, dtype: torch.dtype = torch.int64) -> Tensor:
    """Return the grade of every (query, gallery) pair.

    The grade is ``L - c`` for the finest level ``c`` (column; 0 is the finest) at which both labels are known and
    equal, and 0 if there is no such level. In a tree a match at a level implies a match at all coarser levels, so the
    finest match alone decides, even if coarser labels are unknown.

    Args:
        query_labels: (Q, L) or (Q,) integer class ids, finest level first; negative is unknown and matches nothing.
        gallery_labels: (G, L) or (G,) class ids of the same levels.
        dtype: dtype of the grades; ``torch.uint8``, for up to 255 levels, takes an eighth of the memory.

    Returns:
        (Q, G) integers in 0..L, on the device of ``query_labels``.

    Raises:
        InputError: labels are not integers, have other than one or two dimensions, or the level counts differ.

    >>> import torch, hgld
    >>> church, castle, lake = [0, 0, 0], [1, 1, 0], [2, 2, 1]  # landmark, group, human-made or natural
    >>> hgld.shared_levels(torch.tensor([church]), torch.tensor([church, castle, lake])).tolist()
    [[3, 1, 0]]
    """
    query, gallery = _as_labels(query_labels, "query"), _as_labels(gallery_labels, "gallery")
    if query.shape[1] != gallery.shape[1]:
        raise InputError(
            f"query labels have {query.shape[1]} levels and gallery labels {gallery.shape[1]}; "
            "both sides need the same levels in the same order."
        )
    num_levels = query.shape[1]
    gallery = gallery.to(query.device)
    query, gallery = (side if side.dtype.is_signed else side.long() for side in (query, gallery))
    gallery = gallery.where(gallery >= 0, -1)
    query = query.where(query >= 0, -2)  # unknown is -1 in the gallery and -2 in queries, so it never matches
    grades = torch.zeros(query.shape[0], gallery.shape[0], dtype=dtype, device=query.device)
    for level in reversed(range(num_levels)):
        grades.masked_fill_(query[:, level, None] == gallery[:, level], num_levels - level)
    return grades


def graded_relevance(
    grades: Array,
    num_levels: int,
    kind: RelevanceKind = "population",
    alpha: float = 1.0,
    weights: Sequence[float] | None = None,
    *,
    count_query: bool = False,
    dtype: torch.dtype | None = None,
) -> Tensor:
    """Return the relevance of every pair, from its grade.

    With ``l`` the grade of a pair, ``L`` the number of levels, and ``Omega^(l)`` the items of the query's row whose
    grade is exactly ``l`` (``Omega^{+,p}``: at least ``p``):

    - ``population``: ``(l/L)^alpha / |Omega^(l)|`` (HAPPIER, ECCV 2022, Eq. 1)
    - ``total``: ``(l/L)^alpha``
    - ``weighted_ap``: ``sum_{p=1..l} w_p / |Omega^{+,p}|``, for which H-AP is the weighted sum of the levels' APs
      (HAPPIER, supplementary A.2); ``w_p = 1/L`` unless given, renormalised over the levels that have positives
    - ``exponential``: ``2^l - 1``, NDCG's gain (Järvelin and Kekäläinen 2002; Burges et al. 2005)

    The gain of grade 0 is 0 for every kind.

    Args:
        grades: (Q, G) integers in 0..L, one row per query.
        num_levels: L, the number of levels of the hierarchy (a batch may lack some grades).
        kind: name of one of the definitions above.
        alpha: exponent of ``population`` and ``total``, >= 0; other kinds ignore it.
        weights: ``w_1 .. w_L`` of ``weighted_ap``, coarsest level first (p counts from the root); not negative.
        count_query: whether to count the query itself in ``|Omega^(L)|`` for ``population``. In leave-one-out
            evaluation the row lacks the query, but published H-AP values count it.
        dtype: floating dtype of the result; torch's default dtype if None.

    Returns:
        (Q, G) float, on the device of ``grades``.

    Raises:
        ConfigError: the kind is unknown, alpha is below 0, or the weights are not L numbers >= 0 with a positive sum.
        InputError: the grades are not integers, have the wrong shape or are outside 0..L.

    >>> import torch, hgld
    >>> hgld.graded_relevance(torch.tensor([[2, 1, 1, 0]]), num_levels=2).tolist()
    [[1.0, 0.25, 0.25, 0.0]]
    """
    grade = _as_grades(grades, num_levels)
    counts = torch.zeros(grade.shape[0], num_levels + 1, dtype=torch.int64, device=grade.device)
    counts.scatter_add_(1, grade, torch.ones_like(grade))
    gain = GainFunction(kind, alpha, weights, count_query)
    return gain.of_counts(counts, relative=False).gather(1, grade).to(dtype or torch.get_default_dtype())


@dataclass(frozen=True)
class GainFunction:
    """The gain of a grade in H-AP, H-R@k, H-P@k and wAP, and in the losses of H-AP.

    :func:`hgld.graded_relevance` lists the formulas.

    Attributes:
        kind: name of the formula: ``population``, ``total``, ``weighted_ap`` or ``exponential``.
        alpha: exponent of ``population`` and ``total``, >= 0.
        weights: the L weights of ``weighted_ap`` and of the metric wAP, coarsest level first; None: equal weights.
        count_query: whether to count the query itself among the items of grade L; only for ``population``.

    Raises:
        ConfigError: the kind is unknown, alpha is below 0, or the weights are negative or all zero.
    """

    kind: RelevanceKind = "population"
    alpha: float = 1.0
    weights: Sequence[float] | None = None
    count_query: bool = False

    def __post_init__(self) -> None:
        check_choice("relevance kind", self.kind, get_args(RelevanceKind))
        if not 0 <= self.alpha < float("inf"):
            raise ConfigError(f"alpha is {self.alpha}; expected a finite number >= 0.")
        if self.weights is None:
            return
        weights = tuple(float(w) for w in self.weights)
        object.__setattr__(self, "weights", weights)
        if not (weights and min(weights) >= 0 and 0 < sum(weights) < float("inf")):
            raise ConfigError(f"weights are {list(weights)}; expected numbers >= 0 with a positive sum that is finite.")

    def of_counts(self, counts: Tensor, *, relative: bool = True) -> Tensor:
        """Return the gain of every grade for every query, from the number of gallery items of each grade.

        Args:
            counts: (Q, L + 1) int64, number of items per grade.
            relative: whether to divide by the largest grade that occurs for the query, instead of L, in
                ``(l/L)^alpha``; grades that do not occur get gain 0. H-AP, H-R@k and H-P@k do not change if all gains
                of a query are scaled, but with a large alpha, dividing by L could round all gains to 0.

        Returns:
            (Q, L + 1) float64; the gain of grade 0 is 0.

        Raises:
            ConfigError: there is not one weight per level.
        """
        num_levels = counts.shape[1] - 1
        grades = torch.arange(num_levels + 1, dtype=torch.float64, device=counts.device)
        if self.kind == "exponential":
            return (2.0**grades - 1).expand(counts.shape)
        if self.kind == "weighted_ap":
            gains = (self.level_weights(counts) / _at_least(counts).clamp(min=1)).cumsum(dim=1)
            return torch.nn.functional.pad(gains, (1, 0))
        if relative:
            largest = torch.where(counts > 0, grades, 0.0).amax(dim=1, keepdim=True).clamp(min=1)
            steps = torch.where(counts > 0, grades / largest, 0.0)
        else:
            steps = (grades / num_levels).expand(counts.shape)
        total = torch.where(steps > 0, steps**self.alpha, 0.0)
        if self.kind == "total":
            return total
        query = self.count_query * (grades == num_levels)
        return total / (counts + query).clamp(min=1)

    def level_weights(self, counts: Tensor) -> Tensor:
        """Return the weight of every level's AP for every query: 0 for a level without positives; the sum is 1.

        Args:
            counts: (Q, L + 1) int64, number of items per grade.

        Returns:
            (Q, L) float64, coarsest level first; a row of zeros if all levels with positives have weight 0.

        Raises:
            ConfigError: there is not one weight per level.
        """
        num_levels = counts.shape[1] - 1
        weights = [1.0 / num_levels] * num_levels if self.weights is None else self.weights
        if len(weights) != num_levels:
            raise ConfigError(
                f"weights are {list(weights)}: there are {len(weights)} weights for {num_levels} levels; expected "
                f"{num_levels}, coarsest level first."
            )
        # Fill the tensor on the device, because the host would wait for a copy from the CPU.
        each = [counts.new_full((1,), one, dtype=torch.float64) for one in weights]
        weight = torch.cat(each) * (_at_least(counts) > 0)
        return weight / weight.sum(dim=1, keepdim=True).clamp(min=torch.finfo(torch.float64).tiny)


def _at_least(counts: Tensor) -> Tensor:
    """Return (Q, L): number of items of grade at least 1, at least 2, ..., L."""
    return counts.flip(1).cumsum(dim=1).flip(1)[:, 1:]


def _as_grades(grades: Array, num_levels: int) -> Tensor:
    grade = torch.as_tensor(grades)
    if grade.ndim != 2 or grade.is_floating_point() or grade.dtype == torch.bool:
        raise InputError(
            f"grades have shape {tuple(grade.shape)} and dtype {grade.dtype}; expected a (Q, G) table of integers, "
            "as hgld.shared_levels returns it."
        )
    at_least(1, num_levels=num_levels)
    lowest, highest = (int(grade.min()), int(grade.max())) if grade.numel() else (0, 0)
    if lowest < 0 or highest > num_levels:
        raise InputError(f"grades run from {lowest} to {highest}; expected 0..{num_levels} for {num_levels} levels.")
    return grade.long()
