"""A training step makes neither the host wait for a GPU nor the GPU for the host, whatever the recipe.

The steps run in a process of their own: autograd counts the devices at the first backward pass of a process, and the
pretended one must be there by then.
"""

import json
import subprocess
import sys
import traceback
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from hgld.data.batch import Batch
from hgld.losses.registry import LOSSES
from hgld.training import loop
from hgld.training.config import TrainConfig, with_fields
from hgld.training.step import Safeguard
from tests.training.pretended_gpu import StallCounter, device, pinned, pretended_gpu, to_gpu
from tests.training.tiny_steps import LABELS, modules_of, state_of

ROOT = Path(__file__).parents[2]

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
    "prefixes": {"loss": "SupHAP", "matryoshka": (4, 8)},
}
TAKEN = {step.get("loss", "HAPPIER") for step in STEPS.values()}
STEPS |= {name: {"loss": name} for name in LOSSES if name not in TAKEN}  # every loss that a run can have


def stalls_of(name: str) -> dict[str, Any]:
    """What waits in three steps of a family, and how many copies do not."""
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
    return {"found": dict(counter.found), "copies": counter.copies}


def known_stalls() -> dict[str, Any]:
    """What the counter says of two copies and three reads that wait, and of a copy that does not."""
    with pretended_gpu():
        here, there = torch.zeros(4), torch.empty(4, device=device())
        with StallCounter() as counter:
            here.to(device())
            there.cpu()
            here.pin_memory().to(device(), non_blocking=True)
            for read in (there.sum().item, (there > 0).nonzero, lambda: there[there > 0]):
                with pytest.raises(Exception, match="aten"):
                    read()
    return {"found": dict(counter.found), "copies": counter.copies}


def tried(run: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    try:
        return run()
    except Exception:  # noqa: BLE001  # what needs a number is an error there
        return {"found": {traceback.format_exc(): 1}, "copies": 0}


@pytest.fixture(scope="module")
def counted() -> dict[str, Any]:
    command = [sys.executable, "-m", "tests.training.test_no_stall"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.slow  # a process of its own, with all of its families
@pytest.mark.parametrize("name", STEPS)
def test_a_step_waits_for_nothing(name, counted):
    found = counted[name]["found"]
    assert {told: count for told, count in found.items() if told not in ALLOWED} == {}
    assert counted[name]["copies"] >= 9  # images, labels and instances of three steps: the counter sees copies


@pytest.mark.slow
def test_the_counter_sees_what_waits(counted):
    known = counted["known"]
    assert sum(known["found"].values()) == 5, known
    assert known["copies"] == 1


if __name__ == "__main__":
    runs = {name: partial(stalls_of, name) for name in STEPS} | {"known": known_stalls}
    print(json.dumps({name: tried(run) for name, run in runs.items()}))
