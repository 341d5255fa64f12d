"""Files of a run for the Hub: the weights that are used, the config that they need, and a card."""

from pathlib import Path
from typing import Any

import polars as pl

from hgld.hub import Contents, model_card, repository
from hgld.tables import read_csv

from ..checkpoint import STATE, find_checkpoint, read_state, selection_of, state_text
from ..config import CONFIG, read_config
from ..log import EVALUATIONS


def run_contents(run: Path, address: str) -> Contents:
    """Return the files of a run that are pushed: those that :func:`hgld.load_model` reads, and a card.

    Args:
        run: a run's folder, or that of one of its checkpoints.
        address: ``hf:USER/NAME``, for the card.

    Raises:
        InputError: no checkpoint is there, or it cannot be read.
    """
    checkpoint = find_checkpoint(run)
    folder = checkpoint.parent.parent
    state, config = read_state(checkpoint), read_config(folder / CONFIG)
    weights = "ema" if "ema" in state["files"] else "model"
    kept = {"step": state["step"], "files": {weights: state["files"][weights]}}
    place = f"{checkpoint.parent.name}/{checkpoint.name}"
    measured, values = _measured(folder / EVALUATIONS, state["step"])
    facts = {
        "recipe": config.recipe or "none",
        "backbone": config.model.backbone,
        "loss": config.loss.loss,
        "image size": config.images.size,
        "checkpoint": f"step {state['step']}, {selection_of(checkpoint)}",
    }
    card = model_card(repository(address), facts, values, measured)
    return Contents(
        "model",
        {
            "README.md": card.encode(),
            CONFIG: folder / CONFIG,
            f"{place}/{STATE}": state_text(kept).encode(),
            f"{place}/{weights}.safetensors": checkpoint / f"{weights}.safetensors",
        },
    )


def _measured(file: Path, step: int) -> tuple[str, dict[str, float]]:
    """Return the last set that the checkpoint was evaluated on, and the metrics there; empty where it was not."""
    if not file.is_file():
        return "", {}
    rows: list[dict[str, Any]] = read_csv(file, infer=True).filter(pl.col("step") == step).to_dicts()
    if not rows:
        return "", {}
    row = rows[-1]
    numbers = {name: value for name, value in row.items() if name not in ("step", "epoch", "split")}
    return str(row["split"]), {name: value for name, value in numbers.items() if isinstance(value, float)}
