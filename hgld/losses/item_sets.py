"""The items of a query's row: which are ranked, and where its positives lie."""

from collections.abc import Iterator

import torch
from torch import Tensor

from hgld.errors import InputError

_MOST_ITEMS = 1 << 20  # (query, item) pairs of a block: a temporary of int64 takes 8 MB


def row_blocks(table: Tensor) -> Iterator[slice]:
    """Slices of the rows of a (Q, G) table, each of a bounded number of items; none where it holds nothing."""
    rows = max(1, _MOST_ITEMS // max(1, table.shape[1]))
    for start in range(0, len(table) if table.numel() else 0, rows):
        yield slice(start, min(start + rows, len(table)))


def read_scores(scores: Tensor, grades: Tensor, left_out: Tensor | None) -> Tensor:
    """Scores as the functions of scores and grades take them: (Q, G), in float32 where their dtype is below.

    Raises:
        InputError: shapes or dtypes do not fit.
    """
    if scores.ndim != 2 or scores.shape != grades.shape or not scores.is_floating_point():
        raise InputError(
            f"scores have shape {tuple(scores.shape)} and dtype {scores.dtype}, grades {tuple(grades.shape)}; "
            "expected two (Q, G) tables, the scores of a floating dtype."
        )
    if grades.is_floating_point() or grades.dtype == torch.bool:
        raise InputError(f"grades have dtype {grades.dtype}; expected integers, as hgld.shared_levels returns them.")
    if left_out is not None and left_out.shape != (len(scores),):
        raise InputError(f"left_out has shape {tuple(left_out.shape)}; expected ({len(scores)},), one column a query.")
    return scores if scores.dtype == torch.float64 else scores.float()


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


def item_roles(grades: Tensor, left_out: Tensor | None) -> Tensor:
    """(Q, G) uint8: 0 for the item that a row leaves out, 1 for negatives, 2 for positives; one byte a pair to keep."""
    roles = (grades > 0).to(torch.uint8) + 1
    if left_out is None:
        return roles
    return roles * (torch.arange(grades.shape[1], device=grades.device) != left_out[:, None])
