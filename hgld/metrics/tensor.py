"""The order statistics of a block of queries on any torch device, in whole-block operations."""

import numpy as np
import torch
from torch import Tensor

from hgld.metrics.statistics import OrderStatistics, discounts, exponential_gains


def order_statistics(
    scores: Tensor,
    grades: Tensor,
    counts: np.ndarray,
    relevance: np.ndarray,
    depths: np.ndarray,
    depth: int | None,
    exact: bool,
) -> OrderStatistics:
    """Rank every row; arguments and result are those of :func:`hgld.metrics.native.order_statistics`."""
    device = scores.device
    num_queries, size = scores.shape
    num_levels = counts.shape[1] - 1
    found = OrderStatistics.zeros(num_queries, num_levels, len(depths))
    listed, ends = _ordered(scores, grades, None if depth is None or depth + 1 >= size else depth + 1)
    totals = torch.from_numpy(counts).to(device)
    _fill_formula(found, listed, ends, torch.from_numpy(relevance).to(device), depths, exact)
    _fill_list(found, listed, totals, depths)
    found.asi[:] = _set_intersection(listed, totals).cpu().numpy()
    return found


def _ordered(scores: Tensor, grades: Tensor, length: int | None) -> tuple[Tensor, Tensor]:
    """Grades in list order, (q, M) uint8, and of every place the last one (from 0) of its group of equal scores.

    The keys order by descending score, then ascending grade, so that one sort of integers is exact about ties.
    """
    bits = (scores + 0.0).view(torch.int32).to(torch.int64)  # + 0.0: -0.0 becomes the 0.0 that it equals
    ascending = torch.where(bits < 0, bits ^ 0x7FFFFFFF, bits)
    keys = (~ascending << 8) | grades
    keys = keys.sort(dim=1).values if length is None else keys.topk(length, dim=1, largest=False).values
    listed = (keys & 255).to(torch.uint8)
    score = keys >> 8
    num = keys.shape[1]
    place = torch.arange(num, device=keys.device)
    last = torch.ones_like(listed, dtype=torch.bool)
    last[:, :-1] = score[:, 1:] != score[:, :-1]
    ends = torch.where(last, place, num).flip(1).cummin(1).values.flip(1)
    return listed, ends


def _fill_formula(
    found: OrderStatistics, listed: Tensor, ends: Tensor, relevance: Tensor, depths: np.ndarray, exact: bool
) -> None:
    num_levels = found.ap.shape[1]
    device = listed.device
    share = 1.0 / (ends + 1).double()
    hap = torch.zeros(len(listed), dtype=torch.float64, device=device)
    worth = relevance.gather(1, listed.long())
    negatives = (listed == 0).cumsum(1).gather(1, ends)
    at_least = torch.zeros_like(ends)
    for grade in range(num_levels, 0, -1):
        counted = (listed == grade).cumsum(1).gather(1, ends)
        at_least += counted
        found.ap[:, grade - 1] = _sum(at_least * share * (listed >= grade))
        hap += (torch.minimum(worth, relevance[:, grade, None]) * counted * share * (listed > 0)).sum(1)
        if exact:
            alone = counted.double() / (counted + negatives).clamp(min=1)
            found.exact_ap[:, grade - 1] = _sum(alone * (listed == grade))
    found.hap[:] = hap.cpu().numpy()
    gains = torch.from_numpy(exponential_gains(num_levels)).to(device)
    by_rank = torch.from_numpy(discounts(listed.shape[1])).to(device)
    dcg = gains[listed.long()] * by_rank[ends + 1]
    found.dcg[:] = _sum(dcg)
    for number, k in enumerate(depths.tolist()):
        found.dcg_at[:, number] = _sum(dcg * (ends < k))


def _fill_list(found: OrderStatistics, listed: Tensor, totals: Tensor, depths: np.ndarray) -> None:
    num_levels = found.ap.shape[1]
    num = listed.shape[1]
    place = torch.arange(1, num + 1, device=listed.device)
    for grade in range(1, num_levels + 1):
        chosen = listed >= grade
        terms = (chosen.cumsum(1) * chosen) / place.double()
        positives = totals[:, grade:].sum(1, keepdim=True)
        found.precision_r[:, grade - 1] = _sum(terms * (place <= positives))
        for number, k in enumerate(depths.tolist()):
            found.precision[:, number, grade - 1] = _sum(terms[:, :k])
            found.hits[:, number, grade] = _sum(listed[:, :k] == grade)
    for number, k in enumerate(depths.tolist()):
        if k <= num:
            found.grade_at[:, number] = listed[:, k - 1].cpu().numpy()


def _set_intersection(listed: Tensor, totals: Tensor) -> Tensor:
    num_levels = totals.shape[1] - 1
    positives = totals[:, 1:].sum(1, keepdim=True)
    head = listed[:, : int(positives.max())]
    place = torch.arange(1, head.shape[1] + 1, device=listed.device)
    shared = torch.zeros(head.shape, dtype=torch.int64, device=listed.device)
    before = torch.zeros_like(positives)
    for grade in range(num_levels, 0, -1):
        total = totals[:, grade, None]
        ideal = torch.minimum((place - before).clamp(min=0), total)
        shared += torch.minimum((head == grade).cumsum(1), ideal)
        before = before + total
    return (shared / place.double() * (place <= positives)).sum(1) / positives.squeeze(1)


def _sum(values: Tensor) -> np.ndarray:
    return values.sum(1).cpu().numpy()
