"""The two ways to rank a block of queries on the CPU; either runs over any part of the block's rows.

``forward`` fills ``found`` (5, P) with hrank, rank, their derivatives by the positive's own score, and its gain;
``backward`` takes the metric's derivatives by the positives' own scores, hranks and ranks, (P,) each, to all scores.
"""

import math

import numpy as np

from hgld.losses import kernels_grid_smooth, kernels_grid_sup, kernels_pair, kernels_sorted
from hgld.losses.kernels_spread import NODE_DISTANCE, taps
from hgld.losses.row_block import RowBlock, Survey
from hgld.losses.surrogates import Sigmoid, Surrogate, pack

Chain = tuple[np.ndarray, np.ndarray, np.ndarray]

_SERIES_EXPONENT = 15.0  # the first term left out of the sigmoid's series beyond delta is e^-15
_MOST_TERMS = 6
_MOST_CELLS = 1 << 16  # of a row's grid: a span of 196 at tau = 0.01


class PairPath:
    """Every (positive, item) pair; float32 and float64."""

    def __init__(self, block: RowBlock, survey: Survey, surrogate: Surrogate) -> None:
        self.block = block
        self.offsets = np.concatenate([[0], np.cumsum(survey.num_positives)])
        self.smooth = isinstance(surrogate, Sigmoid)
        dtype = block.scores.dtype
        self.step = np.array(pack(surrogate), dtype)
        self.columns = np.empty(block.scores.shape, np.int32)
        self.ordered = np.empty(block.scores.shape, dtype)
        self.starts = np.empty((len(block.scores), block.gains.shape[1] + 1), np.int64)
        self.found = np.empty((5, self.offsets[-1]))

    def forward(self, start: int, stop: int) -> None:
        part, block = slice(start, stop), self.block
        ordered, starts, offsets = self.ordered[part], self.starts[part], self.offsets[start : stop + 1]
        kernels_pair.by_grade(block.scores[part], block.grades[part], self.columns[part], ordered, starts)
        forward = kernels_pair.smooth_forward if self.smooth else kernels_pair.sup_forward
        forward(ordered, starts, block.gains[part], self.step, offsets, self.found)

    def backward(self, start: int, stop: int, chain: Chain, slopes: np.ndarray) -> None:
        own, by_hrank, by_rank = (part.astype(self.step.dtype) for part in chain)
        part = slice(start, stop)
        rows = (self.ordered[part], self.columns[part], self.starts[part])
        offsets = self.offsets[start : stop + 1]
        if self.smooth:
            gains = self.block.gains[part]
            kernels_pair.smooth_backward(*rows, gains, self.step, offsets, own, by_hrank, by_rank, slopes[part])
        else:
            kernels_pair.sup_backward(*rows, self.step, offsets, own, by_rank, slopes[part])


class GridPath:
    """A sort, running sums and a grid; float32."""

    def __init__(self, block: RowBlock, survey: Survey, surrogate: Surrogate) -> None:
        self.block = block
        self.offsets = np.concatenate([[0], np.cumsum(survey.num_positives)])
        self.smooth = isinstance(surrogate, Sigmoid)
        self.step = np.array(pack(surrogate), np.float32)
        self.num_terms = series_terms(surrogate)
        self.most_cells = int(num_cells(survey.spans, surrogate).max())
        self.taps = taps()
        self.keys = np.empty(block.scores.shape, np.uint64)
        self.beyond = np.empty(self.offsets[-1], np.int32)
        self.found = np.empty((5, self.offsets[-1]))

    def forward(self, start: int, stop: int) -> None:
        part, block = slice(start, stop), self.block
        keys, offsets = self.keys[part], self.offsets[start : stop + 1]
        kernels_sorted.fill_keys(block.scores[part], keys)
        keys.sort(axis=1)
        rows = (keys, block.scores[part], block.grades[part], block.gains[part], self.step)
        if self.smooth:
            kernels_grid_smooth.smooth_forward(*rows, self.taps, self.most_cells, offsets, self.found)
        else:
            tail = (self.num_terms, self.taps, self.most_cells)
            kernels_grid_sup.sup_forward(*rows, *tail, offsets, self.beyond, self.found)

    def backward(self, start: int, stop: int, chain: Chain, slopes: np.ndarray) -> None:
        own, by_hrank, by_rank = chain
        part, block = slice(start, stop), self.block
        rows, offsets = (self.keys[part], block.scores[part], block.grades[part]), self.offsets[start : stop + 1]
        if self.smooth:
            tail = (self.taps, self.most_cells, offsets, own, by_hrank, by_rank, slopes[part])
            kernels_grid_smooth.smooth_backward(*rows, block.gains[part], self.step, *tail)
        else:
            grid = (self.num_terms, block.gains.shape[1] - 1, self.taps, self.most_cells)
            kernels_grid_sup.sup_backward(*rows, self.step, *grid, offsets, self.beyond, own, by_rank, slopes[part])


def num_cells(spans: np.ndarray, surrogate: Surrogate) -> np.ndarray:
    """Cells of the grids of rows whose scores span ``spans``."""
    return np.minimum(spans / (NODE_DISTANCE * surrogate.tau), 2.0**62).astype(np.int64) + 2


def series_terms(surrogate: Surrogate) -> int:
    """Terms of the sigmoid's series beyond delta that keep its error below e^-15; more than the grid takes if many."""
    if isinstance(surrogate, Sigmoid):
        return 0
    steps = max(surrogate.delta / surrogate.tau, _SERIES_EXPONENT / (_MOST_TERMS + 2))
    return max(1, math.ceil(_SERIES_EXPONENT / steps) - 1)


def fits_grid(block: RowBlock, survey: Survey, surrogate: Surrogate) -> np.ndarray:
    """(q,) bool: rows that the grid can take: float32, a span that its memory bounds, delta well beyond tau."""
    small = num_cells(survey.spans, surrogate) <= _MOST_CELLS
    return small & (block.scores.dtype == np.float32) & (series_terms(surrogate) <= _MOST_TERMS)


def is_grid_cheaper(block: RowBlock, survey: Survey, surrogate: Surrogate) -> np.ndarray:
    """(q,) bool: rows for which the grid's operations cost less than the pairs'.

    The constants are nanoseconds on one core of an AMD EPYC 7003; what matters is their ratios.
    """
    num_grids = block.gains.shape[1] - (0 if isinstance(surrogate, Sigmoid) else 1)
    size = block.scores.shape[1]
    pairs = 2.4 * survey.num_positives * size
    grid = 130.0 * size + 40.0 * num_grids * num_cells(survey.spans, surrogate)
    return grid < pairs
