"""What a checkpoint says of its run beside the tensors, checked: the file may have been cut off or edited."""

import math
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hgld.errors import InputError
from training.checkpoint import STATE, Checkpoint


@dataclass(frozen=True)
class SavedState:
    """The state of a run in a checkpoint.

    Attributes:
        judged: epochs whose evaluation is done.
        best: metric, value, epoch and step of the best evaluation; empty before the first.
        values: the last evaluation's metrics by split.
        scaler: the state of fp16's loss scale; empty without.
        average_updates: steps that the averaged weights have taken in; 0 without them.
    """

    judged: int
    best: dict[str, Any]
    values: dict[str, dict[str, float]]
    scaler: dict[str, float]
    average_updates: int


def saved_state(
    before: Checkpoint, path: Path, *, total: int, steps_per_epoch: int, scaler: Collection[str], averaged: bool
) -> SavedState:
    """The checked state of a checkpoint.

    Args:
        before: as read.
        path: its folder, ``step-N``.
        total: steps of the run.
        steps_per_epoch: of the run.
        scaler: names in the state of the run's loss scale.
        averaged: whether the run averages its weights.

    Raises:
        InputError: a value that no run writes, or a step that is not the folder's or beyond the run.
    """
    state, step = before.state, before.step
    steps, epochs = range(step + 1), range(step // steps_per_epoch + 1)
    names_folder = step in range(total + 1) and path.name == f"step-{step:08d}"
    values, scale, updates = state.get("values"), state.get("scaler"), state.get("average_updates", 0)
    split_values = list(values.values()) if isinstance(values, dict) else [None]
    checks = [
        ("step", names_folder, f"the number of the folder and at most {total}"),
        ("judged", _is_among(state.get("judged"), epochs), f"0 to {step // steps_per_epoch}"),
        ("best", _is_best(state.get("best"), epochs, steps), "nothing, or metric, value, epoch and step"),
        ("values", all(map(_are_numbers, split_values)), "numbers by split and metric"),
        ("scaler", _are_numbers(scale) and set(scale or ()) == set(scaler), f"numbers by the names {sorted(scaler)}"),
        ("average_updates", _is_among(updates, steps) and averaged == ("average_updates" in state), f"0 to {step}"),
    ]
    for name, sound, expected in checks:
        if not sound:
            raise InputError(
                f"{path / STATE}: {name} is {str(state.get(name))[:200]}; expected {expected}. Restore the file, or "
                "remove the checkpoint's folder to go on from the one before."
            )
    return SavedState(state["judged"], state["best"], state["values"], state["scaler"], updates)


def _is_best(best: Any, epochs: range, steps: range) -> bool:
    return best == {} or (
        isinstance(best, dict)
        and isinstance(best.get("metric"), str)
        and _are_numbers({"value": best.get("value")})
        and _is_among(best.get("epoch"), epochs)
        and _is_among(best.get("step"), steps)
    )


def _is_among(value: Any, numbers: range) -> bool:
    return type(value) is int and value in numbers


def _are_numbers(values: Any) -> bool:
    return isinstance(values, dict) and all(type(v) in (int, float) and not math.isinf(v) for v in values.values())
