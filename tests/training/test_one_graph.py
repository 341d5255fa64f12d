"""torch.compile turns a training step of model and loss into one graph."""

import copy
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from hgld import Hierarchy
from hgld.training.config import TrainConfig, with_fields
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


pytestmark = pytest.mark.slow  # compiling takes seconds


@pytest.fixture(autouse=True)
def forgotten():
    torch.compiler.reset()
    yield
    torch.compiler.reset()


def gradients(model: Any, criterion: Any, step: Any) -> dict[str, Tensor]:
    """Return loss and gradients of a step, and the batch norm statistics after it."""
    torch.manual_seed(1)
    loss, parts = step(torch.randn(16, 3, 16, 16), LABELS, torch.arange(16) // 4)
    loss.backward()
    named = [*model.named_parameters(), *criterion.named_parameters()]
    found = {name: parameter.grad for name, parameter in named if parameter.grad is not None}
    return {"loss": loss.detach(), **parts, **found, **dict(model.named_buffers())}


@pytest.mark.parametrize("loss", ["HAPPIER", "ROADMAP", "RODNDCG", "SmoothAP"])
def test_training_step_compiles_to_one_graph(loss):
    config = with_fields(TrainConfig(), {"loss": loss})
    torch.manual_seed(0)
    modules = modules_of(config)
    found = []
    for compiled in (False, True):
        model, criterion = copy.deepcopy(modules)

        def step(
            images: Tensor, labels: Tensor, instances: Tensor, model: Any = model, criterion: Any = criterion
        ) -> Any:
            return criterion(model(images), labels, instances)

        run = torch.compile(step, fullgraph=True, backend="aot_eager") if compiled else step
        found.append(gradients(model, criterion, run))
    eager, graph = found
    assert eager.keys() == graph.keys()
    for name, tensor in eager.items():
        torch.testing.assert_close(graph[name], tensor, msg=lambda told, name=name: f"{name}: {told}")
