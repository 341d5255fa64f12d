"""Slow float64 twins, one query at a time, straight from the definitions; nothing here is shared with hgld.

Every metric takes one query's ``scores`` and ``grades`` (two sequences of the same length: its ranked gallery, without
the query and without items left out) and returns a float, NaN where the metric is undefined.
"""

import math
from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

Scores = Sequence[float]
Grades = Sequence[int]
NAN = float("nan")

# -- metrics ------------------------------------------------------------------------------------------------------


def binarize(grades: Grades, level: int, num_levels: int) -> list[int]:
    """1 for the positives at a level (column, 0 is the finest): a grade of at least L - level."""
    return [int(grade >= num_levels - level) for grade in grades]


def step(difference: float) -> int:
    return 1 if difference >= 0 else 0


def rank(scores: Scores, k: int) -> int:
    return 1 + sum(step(scores[j] - scores[k]) for j in range(len(scores)) if j != k)


def rank_plus(scores: Scores, grades: Grades, k: int) -> int:
    others = (j for j in range(len(scores)) if j != k and grades[j] >= grades[k])
    return 1 + sum(step(scores[j] - scores[k]) for j in others)


def listed(scores: Scores, grades: Grades) -> list[int]:
    """Grades in list order: by descending score, equal scores by ascending grade."""
    return [grades[j] for j in sorted(range(len(scores)), key=lambda j: (-scores[j], grades[j]))]


def mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values) if values else NAN


def average_precision(scores: Scores, positive: Grades) -> float:
    return mean([rank_plus(scores, positive, k) / rank(scores, k) for k in range(len(scores)) if positive[k]])


def precision_sum(scores: Scores, positive: Grades, depth: int) -> float:
    order = listed(scores, positive)
    return math.fsum(sum(order[: i + 1]) / (i + 1) for i in range(min(depth, len(order))) if order[i])


def map_at_r(scores: Scores, positive: Grades) -> float:
    num = sum(positive)
    return precision_sum(scores, positive, num) / num if num else NAN


def map_at_k(scores: Scores, positive: Grades, k: int) -> float:
    num = sum(positive)
    return precision_sum(scores, positive, k) / min(num, k) if num else NAN


def recall_at_k(scores: Scores, positive: Grades, k: int) -> float:
    return float(any(listed(scores, positive)[:k])) if sum(positive) else NAN


def true_recall_at_k(scores: Scores, positive: Grades, k: int) -> float:
    num = sum(positive)
    return sum(listed(scores, positive)[:k]) / min(k, num) if num else NAN


def precision_at_k(scores: Scores, positive: Grades, k: int) -> float:
    return sum(listed(scores, positive)[:k]) / k if sum(positive) else NAN


def relevances(
    grades: Grades,
    num_levels: int,
    kind: str = "population",
    alpha: float = 1.0,
    weights: Sequence[float] | None = None,
    count_query: bool = False,
) -> list[float]:
    """Relevance of every item, up to one factor a query, which no metric below depends on.

    (l/L)^alpha is taken as (l/l')^alpha, l' the largest grade of the query: for a large alpha the printed numbers are
    0 for all items.
    """
    if kind == "exponential":
        return [2.0**grade - 1 for grade in grades]
    if kind == "weighted_ap":
        share = level_weights(grades, num_levels, weights)
        at_least = [sum(g >= p for g in grades) for p in range(num_levels + 1)]
        return [math.fsum(share[p - 1] / at_least[p] for p in range(1, grade + 1)) for grade in grades]
    largest = max([*grades, 1])
    total = {grade: (grade / largest) ** alpha if grade else 0.0 for grade in set(grades)}
    if kind == "total":
        return [total[grade] for grade in grades]
    sizes = {grade: list(grades).count(grade) + (count_query and grade == num_levels) for grade in set(grades)}
    return [total[grade] / sizes[grade] for grade in grades]


def level_weights(grades: Grades, num_levels: int, weights: Sequence[float] | None) -> list[float]:
    """w_1 .. w_L, coarsest level first, zero where the query has no positive, sum 1 unless all are zero."""
    given = weights or [1.0 / num_levels] * num_levels
    kept = [w if any(g >= p for g in grades) else 0.0 for p, w in enumerate(given, start=1)]
    return [w / math.fsum(kept) for w in kept] if math.fsum(kept) else kept


def hierarchical_rank_plus(scores: Scores, grades: Grades, relevance: Sequence[float], k: int) -> float:
    others = (j for j in range(len(scores)) if j != k and grades[j] > 0)
    return relevance[k] + math.fsum(min(relevance[k], relevance[j]) * step(scores[j] - scores[k]) for j in others)


def hierarchical_ap(scores: Scores, grades: Grades, relevance: Sequence[float]) -> float:
    total = math.fsum(r for r, grade in zip(relevance, grades, strict=True) if grade > 0)
    if not total:
        return NAN
    positives = [k for k in range(len(scores)) if grades[k] > 0]
    return math.fsum(hierarchical_rank_plus(scores, grades, relevance, k) / rank(scores, k) for k in positives) / total


def hierarchical_recall_at_k(scores: Scores, grades: Grades, relevance: Sequence[float], k: int) -> float:
    """Sum of the relevances of the first k over the sum of all."""
    total = math.fsum(relevance)
    worth = dict(zip(grades, relevance, strict=True))
    return math.fsum(worth[grade] for grade in listed(scores, grades)[:k]) / total if total else NAN


def hierarchical_precision_at_k(scores: Scores, grades: Grades, relevance: Sequence[float], k: int) -> float:
    """Sum over the first k of min(r_j, r_k) / (k r_k); where r_k is 0 its limit, the positives among them over k."""
    if not math.fsum(relevance):
        return NAN
    worth = dict(zip(grades, relevance, strict=True))
    order = listed(scores, grades)
    here = worth[order[k - 1]] if k <= len(order) else 0.0
    if here == 0:
        return sum(grade > 0 for grade in order[:k]) / k
    return math.fsum(min(worth[grade], here) for grade in order[:k] if grade > 0) / (k * here)


def ndcg(scores: Scores, grades: Grades, k: int | None = None) -> float:
    depth = len(scores) if k is None else k
    ideal = sorted(grades, reverse=True)[:depth]
    best = math.fsum((2.0**grade - 1) / math.log2(1 + i) for i, grade in enumerate(ideal, start=1))
    ranks = [rank(scores, j) for j in range(len(scores))]
    gained = ((2.0 ** grades[j] - 1) / math.log2(1 + r) for j, r in enumerate(ranks) if r <= depth)
    return math.fsum(gained) / best if best else NAN


def average_set_intersection(scores: Scores, grades: Grades) -> float:
    order, ideal = listed(scores, grades), sorted(grades, reverse=True)
    num = sum(grade > 0 for grade in grades)
    shares = []
    for n in range(1, num + 1):
        both = [min(order[:n].count(g), ideal[:n].count(g)) for g in set(grades) if g > 0]
        shares.append(sum(both) / n)
    return mean(shares)


def weighted_sum_of_aps(
    scores: Scores, grades: Grades, num_levels: int, weights: Sequence[float] | None = None
) -> float:
    share = level_weights(grades, num_levels, weights)
    if not math.fsum(share):
        return NAN
    aps = [average_precision(scores, [int(g >= p) for g in grades]) for p in range(1, num_levels + 1)]
    return math.fsum(w * ap for w, ap in zip(share, aps, strict=True) if w)


def exact_grade_ap(scores: Scores, grades: Grades, grade: int) -> float:
    kept = [j for j in range(len(scores)) if grades[j] in (0, grade)]
    return average_precision([scores[j] for j in kept], [int(grades[j] == grade) for j in kept])


def metric(
    name: str, scores: Scores, grades: Grades, levels: Sequence[str], relevance: Sequence[float] | None = None, **kind
) -> float:
    """Any metric by its name."""
    worth = relevances(grades, len(levels), **kind) if relevance is None else relevance
    head, _, level = name.partition("/")
    base, _, cut = head.partition("@")
    if level:
        positive = binarize(grades, list(levels).index(level), len(levels))
        if head in ("AP", "mAP@R"):
            return {"AP": average_precision, "mAP@R": map_at_r}[head](scores, positive)
        binary: dict[str, Callable[..., float]] = {
            "R": recall_at_k,
            "TR": true_recall_at_k,
            "P": precision_at_k,
            "mAP": map_at_k,
        }
        return binary[base](scores, positive, int(cut))
    if head.startswith("AP#"):
        return exact_grade_ap(scores, grades, int(head[3:]))
    if base in ("H-R", "H-P"):
        graded = {"H-R": hierarchical_recall_at_k, "H-P": hierarchical_precision_at_k}[base]
        return graded(scores, grades, worth, int(cut))
    if base == "NDCG":
        return ndcg(scores, grades, int(cut) if cut else None)
    if head == "wAP":
        return weighted_sum_of_aps(scores, grades, len(levels), kind.get("weights"))
    return hierarchical_ap(scores, grades, worth) if head == "H-AP" else average_set_intersection(scores, grades)


# -- losses: others ------------------------------------------------------------------------------------------------
# Loops over 0-d float64 tensors, so that autograd gives the slow gradient too. ``scores`` is one query's (G,) row.


def split(scores: Tensor, positive: Sequence[int]) -> tuple[list[Tensor], list[Tensor]]:
    """The scores of the positives and those of the negatives."""
    rows = list(zip(scores, positive, strict=True))
    return [s for s, p in rows if p], [s for s, p in rows if not p]


def triangle(x: Tensor, centre: float, width: float) -> Tensor:
    return (1 - (x - centre).abs() / width).clamp(min=0)


def soft_bins(values: Sequence[Tensor], centres: Sequence[float], width: float) -> list[Tensor]:
    nothing = torch.zeros((), dtype=torch.float64)
    return [sum((triangle(v, centre, width) for v in values), nothing) for centre in centres]


def precision_of_bins(relevant: Sequence[Tensor], everything: Sequence[Tensor], ties: str) -> Tensor:
    """Sum over the positives, bin after bin, of the precision they meet; He et al. 2018 for the tie-aware forms."""
    hits = seen = total = torch.zeros((), dtype=torch.float64)
    for r, c in zip(relevant, everything, strict=True):
        if ties == "ignored" and c > 0:
            total = total + r * (hits + r) / (seen + c)
        elif ties == "relaxed":
            total = total + r * (hits + (hits + r) + 1) / (seen + (seen + c) + 1)
        elif ties == "integral" and c > 0:
            slope = (r - 1) / (c - 1) if r > 1 else torch.zeros_like(r)
            nodes, weights = np.polynomial.legendre.leggauss(24)
            positions = [(float(node) + 1) / 2 * c for node in nodes]  # of the bin's items, from 0 to c
            precisions = [(hits + 1 + slope * t) / (seen + 1 + t) for t in positions]
            total = total + r / c * c / 2 * sum(w * p for w, p in zip(weights, precisions, strict=True))
        hits, seen = hits + r, seen + c
    return total


def soft_bin_ap_loss(
    scores: Tensor, positive: Sequence[int], bins: int, low: float = -1.0, ties: str = "ignored"
) -> Tensor:
    """Revaud et al. 2019: centres from 1 down to ``low``; beyond them, the outermost."""
    width = (1 - low) / (bins - 1)
    centres = [1 - m * width for m in range(bins)]
    inside = scores.clamp(low, 1)
    relevant = soft_bins(split(inside, positive)[0], centres, width)
    return 1 - precision_of_bins(relevant, soft_bins(list(inside), centres, width), ties) / sum(positive)


def fast_ap_loss(scores: Tensor, positive: Sequence[int], bins: int) -> Tensor:
    """Cakir et al. 2019, on squared distances in 0..4."""
    squared = (2 - 2 * scores).clamp(0, 4)
    edges = [4 / bins * m for m in range(bins + 1)]
    relevant = soft_bins(split(squared, positive)[0], edges, 4 / bins)
    everything = soft_bins(list(squared), edges, 4 / bins)
    return 1 - precision_of_bins(relevant, everything, "ignored") / sum(positive)


def blackbox_ap_loss(
    scores: Scores, positive: Sequence[int], lambda_: float, margin: float
) -> tuple[float, list[float]]:
    """Rolinek et al. 2020: 1 - AP at the margin, and its blackbox gradient, with ranks over the gallery's size."""
    size, num = len(scores), sum(positive)
    moved = [s - margin / 2 if p else s + margin / 2 for s, p in zip(scores, positive, strict=True)]
    ranks = [rank(moved, k) for k in range(size)]
    among = [rank_plus(moved, positive, k) for k in range(size)]
    value = 1 - sum(among[k] / ranks[k] for k in range(size) if positive[k]) / num
    by_share = [(among[k] / size) / (ranks[k] / size) ** 2 / num if positive[k] else 0.0 for k in range(size)]
    again = [s + lambda_ * g for s, g in zip(moved, by_share, strict=True)]
    return value, [-(ranks[k] / size - rank(again, k) / size) / lambda_ for k in range(size)]


def pnp_loss(scores: Tensor, positive: Sequence[int], variant: str, b: float, alpha: float, tau: float) -> Tensor:
    """Li et al. 2022, the five forms."""
    found, negatives = split(scores, positive)
    nothing = torch.zeros((), dtype=torch.float64)
    counts = [sum((1 / (1 + torch.exp((s - n) / tau)) for n in negatives), nothing) for s in found]
    forms: dict[str, Callable[[Tensor], Tensor]] = {
        "O": lambda r: r,
        "Iu": lambda r: (1 + r) * torch.log(1 + r),
        "Ib": lambda r: (b * r - torch.log(1 + b * r)) / b**2,
        "Ds": lambda r: torch.log(1 + r),
        "Dq": lambda r: 1 - 1 / (1 + r) ** alpha,
    }
    return sum((forms[variant](r) for r in counts), nothing) / len(counts)


def calibration_loss(scores: Tensor, positive: Sequence[int], alpha: float, beta: float) -> Tensor:
    """ROADMAP, Eq. 7."""
    found, negatives = split(scores, positive)
    nothing = torch.zeros((), dtype=torch.float64)
    pull = sum(((alpha - s).clamp(min=0) for s in found), nothing) / len(found)
    return pull + sum(((s - beta).clamp(min=0) for s in negatives), nothing) / max(1, len(negatives))


def contrastive_loss(scores: Tensor, positive: Sequence[int], margin: float) -> Tensor:
    found, negatives = split(scores, positive)
    distances = [(2 - 2 * s).sqrt() for s in negatives]
    nothing = torch.zeros((), dtype=torch.float64)
    pull = sum((2 - 2 * s for s in found), nothing) / len(found)
    return pull + sum(((margin - d).clamp(min=0) ** 2 for d in distances), nothing) / max(1, len(negatives))


def triplet_losses(scores: Tensor, positive: Sequence[int], margin: float) -> list[Tensor]:
    """One value a positive: its semi-hard negative is the nearest beyond it, else the farthest of all."""
    found, negatives = split(scores, positive)
    values = []
    for s in found:
        beyond = [n for n in negatives if n < s]
        chosen = max(beyond, key=Tensor.item) if beyond else min(negatives, key=Tensor.item)
        values.append(((2 - 2 * s) - (2 - 2 * chosen) + margin).clamp(min=0))
    return values


def proxy_loss(scores: Tensor, label: int, temperature: float) -> Tensor:
    """Minus the logarithm of the softmax of an item's cosines (C,) to the proxies."""
    powers = [torch.exp(s / temperature) for s in scores]
    return -torch.log(powers[label] / sum(powers))


def proxy_nca_loss(scores: Tensor, label: int, temperature: float) -> Tensor:
    """ProxyNCA++, on squared distances."""
    powers = [torch.exp(-(2 - 2 * s) / temperature) for s in scores]
    return -torch.log(powers[label] / sum(powers))


def cross_level_loss(
    scores: Tensor, label: int, classes: Sequence[Sequence[int]], margins: Sequence[float], scale: float
) -> Tensor:
    """CSL of an item with cosines (C,) to the proxies; ``classes`` holds every proxy's class at each level."""
    total = torch.zeros((), dtype=torch.float64)
    for level, margin in enumerate(margins):
        others = [s for s, c in zip(scores, classes, strict=True) if c[level] != classes[label][level]]
        for_all = sum((torch.exp(scale * (s - scores[label] + margin)) for s in others), torch.zeros_like(total))
        total = total + torch.log(1 + for_all)
    return total


# -- losses: smooth ranks -----------------------------------------------------------------------------------------
# One query's ranked gallery as float64 tensors ``scores`` (n,) and the grades of its items; the loss is a scalar whose
# gradient autograd takes.


def smooth_step(t: Tensor, tau: float) -> Tensor:
    return 1 / (1 + torch.exp((-t / tau).clamp(max=600)))


def sup_step(t: Tensor, tau: float, rho: float, delta: float, offset: float | None) -> Tensor:
    """H^- of SupRank at one difference of scores."""
    if t < 0:
        return smooth_step(t, tau)
    if t <= delta:
        return smooth_step(t, tau) + 0.5
    start = smooth_step(torch.tensor(delta, dtype=torch.float64), tau) + 0.5 if offset is None else offset
    return rho * (t - delta) + start


def surrogate_step(t: Tensor, lower: bool, surrogate: dict[str, float]) -> Tensor:
    """Stand-in for H(t): a sigmoid, or with rho H^- for lower grades and H elsewhere."""
    if "rho" not in surrogate:
        return smooth_step(t, surrogate["tau"])
    if not lower:
        return torch.tensor(float(step(t.item())), dtype=torch.float64)
    return sup_step(t, surrogate["tau"], surrogate["rho"], surrogate["delta"], surrogate.get("offset"))


def surrogate_rank(scores: Tensor, grades: Grades, k: int, surrogate: dict[str, float]) -> Tensor:
    others = [j for j in range(len(grades)) if j != k]
    steps = [surrogate_step(scores[j] - scores[k], grades[j] < grades[k], surrogate) for j in others]
    return 1 + sum(steps, torch.zeros((), dtype=torch.float64))


def surrogate_hrank_plus(
    scores: Tensor, grades: Grades, relevance: Sequence[float], k: int, surrogate: dict[str, float]
) -> Tensor:
    """Hrank+ with H, or with sigmoids for the Smooth family."""
    others = [j for j in range(len(grades)) if j != k and grades[j] > 0]
    steps = [surrogate_step(scores[j] - scores[k], False, surrogate) * min(relevance[j], relevance[k]) for j in others]
    return relevance[k] + sum(steps, torch.zeros((), dtype=torch.float64))


def surrogate_hap_loss(
    scores: Tensor, grades: Grades, relevance: Sequence[float], surrogate: dict[str, float]
) -> Tensor | None:
    """SupAP, SupHAP, SmoothAP, SmoothHAP; None where the query has no positive."""
    positives = [k for k in range(len(grades)) if grades[k] > 0]
    total = math.fsum(relevance[k] for k in positives)
    if not total:
        return None
    precisions = [
        surrogate_hrank_plus(scores, grades, relevance, k, surrogate) / surrogate_rank(scores, grades, k, surrogate)
        for k in positives
    ]
    return 1 - sum(precisions, torch.zeros((), dtype=torch.float64)) / total


def surrogate_recall_loss(
    scores: Tensor,
    positive: Grades,
    cutoffs: Sequence[int],
    temperatures: Sequence[float],
    surrogate: dict[str, float],
    clip: bool = False,
) -> Tensor | None:
    positives = [k for k in range(len(positive)) if positive[k]]
    if not positives:
        return None
    ranks = [surrogate_rank(scores, positive, k, surrogate) for k in positives]
    recalls = []
    for cut, temperature in zip(cutoffs, temperatures, strict=True):
        found = sum((smooth_step(cut - r, temperature) for r in ranks), torch.zeros((), dtype=torch.float64))
        recalls.append((found.clamp(max=cut) if clip else found) / min(cut, len(positives)))
    return 1 - sum(recalls, torch.zeros((), dtype=torch.float64)) / len(cutoffs)


def surrogate_ndcg_loss(scores: Tensor, grades: Grades, surrogate: dict[str, float]) -> Tensor | None:
    ideal = math.fsum((2.0**g - 1) / math.log2(1 + i) for i, g in enumerate(sorted(grades, reverse=True), start=1))
    if not ideal:
        return None
    gained = [
        (2.0 ** grades[k] - 1) / torch.log2(1 + surrogate_rank(scores, grades, k, surrogate))
        for k in range(len(grades))
        if grades[k] > 0
    ]
    return 1 - sum(gained, torch.zeros((), dtype=torch.float64)) / ideal
