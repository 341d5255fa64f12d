"""The rank metrics on the CPU: blocks of queries through compiled kernels, over as many threads as torch has."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor

from hgld.errors import ConfigError, InputError
from hgld.losses.native_paths import GridPath, PairPath, fits_grid, is_grid_cheaper
from hgld.losses.objectives import Objective, Positives
from hgld.losses.row_block import RowBlock, Survey
from hgld.losses.surrogates import Surrogate

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
    """Metric of every query and its gradient.

    Arguments and result are those of :func:`hgld.losses.eager_pairs.rank_metric_by_pairs`; ``method`` is ``auto``,
    ``pair`` or ``grid``.

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
    fits = fits_grid(table, survey, surrogate)
    if method == "auto":
        return fits & is_grid_cheaper(table, survey, surrogate)
    if not fits[wanted].all():
        raise ConfigError(
            f"method 'grid' cannot serve {table.scores.dtype} scores that span up to {survey.spans[wanted].max():.3g} "
            f"with {surrogate}: it needs float32, a span below 19000 tau, and delta above 2.2 tau. "
            "Use method='pair' or 'auto'."
        )
    return wanted


def _metric(work: PairPath | GridPath, objective: Objective, each_part: EachPart) -> tuple[np.ndarray, np.ndarray]:
    """Metric (q,) float64 of a block and its gradient (q, G)."""
    block, offsets = work.block, work.offsets
    each_part(work.forward, len(block.scores))
    hrank, rank, hrank_slope, rank_slope, gain = torch.from_numpy(work.found)
    norm = torch.from_numpy(np.repeat(block.norms, np.diff(offsets)))
    query = torch.from_numpy(np.repeat(np.arange(len(block.norms)), np.diff(offsets)))
    terms = objective.terms(Positives(hrank, rank, gain, norm, query))
    own = terms.by_hrank * hrank_slope + terms.by_rank * rank_slope
    slopes = np.zeros_like(block.scores)
    chain = (own.numpy(), terms.by_hrank.numpy(), terms.by_rank.numpy())
    each_part(lambda start, stop: work.backward(start, stop, chain, slopes), len(block.scores))
    return np.add.reduceat(terms.values.numpy(), offsets[:-1]), slopes


def _blocks(rows: np.ndarray, size: int) -> Iterator[np.ndarray]:
    most = max(1, _MOST_ITEMS // max(1, size))
    for start in range(0, len(rows), most):
        yield rows[start : start + most]


@contextmanager
def _threads(num_threads: int) -> Iterator[EachPart]:
    """A function that runs work on consecutive parts of a number of rows, each in a thread of its own."""
    if num_threads == 1:
        yield lambda work, size: work(0, size)
        return
    with ThreadPoolExecutor(num_threads) as pool:

        def each_part(work: Callable[[int, int], None], size: int) -> None:
            edges = np.linspace(0, size, min(num_threads, size) + 1).astype(int).tolist()
            list(pool.map(work, edges[:-1], edges[1:]))

        yield each_part
