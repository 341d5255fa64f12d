"""Gradient checkpointing: activations inside a stage are computed again in the backward pass instead of kept."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils.checkpoint import checkpoint


def recompute_stages(stages: Iterable[nn.Module]) -> None:
    """Make modules keep only their inputs for the backward pass; names of parameters stay as they are.

    The second forward pass replays dropout and leaves the statistics of batch norm alone, so that a step is the same
    as without.
    """
    for stage in stages:
        setattr(stage, "forward", partial(_recomputed, stage, stage.forward))  # noqa: B010  # forward is not assignable


def _recomputed(stage: nn.Module, forward: Any, *inputs: Any) -> Any:
    if not torch.is_grad_enabled():
        return forward(*inputs)
    return checkpoint(
        forward, *inputs, use_reentrant=False, context_fn=lambda: (nullcontext(), _statistics_kept(stage))
    )


@contextmanager
def _statistics_kept(stage: nn.Module) -> Iterator[None]:
    """Batch norm normalises by its batch but does not take the batch into its running statistics."""
    norms = [m for m in stage.modules() if isinstance(m, _BatchNorm) and m.training and m.track_running_stats]
    momenta = [norm.momentum for norm in norms]
    counts = [None if norm.num_batches_tracked is None else norm.num_batches_tracked.clone() for norm in norms]
    try:
        for norm in norms:
            norm.momentum = 0.0
        yield
    finally:
        for norm, momentum, count in zip(norms, momenta, counts, strict=True):
            norm.momentum = momentum
            if count is not None and norm.num_batches_tracked is not None:
                norm.num_batches_tracked.copy_(count)
