"""Slow float64 reference implementations of the metrics, one query at a time, without code of hgld.

The losses, which need gradients, are in reference_losses.py.

Every metric takes the ``scores`` and ``grades`` of one query: two sequences of equal length with one entry per gallery
item, without the query and excluded items. It returns a float, or NaN if the metric is undefined.
"""

import math
from collections.abc import Callable, Sequence

Scores = Sequence[float]
Grades = Sequence[int]
NAN = float("nan")


def binarize(grades: Grades, level: int, num_levels: int) -> list[int]:
    """Return 1 for positives at a level (0 is the finest), whose grade is at least L - level, and 0 otherwise."""
    return [int(grade >= num_levels - level) for grade in grades]


def step(difference: float) -> int:
    return 1 if difference >= 0 else 0


def rank(scores: Scores, k: int) -> int:
    return 1 + sum(step(scores[j] - scores[k]) for j in range(len(scores)) if j != k)


def rank_plus(scores: Scores, grades: Grades, k: int) -> int:
    others = (j for j in range(len(scores)) if j != k and grades[j] >= grades[k])
    return 1 + sum(step(scores[j] - scores[k]) for j in others)


def listed(scores: Scores, grades: Grades) -> list[int]:
    """Return the grades by descending score; equal scores are in ascending order of grade."""
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
    """Return the relevance of every item, up to one factor per query, on which no metric below depends.

    The function uses (l/l')^alpha instead of (l/L)^alpha, where l' is the largest grade of the query. With L, a large
    alpha would make the relevance 0 for all items.
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
    """Return w_1 .. w_L, coarsest level first: 0 at levels without a positive; otherwise the sum is 1."""
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
    """Return the sum of the relevances of the first k items over the sum of all relevances."""
    total = math.fsum(relevance)
    worth = dict(zip(grades, relevance, strict=True))
    return math.fsum(worth[grade] for grade in listed(scores, grades)[:k]) / total if total else NAN


def hierarchical_precision_at_k(scores: Scores, grades: Grades, relevance: Sequence[float], k: int) -> float:
    """Return the sum over j <= k of min(r_j, r_k) / (k r_k); if r_k is 0, its limit: the share of positives in them."""
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


def mistake_severity(scores: Scores, grades: Grades, num_levels: int) -> float:
    """Return the number of levels from a wrong first item up to its lowest common class with the query, else NaN."""
    first = listed(scores, grades)[0]
    return float(num_levels - first) if num_levels in grades and first < num_levels else NAN


def hierarchical_distance(scores: Scores, grades: Grades, num_levels: int, k: int) -> float:
    return mean([num_levels - grade for grade in listed(scores, grades)[:k]]) if num_levels in grades else NAN


def metric(name: str, scores: Scores, grades: Grades, levels: Sequence[str], **kind) -> float:
    """Return the value of any metric, given its name."""
    worth = relevances(grades, len(levels), **kind)
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
    if base in ("H-R", "H-P"):
        graded = {"H-R": hierarchical_recall_at_k, "H-P": hierarchical_precision_at_k}[base]
        return graded(scores, grades, worth, int(cut))
    if base == "NDCG":
        return ndcg(scores, grades, int(cut) if cut else None)
    if base == "HD":
        return hierarchical_distance(scores, grades, len(levels), int(cut))
    if head == "severity":
        return mistake_severity(scores, grades, len(levels))
    if head == "wAP":
        return weighted_sum_of_aps(scores, grades, len(levels), kind.get("weights"))
    return hierarchical_ap(scores, grades, worth) if head == "H-AP" else average_set_intersection(scores, grades)


# -- predictions -------------------------------------------------------------------------------------------------------


def votes(
    scores: Scores, labels: Sequence[Sequence[int]], temperature: float
) -> tuple[list[int], list[float], list[float], list[float], list[int]]:
    """Return path, vote shares, nearest scores on and off the path per level, and each neighbour's finest level on it.

    Neighbours with score -inf are padding.
    """
    real = [j for j in range(len(scores)) if scores[j] > -math.inf]
    num_levels = len(labels[0])
    weight = {j: math.exp((scores[j] - max(scores)) / temperature) for j in real}

    def same(i: int, j: int, level: int) -> bool:
        return any(labels[i][c] == labels[j][c] >= 0 for c in range(level + 1))

    def share(j: int, level: int) -> float:
        return math.fsum(weight[i] for i in real if same(i, j, level)) / math.fsum(weight.values())

    def worth(j: int) -> float:
        return math.fsum(share(j, c) for c in range(num_levels) if labels[j][c] >= 0)

    best = min(real, key=lambda j: (-round(worth(j), 9), -scores[j], list(labels[j])))
    lowest = min(scores[j] for j in real)
    on = [[scores[j] for j in real if same(j, best, c)] for c in range(num_levels)]
    off = [[scores[j] for j in real if not same(j, best, c)] for c in range(num_levels)]
    return (
        list(labels[best]),
        [share(best, c) for c in range(num_levels)],
        [max(found, default=lowest) for found in on],
        [max(found, default=lowest) for found in off],
        [next((c for c in range(num_levels) if same(j, best, c)), num_levels) for j in real],
    )


def calibration_error(cases: Sequence[tuple[int, bool, int]], unit: int, bins: int = 15) -> float:
    """Return the expected calibration error of cases: (confidence in parts of a unit, is right, weight)."""
    total = sum(weight for _, _, weight in cases)
    error = 0.0
    for b in range(bins):
        held = [case for case in cases if min(int(case[0] / unit * bins), bins - 1) == b]
        error += abs(math.fsum(weight * (part / unit - right) for part, right, weight in held)) / total
    return error


def risk_at(cases: Sequence[tuple[int, bool, int]], bound: float) -> tuple[float, float]:
    """Return the share of cases with at least a confidence, and the share of errors among these cases."""
    answered = [case for case in cases if case[0] >= bound - 1e-9]
    total, held = sum(case[2] for case in cases), sum(case[2] for case in answered)
    return held / total, sum(case[2] for case in answered if not case[1]) / held


def int8_code(row: Sequence[float]) -> list[int]:
    """Return 127 times the numbers of a row over its largest magnitude, rounded half to even."""
    largest = max(abs(x) for x in row)
    return [round(x * (127 / largest)) for x in row]
