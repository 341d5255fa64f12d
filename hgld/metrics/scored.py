"""Metrics of a table of scores."""

from collections.abc import Iterable, Sequence

import numpy as np
import torch
from torch import Tensor

from hgld.errors import ConfigError, InputError
from hgld.judgements import MOST_LEVELS, GivenJudgements, JudgedBlock
from hgld.metrics.gains import Relevance
from hgld.metrics.names import Metric, resolve
from hgld.metrics.statistics import depth_needed, depths_of, metric_values

_LARGEST_SCORE = 1e37  # differences of scores stay finite in float32


def ranking_metrics(
    scores: Tensor | np.ndarray,
    grades: Tensor | np.ndarray,
    metrics: Iterable[str | Metric],
    *,
    levels: Sequence[str],
    relevance: Relevance | None = None,
    left_out: Tensor | np.ndarray | None = None,
    backend: str | None = None,
) -> dict[str, np.ndarray]:
    """Metrics of every query of a table of scores.

    Args:
        scores: (Q, G) finite; ordered in float32.
        grades: (Q, G) integers in 0..L, see :func:`hgld.shared_levels`.
        metrics: names of metrics; a binary one without a level stands for every level.
        levels: names of the L levels, finest first.
        relevance: what H-AP, H-R@k, H-P@k and wAP go by; ``population`` with alpha 1 if None.
        left_out: (Q, G) bool, pairs that are not ranked; None: all are.
        backend: ``native`` or ``torch``; None takes ``native`` on the CPU.

    Returns:
        for every metric's name (Q,) float64, NaN where the query has no positive.

    Raises:
        InputError: shapes that differ, scores that are not finite, grades outside 0..L.
        ConfigError: an unknown metric, level or backend.

    >>> import torch
    >>> from hgld.metrics import ranking_metrics
    >>> scores, grades = torch.tensor([[0.9, 0.8, 0.7, 0.6]]), torch.tensor([[0, 2, 1, 0]])
    >>> found = ranking_metrics(scores, grades, ["AP", "R@1"], levels=["fine", "coarse"])
    >>> {name: round(float(value[0]), 3) for name, value in found.items()}
    {'AP/fine': 0.5, 'AP/coarse': 0.583, 'R@1/fine': 0.0, 'R@1/coarse': 0.0}
    """
    score, grade = torch.as_tensor(scores).detach(), torch.as_tensor(grades).detach()
    if score.ndim != 2 or score.shape != grade.shape or not score.is_floating_point():
        raise InputError(
            f"scores have shape {tuple(score.shape)} and dtype {score.dtype}, grades {tuple(grade.shape)}; "
            "expected two (Q, G) tables, the scores of a floating dtype."
        )
    if score.numel() and not float(score.abs().amax()) < _LARGEST_SCORE:  # NaN compares false
        raise InputError(f"scores hold NaN, Inf or values beyond {_LARGEST_SCORE:g}; expected finite scores.")
    check_num_levels(len(levels))
    if grade.is_floating_point() or (grade.numel() and not (int(grade.min()) >= 0 and int(grade.max()) <= len(levels))):
        raise InputError(f"grades have dtype {grade.dtype} or leave 0..{len(levels)}; expected integers in that range.")
    mask = None if left_out is None else torch.as_tensor(left_out).detach()
    if mask is not None and (mask.shape != score.shape or mask.dtype != torch.bool):
        raise InputError(f"left_out has shape {tuple(mask.shape)} and dtype {mask.dtype}; expected (Q, G) bool.")
    judged = GivenJudgements(grade, len(levels), mask).block(0, len(score), score.device)
    chosen = resolve(metrics, levels)
    return block_metrics(score.float().clone(), judged, chosen, levels, relevance or Relevance(), backend)


def check_num_levels(num_levels: int) -> None:
    """Refuse more levels than a grade can count.

    Raises:
        ConfigError: there are none, or too many.
    """
    if not 1 <= num_levels <= MOST_LEVELS:
        raise ConfigError(f"there are {num_levels} levels; expected 1..{MOST_LEVELS}.")


def block_metrics(
    scores: Tensor,
    judged: JudgedBlock,
    metrics: Sequence[Metric],
    levels: Sequence[str],
    relevance: Relevance,
    backend: str | None = None,
) -> dict[str, np.ndarray]:
    """Metrics of a block of queries.

    Args:
        scores: (q, G) float32; overwritten where pairs are not ranked.
        judged: who is relevant.
        metrics: with their levels, see :func:`hgld.metrics.names.resolve`.
        levels: names of the levels, finest first.
        relevance: what the hierarchical metrics go by.
        backend: ``native`` (the CPU alone), ``torch``, or None to choose by the device.

    Returns:
        for every metric's name (q,) float64.

    Raises:
        ConfigError: an unknown backend, or ``native`` for another device than the CPU.
    """
    on_cpu = scores.device.type == "cpu"
    if backend not in (None, "native", "torch") or (backend == "native" and not on_cpu):
        raise ConfigError(f"backend is {backend!r} on {scores.device}; expected native (on the CPU) or torch.")
    rows, items = (torch.from_numpy(part).to(scores.device) for part in judged.left_out)
    scores[rows, items] = -torch.inf
    if (backend or ("native" if on_cpu else "torch")) == "native":
        from hgld.metrics.native import order_statistics  # imports numba, which not every process needs
    else:
        from hgld.metrics.tensor import order_statistics
    gains = relevance.gains(judged.counts)
    depth = depth_needed(metrics, levels, judged.counts)
    exact = any(metric.kind == "AP#g" for metric in metrics)
    found = order_statistics(scores, judged.grades, judged.counts, gains, depths_of(metrics), depth, exact)
    return metric_values(metrics, levels, found, judged.counts, relevance, gains)
