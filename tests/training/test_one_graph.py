"""A step of model and loss as one graph for torch.compile."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor

from hgld.training.config import TrainConfig, with_fields
from tests.training.tiny_steps import LABELS, modules_of

pytestmark = pytest.mark.slow  # the compiler takes seconds


@pytest.fixture(autouse=True)
def forgotten():
    torch.compiler.reset()
    yield
    torch.compiler.reset()


def gradients(model: Any, criterion: Any, step: Any) -> dict[str, Tensor]:
    """Loss and gradients of a step, and the statistics of batch norm after it."""
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
