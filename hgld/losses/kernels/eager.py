"""Rank metrics and gradients over all pairs, in plain torch on any device: the reference for the kernels."""

import torch
from torch import Tensor

from hgld.losses.kernels.objectives import Objective, Positives, Sigmoid, SupStep, Surrogate, Terms

_MOST_PAIRS = 1 << 22  # pairs per block: a few dozen temporary tensors of 16 MB in float32


def rank_metric_by_pairs(
    scores: Tensor, grades: Tensor, gains: Tensor, norms: Tensor, objective: Objective, surrogate: Surrogate
) -> tuple[Tensor, Tensor]:
    """Compute the metric of every query and its gradient.

    Args:
        scores: (Q, G) float32 or float64, finite, or -inf for items that are not ranked.
        grades: (Q, G) integers in 0..L, 0 for items that are not ranked.
        gains: (Q, L + 1) float64, gain of every grade.
        norms: (Q,) float64, the objective's normalizers.
        objective: function of a positive's rank that gives the positive's contribution to the metric.
        surrogate: surrogate of the step function.

    Returns:
        metric (Q,) and d metric / d scores (Q, G), both in the dtype of ``scores``.
    """
    values, slopes = torch.zeros_like(norms), torch.zeros_like(scores)
    if scores.numel() == 0:
        return values.to(scores.dtype), slopes
    num_positives = (grades > 0).sum(dim=1)
    rows = max(1, _MOST_PAIRS // scores.shape[1] ** 2)
    for start in range(0, len(scores), rows):
        block = slice(start, start + rows)
        places = grades[block].argsort(dim=1, descending=True, stable=True)[:, : int(num_positives[block].max())]
        pairs = _Pairs(scores[block], grades[block].long(), gains[block], places, surrogate)
        values[block], slopes[block] = pairs.metric(norms[block], objective)
    return values.to(scores.dtype), slopes


class _Pairs:
    """All pairs of a positive and an item.

    ``places`` (q, P) holds the columns of the positives. Columns of grade 0 are padding and add 0 to the metric.
    """

    def __init__(self, scores: Tensor, grades: Tensor, gains: Tensor, places: Tensor, surrogate: Surrogate) -> None:
        self.scores, self.grades, self.places, self.surrogate = scores, grades, places, surrogate
        self.grade = grades.gather(1, places)
        self.gain = gains.gather(1, self.grade)
        self.item_gain = gains.gather(1, grades) * (grades > 0)
        self.width = max(1, _MOST_PAIRS // scores.numel())

    def metric(self, norms: Tensor, objective: Objective) -> tuple[Tensor, Tensor]:
        """Return the metric (q,) float64 and its gradient (q, G), which needs the ranks of all positives first."""
        parts = [slice(start, start + self.width) for start in range(0, self.places.shape[1], self.width)]
        gradient = torch.zeros_like(self.scores)
        if not parts:
            return torch.zeros_like(norms), gradient
        hrank, rank = (torch.cat(found, dim=1) for found in zip(*map(self._ranks, parts), strict=True))
        norm = torch.where(self.grade > 0, norms[:, None], torch.inf)
        query = torch.arange(len(norms), device=norms.device)[:, None].expand_as(rank)
        terms = objective.terms(Positives(hrank, rank, self.gain, norm, query))
        for part in parts:
            self._add_gradient(part, terms, gradient)
        return terms.values.sum(dim=1), gradient

    def _steps(self, part: slice) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return, for (q, p, G) pairs, the smaller gain, the step in hrank, the step in rank and the slope in rank."""
        places = self.places[:, part]
        difference = self.scores[:, None, :] - self.scores.gather(1, places)[:, :, None]  # s_j - s_k
        both = torch.minimum(self.gain[:, part, None], self.item_gain[:, None, :])
        if isinstance(self.surrogate, Sigmoid):
            itself = places[:, :, None] == torch.arange(self.scores.shape[1], device=self.scores.device)
            step = torch.sigmoid(difference / self.surrogate.tau)
            slope = torch.where(itself, 0.0, step * (1 - step) / self.surrogate.tau)
            step = torch.where(itself, 1.0, step)
            return both, step, step, slope
        lower = self.grades[:, None, :] < self.grade[:, part, None]
        above = (difference >= 0).to(difference.dtype)
        step, slope = sup_step(difference, self.surrogate)
        return both, above, torch.where(lower, step, above), torch.where(lower, slope, 0.0)

    def _ranks(self, part: slice) -> tuple[Tensor, Tensor]:
        both, above, step, _ = self._steps(part)
        return (both * above).sum(dim=2), step.sum(dim=2, dtype=torch.float64)

    def _add_gradient(self, part: slice, terms: Terms, gradient: Tensor) -> None:
        both, _, _, slope = self._steps(part)
        weight = terms.by_rank[:, part, None]
        if isinstance(self.surrogate, Sigmoid):  # with SupStep hrank is a count without a gradient
            weight = weight + terms.by_hrank[:, part, None] * both
        by_pair = weight.to(slope.dtype) * slope
        gradient += by_pair.sum(dim=1)
        gradient.scatter_add_(1, self.places[:, part], -by_pair.sum(dim=2))


def sup_step(difference: Tensor, surrogate: SupStep) -> tuple[Tensor, Tensor]:
    """Return H^- and its derivative at every difference of scores."""
    sigmoid = torch.sigmoid(difference / surrogate.tau)
    beyond = difference > surrogate.delta
    line = surrogate.rho * (difference - surrogate.delta) + surrogate.line_start
    step = torch.where(beyond, line, sigmoid + 0.5 * (difference >= 0))
    return step, torch.where(beyond, surrogate.rho, sigmoid * (1 - sigmoid) / surrogate.tau)
