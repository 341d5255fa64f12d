"""The items of a query's row: which are ranked, and where its positives lie."""

import torch
from torch import Tensor


def ranked_items(scores: Tensor, left_out: Tensor | None) -> Tensor:
    """(Q, G) bool: the items that are ranked, all but the one a row leaves out."""
    columns = torch.arange(scores.shape[1], device=scores.device)
    if left_out is None:
        return torch.ones_like(scores, dtype=torch.bool)
    return columns != left_out[:, None]


def positive_places(positive: Tensor) -> tuple[Tensor, Tensor]:
    """The columns of every row's positives, side by side.

    Args:
        positive: (Q, G) bool.

    Returns:
        columns (Q, P), P the most that a row has, 0 where there are no more, and used (Q, P) bool.
    """
    counts = positive.sum(1)
    most = int(counts.max()) if counts.numel() else 0
    rows, columns = positive.nonzero(as_tuple=True)
    slots = torch.arange(len(rows), device=rows.device) - (counts.cumsum(0) - counts)[rows]
    places = torch.zeros(len(positive), most, dtype=torch.int64, device=positive.device)
    places[rows, slots] = columns
    return places, torch.arange(most, device=positive.device) < counts[:, None]
