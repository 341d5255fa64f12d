"""The rank metrics on the CPU: blocks of queries through compiled kernels, over as many threads as torch has."""

import math
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from hgld.errors import ConfigError, InputError
from hgld.losses.kernels import grid as grid_kernels
from hgld.losses.kernels import pairs as pair_kernels
from hgld.losses.kernels.compiled import compiled
from hgld.losses.kernels.grid import NODE_DISTANCE, taps
from hgld.losses.kernels.objectives import Objective, Positives
from hgld.losses.surrogates import Sigmoid, Surrogate, pack

# -- rows, and a survey of them ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class RowBlock:
    """A block of queries.

    Attributes:
        scores: (q, G) float32, -inf where an item is not ranked.
        grades: (q, G) uint8 in 0..L.
        gains: (q, L + 1) float64, gain of every grade.
        norms: (q,) float64, the objective's normalizers.
    """

    scores: np.ndarray
    grades: np.ndarray
    gains: np.ndarray
    norms: np.ndarray

    def rows(self, index: np.ndarray) -> "RowBlock":
        """Return some of the rows; views where they follow one another."""
        some = slice(index[0], index[-1] + 1) if index[-1] - index[0] + 1 == len(index) else index
        return RowBlock(self.scores[some], self.grades[some], self.gains[some], self.norms[some])


@dataclass(frozen=True)
class Survey:
    """Facts of every row, gathered before any work.

    Attributes:
        num_positives: (q,) int64 items of grade > 0.
        spans: (q,) float64 highest minus lowest score of the ranked items, 0 where there are none.
        finite: (q,) bool: no NaN or +inf.
        highest_grade: of all rows.
    """

    num_positives: np.ndarray
    spans: np.ndarray
    finite: np.ndarray
    highest_grade: int

    def rows(self, index: np.ndarray) -> "Survey":
        return Survey(self.num_positives[index], self.spans[index], self.finite[index], self.highest_grade)

    @classmethod
    def of(cls, scores: np.ndarray, grades: np.ndarray) -> "Survey":
        """Survey (q, G) ``scores`` and ``grades``."""
        num_positives, finite = np.empty(len(scores), np.int64), np.empty(len(scores), np.bool_)
        extremes = np.empty((2, len(scores)), np.float32)
        highest = _survey(scores, grades, num_positives, finite, extremes)
        low, high = extremes.astype(np.float64)
        return cls(num_positives, np.where(high >= low, high - low, 0.0), finite, int(highest))


@compiled
def _survey(
    scores: np.ndarray, grades: np.ndarray, num_positives: np.ndarray, finite: np.ndarray, extremes: np.ndarray
) -> np.int64:
    """Fill the fields of :class:`Survey`, ``extremes`` (2, q) with the extreme scores; return the top grade."""
    top = np.uint8(0)
    for row in range(scores.shape[0]):
        positives, strange = np.int64(0), np.int64(0)
        low, high = np.float32(np.inf), np.float32(-np.inf)
        for j in range(scores.shape[1]):
            score = scores[row, j]
            positives += grades[row, j] > 0
            top = max(top, grades[row, j])
            strange += not score < np.inf  # NaN compares false
            low = score if -np.inf < score < low else low
            high = max(high, score)
        num_positives[row], finite[row] = positives, strange == 0
        extremes[0, row], extremes[1, row] = low, high
    return np.int64(top)


# -- the two paths ----------------------------------------------------------------------------------------------------
#
# Each ranks any part of a block's rows. ``forward`` fills ``found`` (5, P) with hrank, rank, their derivatives by the
# positive's own score, and its gain; ``backward`` takes the metric's derivatives by the positives' own scores, hranks
# and ranks, (P,) each, to all scores.

Chain = tuple[np.ndarray, np.ndarray, np.ndarray]

_SERIES_EXPONENT = 15.0  # the first term left out of the sigmoid's series beyond delta is e^-15
_MOST_TERMS = 6
_MOST_CELLS = 1 << 16  # of a row's grid: a span of 196 at tau = 0.01


class PairPath:
    """Path over every (positive, item) pair."""

    def __init__(self, block: RowBlock, survey: Survey, surrogate: Surrogate) -> None:
        self.block = block
        self.offsets = np.concatenate([[0], np.cumsum(survey.num_positives)])
        self.smooth = isinstance(surrogate, Sigmoid)
        self.step = np.array(pack(surrogate), np.float32)
        self.columns = np.empty(block.scores.shape, np.int32)
        self.ordered = np.empty(block.scores.shape, np.float32)
        self.starts = np.empty((len(block.scores), block.gains.shape[1] + 1), np.int64)
        self.found = np.empty((5, self.offsets[-1]))

    def forward(self, start: int, stop: int) -> None:
        part, block = slice(start, stop), self.block
        ordered, starts, offsets = self.ordered[part], self.starts[part], self.offsets[start : stop + 1]
        pair_kernels.by_grade(block.scores[part], block.grades[part], self.columns[part], ordered, starts)
        forward = pair_kernels.smooth_forward if self.smooth else pair_kernels.sup_forward
        forward(ordered, starts, block.gains[part], self.step, offsets, self.found)

    def backward(self, start: int, stop: int, chain: Chain, slopes: np.ndarray) -> None:
        by_self, by_hrank, by_rank = (part.astype(np.float32) for part in chain)
        part = slice(start, stop)
        rows = (self.ordered[part], self.columns[part], self.starts[part])
        offsets = self.offsets[start : stop + 1]
        if self.smooth:
            gains = self.block.gains[part]
            pair_kernels.smooth_backward(*rows, gains, self.step, offsets, by_self, by_hrank, by_rank, slopes[part])
        else:
            pair_kernels.sup_backward(*rows, self.step, offsets, by_self, by_rank, slopes[part])


class GridPath:
    """Path by a sort, running sums and a grid."""

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
        grid_kernels.fill_keys(block.scores[part], keys)
        keys.sort(axis=1)
        rows = (keys, block.scores[part], block.grades[part], block.gains[part], self.step)
        if self.smooth:
            grid_kernels.smooth_forward(*rows, self.taps, self.most_cells, offsets, self.found)
        else:
            tail = (self.num_terms, self.taps, self.most_cells)
            grid_kernels.sup_forward(*rows, *tail, offsets, self.beyond, self.found)

    def backward(self, start: int, stop: int, chain: Chain, slopes: np.ndarray) -> None:
        by_self, by_hrank, by_rank = chain
        part, block = slice(start, stop), self.block
        rows, offsets = (self.keys[part], block.scores[part], block.grades[part]), self.offsets[start : stop + 1]
        if self.smooth:
            tail = (self.taps, self.most_cells, offsets, by_self, by_hrank, by_rank, slopes[part])
            grid_kernels.smooth_backward(*rows, block.gains[part], self.step, *tail)
        else:
            grid = (self.num_terms, block.gains.shape[1] - 1, self.taps, self.most_cells)
            grid_kernels.sup_backward(*rows, self.step, *grid, offsets, self.beyond, by_self, by_rank, slopes[part])


def num_cells(spans: np.ndarray, surrogate: Surrogate) -> np.ndarray:
    """Return the number of grid cells of rows, given the ``spans`` of their scores."""
    return np.minimum(spans / (NODE_DISTANCE * surrogate.tau), 2.0**62).astype(np.int64) + 2


def series_terms(surrogate: Surrogate) -> int:
    """Return the terms that the series beyond delta takes for an error below e^-15, even if too many for the grid."""
    if isinstance(surrogate, Sigmoid):
        return 0
    steps = max(surrogate.delta / surrogate.tau, _SERIES_EXPONENT / (_MOST_TERMS + 2))
    return max(1, math.ceil(_SERIES_EXPONENT / steps) - 1)


def fits_grid(survey: Survey, surrogate: Surrogate) -> np.ndarray:
    """Return (q,) bool, True for rows that the grid can take: a span that its memory bounds, delta well beyond tau."""
    return (num_cells(survey.spans, surrogate) <= _MOST_CELLS) & (series_terms(surrogate) <= _MOST_TERMS)


def is_grid_cheaper(block: RowBlock, survey: Survey, surrogate: Surrogate) -> np.ndarray:
    """Return (q,) bool, True for rows whose grid operations cost less than the pairs'.

    The constants are nanoseconds on one core of an AMD EPYC 7003; what matters is their ratios.
    """
    num_grids = block.gains.shape[1] - (0 if isinstance(surrogate, Sigmoid) else 1)
    size = block.scores.shape[1]
    pairs = 2.4 * survey.num_positives * size
    grid = 130.0 * size + 40.0 * num_grids * num_cells(survey.spans, surrogate)
    return grid < pairs


# -- the metric -------------------------------------------------------------------------------------------------------

_MOST_ITEMS = 1 << 19  # (query, item) pairs of a block: its workspace stays below 100 MB

EachPart = Callable[[Callable[[int, int], None], int], None]


def native_rank_metric(
    scores: Tensor,
    grades: Tensor,
    gains: Tensor,
    norms: Tensor,
    objective: Objective,
    surrogate: Surrogate,
    *,
    method: str,
) -> tuple[Tensor, Tensor]:
    """Compute the metric of every query and its gradient.

    Arguments and result are those of :func:`hgld.losses.kernels.eager.rank_metric_by_pairs`, the scores float32;
    ``method`` is ``auto``, ``pair`` or ``grid``.

    Raises:
        InputError: grades beyond the levels.
        ConfigError: ``grid`` where it cannot serve.
    """
    table = RowBlock(scores.detach().numpy(), grades.numpy(), gains.numpy(), norms.numpy())
    survey = Survey.of(table.scores, table.grades)
    num_levels = table.gains.shape[1] - 1
    if survey.highest_grade > num_levels:
        raise InputError(f"grades run to {survey.highest_grade}; expected 0..{num_levels} for {num_levels} levels.")
    values, slopes = np.zeros(len(scores)), np.zeros_like(table.scores)
    wanted = survey.finite & (survey.num_positives > 0) & np.isfinite(table.norms)
    by_grid = _rows_by_grid(method, table, survey, surrogate, wanted)
    with _threads(torch.get_num_threads()) as each_part:
        for chosen, path in ((wanted & ~by_grid, PairPath), (wanted & by_grid, GridPath)):
            for rows in _blocks(np.flatnonzero(chosen), table.scores.shape[1]):
                block = table.rows(rows)
                work = path(block, survey.rows(rows), surrogate)
                values[rows], slopes[rows] = _metric(work, objective, each_part)
    values[~survey.finite], slopes[~survey.finite] = np.nan, np.nan
    return torch.from_numpy(values).to(scores.dtype), torch.from_numpy(slopes)


def _rows_by_grid(method: str, table: RowBlock, survey: Survey, surrogate: Surrogate, wanted: np.ndarray) -> np.ndarray:
    if method == "pair":
        return np.zeros(len(table.scores), bool)
    fits = fits_grid(survey, surrogate)
    if method == "auto":
        return fits & is_grid_cheaper(table, survey, surrogate)
    if not fits[wanted].all():
        raise ConfigError(
            f"method 'grid' cannot serve scores that span up to {survey.spans[wanted].max():.3g} with {surrogate}: it "
            "needs a span below 19000 tau, and delta above 2.2 tau. "
            "Use method='pair' or 'auto'."
        )
    return wanted


def _metric(work: PairPath | GridPath, objective: Objective, each_part: EachPart) -> tuple[np.ndarray, np.ndarray]:
    """Return the metric (q,) float64 of a block and its gradient (q, G)."""
    block, offsets = work.block, work.offsets
    each_part(work.forward, len(block.scores))
    hrank, rank, hrank_slope, rank_slope, gain = torch.from_numpy(work.found)
    norm = torch.from_numpy(np.repeat(block.norms, np.diff(offsets)))
    query = torch.from_numpy(np.repeat(np.arange(len(block.norms)), np.diff(offsets)))
    terms = objective.terms(Positives(hrank, rank, gain, norm, query))
    by_self = terms.by_hrank * hrank_slope + terms.by_rank * rank_slope
    slopes = np.zeros_like(block.scores)
    chain = (by_self.numpy(), terms.by_hrank.numpy(), terms.by_rank.numpy())
    each_part(lambda start, stop: work.backward(start, stop, chain, slopes), len(block.scores))
    return np.add.reduceat(terms.values.numpy(), offsets[:-1]), slopes


def _blocks(rows: np.ndarray, size: int) -> Iterator[np.ndarray]:
    most = max(1, _MOST_ITEMS // max(1, size))
    for start in range(0, len(rows), most):
        yield rows[start : start + most]


@contextmanager
def _threads(num_threads: int) -> Iterator[EachPart]:
    """Open a function that runs work on consecutive parts of a number of rows, each in a thread of its own."""
    if num_threads == 1:
        yield lambda work, size: work(0, size)
        return
    with ThreadPoolExecutor(num_threads) as pool:

        def each_part(work: Callable[[int, int], None], size: int) -> None:
            edges = np.linspace(0, size, min(num_threads, size) + 1).astype(int).tolist()
            list(pool.map(work, edges[:-1], edges[1:]))

        yield each_part
