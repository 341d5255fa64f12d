"""The rank metrics and their gradients over all pairs: fused GPU kernels in float32.

Rows are laid out by ascending grade, so that the positives of a row are contiguous at its end. No kernel stores a table
of all pairs: ``_rank_positives`` loops over the items for a block of positives, ``_reach_items`` over the positives for
a block of items.

A query against a large memory has few positives, so one program per block of positives would leave most of a GPU idle.
Therefore several programs share the items of such a query, and ``_sum_parts`` adds their sums. The number of programs
depends only on the numbers of items and positives, so the same input gives the same bits.

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
_ITEMS_PER_PROGRAM = 4096  # 64 steps of a program's loop; with fewer items, the sums of many programs would cost more


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
    tile: dict[str, Any] = {"block_k": _BLOCK_POSITIVES, "block_j": _BLOCK_ITEMS}
    blocks = {"smooth": smooth, **tile}
    rank_positives: Any = _rank_positives[grid(num_queries, size, _BLOCK_POSITIVES)]
    most = triton.cdiv(size, _ITEMS_PER_PROGRAM)
    if most == 1:
        rank_positives(*row_args, *found, most, is_split=False, **blocks)
    else:
        parts = ordered.new_empty(4, num_queries, triton.cdiv(size, _BLOCK_POSITIVES) * _BLOCK_POSITIVES)
        rank_positives(*row_args, *parts, most, is_split=True, **blocks)
        sum_parts: Any = _sum_parts[grid(4 * num_queries, size, _BLOCK_POSITIVES)]
        sum_parts(parts, found, starts, size, num_queries, most, **tile)
    hrank, rank, hrank_slope, rank_slope = found
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
def _num_parts(start, size, most, block_k: tl.constexpr):
    """Return the number of programs that share the items of a block of positives.

    A query has one program per block of its items. Its blocks of positives share these programs equally.
    """
    return tl.minimum(tl.cdiv(size, block_k) // tl.maximum(tl.cdiv(size - start, block_k), 1), most)


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
    most,
    is_split: tl.constexpr,
    smooth: tl.constexpr,
    block_k: tl.constexpr,
    block_j: tl.constexpr,
):
    """Compute hrank, rank and their derivatives with respect to the scores of a block of one query's positives.

    With ``is_split``, the sums are over a part of the items only, and each program writes to its own places.
    """
    blocks = tl.cdiv(size, block_k)
    row = (tl.program_id(0) // blocks).to(tl.int64)
    program = tl.program_id(0) % blocks
    start = tl.load(starts + row)
    if is_split:
        num_parts = _num_parts(start, size, most, block_k)
        width = tl.cdiv(tl.cdiv(size, block_j), num_parts) * block_j
        begin = start + program // num_parts * block_k
        begin_items = program % num_parts * width
        end_items = tl.minimum(begin_items + width, size)
    else:
        begin = start + program * block_k
        begin_items = 0
        end_items = size
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
        for first in range(begin_items, end_items, block_j):
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
            missing = tl.where(begin_items == 0, 0.5, 0.0)
            hrank += missing * gain
            rank += missing
        at = (row * blocks + program) * block_k + tl.arange(0, block_k) if is_split else row * size + k
        tl.store(hranks + at, hrank, mask=inside)
        tl.store(ranks + at, rank, mask=inside)
        tl.store(hrank_slopes + at, tl.sum(hrank_slopes_at, axis=1), mask=inside)
        tl.store(rank_slopes + at, tl.sum(rank_slopes_at, axis=1), mask=inside)


@triton.jit
def _sum_parts(parts, totals, starts, size, num_queries, most, block_k: tl.constexpr, block_j: tl.constexpr):
    """Add the sums of the programs that shared the items of a block of positives, for each of the four results."""
    blocks = tl.cdiv(size, block_k)
    row = (tl.program_id(0) // blocks).to(tl.int64)  # of the table (4, q, ...) seen as (4 q, ...)
    block = tl.program_id(0) % blocks
    start = tl.load(starts + row % num_queries)
    k = start + block * block_k + tl.arange(0, block_k)
    if start + block * block_k < size:
        num_parts = _num_parts(start, size, most, block_k)
        total = tl.zeros([block_j, block_k], tl.float32)
        for first in range(0, num_parts, block_j):
            part = first + tl.arange(0, block_j)
            at = (row * blocks + block * num_parts + part)[:, None] * block_k + tl.arange(0, block_k)[None, :]
            total += tl.load(parts + at, mask=(part < num_parts)[:, None] & (k < size)[None, :], other=0.0)
        tl.store(totals + row * size + k, tl.sum(total, axis=0), mask=k < size)


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
