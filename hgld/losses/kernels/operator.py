"""Custom torch operators for the losses, in particular ``hgld::rank_metric``.

If every query's value depends only on its own row of scores, the backward pass needs only dL/dscores (Q, G). So such an
operator returns that gradient along with the values. Autograd keeps the gradient, and torch.compile sees one opaque
node. ``hgld::rank_metric`` has these implementations, chosen by ``method``:

- ``pair``: every (positive, item) pair, exact, O(P G) per query with P positives, float32. On the CPU numba compiles
  it; a GPU runs a Triton kernel.
- ``eager``: every pair in plain torch, float32 and float64, any device; tests compare ``pair`` with it.
- ``auto``: ``pair`` for float32 on the CPU, and on a GPU where Triton is installed; elsewhere ``eager``.

Each implementation needs at most a few dozen MB of memory in addition to the (Q, G) tables.
"""

from collections.abc import Callable
from importlib.util import find_spec
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from hgld.errors import ConfigError, InputError, check_choice
from hgld.losses.kernels.eager import rank_metric_by_pairs
from hgld.losses.kernels.objectives import (
    Objective,
    Surrogate,
    pack_objective,
    pack_surrogate,
    unpack_objective,
    unpack_surrogate,
)

RowFunction = Callable[..., tuple[Tensor, Tensor]]


def operator(
    name: str,
    fake: Callable[..., Any],
    backward: Callable[..., Any] | None = None,
    setup_context: Callable[..., None] | None = None,
) -> Callable[[Callable[..., Any]], Any]:
    """Register a function as a torch operator.

    ``torch.library.custom_op`` does the same, but its first call imports torch's compiler, which takes a second.

    Args:
        name: ``hgld::...``.
        fake: function that takes the same arguments as the operator, and returns an empty result of the right shape and
            dtype.
        backward: argument of ``torch.library.register_autograd``. None: a derivative raises an error.
        setup_context: argument of ``torch.library.register_autograd``.

    Returns:
        a decorator of functions whose annotations torch.library accepts. They must neither change nor return their
        arguments.
    """

    def register(function: Callable[..., Any]) -> Any:
        schema = torch.library.infer_schema(function, mutates_args=())
        torch.library.define(name, schema, tags=(torch.Tag.pt2_compliant_tag,))
        torch.library.impl(name, "default", function)
        torch.library.register_fake(name, fake)
        torch.library.register_autograd(name, backward or _refuse, setup_context=setup_context)
        namespace, _, short = name.partition("::")
        return getattr(getattr(torch.ops, namespace), short).default

    return register


def table_operator(
    name: str, fake: Callable[..., Any], backward: Callable[..., Tensor]
) -> Callable[[Callable[..., Tensor]], Any]:
    """Register a function of ``(scores, roles, *numbers)`` whose backward pass needs only these arguments.

    Args:
        name: ``hgld::...``.
        fake: function that takes the same arguments as the operator, and returns an empty result of the right shape and
            dtype.
        backward: operator that returns the gradient with respect to the scores, given the gradient with respect to the
            result and the arguments of the operator.
    """

    def save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        scores, roles, *ctx.numbers = inputs
        ctx.save_for_backward(scores, roles)

    def chain(ctx: Any, by_result: Tensor) -> tuple[Tensor | None, ...]:
        return backward(by_result, *ctx.saved_tensors, *ctx.numbers), *(None,) * (1 + len(ctx.numbers))

    return operator(name, fake, chain, save)


def row_operator(name: str) -> Callable[[RowFunction], Any]:
    """Register a function of ``(scores, ...)`` as an operator that computes its gradient in the forward pass.

    Args:
        name: ``hgld::...``.

    Returns:
        a decorator of functions whose first argument is scores (Q, G) and whose annotations torch.library accepts. They
        return values (Q,) and d values / d scores (Q, G), both in the dtype of the scores. Gradients flow only to the
        scores; a second derivative raises an error.
    """
    return operator(name, _shapes, _chain, _save_slopes)


def contiguous_like(table: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """Return an empty contiguous tensor with the shape of ``table``; ``dtype``: None for the dtype of ``table``."""
    return torch.empty_like(table, dtype=dtype, memory_format=torch.contiguous_format)


def _shapes(scores: Tensor, *others: Any) -> tuple[Tensor, Tensor]:
    return scores.new_empty(scores.shape[0]), contiguous_like(scores)


def _save_slopes(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    ctx.save_for_backward(output[1])
    ctx.num_others = len(inputs) - 1
    ctx.set_materialize_grads(False)


def _chain(ctx: Any, by_values: Tensor | None, by_slopes: Tensor | None) -> tuple[Tensor | None, ...]:
    if by_slopes is not None:
        _refuse()
    (slopes,) = ctx.saved_tensors
    return (None if by_values is None else by_values[:, None] * slopes, *(None,) * ctx.num_others)


def _refuse(*_: Any) -> None:
    raise InputError("hgld's rank losses have no second derivatives; detach their gradient first.")


# -- rank metric ------------------------------------------------------------------------------------------------------

Method = Literal["auto", "pair", "eager"]


def rank_metric(
    scores: Tensor,
    grades: Tensor,
    gains: Tensor,
    norms: Tensor,
    objective: Objective,
    surrogate: Surrogate,
    method: Method = "auto",
) -> Tensor:
    """Compute the smooth metric of every query: the sum of ``objective`` over its positives.

    Args:
        scores: (Q, G) float32 or float64, finite, or -inf for items that are not ranked. The gradient flows here.
        grades: (Q, G) uint8 in 0..L, 0 for items that are not ranked.
        gains: (Q, L + 1) float64, gain of every grade.
        norms: (Q,) float64, the normalizer of the objective; infinite for a query whose metric shall be 0.
        objective: function of a positive's rank that gives the positive's contribution to the metric.
        surrogate: surrogate of the step function, which makes the ranks smooth.
        method: implementation: auto, pair or eager.

    Returns:
        (Q,) in the dtype of ``scores``. If a row holds NaN or +inf, its value and gradient are NaN.

    Raises:
        ConfigError: the method is unknown, or does not support the device, dtype or surrogate.
    """
    check_choice("method", method, get_args(Method))
    kind, numbers = pack_objective(objective)
    packed = pack_surrogate(surrogate)
    return _rank_metric(scores, grades, gains, norms, kind, numbers, packed, method)[0]


@row_operator("hgld::rank_metric")
def _rank_metric(
    scores: Tensor,
    grades: Tensor,
    gains: Tensor,
    norms: Tensor,
    objective: str,
    objective_numbers: list[float],
    surrogate: list[float],
    method: str,
) -> tuple[Tensor, Tensor]:
    args = (
        scores.contiguous(),
        grades.contiguous(),
        gains.contiguous(),
        norms.contiguous(),
        unpack_objective(objective, objective_numbers),
        unpack_surrogate(surrogate),
    )
    on_cpu = scores.device.type == "cpu"
    on_gpu = scores.device.type == "cuda" and find_spec("triton") is not None
    served = scores.dtype == torch.float32 and (on_cpu or on_gpu)
    if not served and method == "pair":
        raise ConfigError(
            f"method 'pair' does not support {scores.dtype} scores on {scores.device}: it needs float32, and the CPU "
            "or CUDA with Triton. Use method='eager' or 'auto'."
        )
    if not served or method == "eager":
        return rank_metric_by_pairs(*args)
    if on_cpu:
        # imported here: it needs numba, which is slow to import and useless on a GPU
        from hgld.losses.kernels.native import native_rank_metric

        return native_rank_metric(*args)
    # imported here: only CUDA builds of torch include Triton
    from hgld.losses.kernels.triton_pairs import triton_rank_metric

    return triton_rank_metric(*args)
