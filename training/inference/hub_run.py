"""Files of a run that others need: the weights that are used, the config that they need, and a card for the Hub."""

import shutil
from pathlib import Path
from typing import Any

import polars as pl

from hgld.hub import Contents, model_card, repository
from hgld.prediction.calibration import CALIBRATION
from hgld.tables import read_csv

from ..checkpoint import STATE, find_checkpoint, read_state, selection_of, state_text
from ..config import CONFIG, read_config
from ..log import EVALUATIONS
from ..models.networks import write_new_folder
from .classification import CLASSES


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
    measured, values = _measured(folder / EVALUATIONS, state["step"])
    facts = {
        "recipe": config.recipe or "none",
        "backbone": config.model.backbone,
        "loss": config.loss.loss,
        "image size": config.images.size,
        "checkpoint": f"step {state['step']}, {selection_of(checkpoint)}",
    }
    card = model_card(repository(address), facts, values, measured)
    return Contents("model", {"README.md": card.encode(), **_files(checkpoint)})


def write_run(run: Path, folder: Path) -> None:
    """Write what :func:`hgld.load_model` reads of a run to a new folder, with classes and calibration.

    Raises:
        InputError: no checkpoint is there, or it cannot be read.
        StorageError: the folder is not empty, or cannot be written.
    """
    checkpoint = find_checkpoint(run)
    files: dict[str, Path | bytes] = dict(_files(checkpoint))
    further = [checkpoint.parent.parent / name for name in (CLASSES, CALIBRATION)]
    files |= {path.name: path for path in further if path.is_file()}

    def fill(made: Path) -> None:
        for name, content in files.items():
            (made / name).parent.mkdir(parents=True, exist_ok=True)
            if isinstance(content, bytes):
                (made / name).write_bytes(content)
            else:
                shutil.copyfile(content, made / name)

    write_new_folder(folder, fill)


def _files(checkpoint: Path) -> dict[str, Path | bytes]:
    state, folder = read_state(checkpoint), checkpoint.parent.parent
    weights = "ema" if "ema" in state["files"] else "model"
    kept = {"step": state["step"], "files": {weights: state["files"][weights]}}
    place = f"{checkpoint.parent.name}/{checkpoint.name}"
    return {
        CONFIG: folder / CONFIG,
        f"{place}/{STATE}": state_text(kept).encode(),
        f"{place}/{weights}.safetensors": checkpoint / f"{weights}.safetensors",
    }


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
