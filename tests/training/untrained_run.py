"""Writes the folder of a run without training."""

from pathlib import Path

import torch

from hgld.training.checkpoint import Checkpoint, mark_best, write_checkpoint
from hgld.training.config import CONFIG, BatchConfig, ImagesConfig, ModelConfig, RunConfig, TrainConfig, save_config
from hgld.training.models.backbones import build_model
from hgld.training.models.embedding_model import EmbeddingModel

CONFIG_OF_RUN = TrainConfig(
    model=ModelConfig(backbone="small", pretrained="none", dim=6),
    images=ImagesConfig(size=24, resize=28, workers=2),
    batch=BatchConfig(batch_size=8),
    run=RunConfig(evaluate_on=("test",), metrics=("R@1", "AP", "H-AP"), device="cpu"),
)


def small_model(seed: int = 0, config: TrainConfig = CONFIG_OF_RUN) -> EmbeddingModel:
    torch.manual_seed(seed)
    return build_model(config.model, image_size=config.images.size)


def write_run(
    folder: Path, *, averaged: bool = False, config: TrainConfig = CONFIG_OF_RUN
) -> tuple[EmbeddingModel, EmbeddingModel]:
    """Write a run with two checkpoints, the first of which is the best, and return both models."""
    best, last = small_model(1, config), small_model(2, config)
    folder.mkdir(parents=True)
    save_config(config, folder / CONFIG)
    for step, model in ((1, best), (2, last)):
        tensors = {"model": model.state_dict()}
        if averaged:
            tensors = {"model": small_model(9).state_dict(), "ema": model.state_dict()}
        path = write_checkpoint(folder, Checkpoint(step, tensors, {}))
        if step == 1:
            mark_best(folder, path, "H-AP", 0.5, "val")
    return best, last
