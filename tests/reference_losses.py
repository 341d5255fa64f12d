"""Slow reference implementations of the losses in float64, per query, from the definitions, without hgld's code.

They loop over 0-d float64 tensors, so that autograd gives the reference gradient too.
"""

import math
from collections.abc import Callable, Iterable, Sequence

import numpy as np
import torch
from torch import Tensor

from tests.reference import Grades, Scores, rank, rank_plus, step

# ``scores`` is one query's row of gallery scores, (G,).


def split(scores: Tensor, positive: Sequence[int]) -> tuple[list[Tensor], list[Tensor]]:
    """Return the scores of the positives and the scores of the negatives."""
    rows = list(zip(scores, positive, strict=True))
    return [s for s, p in rows if p], [s for s, p in rows if not p]


def total(terms: Iterable[Tensor]) -> Tensor:
    """Return the sum of the terms; 0 if there are none."""
    return sum(terms, torch.zeros((), dtype=torch.float64))


def triangle(x: Tensor, centre: float, width: float) -> Tensor:
    return (1 - (x - centre).abs() / width).clamp(min=0)


def soft_bins(values: Sequence[Tensor], centres: Sequence[float], width: float) -> list[Tensor]:
    return [total(triangle(v, centre, width) for v in values) for centre in centres]


def precision_of_bins(relevant: Sequence[Tensor], everything: Sequence[Tensor], ties: str) -> Tensor:
    """Return the sum of the precision over the positives, bin by bin. He et al. 2018 define the tie-aware forms."""
    hits = seen = found = total([])
    for r, c in zip(relevant, everything, strict=True):
        if ties == "ignored" and c > 0:
            found = found + r * (hits + r) / (seen + c)
        elif ties == "relaxed":
            found = found + r * (hits + (hits + r) + 1) / (seen + (seen + c) + 1)
        elif ties == "integral" and c > 0:
            slope = (r - 1) / (c - 1) if r > 1 else torch.zeros_like(r)
            nodes, weights = np.polynomial.legendre.leggauss(24)
            positions = [(float(node) + 1) / 2 * c for node in nodes]  # positions within the bin, from 0 to c
            precisions = [(hits + 1 + slope * t) / (seen + 1 + t) for t in positions]
            found = found + r / c * c / 2 * sum(w * p for w, p in zip(weights, precisions, strict=True))
        hits, seen = hits + r, seen + c
    return found


def soft_bin_ap_loss(
    scores: Tensor, positive: Sequence[int], bins: int, low: float = -1.0, ties: str = "ignored"
) -> Tensor:
    """Revaud et al. 2019: bin centres from 1 down to ``low``; scores outside belong to the outermost bin."""
    width = (1 - low) / (bins - 1)
    centres = [1 - m * width for m in range(bins)]
    inside = scores.clamp(low, 1)
    relevant = soft_bins(split(inside, positive)[0], centres, width)
    return 1 - precision_of_bins(relevant, soft_bins(list(inside), centres, width), ties) / sum(positive)


def fast_ap_loss(scores: Tensor, positive: Sequence[int], bins: int) -> Tensor:
    """FastAP loss (Cakir et al. 2019), on squared distances in 0..4."""
    squared = (2 - 2 * scores).clamp(0, 4)
    edges = [4 / bins * m for m in range(bins + 1)]
    relevant = soft_bins(split(squared, positive)[0], edges, 4 / bins)
    everything = soft_bins(list(squared), edges, 4 / bins)
    return 1 - precision_of_bins(relevant, everything, "ignored") / sum(positive)


def blackbox_ap_loss(
    scores: Scores, positive: Sequence[int], lambda_: float, margin: float
) -> tuple[float, list[float]]:
    """Return 1 - AP with a margin and its blackbox gradient (Rolinek et al. 2020), with ranks over gallery size."""
    size, num = len(scores), sum(positive)
    moved = [s - margin / 2 if p else s + margin / 2 for s, p in zip(scores, positive, strict=True)]
    ranks = [rank(moved, k) for k in range(size)]
    among = [rank_plus(moved, positive, k) for k in range(size)]
    value = 1 - sum(among[k] / ranks[k] for k in range(size) if positive[k]) / num
    by_share = [(among[k] / size) / (ranks[k] / size) ** 2 / num if positive[k] else 0.0 for k in range(size)]
    again = [s + lambda_ * g for s, g in zip(moved, by_share, strict=True)]
    return value, [-(ranks[k] / size - rank(again, k) / size) / lambda_ for k in range(size)]


def pnp_loss(scores: Tensor, positive: Sequence[int], variant: str, b: float, alpha: float, tau: float) -> Tensor:
    """PNP loss (Li et al. 2022), in its five variants."""
    found, negatives = split(scores, positive)
    counts = [total(1 / (1 + torch.exp((s - n) / tau)) for n in negatives) for s in found]
    forms: dict[str, Callable[[Tensor], Tensor]] = {
        "O": lambda r: r,
        "Iu": lambda r: (1 + r) * torch.log(1 + r),
        "Ib": lambda r: (b * r - torch.log(1 + b * r)) / b**2,
        "Ds": lambda r: torch.log(1 + r),
        "Dq": lambda r: 1 - 1 / (1 + r) ** alpha,
    }
    return total(forms[variant](r) for r in counts) / len(counts)


def calibration_loss(scores: Tensor, positive: Sequence[int], alpha: float, beta: float) -> Tensor:
    """Calibration loss of ROADMAP, Eq. 7."""
    found, negatives = split(scores, positive)
    pull = total((alpha - s).clamp(min=0) for s in found) / len(found)
    return pull + total((s - beta).clamp(min=0) for s in negatives) / max(1, len(negatives))


def contrastive_loss(scores: Tensor, positive: Sequence[int], margin: float) -> Tensor:
    found, negatives = split(scores, positive)
    distances = [(2 - 2 * s).sqrt() for s in negatives]
    pull = total(2 - 2 * s for s in found) / len(found)
    return pull + total((margin - d).clamp(min=0) ** 2 for d in distances) / max(1, len(negatives))


def cosine_contrastive_loss(scores: Tensor, positive: Sequence[int], margin: float) -> Tensor:
    """Published code of Wang et al. 2020: sum over a query's positives, and over its negatives above the margin."""
    found, negatives = split(scores, positive)
    return total(1 - s for s in found) + total(s for s in negatives if s > margin)


def triplet_losses(scores: Tensor, positive: Sequence[int], margin: float) -> list[Tensor]:
    """Return one value per positive. Its negative is the nearest one beyond it or, without one, the farthest of all."""
    found, negatives = split(scores, positive)
    values = []
    for s in found:
        beyond = [n for n in negatives if n < s]
        chosen = max(beyond, key=Tensor.item) if beyond else min(negatives, key=Tensor.item)
        values.append(((2 - 2 * s) - (2 - 2 * chosen) + margin).clamp(min=0))
    return values


def proxy_loss(scores: Tensor, label: int, temperature: float) -> Tensor:
    """Return minus the log-softmax of an item's cosines (C,) to the proxies, at its label."""
    powers = [torch.exp(s / temperature) for s in scores]
    return -torch.log(powers[label] / sum(powers))


def proxy_nca_loss(scores: Tensor, label: int, temperature: float) -> Tensor:
    """ProxyNCA++ loss, on squared distances."""
    powers = [torch.exp(-(2 - 2 * s) / temperature) for s in scores]
    return -torch.log(powers[label] / sum(powers))


def cross_level_loss(
    scores: Tensor, label: int, classes: Sequence[Sequence[int]], margins: Sequence[float], scale: float
) -> Tensor:
    """CSL of an item with cosines (C,) to the proxies; ``classes`` has every proxy's class at each level."""
    terms = []
    for level, margin in enumerate(margins):
        others = [s for s, c in zip(scores, classes, strict=True) if c[level] != classes[label][level]]
        terms.append(torch.log(1 + total(torch.exp(scale * (s - scores[label] + margin)) for s in others)))
    return total(terms)


# -- smooth ranks -----------------------------------------------------------------------------------------
# Arguments: one query's gallery as float64 ``scores`` (n,) and the grades of its items. The loss is a scalar, and
# autograd computes its gradient.


def smooth_step(t: Tensor, tau: float) -> Tensor:
    return 1 / (1 + torch.exp((-t / tau).clamp(max=600)))


def sup_step(t: Tensor, tau: float, rho: float, delta: float, offset: float | None) -> Tensor:
    """Return SupRank's H^- at one score difference."""
    if t < 0:
        return smooth_step(t, tau)
    if t <= delta:
        return smooth_step(t, tau) + 0.5
    start = smooth_step(torch.tensor(delta, dtype=torch.float64), tau) + 0.5 if offset is None else offset
    return rho * (t - delta) + start


def surrogate_step(t: Tensor, lower: bool, surrogate: dict[str, float]) -> Tensor:
    """Return the surrogate of H(t): a sigmoid; with a rho, H^- for lower grades and H for other grades."""
    if "rho" not in surrogate:
        return smooth_step(t, surrogate["tau"])
    if not lower:
        return torch.tensor(float(step(t.item())), dtype=torch.float64)
    return sup_step(t, surrogate["tau"], surrogate["rho"], surrogate["delta"], surrogate.get("offset"))


def surrogate_rank(scores: Tensor, grades: Grades, k: int, surrogate: dict[str, float]) -> Tensor:
    others = [j for j in range(len(grades)) if j != k]
    return 1 + total(surrogate_step(scores[j] - scores[k], grades[j] < grades[k], surrogate) for j in others)


def surrogate_hrank_plus(
    scores: Tensor, grades: Grades, relevance: Sequence[float], k: int, surrogate: dict[str, float]
) -> Tensor:
    """Return Hrank+ with the step H, or with sigmoids for the Smooth losses."""
    others = [j for j in range(len(grades)) if j != k and grades[j] > 0]
    steps = [surrogate_step(scores[j] - scores[k], False, surrogate) * min(relevance[j], relevance[k]) for j in others]
    return relevance[k] + total(steps)


def surrogate_hap_loss(
    scores: Tensor, grades: Grades, relevance: Sequence[float], surrogate: dict[str, float]
) -> Tensor | None:
    """Return the loss of SupAP, SupHAP, SmoothAP or SmoothHAP; None if the query has no positive."""
    positives = [k for k in range(len(grades)) if grades[k] > 0]
    worth = math.fsum(relevance[k] for k in positives)
    if not worth:
        return None
    precisions = [
        surrogate_hrank_plus(scores, grades, relevance, k, surrogate) / surrogate_rank(scores, grades, k, surrogate)
        for k in positives
    ]
    return 1 - total(precisions) / worth


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
        found = total(smooth_step(cut - r, temperature) for r in ranks)
        recalls.append((found.clamp(max=cut) if clip else found) / min(cut, len(positives)))
    return 1 - total(recalls) / len(cutoffs)


def surrogate_ndcg_loss(scores: Tensor, grades: Grades, surrogate: dict[str, float]) -> Tensor | None:
    ideal = math.fsum((2.0**g - 1) / math.log2(1 + i) for i, g in enumerate(sorted(grades, reverse=True), start=1))
    if not ideal:
        return None
    gained = [
        (2.0 ** grades[k] - 1) / torch.log2(1 + surrogate_rank(scores, grades, k, surrogate))
        for k in range(len(grades))
        if grades[k] > 0
    ]
    return 1 - total(gained) / ideal
