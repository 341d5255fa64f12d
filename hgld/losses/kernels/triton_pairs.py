"""The rank metrics and their gradients over all pairs: two fused GPU kernels in float32.

Rows are laid out by ascending grade, so that the positives of a row are contiguous at its end. Neither kernel stores a
table of all pairs: the first kernel loops over the items for a block of positives, the second kernel over the positives
for a block of items.

``TRITON_INTERPRET=1`` runs the kernels on the CPU, to test their results.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from hgld.losses.kernels.objectives import Objective, Positives, Sigmoid, Surrogate, pack_surrogate

_MOST_ITEMS = 1 << 21  # (query, item) pairs per launch: about 300 MB of workspace
_BLOCK_POSITIVES = 32
_BLOCK_ITEMS = 64  # a block has 32 x 64 pairs for 128 threads, so each accumulator takes 16 registers


def triton_rank_metric(
    scores: Tensor, grades: Tensor, gains: Tensor, norms: Tensor, objective: Objective, surrogate: Surrogate
) -> tuple[Tensor, Tensor]:
    """Compute metric and gradient of every query, with the arguments and result of ``rank_metric_by_pairs``."""
    values, slopes = torch.zeros_like(norms), torch.zeros_like(scores)
    rows = queries_at_once(scores.shape[1])
    with torch.cuda.device_of(scores):  # Triton launches on the current device, not on the tensors' device
        for start in range(0, len(scores) if scores.numel() else 0, rows):
            block = slice(start, start + rows)
            values[block] = _block(
                scores[block], grades[block], gains[block], norms[block], objective, surrogate, slopes[block]
            )
    return values.to(scores.dtype), slopes


def queries_at_once(num_items: int) -> int:
    """Return the number of queries per launch, given the number of items per query."""
    return max(1, _MOST_ITEMS // max(1, num_items))


def grid(num_queries: int, num_items: int, block: int) -> tuple[int]:
    """Return the launch grid: one program per query and block of its items.

    All programs are on the first axis, because the other axes allow only 65,535.
    """
    return (num_queries * triton.cdiv(num_items, block),)


def _block(
    scores: Tensor,
    grades: Tensor,
    gains: Tensor,
    norms: Tensor,
    objective: Objective,
    surrogate: Surrogate,
    slopes: Tensor,
) -> Tensor:
    """Return the metric (q,) float64 of a block of queries; fill their ``slopes`` (q, G)."""
    num_queries, size = scores.shape
    grade, order = grades.sort(dim=1, stable=True)
    ordered = scores.gather(1, order)
    starts = (grades == 0).sum(dim=1).to(torch.int32)
    smooth = isinstance(surrogate, Sigmoid)
    numbers = pack_surrogate(surrogate) if not smooth else [surrogate.tau, 0.0, 0.0, 0.0]
    step = (1 / numbers[0], *numbers[1:])
    row_args = (ordered, grade, gains.float(), starts, size, gains.shape[1], *step)
    found = ordered.new_zeros(4, num_queries, size)
    found[1] = 1.0
    blocks: dict[str, Any] = {"smooth": smooth, "block_k": _BLOCK_POSITIVES, "block_j": _BLOCK_ITEMS}
    hrank, rank, hrank_slope, rank_slope = found.unbind()
    rank_positives: Any = _rank_positives[grid(num_queries, size, _BLOCK_POSITIVES)]
    rank_positives(*row_args, hrank, rank, hrank_slope, rank_slope, **blocks)
    gain = gains.gather(1, grade.long())
    norm = torch.where(grade > 0, norms[:, None], torch.inf)
    query = torch.arange(num_queries, device=grade.device)[:, None].expand_as(grade)
    terms = objective.terms(Positives(hrank.double(), rank.double(), gain, norm, query))
    by_self = (terms.by_hrank * hrank_slope + terms.by_rank * rank_slope).float()
    chain = (by_self, terms.by_hrank.float(), terms.by_rank.float())
    gradient = torch.empty_like(ordered)
    reach_items: Any = _reach_items[grid(num_queries, size, _BLOCK_ITEMS)]
    reach_items(*row_args, *chain, gradient, **blocks)
    slopes.scatter_(1, order, gradient)
    return terms.values.sum(dim=1)


@triton.jit
def _rank_positives(
    scores,
    grades,
    gains,
    starts,
    size,
    num_grades,
    inverse,
    rho,
    delta,
    line,
    hranks,
    ranks,
    hrank_slopes,
    rank_slopes,
    smooth: tl.constexpr,
    block_k: tl.constexpr,
    block_j: tl.constexpr,
):
    """Compute hrank, rank and their derivatives with respect to the scores of a block of one query's positives."""
    blocks = tl.cdiv(size, block_k)
    row = (tl.program_id(0) // blocks).to(tl.int64)
    begin = tl.load(starts + row) + tl.program_id(0) % blocks * block_k
    if begin < size:
        k = begin + tl.arange(0, block_k)
        inside = k < size
        here = tl.load(scores + row * size + k, mask=inside, other=0.0)
        grade = tl.load(grades + row * size + k, mask=inside, other=0).to(tl.int32)
        gain = tl.load(gains + row * num_grades + grade)
        hranks_at = tl.zeros([block_k, block_j], tl.float32)  # summed over items after the loop
        ranks_at = tl.zeros([block_k, block_j], tl.float32)
        hrank_slopes_at = tl.zeros([block_k, block_j], tl.float32)
        rank_slopes_at = tl.zeros([block_k, block_j], tl.float32)
        for first in range(0, size, block_j):
            j = first + tl.arange(0, block_j)
            other = tl.load(scores + row * size + j, mask=j < size, other=float("-inf"))
            other_grade = tl.load(grades + row * size + j, mask=j < size, other=0).to(tl.int32)
            other_gain = tl.where(other_grade > 0, tl.load(gains + row * num_grades + other_grade), 0.0)
            both = tl.minimum(gain[:, None], other_gain[None, :])
            x = other[None, :] - here[:, None]
            value = tl.sigmoid(x * inverse)
            slope = value * (1 - value) * inverse
            if smooth:
                hranks_at += both * value
                ranks_at += value
                hrank_slopes_at -= both * slope
                rank_slopes_at -= slope
            else:
                lower = other_grade[None, :] < grade[:, None]
                above = tl.where(x >= 0, 1.0, 0.0)
                beyond = x > delta
                step = tl.where(beyond, rho * (x - delta) + line, value + 0.5 * above)
                hranks_at += both * above
                ranks_at += tl.where(lower, step, above)
                rank_slopes_at -= tl.where(lower, tl.where(beyond, rho, slope), 0.0)
        hrank = tl.sum(hranks_at, axis=1)
        rank = tl.sum(ranks_at, axis=1)
        if smooth:  # the positive itself counts 1: the loop added its sigmoid(0) = 0.5, so 0.5 is missing
            hrank += 0.5 * gain
            rank += 0.5
        tl.store(hranks + row * size + k, hrank, mask=inside)
        tl.store(ranks + row * size + k, rank, mask=inside)
        tl.store(hrank_slopes + row * size + k, tl.sum(hrank_slopes_at, axis=1), mask=inside)
        tl.store(rank_slopes + row * size + k, tl.sum(rank_slopes_at, axis=1), mask=inside)


@triton.jit
def _reach_items(
    scores,
    grades,
    gains,
    starts,
    size,
    num_grades,
    inverse,
    rho,
    delta,
    line,
    by_self,
    by_hranks,
    by_ranks,
    gradient,
    smooth: tl.constexpr,
    block_k: tl.constexpr,
    block_j: tl.constexpr,
):
    """Compute the derivatives of the metric with respect to the scores of one block of one query's items."""
    blocks = tl.cdiv(size, block_j)
    row = (tl.program_id(0) // blocks).to(tl.int64)
    j = tl.program_id(0) % blocks * block_j + tl.arange(0, block_j)
    inside = j < size
    other = tl.load(scores + row * size + j, mask=inside, other=float("-inf"))
    other_grade = tl.load(grades + row * size + j, mask=inside, other=0).to(tl.int32)
    other_gain = tl.where(other_grade > 0, tl.load(gains + row * num_grades + other_grade), 0.0)
    reached = tl.zeros([block_k, block_j], tl.float32)  # summed over positives after the loop
    for first in range(tl.load(starts + row), size, block_k):
        k = first + tl.arange(0, block_k)
        here = tl.load(scores + row * size + k, mask=k < size, other=0.0)
        grade = tl.load(grades + row * size + k, mask=k < size, other=0).to(tl.int32)
        by_rank = tl.load(by_ranks + row * size + k, mask=k < size, other=0.0)
        x = other[None, :] - here[:, None]
        value = tl.sigmoid(x * inverse)
        slope = value * (1 - value) * inverse
        if smooth:
            by_hrank = tl.load(by_hranks + row * size + k, mask=k < size, other=0.0)
            both = tl.minimum(tl.load(gains + row * num_grades + grade)[:, None], other_gain[None, :])
            reached += (by_rank[:, None] + by_hrank[:, None] * both) * slope
        else:
            lower = other_grade[None, :] < grade[:, None]
            slope = tl.where(x > delta, rho, slope)
            reached += tl.where(lower, by_rank[:, None] * slope, 0.0)
    total = tl.load(by_self + row * size + j, mask=inside, other=0.0) + tl.sum(reached, axis=0)
    tl.store(gradient + row * size + j, total, mask=inside)
