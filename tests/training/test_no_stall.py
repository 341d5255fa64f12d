"""A training step makes neither the host wait for a GPU nor the GPU for the host, whatever the recipe."""

from contextlib import nullcontext
from typing import Any

import pytest
import torch

from hgld.data.batch import Batch
from hgld.training import loop
from hgld.training.config import TrainConfig, with_fields
from hgld.training.step import Safeguard
from tests.training.pretended_gpu import StallCounter, device, pinned, pretended_gpu, to_gpu
from tests.training.tiny_steps import LABELS, modules_of, state_of

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


def families() -> list[Any]:
    """All of STEPS; those that share most of their path with the first are slow tests."""
    return [
        pytest.param(name, marks=[] if name in ("HAPPIER", "fp16, clipped") else pytest.mark.slow) for name in STEPS
    ]


@pytest.mark.parametrize("name", families())
def test_a_step_waits_for_nothing(name):
    config = with_fields(TrainConfig(), {"batch_size": 16, "images_per_class": 4, **STEPS[name]})
    modules = modules_of(config)
    with pretended_gpu():
        for module in modules:
            to_gpu(module)
        state = state_of(config, *modules, device())
        safeguard = Safeguard(state.model, state.criterion, 16, state.processes.device, every=8)
        backward = loop._backward(state, lambda _: nullcontext())
        with StallCounter() as counter:
            for state.step in range(3):
                images = pinned(torch.zeros(16, 3, 16, 16, dtype=torch.uint8))
                batch = Batch(images, LABELS.clone(), torch.arange(16) // 2)
                loop._step(state, safeguard, backward, batch, lambda _: nullcontext())
    assert {told: count for told, count in counter.found.items() if told not in ALLOWED} == {}
    assert counter.copies >= 9  # images, labels and instances of three steps: the counter sees copies


def test_the_counter_sees_what_waits():
    with pretended_gpu():
        here, there = torch.zeros(4), torch.empty(4, device=device())
        with StallCounter() as counter:
            here.to(device())
            there.cpu()
            here.pin_memory().to(device(), non_blocking=True)
            for read in (there.sum().item, (there > 0).nonzero, lambda: there[there > 0]):
                with pytest.raises(Exception, match="aten"):
                    read()
    assert sum(counter.found.values()) == 5
    assert counter.copies == 1
