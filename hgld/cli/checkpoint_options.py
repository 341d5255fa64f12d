"""Options of the verbs that use a trained model, and the model that they ask for."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hgld.cli.options import Numbers

if TYPE_CHECKING:
    from training.embedder import Embedder

CHECKPOINT = click.Path(path_type=Path, file_okay=False, exists=True)
_LEAST_ONE = click.IntRange(min=1)


class _GemP(click.ParamType):
    """``auto`` or a number above 0."""

    name = metavar = "auto|FLOAT"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        try:
            number = value if value == "auto" else float(value)
        except ValueError:
            number = 0.0
        if number != "auto" and not 0 < number < float("inf"):
            self.fail(f"{value!r}: expected auto or a number above 0.", param, ctx)
        return number


_OPTIONS = {
    "which": click.option(
        "--which", type=click.Choice(["best", "last"]), default="best", show_default=True, help="Checkpoint of the run."
    ),
    "size": click.option(
        "--size", type=_LEAST_ONE, help="Side of the square that the model sees, pixels. [default: as in training]"
    ),
    "resize": click.option(
        "--resize",
        type=_LEAST_ONE,
        help="Short side before the central square is cut out, pixels. [default: in proportion to --size]",
    ),
    "scales": click.option(
        "--scales",
        type=Numbers(),
        default=(1.0,),
        help="Factors of the image's size whose embeddings are averaged, for instance 1,0.7071,0.5. [default: 1]",
    ),
    "gem_p": click.option(
        "--gem-p",
        type=_GemP(),
        help="Exponent of GeM pooling; auto: the best of 1 to 10 at --size, by views of training images of --data. "
        "[default: as trained]",
    ),
    "batch_size": click.option(
        "--batch-size", type=_LEAST_ONE, help="Images at a time, a process. [default: as in training, 256 at most]"
    ),
    "workers": click.option(
        "--workers", type=_LEAST_ONE, help="Threads that read and decode, a process. [default: as in training]"
    ),
    "amp": click.option(
        "--amp",
        type=click.Choice(["off", "bf16", "fp16"]),
        help="Precision of the model's arithmetic. [default: as in training]",
    ),
}


def checkpoint_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Flags of how a trained model looks at images; with ``device`` and the checkpoint, :func:`open_embedder`'s."""
    for option in reversed(_OPTIONS.values()):
        function = option(function)
    return function


def take_checkpoint_options(given: dict[str, Any]) -> dict[str, Any]:
    """The values of these flags, taken out of a verb's."""
    return {name: given.pop(name) for name in _OPTIONS}


def refuse_checkpoint_options(given: dict[str, Any]) -> None:
    """Refuse flags that have nothing to act on, because no checkpoint is given."""
    context = click.get_current_context()
    for name in _OPTIONS:
        given.pop(name)
        if context.get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE:
            raise click.UsageError(f"--{name.replace('_', '-')} goes with --checkpoint, which is not given.")


def open_embedder(
    checkpoint: Path, device: str | None, options: dict[str, Any], data: str
) -> "AbstractContextManager[Embedder]":
    """The model of a checkpoint with the options of :func:`take_checkpoint_options`, for a dataset."""
    from training.embedder import trained_embedder

    return trained_embedder(checkpoint, device=device or "", data=data, **options)
