"""The rank metrics and their gradients by all pairs, in plain torch: any device, the oracle of the kernels."""

import torch
from torch import Tensor

from hgld.losses.objectives import Objective, Positives
from hgld.losses.surrogates import Sigmoid, SupStep, Surrogate

_MOST_PAIRS = 1 << 22  # pairs at once: a few dozen temporaries of 16 MB in float32


def rank_metric_by_pairs(
    scores: Tensor, grades: Tensor, gains: Tensor, norms: Tensor, objective: Objective, surrogate: Surrogate
) -> tuple[Tensor, Tensor]:
    """Metric of every query and its gradient.

    Args:
        scores: (Q, G) float32 or float64, finite, or -inf for items that are not ranked.
        grades: (Q, G) integers in 0..L, 0 for items that are not ranked.
        gains: (Q, L + 1) float64, worth of every grade.
        norms: (Q,) float64, the objective's normalizers.
        objective: what a positive adds.
        surrogate: the stand-in for the step function.

    Returns:
        metric (Q,) and d metric / d scores (Q, G), both in the dtype of ``scores``.
    """
    values, slopes = torch.zeros_like(norms), torch.zeros_like(scores)
    num_queries, size = scores.shape
    if scores.numel() == 0:
        return values.to(scores.dtype), slopes
    num_positives = (grades > 0).sum(dim=1)
    rows = max(1, _MOST_PAIRS // (size * size))
    for start in range(0, num_queries, rows):
        block = slice(start, start + rows)
        most = int(num_positives[block].max())
        columns = max(1, _MOST_PAIRS // (rows * size))
        places = grades[block].argsort(dim=1, descending=True, stable=True)[:, :most]
        for chunk in places.split(columns, dim=1):
            args = (scores[block], grades[block].long(), gains[block], norms[block], chunk, objective, surrogate)
            metric, slope = _chunk(*args)
            values[block] += metric
            slopes[block] += slope
    return values.to(scores.dtype), slopes


def _chunk(
    scores: Tensor,
    grades: Tensor,
    gains: Tensor,
    norms: Tensor,
    places: Tensor,
    objective: Objective,
    surrogate: Surrogate,
) -> tuple[Tensor, Tensor]:
    """What the positives at ``places`` (q, p) of q queries add; places of grade 0 pad and add nothing."""
    grade = grades.gather(1, places)
    gain = gains.gather(1, grade)
    difference = scores[:, None, :] - scores.gather(1, places)[:, :, None]  # (q, p, G): s_j - s_k
    both = torch.minimum(gain[:, :, None], gains.gather(1, grades)[:, None, :]) * (grades > 0)[:, None, :]
    if isinstance(surrogate, Sigmoid):
        own = places[:, :, None] == torch.arange(scores.shape[1], device=scores.device)
        step = torch.sigmoid(difference / surrogate.tau)
        slope = torch.where(own, 0.0, step * (1 - step) / surrogate.tau)
        step = torch.where(own, 1.0, step)
        hrank, rank = (both * step).sum(dim=2), step.sum(dim=2, dtype=torch.float64)
    else:
        lower = grades[:, None, :] < grade[:, :, None]
        above = difference >= 0
        step, slope = sup_step(difference, surrogate)
        hrank = (both * above).sum(dim=2)
        rank = torch.where(lower, step, above.to(step.dtype)).sum(dim=2, dtype=torch.float64)
        slope = torch.where(lower, slope, 0.0)
    norm = torch.where(grade > 0, norms[:, None], torch.inf)
    terms = objective.terms(Positives(hrank, rank, gain, norm))
    weight = terms.by_rank[:, :, None]
    if isinstance(surrogate, Sigmoid):
        weight = weight + terms.by_hrank[:, :, None] * both
    by_pair = weight.to(scores.dtype) * slope
    gradient = by_pair.sum(dim=1)
    gradient.scatter_add_(1, places, -by_pair.sum(dim=2))
    return terms.values.sum(dim=1), gradient


def sup_step(difference: Tensor, surrogate: SupStep) -> tuple[Tensor, Tensor]:
    """H^- and its derivative at every difference of scores."""
    sigmoid = torch.sigmoid(difference / surrogate.tau)
    beyond = difference > surrogate.delta
    line = surrogate.rho * (difference - surrogate.delta) + surrogate.line_start
    step = torch.where(beyond, line, sigmoid + 0.5 * (difference >= 0))
    return step, torch.where(beyond, surrogate.rho, sigmoid * (1 - sigmoid) / surrogate.tau)
