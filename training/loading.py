"""A trained model, back from its run."""

from dataclasses import replace
from pathlib import Path
from typing import Literal

from hgld.errors import InputError
from training.checkpoint import find_checkpoint, read_state, read_tensors
from training.config import TrainConfig
from training.config_files import CONFIG, read_config
from training.models.backbones import build_model
from training.models.embedding_model import EmbeddingModel


def load_model(place: Path, which: Literal["best", "last"] = "best") -> tuple[EmbeddingModel, TrainConfig]:
    """The model of a checkpoint, with its averaged weights where the run kept an average.

    Args:
        place: a run's folder, or that of one of its checkpoints (``RUN/checkpoints/step-N``).
        which: checkpoint of a run: ``best`` (the last one where none was found best) or ``last``.

    Returns:
        the model, on the CPU in evaluation mode, and the run's config.

    Raises:
        InputError: no checkpoint is there, or it cannot be read or does not fit the run's config.
        SchemaError: the config is of another schema version.
    """
    checkpoint = find_checkpoint(place, which)
    config = read_config(checkpoint.parent.parent / CONFIG)
    averaged = checkpoint / "ema.safetensors"
    # Named but lost, it is read all the same, and its loss told: the weights before averaging are other ones.
    was_written = "ema" in read_state(checkpoint).get("files", {})
    file = averaged if was_written or averaged.is_file() else checkpoint / "model.safetensors"
    tensors = read_tensors(file)
    eager = replace(config.model, compile=False)  # compiling takes longer than most datasets
    model = build_model(eager, image_size=config.images.size, load_weights=False)
    try:
        model.load_state_dict(tensors)
    except RuntimeError as error:
        reason = " ".join(str(error).split())[:400]
        raise InputError(
            f"{file} does not hold the model that the run's {CONFIG} describes: {reason} Was {CONFIG} changed?"
        ) from error
    return model.eval(), config
