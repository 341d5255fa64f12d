"""A training step makes neither the host wait for a GPU nor the GPU for the host, whatever the recipe."""

import types
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from hgld import Hierarchy
from hgld.data.batch import Batch
from hgld.distributed import Processes
from hgld.training import loop
from hgld.training.config import TrainConfig, with_fields
from hgld.training.criterion import build_criterion
from hgld.training.models.embedding_model import EmbeddingModel, GeM
from hgld.training.optimizers import LossScale, WeightAverage, build_optimizers
from hgld.training.step import Safeguard
from tests.training.pretended_gpu import StallCounter, device, pinned, pretended_gpu, to_gpu

TREE = Hierarchy(
    ("fine", "mid", "top"),
    (tuple("abcdefgh"), tuple("mnop"), ("x", "y")),
    (np.arange(8) // 2, np.arange(4) // 2),
)
LABELS = torch.as_tensor(TREE.expand(np.repeat([0, 1, 3, 6], 4))).long()

# What a step may wait for, and why. Everything else that the counter knows is a fault.
ALLOWED: dict[str, str] = {}

VIEWS = {"loss": "MultiGrain", "sampler": "repeated-augmentation", "repeats": 2, "lambda_": 0.5}
STEPS: dict[str, dict[str, Any]] = {
    "HAPPIER": {},
    "ROADMAP, pairs": {"loss": "ROADMAP"},
    "Sup-NDCG": {"loss": "RODNDCG"},
    "Smooth-AP": {"loss": "SmoothAP"},
    "recall, SiMix": {"loss": "SmoothRecall", "simix": True},
    "SoftBinAP, class weights": {"loss": "SoftBinAP", "class_weights": True, "sampler": "shuffled"},
    "FastAP over levels": {"loss": "FastAP", "sum_levels": True},
    "PNP": {"loss": "PNP"},
    "BlackboxAP": {"loss": "BlackboxAP"},
    "Triplet": {"loss": "Triplet"},
    "Margin": {"loss": "Margin"},
    "MultiGrain": VIEWS,
    "proxies": {"loss": "ProxyNCApp"},
    "CSL": {"loss": "CSL"},
    "memory": {"loss": "Contrastive", "contrastive": "cosine", "margin": 0.5, "memory": 24, "memory_from_epoch": 0},
    "memory of a composition": {"memory": 40, "memory_from_epoch": 0, "gradient_shares": True},
    "bf16, average": {"amp": "bf16", "ema": 0.99},
    "fp16, clipped": {"amp": "fp16", "clip_norm": 1.0},
    "chunks": {"chunk": 4, "freeze_batch_norm": True},
    "AdamW": {"optimizer": "adamw", "optimizer_proxies": "adam"},
}


class Backbone(nn.Sequential):
    """A small one, with batch norm."""

    def __init__(self) -> None:
        super().__init__(nn.Conv2d(3, 6, 3, stride=2), nn.BatchNorm2d(6), nn.ReLU())


def modules_of(config: TrainConfig) -> tuple[EmbeddingModel, nn.Module]:
    """A model and a criterion, on the CPU."""
    model = EmbeddingModel(Backbone(), 6, GeM(), dim=8, dropout=0.1, freeze_batch_norm=config.model.freeze_batch_norm)
    arguments: dict[str, Any] = {"hierarchy": TREE, "train_labels": LABELS, "dim": 8, "steps_per_epoch": 4}
    return model, build_criterion(config.loss, **arguments)


def state_of(config: TrainConfig, model: EmbeddingModel, criterion: nn.Module) -> Any:
    """What a step reads of a run, on the device."""
    processes = Processes(0, 1, device())
    for module in (model, criterion):
        to_gpu(module).train()
    optimizers = build_optimizers(
        config.optimizer, {**model.parameter_groups(), "proxies": list(criterion.named_parameters())}
    )
    return types.SimpleNamespace(
        config=config,
        processes=processes,
        model=model,
        wrapped=model,
        criterion=criterion,
        optimizers=optimizers,
        scale=LossScale(processes.device, enabled=config.optimizer.amp == "fp16"),
        average=WeightAverage(model, config.optimizer.ema) if config.optimizer.ema else None,
        data=types.SimpleNamespace(steps_per_epoch=4),
        step=0,
    )


@pytest.mark.parametrize("name", STEPS)
def test_a_step_waits_for_nothing(name):
    config = with_fields(TrainConfig(), {"batch_size": 16, "images_per_class": 4, **STEPS[name]})
    modules = modules_of(config)
    with pretended_gpu():
        state = state_of(config, *modules)
        safeguard = Safeguard(state.model, state.criterion, 16, state.processes.device, every=8)
        backward = loop._backward(state, lambda _: nullcontext())
        with StallCounter() as counter:
            for state.step in range(3):
                images = pinned(torch.zeros(16, 3, 16, 16, dtype=torch.uint8))
                batch = Batch(images, LABELS.clone(), torch.arange(16) // 2)
                loop._step(state, safeguard, backward, batch, lambda _: nullcontext())
    assert {told: count for told, count in counter.found.items() if told not in ALLOWED} == {}
    assert counter.copies >= 9  # images, labels and instances of three steps: the counter sees copies
