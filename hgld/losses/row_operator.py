"""Operators that give every query a value by its own row of scores, their gradient made in the forward pass.

The backward pass of such a loss needs dL/dscores (Q, G) and nothing else, whatever the forward pass went through: an
operator returns it along with the values, autograd keeps it, and torch.compile sees one opaque node.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from hgld.errors import InputError

RowFunction = Callable[..., tuple[Tensor, Tensor]]


def row_operator(name: str) -> Callable[[RowFunction], Any]:
    """Register a function of ``(scores, ...)`` as an operator of torch.

    Args:
        name: ``hgld::...``.

    Returns:
        a decorator of functions that take scores (Q, G) first, are annotated as torch's schemas need it, and return
        values (Q,) and d values / d scores (Q, G), both in the dtype of the scores. Gradients flow to the scores alone;
        second derivatives are refused.
    """

    def register(function: RowFunction) -> Any:
        operator = torch.library.custom_op(name, function, mutates_args=())
        operator.register_fake(_shapes)
        operator.register_autograd(_chain, setup_context=_save_slopes)
        return operator

    return register


def _shapes(scores: Tensor, *others: Any) -> tuple[Tensor, Tensor]:
    return scores.new_empty(scores.shape[0]), torch.empty_like(scores, memory_format=torch.contiguous_format)


def _save_slopes(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    ctx.save_for_backward(output[1])
    ctx.num_others = len(inputs) - 1
    ctx.set_materialize_grads(False)


def _chain(ctx: Any, by_values: Tensor | None, by_slopes: Tensor | None) -> tuple[Tensor | None, ...]:
    if by_slopes is not None:
        raise InputError("hgld's rank losses have no second derivatives; detach their gradient before going on.")
    (slopes,) = ctx.saved_tensors
    return (None if by_values is None else by_values[:, None] * slopes, *(None,) * ctx.num_others)
