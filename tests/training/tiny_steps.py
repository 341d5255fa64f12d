"""A small model with batch norm, a loss and 16 labels."""

from typing import Any

import numpy as np
import torch
from torch import nn

from hgld import Hierarchy
from hgld.training.config import TrainConfig
from hgld.training.criterion import build_criterion
from hgld.training.models.embedding_model import EmbeddingModel, GeM

TREE = Hierarchy(
    ("fine", "mid", "top"),
    (tuple("abcdefgh"), tuple("mnop"), ("x", "y")),
    (np.arange(8) // 2, np.arange(4) // 2),
)
LABELS = torch.as_tensor(TREE.expand(np.repeat([0, 1, 3, 6], 4))).long()


class Backbone(nn.Sequential):
    """A small backbone with batch norm."""

    def __init__(self) -> None:
        super().__init__(nn.Conv2d(3, 6, 3, stride=2), nn.BatchNorm2d(6), nn.ReLU())


def modules_of(config: TrainConfig) -> tuple[EmbeddingModel, nn.Module]:
    """Return a model and a criterion, on the CPU."""
    model = EmbeddingModel(Backbone(), 6, GeM(), dim=8, freeze_batch_norm=config.model.freeze_batch_norm)
    arguments: dict[str, Any] = {"hierarchy": TREE, "train_labels": LABELS, "dim": 8, "steps_per_epoch": 4}
    return model, build_criterion(config.loss, **arguments)
