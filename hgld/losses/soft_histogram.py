"""Soft histograms of the scores of a query, differentiable, in blocks of queries.

Autograd would keep half a dozen (Q, G) tables. What its formulas need are the scores and one byte a pair: the bins of a
block are found anew in the backward pass.
"""

from typing import Any

import torch
from torch import Tensor

from hgld.losses.item_sets import row_blocks


def soft_histograms(scores: Tensor, roles: Tensor, bins: int, low: float) -> tuple[Tensor, Tensor]:
    """Share every item linearly between its two nearest of ``bins`` centres, evenly spaced from 1 down to ``low``.

    Args:
        scores: (Q, G) floating; beyond the outermost centres they fall wholly into those.
        roles: (Q, G) uint8: 0 counts nowhere, 1 negative, 2 positive.
        bins: M, at least 2.
        low: the lowest centre, below 1.

    Returns:
        (Q, M) float64 contents of the bins, the highest scores first: of the positives, and of all items.
    """
    contents = _histograms(scores, roles, bins, low)
    return contents[:, 1], contents.sum(dim=1)


@torch.library.custom_op("hgld::soft_histograms", mutates_args=())
def _histograms(scores: Tensor, roles: Tensor, bins: int, low: float) -> Tensor:
    """(Q, 2, M) float64: of the negatives and of the positives."""
    contents = scores.new_zeros(len(scores), 2 * bins, dtype=torch.float64)
    for block in row_blocks(scores):
        _, first, share = _places(scores[block], roles[block], bins, low)
        counted = (roles[block] > 0).double()
        share = counted * share
        contents[block].scatter_add_(1, first, counted - share).scatter_add_(1, first + 1, share)
    return contents.view(-1, 2, bins)


@torch.library.custom_op("hgld::soft_histograms_backward", mutates_args=())
def _histograms_backward(by_contents: Tensor, scores: Tensor, roles: Tensor, low: float) -> Tensor:
    """(Q, G): what reaches the scores from (Q, 2, M) ``by_contents``."""
    bins = by_contents.shape[2]
    gradient = torch.zeros_like(scores, memory_format=torch.contiguous_format)
    flat = by_contents.reshape(len(scores), 2 * bins).to(scores.dtype)
    for block in row_blocks(scores):
        place, first, _ = _places(scores[block], roles[block], bins, low)
        moves = (roles[block] > 0) & (place >= 0) & (place <= bins - 1)
        by_share = flat[block].gather(1, first + 1) - flat[block].gather(1, first)
        gradient[block] = torch.where(moves, by_share * (-(bins - 1) / (1 - low)), 0.0)
    return gradient


def _places(scores: Tensor, roles: Tensor, bins: int, low: float) -> tuple[Tensor, Tensor, Tensor]:
    """Of (q, G) items: the place in units of bins, the column of the nearest centre above, and the next one's share."""
    place = (1 - scores) * ((bins - 1) / (1 - low))
    inside = place.clamp(0, bins - 1)
    upper = inside.floor().clamp(max=bins - 2)
    return place, upper.long() + bins * (roles == 2), inside - upper


@_histograms.register_fake
def _(scores: Tensor, roles: Tensor, bins: int, low: float) -> Tensor:
    return scores.new_empty(scores.shape[0], 2, bins, dtype=torch.float64)


@_histograms_backward.register_fake
def _(by_contents: Tensor, scores: Tensor, roles: Tensor, low: float) -> Tensor:
    return torch.empty_like(scores, memory_format=torch.contiguous_format)


def _save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    scores, roles, _, ctx.low = inputs
    ctx.save_for_backward(scores, roles)


def _chain(ctx: Any, by_contents: Tensor) -> tuple[Tensor | None, ...]:
    return _histograms_backward(by_contents, *ctx.saved_tensors, ctx.low), None, None, None


_histograms.register_autograd(_chain, setup_context=_save)
